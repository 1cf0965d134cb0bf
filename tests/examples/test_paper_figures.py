"""Figures of the papers are drawn from stored rows, and say what is missing."""

import json

import keras
import numpy as np
import pytest

import keras_calib as kc


@pytest.fixture(scope="module")
def figures(work):
    import figures

    return figures


@pytest.fixture(autouse=True)
def closed_figures():
    from matplotlib import pyplot

    yield
    pyplot.close("all")


def errors(ece, accuracy=0.6, confidence=0.7):
    return {"ece": ece, "accuracy": accuracy, "confidence": confidence}


def row(method, seed=0, ece=0.1, **more):
    """A stored row; only what figures read is in it."""
    return {
        "method": method,
        "seed": seed,
        "test": errors(ece),
        "validation": errors(ece + 0.01, 0.61),
        "machine": {"device": "a", "backend": "b", "keras": "c"},
        "date": "today",
        **more,
    }


def history(values, every=2):
    """Logs of epochs; validation samples are measured in each `every`th."""
    count = every * len(values)
    measured = [None] * count
    measured[every - 1 :: every] = values
    return {"epoch": [*range(1, count + 1)], "loss": [1.0] * count} | {
        "val_ece": measured
    }


def store(folder, name, rows):
    text = "".join(json.dumps(each) + "\n" for each in rows)
    (folder / f"{name}.jsonl").write_text(text)


def logits_of(seed, scale=1.5):
    """Logits and labels of a network that is overconfident in some classes."""
    rng = np.random.default_rng(seed)
    arrays = {}
    for part, count in (("validation", 60), ("calibration", 900), ("test", 90)):
        y = rng.permutation(count) % 4
        z = rng.normal(size=(count, 4)) + 1.6 * np.eye(4)[y]
        z = z * scale * np.array([1.0, 2.0, 2.5, 3.0])
        arrays[f"{part}_logits"] = z.astype("float16")
        arrays[f"{part}_labels"] = y.astype("uint8")
    return arrays


def draw(folder, table_name="S"):
    import table

    command = [table_name, "--results", str(folder), "--work", str(folder)]
    table.main([*command, "--figures", str(folder / "figures")])
    return sorted(path.name for path in (folder / "figures").glob("*.png"))


def test_every_figure_is_drawn_from_rows_and_logits(
    figures, tmp_path, capsys, monkeypatch
):
    import class_losses

    monkeypatch.setattr(class_losses, "STEPS", 40)
    names = ("CE", "LS", "MbLS", "ACLS")
    (tmp_path / "S").mkdir()
    rows = []
    for seed, name in enumerate(names):
        np.savez(tmp_path / "S" / f"{name}-0.npz", **logits_of(seed))
        ece = 0.1 + 0.01 * seed
        rows.append(row(name, ece=ece, history=history([0.3, 0.2, ece])))
    store(tmp_path, "S", [*rows, row("CE", seed=1, ece=0.9)])
    variants = ["LS: smoothing=0.01", "LS: smoothing=0.1"]
    variants += ["ACLS: margin=0.0", "ACLS: margin=6.0"]
    store(tmp_path, "S-sweep", [row(name) for name in variants])
    drawn = draw(tmp_path)
    assert drawn == sorted(f"S_{each[0]}.png" for each in figures.FIGURES)
    printed = capsys.readouterr().out
    assert printed.count("../figures/S_") == len(figures.FIGURES)
    assert "Left out" not in printed


def test_page_says_which_command_makes_what_is_missing(
    figures, tmp_path, capsys
):
    store(tmp_path, "S", [row("CE"), row("LS")])
    assert draw(tmp_path) == ["S_uncertainty.png"]
    printed = capsys.readouterr().out
    assert printed.count("\n- ") == len(figures.FIGURES) - 1
    assert "--only CE LS FL MbLS ACLS FL+SB-ECE --seeds 1 --history" in printed
    assert "run.py S-sweep --only LS MbLS ACLS" in printed


def test_page_of_a_table_with_one_method(figures, tmp_path, capsys):
    store(tmp_path, "LT", [row("CE")])
    assert not (tmp_path / "figures").exists()
    assert draw(tmp_path, "LT") == []
    printed = capsys.readouterr().out
    assert "run.py LT --only CE --seeds 1 --history 4" in printed
    assert "LT-sweep" not in printed


def test_commands_of_missing_figures_are_those_of_the_driver(papers):
    import run

    found = run.parse(
        "S --only CE LS FL MbLS ACLS --seeds 1 --history 4".split()
    )
    assert (found.history, found.seeds) == (4, 1)
    run.parse("S-sweep --only LS MbLS ACLS".split())


def test_curves_by_epoch_are_those_of_the_history(figures):
    rows = {
        ("CE", 0): row("CE", history=history([0.3, 0.2, 0.1])),
        ("LS", 0): row("LS", history=history([0.05, 0.06, 0.07])),
        ("FL", 0): row("FL", history={"epoch": [1], "loss": [1.0]}),
    }
    source = figures.Source("S", rows, None, None)
    (axes,) = figures.by_epoch(source).axes
    lines = {line.get_label(): line.get_xydata() for line in axes.lines}
    assert set(lines) == {"CE", "LS"}
    expected = [[2, 30], [4, 20], [6, 10]]
    np.testing.assert_allclose(lines["CE"], expected)


def test_a_sweep_takes_rows_that_differ_in_nothing_else(figures):
    rows = {}
    for name in (
        "MbLS: margin=6.0, weight=0.01",
        "MbLS: margin=6.0, weight=0.3",
        "MbLS: margin=0.0, weight=0.3",
        "ACLS: margin=2.0",
        "ACLS: positive_weight=0.05, negative_weight=0.01",
    ):
        rows[name, 0] = row(name)
    found = figures.points(rows, "MbLS", "weight", margin=6.0)
    assert sorted(found) == [0.01, 0.3]
    assert sorted(figures.points(rows, "ACLS", "margin")) == [2.0]


def test_sweeps_are_variants_that_can_be_trained(work):
    import probes

    protocols = work.protocols
    names = protocols.TABLES["S-sweep"]
    assert protocols.PROTOCOLS["S-sweep"] == protocols.PROTOCOLS["S"]
    assert len(names) == 6 + 10 + 6 + 16
    for name in names:
        spec = work.methods.method(name)
        assert np.isfinite(probes.loss_probe(spec)).all()


def test_names_of_points_lie_beside_them_and_not_on_others(papers):
    import drawing

    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 12)) / 4
    names = [f"method {place}" for place in range(12)]
    _, (axes,) = drawing.panels(1, 1, (7.0, 5.0))
    axes.plot(x, y, "o")
    axes.set(xlim=(-1, 1), ylim=(-1, 1))
    drawing.label_points(axes, x, y, names)
    assert sorted(text.get_text() for text in axes.texts) == sorted(names)
    boxes = [drawing.words_of(text) for text in axes.texts]
    points = axes.transData.transform(np.column_stack([x, y]))
    for place, box in enumerate(boxes):
        assert not any(box.overlaps(other) for other in boxes[:place])
        assert not any(box.contains(*point) for point in points)


@pytest.mark.parametrize("objective", ["CE", "LS", "FL"])
def test_slopes_are_the_derivatives_of_the_objectives(work, objective):
    import class_losses

    rng = np.random.default_rng(0)
    z, y = rng.normal(size=(5, 4)), rng.integers(0, 4, 5)
    one_hot = np.eye(4)[y]

    def values(z):
        p = work.softmax(z)
        q = one_hot
        if objective == "LS":
            s = class_losses.SMOOTHING
            q = (1 - s) * q + s / 4
        focus = (1 - (p * q).sum(1)) ** class_losses.GAMMA
        focus = focus if objective == "FL" else 1.0
        return focus * -(q * np.log(p)).sum(1)

    found = class_losses.slopes(work.softmax(z), one_hot, objective)
    for k in range(4):
        step = 1e-5 * np.eye(4)[k]
        expected = (values(z + step) - values(z - step)) / 2e-5
        np.testing.assert_allclose(found[:, k], expected, atol=1e-8)


def test_descent_ends_at_the_map_of_the_layer(work):
    import class_losses

    arrays = logits_of(3)
    z = arrays["calibration_logits"].astype("float64")
    y = arrays["calibration_labels"].astype("int64")
    layer = kc.layers.ClassTemperatureScaling(regularization=None)
    expected = layer.adapt(z, y).record["nll_after"]
    scale = class_losses.fit(z, y, "CE")[-1]
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    found = float(loss(y, (z * scale).astype("float32")))
    assert found == pytest.approx(expected, abs=2e-3)
    # With scaled class losses the classes are closer to each other.
    plain = class_losses.of_classes(work.softmax(z * scale), y)
    scaled = class_losses.fit(z, y, class_losses.OBJECTIVES[3])[-1]
    balanced = class_losses.of_classes(work.softmax(z * scaled), y)
    assert balanced.std() < plain.std()


def test_two_points_of_the_same_total_loss(papers):
    import class_losses

    total = np.array([3.0, 2.0, 1.0, 0.5, 0.8, 1.4, 2.6, 3.5])
    before, after = class_losses.same_total(total)
    assert before < 3 < after
    assert abs(total[before] - total[after]) < 0.7
    assert class_losses.same_total(np.array([3.0, 2.0, 1.0])) == ()


def test_regularizer_is_that_of_the_loss_clipped(figures, tmp_path):
    arrays = logits_of(0, scale=6.0)
    (tmp_path / "S").mkdir()
    np.savez(tmp_path / "S" / "ACLS-0.npz", **arrays)
    source = figures.Source("S", {("ACLS", 0): row("ACLS")}, tmp_path, tmp_path)
    (panel,) = figures.regularizer(source).axes
    heights = np.array([bar.get_height() for bar in panel.patches])
    assert heights.sum() == pytest.approx(100)
    z = arrays["validation_logits"].astype("float64")
    largest = z.max(1)
    others = np.maximum(largest[:, None] - z - 6.0, 0) ** 2
    value = 0.1 * np.maximum(largest - 6.0, 0) ** 2 + 0.01 * others.sum(1) / 3
    assert heights[-1] == pytest.approx(100 * (value >= 0.095).mean())
    none = 100 * (value == 0).mean()
    assert f"inactive: {none:.0f} %" in panel.get_title()


@pytest.mark.slow
def test_formulas_need_no_rows(figures, tmp_path, capsys):
    import table

    table.main(["formulas", "--figures", str(tmp_path)])
    assert len(list(tmp_path.glob("formulas_*.png"))) == 2
    assert capsys.readouterr().out.count("../figures/formulas_") == 2


def test_page_says_which_rows_each_figure_shows(figures, tmp_path, capsys):
    rows = [row("CE", 0, date="monday"), row("CE", 1, date="tuesday")]
    rows.append(row("LS", 0, date="friday"))
    store(tmp_path, "S", rows)
    (tmp_path / "S").mkdir()
    np.savez(tmp_path / "S" / "CE-1.npz", **logits_of(0))
    draw(tmp_path)
    printed = capsys.readouterr().out
    _, _, rest = printed.partition("(../figures/S_reliability.png)")
    assert rest.strip().startswith("Shown: CE, seed 1; ")
    assert rest.partition("\n\n## ")[0].strip().endswith("; tuesday.")


def test_figures_of_logits_that_are_gone_are_kept(figures, tmp_path):
    import row_files

    store(tmp_path, "S", [row("CE", 0), row("LS", 0)])
    found = row_files.read_rows(tmp_path / "S.jsonl")
    source = figures.Source("S", found, tmp_path, tmp_path)
    folder = tmp_path / "figures"
    known = {"S_reliability.png": "CE, seed 7; then"}
    figures.write_records(folder, known)
    text = figures.page(source, folder, kept=True)
    assert "(../figures/S_reliability.png)\n\nShown: CE, seed 7; then." in text
    assert "Histograms of the ACLS regularizer: no logits" in text
    assert figures.records(folder)["S_reliability.png"] == "CE, seed 7; then"
    assert "CE and LS, seed 0" in figures.records(folder)["S_uncertainty.png"]
    # Drawn again it is left out, because nothing is there to draw from.
    assert "S_reliability.png" not in figures.page(source, folder)


@pytest.mark.one_backend
def test_stored_figures_have_the_rows_that_they_show(figures):
    import places

    known = figures.records(figures.table.FIGURES)
    for table in ("S", "LT"):
        page = places.RESULTS / f"{table}_figures.md"
        for line in page.read_text().splitlines():
            if line.startswith("![") and f"/{table}_" in line:
                file = line.rpartition("/")[2].rstrip(")")
                assert f"Shown: {known[file]}." in page.read_text()
