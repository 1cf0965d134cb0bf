"""Numbers of the other figures, read back from their axes."""

import sys

import keras
import numpy as np
import pytest
from matplotlib import colors
from matplotlib import pyplot

import keras_calib as kc
from keras_calib.evaluation import decisions
from keras_calib.evaluation.events import sort_events
from keras_calib.plots import _style
from keras_calib.plots._loss_profile import _of_rows
from keras_calib.plots._loss_profile import profile


@pytest.fixture(autouse=True)
def close_figures():
    yield
    pyplot.close("all")


def sample(n=300, num_classes=3, seed=0):
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.ones(num_classes), size=n)
    return (p.cumsum(1) > rng.random((n, 1))).argmax(1), p


def sharper(p, power):
    q = p**power
    return q / q.sum(axis=1, keepdims=True)


def test_histogram_and_both_means():
    # (0.6, 0.7]  three, two right; (0.9, 1.0]  one, right.
    figure = kc.plots.confidence_histogram(
        [1, 0, 1, 1], [0.65, 0.65, 0.65, 0.95], num_bins=10
    )
    (panel,) = figure.axes
    heights = [bar.get_height() for bar in panel.patches]
    assert heights == pytest.approx([0] * 6 + [0.75, 0, 0, 0.25])
    places = {line.get_label(): line.get_xdata()[0] for line in panel.lines}
    assert places == pytest.approx(
        {"accuracy 0.750": 0.75, "mean confidence 0.725": 0.725}
    )
    assert len({line.get_linestyle() for line in panel.lines}) == 1  # dashed
    assert "floor" in panel.get_legend().get_title().get_text()
    labels, p = sample()
    figure = kc.plots.confidence_histogram(
        labels, {"one": p, "two": sharper(p, 3)}, title="both"
    )
    assert [x.get_title() for x in figure.axes] == ["one", "two"]
    assert figure.get_suptitle() == "both"


def test_risk_is_that_of_the_curve():
    labels, p = sample()
    figure = kc.plots.risk_coverage(labels, {"p": p, "flat": p[::-1]})
    (panel,) = figure.axes
    events = sort_events(p.max(axis=1), p.argmax(axis=1) == labels)
    first = panel.lines[0]
    np.testing.assert_allclose(
        first.get_data(), decisions.risk_coverage(events)
    )
    errors = kc.metrics.calibration_errors(labels, p)
    area = errors["area_under_risk_coverage"]
    assert first.get_label().startswith(f"p: AURC {area:.4f} (E-AURC ")
    styles = {
        (line.get_color(), line.get_linestyle(), line.get_marker())
        for line in panel.lines
    }
    assert len(styles) == 2


def test_many_samples_are_few_points():
    rng = np.random.default_rng(0)
    p = rng.random(9000)
    line = kc.plots.risk_coverage(rng.random(9000) < p, p).axes[0].lines[0]
    assert len(line.get_xdata()) == 2000
    assert line.get_xdata()[-1] == 1


def test_net_benefit_on_the_axes():
    p = np.repeat([0.2, 0.8], [4, 6])
    y = np.array([1, 0, 0, 0, 1, 1, 1, 1, 0, 0])
    (panel,) = kc.plots.net_benefit(y, p, thresholds=[0.75, 0.5]).axes
    found = {line.get_label(): line.get_ydata() for line in panel.lines}
    np.testing.assert_allclose(found["model"], [0.2, -0.2])
    np.testing.assert_allclose(found["treat everybody"], [0, -1], atol=1e-12)
    np.testing.assert_allclose(found["treat nobody"], [0, 0])
    np.testing.assert_allclose(panel.lines[0].get_xdata(), [0.5, 0.75])
    labels, p = sample()
    with pytest.raises(ValueError, match="Pass `class_id=`"):
        kc.plots.net_benefit(labels, p)
    (panel,) = kc.plots.net_benefit(
        labels, {"a": p, "b": p}, class_id=2, thresholds=[0.3]
    ).axes
    hit = p[:, 2] >= 0.3
    expected = (hit & (labels == 2)).mean()
    expected -= (hit & (labels != 2)).mean() * 3 / 7
    assert panel.lines[0].get_ydata() == pytest.approx(expected)
    for wrong in ([0.0], [1.0], []):
        with pytest.raises(ValueError, match=r"must be in \(0, 1\)"):
            kc.plots.net_benefit(labels, p, class_id=2, thresholds=wrong)
    for wrong in ("half", {}, 1j):
        with pytest.raises(ValueError, match="`thresholds` must be real"):
            kc.plots.net_benefit(labels, p, class_id=2, thresholds=wrong)


def test_points_of_accuracy_and_ece():
    labels, p = sample()
    better = 0.5 * p + 0.5 * np.eye(3)[labels]
    models = {"p": p, "sharp": sharper(p, 4), "better": better}
    figure = kc.plots.accuracy_vs_ece(labels, models)
    (panel,) = figure.axes
    found = {}
    for line in panel.lines:
        name, _, numbers = line.get_label().partition(": ")
        if name in models:
            found[name] = [x[0] for x in line.get_data()], numbers
    for name, q in models.items():
        errors = kc.metrics.calibration_errors(labels, q, floor=True)
        ece = errors["expected_calibration_error"]
        floor = errors["expected_calibration_error_floor"]
        point, numbers = found[name]
        assert point == pytest.approx([errors["accuracy"], ece])
        assert numbers == f"ECE {ece:.4f} (floor {floor:.4f})"
    # Equal predictions, larger error: not on the front.
    front = np.transpose(panel.lines[0].get_data())
    assert panel.lines[0].get_label() == "Pareto front"
    np.testing.assert_allclose(front[0], found["p"][0])
    np.testing.assert_allclose(front[-1], found["better"][0])
    assert len(front) == 2


def test_history_of_a_fit_and_of_a_dict():
    logs = {
        "loss": [1.0, 0.5, 0.4],
        "val_expected_calibration_error": [0.1, 0.2, 0.15],
        "val_temperature": [0.9, 1.5, 1.1],
    }
    history = keras.callbacks.History()
    history.history = logs
    for given in (logs, history):
        above, below = kc.plots.calibration_history(given).axes
        (line,) = above.lines
        np.testing.assert_allclose(
            line.get_data(), [[1, 2, 3], [0.1, 0.2, 0.15]]
        )
        one, temperature = below.lines
        assert one.get_ydata() == [1, 1]
        np.testing.assert_allclose(temperature.get_ydata(), [0.9, 1.5, 1.1])
    del logs["val_temperature"]
    figure = kc.plots.calibration_history(logs, keys=["loss"])
    assert len(figure.axes) == 1
    assert figure.axes[0].lines[0].get_label() == "loss"


@pytest.mark.parametrize(
    ("keys", "unit"),
    [
        (["val_smooth_calibration_error"], "calibration error"),
        (["val_calibration_loss", "val_refinement_loss"], "loss (nats)"),
        (["val_negative_log_likelihood"], "loss (nats)"),
        (["val_calibration_loss", "val_smooth_calibration_error"], "value"),
    ],
)
def test_the_axis_of_a_history_says_what_it_shows(keys, unit):
    logs = {key: [0.2, 0.1] for key in keys}
    (panel,) = kc.plots.calibration_history(logs, keys=keys).axes
    assert panel.get_ylabel() == unit


def test_axes_of_the_caller_stay_where_they_are():
    logs = {"loss": [1.0, 0.5]}
    _, axes = pyplot.subplots(2)
    figure = kc.plots.calibration_history(logs, keys=["loss"], axes=axes)
    assert figure.axes == [*axes]
    assert len(axes[0].lines) == 1 and not axes[1].has_data()
    _, panel = pyplot.subplots()
    kc.plots.confidence_histogram(*sample(), axes=panel)
    assert panel.get_title() == ""
    labels, p = sample()
    kc.plots.confidence_histogram(labels, p, axes=panel, title="above")
    assert panel.get_title() == "above"
    kc.plots.confidence_histogram(labels, {"one": p}, axes=panel, title="above")
    assert panel.get_title() == "above\none"


def test_drawing_without_matplotlib_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match="pip install matplotlib"):
        kc.plots.confidence_histogram(*sample())


def test_a_background_that_is_nowhere_is_light():
    with pyplot.rc_context({"figure.facecolor": "none"}):
        figure, panel = pyplot.subplots()
        panel.set_facecolor("none")
        assert not _style.is_dark(panel)
        figure.set_facecolor("black")
        assert _style.is_dark(panel)


def test_history_of_every_other_epoch():
    logs = {
        "loss": [5.0, 4, 3, 2, 1],
        "val_smooth_calibration_error": [0.3, 0.2, 0.1],
    }
    (line,) = kc.plots.calibration_history(logs, every=2).axes[0].lines
    np.testing.assert_allclose(line.get_xdata(), [2, 4, 5])
    # Another callback ended the training at an epoch that is not measured.
    logs["val_smooth_calibration_error"].pop()
    (line,) = kc.plots.calibration_history(logs, every=2).axes[0].lines
    np.testing.assert_allclose(line.get_xdata(), [2, 4])
    logs["val_smooth_calibration_error"].append(0.1)
    with pytest.raises(ValueError, match="3 values for 5 epochs"):
        kc.plots.calibration_history(logs)
    with pytest.raises(ValueError, match=r"dict of histories. Rec.*'a', 'b'"):
        kc.plots.calibration_history({"a": keras.callbacks.History(), "b": {}})
    with pytest.raises(ValueError, match=r"No key .* Pass `keys=`"):
        kc.plots.calibration_history({"loss": [1.0]})
    for keys in (["other"], []):
        with pytest.raises(ValueError, match="`keys` must be one to 6 keys"):
            kc.plots.calibration_history(logs, keys=keys)


@pytest.mark.parametrize("initial", [0, 5])
def test_epochs_of_a_fit_that_goes_on_are_its_own(initial):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(32, 4)).astype("float32"), np.arange(32) % 3
    model = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(3, activation="softmax")]
    )
    model.compile("adam", "sparse_categorical_crossentropy")
    every_other = {"every": 2, "batch_size": 32}
    history = model.fit(
        x,
        y,
        initial_epoch=initial,
        epochs=initial + 3,
        callbacks=[
            kc.callbacks.CalibrationMonitor(
                (x, y), metrics=["expected_calibration_error"], **every_other
            ),
            kc.callbacks.TemperatureTracker((x, y), **every_other),
        ],
        verbose=0,
    )
    # The last epoch is measured, too.
    measured = {0: [2, 3], 5: [6, 8]}[initial]
    above, below = kc.plots.calibration_history(history, every=2).axes
    for line in (above.lines[0], below.lines[-1]):
        assert line.get_xdata().tolist() == measured
    for given, first in ((history, initial + 1), (history.history, 1)):
        above = kc.plots.calibration_history(
            given, keys=["loss"], every=2
        ).axes[0]
        epochs = above.lines[0].get_xdata().tolist()
        assert epochs == [first, first + 1, first + 2]
    # Of two calls of `fit` one history has the epochs of the last.
    history.history["loss"] *= 2
    above = kc.plots.calibration_history(
        {"loss": history.history["loss"]}, keys=["loss"]
    ).axes[0]
    expected = above.lines[0].get_xdata().tolist()
    history.history = {"loss": history.history["loss"]}
    above = kc.plots.calibration_history(history, keys=["loss"]).axes[0]
    assert above.lines[0].get_xdata().tolist() == expected == [*range(1, 7)]


def test_maps_of_an_image():
    # One void pixel; the last is wrong with a confidence of 0.9.
    labels = np.array([[0, 1], [255, 0]])
    p = np.array([[[0.7, 0.3], [0.2, 0.8]], [[0.5, 0.5], [0.1, 0.9]]])
    several = np.array([[0, 1], [1, 0]])
    rows = np.eye(2)[several]
    void = kc.plots.confidence_map(rows, p, ignore_class=1).axes[0].images[0]
    assert void.get_array().mask.tolist() == [[0, 1], [1, 0]]
    for scores, axis in ((p, -1), (np.moveaxis(p, -1, 0), 0)):
        figure = kc.plots.confidence_map(
            labels,
            scores,
            image=np.zeros((2, 2, 3)),
            ignore_class=255,
            axis=axis,
        )
        panels = {x.get_title(): x for x in figure.axes if x.get_title()}
        assert list(panels) == ["image", "labels", "confidence", "error"]
        drawn = {
            name: panel.images[0].get_array() for name, panel in panels.items()
        }
        np.testing.assert_allclose(
            drawn["confidence"].filled(-1), [[0.7, 0.8], [-1, 0.9]]
        )
        np.testing.assert_allclose(
            drawn["error"].filled(-1), [[0.3, 0.2], [-1, 0.9]]
        )
        assert drawn["labels"].mask.tolist() == [[0, 0], [1, 0]]
    # A column of a sigmoid unit, with labels of either shape.
    ids = np.array([[1, 255], [0, 1]])
    for given in (ids, ids[..., None]):
        figure = kc.plots.confidence_map(given, p[..., 1:], ignore_class=255)
        drawn = figure.axes[0].images[0].get_array()
        assert drawn.filled(-1).tolist() == [[1, -1], [0, 1]]
    figure = kc.plots.confidence_map(labels != 0, p[..., 1:])
    assert figure.axes[1].images[0].get_array()[0, 0] == pytest.approx(0.7)
    with pytest.raises(ValueError, match="must be of one image"):
        kc.plots.confidence_map(labels, p[None])
    with pytest.raises(ValueError, match="An array, or a list that is one"):
        kc.plots.confidence_map(labels, [[[0.5], [0.2, 0.8]]])
    _, axes = pyplot.subplots()
    with pytest.raises(ValueError, match="has 3 axes"):
        kc.plots.confidence_map(labels, p, ignore_class=255, axes=axes)


@pytest.mark.parametrize(
    "image",
    [0, True, "photo.png", [], {}, 1j, np.zeros(3), np.zeros((2, 2, 2))],
)
def test_what_is_no_image_is_refused(image):
    p = np.full((4, 5, 2), 0.5)
    with pytest.raises(ValueError, match="`image` must be"):
        kc.plots.confidence_map(np.zeros((4, 5), int), p, image=image)
    # One of another resolution is drawn.
    figure = kc.plots.confidence_map(
        np.zeros((4, 5), int), p, image=np.zeros((8, 10, 1), "uint8")
    )
    assert figure.axes[0].images[0].get_array().shape == (8, 10)


def test_profile_of_cross_entropy():
    # -log p, with the gradient p - 1; probabilities or logits.
    for loss in (
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        kc.losses.FocalLoss(gamma=0.0),
    ):
        above, below = kc.plots.loss_profile(loss, num_classes=4).axes
        p, values = above.lines[0].get_data()
        np.testing.assert_allclose(values, -np.log(p), rtol=1e-4, atol=1e-5)
        p, gradient = below.lines[0].get_data()
        np.testing.assert_allclose(
            gradient[1:-1], p[1:-1] - 1, rtol=1e-3, atol=1e-3
        )


def test_gradients_of_a_profile_are_those_of_training():
    stops = kc.losses.ACLS(
        margin=2.0, positive_weight=1.0, negative_weight=1.0, from_logits=True
    )
    z, _, values, found = profile(stops, 3)
    # The weight of the squares is held constant: half of the curve's slope.
    primary = profile(kc.losses.FocalLoss(gamma=0.0, from_logits=True), 3)
    whole = np.gradient(values - primary[2], z)[-20:-1]
    penalty = found[-20:-1] - np.gradient(primary[2], z)[-20:-1]
    np.testing.assert_allclose(penalty, whole / 2, rtol=0.02)
    # Where a loss jumps there is no slope, and training sees none.
    jumps = kc.losses.AvUC(from_logits=True)
    _, _, values, found = profile(jumps, 3)
    assert np.abs(np.diff(values)).max() > 0.1
    assert np.abs(found).max() < 5


def test_a_profile_of_a_loss_without_gradient():
    class Rounded(keras.losses.Loss):
        def call(self, y_true, y_pred):
            return keras.ops.cast(y_pred[:, 0] > 0.5, "float32")

    z, _, values, found = profile(Rounded(), 3)
    assert set(values) == {0.0, 1.0}
    np.testing.assert_array_equal(found, np.zeros(len(z)))


def test_profile_of_a_loss_of_the_batch_is_of_one_sample():
    loss = kc.losses.MDCA(primary=None, from_logits=True)
    z, p, values, found = profile(loss, 3)
    # One sample: 1/3 sum_k |p_k - q_k| = 2 (1 - p) / 3.
    np.testing.assert_allclose(values, 2 * (1 - p) / 3, atol=1e-5)
    expected = -2 / 3 * p * (1 - p)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert len(z) < 200
    focal = kc.losses.FocalLoss(from_logits=True)
    assert len(profile(focal, 3)[0]) == 401

    focal = kc.losses.FocalLoss()

    class Total(keras.losses.Loss):
        """One number for all rows."""

        def call(self, y_true, y_pred):
            return keras.ops.mean(focal.call(y_true, y_pred))

    z, _, values, _ = profile(Total(), 3)
    step = 400 // (len(z) - 1)
    np.testing.assert_allclose(values, profile(focal, 3)[2][::step], rtol=1e-5)


@pytest.mark.parametrize("name", ["ACLS", "MMCE", "CPC", "BrierLoss", "AvUC"])
def test_profiles_of_other_losses(name):
    loss = getattr(kc.losses, name, None)
    if loss is None:
        pytest.skip(f"no `{name}`")
    z, p, values, _ = profile(loss(from_logits=True), 5)
    assert np.isfinite(values).all() and len(z) == len(p) == len(values)
    # Each point is the loss of one sample.
    logits = np.zeros((1, 5), "float32")
    logits[0, 0] = z[7]
    alone = float(loss(from_logits=True)(np.zeros(1, "int32"), logits))
    assert values[7] == pytest.approx(alone, rel=1e-4, abs=1e-6)


def test_too_many_losses():
    loss = kc.losses.FocalLoss(from_logits=True)
    for number in (0, 7):
        with pytest.raises(ValueError, match="one to 6 losses"):
            kc.plots.loss_profile({str(n): loss for n in range(number)})
    assert _of_rows(loss, np.zeros((9, 3), "float32")).shape == (9,)


def everything(**options):
    """A small figure of each kind, by name."""
    labels, p = sample(60)
    models = {"a": p, "b": sharper(p, 2)}
    logs = {"val_expected_calibration_error": [0.1, 0.2]}
    plots = kc.plots
    return {
        "accuracy_vs_ece": plots.accuracy_vs_ece(labels, models, **options),
        "calibration_history": plots.calibration_history(logs, **options),
        "classwise_reliability": plots.classwise_reliability(
            labels, models, classes=[1], band=None, **options
        ),
        "confidence_histogram": plots.confidence_histogram(
            labels, p, **options
        ),
        "confidence_map": plots.confidence_map(
            labels.reshape(6, 10), p.reshape(6, 10, 3), **options
        )
        if "axes" not in options
        else None,
        "loss_profile": plots.loss_profile(kc.losses.FocalLoss(), **options),
        "net_benefit": plots.net_benefit(labels, models, class_id=0, **options),
        "reliability_diagram": plots.reliability_diagram(
            labels, models, **options
        ),
        "risk_coverage": plots.risk_coverage(labels, models, **options),
    }


def test_every_figure_takes_one_axes_and_a_title():
    figure, axes = pyplot.subplots()
    found = everything(axes=axes, title="the title")
    assert set(found) >= set(kc.plots.__all__) - {"shift_curves"}
    assert {each for each in found.values() if each} == {figure}
    assert figure.axes == [axes]


@pytest.mark.parametrize("style", ["default", "dark_background"])
def test_titles_are_on_the_figure_and_lines_stand_out(style):
    with pyplot.style.context(style):
        for name, figure in everything(title="many words " * 12).items():
            figure.canvas.draw()
            width, height = figure.canvas.get_width_height()
            titles = [panel.title for panel in figure.axes]
            if figure._suptitle is not None:
                titles.append(figure._suptitle)
            for title in titles:
                if title.get_text():
                    box = title.get_window_extent()
                    assert box.y1 <= height + 1 and box.x0 >= -1, name
                    assert box.x1 <= width + 1, name
            for panel in figure.axes:
                back = luminance(_style.paper(panel))
                for line in panel.lines:
                    away = abs(luminance(line.get_color()) - back)
                    assert away > 0.15, (name, line.get_label())


def luminance(color):
    return colors.to_rgb(color) @ np.array([0.21, 0.72, 0.07])


def test_the_colors_can_be_told_apart_without_color():
    # Where two are alike in gray, line styles and markers are not.
    assert len(set(_style.LINES)) == len(set(_style.MARKERS)) == _style.MOST


def test_names_that_begin_with_an_underscore_are_in_the_legend():
    # Matplotlib leaves labels like this out.
    labels, p = sample()
    models = {"raw": p, "_sharp": sharper(p, 2)}
    curve = [("clean", 0, 0.02), ("fog", 1, 0.03)]
    rows = [
        {"model": model, "corruption": c, "severity": s, "ece": error}
        for model in models
        for c, s, error in curve
    ]
    figures = {
        "reliability": kc.plots.reliability_diagram(labels, models),
        "risk": kc.plots.risk_coverage(labels, models),
        "accuracy": kc.plots.accuracy_vs_ece(labels, models),
        "history": kc.plots.calibration_history(
            {key: [0.1] for key in models}, keys=list(models)
        ),
        "losses": kc.plots.loss_profile(
            dict.fromkeys(models, kc.losses.FocalLoss(from_logits=True))
        ),
        "shift": kc.plots.shift_curves({"rows": rows}),
    }
    for name, figure in figures.items():
        legends = [axes.get_legend() for axes in figure.axes] + figure.legends
        shown = "\n".join(
            text.get_text()
            for legend in legends
            if legend
            for text in legend.get_texts()
        )
        assert "raw" in shown and "_sharp" in shown, name


@pytest.mark.parametrize("names", [(), ("a", "b")])
@pytest.mark.parametrize(
    ("draw", "options"),
    [
        (kc.plots.reliability_diagram, {"kind": "corp"}),
        (kc.plots.reliability_diagram, {"kind": "smooth"}),
        (kc.plots.risk_coverage, {}),
        (kc.plots.net_benefit, {"class_id": 0, "thresholds": [0.2]}),
    ],
)
def test_a_curve_of_one_point_is_a_dot(draw, options, names):
    # No line shows it, nor a marker at parts of the length of the line.
    labels = np.arange(60) % 3
    constant = np.tile([0.5, 0.3, 0.2], (60, 1))
    p = np.random.default_rng(0).dirichlet(np.ones(3), 60)
    given = dict(zip(names, (constant, p), strict=True)) if names else constant
    figure = draw(labels, given, **options)
    line = next(
        each
        for each in figure.axes[0].lines
        if not (np.ptp(each.get_xdata()) or np.ptp(each.get_ydata()))
    )
    assert line.get_marker() == "o" and line.get_markevery() is None


def test_a_history_shows_what_is_below_zero():
    logs = {"val_confidence_gap": [-0.08, -0.03, 0.01, 0.04]}
    keys = ["val_confidence_gap"]
    above = kc.plots.calibration_history(logs, keys=keys).axes[0]
    assert above.get_ylim()[0] < -0.08
    logs = {"val_confidence_gap": [0.08, 0.03]}
    above = kc.plots.calibration_history(logs, keys=keys).axes[0]
    assert above.get_ylim()[0] == 0


def test_figures_are_drawn_into_a_part_of_another():
    title = "many words " * 12
    expected = everything(title=title)
    for name in expected:
        figure = pyplot.figure(figsize=(10, 5), layout="constrained")
        left, _ = figure.subfigures(1, 2)
        # A map has color bars, too.
        panels = {"confidence_map": 3}.get(name, len(expected[name].axes))
        axes = left.subplots(panels, 1)
        labels, p = sample(60)
        models = {"a": p, "b": sharper(p, 2)}
        draw = getattr(kc.plots, name)
        arguments = {
            "calibration_history": [
                {"val_expected_calibration_error": [0.1, 0.2]}
            ],
            "loss_profile": [kc.losses.FocalLoss()],
            "confidence_histogram": [labels, p],
            "confidence_map": [labels.reshape(6, 10), p.reshape(6, 10, 3)],
        }.get(name, [labels, models])
        options = {"class_id": 0} if name == "net_benefit" else {}
        if name == "classwise_reliability":
            options = {"classes": [1]}
        found = draw(*arguments, title=title, axes=axes, **options)
        assert found is left, name
        figure.canvas.draw()


def test_dollars_in_names_of_classes_are_dollars():
    labels, p = sample(60)
    names = ["<$25K", "$25K-$50K", ">$50K"]
    figure = kc.plots.classwise_reliability(labels, p, class_names=names)
    titles = [panel.title for panel in figure.axes[:3]]
    for text, name in zip(titles, names, strict=True):
        clean, is_math = text._preprocess_math(text.get_text())
        assert clean == name and not is_math
    figure.canvas.draw()
