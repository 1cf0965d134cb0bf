"""Pytest plugin: which lines each test runs, and for how long.

Run with `coverage run` and `-p tests.mutation.contexts`. Lines go into the data
file of coverage.py, with the test as their context. Seconds, of tests that
passed, go into the JSON file that `TEST_SECONDS` names.
"""

import json
import os
import pathlib

import coverage
import pytest

SECONDS: dict[str, float] = {}
FAILED: set[str] = set()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item):
    """Record each line under the test that runs it."""
    coverage.Coverage.current().switch_context(item.nodeid)
    try:
        return (yield)
    finally:
        coverage.Coverage.current().switch_context("")


def pytest_runtest_logreport(report):
    """Add up setup, call and teardown."""
    if report.outcome != "passed":
        FAILED.add(report.nodeid)
    SECONDS.setdefault(report.nodeid, 0.0)
    SECONDS[report.nodeid] += report.duration


def pytest_sessionfinish():
    """Store the seconds of tests that can tell a mutant from the original."""
    kept = {k: round(v, 4) for k, v in SECONDS.items() if k not in FAILED}
    path = pathlib.Path(os.environ["TEST_SECONDS"])
    path.write_text(json.dumps(kept, indent=1))
