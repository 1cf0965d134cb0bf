"""The stored page of mutants is what its rows say."""

import pytest

from tests.mutation import page

pytestmark = pytest.mark.one_backend


@pytest.mark.parametrize(("hits", "number"), [(0, 10), (95, 100), (7, 7)])
def test_wilson_ends_are_where_the_normal_test_rejects(hits, number):
    # Both ends solve (share - p)^2 = z^2 p (1 - p) / n.
    for p in page.wilson(hits, number):
        left = (hits / number - p) ** 2
        assert left == pytest.approx(page.Z**2 * p * (1 - p) / number, abs=1e-9)


def test_wilson_of_nothing_is_everything():
    assert page.wilson(0, 0) == (0.0, 1.0)


def test_equivalent_mutants_are_left_out_and_new_tests_count():
    rows = [
        {"room": "ops", "seed": 1, "mutant": str(number), "outcome": outcome}
        for number, outcome in enumerate(
            ["killed", "timeout"] + 4 * ["survived"]
        )
    ]
    verdicts = {
        (1, "2"): {"verdict": "equivalent"},
        (1, "3"): {"verdict": "test added"},
        (1, "4"): {"verdict": "other test"},
        (1, "0"): {"verdict": "equivalent"},  # of a mutant that was killed
        (0, "5"): {"verdict": "equivalent"},  # of another sample
    }
    _, before, after, number = page.counts_of(rows, verdicts)
    assert (before, after, number) == (3, 4, 5)
    # Of five, three are killed before and four after; one is open.
    expected = (
        "| {} | 6 | 1 | 2 | 1 | 60 % | 23 % to 88 % "
        "| 1 | 1 | 80 % | 38 % to 96 % |"
    )
    assert [*page.table(rows, verdicts)] == [
        expected.format("ops"),
        expected.format("all"),
    ]


def test_a_run_ends_with_the_share_of_each_room_and_its_interval():
    rows = [{"room": "ops", "outcome": "killed"}] * 94
    rows += [{"room": "ops", "outcome": "survived"}] * 5
    rows += [{"room": "losses", "outcome": "timeout"}]
    of_ops, of_losses, of_all = page.shares(rows)
    # Wilson (1927), by hand.
    assert of_ops.startswith("ops: 94 of 99 killed, 95 % (95 % interval 89 %")
    assert of_losses.startswith("losses: 1 of 1 killed, 100 %")
    assert of_all.startswith("all: 95 of 100 killed, 95 % (95 % interval 89 %")


def test_every_verdict_is_on_a_survivor_and_has_a_reason():
    survived = {
        page.key_of(row)
        for row in page.read("mutation.jsonl")
        if row["outcome"] == "survived"
    }
    verdicts = page.read("mutation_verdicts.jsonl")
    assert {page.key_of(row) for row in verdicts} <= survived
    assert len({page.key_of(row) for row in verdicts}) == len(verdicts)
    for row in verdicts:
        assert row["verdict"] in page.PARTS and row["reason"]


def test_the_stored_page_is_printed_from_the_stored_rows(capsys):
    page.main()
    stored = (page.RESULTS / "mutation.md").read_text()
    assert capsys.readouterr().out == stored
