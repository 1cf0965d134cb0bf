"""The guard: the best of three on samples that are left out of the fit."""

import keras
import numpy as np
import pytest

import keras_calib as kc
from keras_calib.calibration import _guard
from keras_calib.calibration._guard import PRIOR_OF_EVIDENCE
from keras_calib.calibration._guard import judge
from keras_calib.calibration._methods import METHODS
from keras_calib.calibration._methods import as_map
from keras_calib.inputs.calibration_rows import read_rows
from keras_calib.layers._tempered import TemperedCalibration
from tests.calibration.networks import X
from tests.calibration.networks import Y
from tests.calibration.networks import built
from tests.calibration.networks import dense
from tests.calibration.networks import functional

LAYERS = kc.layers
# The papers' maps, with as many numbers as there are samples.
PLAIN = {
    "vector": lambda: LAYERS.VectorScaling(regularization=None),
    "matrix": lambda: LAYERS.MatrixScaling(regularization=None),
    "histogram": lambda: LAYERS.HistogramBinning(shrinkage=None),
}


def sampled(num_samples, scale, num_classes=10, seed=0):
    """Logits that are `scale` times as large as they should be."""
    rng = np.random.default_rng(seed)
    logits = 2 * rng.normal(size=(num_samples, num_classes))
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(-1)
    return (scale * logits).astype("float32"), labels


def identity(num_classes):
    return keras.Sequential(
        [keras.Input((num_classes,)), keras.layers.Identity()]
    )


def nll(model, x, labels):
    p = model.predict(x, verbose=0)[np.arange(len(labels)), labels]
    return -np.log(p).mean()


@pytest.mark.filterwarnings("ignore:.*(ten samples|classified|stopped)")
@pytest.mark.parametrize("name", PLAIN)
def test_a_map_that_does_harm_is_replaced(name):
    x, y = sampled(100, scale=3.0)
    model = identity(10)
    with pytest.warns(UserWarning, match="temperature scaling is used instead"):
        calibrated = kc.calibrate(
            model, x, y, method=PLAIN[name](), from_logits=True, verbose=0
        )
    record = kc.calibration_record(calibrated)
    assert record["method"] == "temperature" and not record["rejected"]
    found = record["guard"]
    assert found["returned"] == "temperature_scaling" and found["by"] == "folds"
    held_out = found["held_out_nll"]
    assert held_out["temperature_scaling"] == min(held_out.values())
    # What the guard saw is so on fresh data.
    fresh = sampled(5000, scale=3.0, seed=1)
    kept = kc.calibrate(
        model,
        x,
        y,
        method=PLAIN[name](),
        from_logits=True,
        guard=False,
        verbose=0,
    )
    assert nll(calibrated, *fresh) < nll(kept, *fresh)
    plain = kc.calibrate(model, x, y, from_logits=True, verbose=0)
    assert nll(calibrated, *fresh) == pytest.approx(nll(plain, *fresh))


@pytest.mark.filterwarnings("ignore")
def test_no_harm_to_a_calibrated_model():
    x, y = sampled(5000, scale=1.0, seed=99)
    before = -np.log(softmaxed(x)[np.arange(len(y)), y]).mean()
    rises = []
    for seed in range(12):
        calibrated = kc.calibrate(
            identity(10),
            *sampled(200, scale=1.0, seed=seed),
            from_logits=True,
            verbose=0,
        )
        rises.append(nll(calibrated, x, y) - before)
    assert np.mean(rises) < 0.004


def test_temperature_scaling_that_does_harm():
    # Many samples say that the model is calibrated.
    x, y = sampled(5000, scale=1.0)
    model = identity(10)
    with pytest.warns(UserWarning, match="the model stays as it is"):
        calibrated = kc.calibrate(model, x, y, from_logits=True, verbose=0)
    record = kc.calibration_record(calibrated)
    assert record["rejected"] and record["method"] == "temperature"
    assert record["guard"]["by"] == "evidence"
    held_out = record["guard"]["held_out_nll"]
    gap = held_out["temperature_scaling"] - held_out["no_calibration"]
    assert gap > PRIOR_OF_EVIDENCE / 5000
    np.testing.assert_allclose(
        calibrated.predict(x[:100], verbose=0), softmaxed(x[:100]), atol=1e-6
    )
    # It is so on fresh data.
    fresh = sampled(100_000, scale=1.0, seed=1)
    kept = kc.calibrate(model, x, y, from_logits=True, guard=False, verbose=0)
    assert nll(calibrated, *fresh) < nll(kept, *fresh)


@pytest.mark.parametrize("seed", [1, 20, 62, 101, 263])
def test_one_fold_with_most_of_the_errors_does_not_decide(seed):
    # By three folds these samples of a model that needs a temperature of 1.6
    # left it as it was.
    x, y = sampled(100, scale=1.6, num_classes=3, seed=seed)
    layer = LAYERS.TemperatureScaling().adapt(x, y)
    assert 1.2 < layer.temperature < 2
    assert judge(layer, read_rows(x, y)).returned == "map"


def test_the_evidence_against_temperature_scaling_must_be_two_nats():
    layer = LAYERS.TemperatureScaling()
    behind = {}
    # Of few samples, some whose temperature is expected to do no harm.
    for number, seed in ((60, 0), (20_000, 1)):
        logits, labels = sampled(number, scale=1.0, num_classes=3, seed=seed)
        found = judge(layer.adapt(logits, labels), read_rows(logits, labels))
        means = found.held_out_nll
        gap = means["temperature_scaling"] - means["no_calibration"]
        behind[found.returned] = number * gap
    assert 0 < behind["map"] < PRIOR_OF_EVIDENCE < behind["no_calibration"]


def softmaxed(x):
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


@pytest.mark.filterwarnings("ignore:.*(predicted correctly|has no minimum)")
@pytest.mark.parametrize("name", ["temperature", "vector", "bayesian"])
def test_few_samples_with_hardly_an_error(name):
    make = {
        "temperature": LAYERS.TemperatureScaling,
        "vector": LAYERS.VectorScaling,
        "bayesian": LAYERS.BayesianTemperatureScaling,
    }[name]
    # A calibrated model that is right nine times out of ten.
    logits = 8 * np.random.default_rng(0).normal(size=(10_000, 10))
    noise = np.random.default_rng(1).gumbel(size=logits.shape)
    labels = (logits + noise).argmax(axis=1)

    def loss(scores):
        scores = scores - scores.max(axis=1, keepdims=True)
        chosen = scores[np.arange(len(labels)), labels]
        return np.mean(np.log(np.exp(scores).sum(axis=1)) - chosen)

    found = {"layer": [], "guarded": []}
    returned = set()
    for seed in range(40):
        rows = np.random.default_rng(seed).permutation(len(labels))[:30]
        layer = make().adapt(logits[rows], labels[rows])
        verdict = judge(layer, read_rows(logits[rows], labels[rows])).returned
        own = loss(keras.ops.convert_to_numpy(layer(logits))) - loss(logits)
        kept = verdict == "no_calibration"
        found["layer"].append(own)
        found["guarded"].append(0.0 if kept else own)
        returned.add(verdict)
    layer, guarded = (np.mean(losses) for losses in found.values())
    if name == "temperature":
        assert layer > 0.02 > 2 * guarded
        assert "no_calibration" in returned
    else:  # these hedge by themselves
        assert guarded <= layer < 0.02
        assert "no_calibration" not in returned


def test_the_layer_of_the_user_is_as_it_was():
    x, y = sampled(100, scale=3.0)
    layer = PLAIN["histogram"]()
    layer.build((None, 10))
    weights = layer.get_weights()
    with pytest.warns(UserWarning, match="was rejected"):
        kc.calibrate(
            identity(10), x, y, method=layer, from_logits=True, verbose=0
        )
    assert layer.record is None
    for now, before in zip(layer.get_weights(), weights, strict=True):
        np.testing.assert_array_equal(now, before)


def test_three_folds_by_hand():
    logits, labels = sampled(60, scale=3.0, num_classes=3)
    rows = read_rows(logits, labels, groups=np.arange(60))
    found = judge(LAYERS.TemperatureScaling().adapt(logits, labels), rows)
    fold = np.random.default_rng(0).permutation(np.arange(60) % 3)
    losses = []
    for number in range(3):
        inside, outside = fold != number, fold == number
        layer = LAYERS.TemperatureScaling().adapt(
            logits[inside], labels[inside]
        )
        z = logits[outside].astype("float64") / layer.temperature
        z -= np.log(np.exp(z).sum(axis=1, keepdims=True))
        losses.append(-z[np.arange(len(z)), labels[outside]])
    expected = np.concatenate(losses).mean()
    assert found.held_out_nll["temperature_scaling"] == pytest.approx(
        expected, rel=1e-5
    )
    assert found.held_out_nll["map"] == pytest.approx(expected, rel=1e-5)


class OfTheUser(LAYERS.EnsembleTemperatureScaling):
    """Computes otherwise than the map that it comes from."""

    def call(self, logits):
        return super().call(logits) / 2.0


class MixtureOfTheUser(LAYERS.SplineCalibration):
    """Computes otherwise than a map that learns from folds of its own."""

    def call(self, logits):
        return super().call(logits) / 2.0


# Maps that start from temperature scaling, and some that only look so.
TEMPERED = {
    "ensemble": LAYERS.EnsembleTemperatureScaling,
    "of the user": OfTheUser,
    "mixture of the user": MixtureOfTheUser,
    "factors": LAYERS.HistogramBinning,
    "histogram": PLAIN["histogram"],
    "diagonal": lambda: LAYERS.IntraOrderPreserving(shrinkage=None),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", TEMPERED)
@pytest.mark.parametrize("weighted", [False, True])
def test_the_map_of_three_folds_by_hand(name, weighted):
    logits, labels = sampled(90, scale=3.0, num_classes=3)
    weight = np.arange(1, 91) % 4 + 1.0 if weighted else None
    layer = TEMPERED[name]().adapt(logits, labels, weight)
    groups = np.arange(90)
    found = judge(layer, read_rows(logits, labels, weight, groups=groups))
    fold = np.random.default_rng(0).permutation(np.arange(90) % 3)
    losses = np.empty(90)
    for number in range(3):
        inside, outside = fold != number, fold == number
        twin = TEMPERED[name]().adapt(
            logits[inside],
            labels[inside],
            None if weight is None else weight[inside],
        )
        p = softmaxed(keras.ops.convert_to_numpy(twin(logits[outside])))
        losses[outside] = -np.log(p[np.arange(len(p)), labels[outside]])
    expected = np.average(losses, weights=weight)
    assert found.by == "folds"
    held_out = found.held_out_nll
    assert held_out["map"] == pytest.approx(expected, rel=1e-5)
    # Without groups, evidence moves it together with temperature scaling.
    alone = judge(layer, read_rows(logits, labels, weight)).held_out_nll
    ahead = held_out["temperature_scaling"] - held_out["map"]
    found = alone["temperature_scaling"] - alone["map"]
    assert found == pytest.approx(ahead, abs=1e-6)
    assert alone["no_calibration"] == pytest.approx(held_out["no_calibration"])


def test_the_guard_fits_without_layers(monkeypatch):
    # They would take longer than the fits.
    logits, labels = sampled(200, scale=2.0, num_classes=4)
    rows = read_rows(logits, labels)
    layer = LAYERS.EnsembleTemperatureScaling().adapt(logits, labels)
    spline = LAYERS.SplineCalibration()
    spline.build((None, 4))

    def forbidden(*arguments, **options):
        raise AssertionError

    monkeypatch.setattr(keras.layers.Layer, "__init__", forbidden)
    monkeypatch.setattr(keras.layers.Layer, "__call__", forbidden)
    assert judge(layer, rows).by == "folds"
    # Nor does the fit of a mixture need any.
    spline.adapt(logits, labels)
    assert judge(spline, rows).by == "folds"


def test_evidence_judges_averages_of_ridge_fits():
    logits, labels = sampled(300, scale=2.0, num_classes=4)
    shifted = logits + np.array([2.0, 0, 0, -2.0], "float32")
    for z in (logits, shifted):
        layer = LAYERS.VectorScaling().adapt(z, labels)
        found = judge(layer, read_rows(z, labels))
        means, gain = found.held_out_nll, layer.record["log_evidence"] / 300
        assert found.by == "evidence" and found.returned == "map"
        assert means["temperature_scaling"] - means["map"] == pytest.approx(
            max(gain, 0.0)
        )
    assert gain > 0.1
    groups = np.arange(300) // 2
    grouped = judge(layer, read_rows(shifted, labels, groups=groups))
    assert grouped.by == "folds" and grouped.returned == "map"


def test_mixtures_use_the_folds_of_their_fit(monkeypatch):
    logits, labels = sampled(200, scale=2.0, num_classes=4)
    layer = LAYERS.SplineCalibration().adapt(logits, labels)
    fits = []
    solve = LAYERS.SplineCalibration._solve

    def counting(self, *data):
        fits.append(len(data[1]))
        return solve(self, *data)

    monkeypatch.setattr(LAYERS.SplineCalibration, "_solve", counting)
    found = judge(layer, read_rows(logits, labels))
    assert not fits
    held_out = found.held_out_nll
    ahead = held_out["temperature_scaling"] - held_out["map"]
    mixed = layer.folds.mixed(np.ones(200), layer.caution)
    expected = (mixed - layer.folds.plain).mean()
    assert ahead == pytest.approx(expected) and abs(expected) > 1e-6
    assert layer.folds.rich.shape == (200,)
    # The model does not carry them along.
    kept = LAYERS.SplineCalibration()
    kc.calibrate(
        identity(4),
        logits,
        labels,
        method=kept,
        from_logits=True,
        guard=False,
        verbose=0,
    )
    assert kept.folds is None


def test_groups_stay_together():
    # Each sample ten times: without groups, folds share them, and a map that
    # learns samples by heart looks good.
    logits, labels = sampled(30, scale=3.0, num_classes=5)
    logits, labels = np.repeat(logits, 10, axis=0), np.repeat(labels, 10)
    logits += np.random.default_rng(0).normal(0, 1e-3, logits.shape)
    layer = PLAIN["matrix"]()
    with pytest.warns(UserWarning):
        layer.adapt(logits, labels)
    alone = judge(layer, read_rows(logits, labels))
    groups = np.repeat([f"patient {i}" for i in range(30)], 10)
    grouped = judge(layer, read_rows(logits, labels, groups=groups))
    assert alone.held_out_nll["map"] < alone.held_out_nll["no_calibration"]
    assert grouped.held_out_nll["map"] > grouped.held_out_nll["no_calibration"]
    assert grouped.returned != "map"


def test_names_of_groups_change_nothing():
    logits, labels = sampled(300, scale=3.0, num_classes=5)
    group = np.arange(300) // 10
    found = []
    for ids in (group, -group, [f"patient {i * 7 % 30}" for i in group]):
        layer = kc.layers.IsotonicCalibration()
        layer.adapt(logits, labels, groups=np.asarray(ids))
        judged = judge(layer, read_rows(logits, labels, groups=np.asarray(ids)))
        found.append([layer.record["mixture_weight"], judged.held_out_nll])
    assert found[0] == found[1] == found[2]


def test_elements_of_a_sample_are_a_group():
    logits, labels = sampled(60, scale=3.0, num_classes=3)
    images = read_rows(logits.reshape(6, 10, 3), labels.reshape(6, 10))
    np.testing.assert_array_equal(images.group, np.arange(60) // 10)
    weight = (np.arange(60) % 2).reshape(6, 10)
    half = read_rows(logits.reshape(6, 10, 3), labels.reshape(6, 10), weight)
    np.testing.assert_array_equal(half.group, np.arange(30) // 5)
    assert read_rows(logits, labels, np.arange(60) % 2).group is None
    soft = np.full((60, 3), 1 / 3)
    group = read_rows(logits, soft, groups=np.arange(60) // 2).group
    np.testing.assert_array_equal(group, np.repeat(np.arange(30), 6))
    with pytest.raises(ValueError, match=r"shape \(6,\).*shape \(60,\)"):
        read_rows(
            logits.reshape(6, 10, 3),
            labels.reshape(6, 10),
            groups=np.arange(60),
        )


def test_what_is_not_compared_says_why():
    logits, labels = sampled(60, scale=3.0, num_classes=3)
    layer = LAYERS.TemperatureScaling().adapt(logits, labels)
    assert judge(layer, read_rows(logits[:2], labels[:2])).skipped == (
        "fewer than 3 samples or groups"
    )
    rows = read_rows(logits, labels)
    other = LAYERS.EnsembleTemperatureScaling().adapt(logits, labels)
    late = judge(other, rows, seconds=0.5, taken=1.0)
    assert late.to_dict() == {"skipped": "max_seconds"}
    soft = judge(layer, read_rows(logits, np.full((60, 3), 1 / 3)))
    assert soft.skipped == "soft labels"
    model = built(functional(dense("softmax")))
    for arguments, reason in (
        ({"guard": False}, "guard=False"),
        ({"objective": "ece"}, "not fitted by likelihood"),
        ({"class_loss_scaling": "normal"}, "not fitted by likelihood"),
    ):
        record = kc.calibration_record(
            kc.calibrate(model, X, Y, verbose=0, **arguments)
        )
        assert record["guard"] == {"skipped": reason}


@pytest.mark.filterwarnings("ignore")
def test_predictions_that_change_are_counted():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(500, 3)).astype("float32") * 2
    scores = logits + np.array([2.0, 0, -2.0])
    labels = (scores + rng.gumbel(size=scores.shape)).argmax(-1)
    data = {"x": logits, "y": labels, "from_logits": True, "verbose": 0}
    with pytest.warns(UserWarning, match="predicted classes") as raised:
        calibrated = kc.calibrate(identity(3), method="vector", **data)
    changed = calibrated.predict(logits, verbose=0).argmax(-1)
    count = int((changed != logits.argmax(-1)).sum())
    assert count > 10
    messages = [str(w.message) for w in raised]
    assert any(f"changes {count} of 500 " in message for message in messages)
    with pytest.raises(ValueError, match="can change predicted classes"):
        kc.calibrate(
            identity(3), method="vector", preserve_accuracy=True, **data
        )


@pytest.mark.filterwarnings("error:.*predicted classes")
def test_probabilities_that_round_to_be_equal_are_no_change():
    # Outputs that are nearly equal, and a temperature that makes them more so.
    near = 1 + 4 * np.finfo("float32").eps
    logits = np.tile(np.float32([1, near, 0.9]), (300, 1))
    labels = np.arange(300) % 3
    calibrated = kc.calibrate(
        identity(3), logits, labels, from_logits=True, guard=False, verbose=0
    )
    assert kc.calibration_record(calibrated)["temperature"] > 3


@pytest.mark.filterwarnings("error:.*predicted classes")
@pytest.mark.parametrize(
    "arguments",
    [
        {"method": "vector", "preserve_accuracy": False},
        {"method": "temperature"},
        {"method": "spline", "preserve_accuracy": True},
    ],
)
def test_no_warning_of_changes(arguments):
    logits, labels = sampled(200, scale=3.0, num_classes=3)
    kc.calibrate(
        identity(3),
        logits,
        labels,
        from_logits=True,
        verbose=0,
        guard=False,
        **arguments,
    )


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"mixture": True}, '`mixture=True` needs `method="auto"`'),
        (
            {"mixture": True, "method": "auto", "fuse": True},
            "cannot be fused",
        ),
        ({"max_seconds": -1}, "`max_seconds` must be"),
        ({"max_seconds": np.nan}, "`max_seconds` must be"),
        ({"groups": np.zeros(3)}, "`groups` must have one id per sample"),
    ],
)
def test_arguments_that_contradict(arguments, message):
    with pytest.raises(ValueError, match=message):
        kc.calibrate(
            built(functional(dense("softmax"))), X, Y, verbose=0, **arguments
        )


@pytest.mark.one_backend
@pytest.mark.filterwarnings("ignore:.*(ten samples|classified|stopped)")
@pytest.mark.parametrize("method", METHODS)
def test_how_many_fits_a_guard_costs(method, monkeypatch):
    layer = as_map(method)
    logits, labels = sampled(150, 2.0, num_classes=2)
    fits = []

    def counted(solve):
        def counting(self, data, labels, *rest):
            inside.append(solve)
            fits.extend([len(labels)] * (len(inside) == 1))
            found = solve(self, data, labels, *rest)
            inside.pop()
            return found

        return counting

    inside = []
    tempered = isinstance(layer, TemperedCalibration)
    for name in ("_solve", "_solve_seen") if tempered else ("solve",):
        if solve := getattr(type(layer), name, None):
            monkeypatch.setattr(type(layer), name, counted(solve))
    layer.adapt(logits, labels)
    # Maps that are mixed with temperature scaling learn from five folds.
    mixed = tempered and layer.has_folds
    assert fits == [150, *[120] * 5] if mixed else fits == [150]
    fits.clear()
    found = judge(layer, read_rows(logits, labels))
    by_folds = found.by == "folds" and not mixed
    assert fits == [100] * 3 if by_folds else not fits


@pytest.mark.one_backend
@pytest.mark.filterwarnings("ignore")
def test_a_fold_takes_no_more_steps_than_the_fit(monkeypatch):
    # 300 samples have an optimum; 200 separate some of the 20 classes, and
    # their fits took 30, 30 and 23 steps, for 6 of the fit to all.
    rng = np.random.default_rng(0)
    logits = 3 * rng.normal(size=(300, 20)).astype("float32")
    labels = (logits / 2 + rng.gumbel(size=logits.shape)).argmax(axis=1)
    layer = PLAIN["matrix"]().adapt(logits, labels)
    steps = []
    record = LAYERS.MatrixScaling._record

    def recorded(self, *data):
        found = record(self, *data)
        steps.append(found["iterations"])
        return found

    monkeypatch.setattr(LAYERS.MatrixScaling, "_record", recorded)
    found = judge(layer, read_rows(logits, labels))
    assert found.returned == "temperature_scaling"
    assert len(steps) == 3
    assert max(steps) == layer.record["iterations"]
    # Where the optimum is near, nothing has changed.
    logits, labels = sampled(900, scale=2.0, num_classes=5)
    layer = PLAIN["matrix"]().adapt(logits, labels)
    rows = read_rows(logits, labels, groups=np.arange(900))
    losses = np.empty(900)
    fold = np.random.default_rng(0).permutation(np.arange(900) % 3)
    for number in range(3):
        inside, outside = fold != number, np.flatnonzero(fold == number)
        twin = PLAIN["matrix"]().adapt(logits[inside], labels[inside])
        losses[outside] = -twin.log_q_of_labels(logits, labels, outside)
    held_out = judge(layer, rows).held_out_nll
    assert held_out["map"] == pytest.approx(losses.mean(), abs=2e-4)


def test_fewer_than_fifty_samples_are_told_of(recwarn):
    logits, labels = sampled(50, scale=2.0, num_classes=3)

    def told(number, method):
        recwarn.clear()
        data = logits[:number], labels[:number]
        kc.calibrate(
            identity(3), *data, from_logits=True, method=method, verbose=0
        )
        words = f"{number} calibration samples leave open which temperature"
        return any(words in str(each.message) for each in recwarn)

    assert told(49, "temperature") and told(20, "isotonic")
    assert not told(50, "temperature")
    assert not told(20, "bayesian_temperature") and not told(20, "auto")


@pytest.mark.parametrize(
    ("most", "words"),
    [(99, "samples for each: 10. Received: {}."), (13, "{} leave open which")],
)
def test_few_samples_by_their_weights_are_told_of(most, words, recwarn):
    # One of a hundred samples weighs much more than the others.
    logits, labels = sampled(100, scale=2.0, num_classes=3)
    weights = np.ones(100)
    weights[0] = most
    kc.calibrate(
        identity(3), logits, labels, weights, from_logits=True, verbose=0
    )
    effective = (99 + most) ** 2 / (99 + most**2)
    shown = (
        "100 calibration samples (of unequal weight, which tell as much as "
        f"{effective:.0f})"
    )
    told = " ".join(str(each.message) for each in recwarn)
    assert words.format(shown) in told


@pytest.mark.parametrize("name", ["temperature", "vector"])
def test_samples_of_hardly_any_weight_change_no_figure(name):
    x, y = sampled(300, scale=1.5, num_classes=4)
    more, other = sampled(900, scale=1.5, num_classes=4, seed=1)
    alone = read_rows(x, y)
    beside = read_rows(
        np.concatenate([x, more]),
        np.concatenate([y, other]),
        np.repeat([1.0, 1e-9], [300, 900]),
    )
    means = []
    for rows in (alone, beside):
        layer = as_map(name).adapt_to_rows(rows)
        means.append(judge(layer, rows).held_out_nll)
    one, another = means
    assert one["no_calibration"] - one["temperature_scaling"] > 0.01
    assert another == pytest.approx(one, abs=2e-4)


def all_right(num_samples):
    """A network that is calibrated, and samples that it is right on."""
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(num_samples, 10))
    labels = rng.integers(0, 10, num_samples)
    logits[np.arange(num_samples), labels] += 9.0
    return logits.astype("float32"), labels


@pytest.mark.parametrize(
    "name",
    [
        *("order_preserving", "parameterized_temperature", "spline"),
        *("isotonic", "ensemble_temperature", "vector", "matrix"),
    ],
)
def test_maps_of_samples_that_are_all_right_are_temperature_scaling(name):
    x, y = all_right(50)
    rows = read_rows(x, y)
    with pytest.warns(UserWarning, match="(All|every) calibration sample"):
        plain = as_map("temperature").adapt_to_rows(rows)
        rich = as_map(name).adapt_to_rows(rows)
    q = [keras.ops.softmax(layer(x)) for layer in (plain, rich)]
    one, other = map(keras.ops.convert_to_numpy, q)
    assert np.abs(one - other).max() < 1e-5
    # Evidence for a temperature that only sharpens is none.
    verdict = judge(plain, rows)
    nll = verdict.held_out_nll
    assert nll["temperature_scaling"] == nll["no_calibration"]


def test_a_mean_over_temperatures_does_not_sharpen_what_is_all_right():
    x, y = all_right(50)
    with pytest.warns(UserWarning, match="every calibration sample"):
        calibrated = kc.calibrate(
            *(identity(10), x, y),
            method="bayesian_temperature",
            from_logits=True,
            verbose=0,
        )
    record = kc.calibration_record(calibrated)
    assert not record["rejected"]
    least = keras.ops.softmax(x)
    least = keras.ops.convert_to_numpy(least).max(axis=1)
    with pytest.warns(UserWarning, match="every calibration sample"):
        plain = as_map("temperature").adapt(x, y)
    sharper = keras.ops.convert_to_numpy(keras.ops.softmax(plain(x)))
    found = calibrated.predict(x, verbose=0).max(axis=1)
    assert (found < sharper.max(axis=1)).all()
    assert sharper.max(axis=1).mean() >= least.mean() - 1e-6


@pytest.mark.filterwarnings("ignore:.*classified")
def test_too_few_groups_to_hold_one_out_are_told_of():
    x, y = sampled(600, scale=1.5, num_classes=4)
    groups = np.arange(600) % 2
    with pytest.warns(UserWarning, match="Received: 2 groups"):
        calibrated = kc.calibrate(
            *(identity(4), x, y),
            method="vector",
            groups=groups,
            from_logits=True,
            preserve_accuracy=False,
            verbose=0,
        )
    guard = kc.calibration_record(calibrated)["guard"]
    assert guard == {"skipped": "fewer than 3 samples or groups"}


class Sharper(LAYERS.VectorScaling):
    """A map that makes each model worse."""

    def solve(self, logits, labels, weights, objective):
        found, record = super().solve(logits, labels, weights, objective)
        found["scale"] = np.full(logits.shape[1], 2.0)
        return found, {**record, "nll_after": 9.0}


class NeedsMany(LAYERS.VectorScaling):
    """A map that cannot be fitted to two thirds of 300 samples."""

    def adapt(self, logits, labels, *arguments, **kwargs):
        if len(labels) < 300:
            raise ValueError("too few of them")
        return super().adapt(logits, labels, *arguments, **kwargs)


@pytest.mark.parametrize("groups", [None, np.arange(300) // 2])
def test_a_map_that_parts_of_the_samples_do_not_allow_is_out(groups):
    logits, labels = sampled(300, scale=3.0, num_classes=3)
    with pytest.warns(UserWarning, match="fitted to a part.*too few of them"):
        found = kc.calibrate(
            identity(3),
            logits,
            labels,
            method=NeedsMany(regularization=None),
            groups=groups,
            verbose=0,
        )
    record = kc.calibration_record(found)
    plain = LAYERS.TemperatureScaling().adapt(logits, labels)
    assert record["method"] == "temperature"
    assert record["temperature"] == plain.record["temperature"]
    guard = record["guard"]
    assert guard["returned"] == "temperature_scaling"
    assert guard["failure"] == "ValueError: too few of them"
    assert guard["held_out_nll"]["map"] is None
    assert guard["by"] == "folds"


def test_a_mixture_without_a_weight_is_judged_as_a_temperature():
    # One event: no fold without it has a Platt map.
    z = np.linspace(-7.0, -1.0, 60)[:, None].astype("float32")
    labels = (np.arange(60) == 58).astype(int)
    layers = LAYERS.PlattScaling(), LAYERS.TemperatureScaling()
    rich, plain = (
        judge(each.adapt(z, labels), read_rows(z, labels)) for each in layers
    )
    assert layers[0].record["mixture_weight"] == 0
    assert rich.skipped is None and rich.by == "evidence"
    assert rich.held_out_nll == pytest.approx(plain.held_out_nll)
    assert rich.returned == plain.returned


@pytest.mark.parametrize("groups", [None, np.arange(400) // 2])
def test_a_map_that_the_calibration_data_reject_leaves_the_others(groups):
    logits, labels = sampled(400, scale=3.0)
    with pytest.warns(UserWarning, match="made the model worse") as caught:
        found = kc.calibrate(
            identity(10),
            logits,
            labels,
            method=Sharper(),
            groups=groups,
            verbose=0,
        )
    [message] = [
        str(each.message)
        for each in caught
        if issubclass(each.category, UserWarning)
    ]
    assert "temperature scaling is used instead" in message
    record = kc.calibration_record(found)
    plain = LAYERS.TemperatureScaling().adapt(logits, labels)
    assert record["temperature"] == plain.record["temperature"]
    assert not record["rejected"]
    nll = record["guard"]["held_out_nll"]
    assert nll["map"] is None
    assert f"{nll['temperature_scaling']:.5g} with temperature" in message
    assert record["guard"]["by"] == ("evidence" if groups is None else "folds")
    # A model that is calibrated stays as it is.
    logits, labels = sampled(400, scale=1.0)
    with pytest.warns(UserWarning, match="the model stays as it is"):
        same = kc.calibrate(
            identity(10), logits, labels, method=Sharper(), verbose=0
        )
    record = kc.calibration_record(same)
    assert record["rejected"]
    assert record["guard"]["returned"] == "no_calibration"
    # Where nothing is compared, only the calibration data know.
    with pytest.warns(UserWarning, match="made the model worse"):
        same = kc.calibrate(
            identity(10), logits, labels, method=Sharper(), guard=False,
            verbose=0,
        )  # fmt: skip
    record = kc.calibration_record(same)
    assert record["rejected"] and record["guard"] is None


def test_what_is_not_compared_by_an_error_is_told_of(monkeypatch):
    def fail(*arguments):
        raise ValueError("no evidence")

    monkeypatch.setattr(_guard, "_expected_nll", fail)
    logits, labels = sampled(60, scale=3.0, num_classes=3)
    with pytest.warns(UserWarning, match="not compared.*no evidence"):
        found = kc.calibrate(identity(3), logits, labels, verbose=0)
    guard = kc.calibration_record(found)["guard"]
    assert guard == {"skipped": "ValueError: no evidence"}
