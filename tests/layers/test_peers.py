"""On real predictions no map is worse than the same map of another package."""

import importlib

import numpy as np
import pytest

import keras_calib as kc
from tests.helpers import read_predictions
from tests.helpers import to_numpy
from tests.layers.generated import nll

MAPS = {
    "temperature": (
        kc.layers.TemperatureScaling,
        "temperature_scaling.TemperatureScalingCalibrator",
    ),
    "ensemble": (
        kc.layers.EnsembleTemperatureScaling,
        "temperature_scaling.ETSCalibrator",
    ),
    "vector": (kc.layers.VectorScaling, "logistic.VectorScalingCalibrator"),
    "matrix": (
        lambda: kc.layers.MatrixScaling(normalize_logits="log_softmax"),
        "logistic.SMSCalibrator",
    ),
}
FILES = [
    "wideresnet-16-4-cifar-10",
    "wideresnet-16-4-cifar-100",
    "lenet-5-cifar-100",
]


def theirs(name, logits, labels, test):
    torch = pytest.importorskip("torch")
    pytest.importorskip("probmetrics")
    from probmetrics.distributions import CategoricalLogits

    module, name = name.split(".")
    module = importlib.import_module(f"probmetrics.calibrators.{module}")
    found = getattr(module, name)()
    found.fit_torch(
        CategoricalLogits(torch.tensor(logits)), torch.tensor(labels).long()
    )
    test = CategoricalLogits(torch.tensor(test))
    p = found.predict_proba_torch(test).get_probs().numpy()
    return np.log(np.maximum(p.astype("float64"), 1e-30))


@pytest.mark.slow
@pytest.mark.backends("torch", reason="both fits are NumPy or torch")
@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("name", MAPS)
def test_likelihood_of_held_out_samples(name, file, data_folder):
    p, labels = read_predictions(data_folder, file)
    logits = np.log(np.maximum(p, 1e-30)).astype("float32")
    fit, test = logits[:5000], logits[5000:]
    layer, peer = MAPS[name]
    ours = to_numpy(layer().adapt(fit, labels[:5000])(test))
    found = theirs(peer, fit, labels[:5000], test)
    assert nll(ours, labels[5000:]) <= nll(found, labels[5000:]) + 1e-3
