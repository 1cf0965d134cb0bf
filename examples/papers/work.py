"""One row: build, train (or go on), predict, measure."""

import dataclasses
import json
import os
import pathlib
import platform
import time
import warnings

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import networks
import numpy as np
import protocols
import training

import keras_calib as kc


def settings(table, method):
    """Everything that decides a row, but the seed and the machine."""
    return {
        "protocol": dataclasses.asdict(protocols.PROTOCOLS[table]),
        "method": protocols.METHODS[method],
    }


def machine():
    """Kind of machine and software, as one dict."""
    device = platform.machine() + f", {os.cpu_count()} processors"
    if keras.backend.backend() == "jax":
        import jax

        if jax.devices()[0].platform != "cpu":
            device = jax.devices()[0].device_kind
    return {
        "device": device,
        "backend": keras.backend.backend(),
        "keras": keras.__version__,
        "keras_calib": kc.__version__,
    }


def build_loss(spec):
    """A loss object from its declaration in `protocols`."""
    spec = dict(spec)
    name = spec.pop("class")
    if "primary" in spec:
        spec["primary"] = build_loss(spec["primary"])
    home = kc.losses if name in kc.losses.__all__ else keras.losses
    return getattr(home, name)(from_logits=True, **spec)


def probe(method):
    """Values of a method's loss on fixed predictions: a changed loss shows."""
    loss = build_loss(method["loss"])
    generator = np.random.default_rng(0)
    values = []
    for scale in (0.5, 2.0, 8.0):
        logits = scale * generator.normal(size=(32, 10)).astype("float32")
        labels = generator.integers(0, 10, 32).astype("int32")
        values.append(float(loss(labels, logits)))
    return values


def load(protocol, cache):
    """Parts of the data: train, validation, calibration, test.

    Decoding takes ten seconds, so arrays are kept in the folder `cache`.
    """
    path = pathlib.Path(cache) / f"{protocol.data}.npz"
    if not path.exists():
        (x, y), _, (x_test, y_test) = kc.datasets.load(
            protocol.data, validation=0
        )
        inexact = kc.datasets.inexact_images(protocol.data)
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".{os.getpid()}.npz")
        arrays = dict(x=x, y=y, x_test=x_test, y_test=y_test, inexact=inexact)
        np.savez(part, **arrays)
        os.replace(part, path)
    with np.load(path, allow_pickle=False) as file:
        data = {key: file[key] for key in file.files}
    x, y, count = data["x"], data["y"], len(data["y"])
    rows = np.arange(count - protocol.held_out)
    if protocol.train is not None:
        rows = rows[~np.isin(rows, data["inexact"])][: protocol.train]
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


def run(table, method, seed, path, cache, deadline=None):
    """Train one row.

    Returns:
        The results as a dict, or `None` where the time was over before the
        end; a later call goes on.
    """
    protocol = protocols.PROTOCOLS[table]
    spec = protocols.METHODS[method]
    keras.config.set_dtype_policy(protocol.dtype)
    data = load(protocol, cache)
    parts = ("validation", "calibration", "test")
    begin = time.time()
    if spec["train"] == "ensemble":
        members = []
        for member in range(spec["members"]):
            found = train(
                {**spec, "train": "single"},
                protocol,
                data,
                seed + 1000 * member,
                f"{path}-member{member}",
                deadline,
            )
            if found is None:
                return None
            members.append(found[0])
        logits = {
            part: np.log(np.mean([softmax(m[part]) for m in members], axis=0))
            for part in parts
        }
        extra = {}
    else:
        found = train(spec, protocol, data, seed, str(path), deadline)
        if found is None:
            return None
        logits, extra = found
    for part in parts:
        if not np.isfinite(logits[part]).all():
            raise FloatingPointError(f"Logits of {part} are not finite.")
    labels = {part: data[part][1] for part in parts}
    np.savez(
        f"{path}.npz",
        **{f"{part}_logits": logits[part].astype("float16") for part in parts},
        **{f"{part}_labels": labels[part].astype("uint8") for part in parts},
    )
    return {
        **results(f"{path}.npz"),
        "seconds": round(time.time() - begin, 1),
        **extra,
    }


def results(path):
    """What a row says of its stored logits, as trained and with temperature.

    From the file, not from memory, so that a measure that comes later is made
    of the same numbers.
    """
    with np.load(path, allow_pickle=False) as file:
        logits, labels = (
            {
                part: file[f"{part}_{kind}"].astype(dtype)
                for part in ("validation", "calibration", "test")
            }
            for kind, dtype in (("logits", "float64"), ("labels", "int64"))
        )
    temperature = fit_temperature(logits["calibration"], labels["calibration"])
    scaled = measure(logits["test"] / temperature, labels["test"])
    return {
        "test": measure(logits["test"], labels["test"]),
        "test_scaled": {"temperature": temperature, **scaled},
        "validation": measure(logits["validation"], labels["validation"]),
        "maps": measure_maps(logits, labels),
    }


def train(spec, protocol, data, seed, path, deadline):
    """One network, with its peers where it has some, to logits of all parts."""
    state = pathlib.Path(f"{path}.weights.h5")
    keras.utils.set_random_seed(seed)
    batches = training.Batches(*data["train"], protocol.batch_size, seed)
    classes = int(data["test"][1].max()) + 1

    def network(name, index):
        augment = training.Augment(protocol.shift, seed)
        return networks.build(
            name, classes, width=protocol.width, inputs=augment
        )

    primary = network(protocol.network, 0)
    steps = len(batches) * protocol.epochs
    warmup = round(protocol.warmup * steps)
    rate = keras.optimizers.schedules.CosineDecay(
        0.0 if warmup else protocol.learning_rate,
        steps - warmup,
        warmup_target=protocol.learning_rate if warmup else None,
        warmup_steps=warmup,
    )
    model, options = primary, {}
    if spec["train"] == "mutual":
        # The pair shifts and mirrors once: its networks see the same images.
        peers = [
            network(protocol.auxiliary, 1 + i)
            for i in range(spec["auxiliaries"])
        ]
        pair = getattr(kc.models, spec["model"])
        model = pair(primary, peers, **spec["arguments"])
        if spec["model"] == "DiffDML":
            options["auxiliary_optimizer"] = sgd(
                protocol.auxiliary_rate, protocol
            )
    optimizer = sgd(rate, protocol)
    model.compile(
        optimizer, build_loss(spec["loss"]), metrics=["accuracy"], **options
    )
    model.optimizer.build(model.trainable_variables)
    if state.exists():
        model.load_weights(state)
    first = int(keras.ops.convert_to_numpy(model.optimizer.iterations))
    first //= len(batches)
    resumable = training.Resumable(state, batches, deadline)
    if first < protocol.epochs:
        model.fit(
            batches,
            epochs=protocol.epochs,
            initial_epoch=first,
            shuffle=False,
            verbose=0,
            callbacks=[resumable],
        )
    if resumable.stopped:
        return None
    logits = {
        part: primary.predict(data[part][0], batch_size=1000, verbose=0)
        for part in ("validation", "calibration", "test")
    }
    logits = {part: value.astype("float64") for part, value in logits.items()}
    extra = {"epoch_seconds": float(np.median(resumable.seconds[1:] or [0]))}
    if spec["train"] == "mutual":
        x, y = data["validation"]
        extra["auxiliary_accuracy"] = [
            float((peer.predict(x, 1000, verbose=0).argmax(-1) == y).mean())
            for peer in model.auxiliaries
        ]
    state.unlink(missing_ok=True)
    return logits, extra


def sgd(rate, protocol):
    return training.CoupledSGD(
        rate,
        momentum=0.9,
        nesterov=True,
        coupled_decay=protocol.weight_decay,
    )


def softmax(logits):
    logits = logits - logits.max(axis=-1, keepdims=True)
    exponentials = np.exp(logits)
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def fit_temperature(logits, labels):
    layer = kc.layers.TemperatureScaling()
    return float(layer.adapt(logits, labels).temperature)


def measure_maps(logits, labels):
    """Test errors with every map at its defaults, fitted to calibration rows.

    Returns:
        A dict from the name of a layer of `kc.layers` to `nll`, `brier`,
        `ece` and `accuracy`, or to `error`, why it could not be fitted.
    """
    names = {"nll", "brier", "ece"}
    wanted = [name for name, short in SHOWN.items() if short in names]
    found = {}
    for name in MAPS:
        layer = getattr(kc.layers, name)()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                layer.adapt(logits["calibration"], labels["calibration"])
        except ValueError as error:
            found[name] = {"error": str(error)}
            continue
        mapped = keras.ops.convert_to_numpy(layer(logits["test"]))
        mapped = mapped.astype("float64")
        errors = kc.metrics.calibration_errors(
            labels["test"], softmax(mapped), metrics=wanted, verbose=0
        )
        accuracy = (mapped.argmax(axis=-1) == labels["test"]).mean()
        found[name] = {
            **{SHOWN[key]: round(errors[key], 6) for key in wanted},
            "accuracy": float(accuracy),
        }
    return found


# Maps of any number of classes.
MAPS = (
    "BiasCorrectedTemperatureScaling",
    "ClassTemperatureScaling",
    "EnsembleTemperatureScaling",
    "ParameterizedTemperatureScaling",
    "VectorScaling",
    "MatrixScaling",
    "DirichletScaling",
    "IntraOrderPreserving",
    "SplineCalibration",
    "IsotonicCalibration",
    "HistogramBinning",
)


def measure(logits, labels):
    """Accuracy, proper scores and calibration errors of one set of logits."""
    probabilities = softmax(logits.astype("float64"))
    found = kc.metrics.calibration_errors(
        labels, probabilities, metrics=list(SHOWN), floor=True, verbose=0
    )
    accuracy = float((logits.argmax(axis=-1) == labels).mean())
    floor = "expected_calibration_error_floor"
    return {
        "accuracy": accuracy,
        "ece_floor": round(found[floor], 6),
        "ece_floor_high": round(found[f"{floor}_high"], 6),
        **{short: round(found[name], 6) for name, short in SHOWN.items()},
        "num": len(labels),
    }


SHOWN = {
    "expected_calibration_error": "ece",
    "adaptive_calibration_error": "ece_mass",
    "classwise_calibration_error": "classwise_ece",
    "smooth_calibration_error": "smooth_ece",
    "debiased_calibration_error": "debiased_ece",
    "negative_log_likelihood": "nll",
    "brier_score": "brier",
    "mean_confidence": "confidence",
}


if __name__ == "__main__":
    print(json.dumps(machine()))
