import numpy as np
import pytest
from matplotlib import pyplot
from matplotlib.colors import same_color

import keras_calib as kc
from keras_calib.evaluation import smooth_interval
from keras_calib.evaluation.corp import corp_cells
from keras_calib.evaluation.smooth_curve import SmoothCurve
from keras_calib.inputs.predictions import read_predictions
from keras_calib.plots import _style


@pytest.fixture(autouse=True)
def close_figures():
    yield
    pyplot.close("all")


def text_of(axes):
    """The numbers: above the axes, or in the legend."""
    if axes.texts:
        return axes.texts[0].get_text()
    return axes.get_legend().get_title().get_text()


def test_bars_and_text_are_the_numbers(tmp_path):
    # (0.6, 0.7]  confidence 0.65, accuracy 1/2
    # (0.9, 1.0]  confidence 0.95, accuracy 1
    first = np.array([0.65, 0.65, 0.95, 0.95])
    probabilities = np.stack([first, 1 - first], axis=1)
    figure = kc.plots.reliability_diagram(
        [0, 1, 0, 0], probabilities, num_bins=10, title="two bins"
    )
    above, below = figure.axes
    heights = [bar.get_height() for bar in above.patches]
    assert heights == pytest.approx([0.5, 1.0, 0.15, -0.05])
    assert [bar.get_x() for bar in above.patches[:2]] == pytest.approx(
        [0.6, 0.9]
    )
    assert above.get_title() == "two bins"
    text = text_of(above)
    assert "ECE 0.1000" in text
    assert "N 4" in text
    shares = [bar.get_height() for bar in below.patches]
    assert shares == pytest.approx([0] * 6 + [0.5, 0, 0, 0.5])
    figure.savefig(tmp_path / "reliability.png")
    assert (tmp_path / "reliability.png").stat().st_size > 1000


def test_bars_show_the_accuracy_where_the_gap_lies_over_them():
    # Overconfident in (0.6, 0.7], underconfident in (0.9, 1.0].
    first = np.array([0.65, 0.65, 0.95, 0.95])
    figure = kc.plots.reliability_diagram(
        [0, 1, 0, 0], np.stack([first, 1 - first], axis=1), num_bins=10
    )
    accuracy, gaps = figure.axes[0].containers[:2]
    assert [bar.get_height() for bar in accuracy] == [0.5, 1.0]
    assert all(same_color(b.get_facecolor(), _style.FIRST) for b in accuracy)
    over, under = gaps
    assert over.get_facecolor()[3] > 0 and under.get_facecolor()[3] == 0
    # The hatches have the color of the edge.
    assert same_color(under.get_edgecolor(), _style.COLORS[3])


def test_width_of_the_bars_is_the_width_of_the_bins():
    figure = kc.plots.reliability_diagram([0], [[0.9, 0.1]], num_bins=4)
    assert figure.axes[0].patches[0].get_width() == pytest.approx(0.25)


def test_logits_ignored_samples_and_given_axes():
    _, axes = pyplot.subplots(2)
    figure = kc.plots.reliability_diagram(
        [0, 1, 255],
        [[2.0, 0.0], [0.0, 2.0], [9.0, 0.0]],
        from_logits=True,
        ignore_class=255,
        axes=axes,
    )
    assert figure is axes[0].figure
    assert "N 2" in text_of(axes[0])


def test_nothing_to_draw():
    with pytest.raises(ValueError, match="nothing to draw"):
        kc.plots.reliability_diagram([0], [[0.9, 0.1]], sample_weight=[0.0])


def test_one_axes_has_the_diagram_alone():
    _, axes = pyplot.subplots()
    figure = kc.plots.reliability_diagram([0], [[0.9, 0.1]], axes=axes)
    assert figure.axes == [axes]
    assert "ECE 0.1000" in text_of(axes)
    _, axes = pyplot.subplots(3)
    with pytest.raises(ValueError, match="has 1 to 2 axes"):
        kc.plots.reliability_diagram([0], [[0.9, 0.1]], axes=axes)


def test_weights_are_relative_and_what_does_not_count_may_be_anything():
    rng = np.random.default_rng(0)
    p = rng.dirichlet([1, 1, 1], size=60).astype("float32")
    labels = rng.integers(0, 3, 60)
    weight = rng.uniform(0.5, 2, 60)

    def drawn(labels, p, weight):
        above, below = kc.plots.reliability_diagram(
            labels, p, weight, ignore_class=255
        ).axes
        bars = above.patches + below.patches
        return [bar.get_height() for bar in bars], text_of(above)

    heights, text = drawn(labels, p, weight)
    again, same = drawn(labels, p, 1e-3 * weight[:, None])
    assert again == pytest.approx(heights, rel=1e-9) and same == text
    more = np.append(labels, [77, 255, 0])
    others = np.concatenate([p, [[9, 9, 9], [0, 0, 0], [np.nan] * 3]])
    weights = np.append(weight, [0.0, 1.0, 0.0])
    again, same = drawn(more, others, weights)
    assert again == pytest.approx(heights, rel=1e-9) and same == text


def test_class_axis_and_one_sigmoid_unit():
    rng = np.random.default_rng(0)
    z = rng.normal(size=(4, 3, 5))
    labels = rng.integers(0, 3, (4, 5))
    text = kc.plots.reliability_diagram(labels, z, from_logits=True, axis=1)
    expected = kc.metrics.calibration_errors(
        labels, z, from_logits=True, axis=1
    )
    error = expected["expected_calibration_error"]
    assert f"ECE {error:.4f}" in text_of(text.axes[0])
    p, hits = rng.uniform(size=20), rng.integers(0, 2, 20)
    texts = {
        text_of(kc.plots.reliability_diagram(hits, q).axes[0])
        for q in (p, p[:, None], np.stack([1 - p, p], axis=-1))
    }
    assert len(texts) == 1


def test_bad_arguments():
    with pytest.raises(ValueError, match="`num_bins` must be at least 1"):
        kc.plots.reliability_diagram([0], [[0.9, 0.1]], num_bins=0)
    with pytest.raises(ValueError, match="pass `from_logits=False`"):
        kc.plots.reliability_diagram(
            [0, 0], [[0.9, 0.1], [0.8, 0.2]], from_logits=True
        )


def lines_of(figure):
    (lines,) = figure.axes[0].collections
    return np.array(lines.get_segments())


def test_the_lines_are_the_consistency_bars_and_the_floor_is_named():
    # 100 samples of confidence 0.8: quantiles of Binomial(100, 0.8) at 0.025
    # and 0.975, and sqrt(2 / pi 0.8 0.2 / 100) for the floor.
    p = np.tile([0.8, 0.2], (100, 1))
    for band in ("simultaneous", "pointwise"):
        figure = kc.plots.reliability_diagram(
            np.zeros(100), p, num_bins=4, band=band
        )
        np.testing.assert_allclose(
            lines_of(figure), [[[0.875, 0.72], [0.875, 0.88]]]
        )
        labels = figure.axes[0].get_legend_handles_labels()[1]
        assert any(band in label for label in labels)
    assert "floor 0.03" in text_of(figure.axes[0])
    figure = kc.plots.reliability_diagram(np.zeros(100), p, band=None)
    assert not figure.axes[0].collections
    with pytest.raises(ValueError, match="`band` must be one of"):
        kc.plots.reliability_diagram(np.zeros(100), p, band="all")


def three_models(n=400):
    rng = np.random.default_rng(1)
    p = rng.dirichlet([1, 1, 1], size=n)
    labels = (p.cumsum(1) > rng.random((n, 1))).argmax(1)
    powers = {"flat": 0.5, "right": 1.0, "sharp": 3.0}
    models = {name: p**power for name, power in powers.items()}
    return labels, {k: q / q.sum(1, keepdims=True) for k, q in models.items()}


def lines_by_label(axes):
    return {
        line.get_label().partition(":")[0]: np.stack(line.get_data())
        for line in axes.lines
    }


def test_several_models_are_points_of_their_bins():
    labels, models = three_models()
    figure = kc.plots.reliability_diagram(labels, models, num_bins=10)
    above, below = figure.axes
    found = lines_by_label(above)
    for name, p in models.items():
        confidence = p.max(axis=1)
        correct = p.argmax(axis=1) == labels
        index = np.ceil(confidence * 10).astype(int) - 1
        number = np.bincount(index, minlength=10)
        used = number > 0
        expected = [
            np.bincount(index, values, 10)[used] / number[used]
            for values in (confidence, correct)
        ]
        np.testing.assert_allclose(found[name], expected)
    styles = {
        (line.get_color(), line.get_linestyle(), line.get_marker())
        for line in above.lines
        if line.get_label().partition(":")[0] in models
    }
    assert len(styles) == len(below.patches) == 3
    # Beside the figure, with the numbers of each model.
    (legend,) = figure.legends
    errors = kc.metrics.calibration_errors(labels, models["sharp"], num_bins=10)
    texts = [text.get_text() for text in legend.get_texts()]
    (sharp,) = [text for text in texts if text.startswith("sharp")]
    assert f"ECE {errors['expected_calibration_error']:.4f} (floor" in sharp
    assert f"smooth ECE {errors['smooth_calibration_error']:.4f} [" in sharp
    assert "simultaneous" in legend.get_title().get_text()


def test_without_bands_there_are_points_and_lines_alone():
    labels, models = three_models()
    for kind in ("bars", "smooth"):
        figures = [
            kc.plots.reliability_diagram(labels, models, kind=kind, band=band)
            for band in (None, "pointwise")
        ]
        plain, banded = (figure.axes[0] for figure in figures)
        assert len(plain.lines) + len(plain.collections) < (
            len(banded.lines) + len(banded.collections)
        )
        found, expected = map(lines_by_label, (plain, banded))
        for name in models:
            np.testing.assert_array_equal(found[name], expected[name])
        titles = [f.legends[0].get_title().get_text() for f in figures]
        assert "pointwise" in titles[1] and "pointwise" not in titles[0]


def test_so_many_weighted_rows_have_no_interval(monkeypatch):
    labels, models = three_models()
    monkeypatch.setattr(smooth_interval, "TOO_LARGE", 399)
    weights = np.linspace(0.5, 1.5, 400)
    drawn = [models["flat"], weights]
    text = text_of(kc.plots.reliability_diagram(labels, *drawn).axes[0])
    errors = kc.metrics.calibration_errors(labels, *drawn)
    smooth = f"smooth ECE {errors['smooth_calibration_error']:.4f}"
    assert smooth in text and f"{smooth} [" not in text


def test_more_than_six_models():
    labels, models = three_models(20)
    many = {str(n): models["flat"] for n in range(7)}
    with pytest.raises(ValueError, match="one to 6 models"):
        kc.plots.reliability_diagram(labels, many)
    with pytest.raises(ValueError, match="models=0"):
        kc.plots.reliability_diagram(labels, {})


@pytest.mark.parametrize("band", ["simultaneous", "pointwise"])
def test_corp_curve_and_band_on_the_axes(band):
    # Confidence 0.6, 0.7, 0.8, with accuracy 1/2, 0 and 3/4: the first two
    # violate the order and are pooled, 2 of 5.
    confidence = np.repeat([0.6, 0.7, 0.8], [4, 1, 4])
    p = np.stack([confidence, 1 - confidence], axis=1)
    figure = kc.plots.reliability_diagram(
        [0, 0, 1, 1, 1, 0, 0, 0, 1], p, kind="corp", band=band
    )
    curve = lines_by_label(figure.axes[0])["CORP (isotonic)"]
    np.testing.assert_allclose(
        curve, [[0.6, 0.7, 0.8, 0.8], [0.4, 0.4, 0.75, 0.75]]
    )
    (filled,) = figure.axes[0].collections
    assert band in filled.get_label()
    corners = filled.get_paths()[0].vertices
    assert corners[:, 0].min() == pytest.approx(0.6)
    # Binomial(4, 0.6) has all of its values with 0.95 together.
    assert corners[:, 1].min() == 0 and corners[:, 1].max() == 1
    figure = kc.plots.reliability_diagram([0], [[0.9, 0.1]], kind="corp")
    assert len(figure.axes[0].collections) == 1
    figure = kc.plots.reliability_diagram([0], p[:1], kind="corp", band=None)
    assert not figure.axes[0].collections


def test_smooth_curve_on_the_axes():
    labels, models = three_models()
    events = _style.events_of(read_predictions(labels, models["sharp"]))
    curve = SmoothCurve(corp_cells(events))
    figure = kc.plots.reliability_diagram(
        labels, models["sharp"], kind="smooth"
    )
    drawn = lines_by_label(figure.axes[0])["smooth"]
    np.testing.assert_allclose(drawn, [curve.confidence, curve.value])
    thick, band = figure.axes[0].collections
    density = (curve.density[1:] + curve.density[:-1]) / 2
    np.testing.assert_allclose(thick.get_linewidths(), 1 + 4 * density)
    assert "simultaneous" in band.get_label()


def test_binary_diagram_is_of_class_1():
    # P(y = 1) of 0.2 and 0.9, with frequencies of 1/2 and 1.
    figure = kc.plots.reliability_diagram(
        [0, 1, 1, 1], [0.2, 0.2, 0.9, 0.9], class_id=1, num_bins=10
    )
    above, below = figure.axes
    heights = [bar.get_height() for bar in above.patches]
    assert heights == pytest.approx([0.5, 1.0, -0.3, -0.1])
    assert above.get_ylabel() == "frequency of class 1"
    assert below.get_xlabel() == "probability of class 1"
    assert "ECE 0.2000" in text_of(above)
    with pytest.raises(ValueError, match="one of the 2 classes"):
        kc.plots.reliability_diagram([0], [0.2], class_id=2)


def test_unknown_kind():
    with pytest.raises(ValueError, match="`kind` must be one of"):
        kc.plots.reliability_diagram([0], [0.2], kind="curve")


def test_dark_axes_have_light_lines_whenever_they_are_drawn():
    with pyplot.style.context("dark_background"):
        _, dark = pyplot.subplots()
    _, light = pyplot.subplots()
    for axes, color in ((dark, _style.LIGHT), (light, _style.DARK)):
        kc.plots.reliability_diagram([0], [[0.9, 0.1]], axes=axes)
        assert lines_by_label(axes).keys() >= {"calibrated"}
        assert axes.lines[0].get_color() == color
        words = axes.get_legend().get_texts()[0]
        assert same_color(words.get_color(), color)


def test_long_titles_and_large_text_stay_on_the_figure():
    for size in (7, 24):
        with pyplot.rc_context({"font.size": size}):
            figure = kc.plots.reliability_diagram(
                [0], [[0.9, 0.1]], title="a title of many words " * 6
            )
            figure.canvas.draw()
            box = figure.axes[0].title.get_window_extent()
            width, height = figure.canvas.get_width_height()
            assert box.x0 >= 0 and box.x1 <= width and box.y1 <= height
            left = {round(panel.get_position().x0, 6) for panel in figure.axes}
            assert len(left) == 1


def test_class_panels():
    labels, models = three_models()
    p = models["sharp"]
    figure = kc.plots.classwise_reliability(labels, p, kind="bars", num_bins=5)
    assert len(figure.axes) == 3
    for k, panel in enumerate(figure.axes):
        single = kc.plots.reliability_diagram(
            labels, p, class_id=k, num_bins=5
        ).axes[0]
        assert panel.get_title() == f"class {k}"
        assert [bar.get_height() for bar in panel.patches] == pytest.approx(
            [bar.get_height() for bar in single.patches]
        )
        text = panel.texts[0].get_text()
        assert text and text in text_of(single)
    # Two classes have one panel, as those asked for.
    assert len(kc.plots.classwise_reliability([0, 1], [0.2, 0.7]).axes) == 1
    # Five classes, four of them side by side.
    five = np.full((10, 5), 0.2)
    names = ["", *"abcd"]
    panels = kc.plots.classwise_reliability(
        np.arange(10) % 5, five, class_names=names
    ).axes
    assert [panel.get_title() for panel in panels] == names
    below = "predicted probability"
    assert [panel.get_xlabel() for panel in panels] == ["", *[below] * 4]
    _, axes = pyplot.subplots(1, 2)
    figure = kc.plots.classwise_reliability(
        labels, models, classes=[2, 0], axes=axes, class_names=["a", "b", "c"]
    )
    assert [panel.get_title() for panel in figure.axes] == ["c", "a"]
    assert axes[0].texts[0].get_text().count("floor") == 3
    with pytest.raises(ValueError, match="has 3 axes"):
        kc.plots.classwise_reliability(labels, p, axes=axes)
    with pytest.raises(ValueError, match="one of the 3 classes"):
        kc.plots.classwise_reliability(labels, p, classes=[3])
    for wrong in ([], np.array("x"), np.array([[0]]), 1):
        with pytest.raises(ValueError, match="`classes` must be a list"):
            kc.plots.classwise_reliability(labels, p, classes=wrong)
