"""P-values of a gap between confidence and accuracy."""

import numpy as np
import pytest
from scipy import stats

from keras_calib.evaluation import gap_test
from keras_calib.evaluation.gap_test import gap_p_value

pytestmark = pytest.mark.one_backend
RNG = np.random.default_rng(0)


def law(confidence):
    """The law of the number of hits, by convolution."""
    found = np.ones(1)
    for c in confidence:
        found = np.convolve(found, [1 - c, c])
    return found


def hits(n, number):
    return (np.arange(n) < number).astype(float)


@pytest.mark.parametrize(
    "confidence",
    [np.full(30, 0.999), RNG.uniform(0.5, 1, 50), np.full(200, 0.98)],
)
@pytest.mark.parametrize("errors", [0, 1, 2, 5, 10])
def test_small_variances_have_the_exact_law(confidence, errors):
    n, mean = len(confidence), confidence.sum()
    number = int(mean) - errors
    away = np.abs(np.arange(n + 1) - mean)
    expected = law(confidence)[away >= abs(number - mean) - 1e-9].sum()
    # Equal weights change nothing.
    for weights in (None, np.full(n, 3.0)):
        found = gap_p_value(confidence, hits(n, number), weights)
        assert found == pytest.approx(expected, rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("errors", [3, 10, 25, 60])
def test_large_variances_have_saddle_points(errors):
    confidence = np.random.default_rng(1).uniform(0.9, 1, 3000)
    mean = confidence.sum()
    number = int(mean) - errors
    away = np.arange(3001) - mean
    size = mean - number
    expected = law(confidence)[np.abs(away) >= size - 1e-9].sum()
    found = gap_p_value(confidence, hits(3000, number))
    assert found == pytest.approx(expected, rel=0.15)
    if errors == 60:  # where a normal variable is far off
        spread = np.sqrt((confidence * (1 - confidence)).sum())
        normal = 2 * stats.norm.sf(size / spread)
        assert abs(np.log(normal / expected)) > 5 * abs(
            np.log(found / expected)
        )


def test_small_variances_with_weights_have_a_bound():
    confidence, weights = np.full(12, 0.97), np.linspace(0.5, 2.0, 12)
    labels = (np.arange(2**12)[:, None] >> np.arange(12)) & 1
    chance = np.where(labels, 0.97, 0.03).prod(axis=1)
    gaps = np.abs((labels - 0.97) @ weights)
    order = np.argsort(-gaps)
    for index in order[::200]:
        found = gap_p_value(confidence, labels[index], weights)
        expected = chance[gaps >= gaps[index] - 1e-9].sum()
        assert expected * (1 - 1e-9) <= found <= min(1.0, 30 * expected + 1e-9)


def test_its_level_is_kept():
    rng = np.random.default_rng(2)
    for n, off, weighted in ((30, 0.02, False), (400, 0.3, True)):
        found = []
        for _ in range(400):
            c = 1 - off * rng.random(n)
            weights = rng.exponential(size=n) if weighted else None
            found.append(gap_p_value(c, rng.random(n) < c, weights))
        # 33 of 400 are below 0.05 with a probability of 0.2 %.
        assert np.sum(np.array(found) <= 0.05) < 33


def test_nothing_and_everything_can_be_told():
    certain = np.ones(5)
    assert gap_p_value(certain, certain) == 1.0
    assert gap_p_value(certain, [1, 1, 0, 1, 1]) < 1e-12
    assert gap_p_value(certain, [1, 1, 0, 1, 1], np.arange(1.0, 6)) == 0.0
    # Half of each is right, as they say.
    assert gap_p_value(np.full(10, 0.5), np.arange(10) % 2) == 1.0
    many = np.full(100_000, 0.7)
    gap = 400 / np.sqrt(100_000 * 0.21)
    found = gap_p_value(many, hits(100_000, 70_400))
    assert found == pytest.approx(2 * stats.norm.sf(gap), rel=1e-9)


def test_units_have_a_t_test():
    rng = np.random.default_rng(3)
    unit = np.repeat(np.arange(0, 40, 2), 50)  # some ids have no row
    confidence = rng.uniform(0.6, 1.0, 1000)
    correct = rng.random(1000) < confidence - 0.05
    sums = np.bincount(unit, correct - confidence)[::2]
    found = gap_p_value(confidence, correct, None, unit)
    expected = stats.ttest_1samp(sums, 0).pvalue
    assert found == pytest.approx(expected, rel=0.02)
    # Units that are all right are nearly equal, and the t-test would be sure.
    sure = np.full(1000, 0.9995)
    found = gap_p_value(sure, np.ones(1000), None, unit)
    assert found == gap_p_value(sure, np.ones(1000)) > 0.5
    few = unit < 2 * (gap_test.LEAST_UNITS - 1)
    rows = confidence[few], correct[few], None, unit[few]
    assert gap_p_value(*rows) == 1.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("texts", "tokens", "low", "copied"),
    [(50, 20, 0.95, 1.0), (50, 20, 0.95, 0.5), (500, 20, 0.98, 1.0)],
)
def test_tokens_of_a_text_may_be_wrong_together(texts, tokens, low, copied):
    """Without the variance of texts that did not come: 12 to 35 %."""
    rng = np.random.default_rng([texts, tokens])
    unit, wrong, draws = np.repeat(np.arange(texts), tokens), 0, 400
    for _ in range(draws):
        confidence = rng.uniform(low, 1, texts)[unit]
        # A text has one draw for all of its tokens, or each has its own.
        chance = rng.random(len(unit))
        own = rng.random(texts)[unit] < copied
        chance[own] = rng.random(texts)[unit][own]
        found = gap_p_value(confidence, chance < confidence, None, unit)
        wrong += found <= 0.05
    assert wrong / draws <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / draws)


def test_overconfidence_of_images_needs_few_of_them():
    rng = np.random.default_rng(4)
    unit = np.repeat(np.arange(20), 300)
    right = rng.uniform(0.85, 0.95, 20)[unit]
    correct = (rng.random(len(unit)) < right).astype(float)
    sums = np.bincount(unit, correct - 0.95)
    found = gap_p_value(np.full(len(unit), 0.95), correct, None, unit)
    # There are more errors than expected, so that none is missing.
    assert found == pytest.approx(stats.ttest_1samp(sums, 0).pvalue, rel=0.05)
    assert found < 1e-4


def test_missing_errors_may_be_those_of_whole_images():
    for images, shown in ((20, False), (50, False), (100, True)):
        unit = np.repeat(np.arange(images), 100)
        correct = np.tile(np.arange(100) >= 5, images).astype(float)
        found = gap_p_value(np.full(len(unit), 0.9), correct, None, unit)
        # The sums of all images are equal, and .05 of each image is missing.
        seen = 0.95 * 0.1**2 + 0.05 * 0.9**2
        t = 0.05 * images / np.sqrt((1 - seen / 0.09) * images * 0.09)
        expected = 2 * stats.t.sf(t, images - 1)
        assert found == pytest.approx(expected, rel=0.05)
        assert (found <= 0.05) == shown


def exact_law(confidence):
    """The law of the number of hits of any number of rows, by FFT."""
    turn = np.exp(-2j * np.pi * np.arange(512) / 512)
    values, counts = np.unique(confidence, return_counts=True)
    base = np.floor(counts @ values) - 256
    logs = sum(
        count * np.log(1 + value * (turn - 1))
        for value, count in zip(values, counts, strict=True)
    )
    shift = np.exp(2j * np.pi * np.arange(512) * base / 512)
    law = np.fft.ifft(np.exp(logs) * shift).real
    return base + np.arange(512), law


@pytest.mark.parametrize("near_zero", [False, True])
def test_many_rows_of_little_variance_have_their_law_in_any_order(near_zero):
    rng = np.random.default_rng(0)
    confidence = np.full(100_000, 0.99999)
    confidence[:40] = 0.5
    if near_zero:
        confidence[50_000:] = 0.00001
    correct = (confidence > 0.5).astype(float)
    correct[:40] = np.arange(40) < 12
    values, law_of_hits = exact_law(confidence)
    mean = confidence.sum()
    away = np.abs(values - mean) >= abs(correct.sum() - mean) - 1e-6
    for order in (np.argsort(confidence), rng.permutation(len(correct))):
        found = gap_p_value(confidence[order], correct[order])
        assert found == pytest.approx(law_of_hits[away].sum(), rel=0.01)


def test_all_right_is_as_likely_as_it_is():
    rng = np.random.default_rng(0)
    for _ in range(200):
        confidence = rng.uniform(0.4, 0.6, 3)
        weights = rng.uniform(0.5, 1.5, 3)
        found = gap_p_value(confidence, np.ones(3), weights)
        assert found >= confidence.prod() * (1 - 1e-9)
