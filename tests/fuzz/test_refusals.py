"""What counts as a refusal, told from an accident."""

import keras
import numpy as np
import pytest

import keras_calib as kc
from keras_calib.inputs.arguments import require
from keras_calib.layers._objectives import normalized_weights
from tests.fuzz.refusals import is_raised

pytestmark = pytest.mark.one_backend


@pytest.fixture(autouse=True)
def whole_tracebacks():
    filtered = keras.config.is_traceback_filtering_enabled()
    keras.config.disable_traceback_filtering()
    yield
    if filtered:
        keras.config.enable_traceback_filtering()


def error_of(call):
    with pytest.raises(Exception) as caught:
        call()
    return caught.value


def test_words_of_ours_are_a_refusal():
    assert is_raised(error_of(lambda: require(False, "`x` is wrong.", x=1)))
    assert is_raised(error_of(lambda: kc.losses.FocalLoss(gamma=-1)))


def test_an_operation_that_fails_is_an_accident():
    # A division in our code that has no rule before it.
    error = error_of(lambda: normalized_weights("ab", 2))
    assert isinstance(error, TypeError | ValueError)
    assert not is_raised(error)


def test_an_operation_of_numpy_that_we_call_is_an_accident():
    error = error_of(lambda: kc.inputs.arrays.softmax(np.array(["a"])))
    assert not is_raised(error)


def test_an_error_of_the_test_itself_is_an_accident():
    assert not is_raised(error_of(lambda: [][1]))


def test_what_keras_refuses_is_a_refusal():
    metric = kc.metrics.ExpectedCalibrationError
    assert is_raised(error_of(lambda: metric(dtype="no")))
    assert is_raised(error_of(lambda: kc.losses.MDCA(primary="no")))
