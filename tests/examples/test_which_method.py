"""What the page of decisions says of losses holds in the stored rows."""

import numpy as np
import pytest

pytestmark = pytest.mark.one_backend


@pytest.fixture
def beside(papers):
    """Differences from cross-entropy with the same seeds, means of a method."""
    import run
    import table

    def means(protocol, method, key, part):
        rows = run.read_rows(run.RESULTS / f"{protocol}.jsonl")
        found = dict(table.of_method(protocol, rows))
        baseline = {row["seed"]: row for row in found["CE"]}
        tuned = table.of_tuned(run.RESULTS, protocol)
        chosen = tuned[method][1] if method in tuned else found[method]
        differences = [
            row[part][key] - baseline[row["seed"]][part][key] for row in chosen
        ]
        return np.mean(differences)

    return means


@pytest.mark.parametrize("method", ["LS", "MbLS", "ACLS", "FL"])
def test_losses_that_hold_confidence_down(beside, method):
    assert beside("S", method, "ece", "test") < -0.05
    assert 0 < beside("S", method, "nll", "test_scaled") < 0.1
    assert beside("F", method, "ece", "test") < 0
    assert 0 < beside("F", method, "nll", "test_scaled") < 0.05


@pytest.mark.parametrize(
    "method",
    [
        *("DML", "CutMix", "ensemble of 3"),
        *("SB-ECE", "DCA", "MDCA", "MMCE", "AvUC-GS", "S-AvUC"),
    ],
)
def test_what_is_better_than_cross_entropy(beside, method):
    assert beside("S", method, "nll", "test_scaled") < -0.04
    assert beside("S", method, "accuracy", "test") > 0.01


@pytest.mark.parametrize("method", ["SB-ECE", "MDCA", "MMCE"])
def test_penalties_on_what_a_network_has_memorized(beside, method):
    assert beside("F", method, "nll", "test_scaled") > 0
    assert abs(beside("F", method, "ece", "test")) < 0.005


@pytest.mark.parametrize("method", ["DCA", "AvUC"])
def test_weights_as_printed_cost_accuracy(papers, method):
    import run
    import table

    rows = run.read_rows(run.RESULTS / "S.jsonl")
    found = dict(table.of_method("S", rows))
    accuracy = {
        name: np.mean([row["test"]["accuracy"] for row in found[name]])
        for name in ("CE", method)
    }
    assert accuracy[method] < accuracy["CE"] - 0.05
