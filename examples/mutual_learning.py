"""CE, DML and Diff-DML on CIFAR-10: accuracy and calibration over seeds.

Trains a residual network with cross-entropy alone (CE), together with one or
two peers by mutual learning (DML, DML-2), with one or two auxiliaries by
differentiated mutual learning (Diff-DML, Diff-DML-2), and as an ensemble of
three. Prints accuracy, ECE and classwise ECE on the test images as mean and
standard error over seeds.

    python examples/mutual_learning.py                      # CPU, a subset
    python examples/mutual_learning.py --size full          # GPU, ResNet-34

Each finished run is a line in `<output>/results.jsonl`; started again, the
script continues where it was stopped. For the data see `cifar10.py`. `--figure
FILE` draws accuracy and ECE of each finished run; with `--rows FILE`, of stored
rows, and nothing is trained.
"""

import argparse
import dataclasses
import json
import math
import os
import pathlib
import platform
import sys
import time

import cifar10
import keras
import numpy as np
import pictures
from argument_types import positive_int

sys.path.insert(0, str(pathlib.Path(__file__).with_name("papers")))
from training import CoupledSGD

import keras_calib as kc
from keras_calib.evaluation.confidence_error import expected_calibration_error
from keras_calib.inputs.predictions import top_label


@dataclasses.dataclass(frozen=True)
class Size:
    """What a run trains: data, networks, schedule."""

    images: int | None
    test_images: int | None
    epochs: int
    batch_size: int
    primary: dict
    auxiliary: dict
    learning_rate: float
    auxiliary_rate: float
    weight_decay: float
    augment: bool
    # Whether the decay is in the gradient, as in the papers. Keras' own is
    # outside the momentum, and does about a tenth of it.
    coupled_decay: bool = False


SIZES = {
    "small": Size(
        images=4000,
        test_images=None,
        epochs=15,
        batch_size=50,
        primary={"blocks": (1, 1, 1), "width": 16, "stride": 2},
        auxiliary={"blocks": (1, 1, 1), "width": 16, "stride": 2},
        learning_rate=0.05,
        auxiliary_rate=0.03,
        weight_decay=5e-4,
        augment=False,
    ),
    "full": Size(
        images=None,
        test_images=None,
        epochs=200,
        batch_size=128,
        primary={"blocks": (3, 4, 6, 3), "width": 64},
        auxiliary={"blocks": (2, 2, 2, 2), "width": 64},
        learning_rate=0.1,
        auxiliary_rate=0.01,
        weight_decay=5e-4,
        augment=True,
        coupled_decay=True,
    ),
}
METHODS = ["CE", "DML", "Diff-DML", "DML-2", "Diff-DML-2", "ensemble of 3"]
# Each of the two ideas of Diff-DML alone.
ABLATIONS = {
    "DML + differentiated training": {"diversity_preserving": False},
    "DML + diversity preservation": {"differentiated_training": False},
}


def train(method, size, data, seed, verbose=0):
    """One run: the network that is left for inference, and its fit to data."""
    keras.utils.set_random_seed(seed)
    primary = cifar10.resnet(**size.primary, name="primary")
    steps = size.epochs * (len(data[1]) // size.batch_size)
    schedule = keras.optimizers.schedules.CosineDecay(size.learning_rate, steps)
    model, settings = primary, {"optimizer": sgd(schedule, size)}
    if method != "CE":
        count = 2 if method.endswith("-2") else 1
        peers = [
            cifar10.resnet(**size.auxiliary, name=f"peer_{i}")
            for i in range(count)
        ]
        model = together(method, primary, peers)
        if getattr(model, "differentiated_training", False):
            settings["auxiliary_optimizer"] = sgd(size.auxiliary_rate, size)
    model.compile(
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        **settings,
    )
    if size.augment:
        batches = cifar10.Augmented(*data, size.batch_size, seed=seed)
        history = model.fit(batches, epochs=size.epochs, verbose=verbose)
    else:
        history = model.fit(
            *data, size.batch_size, epochs=size.epochs, verbose=verbose
        )
    return primary, history.history["accuracy"][-1]


def together(method, primary, peers):
    if method in ("DML", "DML-2"):
        return kc.models.MutualLearning(primary, peers)
    return kc.models.DiffDML(primary, peers, **ABLATIONS.get(method, {}))


def sgd(learning_rate, size):
    options = {"momentum": 0.9, "nesterov": True}
    if size.coupled_decay:
        return CoupledSGD(
            learning_rate, coupled_decay=size.weight_decay, **options
        )
    return keras.optimizers.SGD(
        learning_rate, weight_decay=size.weight_decay, **options
    )


def measure(probabilities, labels):
    """Accuracy and calibration errors (15 bins of equal width)."""
    confidence, correct = top_label(labels, probabilities)
    classwise = [
        expected_calibration_error(
            probabilities[:, k], (labels == k).astype("float32")
        )
        for k in range(probabilities.shape[1])
    ]
    chosen = probabilities[np.arange(len(labels)), labels].astype("float64")
    return {
        "accuracy": float(correct.mean()),
        "ece": expected_calibration_error(confidence, correct),
        "classwise_ece": float(np.mean(classwise)),
        "nll": float(-np.log(np.maximum(chosen, 1e-38)).mean()),
        "confidence": float(confidence.mean()),
    }


def softmax(logits):
    logits = logits.astype("float64")
    logits -= logits.max(axis=-1, keepdims=True)
    exponentials = np.exp(logits)
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def run(method, size, data, test, seed, folder, verbose=0):
    """Train and measure; CE's predictions are kept, the ensemble uses them."""
    if method != "ensemble of 3":
        network, accuracy = train(method, size, data, seed, verbose)
        probabilities = softmax(network.predict(test[0], 500, verbose=0))
        if method == "CE":
            np.save(folder / "part.npy", probabilities)
            os.replace(folder / "part.npy", folder / f"ce_{seed}.npy")
    else:
        first = folder / f"ce_{seed}.npy"
        members, accuracy = [], None
        for member in range(3):
            if member == 0 and first.exists():
                members.append(np.load(first))
                continue
            network, accuracy = train(
                "CE", size, data, seed + 1000 * member, verbose
            )
            members.append(softmax(network.predict(test[0], 500, verbose=0)))
        probabilities = np.mean(members, axis=0)
    found = measure(probabilities.astype("float32"), test[1])
    return {**found, "train_accuracy": accuracy}


def table(results, methods):
    """A Markdown table: mean and standard error over seeds, in percent."""
    columns = ["accuracy", "ece", "classwise_ece"]
    lines = [
        "| method | seeds | accuracy % | ECE % | classwise ECE % |",
        "|---|---|---|---|---|",
    ]
    for method in methods:
        rows = [found for found in results if found["method"] == method]
        if not rows:
            continue
        cells = []
        for column in columns:
            values = 100 * np.array([row[column] for row in rows])
            error = values.std(ddof=1) / math.sqrt(len(rows)) if rows[1:] else 0
            cells.append(f"{values.mean():.2f} ± {error:.2f}")
        lines.append(f"| {method} | {len(rows)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def draw(results, path):
    """A point for each run, a mark and a color for each method."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 4), layout="constrained")
    for method, marker in zip([*METHODS, *ABLATIONS], "os^DvPX*", strict=True):
        rows = [row for row in results if row["method"] == method]
        x, y = ([100 * row[key] for row in rows] for key in ("accuracy", "ece"))
        if rows:
            axes.plot(x, y, marker, label=method)
    axes.set(xlabel="accuracy %", ylabel="ECE %", ylim=(0, None))
    axes.legend()
    pictures.save(figure, path)


def read(path, settings):
    """Results of an earlier start, which must have had the same settings."""
    if not path.exists():
        return []
    results = [json.loads(line) for line in path.read_text().splitlines()]
    if any(found["settings"] != settings for found in results):
        raise SystemExit(
            f"{path} holds results of other settings. Choose another --output."
        )
    return results


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--seeds", type=positive_int, default=3)
    parser.add_argument(
        "--methods",
        nargs="+",
        choices=[*METHODS, *ABLATIONS],
        metavar="METHOD",
        default=METHODS,
        help=f"some of {[*METHODS, *ABLATIONS]}",
    )
    parser.add_argument("--output", default="mutual_learning")
    parser.add_argument(
        "--download", action="store_true", help="CIFAR-10, where it is missing"
    )
    parser.add_argument("--verbose", action="store_true", help="epoch by epoch")
    pictures.add_option(parser)
    parser.add_argument("--rows", type=pathlib.Path, help="only draw these")
    for field in ("images", "test_images", "epochs"):
        parser.add_argument(f"--{field.replace('_', '-')}", type=positive_int)
    for field in ("learning_rate", "auxiliary_rate", "weight_decay"):
        parser.add_argument(f"--{field.replace('_', '-')}", type=float)
    arguments = parser.parse_args(arguments)
    if arguments.rows:
        lines = arguments.rows.read_text().splitlines()
        return draw([json.loads(line) for line in lines], arguments.figure)
    given = {
        field.name: getattr(arguments, field.name)
        for field in dataclasses.fields(Size)
        if getattr(arguments, field.name, None) is not None
    }
    size = dataclasses.replace(SIZES[arguments.size], **given)
    settings = {"backend": keras.backend.backend(), **dataclasses.asdict(size)}
    settings = json.loads(json.dumps(settings))

    folder = pathlib.Path(arguments.output)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "results.jsonl"
    results = read(path, settings)
    done = {(found["method"], found["seed"]) for found in results}
    print(f"{platform.machine()}, {settings}")
    data, test = cifar10.load(
        size.images, size.test_images, download=arguments.download
    )
    for seed in range(arguments.seeds):
        for method in arguments.methods:
            if (method, seed) in done:
                continue
            start = time.time()
            found = {
                "method": method,
                "seed": seed,
                **run(
                    method,
                    size,
                    data,
                    test,
                    seed,
                    folder,
                    verbose=2 if arguments.verbose else 0,
                ),
                "seconds": round(time.time() - start, 1),
            }
            print(json.dumps(found), flush=True)
            found["settings"] = settings
            results.append(found)
            # All lines anew: a part of a line could not be read again.
            part = path.with_suffix(".part")
            part.write_text("".join(json.dumps(r) + "\n" for r in results))
            os.replace(part, path)
    text = table(results, [*METHODS, *ABLATIONS])
    (folder / "results.md").write_text(text + "\n")
    print(text)
    if arguments.figure:
        draw(results, arguments.figure)


if __name__ == "__main__":
    main()
