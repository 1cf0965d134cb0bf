"""The papers' data: train, validation, calibration, test, by protocol."""

import os
import pathlib
import re

import logs
import numpy as np

import keras_calib as kc

# Super-class of each of CIFAR-100's classes, in the order of their names.
SUPER_CLASSES = np.array(
    (
        "4 1 14 8 0 6 7 7 18 3 3 14 9 18 7 11 3 9 7 11 6 11 5 10 7 "
        "6 13 15 3 15 0 11 1 10 12 14 16 9 11 5 5 19 8 8 15 13 14 17 18 10 "
        "16 4 17 4 2 0 17 4 18 17 10 3 2 12 12 16 12 1 9 19 2 10 0 1 16 "
        "12 9 13 15 13 16 19 2 4 6 19 5 5 8 19 18 1 2 15 6 0 17 8 14 13"
    ).split(),
    "int64",
)


# Training images of CIFAR-10 that the image packs do not have exactly. Other
# sources have them, and leave them out as well: a protocol has the same images.
INEXACT = {
    "cifar10": np.array(
        (
            "4298 5949 7066 7237 7248 7630 8006 8831 8968 9415 12762 12834 "
            "13546 21493 25728 26098 26927 27621 28435 28728 29694 29747 "
            "31367 31462 31625 31663 32777 33641 33661 34067 34276 34387 "
            "34825 35160 35646 36733 37329 37474 37567 38384 38925 39358 "
            "39385 39613 39840 39888 39971 41779 42004 42389 42611 43357 "
            "43883 44882 45168 45240 46175 46435 46538 46624 47393 47597 "
            "48081 48124 48333 48821 48836 49321 49429 49631 49830 49857"
        ).split(),
        "int64",
    )
}
# Whether Keras or scikit-learn may download what is not there; the driver sets
# it when asked to.
DOWNLOAD = False


def load(protocol, cache):
    """Parts of the data: train, validation, calibration, test.

    Decoding takes ten seconds, so arrays are kept in the folder `cache`.

    Args:
        protocol: `kinds.Protocol`.
        cache: path of a folder.

    Returns:
        A dict from the name of a part to `(x, y)`; fine-tuning has one more,
        `"held_back"`.
    """
    return PARTS[protocol.kind](protocol, cache)


def absent(protocol, cache):
    """Why the data of a protocol cannot be read, or `None`.

    See `load` for the arguments.
    """
    try:
        if protocol.kind == "fine_tuning":
            weights = data_folder() / protocol.weights
            if not weights.exists():
                return f"there is no {weights}"
        parts = load(protocol, cache)
        if protocol.streamed:
            for source, _ in parts.values():
                source()
    # Keras raises no narrower one where a download fails.
    except Exception as error:
        return logs.for_command_line(str(error))
    return None


def cached(cache, name, make):
    """Arrays as a dict, from `cache` or, the first time, from `make()`."""
    path = pathlib.Path(cache) / f"{name}.npz"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".{os.getpid()}.npz")
        np.savez(part, **make())
        os.replace(part, path)
    with np.load(path, allow_pickle=False) as file:
        return {key: file[key] for key in file.files}


def data_folder():
    """Where weights, texts and CamVid lie."""
    if "KERAS_CALIB_DATA" not in os.environ:
        raise FileNotFoundError(
            "Set KERAS_CALIB_DATA to the folder that holds the data."
        )
    return pathlib.Path(os.environ["KERAS_CALIB_DATA"])


def all_images(protocol, cache):
    """Every image in file order, and which ones are not pixel-exact."""

    def make():
        (x, y), _, (x_test, y_test) = kc.datasets.load(
            protocol.data, validation=0, download=DOWNLOAD
        )
        inexact = np.zeros(0, "int64")
        if protocol.data in ("cifar10", "cifar100"):
            inexact = kc.datasets.inexact_images(protocol.data)
        if not len(inexact):
            inexact = INEXACT.get(protocol.data, inexact)
        return dict(x=x, y=y, x_test=x_test, y_test=y_test, inexact=inexact)

    return cached(cache, protocol.data, make)


def training_rows(protocol, data):
    """Indices of the images that train."""
    rows = np.arange(len(data["y"]) - protocol.held_out)
    if protocol.train is None:
        return rows
    return rows[~np.isin(rows, data["inexact"])][: protocol.train]


def images(protocol, cache):
    """The first training images; the last ones validate and calibrate."""
    data = all_images(protocol, cache)
    x, y, count = data["x"], data["y"], len(data["y"])
    rows = training_rows(protocol, data)
    middle = count - protocol.held_out // 2
    test = slice(protocol.test)
    return {
        "train": (x[rows], y[rows]),
        "validation": (
            x[count - protocol.held_out : middle],
            y[count - protocol.held_out : middle],
        ),
        "calibration": (x[middle:], y[middle:]),
        "test": (data["x_test"][test], data["y_test"][test]),
    }


def development(protocol, cache):
    """Exact training images for every part, the test among them."""
    data = all_images(protocol, cache)
    exact = ~np.isin(np.arange(len(data["y"])), data["inexact"])
    pieces = np.split(np.arange(len(exact)), protocol.first)[1:]
    names = ("train", "validation", "calibration", "test")
    parts = {}
    for name, rows in zip(names, pieces, strict=True):
        most = {"train": protocol.train, "test": protocol.test}.get(name)
        rows = rows[exact[rows]][:most]
        parts[name] = (data["x"][rows], data["y"][rows])
    return parts


def each_class(protocol, cache):
    """`images` whose files lie class by class: the last ones of each class."""
    data = all_images(protocol, cache)
    x, y = data["x"], data["y"]
    held = protocol.held_out // len(np.unique(y))
    cuts = np.array([-held, -held + held // 2])
    rows = divided(np.arange(len(y)), y, lambda count: cuts + count)
    # So that the first ones that train are of all classes.
    order = np.random.default_rng(0).permutation(rows["train"])
    rows["train"] = order[: protocol.train]
    parts = {name: (x[chosen], y[chosen]) for name, chosen in rows.items()}
    test = slice(protocol.test)
    parts["test"] = (data["x_test"][test], data["y_test"][test])
    return parts


def divided(rows, labels, cuts):
    """Rows that train, validate and calibrate, of each class by itself.

    Args:
        rows: ids, `(n,)`.
        labels: their classes, `(n,)`.
        cuts: of a number of rows, where they are cut in three.
    """
    found = {name: [] for name in ("train", "validation", "calibration")}
    for label in np.unique(labels):
        of_class = rows[labels == label]
        pieces = np.split(of_class, cuts(len(of_class)))
        for name, piece in zip(found, pieces, strict=True):
            found[name].append(piece)
    return {name: np.concatenate(pieces) for name, pieces in found.items()}


def super_classes(protocol, cache):
    """`images` of CIFAR-100 with its 20 super-classes as labels."""
    parts = images(protocol, cache)
    return {part: (x, SUPER_CLASSES[y]) for part, (x, y) in parts.items()}


def long_tailed(protocol, cache):
    """Classes by equation 16 of the class-wise scaling paper; balanced test.

    Each class is divided among train, validation and calibration by `shares`,
    so that all three have the same tail.
    """
    data = all_images(protocol, cache)
    y = data["y"]
    exact = ~np.isin(np.arange(len(y)), data["inexact"])
    balanced = np.concatenate(
        [
            np.flatnonzero(exact & (y == label))[: protocol.head]
            for label in range(y.max() + 1)
        ]
    )
    kept, labels = kc.datasets.long_tailed(
        balanced, y[balanced], ratio=protocol.ratio
    )
    edges = np.cumsum(protocol.shares)[:-1]
    rows = divided(
        kept, labels, lambda count: np.round(edges * count).astype(int)
    )
    test = slice(protocol.test)
    parts = {"test": (data["x_test"][test], data["y_test"][test])}
    for name, chosen in rows.items():
        chosen = np.sort(chosen)
        parts[name] = (data["x"][chosen], y[chosen])
    return parts


def fine_tuning(protocol, cache):
    """All training images; the test images are divided by their rows.

    The network has seen the training images, so that none of them can
    validate or calibrate.
    """
    data = all_images(protocol, cache)
    x, y = data["x_test"], data["y_test"]
    names = ("held_back", "validation", "calibration", "test")
    pieces = zip(names, np.split(np.arange(len(y)), protocol.rows), strict=True)
    parts = {name: (x[rows], y[rows]) for name, rows in pieces}
    test_x, test_y = parts["test"]
    parts["test"] = (test_x[: protocol.test], test_y[: protocol.test])
    train = slice(protocol.train)
    return {"train": (data["x"][train], data["y"][train]), **parts}


def answers_of_people(protocol):
    """How many people chose each class of CIFAR-10's test images (CIFAR-10H).

    Returns:
        A dict from `"calibration"` and `"test"` to fractions, `(n, 10)`, in
        the order of `fine_tuning`, or `None` where the file is not there.
    """
    path = pathlib.Path(os.environ.get("KERAS_CALIB_DATA", "")) / PEOPLE
    if not path.exists():
        return None
    with np.load(path, allow_pickle=False) as file:
        counts = file["counts"].astype("float64")
    fractions = counts / counts.sum(axis=-1, keepdims=True)
    parts = np.split(fractions, protocol.rows)
    return {"calibration": parts[-2], "test": parts[-1][: protocol.test]}


def noisy_labels(protocol, cache):
    """`images`; those that train have labels by hand, with errors."""
    parts = images(protocol, cache)
    with np.load(data_folder() / "cifar_n_labels.npz") as file:
        given = file[protocol.labels].astype("int64")
    rows = training_rows(protocol, all_images(protocol, cache))
    return {**parts, "train": (parts["train"][0], given[rows])}


PEOPLE = "cifar10h.npz"
WORD = re.compile(r"[a-z0-9']+")


def words_of(text):
    """Words of a document without its header, in small letters."""
    _, blank, body = text.partition("\n\n")
    return WORD.findall((body if blank else text).lower())


def as_ids(documents, protocol, vocabulary):
    """Documents as word ids: 0 fills up, 1 is a word that is not known."""
    ids = np.zeros((len(documents), protocol.length), "int32")
    for row, words in zip(ids, documents, strict=True):
        found = [vocabulary.get(word, 1) for word in words[: len(row)]]
        row[: len(found)] = found
    return ids


def text(protocol, cache):
    """20 Newsgroups, a tenth of the training documents held out.

    The vocabulary is that of the documents that train.
    """

    def make():
        (train, y), _, (test, y_test) = kc.datasets.load(
            protocol.data, validation=0, download=DOWNLOAD
        )
        train, test = [[words_of(d) for d in part] for part in (train, test)]
        order = np.random.default_rng(0).permutation(len(y))
        held = round(protocol.held_share * len(y))
        chosen = {
            "validation": order[: held // 2],
            "calibration": order[held // 2 : held],
            "train": np.sort(order[held:])[: protocol.train],
        }
        counts = {}
        for row in chosen["train"]:
            for word in train[row]:
                counts[word] = counts.get(word, 0) + 1
        frequent = sorted(counts, key=lambda word: (-counts[word], word))
        frequent = frequent[: protocol.words - 2]
        vocabulary = {word: rank + 2 for rank, word in enumerate(frequent)}
        arrays = {"test_x": as_ids(test, protocol, vocabulary)}
        arrays["test_y"] = y_test
        for part, rows in chosen.items():
            documents = [train[row] for row in rows]
            arrays[f"{part}_x"] = as_ids(documents, protocol, vocabulary)
            arrays[f"{part}_y"] = y[rows]
        return arrays

    settings = (protocol.words, protocol.length, protocol.train)
    name = "-".join(map(str, (protocol.data, *settings)))
    return in_parts(cached(cache, name, make), protocol)


def segmentation(protocol, cache):
    """CamVid at a quarter of its size; its validation part is halved."""
    (x, y), (held, labels), (x_test, y_test) = kc.datasets.load(protocol.data)
    middle = len(labels) // 2
    arrays = {
        "train_x": x[: protocol.train],
        "train_y": y[: protocol.train],
        "validation_x": held[:middle],
        "validation_y": labels[:middle],
        "calibration_x": held[middle:],
        "calibration_y": labels[middle:],
        "test_x": x_test,
        "test_y": y_test,
    }
    return in_parts(arrays, protocol)


def streamed(protocol, cache):
    """Functions that give the batches of a part; labels come with them.

    What is held out is one part, `"held_out"`: it is divided when its logits
    are there. Nothing is kept in `cache`.
    """

    def part(name):
        size = protocol.batch_size
        if name != "train":
            size = protocol.predict_batch
        return lambda seed=0: kc.datasets.stream(
            protocol.streamed,
            name,
            image_size=protocol.image_size,
            batch_size=size,
            validation=protocol.validation,
            seed=seed,
        )

    names = {"train": "train", "held_out": "validation", "test": "test"}
    return {name: (part(source), None) for name, source in names.items()}


def in_parts(arrays, protocol):
    """Pairs `(x, y)` of arrays that are named `train_x`, `train_y`, ..."""
    arrays["test_x"] = arrays["test_x"][: protocol.test]
    arrays["test_y"] = arrays["test_y"][: protocol.test]
    names = ("train", "validation", "calibration", "test")
    return {name: (arrays[f"{name}_x"], arrays[f"{name}_y"]) for name in names}


PARTS = {
    function.__name__: function
    for function in (
        images,
        development,
        each_class,
        super_classes,
        long_tailed,
        noisy_labels,
        fine_tuning,
        text,
        segmentation,
        streamed,
    )
}
PARTS["streamed_pixels"] = streamed
