"""One row: build, train (or go on), predict, measure."""

import dataclasses
import json
import os
import pathlib
import platform
import sys
import time
import warnings

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import networks
import numpy as np
import procedures
import protocols
import training

import keras_calib as kc

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
from maps import ANY_CLASSES


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
        if isinstance(loss, kc.losses.CRL):
            # Its history is a model's, so the function is called instead.
            correctness = generator.random(32).astype("float32")
            value = kc.losses.crl(labels, logits, correctness)
        else:
            value = loss(labels, logits)
        values.append(float(value))
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


@dataclasses.dataclass
class Task:
    """What a procedure is given.

    Attributes:
        spec: the method, from `protocols.METHODS`.
        protocol: `protocols.Protocol`.
        data: from `load`.
        seed: int.
        primary: the network that is trained and measured.
    """

    spec: dict
    protocol: protocols.Protocol
    data: dict
    seed: int
    primary: keras.Model = None

    def network(self, name):
        """A new network of the protocol's kind."""
        augment = training.Augment(self.protocol.shift, self.seed)
        return networks.build(
            name,
            int(self.data["test"][1].max()) + 1,
            width=self.protocol.width,
            inputs=augment,
            dropout=self.spec.get("dropout", 0.0),
        )

    def loss(self):
        return build_loss(self.spec["loss"])

    def optimizer(self, rate):
        return training.CoupledSGD(
            rate,
            momentum=0.9,
            nesterov=True,
            coupled_decay=self.protocol.weight_decay,
        )

    def schedule(self, steps):
        """Linear warm-up, then cosine decay to 0."""
        rate = self.protocol.learning_rate
        warmup = round(self.protocol.warmup * steps)
        return keras.optimizers.schedules.CosineDecay(
            0.0 if warmup else rate,
            steps - warmup,
            warmup_target=rate if warmup else None,
            warmup_steps=warmup,
        )


def train(spec, protocol, data, seed, path, deadline):
    """One network, with its peers where it has some, to logits of all parts."""
    state = pathlib.Path(f"{path}.weights.h5")
    keras.utils.set_random_seed(seed)
    task = Task(spec, protocol, data, seed)
    task.primary = task.network(protocol.network)
    procedure = procedures.PROCEDURES[spec["train"]](task)
    model = procedure.model
    model.compile(
        task.optimizer(task.schedule(procedure.steps)),
        procedure.loss or task.loss(),
        **{"metrics": ["accuracy"], **procedure.compile},
    )
    watch = training.Resumable(state, procedure.batches, deadline)
    first = 0
    if procedure.batches is not None:
        first = watch.restore(model)
    if first < protocol.epochs:
        model.fit(
            *procedure.data,
            epochs=protocol.epochs,
            initial_epoch=first,
            verbose=0,
            callbacks=[*procedure.callbacks, watch],
            **procedure.fit,
        )
    if watch.stopped:
        return None
    masks = spec.get("num_masks")
    logits = {
        part: procedures.predict(task.primary, data[part][0], masks, seed)
        for part in ("validation", "calibration", "test")
    }
    logits = {part: value.astype("float64") for part, value in logits.items()}
    extra = {"epoch_seconds": float(np.median(watch.seconds[1:] or [0]))}
    if spec["train"] == "mutual":
        x, y = data["validation"]
        extra["auxiliary_accuracy"] = [
            float((peer.predict(x, 1000, verbose=0).argmax(-1) == y).mean())
            for peer in model.auxiliaries
        ]
    state.unlink(missing_ok=True)
    return logits, extra


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
    for name in (name for name in ANY_CLASSES if " " not in name):
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
