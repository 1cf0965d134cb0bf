"""What the page of decisions says holds in the stored rows."""

import json
import pathlib
import re

import numpy as np
import pytest

from tests.helpers import example

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"

pytestmark = pytest.mark.one_backend


@pytest.fixture
def beside(papers):
    """Differences from cross-entropy with the same seeds, means of a method."""
    import places
    import row_files
    import sentences
    import table

    def mean(protocol, method, key, part, *, at_default=False):
        rows = row_files.read_rows(places.RESULTS / f"{protocol}.jsonl")
        tuned = table.of_tuned(places.RESULTS, protocol).get(method)
        chosen = rows
        if tuned and not at_default:
            chosen = {(method, row["seed"]): row for row in tuned[1]}
        pair = method, table.BASELINE
        found = sentences.differences(chosen, *pair, key, part, others=rows)
        assert len(found)
        return found.mean()

    return mean


@pytest.mark.parametrize("method", ["LS", "MbLS", "ACLS", "FL"])
def test_losses_that_hold_confidence_down(beside, method):
    assert beside("S", method, "ece", "test") < -0.05
    nll = beside("S", method, "nll", "test_scaled", at_default=True)
    assert 0 < nll < 0.1
    assert beside("F", method, "ece", "test") < 0
    assert 0 < beside("F", method, "nll", "test_scaled") < 0.05


def test_what_the_page_says_of_label_smoothing(beside):
    default, tuned = (
        beside("S", "LS", "nll", "test_scaled", at_default=at_default)
        for at_default in (True, False)
    )
    page = (EXAMPLES / "docs" / "which_method.md").read_text()
    assert f"of label smoothing by {default:.3f} nats with 0.05" in page
    assert f"and by {tuned:.3f} nats with 0.1" in page


@pytest.mark.parametrize(
    "method",
    [
        *("DML", "CutMix", "AugMix", "MC dropout", "ensemble of 3"),
        *("SB-ECE", "DCA", "MMCE"),
    ],
)
def test_what_is_better_than_cross_entropy(beside, method):
    # As the page says.
    assert beside("S", method, "nll", "test_scaled") <= -0.03
    assert beside("S", method, "accuracy", "test") > 0.01


@pytest.mark.parametrize("method", ["MMCE", "S-AvUC"])
def test_what_is_better_at_the_settings_of_its_row(beside, method):
    nll, accuracy = (
        beside("S", method, *which, at_default=True)
        for which in (("nll", "test_scaled"), ("accuracy", "test"))
    )
    assert nll <= -0.03 and accuracy > 0.01


@pytest.mark.parametrize("method", ["MMCE", "S-AvUC"])
def test_settings_that_were_chosen_gain_more(beside, method):
    which = "S", method, "nll", "test_scaled"
    assert beside(*which) < beside(*which, at_default=True) < 0


def test_nothing_that_is_better_is_left_out(papers):
    import places
    import row_files
    import table

    rows = row_files.read_rows(places.RESULTS / "S.jsonl")
    better = {
        method
        for method, pairs in table.paired("S", rows)
        if table.difference(pairs, "nll", "test_scaled").mean() <= -0.03
        and table.difference(pairs, "accuracy").mean() > 0.01
    }
    mutual = {"DML", "DML-2", "Diff-DML, labels 20 %"}
    others = {"CutMix", "AugMix", "MC dropout", "ensemble of 3"}
    others |= {"MMCE", "S-AvUC"}
    assert better == mutual | others


@pytest.mark.parametrize("method", ["AvUC-GS", "FL+SB-ECE", "FL+MDCA", "MDCA"])
def test_what_is_better_in_the_nll_alone(beside, method):
    assert beside("S", method, "nll", "test_scaled") <= -0.03
    assert beside("S", method, "accuracy", "test") < 0.01


def test_what_the_docstring_says_of_label_warmup(beside):
    none, warm = "Diff-DML", "Diff-DML, labels 20 %"
    # At the rate of the auxiliary that the rows of S have.
    accuracy = {
        name: beside("S", name, "accuracy", "test", at_default=True)
        for name in (none, warm, "DML")
    }
    gap = accuracy["DML"] - accuracy[none]
    assert accuracy[warm] - accuracy[none] > gap / 2 > 0
    ece = [
        beside("S", name, "ece", "test", at_default=True)
        for name in (none, warm)
    ]
    assert abs(ece[1] - ece[0]) < 0.01


@pytest.mark.parametrize("method", ["SB-ECE", "MDCA", "MMCE"])
def test_penalties_on_what_a_network_has_memorized(beside, method):
    assert beside("F", method, "nll", "test_scaled") > 0
    assert abs(beside("F", method, "ece", "test")) < 0.005


@pytest.mark.parametrize("method", ["DCA", "AvUC"])
def test_weights_as_printed_cost_accuracy(papers, method):
    import places
    import row_files
    import table

    rows = row_files.read_rows(places.RESULTS / "S.jsonl")
    found = dict(table.of_method("S", rows))
    accuracy = {
        name: np.mean([row["test"]["accuracy"] for row in found[name]])
        for name in ("CE", method)
    }
    assert accuracy[method] < accuracy["CE"] - 0.05


def test_what_the_page_says_of_maps(capsys):
    script = example("benchmarks/no_harm.py")
    results = EXAMPLES / "results" / "no_harm_development.jsonl"
    rows = script.stored_rows.read(results)
    found = script.cells(rows, "nll", "TemperatureScaling")
    gains = [
        -mean
        for (file, name, n), (mean, _) in found.items()
        if name == "MatrixScaling" and n == 5000 and file.endswith("100")
    ]
    page = (EXAMPLES / "docs" / "which_method.md").read_text()
    low, high = min(gains), max(gains)
    assert f"lowers the NLL by {low:.2f} to {high:.2f} nats" in page
    rows = script.stored_rows.read(EXAMPLES / "results" / "no_harm_test.jsonl")
    script.print_regrets([row for row in rows if row["draw"] < 20])
    shown = capsys.readouterr().out
    one, mixture = re.findall(r"cells: (\S+) on average", shown)
    assert (
        f"on average it is {float(mixture):.4f} nats behind the best of them, "
        f"a single map {float(one):.4f}"
    ) in page


def test_what_the_page_says_of_a_matrix_for_pixels():
    lines = (EXAMPLES / "results" / "D.jsonl").read_text().splitlines()
    higher = [
        row["maps"]["MatrixScaling"]["nll"] - row["test_scaled"]["nll"]
        for row in map(json.loads, lines)
    ]
    page = (EXAMPLES / "docs" / "which_method.md").read_text()
    assert f", by {min(higher):.2f} to {max(higher):.2f} ([protocol D]" in page
