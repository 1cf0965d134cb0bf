"""Legends lie inside their figures and hide no curve."""

import numpy as np
import pytest
from matplotlib import pyplot

import keras_calib as kc
from keras_calib.plots import _legend

NAMES = {
    "two": ["before", "after"],
    "six": [f"model number {i}" for i in range(6)],
    "forty": [f"{i} a name of exactly forty characters, ok" for i in range(6)],
    "one word": [f"{i}".rjust(40, "x") for i in range(6)],
    "hopeless": [f"run_{i}/" + "checkpoint_" * 12 + f"{i}" for i in range(6)],
}
# Figures with a panel for each model need so many axes.
ONE_EACH = "confidence_histogram"


@pytest.fixture(autouse=True)
def close_figures():
    yield
    pyplot.close("all")


def draw(function, names, **options):
    """A figure of models, losses or keys with these names."""
    rng = np.random.default_rng(0)
    p = rng.dirichlet([1, 1, 1], size=120)
    labels = (p.cumsum(1) > rng.random((120, 1))).argmax(1)
    models = dict.fromkeys(names, p)
    cells = [("clean", 0, 0.02), ("fog", 1, 0.03), ("snow", 1, 0.05)]
    rows = [
        {"model": name, "corruption": c, "severity": s, "ece": error}
        | {"ece_floor": error / 2}
        for name in names
        for c, s, error in cells
    ]
    loss = kc.losses.FocalLoss(from_logits=True)
    data = {
        "shift_curves": [{"rows": rows}],
        "loss_profile": [dict.fromkeys(names, loss)],
        "calibration_history": [{key: [0.1, 0.2, 0.1] for key in names}],
    }.get(function, [labels, models])
    more = {
        "calibration_history": {"keys": names},
        "net_benefit": {"class_id": 1},
        "reliability_diagram": {"band": None},
        "classwise_reliability": {"band": None},
    }.get(function, {})
    return getattr(kc.plots, function)(*data, **more, **options)


def legends_of(figure):
    found = [axes.get_legend() for axes in figure.axes] + figure.legends
    return [legend for legend in found if legend is not None]


def inside(artist, box):
    found = artist.get_window_extent()
    return (
        box.x0 <= found.x0
        and found.x1 <= box.x1
        and box.y0 <= found.y0
        and found.y1 <= box.y1
    )


OF_SEVERAL = sorted(set(kc.plots.__all__) - {"confidence_map"})


@pytest.mark.one_backend
@pytest.mark.parametrize("names", NAMES.values(), ids=NAMES)
@pytest.mark.parametrize("function", OF_SEVERAL)
def test_legends_and_texts_are_inside_the_figure(function, names):
    figure = draw(function, names)
    figure.draw_without_rendering()
    texts = [text for axes in figure.axes for text in axes.texts]
    for artist in (*legends_of(figure), *texts):
        assert inside(artist, figure.bbox)
    # No panel is squeezed, and none is behind a legend below.
    panels = [axes.get_window_extent() for axes in figure.axes]
    assert min(panel.height for panel in panels) > 60
    assert min(panel.width for panel in panels) > 150
    for legend in figure.legends:
        lowest = min(panel.y0 for panel in panels)
        assert legend.get_window_extent().y1 < lowest
    shown = "".join(
        text.get_text()
        for legend in legends_of(figure)
        for text in legend.get_texts()
    )
    if names != NAMES["hopeless"] and function != ONE_EACH:
        joined = shown.replace("\n", "").replace(" ", "")
        assert all(name.replace(" ", "") in joined for name in names)


@pytest.mark.one_backend
@pytest.mark.parametrize("function", OF_SEVERAL)
def test_legends_are_inside_axes_of_the_caller(function):
    figure, axes = pyplot.subplots()
    names = NAMES["hopeless"]
    more = {"classwise_reliability": {"classes": [1]}}.get(function, {})
    if function == ONE_EACH:
        names = names[:1]
    draw(function, names, axes=axes, **more)
    figure.draw_without_rendering()
    for artist in (*legends_of(figure), *axes.texts):
        assert inside(artist, axes.get_window_extent())


def test_a_file_of_another_resolution_has_its_whole_legend():
    figure = draw("reliability_diagram", NAMES["forty"])
    for dpi in (60, 72, 220):
        figure.set_dpi(dpi)
        figure.draw_without_rendering()
        assert inside(figure.legends[0], figure.bbox)


def test_figures_that_fit_have_the_size_they_ask_for():
    sizes = {
        "accuracy_vs_ece": (5.2, 5.4),
        "calibration_history": (4.8, 3.6),
        "net_benefit": (4.8, 4.0),
        "reliability_diagram": (4.8, 6.4),
        "risk_coverage": (4.8, 4.0),
    }
    for function, size in sizes.items():
        figure = draw(function, ["before", "after"])
        assert tuple(figure.get_size_inches()) == size, function


def test_a_taller_legend_leaves_panels_as_tall():
    heights = [
        draw("reliability_diagram", names).get_figheight()
        for names in (NAMES["two"], NAMES["forty"])
    ]
    assert heights[1] > heights[0] + 0.5


def zigzag():
    """Errors that leave no place in a figure free."""
    names = ("smooth", "expected", "ks")
    return {
        f"val_{name}_calibration_error": np.tile([high, 0.0], 8)
        for name, high in zip(names, (0.1, 0.2, 0.3), strict=True)
    }


def hides_a_curve(legend, axes):
    box = legend.get_window_extent()
    return any(
        line.get_transform()
        .transform_path(line.get_path())
        .intersects_bbox(box, filled=False)
        for line in axes.lines
    )


def test_the_legend_of_a_history_hides_no_curve():
    figure = kc.plots.calibration_history(zigzag())
    assert len(figure.legends) == 1 and figure.get_figheight() > 3.6
    assert figure.axes[0].get_legend() is None
    _, axes = pyplot.subplots()
    figure = kc.plots.calibration_history(zigzag(), axes=axes)
    figure.draw_without_rendering()
    assert not hides_a_curve(axes.get_legend(), axes)
    low, high = axes.get_ylim()
    assert low == 0 and high > 0.35


@pytest.mark.parametrize(
    ("text", "letters", "expected"),
    [
        ("short", 8, "short"),
        ("one\ntwo words", 8, "one\ntwo\nwords"),
        ("0123456789", 8, "01234567\n89"),
        ("0123456789abcdefghij", 8, "012345…f\nghij"),
        (" _hidden from legends", 12, " _hidden\nfrom legends"),
        (
            "a: ECE 0.1 (floor 0.2), smooth ECE 0.3 [0.1, 0.2]",
            26,
            "a: ECE 0.1 (floor 0.2),\nsmooth ECE 0.3 [0.1, 0.2]",
        ),
    ],
)
def test_lines_are_broken_and_long_names_lose_their_middle(
    text, letters, expected
):
    assert _legend.break_lines(text, letters, 2) == expected


def test_both_ends_of_a_long_name_are_left():
    assert _legend.shorten("abcdefghij", 10) == "abcdefghij"
    assert _legend.shorten("abcdefghij", 7) == "abc…hij"
    assert len(_legend.shorten("abcdefghij", 6)) == 6
