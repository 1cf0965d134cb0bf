"""`kc.model_card`: what it says, its metadata, its files, and the Hub."""

import copy
import json
import re
import shutil

import keras
import numpy as np
import pytest

import keras_calib as kc
from keras_calib.reporting._definitions import HEADLINE
from keras_calib.reporting._yaml import front_matter
from tests.calibration.networks import LOGITS
from tests.calibration.networks import X
from tests.calibration.networks import Y
from tests.calibration.networks import built
from tests.calibration.networks import dense
from tests.calibration.networks import functional

HALF = slice(150)


def network():
    return built(functional(dense("softmax")))


@pytest.fixture(scope="module")
def models():
    model = network()
    return model, kc.calibrate(model, X[HALF], Y[HALF], verbose=0)


@pytest.fixture(scope="module")
def report(models):
    before, after = models
    return kc.report(
        {"before": before, "after": after},
        X[150:],
        Y[150:],
        num_resamples=20,
        verbose=0,
    )


def parsed(card):
    """The metadata of a page, and its text."""
    yaml = pytest.importorskip("yaml")
    _, above, text = str(card).split("---\n", 2)
    return yaml.safe_load(above), text


def record_on(card):
    (found,) = re.findall(r"```json\n(.*?)\n```", card.text, flags=re.S)
    return json.loads(found, parse_constant=pytest.fail)


def test_the_card_holds_the_record(models):
    _, calibrated = models
    card = kc.model_card(calibrated)
    record = kc.calibration_record(calibrated)
    assert record_on(card) == record
    temperature = f"(temperature {record['temperature']:.3g})"
    assert f"calibrated on 150 samples {temperature}" in card.text
    for when in ("before", "after"):
        nll, ece = record[f"nll_{when}"], record[f"ece_{when}"]
        assert f"| {when} | {nll:.4f} | {ece:.4f} |" in card.text
    assert record["fingerprint"] in card.text
    assert "Nothing was measured on test data" in card.text
    assert "reliability.png" not in card.text


def test_a_card_says_why_an_interval_is_below_its_value(models, report):
    below = copy.deepcopy(report)
    row = below.models[-1].metrics["expected_calibration_error"]
    row |= {"low": 0.0, "high": row["value"] / 2}
    inside = copy.deepcopy(below)
    for measured in inside.models:
        for each in measured.metrics.values():
            each |= {"low": each["value"], "high": each["value"]}
    for given, told in ((below, True), (inside, False)):
        text = kc.model_card(models[1], given).text
        assert ("upward bias of few samples" in text) == told


def test_a_model_without_a_record_is_refused(models):
    with pytest.raises(ValueError, match="holds no calibration layer"):
        kc.model_card(models[0])


def test_metadata_is_what_the_hub_reads(models, report):
    card = kc.model_card(
        models[1], report, task="image-classification", dataset="Test: 150"
    )
    found, _ = parsed(card)
    assert found == card.metadata
    assert found["library_name"] == "keras"
    assert found["tags"] == ["calibration", "keras-calib"]
    assert found["pipeline_tag"] == "image-classification"
    (index,) = found["model-index"]
    assert index["name"] == models[1].name
    (result,) = index["results"]
    assert result["task"] == {"type": "image-classification"}
    assert result["dataset"] == {"name": "Test: 150", "type": "test-150"}
    after = report.models[1].metrics
    assert {m["type"]: m["value"] for m in result["metrics"]} == {
        key: round(after[key]["value"], 6) for key in HEADLINE
    }
    names = {m["type"]: m["name"] for m in result["metrics"]}
    key = "expected_calibration_error"
    assert names[key] == f"ECE (noise floor {after[key]['floor']:.4f})"


def test_huggingface_hub_reads_the_page(models, report):
    hub = pytest.importorskip("huggingface_hub")
    card = kc.model_card(models[1], report)
    read = hub.ModelCard(str(card))
    assert read.data.library_name == "keras"
    assert read.data.tags == ["calibration", "keras-calib"]
    results = {each.metric_type: each for each in read.data.eval_results}
    assert set(results) == set(HEADLINE)
    assert results["accuracy"].task_type == "other"
    assert results["accuracy"].dataset_name == "test data"
    assert results["brier_score"].metric_value == pytest.approx(
        report.models[1].metrics["brier_score"]["value"], abs=1e-6
    )


def test_without_a_report_there_is_no_index(models):
    found, text = parsed(kc.model_card(models[1], task="text-classification"))
    assert found == {
        "library_name": "keras",
        "tags": ["calibration", "keras-calib"],
        "pipeline_tag": "text-classification",
    }
    assert text.strip().startswith("# ")


@pytest.mark.parametrize(
    "value",
    [
        "no",
        "1e-05",
        "a: b",
        '"quoted"',
        "back\\slash",
        "# comment",
        "- item",
        "two\nlines",
        "tab\tnull\0",
        "\x7f\x85\u2028\ufeff",
        "ümläut 日本 \U0001f600",
        "",
        "---",
        0.1,
        1e-05,
        2.5e-20,
        1e22,
        -3.0,
        0,
        12,
    ],
)
def test_yaml_is_read_as_it_was_meant(value):
    yaml = pytest.importorskip("yaml")
    content = {"key": value, "list": [value, {"a": value, "b": [value]}]}
    lines = front_matter(content).split("\n")
    assert lines[0] == lines[-2] == "---"
    found = yaml.safe_load("\n".join(lines[1:-2]))
    assert found == content
    assert type(found["key"]) is type(value)


def test_numbers_of_the_report_are_on_the_card(models, report):
    card = kc.model_card(models[1], report)
    before, after = report.models
    for sentence in [*report.verdicts["after"], *report.comparison]:
        assert sentence in card.text
    for key, short in HEADLINE.items():
        row, old = after.metrics[key], before.metrics[key]["value"]
        assert f"| {short} | {old:.4f} | {row['value']:.4f} |" in card.text
    assert "Nothing was measured" not in card.text


def test_the_calibrated_model_is_found_by_its_name(models):
    before, after = models
    options = {"num_resamples": 20, "verbose": 0}
    data = X[150:], Y[150:]
    for name in ("after", "calibrated", after.name):
        # Wherever it stands.
        found = kc.report({name: after, "old": before}, *data, **options)
        card = kc.model_card(after, found)
        value = found.models[0].metrics["negative_log_likelihood"]["value"]
        metrics = card.metadata["model-index"][0]["results"][0]["metrics"]
        assert round(value, 6) in [each["value"] for each in metrics]
        assert list(card.diagrams) == ["old", name]
    unknown = kc.report({"old": before, "new": after}, *data, **options)
    with pytest.raises(ValueError, match="which model of the report"):
        kc.model_card(after, unknown)
    assert list(kc.model_card(after, unknown, name="new").diagrams) == [
        "old",
        "new",
    ]
    with pytest.raises(ValueError, match="name='missing'"):
        kc.model_card(after, unknown, name="missing")
    alone = kc.report({"whatever": after}, *data, **options)
    assert list(kc.model_card(after, alone).diagrams) == ["whatever"]


def test_a_report_of_other_classes_is_refused(models):
    p = np.full((40, 2), 0.5)
    other = kc.report(p, y=np.arange(40) % 2, num_resamples=20)
    with pytest.raises(ValueError, match="same number of classes"):
        kc.model_card(models[1], other)


def test_an_infinite_loss_is_not_in_the_metadata(models):
    p = np.eye(3)[np.arange(60) % 3]
    report = kc.report(p, y=np.arange(1, 61) % 3, num_resamples=20)
    found, _ = parsed(kc.model_card(models[1], report))
    metrics = found["model-index"][0]["results"][0]["metrics"]
    names = [each["type"] for each in metrics]
    assert "negative_log_likelihood" not in names
    assert "accuracy" in names


def test_decisions_are_told(tmp_path):
    logits = kc.calibrate(network(), X, Y, output="logits", verbose=0)
    scores = logits.predict(X, verbose=0), Y
    layers = [
        kc.layers.ConformalSets(coverage=0.8, name="sets").adapt(*scores),
        kc.layers.RiskThreshold(target_risk=0.15, name="sure").adapt(*scores),
        kc.layers.MetaCal(max_miscoverage=0.1, name="meta").adapt(LOGITS, Y),
        kc.layers.ConformalSets(name="unfitted"),
    ]
    model = keras.Model(
        logits.input, [layer(logits.output) for layer in layers], name="all"
    )
    card = kc.model_card(model)
    sets, sure, meta, _ = (layer.record for layer in layers)
    assert "`sets` gives sets of classes (LAC)" in card.text
    assert "probability of at least 0.8" in card.text
    assert f"a set has {sets['mean_size']:.2f} classes" in card.text
    assert (
        f"it accepted {sure['accepted']}, {sure['errors']} of them wrong"
        in card.text
    )
    assert "at most 0.15 of the accepted predictions are wrong" in card.text
    assert "a probability of at most 0.1. Of 300 samples" in card.text
    assert f"{meta['accepted_correct']} of them right" in card.text
    assert "`unfitted` (ConformalSets) is not fitted." in card.text
    assert "hold" in card.text.split("## Limits")[1]
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert str(kc.model_card(loaded)) == str(card)


def test_what_the_guard_found_is_told(models):
    _, calibrated = models
    held_out = kc.calibration_record(calibrated)["guard"]["held_out_nll"]
    text = kc.model_card(calibrated).text
    for value in held_out.values():
        assert f"{value:.4f} for " in text
    free = kc.calibrate(network(), X, Y, guard=False, verbose=0)
    assert "not compared with temperature" in kc.model_card(free).text
    chosen = kc.calibrate(network(), X, Y, method="auto", verbose=0)
    text = kc.model_card(chosen).text
    assert "chosen by the NLL of left-out samples" in text
    assert "not compared" not in text.split("## The record")[0].split("```")[0]


def test_settings_of_the_fit_are_told():
    calibrated = kc.calibrate(
        network(),
        X,
        Y,
        method="temperature",
        objective="soft_binned_ece",
        guard=False,
        verbose=0,
    )
    card = kc.model_card(calibrated)
    settings = kc.calibration_record(calibrated)["objective_arguments"]
    words = ", ".join(f"{key}={value}" for key, value in settings.items())
    assert settings
    assert f"| fitted by | soft_binned_ece ({words}) |" in card.text
    assert "class-wise loss scaling |" not in card.text
    calibrated = kc.calibrate(
        network(), X, Y, class_loss_scaling="normal", verbose=0
    )
    card = kc.model_card(calibrated)
    assert "| class-wise loss scaling | normal |" in card.text
    # In a notebook the metadata is not shown.
    assert card._repr_markdown_() == card.text


def test_a_least_accuracy_is_told():
    meta = kc.layers.MetaCal(min_accuracy=0.7, confidence=0.9, name="meta")
    logits = kc.calibrate(network(), X, Y, output="logits", verbose=0)
    meta.adapt(LOGITS, Y)
    model = keras.Model(logits.input, meta(logits.output))
    text = kc.model_card(model).text
    promise = "`meta` accepts predictions of an accuracy of at least 0.7, with "
    assert f"{promise}a confidence of 0.9. Of 300 samples" in text


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("number", "method", "rejected", "returned"),
    [
        (300, "spline", False, "temperature scaling"),
        (20_000, "temperature", True, "the model as it came"),
    ],
)
def test_a_layer_that_was_not_kept_is_told(number, method, rejected, returned):
    # Labels for which the network is calibrated as it is, or overconfident.
    rng = np.random.default_rng(0)
    x = np.resize(X, (number, X.shape[1]))
    z = np.resize(LOGITS, (number, 3)) / (1 if rejected else 2)
    labels = (z + rng.gumbel(size=z.shape)).argmax(axis=1)
    calibrated = kc.calibrate(network(), x, labels, method=method, verbose=0)
    text = kc.model_card(calibrated).text
    assert ("**rejected**" in text) == rejected
    assert f"The model has {returned}." in text


def test_a_prior_correction_is_told(models):
    corrected = kc.adjust_prior(
        models[1], X[150:], prior=[0.5, 0.3, 0.2], verbose=0
    )
    text = kc.model_card(corrected).text
    assert "corrected for other class frequencies, which were passed in" in text
    with pytest.warns(UserWarning, match="show no shift"):
        estimated = kc.adjust_prior(models[1], X[150:], verbose=0)
    text = kc.model_card(estimated).text
    assert "which were estimated from unlabeled samples" in text


def test_several_labels():
    x = X[:200]
    y = (x[:, :3] + np.random.default_rng(0).normal(size=(200, 3)) > 0).astype(
        "int32"
    )
    model = functional(keras.layers.Dense(3, "sigmoid"))
    calibrated = kc.calibrate(model, x, y, multi_label=True, verbose=0)
    card = kc.model_card(calibrated)
    assert "A Keras classifier of 3 labels" in card.text
    assert record_on(card) == kc.calibration_record(calibrated)


def test_a_fused_model_needs_keras_alone(models):
    fused = kc.calibrate(network(), X, Y, fuse=True, verbose=0)
    assert "import keras_calib" not in kc.model_card(fused).text
    assert "import keras_calib" in kc.model_card(models[1]).text


def test_files(models, report, tmp_path):
    card = kc.model_card(models[1], report)
    card.save(tmp_path / "new" / "card")
    folder = tmp_path / "new" / "card"
    assert sorted(p.name for p in folder.iterdir()) == [
        "README.md",
        "reliability.png",
    ]
    assert (folder / "README.md").read_text(encoding="utf-8") == str(card)
    assert "![Reliability diagram](reliability.png)" in card.text
    picture = (folder / "reliability.png").read_bytes()
    assert picture.startswith(b"\x89PNG") and len(picture) > 10_000
    # The same card is the same files.
    card.save(folder, overwrite=True)
    assert (folder / "reliability.png").read_bytes() == picture
    kc.model_card(models[1]).save(tmp_path / "plain")
    assert [p.name for p in (tmp_path / "plain").iterdir()] == ["README.md"]


@pytest.mark.parametrize("name", ["README.md", "reliability.png"])
def test_files_are_not_replaced_unasked(name, models, report, tmp_path):
    (tmp_path / name).write_text("mine")
    card = kc.model_card(models[1], report)
    with pytest.raises(ValueError, match="overwrite=True"):
        card.save(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "mine"
    card.save(tmp_path, overwrite=True)
    assert (tmp_path / "README.md").read_text() == str(card)


def test_nothing_is_half_written(models, report, tmp_path, monkeypatch):
    (tmp_path / "README.md").write_text("old")
    monkeypatch.setattr(
        "keras_calib._whole_file.os.replace",
        lambda *_: (_ for _ in ()).throw(OSError("disk is full")),
    )
    card = kc.model_card(models[1], report)
    with pytest.raises(OSError, match="disk is full"):
        card.save(tmp_path, overwrite=True)
    assert [p.name for p in tmp_path.iterdir()] == ["README.md"]
    assert (tmp_path / "README.md").read_text() == "old"


def test_missing_matplotlib_is_named(models, report, tmp_path, monkeypatch):
    find = __import__("importlib.util").util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec",
        lambda name: None if name == "matplotlib" else find(name),
    )
    with pytest.raises(ImportError, match="pip install matplotlib"):
        kc.model_card(models[1], report).save(tmp_path)
    assert not list(tmp_path.iterdir())
    kc.model_card(models[1]).save(tmp_path)


class Hub:
    """A Hub in a folder, as Keras and `upload_folder` see it."""

    def __init__(self, folder):
        self.folder = folder

    def __call__(self, **_):
        return self

    def create_repo(self, repo_id, **_):
        self.repo_id = repo_id
        return self

    def upload_folder(self, *, repo_id, folder_path, **_):
        target = self.folder / repo_id
        shutil.copytree(folder_path, target, dirs_exist_ok=True)

    def snapshot_download(self, repo_id, **_):
        return str(self.folder / repo_id)


def test_the_way_to_the_hub_and_back(models, report, tmp_path, monkeypatch):
    hub = pytest.importorskip("huggingface_hub")
    _, calibrated = models
    fake = Hub(tmp_path / "hub")
    monkeypatch.setattr(hub, "HfApi", fake)
    monkeypatch.setattr(hub, "snapshot_download", fake.snapshot_download)
    calibrated.save("hf://user/name")
    card = kc.model_card(calibrated, report)
    card.save(tmp_path / "card")
    # Keras writes a page of its own, which ours replaces.
    page = tmp_path / "hub" / "user" / "name" / "README.md"
    assert page.exists() and page.read_text() != str(card)
    fake.upload_folder(repo_id="user/name", folder_path=tmp_path / "card")
    assert page.read_text() == str(card)
    loaded = keras.saving.load_model("hf://user/name")
    assert kc.calibration_record(loaded) == kc.calibration_record(calibrated)
    np.testing.assert_array_equal(
        loaded.predict(X, verbose=0), calibrated.predict(X, verbose=0)
    )
