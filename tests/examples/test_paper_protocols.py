"""Protocols beyond training from scratch, on data of a few rows."""

import dataclasses
import functools
import json
import lzma
import os
import pathlib

import keras
import numpy as np
import pytest

from tests.helpers import to_numpy


def small_state(seed=0, channels=(4, 8, 16)):
    """Weights of a published network with one block in each stage."""
    rng = np.random.default_rng(seed)
    state = {}

    def unit(prefix, number, before, after):
        shape = (after, before, 3, 3)
        scale = (9 * before) ** -0.5
        state[f"{prefix}conv{number}.weight"] = scale * rng.normal(size=shape)
        for key in ("weight", "running_var"):
            name = f"{prefix}bn{number}.{key}"
            state[name] = rng.uniform(0.5, 1.5, after)
        for key in ("bias", "running_mean"):
            state[f"{prefix}bn{number}.{key}"] = 0.3 * rng.normal(size=after)

    before = channels[0]
    unit("", 1, 3, before)
    for stage, after in enumerate(channels):
        unit(f"layer{stage + 1}.0.", 1, before, after)
        unit(f"layer{stage + 1}.0.", 2, after, after)
        before = after
    state["linear.weight"] = rng.normal(size=(10, before))
    state["linear.bias"] = rng.normal(size=10)
    return {key: value.astype("float32") for key, value in state.items()}


def published_in_torch(state, x):
    """The same network written with PyTorch's functions."""
    torch = pytest.importorskip("torch")
    f = torch.nn.functional
    state = {k: torch.tensor(v, dtype=torch.float64) for k, v in state.items()}

    def unit(x, prefix, number, stride=1):
        kernel = state[f"{prefix}conv{number}.weight"]
        x = f.conv2d(x, kernel, stride=stride, padding=1)
        keys = ("running_mean", "running_var", "weight", "bias")
        values = [state[f"{prefix}bn{number}.{key}"] for key in keys]
        return f.batch_norm(x, *values, eps=1e-5)

    mean = torch.tensor([0.485, 0.456, 0.406], dtype=torch.float64)
    deviation = torch.tensor([0.229, 0.224, 0.225], dtype=torch.float64)
    x = torch.tensor(x.astype("float64") / 255)
    x = ((x - mean) / deviation).permute(0, 3, 1, 2)
    x = f.relu(unit(x, "", 1))
    for stage in (1, 2, 3):
        prefix, stride = f"layer{stage}.0.", 1 + (stage > 1)
        y = unit(f.relu(unit(x, prefix, 1, stride)), prefix, 2)
        if stride == 2:
            quarter = y.shape[1] // 4
            x = f.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, quarter, quarter))
        x = f.relu(x + y)
    x = x.mean((2, 3))
    return (x @ state["linear.weight"].T + state["linear.bias"]).numpy()


def images(count, seed=0):
    """Images whose brightness tells their class."""
    y = np.arange(count) % 10
    x = np.random.default_rng(seed).integers(0, 128, (count, 32, 32, 3))
    return (x + 12 * y[:, None, None, None]).astype("uint8"), y


@pytest.fixture
def weights_folder(tmp_path, monkeypatch):
    folder = tmp_path / "data"
    folder.mkdir()
    np.savez(folder / "resnet20_cifar10_weights.npz", **small_state())
    monkeypatch.setenv("KERAS_CALIB_DATA", str(folder))
    return folder


def test_published_network_is_the_one_that_the_weights_are_from(
    work, weights_folder
):
    task = work.Task({}, work.protocols.PROTOCOLS["F"], {}, 0)
    x, _ = images(6)
    found = task.network("published").predict(x, verbose=0)
    expected = published_in_torch(small_state(), x)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)


def numbered_images(path, count=50000, inexact=(3, 5), tests=100):
    """A file in place of CIFAR-10 whose images are their own numbers."""
    x = np.arange(count)
    labels = np.random.default_rng(0).permutation(count) % 10
    test = np.arange(tests)
    arrays = dict(x=x, y=labels, x_test=test, y_test=test % 10)
    np.savez(path, **arrays, inexact=np.array(inexact, "int64"))
    return labels


def test_fine_tuning_divides_the_test_images_by_their_rows(work, tmp_path):
    import data_sets

    numbered_images(tmp_path / "cifar10.npz", inexact=(), tests=10000)
    parts = data_sets.load(work.protocols.PROTOCOLS["F"], tmp_path)
    found = {name: (x[0], x[-1], len(y)) for name, (x, y) in parts.items()}
    assert found == {
        "train": (0, 49999, 50000),
        "held_back": (0, 1999, 2000),
        "validation": (2000, 3499, 1500),
        "calibration": (3500, 4999, 1500),
        "test": (5000, 9999, 5000),
    }


def test_development_parts_are_exact_training_images(work, tmp_path):
    import data_sets

    inexact = (10001, 22499, 30000, 35000)
    numbered_images(tmp_path / "cifar10.npz", inexact=inexact)
    protocol = work.protocols.PROTOCOLS["S-development"]
    parts = data_sets.load(protocol, tmp_path)
    found = {name: (x[0], x[-1], len(y)) for name, (x, y) in parts.items()}
    assert found == {
        "train": (10000, 15000, 5000),
        "validation": (20000, 22498, 2499),
        "calibration": (22500, 29999, 7500),
        "test": (30001, 40001, 10000),
    }


@pytest.fixture
def fine_tuning(work, weights_folder):
    """A protocol and data for it, seconds long."""
    protocol = dataclasses.replace(
        work.protocols.PROTOCOLS["F"], batch_size=16, per_epoch=64, epochs=2
    )
    names = ("train", "held_back", "validation", "calibration", "test")
    sizes = (100, 40, 20, 20, 30)
    data = {
        name: images(size, seed)
        for seed, (name, size) in enumerate(zip(names, sizes, strict=True))
    }
    return protocol, data


@pytest.mark.usefixtures("eager_functions")
@pytest.mark.parametrize(
    "method",
    [pytest.param("CE", marks=pytest.mark.weekly), "MDCA, interleaved"],
)
def test_fine_tuning_draws_some_images_and_goes_on_where_it_was(
    work, fine_tuning, method, tmp_path, monkeypatch
):
    protocol, data = fine_tuning
    spec = work.methods.METHODS[method]
    built = []

    def remember(task, make=work.procedures.PROCEDURES[spec["train"]]):
        built.append(make(task))
        return built[-1]

    monkeypatch.setitem(work.procedures.PROCEDURES, spec["train"], remember)
    arguments = (spec, protocol, data, 0)
    whole, _ = work.train(*arguments, str(tmp_path / "whole"), None)
    assert work.train(*arguments, str(tmp_path / "parts"), 1.0) is None
    parts, _ = work.train(*arguments, str(tmp_path / "parts"), None)
    # 64 of 100 images, and all 40 that were held back: 4 and 2 batches.
    per_epoch = 4 + 2 * (method == "MDCA, interleaved")
    for run in (built[0], built[2]):
        steps = int(to_numpy(run.model.optimizer.iterations))
        assert steps == run.steps == 2 * per_epoch
    for part, value in whole.items():
        assert value.shape == (len(data[part][1]), 10)
        np.testing.assert_allclose(value, parts[part], rtol=1e-3, atol=1e-3)
    before = built[0].model.count_params()
    assert before == built[2].model.count_params()
    start = published_in_torch(small_state(), data["test"][0])
    assert np.abs(whole["test"] - start).max() > 0.1  # it was trained


@pytest.mark.usefixtures("eager_functions")
def test_network_as_published_is_only_measured(work, fine_tuning, tmp_path):
    protocol, data = fine_tuning
    spec = work.methods.METHODS["as published"]
    logits, _ = work.train(spec, protocol, data, 0, str(tmp_path / "a"), None)
    expected = published_in_torch(small_state(), data["test"][0])
    np.testing.assert_allclose(logits["test"], expected, rtol=1e-3, atol=1e-3)


def test_long_tail_is_that_of_equation_16(work, tmp_path):
    import data_sets

    labels = numbered_images(tmp_path / "cifar10.npz")
    protocol = work.protocols.PROTOCOLS["LT"]
    parts = data_sets.load(protocol, tmp_path)
    assert len(parts["test"][1]) == 100
    rows = {part: parts[part][0] for part in ("train", "validation")}
    rows["calibration"] = parts["calibration"][0]
    together = np.concatenate(list(rows.values()))
    assert len(set(together)) == len(together)
    assert not {3, 5} & set(together)
    sizes = np.bincount(labels[together], minlength=10)
    # The paper's formula, written with its rho = 1 / ratio.
    expected = sizes[0] * (1 / 50) ** (np.arange(10) / 9)
    assert 4990 <= sizes[0] <= 5000
    np.testing.assert_allclose(sizes[1:], expected[1:], atol=8)
    for part, share in zip(rows, protocol.shares, strict=True):
        counts = np.bincount(labels[rows[part]], minlength=10)
        np.testing.assert_allclose(counts, share * sizes, atol=1)
        np.testing.assert_array_equal(parts[part][1], labels[rows[part]])


def test_long_tail_is_as_long_as_the_smallest_class_of_exact_images(
    work, tmp_path
):
    import data_sets

    labels = np.arange(50000) % 10
    inexact = np.flatnonzero(labels == 8)[:68]
    np.savez(
        tmp_path / "cifar10.npz",
        x=np.arange(50000),
        y=labels,
        x_test=labels[:3],
        y_test=labels[:3],
        inexact=inexact,
    )
    parts = data_sets.load(work.protocols.PROTOCOLS["LT"], tmp_path)
    together = np.concatenate(
        [parts[name][1] for name in ("train", "validation", "calibration")]
    )
    sizes = [f"{size:,}" for size in np.bincount(together)]
    results = pathlib.Path(work.__file__).parents[1] / "results"
    page = " ".join((results / "README.md").read_text().split())
    assert f"{', '.join(sizes[:4])} and so on to {sizes[-1]}" in page
    largest = sizes[0].replace(",", "")
    assert f"`{largest} * 50^(-i / 9)` images" in page


def test_weights_balance_what_a_long_tail_learned(work, monkeypatch):
    import measures

    monkeypatch.setattr(measures, "BALANCED_MAPS", ("TemperatureScaling",))
    # Rows whose logits are exact for the tail: log p(class | x) with a prior
    # of 50 to 1; on balanced rows they are biased towards the head.
    rng = np.random.default_rng(0)
    prior = 50.0 ** -(np.arange(10) / 9)
    prior /= prior.sum()

    def rows(count, prior):
        y = rng.choice(10, count, p=prior)
        z = rng.normal(size=(count, 10)) + 2.0 * np.eye(10)[y]
        return 3.0 * (2.0 * z + np.log(prior_of_training)), y

    prior_of_training = prior
    parts = {
        "calibration": rows(4000, prior),
        "test": rows(4000, np.full(10, 0.1)),
    }
    logits = {part: z for part, (z, _) in parts.items()}
    labels = {part: y for part, (_, y) in parts.items()}
    found = measures.measure_balance(logits, labels)
    (found,) = found.values()
    assert list(found) == list(measures.BALANCES)
    # Both ways of balancing help; sums leave the tail as it is.
    plain = found["plain"]["ece"]
    assert found["weights 1 / n_y"]["ece"] < plain - 0.01
    assert found["scaled"]["ece"] < plain - 0.01
    assert abs(found["scaled, sums"]["ece"] - plain) < 0.02


def test_super_classes_are_those_of_the_data(work):
    import data_sets

    if "KERAS_CALIB_DATA" not in os.environ:
        pytest.skip("KERAS_CALIB_DATA names no folder with CIFAR-100")
    path = pathlib.Path(os.environ["KERAS_CALIB_DATA"]) / "cifar100_test.npz"
    with np.load(path) as pack:
        found = data_sets.SUPER_CLASSES[pack["label"]]
        np.testing.assert_array_equal(found, pack["coarse"])
    # Five classes each.
    assert set(np.bincount(data_sets.SUPER_CLASSES)) == {5}


def test_super_classes_replace_the_labels(work, tmp_path):
    import data_sets

    count = 20000
    x = np.arange(count)
    arrays = dict(x=x, y=x % 100, x_test=x[:50], y_test=x[:50] % 100)
    np.savez(tmp_path / "cifar100.npz", **arrays, inexact=np.zeros(0, "int64"))
    parts = data_sets.load(work.protocols.PROTOCOLS["C"], tmp_path)
    found = {part: (x[0], x[-1]) for part, (x, _) in parts.items()}
    assert found == {
        "train": (0, 12499),
        "validation": (15000, 17499),
        "calibration": (17500, 19999),
        "test": (0, 49),
    }
    for x, y in parts.values():
        np.testing.assert_array_equal(y, data_sets.SUPER_CLASSES[x % 100])


@pytest.fixture
def newsgroups(tmp_path, monkeypatch):
    """Documents whose first word tells the group, in the packed format."""
    lines = []
    for part, count in (("train", 60), ("test", 20)):
        for n in range(count):
            group = f"group.{n % 3}"
            words = f"Word{n % 3} said {part}only, the end " + "of it " * n
            text = f"From: header{n}\nSubject: none\n\n{words}"
            row = {"split": part, "group": group, "id": n, "text": text}
            lines.append(json.dumps(row))
    path = tmp_path / "20newsgroups.jsonl.xz"
    with lzma.open(path, "wt", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
    monkeypatch.setenv("KERAS_CALIB_DATA", str(tmp_path))
    return tmp_path


def small_text(work, **settings):
    return dataclasses.replace(
        work.protocols.PROTOCOLS["T"], words=12, length=8, **settings
    )


def test_words_are_those_of_training_documents_without_headers(
    work, newsgroups
):
    import data_sets

    parts = data_sets.load(small_text(work), newsgroups / "cache")
    sizes = {part: len(y) for part, (_, y) in parts.items()}
    assert sizes == dict(train=54, validation=3, calibration=3, test=20)
    assert all(x.shape[1] == 8 for x, _ in parts.values())
    # `of` and `it` are most frequent, then words of every document, by letter.
    test, y = parts["test"]
    assert test[0].tolist()[1:] == [test[0, 1], 1, *test[0, 3:5], 0, 0, 0]
    assert test[0, 1] > 1 and (test[0, 3:5] > 1).all()
    assert set(test[2, 5:7]) == {2, 3}
    np.testing.assert_array_equal(y, np.arange(20) % 3)
    # The first word tells the group, and no header is left.
    assert len(set(test[:3, 0])) == 3
    assert (test[3:, 0] == test[:-3, 0]).all()


@pytest.mark.usefixtures("eager_functions")
def test_text_is_learned_with_two_rates(work, newsgroups, tmp_path):
    import data_sets

    protocol = small_text(
        work, batch_size=9, epochs=4, learning_rate=0.01, held_share=0.2
    )
    data = data_sets.load(protocol, newsgroups / "cache")
    task = work.Task({}, protocol, data, 0)
    rates = [float(to_numpy(task.schedule(20)(step))) for step in (0, 9, 11)]
    np.testing.assert_allclose(rates, [0.01, 0.01, 0.001], rtol=1e-5)
    spec = work.methods.METHODS["MbLS"]
    logits, _ = work.train(spec, protocol, data, 0, str(tmp_path / "a"), None)
    assert logits["test"].shape == (20, 3)
    assert (logits["test"].argmax(-1) == data["test"][1]).mean() > 0.8


def street(count, seed):
    """Images whose left half is bright and of class 2, with void pixels."""
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 60, (count, 10, 14, 3)).astype("uint8")
    y = rng.integers(0, 2, (count, 10, 14)).astype("uint8")
    x[..., 0] += 120 * y
    x[:, :, :7], y[:, :, :7] = 250, 2
    y[:, 0] = 255
    return x, y


@pytest.fixture
def camvid(tmp_path, monkeypatch):
    arrays = {}
    for seed, (part, count) in enumerate(
        (("train", 16), ("val", 5), ("test", 6))
    ):
        arrays[f"x_{part}"], arrays[f"y_{part}"] = street(count, seed)
    np.savez(tmp_path / "camvid_small.npz", **arrays)
    monkeypatch.setenv("KERAS_CALIB_DATA", str(tmp_path))
    return tmp_path


@pytest.mark.usefixtures("eager_functions")
def test_segmentation_learns_from_valid_pixels(
    work, camvid, tmp_path, monkeypatch
):
    import measures

    protocol = dataclasses.replace(
        work.protocols.PROTOCOLS["D"], width=4, epochs=8, batch_size=4
    )
    monkeypatch.setitem(work.protocols.PROTOCOLS, "D", protocol)
    monkeypatch.setattr(measures, "ANY_CLASSES", ("VectorScaling",))
    monkeypatch.setattr(measures, "CALIBRATED", {})
    shallow = functools.partial(work.networks.unet, depth=1)
    monkeypatch.setattr(work.networks, "unet", shallow)
    row = work.run("D", "ACLS", 0, tmp_path / "row", tmp_path)
    assert row["test"]["num"] == 6 * 9 * 14  # no void pixel
    assert row["validation"]["num"] == 2 * 9 * 14
    # Half of the pixels are of one class.
    assert row["test"]["accuracy"] > 0.7
    assert 0.4 < row["test"]["miou"] <= 1.0
    assert set(row["maps"]) == {"VectorScaling"}


def test_network_gives_a_class_to_each_pixel_of_any_size(work):
    images = np.zeros((1, 90, 120, 3), "uint8")
    inputs = work.training.Augment(0, mirror=False)
    network = work.networks.unet(11, shape=(90, 120), inputs=inputs, width=2)
    assert network.output_shape == (None, 90, 120, 11)
    odd = work.networks.unet(3, shape=(9, 14), inputs=inputs, width=2)
    assert odd.output_shape == (None, 9, 14, 3)
    # Without mirroring, training sees the images as they are.
    same = inputs(images + 7, training=True)
    np.testing.assert_array_equal(
        to_numpy(same), to_numpy(inputs(images + 7, training=False))
    )


def test_images_are_mirrored_with_their_labels(work):
    x, y = street(32, 0)
    pairs = work.training.MirroredPairs(x, y, 16, 0)
    images, labels = pairs[0]
    bright = images[..., 1] == 250
    assert 0 < bright[:, 0, 0].sum() < 16  # some are mirrored, some not
    np.testing.assert_array_equal(bright[:, 1:], labels[:, 1:] == 2)
    again, _ = pairs[0]
    np.testing.assert_array_equal(images, again)


def test_mean_overlap_of_known_maps(work):
    import measures

    labels = np.array([[[0, 0, 1, 255], [1, 1, 2, 255]]])
    guesses = np.array([[[0, 1, 1, 3], [1, 1, 0, 0]]])
    found = measures.mean_overlap(np.eye(5)[guesses], labels, 255)
    # Class 0: 1 of 3; class 1: 3 of 4; class 2: 0 of 1; 3 and 4 never occur.
    assert found == pytest.approx((1 / 3 + 3 / 4 + 0) / 3)


def test_stored_settings_of_training_from_scratch_are_the_old_ones(work):
    # A new field would make every stored row run again.
    names = [f.name for f in dataclasses.fields(work.kinds.Protocol)]
    expected = "data train held_out test network auxiliary width epochs"
    expected += " batch_size learning_rate auxiliary_rate warmup weight_decay"
    assert names == [*expected.split(), "shift", "dtype"]


def test_every_table_names_a_protocol_and_methods(work):
    protocols = work.protocols
    import data_sets
    import probes

    methods = work.methods
    for table, names in protocols.TABLES.items():
        assert protocols.PROTOCOLS[table].kind in data_sets.PARTS
        for name in names:
            spec = methods.method(name)  # KeyError if there is none
            assert np.isfinite(probes.loss_probe(spec)).all()


def test_decay_is_in_the_gradient(papers):
    """300 steps without a gradient, at a rate of 0.1 and momentum 0.9."""
    import training

    def shrunk(optimizer):
        weight = keras.Variable(np.ones(3, "float32"))
        optimizer.build([weight])
        for _ in range(300):
            optimizer.apply_gradients([(keras.ops.zeros(3), weight)])
        return to_numpy(weight)

    # The momentum as the papers write it: v = m v - rate (decay w), w += v.
    expected, velocity = 1.0, 0.0
    for _ in range(300):
        velocity = 0.9 * velocity - 0.1 * 5e-4 * expected
        expected += velocity
    coupled = training.CoupledSGD(0.1, coupled_decay=5e-4, momentum=0.9)
    np.testing.assert_allclose(shrunk(coupled), expected, rtol=1e-5)
    assert expected == pytest.approx(0.864, abs=5e-4)
    again = training.CoupledSGD.from_config(coupled.get_config())
    np.testing.assert_allclose(shrunk(again), expected, rtol=1e-5)
    outside = keras.optimizers.SGD(0.1, momentum=0.9, weight_decay=5e-4)
    assert shrunk(outside)[0] == pytest.approx(0.985, abs=1e-3)
