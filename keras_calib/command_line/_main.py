"""Arguments, errors and exit status of `keras-calib`."""

import argparse
import contextlib
import functools
import sys
import warnings
from collections.abc import Sequence
from typing import NoReturn

from keras_calib.calibration._methods import LOCAL
from keras_calib.calibration._methods import METHODS
from keras_calib.command_line import _commands
from keras_calib.command_line._errors import in_options
from keras_calib.command_line._errors import one_line
from keras_calib.command_line._errors import print_traceback
from keras_calib.shift import CORRUPTIONS
from keras_calib.shift._corrupt import SEVERITIES
from keras_calib.version import __version__

EPILOG = """\
Files are .npz, .csv or .parquet (which needs pyarrow). They hold `labels` (or
`ground_truth`) and `logits`, `probabilities` or `predictions`, and may hold
`sample_weight` and `groups`; for a model (.keras), inputs `x`. In a table the
scores of a class have a column of their own: `probabilities_0`, `logits_cat`.

  keras-calib evaluate predictions.npz
  keras-calib report a.npz b.npz -o report.html
  keras-calib calibrate predictions.npz -o map.keras
  keras-calib calibrate model.keras data.npz -o calibrated.keras
  keras-calib shift model.keras calibrated.keras images.npz -o shift.png
"""


class _OneLine(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}\n")


def main(*, arguments: Sequence[str] | None = None) -> int:
    """Run the command `keras-calib`.

    Results go to standard output; progress and warnings to standard error.

    Args:
        arguments: without the name of the command; `None` takes those of the
            process.

    Returns:
        The exit status: 0, or 2 for bad input and for errors of a model, with
        one line that says what is wrong. With `--traceback` the place in the
        code stands before it.

    Raises:
        SystemExit: for arguments that are not known (2), `--help` and
            `--version` (0).

    Example:
        >>> import numpy as np
        >>> from keras_calib.command_line import main
        >>> main(arguments=["evaluate", "no_such_file.npz"])
        2
    """
    options = _parser().parse_args(arguments)
    prog = f"keras-calib {options.command}"
    with warnings.catch_warnings():
        warnings.showwarning = functools.partial(_show_warning, vars(options))
        try:
            with contextlib.redirect_stdout(sys.stderr):
                text = options.run(options)
        except (ValueError, OSError, ImportError) as error:
            if options.traceback:
                print_traceback(error)
            line = in_options(one_line(error), vars(options))
            print(f"{prog}: error: {line}", file=sys.stderr)
            return 2
    try:
        print(text, flush=True)
    except BrokenPipeError:
        # The reader, such as `head`, has seen enough.
        sys.stdout = None
    except OSError as error:
        # What is left would be written, and fail again, when Python ends.
        sys.stdout = None
        print(f"{prog}: error: {one_line(error)}", file=sys.stderr)
        return 2
    return 0


def _show_warning(known, message, category, *_):
    text = in_options(str(message), known)
    print(f"{category.__name__}: {text}", file=sys.stderr)


def _parser():
    parser = _OneLine(
        prog="keras-calib",
        description="Measure and mend the calibration of classifiers.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(
        dest="command", required=True, metavar="COMMAND", parser_class=_OneLine
    )
    evaluate = _command(
        commands, "evaluate", "every metric, beside its noise floor"
    )
    _common(evaluate, "FILE", "predictions, or models and their data")
    _ignore_class(evaluate)
    report = _command(
        commands, "report", "models side by side: .html, .md or .json"
    )
    _common(report, "FILE", "predictions, or models and their data")
    _ignore_class(report)
    _output(report, "report.html")
    calibrate = _command(
        commands, "calibrate", "a calibrated model, or a map of predictions"
    )
    _common(calibrate, "FILE", "predictions, or a model and its data")
    _ignore_class(calibrate)
    _output(calibrate, "calibrated.keras")
    calibrate.add_argument(
        "--method",
        default="temperature",
        choices=("auto", *METHODS, LOCAL),
        metavar="NAME",
        help="a calibration layer, or auto; see kc.calibrate (temperature)",
    )
    calibrate.add_argument(
        "--max-seconds", type=float, help="time for the fit and its guard"
    )
    _add_shift(commands)
    return parser


def _add_shift(commands):
    shift = _command(
        commands, "shift", "models on corrupted images, uint8 or float"
    )
    _common(shift, "FILE", "models, and a file with raw images and labels")
    _output(shift, "shift.md, .json, or .png for a figure of the ECE", False)
    shift.add_argument(
        "--corruptions",
        nargs="+",
        default=CORRUPTIONS,
        choices=CORRUPTIONS,
        metavar="NAME",
        help=f"any of {', '.join(CORRUPTIONS)} (all)",
    )
    shift.add_argument(
        "--severities",
        nargs="+",
        type=int,
        default=SEVERITIES,
        choices=SEVERITIES,
        metavar="N",
        help="from 1 to 5 (all)",
    )
    shift.add_argument(
        "--value-range",
        nargs=2,
        type=float,
        default=(0, 255),
        metavar=("BLACK", "WHITE"),
        help="of floating-point images (0 255)",
    )


def _command(commands, name, text):
    parser = commands.add_parser(name, help=text, description=text)
    parser.set_defaults(run=getattr(_commands, name))
    return parser


def _common(parser, metavar, text):
    parser.add_argument("files", nargs="+", metavar=metavar, help=text)
    parser.add_argument(
        "--from-logits",
        action=argparse.BooleanOptionalAction,
        help="what a model gives, or `predictions` are, where nothing shows it",
    )
    parser.add_argument("--seed", type=int, default=0, help="of draws (0)")
    parser.add_argument(
        "--json", action="store_true", help="print JSON instead of text"
    )
    parser.add_argument(
        "--quiet", action="store_true", help="no progress, no words"
    )
    parser.add_argument(
        "--traceback",
        action="store_true",
        help="of an error, print where in the code it was raised, too",
    )


def _ignore_class(parser):
    parser.add_argument(
        "--ignore-class", type=int, metavar="ID", help="a label that is void"
    )


def _output(parser, examples, required=True):
    parser.add_argument(
        "-o",
        "--output",
        required=required,
        metavar="PATH",
        help=f"e.g. {examples}",
    )
