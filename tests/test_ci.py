"""The scripts of `.ci` and the workflows do what they say."""

import os
import pathlib
import re
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).parents[1]
pytestmark = [
    pytest.mark.one_backend,
    pytest.mark.skipif(not shutil.which("git"), reason="needs git"),
]
# In place of Python: writes down its arguments, and has PyTorch.
STUB = """#!/bin/sh
echo "$KERAS_BACKEND: $@" >> calls
"""
PAGES = {"tests/test_commands.py", "tests/test_links.py"}
NAMES = {
    "tests/test_public_names.py",
    "tests/test_index.py",
    "tests/examples/test_equations.py",
}
BLOCKS = "tests/test_documentation.py::test_the_code_of_the_page_runs"
# By the file that changed: its fast tests, and those that run whole.
CHOSEN = {
    "keras_calib/losses/_mdca.py": (
        {"tests/losses", "tests/test_package.py"},
        NAMES,
    ),
    "keras_calib/_check.py": (
        {"tests/test_check.py", "tests/test_package.py"},
        NAMES,
    ),
    "keras_calib/_check_compiled.py": ({"tests/test_check.py"}, NAMES),
    "keras_calib/_whole_file.py": (
        {"tests/test_whole_file.py", "tests/test_package.py"},
        NAMES,
    ),
    "keras_calib/_progress.py": (
        {"tests/test_progress.py", "tests/test_package.py"},
        NAMES,
    ),
    "keras_calib/__init__.py": ({"tests/test_package.py"}, NAMES),
    "keras_calib/keras_private.py": (
        {
            "tests/test_keras_private.py",
            "tests/calibration/test_exports.py",
            "tests/data/test_predict.py",
            "tests/models/test_averages_contract.py",
            "tests/models/test_private_ways.py",
        },
        NAMES,
    ),
    "README.md": (
        {"tests/examples/test_paper_readme.py"},
        PAGES | {f"{BLOCKS}[README.md]"},
    ),
    "examples/docs/start.md": (
        set(),
        PAGES | {f"{BLOCKS}[examples/docs/start.md]"},
    ),
    "CHANGELOG.md": (set(), PAGES),
    ".ci/package": (set(), PAGES | {"tests/test_ci.py"}),
    ".github/workflows/tests.yml": (set(), PAGES | {"tests/test_ci.py"}),
    "pyproject.toml": (set(), PAGES | {"tests/test_ci.py"}),
    "tests/losses/fixtures.py": ({"tests/losses"}, set()),
    "tests/ops/test_binning.py": (set(), set()),  # was deleted
    "tests/helpers.py": (
        {"tests/losses", "tests/metrics", "tests/models"},
        set(),
    ),
    # Without a test of its name, and the last one in the list.
    "examples/papers/condition_losses.py": (set(), {"tests/test_commands.py"}),
    "examples/quickstart.py": (
        {"tests/examples/test_quickstart.py"},
        {"tests/test_commands.py"},
    ),
}


@pytest.fixture
def checkout(tmp_path):
    """A repository of the names of all files, and what they import."""
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True
    )
    if listed.returncode:
        pytest.skip("not a checkout")
    for name in listed.stdout.splitlines():
        source, copy = ROOT / name, tmp_path / name
        if source.exists():
            copy.parent.mkdir(parents=True, exist_ok=True)
            if name.startswith((".ci/", "tests/")) or name.endswith(".md"):
                shutil.copy(source, copy)
            else:
                copy.touch()
    (tmp_path / ".gitignore").write_text(".venv\ncalls\n")
    run = ["-c", "user.name=a", "-c", "user.email=a@example.org", "commit"]
    for command in (["init", "-q"], ["add", "."], [*run, "-qm", "all"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    python = tmp_path / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(STUB)
    python.chmod(0o755)
    return tmp_path


def calls_of_check(checkout, backend=None):
    """What `.ci/check` runs: lists of backend, options and tests."""
    calls = checkout / "calls"
    calls.unlink(missing_ok=True)
    environment = {k: v for k, v in os.environ.items() if k != "KERAS_BACKEND"}
    if backend is not None:
        environment["KERAS_BACKEND"] = backend
    subprocess.run([".ci/check"], cwd=checkout, check=True, env=environment)
    return calls.read_text().splitlines()


def test_check_chooses_the_tests_of_what_changed(checkout):
    wrong = {}
    for name, expected in CHOSEN.items():
        file = checkout / name
        before = file.read_text() if file.exists() else None
        if before is None or name == "tests/ops/test_binning.py":
            file.unlink()
        else:
            file.write_text(before + "\n")
        calls = calls_of_check(checkout)
        file.write_text(before)
        assert calls[:3] == [
            ": -m ruff check .",
            ": -m ruff format --check .",
            ": -m mypy",
        ]
        tests = [call.split() for call in calls if "pytest" in call]
        fast = {word for word in tests[0] if word.startswith("tests/")}
        whole = set()
        if tests[1:]:
            assert "-m  " in calls[-1]  # and an empty word
            whole = {word for word in tests[1] if word.startswith("tests/")}
        assert {line[0] for line in tests} == {"torch:"}
        if (fast, whole) != (
            expected[0] | {"tests/test_house.py"},
            expected[1],
        ):
            wrong[name] = fast, whole
    assert not wrong


def test_check_keeps_the_backend_that_was_asked_for(checkout):
    for call in calls_of_check(checkout, "jax"):
        assert call.startswith("jax:")


def test_check_ends_with_the_status_of_a_test_that_fails(checkout):
    stub = checkout / ".venv/bin/python"
    stub.write_text('#!/bin/sh\ncase "$*" in *pytest*) exit 3 ;; esac\n')
    done = subprocess.run([checkout / ".ci/check"])
    assert done.returncode == 3


def test_actions_are_pinned_by_a_commit_and_its_version():
    for path in (ROOT / ".github/workflows").glob("*.yml"):
        used = re.findall(r"uses: (.*)", path.read_text())
        assert used
        for action in used:
            if action.startswith("./"):  # of this commit
                assert (ROOT / action.split()[0]).exists()
                continue
            assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v[\d.]+", action)


def test_an_event_cancels_no_run_of_another_one():
    text = (ROOT / ".github/workflows/tests.yml").read_text()
    (group,) = re.findall(r"concurrency:\n  group: (.*)", text)
    assert "github.event_name" in group and "github.ref" in group


def test_all_chosen_tests_are_there():
    for fast, whole in CHOSEN.values():
        for test in fast | whole:
            assert (ROOT / test.partition("::")[0]).exists()
