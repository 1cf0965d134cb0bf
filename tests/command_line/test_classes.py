"""Which column of a table a label belongs to."""

import json
import pathlib

import numpy as np
import pytest

from keras_calib.command_line._files import read
from tests.command_line.helpers import run

pytestmark = pytest.mark.one_backend

# Four of these five are right, if the first column is that of true.
TRUTH = [True, True, False, False, True]
P = [(0.9, 0.1), (0.8, 0.2), (0.1, 0.9), (0.3, 0.7), (0.4, 0.6)]
ACCURACY = 0.8


def two_columns(path, *, names, labels):
    """A table with the probability of true, then that of false."""
    heads = ["labels", *(f"probabilities_{name}" for name in names)]
    lines = [
        ",".join(map(str, (label, *p)))
        for label, p in zip(labels, P, strict=True)
    ]
    pathlib.Path(path).write_text("\n".join([",".join(heads), *lines]) + "\n")


def accuracy(capsys, path):
    status, out, err = run(capsys, "evaluate", path, "--json", "--quiet")
    assert status == 0, err
    return json.loads(out)[pathlib.Path(path).stem]["accuracy"]


@pytest.mark.parametrize(
    "names", [("true", "false"), ("True", "False"), ("TRUE", "FALSE")]
)
@pytest.mark.parametrize("write", [str, lambda each: str(each).lower(), int])
def test_true_and_false_are_matched_by_their_meaning(
    folder, capsys, names, write
):
    labels = [write(each) for each in TRUTH]
    two_columns("t.csv", names=names, labels=labels)
    assert accuracy(capsys, "t.csv") == ACCURACY


def test_numbers_beside_missing_ones_are_true_and_false(tmp_path):
    path = tmp_path / "t.csv"
    two_columns(
        path, names=("true", "false"), labels=["1.0", "0.0", "", "255", "1"]
    )
    np.testing.assert_array_equal(read(path).labels, [0, 1, np.nan, 255, 0])


@pytest.mark.parametrize("labels", [TRUTH, [1, 1, 0, 0, 1]])
def test_labels_of_parquet_are_true_and_false(folder, capsys, labels):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    columns = dict(zip(("logit_true", "logit_false"), np.log(P).T, strict=True))
    parquet.write_table(
        pyarrow.table({"label": labels, **columns}), "t.parquet"
    )
    assert accuracy(capsys, "t.parquet") == ACCURACY


def test_names_are_matched_whatever_their_case(tmp_path):
    path = tmp_path / "t.csv"
    labels = ["CAT", "cat", "Dog", "dog", "Cat"]
    two_columns(path, names=("Cat", "Dog"), labels=labels)
    assert read(path).labels.tolist() == [0, 0, 1, 1, 0]


def test_names_that_differ_in_case_alone_are_two(tmp_path):
    path = tmp_path / "t.csv"
    labels = ["a", "A", "A", "a", "a"]
    two_columns(path, names=("A", "a"), labels=labels)
    assert read(path).labels.tolist() == [1, 0, 0, 1, 1]
    two_columns(path, names=("Ab", "ab"), labels=["AB"] * 5)
    with pytest.raises(ValueError, match="the label 'AB' is no number"):
        read(path)


def test_numbers_count_columns_that_have_names(tmp_path):
    path = tmp_path / "t.csv"
    for names in (("cat", "dog"), ("no", "yes"), ("negative", "Positive")):
        two_columns(path, names=names, labels=[1, 0, 1, 0, 0])
        assert read(path).labels.tolist() == [1, 0, 1, 0, 0]


UNCERTAIN = {
    "truth of yes and no": (("yes", "no"), TRUTH),
    "truth of no and yes": (("no", "yes"), TRUTH),
    "truth of animals": (("cat", "dog"), TRUTH),
    "numbers of yes and no": (("Yes", "No"), [1, 1, 0, 0, 1]),
    "numbers of positive and negative": (
        ("positive", "negative"),
        [1, 1, 0, 0, 1],
    ),
    "columns with numbers": (("b", "0"), [0, 1, 1, 0, 1]),
    "names and numbers": (("cat", "dog"), ["cat", "dog", 0, 1, 1]),
}


@pytest.mark.parametrize("case", UNCERTAIN)
def test_uncertain_labels_are_refused_with_what_was_found(folder, capsys, case):
    names, labels = UNCERTAIN[case]
    two_columns("t.csv", names=names, labels=labels)
    status, out, err = run(capsys, "evaluate", "t.csv")
    assert (status, out) == (2, "")
    assert "error: t.csv: " in err
    found = [str(each) for each in dict.fromkeys(labels)]
    assert f"Received: labels {found}" in err
    assert "names of" in err and "columns" in err
    if case != "names and numbers":
        assert str(list(names)) in err


def test_truth_beside_numbers_is_refused(tmp_path):
    path = tmp_path / "t.csv"
    two_columns(path, names=(0, 1), labels=["true", "0", "1", "1", "0"])
    with pytest.raises(ValueError, match="some labels are numbers, and others"):
        read(path)


@pytest.mark.parametrize("name", ["false", "False", "no", "negative", "2"])
def test_one_column_of_another_class_is_refused(folder, capsys, name):
    text = f"labels,probabilities_{name}\nTrue,0.1\nFalse,0.9\n"
    pathlib.Path("t.csv").write_text(text)
    status, _, err = run(capsys, "evaluate", "t.csv")
    assert status == 2
    assert f"`probabilities_{name}` alone is of class {name}" in err


@pytest.mark.parametrize("name", ["true", "True", "yes", "1", "cat"])
def test_one_column_is_that_of_true(folder, capsys, name):
    text = f"labels,probabilities_{name}\nTrue,0.9\nFalse,0.2\n"
    pathlib.Path("t.csv").write_text(text)
    assert accuracy(capsys, "t.csv") == 1.0


def test_report_matches_columns_whatever_their_case(folder, capsys):
    two_columns("a.csv", names=("true", "false"), labels=TRUTH)
    two_columns("b.csv", names=("True", "False"), labels=TRUTH)
    report = "report", "a.csv", "b.csv", "-o", "r.json", "--quiet"
    assert run(capsys, *report)[0] == 0
    found = json.loads(pathlib.Path("r.json").read_text())["models"]
    values = [each["metrics"]["accuracy"]["value"] for each in found]
    assert values == [ACCURACY, ACCURACY]
