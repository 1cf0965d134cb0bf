"""`kc.calibrate(multi_label=True)`: several sigmoid units, a map for each."""

import dataclasses

import numpy as np

from keras_calib._progress import ProgressBar
from keras_calib.calibration import _checks as checks
from keras_calib.calibration import _network
from keras_calib.calibration._fit import ERRORS
from keras_calib.calibration._fit import NUM_BINS
from keras_calib.calibration._fit import before_and_after
from keras_calib.calibration._fit import fit
from keras_calib.calibration._fit import measured
from keras_calib.calibration._fit import warn_of_changes
from keras_calib.calibration._no_calibration import UNCHANGED
from keras_calib.calibration._record import LOG_OF_PROBABILITIES
from keras_calib.calibration._record import CalibrationRecord
from keras_calib.data.collect import collect_labels
from keras_calib.inputs.label_arrays import LabelArrays
from keras_calib.keras_graph.head import free_name
from keras_calib.layers._multi_label_scaling import MultiLabelScaling
from keras_calib.layers._platt_scaling import PlattScaling
from keras_calib.layers._temperature_scaling import TemperatureScaling
from keras_calib.solvers.blocks import row_blocks


def map_of_label(method):
    """The map of each label where a `MultiLabelScaling` is passed."""
    if not isinstance(method, MultiLabelScaling):
        return method
    if method.shrinkage is not None:
        return method.method
    if method.method == "platt":
        return PlattScaling(shrinkage=None)
    return TemperatureScaling()


def calibrate_labels(
    model, source, method, options, settings, *, groups=None, stream=False
):
    """`kc.calibrate` of a multi-label model; see there.

    Args:
        model: the user's model.
        source: `Source`, which is read once.
        method: see `kc.calibrate`.
        options: `Options`.
        settings: `Settings`.
        groups: see `kc.calibrate`.
        stream: see `kc.calibrate`; refused.

    Returns:
        The calibrated model.

    Raises:
        ValueError: as `kc.calibrate`; for another map or objective. Nothing is
            changed then.
    """
    _check_arguments(method, options, stream)

    def fit_all(network, samples):
        return _fit_to_labels(network, samples, method, options, settings)

    return _network.calibrated_by_samples(
        fit_all, collect_labels, model, source, method, settings, groups=groups
    )


def _check_arguments(method, options, stream):
    if stream:
        raise ValueError(
            "`stream=True` fits one temperature, and `multi_label=True` one "
            "per label. Received: both. Leave out `stream`: logits above 256 "
            "MiB go to a temporary file."
        )
    if method not in ("temperature", "platt") and type(method) not in (
        TemperatureScaling,
        PlattScaling,
    ):
        raise ValueError(
            "`multi_label=True` fits a temperature or `PlattScaling` to each "
            f'label. Received: method={method!r}. Use "temperature", "platt", '
            "or a `PlattScaling` with settings of yours."
        )
    checks.refuse_other_losses("`multi_label=True`", options)


def _fit_to_labels(network, samples, method, options, settings):
    """Fit a map to each label; see `_calibrate._fit_to_samples`."""
    data = LabelArrays(samples.scores, samples.labels, samples.weights)
    data, logits_source = _as_logits(network, data, settings)
    options = dataclasses.replace(options.started(), of_label=True)
    layer = _layer(method, options.affine, network)
    verdicts = [{"skipped": "one class only"}] * data.num_labels
    bar = ProgressBar(data.num_labels, settings.verbose, unit_name="label")

    def fit_one(number, rows):
        each = method
        if not isinstance(method, str):
            each = type(method).from_config(method.get_config())
        single, record, _ = fit(each, network.model, rows, options)
        if record["rejected"]:
            for error in ("nll", "ece"):
                record[f"{error}_after"] = record[f"{error}_before"]
        verdicts[number] = record["guard"] or {"returned": UNCHANGED}
        bar.step()
        return single, record

    def measure(single, rows):
        before = measured(None, rows, of_label=True)
        if single is None:
            found = {"nll": before.nll, "ece": before.ece}
            return {key: found[key[:3]] for key in ERRORS}
        found = before_and_after(before, single, rows)
        warn_of_changes(single, found, rows, options)
        return {key: found[key] for key in ERRORS}

    # A map that is passed as a layer is fitted to each label by itself.
    related = isinstance(method, str)
    layer.adapt_to_labels(data, samples.group, fit_one, measure, related)
    bar.finish()
    record = CalibrationRecord(
        **{key: layer.record[key] for key in ERRORS},
        method=layer.method,
        num_samples=layer.record["num_samples"],
        num_classes=data.num_labels,
        rejected=all(each.get("returned") == UNCHANGED for each in verdicts),
        guard={"by_label": verdicts},
        logits_source=logits_source,
        ece_num_bins=NUM_BINS,
        fingerprint=samples.fingerprint,
        fitted=layer.record,
    )
    facts = _network.Facts(data.num_labels, one_hot=False)
    return layer, record.to_dict(), facts


def _layer(method, affine, network):
    """The layer for all labels, with the settings of the map of one."""
    # A mixture is not affine, temperatures near each other are.
    name, shrinkage = method, None if affine and method == "platt" else "auto"
    if not isinstance(method, str):
        name = "platt" if isinstance(method, PlattScaling) else "temperature"
        shrinkage = getattr(method, "shrinkage", None)
    return MultiLabelScaling(
        method=name,
        shrinkage=shrinkage,
        name=free_name(network.model, "multi_label_scaling"),
    )


def _as_logits(network, data, settings):
    """`LabelArrays` of logits, and where these come from."""
    source = network.logits_source or "logits"
    low = np.inf
    for block in row_blocks(*data.scores.shape):
        values = data.scores[block][data.weights[block] > 0]
        low = min(low, values.min(initial=np.inf))
        if source == LOG_OF_PROBABILITIES:
            checks.check_probabilities(values[:, None], settings.fuse)
    if network.logits_source is None and not low < 0:
        raise ValueError(
            "It is not known whether the model gives logits or probabilities: "
            "its graph does not show it, and no value is negative. Received: "
            f"model {network.model.name!r} without `from_logits`. Pass it."
        )
    if source == LOG_OF_PROBABILITIES:
        checks.warn_no_softmax(network.model)
        _network.take_logarithm(data.scores, multi_label=True)
    return data, source
