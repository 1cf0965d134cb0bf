"""One file for each kind of object that is saved, and the numbers it gives.

    KERAS_BACKEND=torch python -m tests.saved

writes `tests/saved_files/VERSION`. The files of a release stay as they are:
`tests/test_saved.py` loads those of all versions.
"""

import json
import pathlib

import keras
import numpy as np

import keras_calib as kc
from tests.helpers import fitted_layers
from tests.helpers import to_numpy

FOLDER = pathlib.Path(__file__).parent / "saved_files"
RNG = np.random.default_rng(0)
Z = RNG.normal(0, 3, (60, 3)).astype("float32")
Y = (np.exp(Z) / np.exp(Z).sum(1, keepdims=True)).cumsum(1)
Y = (Y > RNG.random((60, 1))).argmax(1)
X = RNG.normal(size=(60, 4)).astype("float32")
BASES = ("ClassificationLoss", "PenalizedLoss", "CalibrationMetric")
OTHER_DATA = ("LossPart", "AdaFocalTable", "CRL")


def layers():
    """A model of all fitted layers: its outputs are theirs, by name."""
    wide, narrow = keras.Input((3,), name="z"), keras.Input((2,), name="z2")
    outputs = {}
    for name, layer, num_classes in fitted_layers(Z, Y):
        outputs[name] = layer(narrow if num_classes == 2 else wide)
    prior = {"source_prior": [0.2, 0.3, 0.5], "target_prior": [0.5, 0.3, 0.2]}
    outputs["PriorCorrection"] = kc.layers.PriorCorrection(**prior)(wide)
    maps = [kc.layers.TemperatureScaling(temperature=t) for t in (1.0, 2.0)]
    mixture = kc.layers.CalibrationMixture(maps=maps, weights=[0.4, 0.6])
    outputs["CalibrationMixture"] = mixture(wide)
    return keras.Model([wide, narrow], outputs)


def network(seed, last="linear"):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, last)])
    rng = np.random.default_rng(seed)
    model.set_weights([rng.normal(size=w.shape) for w in model.get_weights()])
    return model


def models():
    """Models by name; all take `X`."""
    pair = kc.models.DiffDML(network(0), network(1))
    pair.compile("sgd", kc.losses.ACLS(from_logits=True))
    pair.fit(X, Y, epochs=1, shuffle=False, verbose=0)
    mutual = kc.models.MutualLearning(network(0), network(1))
    history = kc.models.SampleHistoryModel(network(0), num_samples=60)
    for each in (mutual, history):
        each.predict(X, verbose=0)
    calibrated = kc.calibrate(
        network(2), X, Y, method="vector", from_logits=True, verbose=0
    )
    return {
        "diff_dml": pair,
        "mutual_learning": mutual,
        "sample_history": history,
        "deep_ensemble": kc.models.DeepEnsemble(
            [network(0, "softmax"), network(1, "softmax")]
        ),
        "calibrated": calibrated,
        "shifted": kc.adjust_prior(
            calibrated, prior=[0.6, 0.3, 0.1], verbose=0
        ),
    }


def objects():
    """Configs of losses and metrics, with their values, by name."""
    found = {}
    for room in (kc.losses, kc.metrics):
        for name in room.__all__:
            make = getattr(room, name)
            left_out = (*BASES, *OTHER_DATA)
            if not isinstance(make, type) or name in left_out:
                continue
            each = make(from_logits=True)
            config = keras.saving.serialize_keras_object(each)
            found[name] = {"config": config, "value": value_of(name, each)}
    return found


def value_of(name, each):
    """The value of a loss or metric of the sample."""
    y, z = Y, Z
    if name == "MultilabelCalibrationError":
        y = np.eye(3, dtype="float32")[Y]
    if name == "BinaryCalibrationError":
        y, z = Y.clip(0, 1), Z[:, :2]
    return float(to_numpy(each(y, z)))


def outputs_of(model, inputs):
    """Numbers of what a model gives, by name."""
    found = model.predict(inputs, verbose=0)
    if not isinstance(found, dict):
        found = {"": found}
    return {
        f"{name}{place}": np.asarray(value, "float64").tolist()
        for name, each in found.items()
        for place, value in enumerate(keras.tree.flatten(each))
    }


def main():
    folder = FOLDER / kc.__version__
    folder.mkdir(parents=True, exist_ok=True)
    model = layers()
    model.save(folder / "layers.keras")
    numbers = {"layers": outputs_of(model, [Z[:5], Z[:5, :2]])}
    for name, model in models().items():
        model.save(folder / f"{name}.keras")
        numbers[name] = outputs_of(model, X[:5])
    numbers["objects"] = objects()
    text = json.dumps(numbers)
    (folder / "numbers.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
