"""Maps of rows that are worth less than their number: no harm to others.

Those of a group are wrong together, and unequal weights leave fewer that count.
"""

import numpy as np
import pytest

import keras_calib as kc
from keras_calib.solvers.temperature import fit_temperature
from keras_calib.solvers.temperature_posterior import effective_weights
from tests.helpers import to_numpy
from tests.layers.generated import nll

AFFINE = {
    "bias corrected": kc.layers.BiasCorrectedTemperatureScaling,
    "vector": kc.layers.VectorScaling,
    "matrix": kc.layers.MatrixScaling,
}
COMMON = np.array([1.0, -1.0, 0.5, 0.0, -0.5])


def in_groups(rng, number, size, spread, common=0.0):
    """Logits with T = 1.5, whose classes are more frequent in some groups."""
    shift = spread * rng.normal(size=(number, len(COMMON))) + common
    group = np.repeat(np.arange(number), size)
    logits = 2 * rng.normal(size=(number * size, len(COMMON)))
    noise = rng.gumbel(size=logits.shape)
    labels = (logits / 1.5 + shift[group] + noise).argmax(axis=1)
    return logits.astype("float32"), labels, group


def change(make, seed, common=0.0):
    """NLL of other groups minus that of temperature scaling, of three fits.

    Without groups, with them, and of as many samples with several elements.
    """
    rng = np.random.default_rng(seed)
    logits, labels, group = in_groups(rng, 20, 100, 0.8, common)
    test, test_labels, _ = in_groups(rng, 400, 20, 0.8, common)

    def after(layer):
        return nll(to_numpy(layer(test)), test_labels)

    base = after(kc.layers.TemperatureScaling().adapt(logits, labels))
    layers = [
        make().adapt(logits, labels),
        make().adapt(logits, labels, groups=group),
        make().adapt(logits.reshape(20, 100, -1), labels.reshape(20, -1)),
    ]
    assert layers[0].record["dispersion"] < 1.1
    # In each of five bins a group has a fifth of its samples.
    in_bins = make is kc.layers.HistogramBinning
    assert layers[1].record["dispersion"] > (2 if in_bins else 4)
    return [after(layer) - base for layer in layers]


@pytest.mark.parametrize("name", AFFINE)
def test_what_groups_share_by_chance_is_not_learned(name):
    found = np.array([change(AFFINE[name], seed) for seed in range(4)])
    assert found[:, 0].mean() > 0.004
    assert found[:, 1].max() < 0.002
    np.testing.assert_allclose(found[:, 1], found[:, 2], atol=1e-7)


@pytest.mark.parametrize("name", AFFINE)
def test_what_all_groups_share_is_learned(name):
    found = np.array([change(AFFINE[name], seed, COMMON) for seed in range(2)])
    assert found[:, 1].max() < -0.08
    assert (found[:, 1] < found[:, 0] + 0.002).all()


def test_factors_of_bins_that_groups_share_by_chance_are_not_learned():
    make = kc.layers.HistogramBinning
    found = np.array([change(make, seed) for seed in range(4)])
    assert found[:, 0].max() > 0.004
    assert found[:, 1].max() < 0.0005
    np.testing.assert_allclose(found[:, 1], found[:, 2], atol=1e-7)


def test_factors_of_bins_that_all_groups_share_are_learned():
    make = kc.layers.HistogramBinning
    found = np.array([change(make, seed, COMMON) for seed in range(2)])
    assert found[:, 1].max() < -0.11


def of_few_groups(rng, number, size):
    """Groups of which one in five has half of its labels moved."""
    group = np.repeat(np.arange(number), size)
    logits = 2 * rng.normal(size=(len(group), 5)).astype("float32")
    labels = (logits / 1.5 + rng.gumbel(size=logits.shape)).argmax(axis=1)
    moved = (rng.random(number) < 0.2)[group] & (rng.random(len(group)) < 0.5)
    return logits, np.where(moved, (labels + 1) % 5, labels), group


def test_groups_leave_the_temperature_open():
    logits, labels, group = of_few_groups(np.random.default_rng(1), 10, 50)
    layers = [
        kc.layers.BayesianTemperatureScaling().adapt(logits, labels),
        kc.layers.BayesianTemperatureScaling().adapt(
            logits, labels, groups=group
        ),
        kc.layers.BayesianTemperatureScaling().adapt(
            logits.reshape(10, 50, -1), labels.reshape(10, 50)
        ),
    ]
    rows, groups, elements = (layer.record for layer in layers)
    assert rows["dispersion"] == 1
    assert groups["dispersion"] > 4
    assert groups["log_temperature_width"] == pytest.approx(
        np.sqrt(groups["dispersion"]) * rows["log_temperature_width"], rel=0.05
    )
    assert elements["log_temperature_width"] == pytest.approx(
        groups["log_temperature_width"]
    )


def test_how_much_the_rows_of_groups_are_worth():
    logits, labels, group = of_few_groups(np.random.default_rng(1), 10, 50)
    weights = np.random.default_rng(2).uniform(0.5, 1.5, 500)
    weights /= weights.mean()
    found = fit_temperature(logits, labels, weights)
    z = logits.astype(float)
    p = np.exp(z / found.temperature)
    p /= p.sum(axis=1, keepdims=True)
    mean = (p * z).sum(axis=1)
    residuals = mean - z[np.arange(500), labels]
    sums = [(weights * residuals)[group == g].sum() for g in range(10)]
    arguments = logits, labels, weights, found.temperature
    equal = weights @ residuals**2
    for given, squares in (
        (group, np.square(sums).sum()),
        (None, weights**2 @ residuals**2),
        (np.arange(500), weights**2 @ residuals**2),
    ):
        worth, dispersion = effective_weights(*arguments, given)
        assert dispersion == pytest.approx(squares / equal, 1e-5)
        np.testing.assert_allclose(worth, weights / dispersion)


def of_unequal_weights(seed, size, common=0.0):
    """Rows of which a few have most of the weight, and many others."""
    rng = np.random.default_rng(seed)
    weights = np.exp(1.2 * rng.normal(size=size))
    rows = in_groups(rng, size, 1, 0.0, common)[:2]
    return (*rows, weights), in_groups(rng, 10_000, 1, 0.0, common)[:2]


@pytest.mark.parametrize("size", [100, 1000])
def test_what_a_few_heavy_rows_say_is_not_learned(size):
    changes = []
    for seed in range(4):
        rows, (test, test_labels) = of_unequal_weights(seed, size)
        base, binned = (
            nll(to_numpy(make().adapt(*rows)(test)), test_labels)
            for make in (
                kc.layers.TemperatureScaling,
                kc.layers.HistogramBinning,
            )
        )
        changes.append(binned - base)
    assert max(changes) < 0.0005


def test_what_all_rows_say_is_learned_from_unequal_weights():
    rows, (test, test_labels) = of_unequal_weights(0, 2000, COMMON)
    base, binned = (
        nll(to_numpy(make().adapt(*rows)(test)), test_labels)
        for make in (kc.layers.TemperatureScaling, kc.layers.HistogramBinning)
    )
    assert binned < base - 0.08


def test_unequal_weights_leave_the_temperature_open():
    (logits, labels, weights), _ = of_unequal_weights(0, 300)
    equal = kc.layers.BayesianTemperatureScaling().adapt(logits, labels)
    unequal = kc.layers.BayesianTemperatureScaling().adapt(
        logits, labels, sample_weight=weights
    )
    assert equal.record["dispersion"] == 1
    assert unequal.record["dispersion"] > 2
    assert unequal.record["log_temperature_width"] == pytest.approx(
        np.sqrt(unequal.record["dispersion"])
        * equal.record["log_temperature_width"],
        rel=0.2,
    )
