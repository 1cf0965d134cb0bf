"""Trainings that are killed and go on; prints what became of them as JSON.

Run in a fresh process: a copy of one that has computed before may hang.
"""

import hashlib
import json
import os
import pathlib
import shutil
import sys
import tempfile

import keras
import numpy as np

import keras_calib as kc
from tests.faults.processes import KILLED
from tests.faults.processes import fork
from tests.faults.processes import kill
from tests.faults.processes import set_limit

EPOCHS, NUM_SAMPLES = 5, 48


def network(seed=0):
    def initializer(n):
        return keras.initializers.GlorotUniform(seed=10 * seed + n)

    return keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(
                8, activation="tanh", kernel_initializer=initializer(0)
            ),
            keras.layers.Dense(3, kernel_initializer=initializer(1)),
        ]
    )


def arrays():
    rng = np.random.default_rng(0)
    y = np.arange(2 * NUM_SAMPLES) % 3
    x = rng.normal(size=(len(y), 4)) + np.eye(3, 4)[y]
    x = x.astype("float32")
    return (x[:NUM_SAMPLES], y[:NUM_SAMPLES]), (
        x[NUM_SAMPLES:],
        y[NUM_SAMPLES:],
    )


def compiled(model, loss, metrics=()):
    optimizer = keras.optimizers.Adam(0.02)
    model.compile(optimizer, loss, metrics=["accuracy", *metrics])
    return model


def diff_dml():
    loss = kc.losses.FocalLoss(gamma=1.0, from_logits=True)
    pair = kc.models.DiffDML(network(), network(1), label_warmup=0.5)
    return compiled(pair, loss), [], None


def pruning():
    (x, y), _ = arrays()
    model = kc.models.SampleHistoryModel(network(), num_samples=len(x))
    prune = kc.callbacks.DataPruning(x, y, every=1, batch_size=16, seed=1)
    history = kc.callbacks.CorrectnessHistory()
    crl = kc.losses.CRL(from_logits=True)
    return compiled(model, crl), [prune, history], prune.data


def ada_focal():
    loss = kc.losses.AdaFocalLoss(num_bins=3, from_logits=True)
    model = compiled(network(), loss, loss.component_metrics())
    return model, [kc.callbacks.AdaFocalSchedule(arrays()[1])], None


def monitors():
    loss = kc.losses.BrierLoss(from_logits=True)
    watch = kc.callbacks.CalibrationMonitor(refinement=True, from_logits=True)
    return compiled(network(), loss), [watch], None


def restore():
    model, callbacks, data = monitors()
    # Accuracy decides nothing: the best is the best since the last start.
    best = kc.callbacks.RestoreCalibrated(max_accuracy_loss=1.0)
    return model, [*callbacks, best], data


PROCEDURES = {
    "diff_dml": diff_dml,
    "pruning": pruning,
    "ada_focal": ada_focal,
    "monitors": monitors,
    "restore": restore,
}


class Backup(keras.callbacks.BackupAndRestore):
    """Keras' own, which dies in the middle of writing what is due."""

    dies_at = None

    def _save_model(self):
        if self._current_epoch == self.dies_at:
            save_weights = self.model.save_weights

            def die(filepath, **kwargs):
                set_limit(pathlib.Path(filepath).stat().st_size // 2, KILLED)
                save_weights(filepath, **kwargs)

            self.model.save_weights = die
        super()._save_model()


class Die(keras.callbacks.Callback):
    def __init__(self, hook, number):
        super().__init__()

        def die(index, logs=None):
            if self.epoch == number:
                kill()

        self.epoch = None
        setattr(self, hook, die)

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch


# In turn, each goes on where the last one was killed: in a batch of the second
# epoch, while the third is written, and when the fourth is written.
DEATHS = {
    "in a batch": lambda backup: [backup, Die("on_train_batch_end", 1)],
    "in a backup": lambda backup: dying(backup, 3),
    "after a backup": lambda backup: [backup, Die("on_epoch_end", 3)],
    "none": lambda backup: [backup],
}


def dying(backup, epoch):
    backup.dies_at = epoch
    return [backup]


def fit(name, more):
    """Train, and write down weights, and what each epoch logged."""
    keras.utils.set_random_seed(0)
    model, callbacks, data = PROCEDURES[name]()
    (x, y), validation = arrays()
    given = {"x": x, "y": y, "batch_size": 16} if data is None else {"x": data}
    logged = {}

    def log(epoch, logs):
        logged[epoch] = {key: float(value) for key, value in logs.items()}
        pathlib.Path("logs.json").write_text(json.dumps(logged))

    # Before the backups: what they keep is written down.
    keep = keras.callbacks.LambdaCallback(on_epoch_end=log)
    model.fit(
        **given,
        epochs=EPOCHS,
        shuffle=False,
        validation_data=validation,
        callbacks=[*callbacks, keep, *more],
        verbose=0,
    )
    weights = [np.asarray(each) for each in model.get_weights()]
    pathlib.Path("weights").write_text(digest(weights))


def digest(weights):
    return hashlib.sha256(b"".join(w.tobytes() for w in weights)).hexdigest()


def take_earlier_backup():
    """What the README says to do after an error on the first epoch."""
    for path in pathlib.Path("backup").glob("*.bkp"):
        shutil.copy(path, path.with_suffix(""))


def trial(name, deaths):
    """What each start answers, the logs of all epochs, the last weights."""
    answers, epochs, logs = [], [], {}
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for death in deaths:

            def work(death=death):
                backup = Backup("backup", double_checkpoint=True)
                fit(name, DEATHS[death](backup))

            answers.append(fork(work))
            if answers[-1] not in ("killed", "done"):
                # Keras takes the earlier backup for some torn files only.
                take_earlier_backup()
                answers.append(fork(work))
            found = json.loads(pathlib.Path("logs.json").read_text())
            epochs.append(sorted(map(int, found)))
            logs |= found
        assert answers[-1] == "done", answers
        weights = pathlib.Path("weights").read_text()
        left = sorted(each.name for each in pathlib.Path().iterdir())
        os.chdir("/")
    return {
        "answers": answers,
        "epochs": epochs,
        "logs": logs,
        "weights": weights,
        "left": left,
    }


if __name__ == "__main__":
    found = {
        name: {"whole": trial(name, ["none"]), "killed": trial(name, DEATHS)}
        for name in sys.argv[1:]
    }
    print(json.dumps(found))
