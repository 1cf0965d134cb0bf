"""The papers' tables are printed whole, with our rows in the right cells."""

import json
import pathlib
import shutil

import pytest


@pytest.fixture
def pages(papers):
    import paper_pages

    return paper_pages


def row(method, seed, ece, **more):
    """A stored row whose errors follow from one number."""
    errors = {"accuracy": 0.9, "ece": ece, "ece_mass": 2 * ece}
    return {
        "method": method,
        "seed": seed,
        "test": errors,
        "test_scaled": {"ece": ece / 2, "temperature": 1.5},
        "train": {"ece": ece / 4},
        "maps": {"VectorScaling": {"ece": 0.007, "accuracy": 0.8}},
        "machine": {"device": "a", "backend": "b", "keras": "c"},
        "date": "today",
        **more,
    }


def cells(page, title):
    """Cells of the table below a heading, by the label of their line."""
    _, _, rest = page.partition(f"## {title}\n")
    lines = rest.partition("\n## ")[0].splitlines()
    lines = [line[2:-2].split(" | ") for line in lines if line[:2] == "| "]
    header, _, *rest = lines
    return {line[0]: dict(zip(header, line, strict=True)) for line in rest}


def write(folder, name, rows):
    text = "".join(json.dumps(each) + "\n" for each in rows)
    (folder / f"{name}.jsonl").write_text(text)


def test_ours_stand_beside_the_papers_numbers(pages, tmp_path):
    write(tmp_path, "S", [row("CE", 0, 0.10), row("CE", 1, 0.12)])
    found = cells(pages.page("acls", tmp_path), "Table 3, CIFAR-10")
    assert found["CE"]["ResNet-50: ECE"] == "5.85"
    assert found["CE"]["ResNet-101: AECE"] == "5.73"
    assert found["CE"]["ours, S: ECE"] == "11.00 ± 1.00 (2)"
    assert found["CE"]["ours, S: AECE"] == "22.00 ± 2.00 (2)"
    assert found["CE+TS"]["ours, S: ECE"] == "5.50 ± 0.50 (2)"
    assert found["ACLS"]["ours, S: ECE"] == ""
    assert "ours, F: ECE" not in found["CE"]  # no rows, no column


def test_floor_is_that_of_the_confidences_as_trained(pages, tmp_path):
    rows = [row("CE", 0, 0.10), row("CE", 1, 0.12)]
    rows[0]["test"]["ece_floor"], rows[1]["test"]["ece_floor"] = 0.01, 0.02
    write(tmp_path, "S", rows)
    found = cells(pages.page("acls", tmp_path), "Table 3, CIFAR-10")
    assert found["CE"]["ours, S: floor"] == "1.50"
    assert found["CE+TS"]["ours, S: floor"] == ""


def test_lengths_of_one_training_stand_beside_each_other(pages, tmp_path):
    write(tmp_path, "G100", [row("CE", 0, 0.10)])
    write(tmp_path, "G30", [row("CE", 0, 0.20), row("MbLS", 0, 0.05)])
    found = cells(pages.page("acls", tmp_path), "Table 3, CIFAR-10")
    assert found["CE"]["ours, G100: ECE"] == "10.00"
    assert found["CE"]["ours, G30: ECE"] == "20.00"
    assert found["MbLS"]["ours, G100: ECE"] == ""
    # The paper's own network stands for them.
    write(tmp_path, "cifar10-resnet50", [row("CE", 0, 0.30)])
    found = cells(pages.page("acls", tmp_path), "Table 3, CIFAR-10")
    assert found["CE"]["ours, cifar10-resnet50: ECE"] == "30.00"
    assert "ours, G30: ECE" not in found["CE"]


def test_maps_and_temperatures_have_their_columns(pages, tmp_path):
    write(tmp_path, "S", [row("CE", 0, 0.10)])
    found = cells(pages.page("diff_dml", tmp_path), "Table S1, CIFAR-10")
    assert found["CE+VS"]["ours, S: ECE"] == "0.70"
    assert found["CE+VS"]["ours, S: ACC"] == "80.00"
    assert found["CE+VS"]["ours, S: cw-ECE"] == ""
    found = cells(pages.page("mbls", tmp_path), "Table 1, CIFAR-10")
    assert found["CE"]["ours, S: T"] == "1.50"
    title = "Table 3, memorization, CIFAR-10"
    found = cells(pages.page("soft_objectives", tmp_path), title)
    assert found["NLL"]["ours, S: Train ECE"] == "2.50"
    assert found["NLL"]["ours, S: ratio"] == "4.00"


def test_a_temperature_at_the_end_of_its_range_is_marked(pages, tmp_path):
    rows = [row("CE", 0, 0.10), row("FL", 0, 0.10)]
    for each, temperature in zip(rows, (0.0999999940395, 0.2), strict=True):
        each["test_scaled_to_sb_ece"] = {
            "temperature": temperature,
            "ece_mass_l2": 0.17,
        }
    write(tmp_path, "S", rows)
    page = pages.page("soft_objectives", tmp_path)
    found = cells(page, "Table 2, CIFAR-10")
    column = "ours, S: ECE l2+TS-SB-ECE"
    assert found["NLL"][column] == "17.00 \\*"
    assert found["Focal"][column] == "17.00"
    assert page.count("from 0.1 to 10, ended at the end of its range") == 1


def test_ways_of_scaling_are_those_of_the_row(pages, tmp_path):
    ways = {"scaled": {"ece": 0.01}, "scaled, sums": {"ece": 0.02}}
    ways["weights 1 / n_y"] = {"ece": 0.03}
    balance = {"TemperatureScaling": ways}
    write(tmp_path, "LT", [row("CE", 0, 0.10, class_balance=balance)])
    normal = {"TemperatureScaling": {"ND": {"ece": 0.04}}}
    smooth = {"TemperatureScaling": {"LS": {"ece": 0.06}}}
    more = {"class_scaling": normal, "objectives": smooth}
    write(tmp_path, "S", [row("CE", 0, 0.10, **more)])
    page = pages.page("class_scaling", tmp_path)
    found = cells(page, "Table 2, CIFAR10-LT")
    assert found["TS"]["ours, LT: ECE"] == "5.00"
    assert found["TS, scaled"]["ours, LT: ECE"] == "1.00"
    assert found["TS, equation 3 (sums)"]["ours, LT: ECE"] == "2.00"
    assert found["TS, classes balanced"]["ours, LT: ECE"] == "3.00"
    found = cells(page, "Table 3, normalizations, CIFAR-10")
    assert found["TS, ND"]["ours, S: ECE"] == "4.00"
    found = cells(page, "Table 1, CIFAR-10")
    assert found["TS+LS"]["ours, S: ECE"] == "6.00"


def test_of_gpu_tables_the_longest_with_rows_is_shown(pages, tmp_path):
    write(tmp_path, "G30", [row("CE", 0, 0.10)])
    page = pages.page("acls", tmp_path)
    assert "ours, G30: ECE" in page and "ours, G200" not in page
    assert "(`python examples/papers/run.py TABLE`): `S`, `F`" in page


def test_weights_of_the_sweep_fill_table_a(pages, tmp_path):
    name = "ACLS: positive_weight=0.1, negative_weight=0.01"
    validation = {"accuracy": 0.61, "ece": 0.03}
    write(tmp_path, "S-sweep", [row(name, 0, 0.5, validation=validation)])
    lost = "ACLS: positive_weight=0.0, negative_weight=0.01"
    write(tmp_path, "S-sweep-diverged", [{"method": lost, "seed": 0}])
    page = pages.page("acls", tmp_path)
    assert "| 0.1 |  |  | 61.00 / 3.00 |  |" in page
    assert "| 0 |  |  | diverged |  |" in page


def test_all_pages_are_written_by_one_command(pages, tmp_path, capsys):
    import table

    table.main(["papers", "--results", str(tmp_path / "none")])
    table.main(
        ["papers", "--results", str(tmp_path), "--into", str(tmp_path / "to")]
    )
    found = sorted(path.name for path in (tmp_path / "to").iterdir())
    papers = pages.published.PAPERS
    assert found == sorted(f"paper_{name}.md" for name in papers)
    assert capsys.readouterr().out.count("paper_acls.md") == 2


@pytest.mark.one_backend
def test_stored_pages_are_what_the_stored_rows_print(pages, tmp_path, capsys):
    import places
    import table

    results = places.RESULTS
    shutil.copy(results / "README.md", tmp_path)
    # Figures of logits that are not here stay as they are.
    shutil.copy(table.FIGURES / "drawn.json", tmp_path)
    places = {"into": tmp_path, "figures": tmp_path, "work": tmp_path / "none"}
    options = [f"--{name}={place}" for name, place in places.items()]
    table.main(["all", *options])
    printed = [pathlib.Path(line) for line in capsys.readouterr().out.split()]
    names = {path.stem for path in printed}
    assert names > {"S", "F", "C", "T", "D", "S10k", "verdicts", "paper_acls"}
    for path in printed:
        assert path.read_text() == (results / path.name).read_text(), path.name


def test_every_line_is_whole_and_names_a_method(pages):
    import methods
    import protocols

    for paper in pages.published.PAPERS.values():
        for block in paper.blocks:
            assert set(block.metrics) <= {*pages.METRICS, "ratio"}
            for each in block.ours:
                several = (each,) if isinstance(each, str) else each
                assert set(several) <= set(protocols.TABLES)
            lines = list(block.lines())
            assert len({label for label, *_ in lines}) == len(lines)
            for _, method, _, _ in lines:
                assert not method or method in methods.METHODS


def test_numbers_are_those_of_the_claims(pages):
    import claims

    def column(block, network, metric):
        place = block.networks.index(network) * len(block.metrics)
        place += block.metrics.index(metric)
        return {
            method: numbers[place]
            for _, method, after, numbers in block.lines()
            if method and not after
        }

    blocks = {
        block.title: block
        for paper in pages.published.PAPERS.values()
        for block in paper.blocks
    }
    compared = 0
    for source, titles, network, error in (
        (0, ["Table 3, CIFAR-10"], "ResNet-50", "ECE"),
        (
            1,
            [
                "Table S1, CIFAR-10",
                "Table S3, CIFAR-10: more auxiliaries, and an ensemble",
            ],
            "ResNet-34",
            "ECE",
        ),
        (2, ["Table 2, CIFAR-10"], "WRN-28-10", "ECE l2"),
    ):
        claimed = claims.PUBLISHED[source]
        expected = {**claimed.methods, "CE": claimed.baseline}
        for title in titles:
            accuracies = column(blocks[title], network, "ACC")
            for method, ece in column(blocks[title], network, error).items():
                if method in expected and ece != "-":
                    pair = float(accuracies[method]), float(ece)
                    assert pair == expected[method]
                    compared += 1
    assert compared > 25


def test_figures_are_drawn_where_all_logits_are(pages, tmp_path):
    import all_pages
    import figures
    import row_files

    write(tmp_path, "S", [row("CE", 0, 0.10), row("LS", 1, 0.05)])
    rows = row_files.read_rows(tmp_path / "S.jsonl")
    source = figures.Source("S", rows, tmp_path, tmp_path)
    (tmp_path / "S").mkdir()
    (tmp_path / "S" / "CE-0.npz").touch()
    assert not all_pages.all_logits(source)
    (tmp_path / "S" / "LS-1.npz").touch()
    assert all_pages.all_logits(source)


@pytest.mark.slow
def test_every_page_that_has_rows_is_written(pages, tmp_path, capsys):
    import places
    import table

    for name in ("S", "F", "T", "F_shift"):
        stored = (places.RESULTS / f"{name}.jsonl").read_text()
        (tmp_path / f"{name}.jsonl").write_text(stored)
    options = ["--results", tmp_path, "--work", tmp_path, "--into", tmp_path]
    options += ["--figures", tmp_path / "figures"]
    table.main(["all", *map(str, options)])
    written = {path.stem for path in tmp_path.glob("*.md")}
    expected = {"S", "S_figures", "F", "T", "F_people", "F_shift", "verdicts"}
    expected |= {"questions", "ranks", "formulas"}
    expected |= {f"paper_{name}" for name in pages.published.PAPERS}
    assert written == expected
    output = capsys.readouterr()
    assert len(output.out.split()) == len(expected)
    # Without logits some figures of S would lose curves.
    assert "S: figures of logits are left as they are" in output.err
    assert not (tmp_path / "figures" / "S_reliability.png").exists()
    assert (tmp_path / "figures" / "S_uncertainty.png").exists()
    assert (tmp_path / "figures" / "S_by_epoch.png").exists()
    assert (tmp_path / "figures" / "F_shift_after_ts.png").exists()


def test_pages_of_rows_that_are_not_there_are_left_out(pages, tmp_path):
    import places
    import table

    rows = (places.RESULTS / "T.jsonl").read_text()
    (tmp_path / "S-development.jsonl").write_text(rows)  # of no other page
    options = ["--results", tmp_path, "--work", tmp_path, "--into", tmp_path]
    options += ["--figures", tmp_path / "figures"]
    table.main(["all", *map(str, options)])
    written = {path.stem for path in tmp_path.glob("*.md")}
    own = "S-development"
    assert {own, "questions", "formulas", "paper_acls"} <= written
    assert not {"verdicts", "ranks"} & written


def test_a_table_of_what_was_tuned_shows_its_rows(pages, capsys):
    import places
    import table

    stored = places.RESULTS / "F-tuning.jsonl"
    rows = [json.loads(line) for line in stored.read_text().splitlines()]
    table.main(["F-tuning"])
    printed = capsys.readouterr().out.splitlines()
    lines = [line for line in printed if line.startswith("| ")][2:]
    shown = [line.split(" | ")[0].removeprefix("| ") for line in lines]
    assert shown == [row["method"] for row in rows]
