import numpy as np
import pytest

from tests.helpers import example
from tests.layers.generated import generated
from tests.layers.generated import softmax


@pytest.fixture(scope="module")
def script():
    return example("posthoc_table.py")


@pytest.mark.parametrize(
    ("key", "labels_key"),
    [("logits", "labels"), ("predictions", "ground_truth")],
    ids=["logits", "predictions"],
)
def test_table(script, tmp_path, capsys, key, labels_key):
    logits, labels = generated()
    values = logits if key == "logits" else softmax(logits)
    np.savez(tmp_path / "set.npz", **{key: values, labels_key: labels})
    script.main(
        [
            str(tmp_path / "set.npz"),
            "--splits=2",
            "--markdown",
            "--maps",
            "TS",
            "Spline",
        ]
    )
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("## set: 500 samples, 5 classes, 2 splits")
    rows = {}
    for line in lines[4:7]:
        name, *cells = [cell.strip() for cell in line.split("|")[1:-1]]
        rows[name] = cells
    assert list(rows) == ["uncalibrated", "TS", "Spline"]
    assert rows["uncalibrated"][1:] == ["-", "-", "-"]
    assert rows["Spline"][1:] == ["-", "-", "-"]
    ece = {name: float(cells[0].split(" ")[0]) for name, cells in rows.items()}
    assert ece["TS"] < 0.6 * ece["uncalibrated"]
    # Temperatures and splines change no prediction.
    accuracy = {cell.split("(")[1] for cell in rows["TS"]}
    accuracy |= {rows[name][0].split("(")[1] for name in rows}
    assert len(accuracy) == 1


def test_mean_and_standard_error(script):
    found = np.array([[1.0, 90.0], [3.0, 91.0]])
    assert script.cell(found) == "2.00 ± 1.00 (90.50)"
    assert script.cell(found[:1]) == "1.00 (90.00)"
    assert script.cell(None) == "-"
