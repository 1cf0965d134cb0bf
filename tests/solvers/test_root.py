"""Zeros and minima on an interval."""

import math

import pytest

from keras_calib.solvers.root import false_position
from keras_calib.solvers.root import golden_section

pytestmark = pytest.mark.one_backend


@pytest.mark.parametrize(("power", "most"), [(1, 3), (3, 20), (9, 50)])
@pytest.mark.parametrize("wanted", [0.2, 2.0, 2.9])
def test_false_position_finds_a_root(power, most, wanted):
    values = []

    def function(x):
        values.append(x**power - wanted**power)
        return values[-1]

    found = false_position(function, 0.0, 3.0, tolerance=1e-12)
    assert found == pytest.approx(wanted, abs=1e-9)
    # A line takes one step, and what is flat at the left end takes many.
    assert len(values) <= most


def test_false_position_without_a_change_of_sign_is_none():
    assert false_position(lambda x: x**2 + 1, -1.0, 1.0) is None
    # The function turns from positive to negative.
    assert false_position(lambda x: -x, -1.0, 1.0) is None
    # The left end is a zero already.
    assert false_position(lambda x: x, 0.0, 1.0) is None


def test_false_position_halves_the_value_of_the_end_that_stays():
    # f(x) = x^2 - 1 on [0, 3]. The chord of (0, -1) and (3, 8) is zero at 1/3,
    # that of (1/3, -8/9) and (3, 8) at 3/5. By then the left end has moved
    # twice, and the right one counts as 4:
    # (3/5 * 4 - 3 * (-16/25)) / (4 + 16/25) = 27/29.
    places = []

    def function(x):
        places.append(x)
        return x**2 - 1

    false_position(function, 0.0, 3.0)
    expected = [0.0, 3.0, 1 / 3, 3 / 5, 27 / 29]
    assert places[:5] == pytest.approx(expected, abs=1e-14)


def test_false_position_at_a_step_ends_after_60_values():
    calls = []

    def function(x):
        calls.append(x)
        return math.copysign(1.0, x - 0.3)

    found = false_position(function, 0.0, 1.0, tolerance=0.0)
    assert len(calls) == 62
    assert found == pytest.approx(0.3, abs=1e-9)


@pytest.mark.parametrize("wanted", [-1.0, 0.3, 1.5, 4.0])
def test_golden_section_finds_the_valley(wanted):
    calls = []

    def function(x):
        calls.append(x)
        return abs(x - wanted) ** 1.5

    found = golden_section(function, -1.0, 4.0)
    assert found == pytest.approx(wanted, abs=1e-8)
    # Each value shortens the interval by the golden ratio.
    ratio = (math.sqrt(5) - 1) / 2
    steps = math.ceil(math.log(1e-8 / 5) / math.log(ratio))
    assert len(calls) == 2 + steps
