"""What writes files, killed on its way or on a full disk; prints JSON.

Run in a fresh process: a copy of one that has computed before may hang.
"""

import contextlib
import functools
import importlib.util
import io
import json
import os
import pathlib
import sys
import tempfile

import keras
import numpy as np

import keras_calib as kc
from keras_calib.command_line import main
from keras_calib.data import collect
from tests.faults.processes import FULL
from tests.faults.processes import KILLED
from tests.faults.processes import fork
from tests.faults.processes import kill

OLD = b"what was there before"


def sample():
    rng = np.random.default_rng(0)
    z = rng.normal(0, 3, (60, 3)).astype("float32")
    p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    return z, p, (p.cumsum(1) > rng.random((60, 1))).argmax(1)


def report():
    _, p, y = sample()
    return kc.report({"net": p}, y=y, num_resamples=10, verbose=0)


def network():
    inputs = keras.Input((3,))
    return keras.Model(inputs, keras.layers.Softmax()(inputs))


def card():
    z, _, y = sample()
    calibrated = kc.calibrate(network(), z, y, verbose=0)
    kc.model_card(calibrated, report()).save(".", overwrite=True)


def command(*arguments):
    """Run `keras-calib`; its line of an error is raised."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        status = main(arguments=[*arguments, "--quiet"])
    if status != 0:
        raise OSError(said.getvalue())


def scores():
    z, _, y = sample()
    np.savez("scores.npz", logits=z, labels=y)


def images():
    keras.utils.set_random_seed(0)
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (8, 16, 16, 3)).astype("uint8")
    np.savez("images.npz", x=x, labels=np.arange(8) % 3)
    model = keras.Sequential(
        [
            keras.Input((16, 16, 3)),
            keras.layers.Rescaling(1 / 255),
            keras.layers.Flatten(),
            keras.layers.Dense(3, "softmax"),
        ]
    )
    model.save("net.keras")


def shift():
    cells = ("--corruptions", "contrast", "--severities", "1")
    command("shift", "net.keras", "images.npz", "-o", "shift.png", *cells)


def diagram():
    z, _, y = sample()
    draw = kc.callbacks.ReliabilityDiagram("e.png", validation_data=(z, y))
    draw.set_model(network())
    draw.set_params({"epochs": 1})
    draw.on_epoch_end(0)


def ensemble():
    members = [network(), network()]
    kc.models.DeepEnsemble(members).save("m.keras")


def calibrated():
    """A plain Keras model, by the recipe of the page `start.md`."""
    z, _, y = sample()
    kc.calibrate(network(), z, y, verbose=0).save("new.keras")
    os.replace("new.keras", "calibrated.keras")


# Name: what it needs, what is run, the files that it replaces.
WRITERS = {
    "report": (None, lambda: report().save("r.md"), ["r.md"]),
    "card": (None, card, ["README.md", "reliability.png"]),
    "diagram": (None, diagram, ["e.png"]),
    "keras-calib calibrate": (
        scores,
        lambda: command("calibrate", "scores.npz", "-o", "map.keras"),
        ["map.keras"],
    ),
    "ensemble": (None, ensemble, ["m.keras"]),
    "calibrated": (None, calibrated, ["calibrated.keras"]),
    "keras-calib shift": (images, shift, ["shift.png"]),
}


def killed_at(name, replaced):
    """Run a writer that dies when a file takes its name, or just after."""
    replace = os.replace

    def die(source, target):
        if replaced:
            replace(source, target)
        kill()

    os.replace = die
    WRITERS[name][1]()


def content():
    """Names and content of the files here."""
    places = sorted(pathlib.Path().iterdir())
    return {place.name: place.read_bytes() for place in places}


def faults(name):
    """What each fault leaves of the files of one writer.

    Returns:
        A dict from the fault to (answer, whether each file is "old", "new" or
        "torn", names of other files).
    """
    prepare, work, files = WRITERS[name]
    answer, whole = trial(prepare, work, files)
    assert answer == "done", answer
    half = min(len(whole[file]) for file in files) // 2
    runs = {
        "killed half way": {"limit": half, "then": KILLED},
        "full at once": {"limit": 0, "then": FULL},
        "full half way": {"limit": half, "then": FULL},
        "killed before the name": {"replaced": False},
        "killed after the name": {"replaced": True},
    }
    found = {}
    for fault, how in runs.items():
        run = work
        if "replaced" in how:
            run = functools.partial(killed_at, name, how.pop("replaced"))
        answer, after = trial(prepare, run, files, **how)
        states = [state(after.pop(each), whole[each]) for each in files]
        found[fault] = answer, states, sorted(after)
    return found


def trial(prepare, work, files, **how):
    """The answer of a writer in a folder of old files, and what is there."""
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        if prepare:
            assert fork(prepare) == "done"
        before = content()
        for file in files:
            pathlib.Path(file).write_bytes(OLD)
        answer = fork(work, **how)
        after = content()
        os.chdir("/")
    new = {k: v for k, v in after.items() if before.get(k) != v}
    return answer, new


def state(now, whole):
    if now == OLD:
        return "old"
    # Times and random numbers in some formats, and never another length.
    return "new" if len(now) == len(whole) else "torn"


def spilled():
    """A calibration whose scores lie in a file, killed and on a full disk."""
    z, _, y = sample()
    collect.SPILL = 100
    found = {}

    def work(stop=lambda: None):
        rows = collect.Store.rows

        def then_stop(store):
            found = rows(store)
            assert isinstance(found, np.memmap)
            stop()
            return found

        collect.Store.rows = then_stop
        model = kc.calibrate(network(), z, y, verbose=0)
        record = kc.calibration_record(model)
        pathlib.Path("temperature").write_text(repr(record["temperature"]))

    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        tempfile.tempdir = folder
        for fault, run in {
            "whole": lambda: fork(work),
            "killed": lambda: fork(lambda: work(kill)),
            "full": lambda: fork(work, limit=200, then=FULL),
            "again": lambda: fork(work),
        }.items():
            answer = run()
            files = content()
            text = files.pop("temperature", b"").decode()
            pathlib.Path("temperature").unlink(missing_ok=True)
            found[fault] = answer, text, sorted(files)
        os.chdir("/")
    return found


def warm_up():
    """Import once, here, what every copy would import."""
    import matplotlib.font_manager  # noqa: F401

    if importlib.util.find_spec("tensorflow"):
        import tensorflow  # noqa: F401


if __name__ == "__main__":
    warm_up()
    found = {
        name: spilled() if name == "spilled" else faults(name)
        for name in sys.argv[1:]
    }
    print(json.dumps(found))
