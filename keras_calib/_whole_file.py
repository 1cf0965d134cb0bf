"""Files that are written as a whole, or not at all."""

import contextlib
import os
import pathlib
import secrets
import stat
from collections.abc import Iterator


@contextlib.contextmanager
def whole_file(path: str | os.PathLike) -> Iterator[pathlib.Path]:
    """A place to write to, which takes the name `path` after success.

    It lies in the same folder, has the same suffix, and a name that begins
    with a dot and the stem. After an error it is gone, and what stood at
    `path` stays. A process that is killed leaves it behind, and `path` is as
    it was. A symbolic link stays, and the file that it leads to is replaced.
    Permissions are those of the file that is replaced or, for a new one, all
    but the bits of the umask.

    Raises:
        OSError: if it cannot be written; the error names `path`.
    """
    path = pathlib.Path(path)
    if path.is_symlink():
        path = path.resolve()
    name = f".{path.stem}.{secrets.token_hex(4)}{path.suffix}"
    place = path.parent / name
    with _named(path, place):
        mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else None
        _create(place, 0o666 if mode is None else mode | 0o600)
        try:
            yield place
            _sync(place)
            os.replace(place, path)
            # Now: some systems replace and remove no file that is read-only.
            if mode is not None:
                os.chmod(path, mode)
        except BaseException:
            place.unlink(missing_ok=True)
            raise


@contextlib.contextmanager
def _named(path, place):
    """A full disk names no file, and other errors name the hidden one."""
    try:
        yield
    except OSError as error:
        known = error.filename is not None and str(error.filename) != str(place)
        if error.errno is None or known:
            raise
        reason = os.strerror(error.errno)
        raise OSError(error.errno, reason, str(path)) from error


def _create(place, mode):
    """An empty new file. The system takes the bits of the umask away."""
    os.close(os.open(place, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode))


def _sync(place):
    """Put the content on the disk before the name: power may fail between."""
    with open(place, "r+b") as file:
        os.fsync(file.fileno())
