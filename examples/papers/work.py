"""One row: build, train (or go on), predict, measure."""

import dataclasses
import functools
import os
import pathlib
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import condition_losses
import data_sets
import keras
import kinds
import methods
import networks
import numpy as np
import procedures
import protocols
import training
from measures import SHOWN
from measures import SHOWN_BY_EPOCH
from measures import results
from measures import softmax

import keras_calib as kc


def settings(table, method):
    """Everything that decides a row, but the seed and the machine."""
    return {
        "protocol": dataclasses.asdict(protocols.PROTOCOLS[table]),
        "method": methods.method(method),
    }


def build_loss(spec, **common):
    """A loss object from its declaration in `protocols`.

    Args:
        spec: dict, the class and its settings.
        **common: settings of every loss, such as `ignore_class`.
    """
    spec = {**spec, **common}
    name = spec.pop("class")
    if "primary" in spec:
        # What does not count is decided by the outer loss.
        spec["primary"] = build_loss(spec["primary"])
    homes = (kc.losses, condition_losses, keras.losses)
    home = next((each for each in homes if hasattr(each, name)), None)
    if home is None:
        raise ValueError(
            "A loss is a class of `kc.losses`, of Keras, or of "
            f"`condition_losses.py`. Received: {name!r}."
        )
    return getattr(home, name)(from_logits=True, **spec)


# Training samples that are measured after training: how far the network has
# memorized them.
MEASURED_OF_TRAIN = 5000


def run(table, method, seed, path, cache, deadline=None, every=None):
    """Train one row.

    Args:
        table: key of `protocols.PROTOCOLS`.
        method: name in `methods.METHODS`, or of a variant.
        seed: int.
        path: of the files that are written, without their endings.
        cache: folder for the data.
        deadline: `time.time()` after which no epoch may begin, or `None`.
        every: measure the validation samples every so many epochs, too.

    Returns:
        The results as a dict, or `None` where the time was over before the
        end; a later call goes on.
    """
    protocol = protocols.PROTOCOLS[table]
    spec = methods.method(method)
    keras.config.set_dtype_policy(protocol.dtype)
    data = data_sets.load(protocol, cache)
    begin = time.time() - training.earlier_seconds(path)
    if spec["train"] == "ensemble":
        members = []
        for member in range(spec["members"]):
            found = train_member(
                {**spec, "train": "single"},
                protocol,
                data,
                seed + 1000 * member,
                f"{path}-member{member}",
                deadline,
                every,
            )
            if found is None:
                return None
            members.append(found)
        logits = {
            part: np.log(np.mean([softmax(m[part]) for m in members], axis=0))
            for part in members[0]
        }
        extra = {}
    else:
        found = train(spec, protocol, data, seed, str(path), deadline, every)
        if found is None:
            return None
        logits, extra = found
    arrays = {}
    for part, values in logits.items():
        with np.errstate(over="ignore"):
            kept = values.astype("float16")
        if not np.isfinite(kept).all():
            raise FloatingPointError(
                f"Logits of {part} are not finite, or above 65,504."
            )
        labels = data[part][1][: len(values)]
        arrays[f"{part}_logits"] = kept
        arrays[f"{part}_labels"] = labels.astype(
            "uint8" if labels.max(initial=0) < 256 else "uint16"
        )
    np.savez(f"{path}.part.npz", **arrays)
    os.replace(f"{path}.part.npz", f"{path}.npz")
    return {
        **results(f"{path}.npz", protocol, method),
        "seconds": round(time.time() - begin, 1),
        **extra,
    }


def train_member(spec, protocol, data, seed, path, deadline, every):
    """Logits of one network of an ensemble, kept until the row is written.

    See `run` for the arguments.
    """
    kept = pathlib.Path(f"{path}.logits.npz")
    if not kept.exists():
        found = train(spec, protocol, data, seed, path, deadline, every)
        if found is None:
            return None
        labels = {f"{part}_labels": data[part][1] for part in PREDICTED}
        part = kept.with_suffix(".part.npz")
        np.savez(part, **found[0], **labels)
        os.replace(part, kept)
    with np.load(kept, allow_pickle=False) as file:
        for part in PREDICTED:
            inputs, _ = data.get(part, (None, None))
            data[part] = (inputs, file[f"{part}_labels"])
        return {
            name: file[name]
            for name in file.files
            if not name.endswith("_labels")
        }


@dataclasses.dataclass
class Task:
    """What a procedure is given.

    Attributes:
        spec: the method, from `methods.METHODS`.
        protocol: `kinds.Protocol`.
        data: from `load`.
        seed: int.
        primary: the network that is trained and measured.
    """

    spec: dict
    protocol: kinds.Protocol
    data: dict
    seed: int
    primary: keras.Model = None

    def network(self, name):
        """A new network of the protocol's kind."""
        protocol = self.protocol
        if protocol.kind == "text":
            return networks.gpcn(
                self.num_classes, length=protocol.length, words=protocol.words
            )
        if protocol.kind == "fine_tuning":
            inputs = training.Augment(
                protocol.shift,
                self.seed,
                mean=networks.PUBLISHED_MEAN,
                deviation=networks.PUBLISHED_DEVIATION,
            )
            path = data_sets.data_folder() / protocol.weights
            return networks.published(path, inputs=inputs)
        if protocol.kind == "segmentation":
            return networks.unet(
                self.num_classes,
                shape=self.data["test"][0].shape[1:3],
                inputs=training.Augment(0, mirror=False),
                width=protocol.width,
            )
        if name == "deeplab":
            return networks.deeplab(
                self.num_classes,
                side=protocol.image_size,
                inputs=training.Augment(0, mirror=False),
            )
        if protocol.streamed:
            # Cut and mirrored where they are read.
            return networks.build(
                name,
                self.num_classes,
                side=protocol.image_size,
                width=protocol.width,
                inputs=training.Augment(0, mirror=False),
                dropout=self.spec.get("dropout", 0.0),
                dtype="float32",
            )
        return networks.build(
            name,
            self.num_classes,
            side=self.data["test"][0].shape[1],
            width=protocol.width,
            inputs=training.Augment(protocol.shift, self.seed),
            dropout=self.spec.get("dropout", 0.0),
        )

    @functools.cached_property
    def num_classes(self):
        if self.protocol.streamed:
            return self.protocol.classes
        ignored = self.protocol.ignore_class
        labels = [np.unique(y) for _, y in self.data.values()]
        return max(int(y[y != ignored].max()) for y in labels) + 1

    def loss(self):
        ignored = self.protocol.ignore_class
        common = {} if ignored is None else {"ignore_class": ignored}
        return build_loss(self.spec["loss"], **common)

    def optimizer(self, rate):
        if self.protocol.optimizer == "adam":
            return keras.optimizers.Adam(rate)
        if self.protocol.optimizer == "adamw":
            decay = self.protocol.weight_decay
            return keras.optimizers.AdamW(rate, weight_decay=decay)
        return training.CoupledSGD(
            rate,
            momentum=0.9,
            nesterov=self.protocol.nesterov,
            coupled_decay=self.protocol.weight_decay,
        )

    def schedule(self, steps):
        """The learning rate of each step, by the protocol's `schedule`."""
        rate = self.protocol.learning_rate
        if self.protocol.schedule == "constant":
            return rate
        schedules = keras.optimizers.schedules
        if self.protocol.schedule == "halves":
            return schedules.PiecewiseConstantDecay(
                [steps // 2], [rate, rate / 10]
            )
        if self.protocol.schedule == "steps":
            protocol = self.protocol
            each = steps / protocol.epochs
            return schedules.PiecewiseConstantDecay(
                [round(each * epoch) for epoch in protocol.decays],
                [
                    rate * protocol.factor**number
                    for number in range(len(protocol.decays) + 1)
                ],
            )
        # Linear warm-up, then cosine decay to 0.
        warmup = round(self.protocol.warmup * steps)
        return schedules.CosineDecay(
            0.0 if warmup else rate,
            steps - warmup,
            warmup_target=rate if warmup else None,
            warmup_steps=warmup,
        )


def train(spec, protocol, data, seed, path, deadline, every=None):
    """One network, with its peers where it has some, to logits of all parts.

    See `run` for the arguments.
    """
    return train_task(Task(spec, protocol, data, seed), path, deadline, every)


def train_task(task, path, deadline=None, every=None):
    """See `train`."""
    spec, protocol, data = task.spec, task.protocol, task.data
    state = pathlib.Path(f"{path}.weights.h5")
    keras.utils.set_random_seed(task.seed)
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
    data_of_fit = procedure.data
    if protocol.streamed:
        data_of_fit = (procedure.batches.resumed(first),)
    if procedure.steps and first < protocol.epochs:
        model.fit(
            *data_of_fit,
            epochs=protocol.epochs,
            initial_epoch=first,
            verbose=0,
            callbacks=[*procedure.callbacks, *monitors(task, every), watch],
            **procedure.fit,
        )
    if watch.stopped:
        return None
    if protocol.streamed:
        logits = predict_streamed(task)
    else:
        logits = predict_arrays(task)
    extra = {
        "epoch_seconds": float(np.median(watch.of_epochs() or [0])),
        "history": in_columns(watch.history),
    }
    if spec["train"] == "mutual" and not protocol.streamed:
        x, y = data["validation"]
        extra["auxiliary_accuracy"] = [
            float((peer.predict(x, 1000, verbose=0).argmax(-1) == y).mean())
            for peer in model.auxiliaries
        ]
    if protocol.kind == "fine_tuning":
        # For the test images under corruptions.
        task.primary.save_weights(f"{path}-primary.weights.h5")
    return logits, extra


PREDICTED = ("validation", "calibration", "test")


def predict_arrays(task):
    """Logits of all parts that are measured, float64."""
    protocol, data = task.protocol, task.data
    masks = task.spec.get("num_masks")
    inputs = {part: data[part][0] for part in PREDICTED}
    if protocol.kind != "segmentation":
        inputs["train"] = data["train"][0][:MEASURED_OF_TRAIN]
    logits = {
        part: procedures.predict(
            task.primary, x, masks, task.seed, protocol.predict_batch
        )
        for part, x in inputs.items()
    }
    return {part: value.astype("float64") for part, value in logits.items()}


def predict_streamed(task):
    """Logits of all parts; their labels go to the data of the task."""
    protocol, data = task.protocol, task.data
    if task.spec.get("num_masks"):
        raise ValueError("Of streams, no average over masks is predicted.")
    held, test = (
        procedures.predict_stream(
            task.primary, data[part][0](), protocol.pixel_step
        )
        for part in ("held_out", "test")
    )
    middle = len(held[0]) // 2
    found = {
        "validation": [each[:middle] for each in held],
        "calibration": [each[middle:] for each in held],
        "test": test,
    }
    for part, (_, labels) in found.items():
        data[part] = (None, labels)
    return {part: logits for part, (logits, _) in found.items()}


def monitors(task, every):
    """What measures validation samples between epochs: nothing by default.

    It costs a pass over them, and changes no weight. Of a data set that is read
    while the network trains, there are none.
    """
    if not every or task.protocol.streamed:
        return []
    protocol = task.protocol
    return [
        kc.callbacks.CalibrationMonitor(
            task.data["validation"],
            metrics=list(SHOWN_BY_EPOCH),
            every=every,
            from_logits=True,
            batch_size=protocol.predict_batch,
            ignore_class=protocol.ignore_class,
        )
    ]


def in_columns(history):
    """Logs of the epochs as one list for each key; `None` where it has none.

    Keys of the validation samples are those of a row: `val_ece`, `val_nll`.
    """
    keys = dict.fromkeys(key for logs in history for key in logs)
    names = {f"val_{long}": f"val_{short}" for long, short in SHOWN.items()}
    return {
        names.get(key, key): [logs.get(key) for logs in history] for key in keys
    }
