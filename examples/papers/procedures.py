"""How a method trains: what is fitted to which data, by method.

Most methods are a loss. The others keep a memory of the samples, change the
data or take two steps for one; each of them is a function here, and a line of
`methods.METHODS` names it.
"""

import dataclasses
import math
from typing import Any

import keras
import numpy as np
import training
from keras import ops

import keras_calib as kc


@dataclasses.dataclass
class Procedure:
    """What `fit` takes.

    Attributes:
        model: what is compiled.
        data: positional arguments of `fit`.
        steps: number of updates in all epochs.
        batches: `training.Batches` that `data` stands for, or `Epochs` where
            something else orders it: by them a run that was stopped goes on.
            `None` where nothing is trained.
        loss: a loss object instead of the method's own.
        compile: more arguments of `compile`.
        callbacks: of `fit`.
        fit: more arguments of `fit`.
    """

    model: keras.Model
    data: tuple
    steps: int
    batches: Any = None
    loss: Any = None
    compile: dict = dataclasses.field(default_factory=dict)
    callbacks: list = dataclasses.field(default_factory=list)
    fit: dict = dataclasses.field(default_factory=dict)


def batches_of(task, part, kind=training.Batches, per_epoch=None):
    """Batches of a part of the data, with the sizes of the protocol."""
    if task.protocol.kind == "segmentation":
        kind = training.MirroredPairs
    size = task.protocol.batch_size
    return kind(*task.data[part], size, task.seed, per_epoch)


def in_batches(model, task, kind=training.Batches, **options):
    """The model on batches in the order of `training.Batches`."""
    protocol = task.protocol
    if protocol.streamed:
        require_plain_batches(kind)
        read, _ = task.data["train"]
        batches = training.Streamed(read, task.seed)
        steps = len(batches) * protocol.epochs
        return Procedure(model, (batches.dataset,), steps, batches, **options)
    batches = batches_of(task, "train", kind, protocol.per_epoch)
    steps = len(batches) * protocol.epochs
    return Procedure(
        model, (batches,), steps, batches, fit={"shuffle": False}, **options
    )


def require_plain_batches(kind):
    if kind is not training.Batches:
        raise ValueError(
            "This method needs its images as arrays. Received: a data set that "
            "is read while the network trains."
        )


def in_arrays(model, task, x, *, penalty_split=0.0, **options):
    """The model on arrays that Keras shuffles.

    Those of `penalty_split` our model shuffles, by seed and epoch alone.
    """
    protocol, y = task.protocol, task.data["train"][1]
    held_out = round(penalty_split * len(y))
    parts = [len(y) - held_out, held_out]
    steps = sum(math.ceil(part / protocol.batch_size) for part in parts)
    epochs = training.Epochs(
        protocol.epochs * [steps], None if held_out else task.seed
    )
    return Procedure(
        model,
        (x, y),
        steps * protocol.epochs,
        epochs,
        fit={"batch_size": protocol.batch_size},
        **options,
    )


def single(task):
    """One network with one loss."""
    return in_batches(task.primary, task)


def as_it_is(task):
    """No training: the network as it came."""
    return Procedure(task.primary, (), 0)


def mutual(task):
    """The pair shifts and mirrors once: its networks see the same images."""
    protocol, spec = task.protocol, task.spec
    auxiliary = spec.get("auxiliary", protocol.auxiliary)
    peers = [task.network(auxiliary) for _ in range(spec["auxiliaries"])]
    kind = getattr(kc.models, spec["model"])
    options = {}
    if kind is kc.models.DiffDML:
        rate = spec.get("auxiliary_rate", protocol.auxiliary_rate)
        options["auxiliary_optimizer"] = task.optimizer(rate)
    pair = kind(task.primary, peers, **spec["arguments"])
    return in_batches(pair, task, compile=options)


def interleaved(task):
    """The penalty learns from a part of the data that the rest never sees."""
    split = task.spec["penalty_split"]
    model = kc.models.InterleavedTraining(
        task.primary, penalty_split=split, seed=task.seed
    )
    if "held_back" in task.data:
        # Images that the network has never seen, instead of a part of those
        # that it has memorized.
        majority = batches_of(task, "train", per_epoch=task.protocol.per_epoch)
        penalty = batches_of(task, "held_back")
        batches = training.InTurn(majority, penalty)
        return Procedure(
            model,
            (majority,),
            len(batches) * task.protocol.epochs,
            batches,
            fit={"penalty_data": penalty},
        )
    return in_arrays(model, task, task.data["train"][0], penalty_split=split)


def ranked(task):
    """CRL compares samples by how often they were right."""
    x = task.data["train"][0]
    model = kc.models.SampleHistoryModel(task.primary, num_samples=len(x))
    return in_arrays(
        model,
        task,
        kc.add_sample_index(x),
        callbacks=[kc.callbacks.CorrectnessHistory()],
    )


def pruned(task):
    """DTDP: the least confident samples leave the training data."""
    protocol, (x, y) = task.protocol, task.data["train"]
    model = kc.models.SampleHistoryModel(task.primary, num_samples=len(x))
    fraction, every = task.spec["fraction"], task.spec["every"]
    pruning = kc.callbacks.DataPruning(
        x,
        y,
        fraction=fraction,
        every=every,
        batch_size=protocol.batch_size,
        seed=task.seed,
    )
    kept, lengths = len(x), []
    for epoch in range(protocol.epochs):
        if epoch and epoch % every == 0:
            kept -= int(fraction * kept + 1e-9)  # as the callback counts
        lengths.append(math.ceil(kept / protocol.batch_size))
    epochs = training.Epochs(lengths)
    steps = sum(epochs.lengths)
    return Procedure(model, (pruning.data,), steps, epochs, callbacks=[pruning])


def observed_frequencies(task):
    """CaPE: one epoch in six learns frequencies instead of labels."""
    protocol, (x, y) = task.protocol, task.data["train"]
    cape = kc.callbacks.EmpiricalTargets(
        x,
        y,
        num_classes=int(y.max()) + 1,
        from_logits=True,
        batch_size=protocol.batch_size,
        seed=task.seed,
    )
    steps = math.ceil(len(x) / protocol.batch_size)
    epochs = training.Epochs(protocol.epochs * [steps])
    steps *= protocol.epochs
    loss = keras.losses.CategoricalCrossentropy(from_logits=True)
    return Procedure(
        task.primary, (cape.data,), steps, epochs, loss=loss, callbacks=[cape]
    )


def adaptive_focal(task):
    """AdaFocal: gammas follow the gaps on validation images."""
    loss = task.loss()
    schedule = kc.callbacks.AdaFocalSchedule(task.data["validation"])
    return in_arrays(
        task.primary,
        task,
        task.data["train"][0],
        loss=loss,
        compile={"metrics": ["accuracy", *loss.component_metrics()]},
        callbacks=[schedule],
    )


class CutMixed(training.Batches):
    """Batches in which a box of each image comes from another one."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.num_classes = int(self.arrays[1].max()) + 1

    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        # Its own generator for each batch, so that a resumed run repeats it.
        seed = hash((self.seed, self.epoch, index)) % 2**31
        cut = keras.layers.CutMix(data_format="channels_last", seed=seed)
        mixed = cut(
            {
                "images": ops.cast(x, "float32"),
                "labels": ops.one_hot(y, self.num_classes),
            }
        )
        images = ops.convert_to_numpy(mixed["images"]).round()
        labels = ops.convert_to_numpy(mixed["labels"])
        return images.astype("uint8"), labels


def cut_mixed(task):
    """CutMix, as what people use instead of a calibration loss."""
    loss = keras.losses.CategoricalCrossentropy(from_logits=True)
    return in_batches(task.primary, task, CutMixed, loss=loss)


def aug_mixed(task):
    """AugMix in front of the network, in training only.

    Keras draws which operations it chains when the step is compiled, not for
    each batch; their strengths and mixing weights are drawn each time.
    """
    images = keras.Input(task.primary.input_shape[1:], dtype="uint8")
    layer = keras.layers.AugMix(
        value_range=(0, 255), seed=task.seed, dtype="float32"
    )
    model = keras.Model(images, task.primary(layer(images)))
    return in_batches(model, task)


class SharpnessAware(keras.Model):
    """Sharpness-aware minimization: the gradient at the worst near point.

        g = grad L(w),    e = radius * g / |g|,    step along grad L(w + e)

    In TensorFlow. Foret et al., "Sharpness-Aware Minimization for Efficiently
    Improving Generalization", ICLR 2021, algorithm 1.

    Args:
        model: the network.
        radius: float, `rho` of the paper.
    """

    def __init__(self, model, radius):
        super().__init__()
        self.model, self.radius = model, radius
        # Weights may be loaded before the first call: the network has them.
        self.built = True

    def call(self, x, training=False):
        return self.model(x, training=training)

    def gradient(self, x, y):
        import tensorflow as tf

        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(x, y, y_pred)
        return tape.gradient(loss, self.trainable_variables), loss, y_pred

    def train_step(self, data):
        x, y = data
        weights = self.trainable_variables
        gradient, loss, y_pred = self.gradient(x, y)
        length = ops.sqrt(sum(ops.sum(ops.square(g)) for g in gradient))
        scale = self.radius / (length + 1e-12)
        before = [ops.copy(w) for w in weights]
        for weight, g in zip(weights, gradient, strict=True):
            weight.assign_add(scale * g)
        at_worst, _, _ = self.gradient(x, y)
        for weight, value in zip(weights, before, strict=True):
            weight.assign(value)
        self.optimizer.apply_gradients(zip(at_worst, weights, strict=True))
        self._loss_tracker.update_state(loss)
        return self.compute_metrics(x, y, y_pred)


def sharpness_aware(task):
    """SAM, as what people use instead of a calibration loss."""
    return in_batches(SharpnessAware(task.primary, task.spec["radius"]), task)


PROCEDURES = {
    function.__name__: function
    for function in (
        single,
        as_it_is,
        mutual,
        interleaved,
        ranked,
        pruned,
        observed_frequencies,
        adaptive_focal,
        cut_mixed,
        aug_mixed,
        sharpness_aware,
    )
}


def predict_stream(network, batches, step=1):
    """Logits and labels of batches; of maps, every `step`-th pixel."""
    logits, labels = [], []
    for x, y in batches:
        found, y = network.predict_on_batch(x), np.asarray(y)
        if y.ndim > 1:
            inside = (slice(None), slice(None, None, step))
            inside += inside[1:]
            found, y = found[inside], y[inside]
        logits.append(np.asarray(found, "float32"))
        labels.append(y)
    return np.concatenate(logits), np.concatenate(labels)


def predict(network, x, num_masks, seed, batch_size=1000):
    """Logits of images; with `num_masks`, of an average over dropout."""
    if not num_masks:
        return network.predict(x, batch_size=batch_size, verbose=0)
    keras.utils.set_random_seed(seed)
    average = kc.models.MonteCarloDropout(network, num_masks=num_masks)
    return np.log(average.predict(x, batch_size=250, verbose=0))
