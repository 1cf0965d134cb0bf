"""Labels of people: answers to test images, and wrong training labels."""

import dataclasses
import json

import numpy as np
import pytest


def sample(n=300, classes=4):
    rng = np.random.default_rng(0)
    fractions = rng.multinomial(50, rng.dirichlet(np.ones(classes)), size=n)
    return fractions / 50, 2.0 * rng.normal(size=(n, classes))


def test_errors_against_fractions_are_those_of_the_formulas(work):
    import measures

    fractions, logits = sample()
    p = measures.softmax(logits)
    found = measures.errors_against(fractions, p)
    top = p.argmax(axis=1)
    rows = np.arange(len(p))
    agreement, confidence = fractions[rows, top], p[rows, top]
    assert found["accuracy"] == pytest.approx(agreement.mean(), abs=1e-6)
    gaps = [
        (agreement - confidence)[np.ceil(confidence * 15) == k].sum()
        for k in range(1, 16)
    ]
    assert found["ece"] == pytest.approx(np.abs(gaps).sum() / 300, abs=1e-6)
    nll = -(fractions * np.log(p)).sum(axis=1).mean()
    assert found["nll"] == pytest.approx(nll, abs=1e-6)


def test_the_temperature_of_people_fits_their_answers_best(work):
    import measures

    fractions, logits = sample()
    found = measures.measure_people(
        {"calibration": logits, "test": logits},
        {"calibration": fractions, "test": fractions},
        3.0,
    )
    best = found["test_scaled_to_people"]
    logs = np.log(np.where(fractions > 0, fractions, 1.0))
    entropy = -(fractions * logs).sum(axis=1).mean()
    assert found["entropy"] == pytest.approx(entropy, abs=1e-6)
    assert best["kl"] == pytest.approx(best["nll"] - entropy, abs=2e-6)
    for factor in (0.9, 1.1):
        p = measures.softmax(logits / (factor * best["temperature"]))
        assert measures.errors_against(fractions, p)["nll"] > best["nll"]
    assert found["test_scaled"]["temperature"] == 3.0


def test_answers_are_cut_as_the_images_are(work, tmp_path, monkeypatch):
    import data_sets
    import protocols

    monkeypatch.setenv("KERAS_CALIB_DATA", str(tmp_path))
    protocol = dataclasses.replace(protocols.PROTOCOLS["F"], test=7)
    assert data_sets.answers_of_people(protocol) is None
    counts = np.zeros((10000, 10), "uint8")
    counts[np.arange(10000), np.arange(10000) % 10] = 50
    np.savez(tmp_path / data_sets.PEOPLE, counts=counts)
    found = data_sets.answers_of_people(protocol)
    assert found["calibration"].argmax(1).tolist() == [
        row % 10 for row in range(3500, 5000)
    ]
    assert found["test"].argmax(1).tolist() == [0, 1, 2, 3, 4, 5, 6]


def test_only_training_labels_are_wrong(work, tmp_path, monkeypatch):
    import data_sets
    import protocols

    rng = np.random.default_rng(0)
    data = {
        "x": rng.integers(0, 255, (60, 2, 2, 3), dtype="uint8"),
        "y": rng.integers(0, 10, 60),
        "x_test": rng.integers(0, 255, (20, 2, 2, 3), dtype="uint8"),
        "y_test": rng.integers(0, 10, 20),
        "inexact": np.array([1, 3]),
    }
    monkeypatch.setattr(data_sets, "all_images", lambda *_: data)
    monkeypatch.setenv("KERAS_CALIB_DATA", str(tmp_path))
    wrong = rng.integers(0, 10, 60).astype("uint8")
    np.savez(tmp_path / "cifar_n_labels.npz", cifar10_worse_label=wrong)
    protocol = dataclasses.replace(
        protocols.PROTOCOLS["N40"], train=30, held_out=20
    )
    found = data_sets.load(protocol, tmp_path)
    plain = data_sets.images(protocol, tmp_path)
    x, y = found.pop("train")
    exact = [row for row in range(60) if row not in (1, 3)][:30]
    np.testing.assert_array_equal(x, plain.pop("train")[0])
    np.testing.assert_array_equal(y, wrong[exact])
    for part, (_, labels) in plain.items():
        np.testing.assert_array_equal(found[part][1], labels)


def answered(method, seed, ece):
    """A stored row whose errors follow from one of them."""
    value = {"temperature": 2.0, "ece": ece, "kl": 2 * ece, "mean_entropy": 0.3}
    parts = ("test", "test_scaled", "test_scaled_to_people")
    people = {part: value for part in parts} | {"entropy": 0.1}
    own = {"ece": ece / 4, "ece_floor": 0.01}
    return {
        **{"method": method, "seed": seed, "people": people},
        **{"test": own, "test_scaled": own, "date": "today"},
        "machine": {"device": "a", "backend": "b", "keras": "c"},
    }


def test_page_compares_with_cross_entropy_by_seed(papers, tmp_path, capsys):
    import table

    rows = [answered("CE", 0, 0.08), answered("CE", 1, 0.12)]
    rows += [answered("LS", 0, 0.06), answered("LS", 1, 0.08)]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "F.jsonl").write_text(text)
    table.main(["F", "--people", "--results", str(tmp_path)])
    printed = capsys.readouterr().out
    values = "-3.00 ± 1.00 | -0.060 ± 0.020"
    assert f"| LS | 2 | {values} | {values} | {values} | - |" in printed
    values = "2.50 ± 0.50 | 1.00 | 10.00 ± 2.00"
    assert f"| CE | 2 | {values} | {values} |" in printed


def test_page_of_rows_without_answers_is_refused(papers, tmp_path):
    import table

    row = answered("CE", 0, 0.08)
    row.pop("people")
    (tmp_path / "F.jsonl").write_text(json.dumps(row))
    with pytest.raises(SystemExit, match="was compared with people"):
        table.main(["F", "--people", "--results", str(tmp_path)])
