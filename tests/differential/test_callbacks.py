"""What callbacks put into the logs of `fit` against the reference."""

import math

import keras
import numpy as np
import pytest

import keras_calib as kc
from tests.differential import reference as ref
from tests.differential import test_metrics
from tests.differential.cases import BY_NAME
from tests.differential.cases import some
from tests.helpers import to_numpy

CASES = [
    "ids",
    "probabilities",
    "one_hot",
    "soft",
    "float16",
    "weights",
    "weights_column",
    "weights_0_garbage",
    "uint8_void_255",
    "masked",
    "tokens_masked",
    "tokens_masked_weights",
    "tokens_masked_void_garbage",
    "tokens_weights_full",
    "images_masked",
    "images_axis_1",
    "images_void",
    "sigmoid",
    "sigmoid_tokens",
]
COMPILED = ("tokens_masked_void_garbage", "images_masked", "sigmoid_tokens")
COMPARED = {
    "AdaFocalSchedule",
    "CalibrationMonitor",
    "ReliabilityDiagram",
    "TemperatureTracker",
}
ELSEWHERE = {
    "CorrectnessHistory": "what SampleHistoryModel keeps: test_models.py",
    "DataPruning": "what SampleHistoryModel keeps: test_models.py",
    "EmpiricalTargets": "what SampleHistoryModel keeps: test_models.py",
    "RestoreCalibrated": "reads logs: tests/callbacks",
}


def test_every_public_callback_has_a_case():
    assert set(kc.callbacks.__all__) - COMPARED == set(ELSEWHERE)


def how_to_run(case):
    """Some cases as compiled code, which takes a second or more for each."""
    if case.name not in COMPILED:
        return {"run_eagerly": True}
    return {"jit_compile": keras.backend.backend() == "jax"}


def fitted(case, callback, validation=True, loss=None, metrics=None):
    """One epoch of `fit`, which changes nothing, and its logs."""
    model = case.network()
    # What is trained is of no interest: zeros for labels of any form.
    model.compile(
        keras.optimizers.SGD(0.0),
        loss or keras.losses.MeanAbsoluteError(),
        metrics=metrics,
        **how_to_run(case),
    )
    x = case.inputs()
    data = (x, case.labels)
    if case.weight is not None:
        data = (*data, case.weight)
    history = model.fit(
        x,
        case.labels if loss else np.zeros_like(case.predictions, "float32"),
        batch_size=max(1, case.lead[0] // 2),
        sample_weight=case.weight if loss else None,
        validation_data=data if validation else None,
        callbacks=[callback],
        verbose=0,
    )
    return model, {key: value[0] for key, value in history.history.items()}


def data_of(case):
    data = (case.inputs(), case.labels)
    return data if case.weight is None else (*data, case.weight)


@pytest.mark.parametrize("own", [True, False], ids=["own_data", "fit_data"])
@pytest.mark.parametrize("case", some(CASES))
def test_monitor(case, own):
    case = BY_NAME[case]
    monitor = kc.callbacks.CalibrationMonitor(
        data_of(case) if own else None,
        metrics=list(test_metrics.errors_of(case.rows(), True)),
        batch_size=max(1, case.lead[0] // 2),
        **case.options,
    )
    loss = None
    if not own:
        loss = kc.losses.BrierLoss(**case.options)
    _, logs = fitted(case, monitor, not own, loss)
    found = {
        key.removeprefix("val_"): value
        for key, value in logs.items()
        if key.startswith("val_")
    }
    wanted = test_metrics.errors_of(case.rows(), True)
    test_metrics.compare(found, wanted, case)


@pytest.mark.parametrize("case", some(CASES))
def test_temperature_tracker(case):
    case = BY_NAME[case]
    tracker = kc.callbacks.TemperatureTracker(
        data_of(case), batch_size=max(1, case.lead[0] // 2), **case.options
    )
    _, logs = fitted(case, tracker, validation=False)
    rows = case.rows()
    t = ref.temperature(rows)
    z = rows.z / t
    c = np.exp(ref.log_softmax(z)).max(axis=1)
    assert logs["val_temperature"] == pytest.approx(t, rel=1e-3)
    assert logs["val_calibrated_negative_log_likelihood"] == pytest.approx(
        ref.nll(rows, z), rel=1e-4
    )
    assert logs["val_calibrated_expected_calibration_error"] == pytest.approx(
        ref.binned(c, rows.a, rows.w, ref.width_bins(c)), abs=1e-3
    )


@pytest.mark.parametrize(
    "case", some([n for n in CASES if not n.startswith("sigmoid")])
)
def test_ada_focal_schedule(case):
    case = BY_NAME[case]
    loss = kc.losses.AdaFocalLoss(num_bins=3, **case.options)
    schedule = kc.callbacks.AdaFocalSchedule(
        data_of(case), batch_size=max(1, case.lead[0] // 2)
    )
    model = case.network()
    model.compile(
        keras.optimizers.SGD(0.0),
        loss,
        metrics=loss.component_metrics(),
        **how_to_run(case),
    )
    model.fit(
        case.inputs(),
        case.labels,
        sample_weight=case.weight,
        batch_size=max(1, case.lead[0] // 2),
        callbacks=[schedule],
        verbose=0,
    )
    rows = case.rows()
    order = np.argsort(rows.c, kind="stable")
    before = np.cumsum(rows.w[order]) - rows.w[order]
    cuts = np.linspace(0, rows.w.sum(), 4)
    edges = np.interp(cuts, before, rows.c[order])
    gaps = np.zeros(3)
    index = np.clip(np.searchsorted(edges, rows.c) - 1, 0, 2)
    for m in np.unique(index):
        i = index == m
        gaps[m] = np.average((rows.c - rows.a)[i], weights=rows.w[i])
    gammas = np.exp(gaps)
    gammas = np.where(np.abs(gammas) < 0.2, -0.2, gammas)
    np.testing.assert_allclose(schedule.gaps[0], gaps, atol=2e-5)
    np.testing.assert_allclose(
        to_numpy(loss.table.gammas), np.clip(gammas, -2, 20), rtol=1e-4
    )


@pytest.mark.parametrize("case", some(CASES))
def test_reliability_diagram(case, monkeypatch, tmp_path):
    from matplotlib import figure

    drawn = []
    monkeypatch.setattr(
        figure.Figure, "savefig", lambda self, *a, **k: drawn.append(self)
    )
    case = BY_NAME[case]
    diagram = kc.callbacks.ReliabilityDiagram(
        tmp_path / "diagram.png",
        validation_data=data_of(case),
        num_bins=10,
        batch_size=max(1, case.lead[0] // 2),
        **case.options,
    )
    fitted(case, diagram, validation=False)
    rows = case.rows()
    index = ref.width_bins(rows.c, 10)
    (found,) = drawn
    above, below = found.axes
    accuracy, gap, share = (
        np.array([bar.get_height() for bar in bars])
        for bars in (*above.containers[:2], below.containers[0])
    )
    used = np.unique(index)
    wanted = np.array(
        [
            [
                np.average(rows.a[index == b], weights=rows.w[index == b]),
                np.average(
                    (rows.c - rows.a)[index == b], weights=rows.w[index == b]
                ),
                rows.w[index == b].sum() / rows.w.sum(),
            ]
            for b in used
        ]
    )
    np.testing.assert_allclose(accuracy, wanted[:, 0], atol=2e-5)
    np.testing.assert_allclose(gap, wanted[:, 1], atol=2e-5)
    np.testing.assert_allclose(share[used], wanted[:, 2], atol=2e-5)
    assert math.isclose(share.sum(), 1.0, rel_tol=1e-5)
