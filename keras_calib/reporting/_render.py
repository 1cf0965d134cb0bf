"""A report as Markdown and as one HTML file."""

import importlib.util
import io
import pathlib
import re

from keras_calib._documents import escape
from keras_calib._documents import markdown_table
from keras_calib.reporting._clinical import HEADS as PANEL_HEADS
from keras_calib.reporting._clinical import panel_rows
from keras_calib.reporting._definitions import DEFINITIONS
from keras_calib.reporting._definitions import HEADLINE
from keras_calib.version import __version__

TEMPLATE = pathlib.Path(__file__).with_name("report.html")
BIAS = (
    "Those of errors take off the upward bias of few samples, and can lie "
    "below the value."
)
# Rows of the tables of classes and groups.
MOST_ROWS = 10


def title_of(name):
    """`expected_calibration_error` -> `Expected calibration error`."""
    words = name.replace("_", " ")
    words = words[0].upper() + words[1:]
    for short in ("Auroc", " l1", " l2", "Ks "):
        words = words.replace(short, short.upper())
    return words


def number(value):
    return "" if value is None or value != value else f"{value:.4f}"


def interval(row):
    if row["low"] is None:
        return ""
    return f"{row['low']:.4f} to {row['high']:.4f}"


def words_of_intervals(measured):
    """Where the intervals come from, and why some are below their values."""
    words = f"Intervals (95 %): {measured.intervals}."
    return words + why_below(measured.metrics.values())


def why_below(rows):
    """A sentence on intervals below their values, if some are."""
    shown = [row for row in rows if row["high"] is not None]
    below = any(row["high"] < row["value"] for row in shown)
    return f" {BIAS}" if below else ""


def summary_rows(report):
    """The table on top: a row for each model."""
    return [
        {
            "name": each.name,
            "values": [each.metrics[key]["value"] for key in HEADLINE],
            "floor": each.metrics["expected_calibration_error"]["floor"],
            "temperature": each.temperature["value"],
        }
        for each in report.models
    ]


def metric_rows(measured):
    """The table of all metrics of a model."""
    return [
        {
            "title": title_of(key),
            "definition": definition,
            "value": number(row["value"]),
            "interval": interval(row),
            "floor": number(row["floor"]),
        }
        for key, definition in DEFINITIONS.items()
        if (row := measured.metrics.get(key)) is not None
    ]


def to_markdown(report):
    """Verdicts and tables."""
    lines = ["# Calibration report", ""]
    first = report.models[0]
    lines += [f"{first.num_rows:,} samples, {first.num_classes} classes.", ""]
    lines += [f"- {escape(sentence)}" for sentence in report.comparison]
    lines += [""] if report.comparison else []
    heads = ["model", *HEADLINE.values(), "floor of ECE", "T"]
    rows = [
        [
            row["name"],
            *map(number, row["values"]),
            number(row["floor"]),
            f"{row['temperature']:.2f}",
        ]
        for row in summary_rows(report)
    ]
    lines += markdown_table(heads, rows)
    for each in report.models:
        lines += ["", f"## {escape(each.name)}", ""]
        lines += [f"- {escape(text)}" for text in report.verdicts[each.name]]
        lines += ["", words_of_intervals(each), ""]
        lines += markdown_table(
            ["metric", "value", "95 % interval", "noise floor", "definition"],
            [[row[key] for key in METRIC_KEYS] for row in metric_rows(each)],
        )
        lines += ["", "Predicted classes, the farthest off first:", ""]
        lines += markdown_table(CLASS_HEADS, class_rows(each))
        if each.groups:
            lines += ["", "Groups, the worst first:", ""]
            lines += markdown_table(GROUP_HEADS, group_rows(each))
        if each.clinical_panel:
            lines += ["", "Clinical panel, of the probability of class 1:", ""]
            panel = each.clinical_panel
            lines += markdown_table(PANEL_HEADS, panel_rows(panel))
            lines += [""] if panel["notes"] else []
            lines += [f"- {note}" for note in panel["notes"]]
    return "\n".join(lines) + "\n"


METRIC_KEYS = ("title", "value", "interval", "floor", "definition")
CLASS_HEADS = ("class", "predicted", "confidence", "accuracy", "gap")
GROUP_HEADS = ("group", "samples", "ECE", "floor", "accuracy", "confidence")


def class_rows(measured):
    return [
        [
            row["name"],
            f"{row['num_predicted']:,}",
            f"{row['confidence']:.3f}",
            f"{row['accuracy']:.3f}",
            f"{row['gap']:+.3f} ± {row['standard_error']:.3f}",
        ]
        for row in measured.classes[:MOST_ROWS]
    ]


def group_rows(measured):
    key = "expected_calibration_error"
    return [
        [
            row["group"],
            f"{row['num_rows']:,}",
            number(row[key]),
            number(row[f"{key}_floor"]),
            f"{row['accuracy']:.3f}",
            f"{row['mean_confidence']:.3f}",
        ]
        for row in measured.groups[:MOST_ROWS]
    ]


def to_html(report, *, page=True):
    """One file with tables and diagrams, which needs no network.

    Args:
        report: `Report`.
        page: whether a whole page, or a part of one, for notebooks.

    Raises:
        ImportError: if jinja2 or matplotlib is missing.
    """
    require_packages("An HTML report", "jinja2", "matplotlib")
    import jinja2

    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    sections = [
        {
            "name": each.name,
            "verdict": report.verdicts[each.name],
            "intervals": words_of_intervals(each),
            "metrics": metric_rows(each),
            "classes": class_rows(each),
            "groups": group_rows(each) if each.groups else [],
            "panel": (
                panel_rows(each.clinical_panel) if each.clinical_panel else []
            ),
            "panel_notes": (each.clinical_panel or {}).get("notes", []),
            # Written by matplotlib, which escapes its texts.
            "svg": jinja2.utils.markupsafe.Markup(
                _diagram(report.diagrams[each.name])
            ),
        }
        for each in report.models
    ]
    return template.render(
        page=page,
        version=__version__,
        num_rows=report.models[0].num_rows,
        num_classes=report.models[0].num_classes,
        comparison=report.comparison,
        headline=list(HEADLINE.values()),
        summary=[
            {
                **row,
                "values": [number(value) for value in row["values"]],
                "floor": number(row["floor"]),
                "temperature": f"{row['temperature']:.2f}",
            }
            for row in summary_rows(report)
        ],
        sections=sections,
        class_heads=CLASS_HEADS,
        group_heads=GROUP_HEADS,
        panel_heads=PANEL_HEADS,
    )


def _diagram(data):
    """The reliability diagram of `Predictions` as an SVG element."""
    file = io.StringIO()
    write_diagrams(file, {None: data}, "svg")
    svg = file.getvalue()
    svg = svg[svg.index("<svg") :]
    # Scaled to the width of the page.
    return re.sub(r'^<svg height="[^"]+"', "<svg", svg).replace(
        "<svg ", '<svg role="img" aria-label="Reliability diagram" ', 1
    )


def write_diagrams(file, diagrams, kind):
    """Write reliability diagrams, side by side, to a file.

    Args:
        file: open, of text for `"svg"`, of bytes for `"png"`.
        diagrams: dict from the title, or `None`, to `Predictions`.
        kind: `"svg"` or `"png"`.
    """
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    from keras_calib.plots._reliability import draw_models

    canvas = FigureCanvasSVG if kind == "svg" else FigureCanvasAgg
    # The same report is the same file; figures have no date.
    metadata = {"Date": None} if kind == "svg" else {"Software": None}
    with matplotlib.rc_context({"svg.hashsalt": "keras_calib"}):
        size = (4.8 * len(diagrams), 6.0)
        figure = Figure(figsize=size, layout="constrained")
        canvas(figure)
        axes = figure.subplots(
            2, len(diagrams), sharex=True, height_ratios=(3, 1), squeeze=False
        )
        for title, column in zip(diagrams, axes.T, strict=True):
            read = {None: diagrams[title]}
            draw_models(read, "bars", "simultaneous", 15, None, title, column)
        figure.savefig(file, format=kind, metadata=metadata)


def require_packages(what, *packages):
    """Raise `ImportError` unless packages of the extra are installed."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise ImportError(
                f"{what} needs {package}: `pip install {package}`."
            )
