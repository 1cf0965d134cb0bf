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
