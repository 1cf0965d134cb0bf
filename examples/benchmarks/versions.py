"""What a change costs: this checkout over another one, in one process.

Forward and backward pass of every loss and update of every metric under the
backend's compiler, every number of `calibration_errors` together, the fit of
every map, and a step of two networks that learn together. The two versions
take turns; the least processor time of the repetitions counts, with one thread.
Where a compiler puts code and data moves a short run by a third, so everything
is built several times, in both orders, and the median ratio counts.

    git worktree add ../before COMMIT
    KERAS_BACKEND=jax python examples/benchmarks/versions.py ../before
    python examples/benchmarks/versions.py ../before --parts maps --only Platt

Prints every ratio with its range over the builds, and those above `--limit`
again at the end.
"""

import argparse
import functools
import importlib
import pathlib
import platform
import sys

import keras
import losses as loss_benchmark  # sets the threads before Keras is imported
import metrics as metric_benchmark
import numpy as np
from argument_types import positive_int

# Bases, and losses with a history or a table beside the batch.
LEFT_OUT = {"ClassificationLoss", "PenalizedLoss", "AdaFocalLoss", "CRL"}
# Maps that are built of something, and the base.
NO_DEFAULT = {"CalibrationLayer", "CalibrationMixture"}
# What earlier versions of a map did by default.
PENALTY = {"MatrixScaling": "structured", "DirichletScaling": "odir"}
HERE = pathlib.Path(__file__).parents[2]


def package(folder):
    """`keras_calib` as it stands in `folder`, apart from any other."""
    for name in list(sys.modules):
        if name.partition(".")[0] == "keras_calib":
            del sys.modules[name]
    sys.path.insert(0, str(folder))
    try:
        found = importlib.import_module("keras_calib")
    finally:
        sys.path.remove(str(folder))
    if not pathlib.Path(found.__file__).is_relative_to(folder):
        raise ValueError(f"No package keras_calib in {folder}.")
    return found


def classes_of(versions, room, base):
    """Names of classes that a room of both versions exports."""
    before, after = (getattr(version, room) for version in versions)
    return sorted(
        name
        for name in set(dir(before)) & set(dir(after))
        if isinstance(getattr(after, name), type)
        and issubclass(getattr(after, name), base)
    )


def losses(versions, wanted, rng):
    for shape in loss_benchmark.SHAPES.values():
        logits = 3 * rng.normal(size=shape).astype("float32")
        labels = rng.integers(0, shape[-1], shape[:-1]).astype("int32")
        for name in classes_of(versions, "losses", keras.losses.Loss):
            if name in LEFT_OUT or not wanted(name):
                continue
            runs = [
                loss_benchmark.forward_and_backward(
                    getattr(version.losses, name)(from_logits=True),
                    labels,
                    logits,
                    eager=False,
                )
                for version in versions
            ]
            yield f"{name} {' x '.join(map(str, shape))}", runs


def metrics(versions, wanted, rng):
    for num_classes in (10, 100):
        labels, p = metric_benchmark.predictions(1000, num_classes)
        for name in classes_of(versions, "metrics", keras.metrics.Metric):
            if not wanted(name):
                continue
            arguments = {}
            if name.startswith("Classwise") or "MultiLabel" in name:
                arguments["num_classes"] = num_classes
            try:
                runs = [
                    metric_benchmark.compiled_update(
                        getattr(version.metrics, name)(**arguments), labels, p
                    )
                    for version in versions
                ]
            except (NotImplementedError, TypeError, ValueError) as error:
                print(f"{name}: left out, {str(error)[:60]}")
                continue
            yield f"{name} 1000 x {num_classes}", runs


def errors(versions, wanted, rng):
    labels, p = metric_benchmark.predictions(100_000)
    if wanted("calibration_errors"):
        yield (
            "calibration_errors 100000 x 10",
            [
                lambda version=version: version.metrics.calibration_errors(
                    labels, p
                )
                for version in versions
            ],
        )


def maps(versions, wanted, rng):
    labels, p = metric_benchmark.predictions(3000)
    logits = np.log(p)
    margin = logits[:, 0] - logits[:, 1]
    two = np.stack([np.zeros_like(margin), margin], axis=1)

    def fit(version, name, data):
        layer = getattr(version.layers, name)
        arguments = {}
        if getattr(layer(), "regularization", None) == "auto":
            arguments["regularization"] = PENALTY.get(name)
        if getattr(layer(), "shrinkage", None) == "auto":
            arguments["shrinkage"] = None
        return layer(**arguments).adapt(*data)

    base = versions[1].layers.CalibrationLayer
    for name in classes_of(versions, "layers", base):
        if name in NO_DEFAULT or not wanted(name):
            continue
        data = (logits, labels)
        try:
            fit(versions[1], name, data)
        except ValueError:  # a map of two classes
            data = (two, (labels > 4).astype("int32"))
        runs = [functools.partial(fit, v, name, data) for v in versions]
        yield f"{name} 3000 x {data[0].shape[1]}", runs


def learning(versions, wanted, rng):
    x = rng.normal(size=(64, 16, 16, 3)).astype("float32")
    y = rng.integers(0, 10, 64)

    def network():
        inputs = keras.Input((16, 16, 3))
        z = keras.layers.Conv2D(32, 3, activation="relu")(inputs)
        z = keras.layers.Conv2D(32, 3, 2, activation="relu")(z)
        z = keras.layers.GlobalAveragePooling2D()(z)
        return keras.Model(inputs, keras.layers.Dense(10)(z))

    def pair(version, name):
        model = getattr(version.models, name)(network(), network())
        model.compile(
            "sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        )
        return lambda: model.train_on_batch(x, y)

    for name in ("MutualLearning", "DiffDML"):
        if wanted(name):
            yield f"{name} step", [pair(version, name) for version in versions]


PARTS = (losses, metrics, errors, maps, learning)


def compared(builds, repeats):
    """One line for a cell that was built several times, and its ratio."""
    ratios, seconds = [], []
    for number, (_, (old, new)) in enumerate(builds):
        runs = {"before": old, "after": new}
        if number % 2:
            runs = {"after": new, "before": old}
        found = loss_benchmark.least_seconds(runs, repeats)
        ratios.append(found["after"] / found["before"])
        seconds.append(found["after"])
    ratio = float(np.median(ratios))
    spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
    milliseconds = 1000 * np.median(seconds)
    text = f"{ratio:6.2f}  {spread}  {milliseconds:9.3f} ms  {builds[0][0]}"
    return text, ratio


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("before", type=pathlib.Path)
    names = [part.__name__ for part in PARTS]
    parser.add_argument("--parts", nargs="*", choices=names, default=names)
    parser.add_argument("--only", help="names that contain this")
    parser.add_argument("--repeats", type=positive_int, default=9)
    parser.add_argument("--builds", type=positive_int, default=5)
    parser.add_argument("--limit", type=float, default=1.05)
    arguments = parser.parse_args()
    loss_benchmark.one_thread()
    versions = [package(arguments.before.resolve()), package(HERE)]
    print(f"{platform.machine()}, one thread, {keras.backend.backend()}")

    def wanted(name):
        return not arguments.only or arguments.only in name

    slower = []
    for part in PARTS:
        if part.__name__ not in arguments.parts:
            continue
        builds = [
            part(versions, wanted, np.random.default_rng(0))
            for _ in range(arguments.builds)
        ]
        for cell in zip(*builds, strict=True):
            text, ratio = compared(cell, arguments.repeats)
            print(text, flush=True)
            if ratio > arguments.limit:
                slower.append(text)
    print(f"\nabove {arguments.limit}: {len(slower)}", *slower, sep="\n")


if __name__ == "__main__":
    main()
