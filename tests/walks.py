"""All losses and all streaming metrics, for the tests on two devices."""

import keras

import keras_calib as kc

# Bases, and what needs the history of its samples.
NO_LOSSES = {"ClassificationLoss", "PenalizedLoss", "CRL"}
# A base, and those of one class or several per sample.
NO_METRICS = {
    "CalibrationMetric",
    "BinaryCalibrationError",
    "MultilabelCalibrationError",
}


def every_loss(**options):
    """Name and loss of logits; options are for those with a penalty."""
    for name, kind in public(kc.losses, keras.Loss, NO_LOSSES):
        penalized = issubclass(kind, kc.losses.PenalizedLoss)
        yield name, kind(from_logits=True, **(options if penalized else {}))


def every_metric(num_classes):
    """Name and metric of logits."""
    for name, kind in public(kc.metrics, keras.Metric, NO_METRICS):
        more = {}
        if name == "ClasswiseCalibrationError":
            more["num_classes"] = num_classes
        yield name, kind(from_logits=True, **more)


def public(module, base, left_out):
    """Names and classes of a package that derive from a base."""
    found = [
        (name, getattr(module, name))
        for name in sorted(set(module.__all__) - left_out)
    ]
    found = [
        (name, kind)
        for name, kind in found
        if isinstance(kind, type) and issubclass(kind, base)
    ]
    assert len(found) > 12, found
    return found
