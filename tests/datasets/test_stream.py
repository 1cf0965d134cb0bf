"""Data sets that are read batch by batch, from miniatures of them."""

import pathlib

import keras
import numpy as np
import pytest

import keras_calib as kc
from keras_calib.datasets._voc import window

LISTS = pathlib.Path("ImageSets", "Segmentation")


def image_of(number, height=30, width=40):
    """Red says which image it is, green and blue where a pixel is."""
    rows, columns = np.indices((height, width))
    red = np.full_like(rows, number)
    return np.stack([red, 4 * rows, 4 * columns], axis=-1).astype("uint8")


def prepare(folder, name, splits):
    """What TensorFlow Datasets writes for a data set of this name."""
    tfds = pytest.importorskip("tensorflow_datasets")
    pytest.importorskip("tensorflow")  # encodes the images

    class Miniature(tfds.core.GeneratorBasedBuilder, skip_registration=True):
        VERSION = tfds.core.Version("1.0.0")

        def _info(self):
            features = {
                "image": tfds.features.Image(encoding_format="png"),
                "label": tfds.features.ClassLabel(num_classes=10),
            }
            return self.dataset_info_from_configs(
                features=tfds.features.FeaturesDict(features)
            )

        def _split_generators(self, _):
            return {
                split: self._generate_examples(list(numbers))
                for split, numbers in splits.items()
            }

        def _generate_examples(self, numbers):
            for number in numbers:
                row = {"image": image_of(number), "label": number % 10}
                yield number, row

    Miniature.name = name
    Miniature(data_dir=folder).download_and_prepare()


def numbers_in(data):
    """Which images are in the batches, in order, and their labels."""
    found, labels = [], []
    for x, y in data:
        x = keras.ops.convert_to_numpy(x)
        found += np.rint(x[..., 0].mean(axis=(1, 2))).astype(int).tolist()
        labels += keras.ops.convert_to_numpy(y).tolist()
    return found, labels


@pytest.mark.parametrize(
    ("name", "source", "test"),
    [
        ("imagenet2012", "imagenet2012", "validation"),
        ("cub", "caltech_birds2011", "test"),
    ],
)
def test_parts_of_a_prepared_data_set(tmp_path, name, source, test):
    prepare(tmp_path, source, {"train": range(20), test: range(50, 57)})

    def part(kind, **arguments):
        settings = {"image_size": 16, "batch_size": 4, "data_dir": tmp_path}
        return kc.datasets.stream(name, kind, **settings, **arguments)

    held, labels = numbers_in(part("validation", validation=0.25))
    assert len(held) == 5
    assert labels == [number % 10 for number in held]
    kept, _ = numbers_in(part("train", validation=0.25))
    assert sorted(held + kept) == list(range(20))
    tested, _ = numbers_in(part("test"))
    assert sorted(tested) == list(range(50, 57))
    x, y = next(iter(part("test")))
    assert tuple(x.shape) == (4, 16, 16, 3)
    assert tuple(y.shape) == (4,)
    assert str(x.dtype).endswith("float32'>")


def test_load_reads_a_prepared_data_set(tmp_path):
    prepare(tmp_path, "cifar10", {"train": range(6), "test": [7, 8]})
    (x, y), validation, (x_test, y_test) = kc.datasets.load(
        "cifar10", data_dir=tmp_path, validation=0.0
    )
    assert validation is None
    assert sorted(y) == list(range(6))
    assert sorted(y_test) == [7, 8]
    np.testing.assert_array_equal(x[..., 0].max(axis=(1, 2)), y)
    assert x_test.shape == (2, 30, 40, 3)


def test_test_images_are_cut_from_the_center(tmp_path):
    prepare(tmp_path, "imagenet2012", {"train": [1], "validation": [2]})
    data = kc.datasets.stream(
        "imagenet2012", "test", image_size=16, data_dir=tmp_path
    )
    (image,) = next(iter(data))[0].numpy()
    # 30 x 40 pixels become 19 x 25, of which 16 x 16 are kept: green and blue
    # are those of the middle of the image.
    assert image[..., 1].mean() == pytest.approx(4 * 14.5, abs=4)
    assert image[..., 2].mean() == pytest.approx(4 * 19.5, abs=4)
    step = np.diff(image[8, :, 2]).mean()
    assert step == pytest.approx(4 * 40 / 25, rel=0.02)


def test_training_crops_are_drawn_by_the_seed_and_anew_each_epoch(tmp_path):
    prepare(tmp_path, "imagenet2012", {"train": range(20), "validation": [2]})

    def train(seed):
        return kc.datasets.stream(
            "imagenet2012",
            "train",
            image_size=16,
            batch_size=20,
            validation=0.0,
            seed=seed,
            data_dir=tmp_path,
        )

    def epochs(data):
        return [np.asarray(next(iter(data))[0]) for _ in range(2)]

    first, second = epochs(train(0))
    again, _ = epochs(train(0))
    other, _ = epochs(train(1))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, second)
    assert not np.array_equal(first, other)


def voc_folder(root, *, augmented=False):
    """Six training and two test images, whose labels are their numbers."""
    image = pytest.importorskip("PIL.Image")
    folder = root / "VOCdevkit" / "VOC2012"
    for name in ("JPEGImages", "SegmentationClass", LISTS):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / LISTS / "train.txt").write_text("a1\na2\na3\na4\n")
    (folder / LISTS / "val.txt").write_text("b5\nb6\n")
    places = {"SegmentationClass": "a1 a2 a3 a4 b5 b6".split()}
    if augmented:
        places["SegmentationClassAug"] = "a1 a2 a3 a4 c7 c8".split()
        (folder / "SegmentationClassAug").mkdir()
        (folder / LISTS / "trainaug.txt").write_text(
            "\n".join(places["SegmentationClassAug"])
        )
    for place, names in places.items():
        for name in names:
            number = int(name[1:])
            label = image.fromarray(np.full((30, 40), number, "uint8"))
            label.putpalette(list(range(256)) * 3)
            label.save(folder / place / f"{name}.png")
            picture = image.fromarray(image_of(20 * number))
            picture.save(folder / "JPEGImages" / f"{name}.jpg", quality=95)


def voc(root, part, **arguments):
    return kc.datasets.stream(
        "voc2012", part, batch_size=2, data_dir=root, **arguments
    )


def test_voc_has_its_official_parts(tmp_path):
    voc_folder(tmp_path)
    seen = {}
    for part in ("train", "validation", "test"):
        data = voc(tmp_path, part, image_size=16, validation=0.25)
        batches = [data[i] for i in range(len(data))]
        labels = np.concatenate([y for _, y in batches])
        images = np.concatenate([x for x, _ in batches])
        assert images.shape == (*labels.shape, 3) == (len(labels), 16, 16, 3)
        np.testing.assert_allclose(
            images[..., 0].mean(axis=(1, 2)), 20 * labels[:, 0, 0], atol=3
        )
        seen[part] = sorted(labels[:, 0, 0].tolist())
    assert seen == {"train": [2, 3, 4], "validation": [1], "test": [5, 6]}


@pytest.mark.parametrize(
    ("part", "gone"), [("train", "train.txt"), ("test", "val.txt")]
)
def test_a_part_of_voc_is_not_enough(tmp_path, part, gone):
    voc_folder(tmp_path)
    (tmp_path / "VOCdevkit" / "VOC2012" / LISTS / gone).unlink()
    with pytest.raises(FileNotFoundError, match=f"must hold .*{gone}"):
        voc(tmp_path, part, image_size=16)


def test_voc_takes_the_augmented_labels_where_they_are(tmp_path):
    voc_folder(tmp_path, augmented=True)
    data = voc(tmp_path, "train", image_size=16, validation=0.0)
    labels = np.concatenate([data[i][1] for i in range(len(data))])
    assert sorted(labels[:, 0, 0].tolist()) == [1, 2, 3, 4, 7, 8]


def test_what_lies_outside_of_an_image_is_void(tmp_path):
    voc_folder(tmp_path)
    x, y = voc(tmp_path, "test", image_size=36)[0]
    # 30 rows of 36, and 36 columns of 40.
    assert (y == 255).mean() == pytest.approx(6 / 36)
    np.testing.assert_array_equal(x[y == 255], 0.0)
    assert (y[:, 3:33] != 255).all()


def test_voc_windows_are_drawn_by_seed_epoch_and_image(tmp_path):
    voc_folder(tmp_path)

    def batches(data):
        return np.concatenate([data[i][0] for i in range(len(data))])

    data = voc(tmp_path, "train", image_size=16)
    first = batches(data)
    np.testing.assert_array_equal(first, batches(data))
    data.on_epoch_end()
    assert not np.array_equal(first, batches(data))
    again = voc(tmp_path, "train", image_size=16)
    np.testing.assert_array_equal(first, batches(again))


def test_every_place_of_a_window_can_be_drawn():
    array = np.arange(5)[:, None] + np.zeros((1, 3), int)
    tops = [
        int(window(array, np.array([place, 0.5]), 3, 0)[0, 0])
        for place in np.linspace(0, 1, 31)
    ]
    assert np.bincount(tops).tolist() == [10, 10, 11]


def test_a_network_trains_on_both_kinds(tmp_path):
    prepare(tmp_path, "caltech_birds2011", {"train": range(8), "test": [2]})
    voc_folder(tmp_path)
    for name, head in (
        ("cub", keras.layers.GlobalAveragePooling2D()),
        ("voc2012", keras.layers.Identity()),
    ):
        data = kc.datasets.stream(
            name, "train", image_size=16, batch_size=4, data_dir=tmp_path
        )
        model = keras.Sequential(
            [keras.Input((16, 16, 3)), head, keras.layers.Dense(21)]
        )
        loss = kc.losses.MarginLabelSmoothing(
            from_logits=True, ignore_class=255
        )
        model.compile("sgd", loss)
        history = model.fit(data, epochs=1, verbose=0)
        assert np.isfinite(history.history["loss"]).all()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("mnist", "train"), ValueError, "name"),
        (("cub", "all"), ValueError, "part"),
        (("imagenet2012", "test"), FileNotFoundError, "tfds build"),
        (("voc2012", "test"), FileNotFoundError, "VOCdevkit/VOC2012"),
    ],
)
def test_bad_input_is_said(tmp_path, arguments, error, message):
    if arguments[0] == "imagenet2012":
        pytest.importorskip("tensorflow")  # reads what was prepared
    with pytest.raises(error, match=message):
        kc.datasets.stream(*arguments, data_dir=tmp_path)
    with pytest.raises(ValueError, match="no validation part"):
        kc.datasets.stream("cub", "validation", validation=0.0)
