"""Tiny-ImageNet in its official layout: a folder, or an archive."""

import contextlib
import io
import pathlib
import tarfile
import zipfile

import numpy as np

from keras_calib.datasets._folders import find
from keras_calib.datasets._folders import not_found
from keras_calib.datasets._packs import image_module

ROOT = "tiny-imagenet-200"
ARCHIVES = (f"{ROOT}.zip", f"{ROOT}.tar.xz", "tiny_imagenet_10.tar.xz")
WANTED = (
    f"Put the archive {ROOT}.zip of the course CS231n there, or the folder "
    "that it contains."
)
LISTS = ("wnids.txt", "val/val_annotations.txt")


def tiny_imagenet(data_dir):
    """`(x, y)` of the training images and of the official validation images.

    The latter are the test part of the papers: the official test images have
    no public labels. They may lie in a folder for each class, as some recipes
    move them. A class id is the line of `wnids.txt`, among the classes that
    have images.
    """
    path = find(data_dir, ROOT, *ARCHIVES)
    if path is None:
        raise not_found("tiny_imagenet", data_dir, WANTED)
    with _opened(path) as (names, read):
        images = [name for name in names if name.endswith(".JPEG")]
        train, held = (
            [name for name in images if name.startswith(part)]
            for part in ("train/", "val/")
        )
        if not train or not held or not {*LISTS} <= {*names}:
            parts = f"images in train/ and val/, {' and '.join(LISTS)}"
            wanted = f"{path} must hold {parts}. {WANTED}"
            raise not_found("tiny_imagenet", data_dir, wanted)
        return _parts(train, held, read)


def _parts(train, held, read):
    order = read("wnids.txt").decode().split()
    present = {name.split("/")[1] for name in train}
    ids = {wnid: k for k, wnid in enumerate(w for w in order if w in present)}
    rows = read("val/val_annotations.txt").decode().splitlines()
    labels = dict(row.split("\t")[:2] for row in rows)
    classes = {name: ids.get(labels.get(name.split("/")[-1])) for name in held}
    held = [name for name, k in classes.items() if k is not None]
    train.sort(key=lambda name: (ids[name.split("/")[1]], _number(name)))
    held.sort(key=_number)
    return [
        _arrays(train, [ids[name.split("/")[1]] for name in train], read),
        _arrays(held, [classes[name] for name in held], read),
    ]


def _number(name):
    """That of an image: the last one in its file's name."""
    return int(name.rpartition("_")[2].partition(".")[0])


def _arrays(names, labels, read):
    image = image_module()
    # Some are gray.
    x = [
        np.asarray(image.open(io.BytesIO(read(name))).convert("RGB"))
        for name in names
    ]
    return np.stack(x), np.array(labels, "int64")


@contextlib.contextmanager
def _opened(path):
    """Names of the files below `ROOT`, and a function that reads one."""
    if path.is_dir():
        names = {
            each.relative_to(path).as_posix()
            for each in path.rglob("*")
            if each.is_file()
        }
        yield names, lambda name: pathlib.Path(path, name).read_bytes()
    elif zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            found = _below_root(archive.namelist())
            yield found.keys(), lambda name: archive.read(found[name])
    else:
        # A compressed stream is read once, from front to back.
        with tarfile.open(path) as archive:
            files = {
                member.name: archive.extractfile(member).read()
                for member in archive
                if member.isfile()
            }
        found = _below_root(files)
        yield found.keys(), lambda name: files[found[name]]


def _below_root(names):
    return {
        name.partition(f"{ROOT}/")[2]: name for name in names if ROOT in name
    }
