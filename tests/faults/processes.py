"""Work in a child process that is killed, or whose disk is full."""

import contextlib
import io
import json
import os
import resource
import signal
import sys
import tempfile

from tests.helpers import run_python

KILLED, FULL = signal.SIG_DFL, signal.SIG_IGN


def fork(work, *, limit=None, then=None):
    """Run work in a copy of this process.

    Args:
        work: a function; what it raises is the answer.
        limit: bytes that a file may have; `None` for no limit.
        then: what happens when a file would be longer: `KILLED` ends the
            process there, as `kill -9` does, and nothing more of its code
            runs; `FULL` fails to write.

    Returns:
        "killed", "done", or the error's name and text.
    """
    out = tempfile.TemporaryFile()
    child = os.fork()
    if child == 0:
        _run(work, limit, then, out.fileno())
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) in (signal.SIGKILL, signal.SIGXFSZ), status
        return "killed"
    out.seek(0)
    return out.read().decode()


def _run(work, limit, then, out):
    """The life of the child; it never returns."""
    try:
        found = "done"
        with contextlib.redirect_stdout(io.StringIO()):
            if limit is not None:
                set_limit(limit, then)
            work()
    except BaseException as error:
        found = f"{type(error).__name__}: {error}"
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (HARD, HARD))
        os.write(out, found.encode())
        sys.stderr.flush()
        os._exit(0)


HARD = resource.getrlimit(resource.RLIMIT_FSIZE)[1]


def set_limit(limit, then):
    """No file may be longer than `limit` bytes from now on."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGXFSZ, then)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, HARD))


def run_module(name, *arguments):
    """What a module of this folder prints as JSON, in a fresh process."""
    done = run_python(["-m", f"tests.faults.{name}", *arguments])
    return json.loads(done.splitlines()[-1])


def kill():
    """`kill -9` of this process."""
    os.kill(os.getpid(), signal.SIGKILL)
