"""What every run shares: batches, augmentation, decay, checkpoints."""

import json
import os
import pathlib
import time

import keras
import numpy as np
from keras import layers
from keras import ops

MEAN = (125.3, 123.0, 113.9)
DEVIATION = (63.0, 62.1, 66.7)
# Seconds of training that a run loses at most if it is killed, and an epoch.
CHECKPOINT_SECONDS = float(os.environ.get("CHECKPOINT_SECONDS", 60))
# Ending of the file with the seconds of a run.
SECONDS = "seconds.json"


class Batches(keras.utils.PyDataset):
    """Batches in an order that depends on the seed and the epoch alone.

    So a run that is stopped goes on with the batches it would have had. On
    JAX the images lie on the device, and a batch is gathered there.

    Args:
        x: uint8 images, `(n, height, width, 3)`.
        y: class ids, `(n,)`.
        batch_size: int; the last, smaller batch is left out.
        seed: int.
        per_epoch: int, how many samples an epoch draws, or `None` for all.
    """

    def __init__(self, x, y, batch_size, seed, per_epoch=None):
        super().__init__()
        self.arrays = (x, y.astype("int32"))
        self.per_epoch = min(per_epoch or len(y), len(y))
        self.batch_size, self.seed, self.epoch = batch_size, seed, 0
        self.gather = None
        if keras.backend.backend() == "jax":
            self._put_on_device()
        self.on_epoch_begin()

    def _put_on_device(self):
        import jax

        self.arrays = jax.device_put(self.arrays)

        def gather(arrays, order, start):
            rows = jax.lax.dynamic_slice(order, (start,), (self.batch_size,))
            return [array[rows] for array in arrays]

        self.gather = jax.jit(gather)

    def __len__(self):
        return self.per_epoch // self.batch_size

    def on_epoch_begin(self):
        generator = np.random.default_rng((self.seed, self.epoch))
        self.order = generator.permutation(len(self.arrays[1])).astype("int32")

    def __getitem__(self, index):
        start = index * self.batch_size
        if self.gather is not None:
            return tuple(self.gather(self.arrays, self.order, start))
        rows = self.order[start : start + self.batch_size]
        return tuple(array[rows] for array in self.arrays)


class MirroredPairs(Batches):
    """Batches in which images and their label maps are mirrored together."""

    def __getitem__(self, index):
        # Its own generator for each batch, so that a resumed run repeats it.
        generator = np.random.default_rng((self.seed, self.epoch, index))
        arrays = [np.array(each) for each in super().__getitem__(index)]
        flipped = generator.random(self.batch_size) < 0.5
        for each in arrays:
            each[flipped] = each[flipped][:, :, ::-1]
        return tuple(arrays)


class Streamed:
    """What `Resumable` asks of batches, for a data set that `fit` reads itself.

    A run that is stopped goes on after its last epoch, with other crops than
    it would have had, and than it has had.

    Args:
        read: gives the data set for a seed.
        seed: int.
    """

    def __init__(self, read, seed):
        self.read, self.seed = read, seed
        self.dataset, self.epoch = read(seed), 0

    def __len__(self):
        return len(self.dataset)

    def resumed(self, epoch):
        """The data set for a run that begins with an epoch."""
        if epoch:
            self.dataset = self.read(self.seed + 1000 * epoch)
        return self.dataset

    def on_epoch_begin(self):
        """`fit` begins the data set anew."""


class Epochs:
    """What `Resumable` asks of batches, for data ordered elsewhere.

    Args:
        lengths: number of updates in each epoch, of pruned data about so many.
        seed: int where Keras shuffles: a run that is stopped goes on in
            another order than it would have had, and than it has had. `None`
            where the order depends on the number of the epoch.
    """

    def __init__(self, lengths, seed=None):
        self.lengths, self.seed, self.epoch = list(lengths), seed, 0

    def completed(self, steps):
        """Number of epochs after so many updates, which end one."""
        ends = np.cumsum([0, *self.lengths])
        return int(np.abs(ends - steps).argmin())

    def resumed(self, epoch):
        """Prepare for a run that begins with an epoch."""
        if epoch and self.seed is not None:
            keras.utils.set_random_seed(self.seed + 1000 * epoch)

    def on_epoch_begin(self):
        """The order is not made here."""


class InTurn:
    """Several `Batches` that a run goes through one after the other."""

    def __init__(self, *parts):
        self.parts = parts

    def __len__(self):
        return sum(map(len, self.parts))

    @property
    def epoch(self):
        return self.parts[0].epoch

    @epoch.setter
    def epoch(self, epoch):
        for part in self.parts:
            part.epoch = epoch

    def on_epoch_begin(self):
        for part in self.parts:
            part.on_epoch_begin()


@keras.saving.register_keras_serializable(package="keras_calib_examples")
class Augment(layers.Layer):
    """Bytes to standardized images; in training shifted and mirrored.

    Args:
        shift: int, pixels at most; the border is black.
        seed: int. The generator's state is saved in checkpoints.
        mirror: whether to change images in training at all.
        mean: of each channel, in bytes.
        deviation: of each channel, in bytes.
        **kwargs: `name`, as in Keras.
    """

    def __init__(
        self,
        shift=4,
        seed=0,
        *,
        mirror=True,
        mean=MEAN,
        deviation=DEVIATION,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.shift, self.seed, self.mirror = shift, seed, mirror
        self.mean, self.deviation = tuple(mean), tuple(deviation)
        self.generator = keras.random.SeedGenerator(seed)

    def call(self, x, training=False):
        if training and self.mirror:
            count, side = ops.shape(x)[:2]
            draw = keras.random.uniform(
                (3, count, 1), dtype="float32", seed=self.generator
            )
            corner = ops.cast(draw[:2] * (2 * self.shift + 1), "int32")
            line = ops.arange(side, dtype="int32")
            column = ops.where(draw[2] < 0.5, line, side - 1 - line) + corner[0]
            pad = (self.shift, self.shift)
            x = ops.pad(x, ((0, 0), pad, pad, (0, 0)))
            if self.shift:
                rows = (line + corner[1])[:, :, None, None]
                x = ops.take_along_axis(x, rows, axis=1)
            x = ops.take_along_axis(x, column[:, None, :, None], axis=2)
        x = ops.cast(x, "float32") - ops.array(self.mean)
        return ops.cast(x / ops.array(self.deviation), self.compute_dtype)

    # Keras does not save the state of generators with the weights.
    def save_own_variables(self, store):
        store["state"] = ops.convert_to_numpy(self.generator.state)

    def load_own_variables(self, store):
        self.generator.state.assign(store["state"])

    def get_config(self):
        names = ("shift", "seed", "mirror", "mean", "deviation")
        own = {name: getattr(self, name) for name in names}
        return {**super().get_config(), **own}


@keras.saving.register_keras_serializable(package="keras_calib_examples")
class CoupledSGD(keras.optimizers.SGD):
    """SGD whose decay is in the gradient, as in the papers.

    Keras' own `weight_decay` acts outside the momentum: at momentum 0.9 about
    a tenth of this one.
    """

    def __init__(self, learning_rate=0.1, coupled_decay=5e-4, **kwargs):
        super().__init__(learning_rate, **kwargs)
        self.coupled_decay = coupled_decay

    def update_step(self, gradient, variable, learning_rate):
        decay = self.coupled_decay * ops.cast(variable, gradient.dtype)
        super().update_step(gradient + decay, variable, learning_rate)

    def get_config(self):
        config = super().get_config()
        return {**config, "coupled_decay": self.coupled_decay}


class Resumable(keras.callbacks.Callback):
    """Checkpoints between epochs, and stops before the time is over.

    It also keeps the logs of all epochs, in `history` and in a file beside the
    checkpoint, and in another one the seconds of a run that was stopped. It
    must be the last callback, so that it sees all logs.

    Args:
        path: file of the checkpoint; it is replaced, never half written.
        batches: the `Batches` that this run trains on, or what stands for them;
            without any it is only watched, as where nothing is trained.
        deadline: `time.time()` after which no epoch may begin, or `None`.
        interval: seconds between checkpoints; 0 for one after each epoch.
    """

    def __init__(
        self, path, batches, deadline=None, interval=CHECKPOINT_SECONDS
    ):
        super().__init__()
        self.path, self.batches, self.deadline = path, batches, deadline
        self.interval = interval
        self.seconds, self.saved, self.stopped = [], time.time(), False
        self.history, self.log = [], sibling(path, "history.json")
        self.born, self.clock = self.saved, sibling(path, SECONDS)
        self.earlier = {"all": 0.0, "of_epochs": []}
        if self.clock.exists():
            self.earlier = json.loads(self.clock.read_text())
        # States of the generators of dropout and the like, which Keras does
        # not save with the weights, after the last two epochs.
        self.states, self.state_file = {}, sibling(path, "generators.json")
        self.of_torch = []

    def on_train_begin(self, logs=None):
        # Not earlier: to build the model, `fit` draws, too.
        restore_torch(self.of_torch)

    def on_epoch_begin(self, epoch, logs=None):
        self.begin = time.time()
        if self.batches is not None:
            self.batches.epoch = epoch
            self.batches.on_epoch_begin()

    def on_epoch_end(self, epoch, logs=None):
        now = time.time()
        self.seconds.append(now - self.begin)
        # Before the checkpoint, which may be the last thing that is done.
        self.remember(epoch, logs)
        spent = {
            "all": self.earlier["all"] + now - self.born,
            "of_epochs": self.of_epochs(),
        }
        replace_text(self.clock, json.dumps(spent))
        if self.batches is not None:
            self.save_or_stop(epoch, now)
        shown = {key: round(float(value), 4) for key, value in logs.items()}
        print(f"epoch {epoch + 1} {self.seconds[-1]:.1f} s {shown}", flush=True)

    def of_epochs(self):
        """Seconds of epochs, without the first one of each run: it compiles."""
        return self.earlier["of_epochs"] + self.seconds[1:]

    def remember(self, epoch, logs):
        """Add the logs of an epoch, in place of those of an earlier attempt."""
        known = {key: round(float(value), 5) for key, value in logs.items()}
        self.history = [each for each in self.history if each["epoch"] <= epoch]
        self.history.append({"epoch": epoch + 1, **known})
        replace_text(self.log, json.dumps(self.history))

    def save_or_stop(self, epoch, now):
        last = epoch + 1 == self.params["epochs"]
        typical = min(self.seconds[1:], default=0)  # the first one compiles
        late = self.deadline is not None and now + 2 * typical > self.deadline
        self.stopped = late and not last
        if self.stopped or last or now - self.saved >= self.interval:
            # First the states: those of the checkpoint before it stay, too.
            previous = list(self.states.items())[-1:]
            now_states = [to_list(each) for each in generators(self.model)]
            now_states += states_of_torch()
            self.states = {**dict(previous), str(epoch + 1): now_states}
            replace_text(self.state_file, json.dumps(self.states))
            save_weights(self.model, self.path)
            self.saved = now
        self.model.stop_training = self.stopped

    def restore(self, model):
        """Load what an earlier run saved; the number of epochs it had."""
        model.optimizer.build(model.trainable_variables)
        if self.path.exists():
            model.load_weights(self.path)
            if self.log.exists():
                self.history = json.loads(self.log.read_text())
        steps = int(ops.convert_to_numpy(model.optimizer.iterations))
        if isinstance(self.batches, Epochs):
            epochs = self.batches.completed(steps)
            self.batches.resumed(epochs)
        else:
            epochs = steps // len(self.batches)
        if epochs and self.state_file.exists():
            # Others are of an epoch whose checkpoint was not written. A
            # checkpoint of an older version has none.
            kept = json.loads(self.state_file.read_text()).get(str(epochs))
            if kept is not None:
                self.states = {str(epochs): kept}
                own = generators(model)
                for variable, state in zip(own, kept, strict=False):
                    variable.assign(np.array(state, "uint32"))
                self.of_torch = kept[len(own) :]
        return epochs


def earlier_seconds(path):
    """Seconds that earlier runs of a row have trained.

    Args:
        path: of the files of the row, without their endings.
    """
    path = pathlib.Path(path)
    names = f"{path.name}.{SECONDS}", f"{path.name}-member*.{SECONDS}"
    found = [file for name in names for file in path.parent.glob(name)]
    return sum(json.loads(file.read_text())["all"] for file in found)


def sibling(path, ending):
    """A file beside a checkpoint."""
    name = pathlib.Path(path).name.replace("weights.h5", ending)
    return pathlib.Path(path).with_name(name)


def replace_text(path, text):
    """Write a file aside and move it into place."""
    part = path.with_suffix(".part")
    part.write_text(text)
    os.replace(part, path)


def generators(model):
    """The states of all random generators of a model's layers."""
    return [v for v in model.variables if v.name == "seed_generator_state"]


def states_of_torch():
    """Of PyTorch's generators, which dropout draws from there, CPU first."""
    if keras.backend.backend() != "torch":
        return []
    import torch

    states = [torch.get_rng_state(), *torch.cuda.get_rng_state_all()]
    return [state.tolist() for state in states]


def restore_torch(states):
    """Set what `states_of_torch` returned; older checkpoints have nothing."""
    if not states:
        return
    import torch

    cpu, *devices = [torch.tensor(state, dtype=torch.uint8) for state in states]
    torch.set_rng_state(cpu)
    # A checkpoint may be of a machine with other devices.
    if len(devices) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(devices)


def to_list(variable):
    return ops.convert_to_numpy(variable).tolist()


def save_weights(model, path):
    """Weights and optimizer, written aside and moved into place."""
    part = str(path).replace(".weights.h5", ".part.weights.h5")
    model.save_weights(part)
    os.replace(part, path)
