"""Files that are written as a whole, or not at all."""

import contextlib
import os
import pathlib
import tempfile
from collections.abc import Iterator


@contextlib.contextmanager
def whole_file(path: str | os.PathLike) -> Iterator[pathlib.Path]:
    """A place to write to, which takes the name `path` after success.

    It lies in the same folder and has the same suffix. After an error it is
    gone, and what stood at `path` stays.
    """
    path = pathlib.Path(path)
    handle, name = tempfile.mkstemp(dir=path.parent, suffix=path.suffix)
    os.close(handle)
    try:
        yield pathlib.Path(name)
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        pathlib.Path(name).unlink(missing_ok=True)
        raise
