"""The names that `kc.calibrate(method=...)` takes, and the layers they mean."""

from keras_calib import layers
from keras_calib.calibration._no_calibration import UNCHANGED
from keras_calib.calibration._no_calibration import NoCalibration
from keras_calib.inputs.arguments import is_one_of
from keras_calib.layers._base import CalibrationLayer

METHODS = {
    "temperature": "TemperatureScaling",
    "bayesian_temperature": "BayesianTemperatureScaling",
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
    "quadratic": "QuadraticScaling",
    "structured_matrix": "MatrixScaling",
}

# Arguments of the layers that a method names.
ARGUMENTS = {"structured_matrix": {"regularization": "structured"}}


# A map of images and logits, which `"auto"` does not try.
LOCAL = "local_temperature"

# Arguments with which a map is affine, where it is not by default.
AFFINE = {
    "vector": {"normalize_logits": "mean"},
    "matrix": {"normalize_logits": "mean"},
    "class_temperature": {"normalize_logits": "mean"},
    "platt": {"shrinkage": None},
}


def is_local(method):
    """Whether a method is fitted to images and logits."""
    local = layers.LocalTemperatureScaling
    return is_one_of(method, (LOCAL,)) or isinstance(method, local)


def is_auto(method):
    """Whether the method is to choose among others."""
    return is_one_of(method, ("auto",))


def as_map(method, name=None, *, affine=False):
    """A layer for a method's name; a layer is returned as it is.

    Args:
        method: one of `METHODS`, `LOCAL`, or a layer.
        name: name of a new layer; the method's by default.
        affine: whether the new layer should be affine in the logits.

    Raises:
        ValueError: if the name is none of `METHODS`.
    """
    if isinstance(method, CalibrationLayer):
        return method
    known = (*METHODS, LOCAL, UNCHANGED)
    if not is_one_of(method, known):
        names = ", ".join(f'"{name}"' for name in (*METHODS, LOCAL))
        remedy = ""
        if isinstance(method, type):
            remedy = f" Pass a layer, not its class: `{method.__name__}()`."
        if isinstance(method, layers.MultiLabelScaling):
            remedy = " It takes `multi_label=True`."
        raise ValueError(
            f'`method` must be "auto", a layer of `kc.layers`, or one of '
            f"{names}. Received: method={method!r}.{remedy}"
        )
    if method == UNCHANGED:
        return NoCalibration(name=name or method)
    if method == LOCAL:
        return layers.LocalTemperatureScaling(name=name or LOCAL)
    arguments = dict(ARGUMENTS.get(method, {}))
    if affine:
        arguments |= AFFINE.get(method, {})
    return getattr(layers, METHODS[method])(name=name or method, **arguments)


def samples_needed(layer, num_classes):
    """Ten samples for each parameter that a map is free to choose.

    0 for a map that few samples leave near temperature scaling, and for one
    that declares no number of parameters.
    """
    if isinstance(layer, layers.CalibrationMixture):
        # Each is fitted by itself.
        return max(samples_needed(each, num_classes) for each in layer.maps)
    for name in ("regularization", "shrinkage"):
        if getattr(layer, name, None) == "auto":
            return 0
    try:
        return 10 * layer.degrees_of_freedom(num_classes)
    except NotImplementedError:
        return 0


def is_affine(layer):
    """Whether a map with these arguments can be fused into a layer."""
    if type(layer).as_affine is CalibrationLayer.as_affine:
        return False
    try:
        fresh = type(layer).from_config(layer.get_config())
        fresh.build((None, 2))
    except (TypeError, ValueError, NotImplementedError):
        return True  # the fit will show it
    return fresh.as_affine(2) is not None
