"""Costs in the READMEs are what the stored rows of the benchmarks print."""

import json

import pytest

from tests.helpers import example

pytestmark = pytest.mark.one_backend


@pytest.fixture(scope="module")
def tables():
    return example("benchmarks/cost_tables.py")


@pytest.fixture
def rows(tmp_path):
    """Writes rows of a backend and of a day to a file."""
    path = tmp_path / "costs.jsonl"

    def write(benchmark, backend, *rows, date="2026-11-28"):
        machine = {"device": "x86_64", "backend": backend, "keras": "3.15.1"}
        made = {"threads": "1", "date": date, "machine": machine}
        made |= {"versions": {backend: "1.2", "numpy": "2.0"}}
        with open(path, "a") as file:
            for row in rows:
                line = {"benchmark": benchmark, **row, **made}
                file.write(json.dumps(line) + "\n")
        return path

    return write


def test_readmes_hold_what_the_stored_rows_print(tables):
    pages = tables.pages(tables.cost_rows.RESULTS)
    assert len(pages) == 7
    for place, page in pages.items():
        assert place.read_text() == page, place.name


def test_every_part_has_rows(tables, tmp_path):
    found = tables.parts(tables.cost_rows.RESULTS)
    assert min(map(len, found.values())) >= 1
    assert sum(map(len, found.values())) == 17
    nothing = tables.parts(tmp_path / "none.jsonl")
    assert not any(nothing.values())


def test_losses_are_ratios_to_the_cross_entropy_of_their_column(tables, rows):
    def row(shape, loss, seconds):
        return {"shape": shape, "loss": loss, "seconds": seconds}

    # An older row of the same does not count.
    rows("losses", "jax", row("5 x 3", "MDCA", 9.0), date="2026-11-01")
    base = [row(shape, "cross-entropy", 0.002) for shape in ("step", "5 x 3")]
    rows("losses", "jax", *base, row("5 x 3", "MDCA", 0.003))
    base = row("5 x 3", "cross-entropy", 0.01)
    path = rows("losses", "tensorflow", base, row("5 x 3", "CRL", 0.02))
    assert tables.of_losses(path).splitlines() == [
        "| loss | JAX, 5 x 3 | TensorFlow, 5 x 3 | JAX, step |",
        "| --- | --- | --- | --- |",
        "| Keras' cross-entropy | 2 ms | 10 ms | 2 ms |",
        "| `MDCA` | 1.50 | - | - |",
        "| `CRL` | - | 2.00 | - |",
        "",
        "x86_64, which other work shared; one thread; JAX 1.2, TensorFlow 1.2; "
        "Keras 3.15.1; 2026-11-28.",
    ]


def test_seconds_of_maps_go_into_the_last_cell_of_their_line(tables, rows):
    row = {"map": "A(b=1)", "paper": 0.0123, "default": 1.237}
    auto = {"map": 'method="auto"', "paper": None, "default": 7.0}
    path = rows("maps", "torch", row, auto)
    page = "| `A(b=1)` | 2, 3 | 0.1, 0.2 |\n| `A` | 4 | 0.3, 0.4 |\n"
    # Another table of these maps, further down, is of something else.
    rest = "\n## More\n\n| `A(b=1)` | 0.5, 0.6 |\n"
    assert tables.with_seconds(page + rest, path) == (
        "| `A(b=1)` | 2, 3 | 0.012, 1.24 |\n| `A` | 4 | 0.3, 0.4 |\n" + rest
    )


def test_the_guard_names_the_maps_that_it_takes_long_for(tables, rows):
    def row(name, default, paper):
        values = {"map": name, "guarded_default": default}
        return {**values, "guarded_paper": paper}

    path = rows(
        "maps",
        "torch",
        *(row("A", 1.04, 3.0), row("B", 1.4, 6.2), row("C", 3.71, 3.71)),
    )
    assert tables.of_guard(path).startswith(
        "Fit and guard together take 1.0 to 1.4 times as long as the fit for "
        "maps at their defaults, but 3.7 for `C`; and 3.0 to 6.2 times for the "
        "papers' maps."
    )


def test_other_packages_are_multiples_of_ours(tables, rows):
    def row(package, processor, **more):
        return {
            **{"map": "matrix", "shape": [5000, 100], "package": package},
            **{"processor": processor, **more},
        }

    path = rows(
        "fit",
        "torch",
        row("keras_calib", 0.2, memory=3.83),
        row("probmetrics SMS", 0.5),
    )
    lines = tables.of_fits(path).splitlines()
    assert lines[0].split(" | ")[2:4] == ["ours", "probmetrics"]
    assert lines[2] == "| matrix | 5,000 x 100 | 0.20 s | 2.5 | 3.8 |"


def test_a_page_without_a_place_is_an_error(tables, monkeypatch, tmp_path):
    page = tmp_path / "plots/README.md"
    page.parent.mkdir()
    page.write_text("no marks\n")
    monkeypatch.setattr(tables, "FOLDER", tmp_path)
    monkeypatch.setattr(
        tables, "parts", lambda rows: {"plots/README.md": {"plots": "text"}}
    )
    with pytest.raises(ValueError, match="no place for the part 'plots'"):
        tables.pages(tmp_path / "none.jsonl")
