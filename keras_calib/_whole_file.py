"""Files that are written as a whole, or not at all."""

import contextlib
import os
import pathlib
import tempfile
from collections.abc import Iterator


@contextlib.contextmanager
def whole_file(path: str | os.PathLike) -> Iterator[pathlib.Path]:
    """A place to write to, which takes the name `path` after success.

    It lies in the same folder, has the same suffix, and a name that begins
    with a dot and the stem. After an error it is gone, and what stood at
    `path` stays. A process that is killed leaves it behind, and `path` is as
    it was.

    Raises:
        OSError: if it cannot be written; the error names `path`.
    """
    path = pathlib.Path(path)
    with _named(path):
        handle, name = tempfile.mkstemp(
            dir=path.parent, prefix=f".{path.stem}.", suffix=path.suffix
        )
        os.close(handle)
        try:
            yield pathlib.Path(name)
            _sync(name)
            os.chmod(name, 0o644)
            os.replace(name, path)
        except BaseException:
            pathlib.Path(name).unlink(missing_ok=True)
            raise


@contextlib.contextmanager
def _named(path):
    """A full disk does not say which file it was."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        reason = os.strerror(error.errno)
        raise OSError(error.errno, reason, str(path)) from error


def _sync(name):
    """Put the content on the disk before the name: power may fail between."""
    with open(name, "r+b") as file:
        os.fsync(file.fileno())
