"""Configs with a value of a wrong kind: the error names the argument."""

import inspect

import keras
import pytest

import keras_calib as kc
from tests.walks import every_loss
from tests.walks import every_metric

pytestmark = pytest.mark.one_backend

NEEDED = {
    "CalibrationMixture": {
        "maps": [kc.layers.TemperatureScaling()],
        "weights": [1.0],
    },
    "MetaCal": {"max_miscoverage": 0.1},
    "PriorCorrection": {"source_prior": [0.2, 0.8], "target_prior": [0.5, 0.5]},
}
# What Keras itself reads.
OF_KERAS = {"name", "trainable", "dtype", "reduction"}
WRONG = (
    0,
    -1,
    3.5,
    float("nan"),
    "x",
    None,
    [],
    {},
    [1, 2],
    {"a": 1},
    object(),
)


def every_layer():
    for name in kc.layers.__all__:
        found = getattr(kc.layers, name)
        is_layer = inspect.isclass(found)
        is_layer = is_layer and issubclass(found, keras.layers.Layer)
        if is_layer and name not in ("CalibrationLayer", "DecisionLayer"):
            yield name, found(**NEEDED.get(name, {}))


EVERY = {
    **dict(every_layer()),
    **dict(every_loss()),
    **dict(every_metric(num_classes=3)),
}


@pytest.mark.parametrize("name", EVERY)
def test_wrong_values_of_a_config_are_named(name):
    config = EVERY[name].get_config()
    for key in config.keys() - OF_KERAS:
        for wrong in WRONG:
            try:
                type(EVERY[name]).from_config({**config, key: wrong})
            # Keras wraps the errors of layers, with the config.
            except (ValueError, TypeError) as error:
                _, _, own = str(error).rpartition("Exception encountered: ")
                assert f"`{key}" in own or f"{key}=" in own, (key, wrong, own)


def test_record_and_pair_of_a_wrong_kind_are_refused():
    layer = kc.layers.TemperatureScaling
    for wrong in (0, "x", [], [1]):
        with pytest.raises(ValueError, match="`record` must be a dict"):
            layer(record=wrong)
        with pytest.raises(ValueError, match="`pair` must be an integer"):
            config = kc.losses.AdaFocalLoss().get_config()
            kc.losses.AdaFocalLoss.from_config({**config, "pair": [wrong]})
