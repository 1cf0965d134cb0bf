"""20 Newsgroups, split by date: texts and class ids."""

import json
import lzma
import pathlib

import numpy as np

from keras_calib.datasets._folders import find
from keras_calib.datasets._folders import not_found

FILE = "20newsgroups.jsonl.xz"
CACHE = "20news-bydate_py3.pkz"


def newsgroups(data_dir, download):
    """`(x, y)` of the training and of the test part.

    Texts are strings with their headers, in an array of objects; a class id is
    the place of the group's name in the alphabet, as in scikit-learn.
    """
    path = find(data_dir, FILE)
    if path is not None:
        return _of_lines(path)
    if download:
        return _of_scikit_learn(data_dir)
    cache = find(data_dir, CACHE)
    if cache is not None:
        # A pickle can run any code, so that none is read without a word.
        raise ValueError(
            "scikit-learn's cache of 20 Newsgroups is a pickle, which can run "
            f"any code when it is read. Received: {cache}. Use `download=True` "
            f"to have it read if it is your own; else put {FILE} beside it."
        )
    raise not_found(
        "20newsgroups",
        data_dir,
        f"Put {FILE} there (a JSON object per line with `split`, `group` and "
        "`text`), or allow a download with `download=True`.",
    )


def _of_lines(path):
    with lzma.open(path, "rt", encoding="utf-8", newline="\n") as file:
        rows = [json.loads(line) for line in file]
    groups = sorted({row["group"] for row in rows})
    ids = {group: k for k, group in enumerate(groups)}
    parts = []
    for part in ("train", "test"):
        found = [row for row in rows if row["split"] == part]
        labels = [ids[row["group"]] for row in found]
        parts.append(_arrays([row["text"] for row in found], labels))
    return parts


def _of_scikit_learn(data_dir):
    from sklearn.datasets import fetch_20newsgroups

    cache = find(data_dir, CACHE)
    parts = []
    for part in ("train", "test"):
        found = fetch_20newsgroups(
            data_home=data_dir if cache is None else cache.parent,
            subset=part,
            shuffle=False,
        )
        # Its own order differs from that of the lines of `FILE`, where a seed
        # would choose other documents.
        names = [pathlib.PurePath(name).name for name in found.filenames]
        order = np.lexsort((names, found.target))
        texts = [found.data[i] for i in order]
        parts.append(_arrays(texts, np.asarray(found.target)[order]))
    return parts


def _arrays(texts, labels):
    x = np.empty(len(texts), object)
    x[:] = [text.replace("\r\n", "\n") for text in texts]
    return x, np.array(labels, "int64")
