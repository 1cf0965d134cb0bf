"""The papers' own networks and schedules, and ACLS with other conditions."""

import dataclasses

import keras
import numpy as np
import pytest
from keras import ops

import keras_calib as kc
from keras_calib.losses._batch_history import BatchHistory
from keras_calib.losses._batch_history import batch_history
from tests.helpers import to_numpy
from tests.helpers import value_and_gradient
from tests.losses.fixtures import LABELS_A
from tests.losses.fixtures import A


@pytest.fixture
def driver(papers):
    import run

    return run


def test_acls_with_the_ranking_condition_is_the_oracle_s(work):
    loss = work.condition_losses.RankedACLS(
        margin=1.0,
        reference="min",
        normalization="fraction",
        primary=None,
        from_logits=True,
    )
    history = BatchHistory(
        correct=ops.convert_to_tensor([1.0, 4.0, 2.0]),
        seen=ops.convert_to_tensor([5.0, 5.0, 5.0]),
        lowest=ops.convert_to_tensor(0.0),
    )
    with batch_history(history):
        value = float(loss(LABELS_A, A))
    assert value == pytest.approx(0.16878333, rel=1e-6)
    with batch_history(BatchHistory()):  # validation data have no history
        assert float(loss(LABELS_A, A)) == 0


def test_crl_with_the_margin_condition_has_its_gradient(work):
    loss = work.condition_losses.MarginCRL(
        margin=1.6, primary=None, from_logits=True
    )
    _, gradient = value_and_gradient(lambda z: loss(LABELS_A, z), A)
    expected = np.zeros_like(A)
    for row, z in enumerate(A):
        p = np.exp(z) / np.exp(z).sum()
        y = z.argmax()
        for j in range(3):
            if j == y:
                beyond = z[y] - z.min() >= 1.6
                expected[row, j] = p[y] * (1 - p[y]) * beyond
            else:
                expected[row, j] = -p[y] * p[j] * (z[y] - z[j] >= 1.6)
    assert 0 < (expected == 0).sum() < 9
    np.testing.assert_allclose(gradient, expected / 3, atol=1e-6)


@pytest.mark.parametrize("name", ["MarginCRL", "RankedACLS"])
def test_they_come_back_from_their_configs(work, name):
    loss = getattr(work.condition_losses, name)(margin=3.0, from_logits=True)
    copy = type(loss).from_config(loss.get_config())
    assert copy.margin == 3.0 and copy.from_logits


# As printed by Zagoruyko and Komodakis, Huang et al. and He et al., in
# millions; those of ImageNet, with 1,000 classes, as torchvision counts them.
PARAMETERS = {"wrn28-10": 36.5, "densenet40": 1.0, "resnet110": 1.7}
LARGE = {"resnet152, 7 x 7 stem": 60.2, "densenet161, 7 x 7 stem": 28.7}


@pytest.mark.one_backend
@pytest.mark.parametrize("name", PARAMETERS)
def test_networks_have_the_published_number_of_parameters(work, name):
    model = work.networks.build(name)
    assert round(model.count_params() / 1e6, 1) == PARAMETERS[name]


@pytest.mark.slow
@pytest.mark.one_backend
@pytest.mark.parametrize("name", LARGE)
def test_large_networks_have_as_many_parameters_as_elsewhere(work, name):
    model = work.networks.build(name, 1000, side=224)
    found = sum(np.prod(each.shape) for each in model.trainable_weights)
    assert round(found / 1e6, 1) == LARGE[name]


@pytest.mark.one_backend
@pytest.mark.parametrize(
    "name",
    ["wrn28-10", "densenet40", "densenet161, 7 x 7 stem", "vit", "cnn"],
)
@pytest.mark.parametrize("side", [32, 64])
def test_networks_give_logits_of_each_image(work, name, side):
    keras.utils.set_random_seed(0)
    model = work.networks.build(name, 5, side=side, width=4)
    x = np.random.default_rng(0).normal(size=(2, side, side, 3))
    before = to_numpy(model(x))
    assert before.shape == (2, 5) and np.isfinite(before).all()
    assert np.abs(before[0] - before[1]).max() > 1e-6


def test_stochastic_depth_drops_whole_blocks_in_training_only(work):
    x = keras.Input((4, 4, 3))
    y = work.networks.residual(x, 3, 1, False, dropped=0.5)
    block = keras.Model(x, y)
    images = np.abs(np.random.default_rng(0).normal(size=(64, 4, 4, 3)))
    images = images.astype("float32")
    found = to_numpy(block(images, training=True))
    unchanged = np.isclose(found, images, atol=1e-6).all(axis=(1, 2, 3))
    assert 15 < unchanged.sum() < 49
    tested = to_numpy(block(images, training=False))
    assert not np.isclose(tested, images).all(axis=(1, 2, 3)).any()


def test_the_rate_falls_after_the_papers_epochs(work):
    protocol = work.protocols.PROTOCOLS["tiny-resnet50"]
    schedule = work.Task({}, protocol, {}, 0).schedule(100 * 1406)
    rates = [
        float(to_numpy(schedule(round(epoch * 1406))))
        for epoch in (0, 39.9, 40.1, 59.9, 60.1, 99)
    ]
    assert rates == pytest.approx([0.1, 0.1, 0.01, 0.01, 0.001, 0.001])


def test_the_last_images_of_each_class_are_held_out(work, tmp_path):
    import data_sets

    y = np.repeat(np.arange(4), 10)
    arrays = {"x": np.arange(40), "y": y, "x_test": y[:3], "y_test": y[:3]}
    np.savez(
        tmp_path / "tiny_imagenet.npz", **arrays, inexact=np.zeros(0, "int64")
    )
    protocol = dataclasses.replace(
        work.protocols.PROTOCOLS["tiny-resnet50"], held_out=16
    )
    parts = data_sets.load(protocol, tmp_path)
    first = {name: list(x[:6]) for name, (x, _) in parts.items()}
    # In another order: the first ones are not of one class.
    assert len(set(y[first["train"]])) > 1
    assert first["validation"] == [6, 7, 16, 17, 26, 27]
    assert first["calibration"] == [8, 9, 18, 19, 28, 29]
    together = np.concatenate(
        [parts[name][0] for name in ("train", "validation", "calibration")]
    )
    assert sorted(together) == list(range(40))


@pytest.mark.parametrize(
    ("data", "classes", "images"),
    [("cifar10", 10, 20431), ("cifar100", 100, 19573)],
)
def test_long_tails_have_the_papers_number_of_images(
    work, data, classes, images, tmp_path
):
    import data_sets

    y = np.arange(50000) % classes
    np.savez(
        tmp_path / f"{data}.npz",
        x=np.arange(50000),
        y=y,
        x_test=y[:3],
        y_test=y[:3],
        inexact=np.zeros(0, "int64"),
    )
    protocol = work.protocols.PROTOCOLS[f"{data}-lt-resnet110"]
    parts = data_sets.load(protocol, tmp_path)
    sizes = {name: len(labels) for name, (_, labels) in parts.items()}
    total = sizes["train"] + sizes["validation"] + sizes["calibration"]
    # The paper rounds down; half of a class at most is a half image.
    assert total == pytest.approx(images, abs=classes)
    assert sizes["calibration"] == pytest.approx(images / 2, abs=classes)


def test_generator_states_outlast_two_kills(work, tmp_path, monkeypatch):
    images = keras.Input((2,))
    x = keras.layers.Dropout(0.5, seed=0)(images)
    model = keras.Model(images, keras.layers.Dense(1)(x))
    model.compile("sgd", "mse")
    path = tmp_path / "a.weights.h5"

    def state():
        (found,) = work.training.generators(model)
        return to_numpy(found).tolist()

    def watch():
        found = work.training.Resumable(path, batches=[0, 0])
        found.set_model(model)
        found.set_params({"epochs": 9})
        return found

    def train_to(epoch, found, killed=False):
        """Two steps an epoch; the checkpoint fails if the run is killed."""
        model.fit(np.ones((4, 2)), np.ones(4), 2, verbose=0)
        found.saved = 0
        if not killed:
            return found.save_or_stop(epoch - 1, 1e9)
        with monkeypatch.context() as patch, pytest.raises(OSError):
            patch.setattr(work.training, "save_weights", fail)
            found.save_or_stop(epoch - 1, 1e9)
        return None

    def fail(*_):
        raise OSError

    first = watch()
    train_to(1, first)
    expected = state()
    train_to(2, first, killed=True)
    again = watch()
    assert again.restore(model) == 1 and state() == expected
    train_to(2, again, killed=True)
    last = watch()
    assert last.restore(model) == 1 and state() == expected


def test_a_resumed_stream_is_not_the_same_again(work):
    asked = []

    def read(seed):
        asked.append(seed)
        return [seed]

    batches = work.training.Streamed(read, 3)
    assert batches.resumed(0) == [3] and batches.resumed(2) != [3]
    assert len(set(asked)) == len(asked) == 2


@pytest.mark.usefixtures("eager_functions")
def test_members_of_an_ensemble_are_trained_once(work, tmp_path, monkeypatch):
    trained = []

    def train(spec, protocol, data, seed, path, deadline, every):
        trained.append(seed)
        if deadline and len(trained) == 2:
            return None
        rng = np.random.default_rng(seed)
        logits = {
            part: rng.normal(size=(len(data[part][1]), 10))
            for part in ("validation", "calibration", "test", "train")
        }
        return logits, {}

    y = np.arange(40) % 10
    data = dict.fromkeys(
        ("train", "validation", "calibration", "test"), (y[:, None], y)
    )
    monkeypatch.setattr(work, "train", train)
    monkeypatch.setattr(work.data_sets, "load", lambda *_: dict(data))
    arguments = ("miniature", "ensemble of 3", 0, tmp_path / "row", tmp_path)
    assert work.run(*arguments, 1.0) is None
    row = work.run(*arguments)
    assert trained == [0, 1000, 1000, 2000]
    assert 0 <= row["test"]["accuracy"] <= 1
    import unfinished

    unfinished.remove(tmp_path / "row")
    assert [each.name for each in tmp_path.iterdir()] == ["row.npz"]


@pytest.mark.usefixtures("eager_functions")
@pytest.mark.parametrize("method", ["MarginCRL", "RankedACLS", "Diff-DML, CNN"])
def test_the_new_methods_train(work, method, tmp_path):
    name = {"MarginCRL": "CRL, margin", "RankedACLS": "ACLS, ranking"}
    spec = work.methods.METHODS[name.get(method, method)]
    protocol = dataclasses.replace(
        work.protocols.PROTOCOLS["miniature"], batch_size=16, epochs=2
    )
    rng = np.random.default_rng(0)
    data = {
        part: (
            rng.integers(0, 255, (32, 32, 32, 3)).astype("uint8"),
            np.arange(32) % 10,
        )
        for part in ("train", "validation", "calibration", "test")
    }
    logits, _ = work.train(spec, protocol, data, 0, tmp_path / "row", None)
    assert logits["test"].shape == (32, 10)
    assert np.isfinite(logits["test"]).all()


def batches(shape, label_shape, classes, count, seed):
    """Batches of eight images whose brightness tells their class."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        y = rng.integers(0, classes, (8, *label_shape))
        first = y.reshape(8, -1)[:, 0]
        x = rng.uniform(0, 100, (8, *shape)) + 40 * first[:, None, None, None]
        yield x.astype("float32"), y


class Batches(keras.utils.PyDataset):
    def __init__(self, *arguments):
        super().__init__()
        self.batches = list(batches(*arguments))

    def __len__(self):
        return len(self.batches)

    def __getitem__(self, index):
        return self.batches[index]


SMALL = {
    "imagenet-resnet50": {"image_size": 32, "classes": 300, "width": 4},
    "cub-resnet101": {"image_size": 32, "classes": 4, "network": "resnet8"},
    "voc-deeplab": {"image_size": 64, "classes": 3},
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        pytest.param("imagenet-resnet50", marks=pytest.mark.weekly),
        pytest.param("cub-resnet101", marks=pytest.mark.weekly),
        "voc-deeplab",
    ],
)
def test_streams_give_a_row(work, name, tmp_path, monkeypatch):
    protocol = dataclasses.replace(
        work.protocols.PROTOCOLS[name],
        epochs=2,
        dtype="float32",
        learning_rate=1e-3,
        **SMALL[name],
    )
    side = protocol.image_size
    pixels = protocol.kind == "streamed_pixels"
    asked = []

    def stream(source, part, *, image_size, batch_size, validation, seed):
        asked.append((source, part, image_size, batch_size, validation))
        labels = (side, side) if pixels else ()
        shape = (side, side, 3)
        count = {"train": 3, "validation": 4, "test": 2}[part]
        return Batches(shape, labels, protocol.classes, count, seed)

    monkeypatch.setattr(work.kc.datasets, "stream", stream)
    deeplab = work.networks.deeplab
    monkeypatch.setattr(
        work.networks,
        "deeplab",
        lambda *args, **kwargs: deeplab(
            *args, **kwargs, filters=(64, 4, 4, 4), blocks=(1, 1, 1, 1)
        ),
    )
    if pixels:
        pytest.importorskip("keras_hub")
    monkeypatch.setitem(work.protocols.PROTOCOLS, name, protocol)
    path = tmp_path / "row"
    # Stopped after an epoch; the second call goes on.
    assert work.run(name, "CE", 0, path, tmp_path, deadline=1.0) is None
    row = work.run(name, "CE", 0, path, tmp_path)
    assert len(row["history"]["loss"]) == 2
    assert np.isfinite(row["test"]["nll"]) and 0 <= row["test"]["ece"] <= 1
    with np.load(f"{path}.npz") as file:
        shape = file["test_logits"].shape
        of_pixels = (side // 8, side // 8) if pixels else ()
        assert shape == (16, *of_pixels, protocol.classes)
        assert file["validation_labels"].shape == (16, *of_pixels)
        assert file["calibration_labels"].max() < protocol.classes
    source = (protocol.streamed, "train", side, protocol.batch_size, 0.1)
    assert asked[0] == source


def test_methods_that_need_arrays_refuse_a_stream(work):
    protocol = work.protocols.PROTOCOLS["cub-resnet101"]
    task = work.Task({}, protocol, {}, 0)
    with pytest.raises(ValueError, match="needs its images as arrays"):
        work.procedures.cut_mixed(task)


def test_a_paper_s_gpu_tables_are_one_command(
    driver, monkeypatch, tmp_path, capsys
):
    ran = []

    def remember(arguments):
        ran.append((arguments.table, tuple(arguments.only)))
        return 0

    monkeypatch.setattr(driver, "run_table", remember)
    monkeypatch.setattr(driver, "absent", lambda arguments: None)
    assert driver.main(["--paper", "mbls", "--size", "gpu"]) == 0
    tables = [name for name, _ in ran]
    assert tables == [
        *("cifar10-resnet50", "cifar10-resnet101"),
        *("tiny-resnet50", "tiny-resnet101", "cub-resnet101"),
        *("cifar10-vit", "tiny-vit"),
    ]
    assert dict(ran)["tiny-vit"] == ("LS", "FL", "FLSD-53", "MbLS, margin 10")
    ran.clear()
    assert driver.main(["--paper", "class_scaling"]) == 0
    assert [name for name, _ in ran] == ["S", "F", "LT"]
    ran.clear()
    assert driver.main(["--paper", "soft_objectives"]) == 0
    assert [name for name, _ in ran] == ["S", "S-cross", "F", "C"]
    assert "FL+MMCE" in dict(ran)["S-cross"]
    ran.clear()
    capsys.readouterr()
    own = ["--results", str(tmp_path)]
    assert driver.main(["--paper", "acls", "--size", "cpu", *own]) == 0
    assert ran[-1] == ("S-sweep", ("ACLS",))
    # Its page, with the paper's numbers, ends it.
    assert "| ACLS | 95.40 | 1.12 |" in capsys.readouterr().out
    monkeypatch.setattr(driver, "run_table", lambda arguments: 1)
    assert driver.main(["--paper", "acls", *own]) == 1
    assert "| ACLS | 95.40 | 1.12 |" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [
        ["S", "--size", "gpu"],
        ["--paper", "acls", "--only", "CE"],
        ["S", "--paper", "acls", "--only", "CE"],
        ["--size", "cpu"],
    ],
)
def test_a_table_has_one_size(driver, arguments, capsys):
    with pytest.raises(SystemExit):
        driver.parse(arguments)
    assert "error" in capsys.readouterr().err
    assert driver.parse(["S", "--size", "cpu"]).table == "S"
    assert driver.parse(["G30", "--size", "gpu"]).table == "G30"


def test_every_published_line_names_a_method_of_its_table(work, driver):
    import of_a_paper
    import published

    for paper, each in published.PAPERS.items():
        assert of_a_paper.tables_of(paper, "gpu"), paper
        for block in each.blocks:
            for name in (n for group in block.groups() for n in group):
                wanted = {method for _, method, *_ in block.lines()} - {""}
                if name not in work.protocols.GPU:
                    continue
                missing = wanted - set(work.protocols.TABLES[name])
                streamed = work.protocols.PROTOCOLS[name].streamed
                # Its history is of arrays.
                assert missing == ({"CRL"} & wanted if streamed else set())


def test_acls_by_class_name_is_still_the_library_s(work):
    loss = work.build_loss({"class": "ACLS", "margin": 6.0})
    assert type(loss) is kc.losses.ACLS
