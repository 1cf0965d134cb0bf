import importlib
import pathlib

import pytest

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"


@pytest.mark.slow
def test_every_procedure_gives_a_row(monkeypatch, capsys, tmp_path):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    example = importlib.import_module("training_procedures")
    monkeypatch.setattr(example, "EPOCHS", 12)
    picture = tmp_path / "picture.png"
    example.main(["--figure", str(picture)])
    assert picture.stat().st_size > 5_000
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in capsys.readouterr().out.splitlines()[2:]
    ]
    assert [row[0] for row in rows] == list(example.PROCEDURES)
    for row in rows:
        accuracy, nll, ece, floor = map(float, row[1:5])
        # A class in ten by chance; 200 images, 12 epochs.
        assert accuracy > 0.7, row
        assert 0 < nll < 1.5 and 0 < ece < 0.5 and 0 < floor < 0.05, row
