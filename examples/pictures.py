"""What examples share that draw: where a picture goes, how it is written."""

import argparse
import pathlib


def png_file(text):
    """A type of `argparse`: refused before anything is computed.

    Raises:
        argparse.ArgumentTypeError: unless it is a PNG file in a folder.
    """
    path = pathlib.Path(text)
    if path.suffix.lower() != ".png":
        raise argparse.ArgumentTypeError(
            f"{text} has another suffix. Pictures are .png files"
        )
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {path.parent}")
    return path


def add_option(parser):
    """Add `--figure FILE.png`."""
    parser.add_argument(
        "--figure",
        type=png_file,
        metavar="FILE.png",
        help="a file for the picture",
    )


def save(figure, path, dpi=80):
    """Write a Matplotlib figure as PNG."""
    # No metadata: the file does not change with the drawing library.
    figure.savefig(path, dpi=dpi, metadata={"Software": None})
