"""What every loss, metric and callback adds to a training step in `fit`.

Each is added to a network of one layer, which cannot hide it, and `fit` runs
with and without it in turns, in one process: 40 steps of 128 samples of 10
classes for losses and metrics, epochs with a validation of 5,000 samples (or of
12,800 training samples) for callbacks. The difference, in milliseconds, stands
beside the step of a ResNet-20 on 128 images of 32 x 32 x 3, and that of a
callback beside an epoch of 390 such steps (or of 100). What a callback takes
once in a call of `fit`, such as to compile, is told apart by calls of three and
of six epochs. Seconds are processor time of one thread, the least of the
repetitions; the row "the same again" is the noise.

    KERAS_BACKEND=jax nice python examples/benchmarks/fit_costs.py
    python examples/benchmarks/fit_costs.py --parts losses --only MDCA

Prints Markdown, in some minutes; `examples/results/fit_costs.md` has runs on
three backends.
"""

import argparse
import datetime
import functools
import platform
import tempfile
import warnings

import keras
import losses as loss_benchmark  # sets the threads before Keras is imported
import numpy as np
from argument_types import positive_int

import keras_calib as kc

BATCH, STEPS, CLASSES, FEATURES = 128, 40, 10, 16
VALIDATION, TRAINING = 5_000, 12_800
# Of an epoch beside which a callback is shown, in steps: 50,000 images, unless
# what it does grows with the training samples.
EPOCH = 390
EPOCHS_OF_KIND = {"history": TRAINING // BATCH, "one-hot": TRAINING // BATCH}
AGAIN = "the same again"
LOGITS = {"from_logits": True}
# Bases, and what is a part of others.
LEFT_OUT = {"ClassificationLoss", "PenalizedLoss", "LossPart"}
LEFT_OUT |= {"CalibrationMetric", "AdaFocalTable"}
KIND = {"BinaryCalibrationError": "one unit"}
KIND |= {"MultilabelCalibrationError": "labels"}
# What callbacks take once is told from what they take in every epoch.
EPOCHS = (3, 6)


def sample(kind="classes", number=BATCH * STEPS):
    """Inputs, and labels of one kind."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(number, FEATURES)).astype("float32")
    y = rng.integers(0, CLASSES, number).astype("int32")
    if kind == "one unit":
        return x, (y[:, None] > 4).astype("float32")
    if kind == "labels":
        return x, rng.integers(0, 2, (number, CLASSES)).astype("float32")
    return x, y


def small_model(loss=None, metrics=(), kind="classes", history=0):
    """A network of one layer, compiled.

    Args:
        loss: by default Keras' cross-entropy.
        metrics: what `compile` takes.
        kind: of the labels.
        history: number of samples with a history, if any.
    """
    units = 1 if kind == "one unit" else CLASSES
    model = keras.Sequential(
        [keras.Input((FEATURES,)), keras.layers.Dense(units)]
    )
    if history:
        model = kc.models.SampleHistoryModel(model, num_samples=history)
    if loss is None:
        loss = keras.losses.BinaryCrossentropy(**LOGITS)
        if kind == "classes":
            loss = keras.losses.SparseCategoricalCrossentropy(**LOGITS)
    # So small a rate that the predictions stay as they are.
    model.compile(keras.optimizers.SGD(1e-6), loss, metrics=list(metrics))
    return model


def fitting(model, x, y, **arguments):
    """A function of the number of epochs that fits the model."""
    arguments = {"batch_size": BATCH, "verbose": 0, **arguments}
    if y is None:
        del arguments["batch_size"]
    return lambda epochs=1: model.fit(x, y, epochs=epochs, **arguments)


def classes_of(room, base):
    """Names of classes in a room, without bases."""
    return [
        name
        for name in room.__all__
        if isinstance(getattr(room, name), type)
        and issubclass(getattr(room, name), base)
        and name not in LEFT_OUT
    ]


def losses():
    """Runs by name and kind: `fit` with each loss."""
    x, y = sample()
    yield "cross-entropy", "classes", fitting(small_model(), x, y)
    yield AGAIN, "classes", fitting(small_model(), x, y)
    for name in classes_of(kc.losses, keras.losses.Loss):
        loss = getattr(kc.losses, name)(**LOGITS)
        metrics, history, inputs = [], 0, x
        if name == "AdaFocalLoss":
            metrics = loss.component_metrics()
        if name == "CRL":
            history, inputs = len(x), kc.add_sample_index(x)
        model = small_model(loss, metrics, history=history)
        yield name, "classes", fitting(model, inputs, y)


def metrics():
    """Runs by name and kind: `fit` with each metric."""
    for kind in ("classes", "one unit", "labels"):
        x, y = sample(kind)
        base = fitting(small_model(kind=kind), x, y)
        yield f"no metric, {kind}", kind, base
        if kind == "classes":
            yield AGAIN, kind, fitting(small_model(), x, y)
            accuracy = keras.metrics.SparseCategoricalAccuracy()
            model = small_model(metrics=[accuracy])
            yield "Keras' accuracy", kind, fitting(model, x, y)
        for name in classes_of(kc.metrics, keras.metrics.Metric):
            if KIND.get(name, "classes") != kind:
                continue
            # Classes are known before the first step.
            wants = {"ClasswiseCalibrationError": {"num_classes": CLASSES}}
            metric = getattr(kc.metrics, name)(**LOGITS, **wants.get(name, {}))
            model = small_model(metrics=[metric], kind=kind)
            yield name, kind, fitting(model, x, y)


def callbacks():
    """Runs by name and kind: `fit` with each callback."""
    folder = tempfile.mkdtemp()
    x, y = sample()
    few = {"validation_data": sample(number=VALIDATION)}
    known = kc.callbacks
    plain = "validation of 5,000"

    def run(*which):
        model = small_model(metrics=["accuracy"])
        return fitting(model, x, y, callbacks=list(which), **few)

    def refined(*more):
        return run(known.CalibrationMonitor(refinement=True, **LOGITS), *more)

    yield plain, plain, run()
    yield AGAIN, plain, run()
    yield "CalibrationMonitor", plain, run(known.CalibrationMonitor(**LOGITS))
    yield "CalibrationMonitor(refinement=True)", plain, refined()
    every = known.CalibrationMonitor(metrics="all", **LOGITS)
    yield 'CalibrationMonitor(metrics="all")', plain, run(every)
    restore = known.RestoreCalibrated()
    yield "the second with RestoreCalibrated", plain, refined(restore)
    yield "TemperatureTracker", plain, run(known.TemperatureTracker(**LOGITS))
    diagram = known.ReliabilityDiagram(folder, **LOGITS)
    yield "ReliabilityDiagram, each epoch", plain, run(diagram)

    for name, callback in (("AdaFocalLoss", []), ("AdaFocalSchedule", [1])):
        loss = kc.losses.AdaFocalLoss(**LOGITS)
        model = small_model(loss, loss.component_metrics())
        which = [known.AdaFocalSchedule() for _ in callback]
        run_it = fitting(model, x, y, callbacks=which, **few)
        yield name, "AdaFocalLoss", run_it

    x, y = sample(number=TRAINING)
    numbered = kc.add_sample_index(x)
    for name in ("12,800 samples with a history", "CorrectnessHistory"):
        model = small_model(kc.losses.CRL(**LOGITS), history=TRAINING)
        which = [known.CorrectnessHistory()] if name[0] == "C" else []
        run_it = fitting(model, numbered, y, callbacks=which)
        yield name, "history", run_it
    # So small a part is none: a shorter last batch is compiled anew.
    pruning = known.DataPruning(x, y, fraction=1e-6, every=1, batch_size=BATCH)
    model = small_model(kc.losses.CRL(**LOGITS), history=TRAINING)
    run_it = fitting(model, pruning.data, None, callbacks=[pruning])
    yield "DataPruning", "history", run_it

    loss = keras.losses.CategoricalCrossentropy(**LOGITS)
    for name in ("12,800 samples, one-hot labels", "EmpiricalTargets"):
        cape = known.EmpiricalTargets(
            x, y, num_classes=CLASSES, cycle=3, batch_size=BATCH, **LOGITS
        )
        model = small_model(loss)
        run_it = fitting(model, x, keras.utils.to_categorical(y))
        if name[0] == "E":
            run_it = fitting(model, cape.data, None, callbacks=[cape])
        yield name, "one-hot", run_it


PARTS = {"losses": losses, "metrics": metrics, "callbacks": callbacks}


def step_of_resnet(repeats=5):
    """Seconds of a step of a ResNet-20 with Keras' cross-entropy."""
    step = loss_benchmark.training_step(
        "cross-entropy", np.random.default_rng(0), BATCH
    )
    step()
    return loss_benchmark.least_seconds({"step": step}, repeats)["step"]


def table_of_steps(part, runs, step, repeats):
    """Lines of Markdown: what each adds to its base, the first of its kind."""
    seconds = loss_benchmark.least_seconds(
        {name: run for name, _, run in runs}, repeats
    )
    yield f"| {part} | ms a step | added | share of a ResNet-20 step |"
    yield "|---|---|---|---|"
    bases = {}
    for name, kind, _ in runs:
        own = seconds[name] / STEPS
        base = bases.setdefault(kind, name)
        cells = [name, f"{1e3 * own:.3f}", "", ""]
        if base != name:
            cells[2:] = added(own - seconds[base] / STEPS, step)
        yield f"| {' | '.join(cells)} |"


def table_of_epochs(part, runs, step, repeats):
    """The same for callbacks: per epoch, and once in a call of `fit`."""
    few, many = EPOCHS
    seconds = loss_benchmark.least_seconds(
        {
            (name, epochs): functools.partial(run, epochs)
            for name, _, run in runs
            for epochs in EPOCHS
        },
        repeats,
    )
    yield (
        f"| {part} | ms an epoch | added | share of a ResNet-20 epoch | "
        "added once, ms |"
    )
    yield "|---|---|---|---|---|"
    bases = {}
    for name, kind, _ in runs:
        own = (seconds[name, many] - seconds[name, few]) / (many - few)
        once = seconds[name, few] - few * own
        base, base_once = bases.setdefault(kind, (own, once))
        cells = [name, f"{1e3 * own:.1f}", "", "", ""]
        if base is not own:
            cells[2:] = added(
                own - base, EPOCHS_OF_KIND.get(kind, EPOCH) * step
            )
            cells.append(f"{1e3 * (once - base_once):+.0f}")
        yield f"| {' | '.join(cells)} |"


def added(seconds, whole):
    """Two cells: milliseconds, and the share of something longer."""
    return [f"{1e3 * seconds:+.3f}", f"{100 * seconds / whole:+.3f} %"]


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--parts", nargs="*", choices=PARTS, default=PARTS)
    parser.add_argument("--only", help="names that contain this, and bases")
    parser.add_argument("--repeats", type=positive_int, default=7)
    arguments = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    loss_benchmark.one_thread()
    step = step_of_resnet()
    backend = keras.backend.backend()
    print(f"## {backend}\n")
    print(
        f"{platform.machine()}, one thread, Keras {keras.__version__}, "
        f"{datetime.date.today()}. A step of a ResNet-20 takes "
        f"{1e3 * step:.0f} ms.",
        flush=True,
    )
    for part in arguments.parts:
        runs, kinds = [], set()
        for name, kind, run in PARTS[part]():
            if kind not in kinds or (arguments.only or "") in name:
                runs.append((name, kind, run))
            kinds.add(kind)
        table, repeats = table_of_steps, arguments.repeats
        if part == "callbacks":
            table, repeats = table_of_epochs, 2
        lines = table(part, runs, step, repeats)
        print("", *lines, sep="\n", flush=True)


if __name__ == "__main__":
    main()
