import importlib
import pathlib

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"


def test_all_rules_are_compared_on_the_same_runs(monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    example = importlib.import_module("refine_then_calibrate")
    monkeypatch.setattr(example, "EPOCHS", 8)
    monkeypatch.setattr(example, "SEEDS", range(2))
    example.main()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "2 seeds, 8 epochs"
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    by_loss, by_refinement, restored, *differences = (
        [[float(part) for part in cell.split(" ± ")] for cell in row[1:]]
        for row in rows[3:]
    )
    assert [row[0] for row in rows[3:]] == [
        "`val_loss`",
        "`val_refinement_loss`",
        "`RestoreCalibrated`",
        "second minus first",
        "third minus first",
    ]
    for row in (by_loss, by_refinement, restored):
        epoch, accuracy, nll, scaled, temperature = (cell[0] for cell in row)
        assert 1 <= epoch <= 8
        # A class in ten by chance; 8 of 10 labels can be known.
        assert 30 < accuracy < 85
        assert 0 < scaled < 2.3 and 0 < nll < 2.5
        assert 0.05 < temperature < 5
    for other, gaps in zip((by_refinement, restored), differences, strict=True):
        for one, two, gap in zip(by_loss, other, gaps, strict=True):
            assert abs(two[0] - one[0] - gap[0]) < 2e-4
            assert all(cell[1] >= 0 for cell in (one, two, gap))
