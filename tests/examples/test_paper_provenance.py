"""Rows name machines, days and commits, and the page counts them."""

import json

import pytest

pytestmark = pytest.mark.one_backend


@pytest.fixture(scope="module")
def sentences(papers):
    import sentences

    return sentences


def test_rows_have_their_machine_and_days(sentences, tmp_path):
    import provenance_page

    rows = [
        {
            **{"method": "CE", "seed": seed, "date": f"day {seed}"},
            "machine": {"device": "a", "backend": "b", "keras": "c"},
            "commit": commit,
        }
        for seed, commit in enumerate(("0000000", "0000000+", None))
    ]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "T.jsonl").write_text(text)
    (tmp_path / "F_shift.jsonl").write_text(text.splitlines()[0])
    found = provenance_page.table_of(tmp_path)
    assert "| [T](T.md) | 3 | 1 | a, b, Keras c | day 0 to day 2 |" in found
    assert "| [F_shift](F_shift.md) | 1 |" in found
    # Commits of another repository tell nothing.
    assert provenance_page.of_commits(tmp_path) is None
    page = sentences.BEGIN.format("x") + "\nold\n" + sentences.stored_pages.END
    assert sentences.with_sentences(page, {"x": None}) == page


def test_commits_are_counted(sentences, tmp_path, monkeypatch):
    import provenance_page

    commits = ("1111111", "1111111+", "2222222", "3333333+", None)
    lines = [
        json.dumps({"method": "CE", "seed": seed, "commit": commit})
        for seed, commit in enumerate(commits)
    ]
    (tmp_path / "S.jsonl").write_text("\n".join(lines) + "\n")
    monkeypatch.setattr(provenance_page, "known", lambda c: c == "1111111")
    monkeypatch.setattr(provenance_page, "cut_short", lambda: False)
    text = provenance_page.of_commits(tmp_path)
    assert text.startswith("Of 5 rows 2 name a commit with a `+`, behind which")
    assert "and 2 one that is not in the repository" in text
    monkeypatch.setattr(provenance_page, "cut_short", lambda: True)
    assert provenance_page.of_commits(tmp_path) is None


@pytest.mark.parametrize("commit", ["1111111+", "1111111", None])
def test_driver_warns_of_files_that_differ(papers, monkeypatch, capsys, commit):
    import data_at_hand
    import processes
    import run
    import stored_rows

    monkeypatch.setattr(stored_rows, "commit", lambda: commit)
    monkeypatch.setattr(data_at_hand, "ready", lambda _: True)
    arguments = run.parse(["S", "--seconds", "0"])
    processes.run_all(arguments, [("CE", 0)])
    warned = "Files differ from their commit" in capsys.readouterr().err
    assert warned == (commit == "1111111+")
