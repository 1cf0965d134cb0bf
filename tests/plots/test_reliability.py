import numpy as np
import pytest
from matplotlib import pyplot

import keras_calib as kc


@pytest.fixture(autouse=True)
def close_figures():
    yield
    pyplot.close("all")


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
    text = above.texts[0].get_text()
    assert "ECE 0.1000" in text
    assert "N 4" in text
    shares = [bar.get_height() for bar in below.patches]
    assert shares == pytest.approx([0] * 6 + [0.5, 0, 0, 0.5])
    figure.savefig(tmp_path / "reliability.png")
    assert (tmp_path / "reliability.png").stat().st_size > 1000


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
    assert "N 2" in axes[0].texts[0].get_text()


def test_nothing_to_draw():
    with pytest.raises(ValueError, match="nothing to draw"):
        kc.plots.reliability_diagram([0], [[0.9, 0.1]], sample_weight=[0.0])


def test_one_axes_has_the_diagram_alone():
    _, axes = pyplot.subplots()
    figure = kc.plots.reliability_diagram([0], [[0.9, 0.1]], axes=axes)
    assert figure.axes == [axes]
    assert "ECE 0.1000" in axes.texts[0].get_text()
    _, axes = pyplot.subplots(3)
    with pytest.raises(ValueError, match="one or two axes"):
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
        return [bar.get_height() for bar in bars], above.texts[0].get_text()

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
    assert f"ECE {error:.4f}" in text.axes[0].texts[0].get_text()
    p, hits = rng.uniform(size=20), rng.integers(0, 2, 20)
    texts = {
        kc.plots.reliability_diagram(hits, q).axes[0].texts[0].get_text()
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
    assert "floor 0.03" in figure.axes[0].texts[0].get_text()
    figure = kc.plots.reliability_diagram(np.zeros(100), p, band=None)
    assert not figure.axes[0].collections
    with pytest.raises(ValueError, match="`band` must be one of"):
        kc.plots.reliability_diagram(np.zeros(100), p, band="all")
