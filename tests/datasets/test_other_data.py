"""Texts, street scenes, small photographs and long tails."""

import codecs
import io
import json
import lzma
import os
import pathlib
import pickle
import tarfile
import zipfile

import numpy as np
import pytest

import keras_calib as kc
from keras_calib.datasets._tiny_imagenet import ROOT

needs_data = pytest.mark.skipif(
    "KERAS_CALIB_DATA" not in os.environ,
    reason="KERAS_CALIB_DATA names no folder with the data",
)


def test_newsgroups_are_split_by_date(tmp_path):
    rows = [
        {"split": "train", "group": "sci.space", "text": "a\r\n\r\nb"},
        {"split": "train", "group": "alt.atheism", "text": "c"},
        {"split": "test", "group": "sci.space", "text": "d"},
    ]
    with lzma.open(tmp_path / "20newsgroups.jsonl.xz", "wt") as file:
        file.write("".join(json.dumps(row) + "\n" for row in rows))
    (x, y), held, (x_test, y_test) = kc.datasets.load(
        "20newsgroups", data_dir=tmp_path, validation=0
    )
    assert (x.tolist(), y.tolist(), held) == (["a\n\nb", "c"], [1, 0], None)
    assert (x_test.tolist(), y_test.tolist()) == (["d"], [1])


def test_scikit_learn_keeps_newsgroups_in_its_cache(tmp_path, monkeypatch):
    from sklearn import datasets

    def fetch(*, data_home, subset, shuffle):
        assert (data_home, shuffle) == (tmp_path, False)
        texts = [f"{subset} {k}" for k in range(4)]
        found = {"data": texts, "target": [1, 1, 0, 0]}
        names = [f"group/{number}" for number in (40, 100, 7, 31)]
        return type("Found", (), {**found, "filenames": names})

    monkeypatch.setattr(datasets, "fetch_20newsgroups", fetch)
    (tmp_path / "20news-bydate_py3.pkz").write_bytes(b"")
    train, held, test = kc.datasets.load(
        "20newsgroups", data_dir=tmp_path, validation=0.25, download=True
    )
    texts = sorted([*train[0], *held[0]])
    assert texts == [f"train {k}" for k in range(4)]
    assert len(held[1]) == 1
    # In the order of the groups, and in it of the names.
    assert test[0].tolist() == ["test 3", "test 2", "test 1", "test 0"]
    assert test[1].tolist() == [0, 0, 1, 1]


def test_a_cache_that_is_a_pickle_is_not_read_unasked(tmp_path):
    ran = tmp_path / "ran"

    class Hostile:
        def __reduce__(self):
            return (pathlib.Path.touch, (ran,))

    found = codecs.encode(pickle.dumps(Hostile()), "zlib_codec")
    (tmp_path / "20news-bydate_py3.pkz").write_bytes(found)
    with pytest.raises(ValueError, match="a pickle, which can run"):
        kc.datasets.load("20newsgroups", data_dir=tmp_path)
    assert not ran.exists()


def camvid_arrays(rng):
    return {
        part: (
            rng.integers(0, 255, (n, 6, 8, 3), dtype="uint8"),
            rng.integers(0, 12, (n, 6, 8), dtype="uint8"),
        )
        for part, n in (("train", 3), ("val", 2), ("test", 4))
    }


def test_camvid_has_a_validation_part_of_its_own(tmp_path):
    from PIL import Image

    arrays = camvid_arrays(np.random.default_rng(0))
    folder = tmp_path / "images" / "CamVid"
    for part, (x, y) in arrays.items():
        for end, values in (("", x), ("annot", y)):
            (folder / f"{part}{end}").mkdir(parents=True)
            for k, each in enumerate(values):
                path = folder / f"{part}{end}" / f"{k:03}.png"
                Image.fromarray(each).save(path)
    as_arrays = {}
    for part, (x, y) in arrays.items():
        as_arrays |= {f"x_{part}": x, f"y_{part}": np.where(y < 11, y, 255)}
    (tmp_path / "arrays").mkdir()
    np.savez(tmp_path / "arrays" / "camvid_small.npz", **as_arrays)
    for data_dir in (tmp_path / "images", tmp_path / "arrays"):
        parts = kc.datasets.load("camvid", data_dir=data_dir)
        for (x, y), (known, labels) in zip(parts, arrays.values(), strict=True):
            np.testing.assert_array_equal(x, known)
            np.testing.assert_array_equal(y, np.where(labels < 11, labels, 255))


def tiny_files():
    """The official layout with two classes, named by their last number."""
    from PIL import Image

    def photograph(value, mode="RGB"):
        file = io.BytesIO()
        Image.new(mode, (64, 64), value).save(file, "JPEG", quality=95)
        return file.getvalue()

    files = {"wnids.txt": b"n2\nn1\nn3\n"}
    for k, wnid in enumerate(("n1", "n2")):
        for i in (0, 2, 10):
            name = f"train/{wnid}/images/{wnid}_{i}.JPEG"
            value = 100 * k + 5 * i
            files[name] = photograph((value, value, value))
    # The last one is of a class without training images; one is gray.
    files["val/images/val_0.JPEG"] = photograph(40, "L")
    files["val/images/val_1.JPEG"] = photograph((90, 90, 90))
    files["val/images/val_2.JPEG"] = photograph((0, 0, 0))
    files["val/val_annotations.txt"] = (
        b"val_0.JPEG\tn1\t0\t0\t9\t9\nval_1.JPEG\tn2\t0\t0\t9\t9\n"
        b"val_2.JPEG\tn3\t0\t0\t9\t9\n"
    )
    return files


def in_folder(files, folder):
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


@pytest.mark.parametrize("kind", ["folder", "by class", "zip", "tar.xz"])
def test_tiny_imagenet_is_read_from_its_official_layout(tmp_path, kind):
    if kind == "folder":
        in_folder(tiny_files(), tmp_path / ROOT)
    elif kind == "by class":
        # As many recipes move the validation images.
        files = tiny_files()
        for i, wnid in enumerate(("n1", "n2", "n3")):
            content = files.pop(f"val/images/val_{i}.JPEG")
            files[f"val/{wnid}/images/val_{i}.JPEG"] = content
        in_folder(files, tmp_path / ROOT)
    elif kind == "zip":
        with zipfile.ZipFile(tmp_path / f"{ROOT}.zip", "w") as archive:
            for name, content in tiny_files().items():
                archive.writestr(f"{ROOT}/{name}", content)
    else:
        with tarfile.open(tmp_path / f"{ROOT}.tar.xz", "w:xz") as archive:
            for name, content in tiny_files().items():
                member = tarfile.TarInfo(f"{ROOT}/{name}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    (x, y), _, (x_test, y_test) = kc.datasets.load(
        "tiny_imagenet", data_dir=tmp_path, validation=0
    )
    assert x.shape == (6, 64, 64, 3)
    assert y.tolist() == [0, 0, 0, 1, 1, 1]
    assert x[:, 0, 0, 0].tolist() == [100, 110, 150, 0, 10, 50]
    assert y_test.tolist() == [1, 0]
    assert x_test[:, 5, 5, 1].tolist() == [40, 90]


@pytest.mark.parametrize(
    "name, word",
    [
        ("20newsgroups", "jsonl"),
        ("camvid", "SegNet"),
        ("tiny_imagenet", "zip"),
    ],
)
def test_what_is_missing_is_said(tmp_path, name, word):
    with pytest.raises(FileNotFoundError, match=word) as raised:
        kc.datasets.load(name, data_dir=tmp_path)
    assert str(tmp_path) in str(raised.value)


@pytest.mark.parametrize("gone", ["wnids", "train/", "val/images", "val_ann"])
def test_a_part_of_tiny_imagenet_is_not_enough(tmp_path, gone):
    files = tiny_files().items()
    files = {name: content for name, content in files if gone not in name}
    in_folder(files, tmp_path / ROOT)
    with pytest.raises(FileNotFoundError, match="must hold images") as raised:
        kc.datasets.load("tiny_imagenet", data_dir=tmp_path)
    assert str(tmp_path / ROOT) in str(raised.value)


def test_a_part_of_camvid_is_not_enough(tmp_path):
    (tmp_path / "CamVid" / "train").mkdir(parents=True)
    with pytest.raises(FileNotFoundError, match=r"train/\*\.png"):
        kc.datasets.load("camvid", data_dir=tmp_path)


def test_a_tail_falls_exponentially():
    rng = np.random.default_rng(0)
    y = rng.permutation(np.repeat(np.arange(10), 500))
    x = np.arange(5000)
    kept, labels = kc.datasets.long_tailed(x, y, ratio=50.0, seed=1)
    expected = [round(500 * 50 ** (-i / 9)) for i in range(10)]
    assert np.bincount(labels).tolist() == expected
    assert (np.diff(kept) > 0).all()
    np.testing.assert_array_equal(y[kept], labels)
    again, _ = kc.datasets.long_tailed(x, y, ratio=50.0, seed=1)
    other, _ = kc.datasets.long_tailed(x, y, ratio=50.0, seed=2)
    np.testing.assert_array_equal(kept, again)
    assert set(other) != set(kept)


@pytest.mark.parametrize(
    "y, ratio, message",
    [
        ([0, 1], 0.5, "ratio=0.5"),
        ([0, 1], float("nan"), "at least 1"),
        ([0.0, 1.0], 2.0, "class ids"),
        ([0, 1, 2], 2.0, "one per sample"),
        ([[0, 1], [1, 0]], 2.0, "class ids"),
    ],
)
def test_bad_tails_are_refused(y, ratio, message):
    with pytest.raises(ValueError, match=message):
        kc.datasets.long_tailed(np.zeros(2), y, ratio=ratio)


@needs_data
@pytest.mark.slow
@pytest.mark.one_backend
def test_prepared_data_has_the_published_numbers():
    train, held, test = kc.datasets.load("20newsgroups", validation=0.1)
    sizes = [len(y) for _, y in (train, held, test)]
    assert sizes == [10183, 1131, 7532]
    assert test[1].max() == 19
    parts = kc.datasets.load("camvid")
    assert [len(y) for _, y in parts] == [367, 101, 233]
    tail, _, balanced = kc.datasets.load("cifar10_lt", validation=0)
    expected = [round(5000 * 50 ** (-i / 9)) for i in range(10)]
    assert np.bincount(tail[1]).tolist() == expected
    assert (np.bincount(balanced[1]) == 1000).all()
