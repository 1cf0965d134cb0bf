"""Train and calibrate on two devices, on each engine that Keras has for it.

    python examples/distributed.py --engine mirrored        # TensorFlow
    python examples/distributed.py --engine data_parallel   # JAX
    python examples/distributed.py --engine model_parallel  # JAX
    python examples/distributed.py --engine ddp             # PyTorch

Two accelerators are used where there are two, else two virtual CPU devices (two
processes on PyTorch). A small network is trained with a loss whose penalty is a
statistic of the whole batch, a streaming metric and a monitor, then calibrated:
once on one device, once on two; and two such networks by Diff-DML. Prints the
numbers of both side by side; `--figure FILE` draws how far they are apart.
"""

import argparse
import contextlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import pictures

BACKENDS = {
    "mirrored": "tensorflow",
    "data_parallel": "jax",
    "model_parallel": "jax",
    "ddp": "torch",
}
FEATURES, CLASSES = 16, 6
BATCH, EPOCHS = 64, 4
LOGITS = {"from_logits": True}


def data(seed, rows=512):
    """Inputs and noisy labels."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, FEATURES)).astype("float32")
    noise = rng.gumbel(size=(rows, CLASSES))
    return x, (x[:, :CLASSES] + noise).argmax(axis=1).astype("int32")


class OneDevice:
    """An engine: where a model is built, and which rows it is trained on.

    Attributes:
        rank: the number of this process.
        processes: how many of them there are.
    """

    rank, processes = 0, 1

    def scope(self):
        """The context in which the model is built."""
        return contextlib.nullcontext()

    def connect(self, model):
        """Called once, before training."""

    def merge(self, metric):
        """Make the state of a metric that of all processes."""


class Mirrored(OneDevice):
    """A replica on each device, `tf.distribute.MirroredStrategy`."""

    def __init__(self):
        import tensorflow as tf

        devices = [d.name for d in tf.config.list_logical_devices("GPU")]
        if len(devices) < 2:
            devices = ["/cpu:0", "/cpu:1"]
        self.strategy = tf.distribute.MirroredStrategy(devices[:2])

    def scope(self):
        return self.strategy.scope()


class Distributed(OneDevice):
    """`keras.distribution`: each batch, or each kernel, in two parts."""

    def __init__(self, *, split_weights):
        import keras

        devices = keras.distribution.list_devices()[:2]
        if split_weights:
            mesh = keras.distribution.DeviceMesh(
                (1, 2), ("batch", "model"), devices
            )
            layout = keras.distribution.LayoutMap(mesh)
            # Patterns of whole paths, such as `sequential/hidden/kernel`.
            layout[".*hidden.*kernel"] = (None, "model")
            layout[".*hidden.*bias"] = ("model",)
            self.distribution = keras.distribution.ModelParallel(
                layout_map=layout, batch_dim_name="batch"
            )
        else:
            self.distribution = keras.distribution.DataParallel(devices=devices)
        self.split_weights = split_weights

    def connect(self, model):
        whole = [
            variable.value.sharding.is_fully_replicated
            for variable in model.trainable_variables
        ]
        assert self.split_weights == (not all(whole)), whole

    def scope(self):
        return self.distribution.scope()


class Processes(OneDevice):
    """A process for each device, which `torch.distributed` connects."""

    def __init__(self, rank, processes, store):
        import torch

        self.rank, self.processes = rank, processes
        several = torch.cuda.device_count() >= processes
        if several:
            torch.cuda.set_device(rank)
        torch.distributed.init_process_group(
            "nccl" if several else "gloo",
            init_method=f"file://{store}",
            rank=rank,
            world_size=processes,
        )

    def connect(self, model):
        # `DistributedDataParallel` does this in a loop of your own; `fit` calls
        # the model itself, so each weight averages its gradient.
        from torch import distributed

        def average(weight):
            distributed.all_reduce(weight.grad)
            weight.grad /= self.processes

        for variable in model.trainable_variables:
            variable.value.register_post_accumulate_grad_hook(average)

    def merge(self, metric):
        from torch import distributed

        for variable in metric.variables:
            distributed.all_reduce(variable.value)


def found_on(engine):
    """Train, measure and calibrate.

    Returns:
        dict of floats, by what they are.
    """
    import keras

    import keras_calib as kc

    keras.utils.set_random_seed(0)
    # Calibration and test data are whole in each process, the others in parts.
    part = slice(engine.rank, None, engine.processes)
    with engine.scope():
        model = network()
        model.compile(
            keras.optimizers.SGD(0.2),
            kc.losses.MDCA(across_replicas=True, **LOGITS),
            metrics=[kc.metrics.ExpectedCalibrationError(name="ece", **LOGITS)],
        )
        engine.connect(model)
        x, y = data(0)
        monitor = kc.callbacks.CalibrationMonitor(data(1), **LOGITS)
        # Rows come in one order, so that batches are the same on both; a data
        # set of your own may be shuffled, by the same seed in each process.
        history = model.fit(
            x[part],
            y[part],
            batch_size=BATCH // engine.processes,
            epochs=EPOCHS,
            shuffle=False,
            callbacks=[monitor],
            verbose=0,
        ).history
        x, y = data(2)
        ece = kc.metrics.ExpectedCalibrationError(**LOGITS)
        ece.update_state(y[part], model.predict(x[part], verbose=0))
        engine.merge(ece)
        calibrated = kc.calibrate(model, *data(3), verbose=0, **LOGITS)
        after = kc.metrics.calibration_errors(
            y, calibrated.predict(x, verbose=0), verbose=0
        )
    return {
        "loss of the last epoch": history["loss"][-1],
        "validation ECE, monitor": history["val_expected_calibration_error"][
            -1
        ],
        "validation NLL, monitor": history["val_negative_log_likelihood"][-1],
        "test ECE, metric": float(ece.result()),
        "temperature": kc.calibration_record(calibrated).get(
            "temperature", 1.0
        ),
        "test ECE, calibrated": after["expected_calibration_error"],
        "test NLL, calibrated": after["negative_log_likelihood"],
        **mutual_on(engine),
    }


def mutual_on(engine):
    """Train two networks by Diff-DML.

    Returns:
        dict of floats, by what they are.
    """
    import keras

    import keras_calib as kc

    keras.utils.set_random_seed(0)
    part = slice(engine.rank, None, engine.processes)
    x, y = data(0)
    with engine.scope():
        pair = kc.models.DiffDML(network(), network(), label_warmup=8)
        pair.compile(
            keras.optimizers.SGD(0.2),
            keras.losses.SparseCategoricalCrossentropy(**LOGITS),
        )
        engine.connect(pair)
        pair.fit(
            x[part],
            y[part],
            batch_size=BATCH // engine.processes,
            epochs=EPOCHS,
            shuffle=False,
            verbose=0,
        )
        x, y = data(2)
        networks = {"first": pair.primary, "second": pair.auxiliaries[0]}
        return {
            f"test NLL, Diff-DML, {name}": float(
                kc.metrics.calibration_errors(
                    y, each.predict(x, verbose=0), verbose=0, **LOGITS
                )["negative_log_likelihood"]
            )
            for name, each in networks.items()
        }


def network():
    """A small classifier without a softmax."""
    import keras

    return keras.Sequential(
        [
            keras.Input((FEATURES,)),
            keras.layers.Dense(32, "relu", name="hidden"),
            keras.layers.Dense(CLASSES, name="scores"),
        ]
    )


def found_in_processes():
    """`found_on` two processes; what the first one found."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--engine", "ddp"]
        command += ["--folder", folder, "--rank"]
        running = [subprocess.Popen([*command, str(rank)]) for rank in (0, 1)]
        if any([process.wait() for process in running]):
            raise RuntimeError("A process failed; what it wrote is above.")
        return json.loads((pathlib.Path(folder) / "found.json").read_text())


def prepare(engine):
    """Choose the backend and two devices, before Keras is imported."""
    backend = os.environ.setdefault("KERAS_BACKEND", BACKENDS[engine])
    if backend != BACKENDS[engine]:
        raise SystemExit(
            f"--engine {engine} needs KERAS_BACKEND={BACKENDS[engine]}. "
            f"Received: KERAS_BACKEND={backend}."
        )
    if backend == "jax":
        flags = os.environ.get("XLA_FLAGS", "")
        more = "--xla_force_host_platform_device_count=2"
        os.environ["XLA_FLAGS"] = f"{flags} {more}".strip()
    if backend == "tensorflow":
        import tensorflow as tf

        cpu = tf.config.list_physical_devices("CPU")[0]
        one = tf.config.LogicalDeviceConfiguration()
        tf.config.set_logical_device_configuration(cpu, [one, one])


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engine", choices=BACKENDS, required=True)
    pictures.add_option(parser)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    prepare(given.engine)
    if given.rank is not None:
        folder = pathlib.Path(given.folder)
        found = found_on(Processes(given.rank, 2, folder / "store"))
        if given.rank == 0:
            (folder / "found.json").write_text(json.dumps(found))
        return
    one = found_on(OneDevice())
    if given.engine == "mirrored":
        two = found_on(Mirrored())
    elif given.engine == "ddp":
        two = found_in_processes()
    else:
        split = given.engine == "model_parallel"
        two = found_on(Distributed(split_weights=split))
    print(f"{given.engine:31} {'one device':>12} {'two':>12}")
    for name, value in one.items():
        print(f"{name:31} {value:12.7f} {two[name]:12.7f}")
    if given.figure:
        draw(one, two, given)


def draw(one, two, given):
    """How far two devices are from one, relative to the value on one."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 3), layout="constrained")
    apart = [abs(two[name] - value) / value for name, value in one.items()]
    # Equal to the last bit would have no place on the axis.
    axes.plot([max(gap, 1e-10) for gap in apart], list(one), "o")
    axes.axvline(2**-24, linestyle="--", color="black", linewidth=1)
    axes.annotate("  rounding of float32", (2**-24, 4.1), fontsize=9)
    axes.set(
        title=f"{given.engine}: two devices and one",
        xlabel="relative difference",
        xscale="log",
        xlim=(5e-11, 1),
    )
    axes.invert_yaxis()
    pictures.save(figure, given.figure)


if __name__ == "__main__":
    main()
