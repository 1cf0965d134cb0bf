"""The script that prints the seconds in the table of layers."""

import pathlib
import re

import pytest

from tests.helpers import example

README = pathlib.Path(__file__).parents[2] / "keras_calib/layers/README.md"
UNGUARDED = ("MultiLabelScaling", "LocalTemperatureScaling")


@pytest.fixture
def costs():
    return example("benchmarks/map_costs.py")


@pytest.mark.slow
@pytest.mark.backends("torch")
def test_every_row_is_printed(costs, capsys, monkeypatch):
    small = {"ROWS": 120, "CLASSES": 3, "REPEATS": 1}
    small |= {"IMAGES": 5, "SIZE": 6, "IMAGE_CLASSES": 3}
    for name, value in small.items():
        monkeypatch.setattr(costs, name, value)
    costs.main([])
    rows = re.findall(
        r"^\| `(.*)` \| (\S+) \| \d+\.\d+ \| (\S+) \| (\S+) \|$",
        capsys.readouterr().out,
        flags=re.MULTILINE,
    )
    names = [name for name, *_ in rows]
    assert names[-2:] == ['method="auto"', 'method="auto", mixture=True']
    assert names[:-2] == [*costs.MAPS, *costs.BINARY, *UNGUARDED]
    assert all(float(papers) >= 0 for _, papers, *_ in rows[:-2])
    for _, _, *ratios in rows[:-4]:
        assert min(map(float, ratios)) >= 1


@pytest.mark.one_backend
def test_every_row_has_its_seconds_in_the_table(costs):
    table = README.read_text().split("\n## ")[0]
    for name in (*costs.MAPS, *costs.BINARY, *UNGUARDED):
        row = rf"^\| `{re.escape(name)}` \|.*\| \d+\.\d+, \d+\.\d+ \|$"
        assert len(re.findall(row, table, flags=re.MULTILINE)) == 1, name
