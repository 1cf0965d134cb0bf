"""The names that `kc.calibrate(method=...)` takes, and the layers they mean."""

from keras_calib import layers
from keras_calib.layers._base import CalibrationLayer

METHODS = {
    "temperature": "TemperatureScaling",
    "bias_corrected_temperature": "BiasCorrectedTemperatureScaling",
    "class_temperature": "ClassTemperatureScaling",
    "ensemble_temperature": "EnsembleTemperatureScaling",
    "parameterized_temperature": "ParameterizedTemperatureScaling",
    "vector": "VectorScaling",
    "matrix": "MatrixScaling",
    "dirichlet": "DirichletScaling",
    "order_preserving": "IntraOrderPreserving",
    "spline": "SplineCalibration",
    "isotonic": "IsotonicCalibration",
    "histogram": "HistogramBinning",
    "beta": "BetaCalibration",
    "platt": "PlattScaling",
}


# Arguments with which a map is affine, where it is not by default.
AFFINE = {
    "vector": {"normalize_logits": "mean"},
    "matrix": {"normalize_logits": "mean"},
    "class_temperature": {"normalize_logits": "mean"},
    "platt": {"shrinkage": None},
}


def as_map(method, name=None, *, affine=False):
    """A layer for a method's name; a layer is returned as it is.

    Args:
        method: one of `METHODS`, or a layer.
        name: name of a new layer; the method's by default.
        affine: whether the new layer should be affine in the logits.

    Raises:
        ValueError: if the name is none of `METHODS`.
    """
    if isinstance(method, CalibrationLayer):
        return method
    if not isinstance(method, str) or method not in METHODS:
        names = ", ".join(f'"{name}"' for name in METHODS)
        raise ValueError(
            f'`method` must be "auto", a layer of `kc.layers`, or one of '
            f"{names}. Received: method={method!r}."
        )
    arguments = AFFINE.get(method, {}) if affine else {}
    return getattr(layers, METHODS[method])(name=name or method, **arguments)
