"""A process that has imported everything, and forks a child per mutant.

Files are not changed. A child puts the code of the changed function in place
of the old one or, of a file that is not imported yet, compiles the changed
source instead of reading it.
"""

import importlib.machinery
import json
import os
import pathlib
import resource
import select
import signal
import socket
import sys
import time
import traceback
import types

import pytest
from _pytest.config import _prepareconfig
from _pytest.main import Session

from tests.mutation.mutants import ROOT

OPTIONS = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
MEMORY = 6 << 30
UNPATCHED = 98
FILE_SIZE = 256 << 20
# Imported before the first child, so that none of them has to.
HEAVY = (
    "keras",
    "scipy.optimize",
    "scipy.stats",
    "hypothesis.extra.numpy",
    "sklearn.isotonic",
    "sklearn.linear_model",
    "sklearn.metrics",
    "matplotlib.pyplot",
)


class FirstFailure:
    """Pytest plugin that tells the parent which test failed first."""

    def __init__(self, pipe):
        self.pipe = pipe

    def pytest_runtest_logreport(self, report):
        if report.failed:
            os.write(self.pipe, report.nodeid.encode()[:2000])

    def pytest_collectreport(self, report):
        if report.failed:
            os.write(self.pipe, b"import of " + report.nodeid.encode()[:2000])


class Only:
    """Pytest plugin that keeps some of the collected tests, in an order.

    Some ids hold names that Keras numbers, which depend on what else was
    collected: those that are not there are left out.
    """

    def __init__(self, tests):
        self.tests = tests

    def pytest_collection_modifyitems(self, items):
        items[:] = chosen(self.tests, items)


def chosen(tests, items):
    found = {item.nodeid: item for item in items}
    return [found[name] for name in tests if name in found]


def files_of(tests):
    return list(dict.fromkeys(name.split("::")[0] for name in tests))


def code_objects(code):
    """A code object and all below it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from code_objects(constant)


def plain_functions(module):
    """Functions and methods that a module defines."""
    for owner in (module, *vars(module).values()):
        if owner is not module and not isinstance(owner, type):
            continue
        if getattr(owner, "__module__", module.__name__) != module.__name__:
            continue
        for found in vars(owner).values():
            if isinstance(found, property):
                parts = [found.fget, found.fset]
            else:
                parts = [getattr(found, "__func__", found)]
            for part in parts:
                while hasattr(part, "__wrapped__"):
                    part = part.__wrapped__
                if isinstance(part, types.FunctionType):
                    yield part


def place(code):
    return code.co_qualname, code.co_firstlineno


def patch(module, source):
    """Put changed functions of `source` in place; whether there were any.

    What runs at import, such as a default value, is no function's code.
    """
    path = pathlib.Path(module.__file__)
    old = compile(path.read_text(), path, "exec", dont_inherit=True)
    new = compile(source, path, "exec", dont_inherit=True)
    before = {place(each): each for each in code_objects(old)}
    functions = {place(each.__code__): each for each in plain_functions(module)}
    changed = 0
    for each in code_objects(new):
        found = functions.get(place(each))
        if found is None or each == before.get(place(each)):
            continue
        if each.co_freevars != found.__code__.co_freevars:
            return False
        found.__code__ = each
        changed += 1
    return bool(changed)


def read_changed(path, source):
    """From now on, `source` is what an import of `path` reads."""
    loader = importlib.machinery.SourceFileLoader
    get_code = loader.get_code

    def get_changed_code(self, name):
        if self.path == str(path):
            return compile(source, path, "exec", dont_inherit=True)
        return get_code(self, name)

    loader.get_code = get_changed_code


def restrict(cpu_seconds):
    """Neither output, nor more time, memory or disk than a test takes."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nowhere, number)
    limits = {
        resource.RLIMIT_CPU: cpu_seconds,
        resource.RLIMIT_AS: MEMORY,
        resource.RLIMIT_FSIZE: FILE_SIZE,
        resource.RLIMIT_CORE: 0,
    }
    for kind, limit in limits.items():
        resource.setrlimit(kind, (limit, limit))


def listen(reading, seconds):
    """What comes through a pipe until it is closed, and whether it was."""
    late = time.monotonic() + seconds
    told = b""
    while time.monotonic() < late:
        if select.select([reading], [], [], 5)[0]:
            piece = os.read(reading, 4096)
            told += piece
            if not piece:
                return told.decode(errors="replace"), True
    return told.decode(errors="replace"), False


def fork(job, cpu_seconds):
    """Outcome of a child that does `job`, and the test that failed first."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reading)
            os.setsid()
            restrict(cpu_seconds)
            os._exit(int(job(writing)))
        except BaseException as error:
            os.write(writing, repr(error).encode()[:2000])
        finally:
            os._exit(99)
    os.close(writing)
    # The processor's time decides, and this only where a child sleeps.
    told, closed = listen(reading, 10 * cpu_seconds)
    os.close(reading)
    if not closed:
        os.killpg(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    try:  # what the tests may have started
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    if os.WIFSIGNALED(status):
        number = signal.Signals(os.WTERMSIG(status))
        timeout = number in (signal.SIGXCPU, signal.SIGKILL)
        return "timeout" if timeout else "killed", number.name
    code = os.WEXITSTATUS(status)
    if code == 0:
        return "survived", None
    if code in (1, 2, 3) and told:
        return "killed", told
    if code == UNPATCHED:
        return "unpatched", None
    if code == pytest.ExitCode.USAGE_ERROR:  # the control run has none
        return "killed", "import of tests/conftest.py"
    raise RuntimeError(f"a child ended with {code}: {told}")


class Imported:
    """Has collected tests, and runs some with the changed functions."""

    def __init__(self, folders):
        self.config = _prepareconfig([*OPTIONS, "-m", "not slow", *folders])
        self.config._do_configure()
        self.session = Session.from_config(self.config)
        self.config.hook.pytest_sessionstart(session=self.session)
        self.config.hook.pytest_collection(session=self.session)
        self.items = self.session.items

    def run(self, path, source, tests, cpu_seconds):
        def job(pipe):
            self.config.pluginmanager.register(FirstFailure(pipe))
            name = str(path.relative_to(ROOT).with_suffix(""))
            module = sys.modules.get(name.replace("/", "."))
            if module is None:
                read_changed(path, source)
            elif source != path.read_text() and not patch(module, source):
                return UNPATCHED
            self.session.items = chosen(tests, self.items)
            try:
                self.config.hook.pytest_runtestloop(session=self.session)
            except Session.Failed:
                return pytest.ExitCode.TESTS_FAILED
            return int(self.session.testsfailed > 0)

        return fork(job, cpu_seconds)


def fresh(path, source, tests, cpu_seconds):
    """Run tests where this package is not imported yet."""

    def job(pipe):
        read_changed(path, source)
        arguments = [*OPTIONS, "-m", "", *files_of(tests)]
        return pytest.main(arguments, [FirstFailure(pipe), Only(tests)])

    return fork(job, cpu_seconds)


class Server:
    """Two processes: one has imported this package and the tests, one not."""

    def __init__(self, tests):
        for name in HEAVY:
            importlib.import_module(name)
        here, there = socket.socketpair()
        if os.fork() == 0:
            here.close()
            try:
                serve(there, files_of(tests))
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)
        there.close()
        self.peer = here.makefile("rw")

    def run(self, path, source, tests, seconds, *, imported):
        """Outcome ("survived", "killed", "timeout") and the first failure.

        "unpatched", where the change is not in a function that is imported.
        """
        cpu_seconds = int(60 + 5 * seconds)
        given = (str(ROOT / path), source, tests, cpu_seconds)
        if imported:
            self.peer.write(json.dumps(given) + "\n")
            self.peer.flush()
            return json.loads(self.peer.readline())
        return fresh(pathlib.Path(given[0]), *given[1:])


def serve(connection, folders):
    """Answer each line of a connection, in a process of its own."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    imported = Imported(folders)
    peer = connection.makefile("rw")
    for line in peer:
        path, *given = json.loads(line)
        answer = imported.run(pathlib.Path(path), *given)
        peer.write(json.dumps(answer) + "\n")
        peer.flush()
