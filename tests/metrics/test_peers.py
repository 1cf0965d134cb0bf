"""Independent packages: where they are right we agree, and where not, why."""

import itertools

import numpy as np
import pytest

import keras_calib as kc
from keras_calib.evaluation import binless
from keras_calib.evaluation.events import sort_events
from keras_calib.inputs.predictions import top_label
from tests.metrics.oracles import generated_set
from tests.metrics.oracles import softmax
from tests.metrics.published_rules import equal_mass_index
from tests.metrics.published_rules import error_of_index

SATURATED = np.array([[1.0, 0.0], [0.95, 0.05]])


def predictions():
    labels, logits = generated_set()
    return labels, softmax(logits)


def test_netcal_agrees_on_bins_of_equal_width():
    netcal = pytest.importorskip("netcal.metrics")
    labels, p = predictions()
    found = kc.metrics.calibration_errors(labels, p)
    assert netcal.ECE(15).measure(p, labels) == pytest.approx(
        found["expected_calibration_error"], abs=1e-9
    )
    assert netcal.MCE(15).measure(p, labels) == pytest.approx(
        found["maximum_calibration_error"], abs=1e-9
    )
    mass = netcal.ECE(15, equal_intervals=False).measure(p, labels)
    confidence, correct = top_label(labels, p)
    index = equal_mass_index(confidence, 15, "quantile")
    error = error_of_index(confidence, correct, index)
    assert mass == pytest.approx(error, abs=1e-9)
    assert mass == pytest.approx(found["adaptive_calibration_error"], abs=2e-3)


def test_netcal_calls_another_number_ace():
    # Its ACE is the plain mean of the gaps of equal-width bins, whatever
    # they hold, and not the adaptive error of equal-mass bins.
    netcal = pytest.importorskip("netcal.metrics")
    labels, p = predictions()
    events = sort_events(*top_label(labels, p))
    bins = events.bins(events.width_cuts(15))
    plain = np.abs(bins.gap)[bins.weight > 0].mean()
    assert netcal.ACE(15).measure(p, labels) == pytest.approx(plain, abs=1e-9)
    found = kc.metrics.calibration_errors(labels, p)
    assert abs(plain - found["adaptive_calibration_error"]) > 0.02


def test_netcal_cannot_bin_saturated_confidences_by_mass():
    # Quantiles coincide, and its edges must not.
    netcal = pytest.importorskip("netcal.metrics")
    p = np.repeat(SATURATED, 50, axis=0)
    labels = np.zeros(100, int)
    with pytest.raises(ValueError):
        netcal.ECE(15, equal_intervals=False).measure(p, labels)
    found = kc.metrics.calibration_errors(labels, p)
    assert found["adaptive_calibration_error"] == pytest.approx(0.025)


def test_netcal_agrees_on_the_kernel_error():
    netcal = pytest.importorskip("netcal.metrics")
    labels, p = predictions()
    found = kc.metrics.calibration_errors(labels, p)
    assert netcal.MMCE().measure(p, labels) == pytest.approx(
        found["kernel_calibration_error"], abs=1e-9
    )


def test_probmetrics_agrees_on_scores_and_on_kolmogorov_smirnov():
    metrics = pytest.importorskip("probmetrics.metrics")
    distributions = pytest.importorskip("probmetrics.distributions")
    torch = pytest.importorskip("torch")
    labels, p = predictions()
    found = kc.metrics.calibration_errors(labels, p)

    def theirs(metric, p, labels):
        labels = torch.tensor(labels)
        y_true = distributions.CategoricalDirac(labels, p.shape[1])
        y_pred = distributions.CategoricalProbs(torch.tensor(p))
        (value,) = metric.compute_all(y_true, y_pred).values()
        return float(value)

    assert theirs(metrics.BrierLoss(), p, labels) == pytest.approx(
        found["brier_score"], abs=1e-7
    )
    assert theirs(metrics.LogLoss(), p, labels) == pytest.approx(
        found["negative_log_likelihood"], abs=1e-6
    )
    # It looks at the second of two classes: here, that the prediction is right.
    confidence, correct = top_label(labels, p)
    pair = np.stack([1 - confidence, confidence], axis=1)
    ks = metrics.KolmogorovSmirnovCalibrationMetric()
    assert theirs(ks, pair, correct.astype(int)) == pytest.approx(
        found["ks_calibration_error"], abs=1e-6
    )


def torchmetrics_error(p, labels, **arguments):
    functional = pytest.importorskip("torchmetrics.functional.classification")
    torch = pytest.importorskip("torch")
    p, labels = torch.tensor(p), torch.tensor(labels)
    found = functional.multiclass_calibration_error(
        p, labels, num_classes=p.shape[1], n_bins=15, **arguments
    )
    return float(found)


def test_torchmetrics_agrees_to_its_float32_sums():
    labels, logits = generated_set()
    p = softmax(logits / 3)  # no confidence rounds to 1
    found = kc.metrics.calibration_errors(labels, p)
    for norm, name in (
        ("l1", "expected_calibration_error"),
        ("l2", "expected_calibration_error_l2"),
        ("max", "maximum_calibration_error"),
    ):
        other = torchmetrics_error(p, labels, norm=norm)
        assert other == pytest.approx(found[name], abs=3e-5)


def test_torchmetrics_gives_a_confidence_of_one_a_bin_of_its_own():
    # Confidences 1 (wrong) and 0.95 (right) share the last bin: its gap is
    # 0.975 - 0.5. Apart, the gaps are 1 and 0.05.
    labels = np.array([1, 0])
    found = kc.metrics.calibration_errors(labels, SATURATED)
    assert found["expected_calibration_error"] == pytest.approx(0.475)
    metric = kc.metrics.ExpectedCalibrationError()
    metric.update_state(labels, SATURATED)
    assert float(metric.result()) == pytest.approx(0.475, abs=1e-6)
    other = torchmetrics_error(SATURATED, labels)
    assert other == pytest.approx(0.525, abs=1e-6)


def test_torchmetrics_takes_small_logits_for_probabilities():
    logits = np.array([[0.9, 0.3], [0.2, 0.8]], "float32")
    labels = np.array([0, 1])
    confidence = 1 / (1 + np.exp([-0.6, -0.6]))
    found = kc.metrics.calibration_errors(labels, logits, from_logits=True)
    assert found["expected_calibration_error"] == pytest.approx(
        np.mean(1 - confidence), abs=1e-6
    )
    # It sees values in [0, 1], and takes 0.9 and 0.8 as confidences.
    other = torchmetrics_error(logits, labels)
    assert other == pytest.approx(0.15, abs=1e-6)


def test_scikit_learn_agrees_on_scores():
    sklearn = pytest.importorskip("sklearn.metrics")
    labels, p = predictions()
    found = kc.metrics.calibration_errors(labels, p)
    assert sklearn.log_loss(labels, p) == pytest.approx(
        found["negative_log_likelihood"], abs=1e-12
    )
    confidence, correct = top_label(labels, p)
    assert sklearn.roc_auc_score(correct, confidence) == pytest.approx(
        found["auroc"], abs=1e-12
    )
    binary = (labels == 0).astype(int)
    q = p[:, :1]
    found = kc.metrics.calibration_errors(binary, q)
    # The sum over both classes is twice the binary score.
    assert 2 * sklearn.brier_score_loss(binary, q[:, 0]) == pytest.approx(
        found["brier_score"], abs=1e-12
    )


def test_scikit_learn_agrees_on_the_positive_class():
    calibration = pytest.importorskip("sklearn.calibration")
    labels, p = predictions()
    binary, q = (labels == 0).astype(int), p[:, 0]
    share, mean = calibration.calibration_curve(binary, q, n_bins=15)
    count = np.histogram(q, np.linspace(0, 1, 16))[0]
    error = (count[count > 0] / len(q) * np.abs(share - mean)).sum()
    found = kc.metrics.calibration_errors(binary, q)
    assert found["binary_calibration_error"] == pytest.approx(error, abs=1e-9)


def test_relplot_agrees_away_from_the_ends():
    relplot = pytest.importorskip("relplot")
    rng = np.random.default_rng(0)
    confidence = rng.uniform(0.2, 0.8, 2000)
    correct = (rng.random(2000) < confidence**1.5).astype(float)
    ours = binless.smooth_error(sort_events(confidence, correct))
    other = relplot.smECE(f=confidence, y=correct)
    # Its bisection stops after ten steps, at 0.001.
    assert other == pytest.approx(ours, abs=2e-3)


def test_relplot_counts_an_atom_at_one_by_half():
    # Reflection doubles the mass at an end; it shares the end's node instead.
    # The residual has one sign, so the error is the mean gap, 0.25.
    relplot = pytest.importorskip("relplot")
    confidence = np.repeat([1.0, 0.5], 1000)
    correct = np.tile([0.0, 1.0], 1000)
    ours = binless.smooth_error(sort_events(confidence, correct))
    assert ours == pytest.approx(0.25, abs=1e-9)
    other = relplot.smECE(f=confidence, y=correct)
    assert other == pytest.approx(0.17, abs=5e-3)


def test_loops_with_strict_lower_edges_drop_a_confidence_of_zero():
    # `confidence > low and confidence <= high` puts 0 into no bin, but its
    # sample is counted in n: a classwise error then misses false zeros.
    p = np.array([[1.0, 0.0], [1.0, 0.0]])
    labels = np.array([1, 0])
    found = kc.metrics.calibration_errors(labels, p)
    assert found["classwise_calibration_error"] == pytest.approx(0.5)
    edges = np.arange(16) / 15
    dropped = 0.0
    for low, high in itertools.pairwise(edges):
        for k in range(2):
            part = (p[:, k] > low) & (p[:, k] <= high)
            if part.any():
                gap = (p[part, k] - (labels[part] == k)).mean()
                dropped += part.mean() * abs(gap) / 2
    assert dropped == pytest.approx(0.25)


def test_an_edge_per_class_less_is_another_classwise_error():
    # `np.linspace(0, 1, bins)` makes one interval less, closed on the left,
    # and a bin for 1 alone: 0.0658234 where 15 bins give 0.0653037.
    labels, p = predictions()
    found = kc.metrics.calibration_errors(labels, p)
    errors = []
    for k in range(p.shape[1]):
        index = np.digitize(p[:, k], np.linspace(0, 1, 15)) - 1
        errors.append(error_of_index(p[:, k], labels == k, index))
    assert np.mean(errors) == pytest.approx(0.0658234133273, abs=1e-11)
    assert found["classwise_calibration_error"] == pytest.approx(
        0.0653037015193, abs=1e-11
    )
