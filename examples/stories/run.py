"""Run every story on the backends it supports, and print a table of them.

python examples/stories/run.py > examples/results/stories.md
"""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys

FOLDER = pathlib.Path(__file__).parent
ALL = ("tensorflow", "jax", "torch")
# Which backends a story runs on: `train_step` is another on each, and the two
# virtual devices are TensorFlow's or JAX's.
STORIES = {
    "custom_train_step_tensorflow": ("tensorflow",),
    "custom_train_step_jax": ("jax",),
    "custom_train_step_torch": ("torch",),
    "data_parallel": ("tensorflow", "jax"),
    "tuned": ALL,
    "image_classification": ALL,
    "text_classification": ALL,
    "imbalanced_table": ALL,
    "time_series": ALL,
    "transfer_learning": ALL,
}
NEEDED = {"tuned": "keras_tuner"}
HEADING = """# Ten stories in the manner of keras.io

Written by `examples/stories/run.py`. Each script of `examples/stories` is
short, makes its data, and has losses, metrics, callbacks and `kc.calibrate` of
this package put in where an example of Keras has its own. NLL and ECE are of
test data, before and after calibration. The data are small and noisy: the
figures show that the parts work together, not how good they are. The floor is
the ECE that the calibrated model would have on so few samples if it were
perfectly calibrated. Near it, a difference of two ECEs says nothing.

| story | backend | method | NLL before | after | ECE before | after | floor |
|---|---|---|---|---|---|---|---|"""


def run(story, backend):
    """What a story prints, as a dictionary.

    Raises:
        RuntimeError: if it fails, with the end of its errors.
    """
    done = subprocess.run(
        [sys.executable, str(FOLDER / f"{story}.py")],
        capture_output=True,
        text=True,
        env={**os.environ, "KERAS_BACKEND": backend},
    )
    if done.returncode:
        raise RuntimeError(f"{story} on {backend}:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def missing(story):
    """The package that a story needs and that is not installed, or `None`."""
    name = NEEDED.get(story)
    return name if name and not importlib.util.find_spec(name) else None


def row(story, backend):
    if missing(story):
        return (
            f"| {story} | {backend} | not run: no {missing(story)} | | | | | |"
        )
    try:
        found = run(story, backend)
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return f"| {story} | {backend} | failed | | | | | |"
    cells = [story, backend, found["method"]]
    values = ("nll_before", "nll_after", "ece_before", "ece_after", "ece_floor")
    cells += [f"{found[name]:.3f}" for name in values]
    return "| " + " | ".join(cells) + " |"


def main():
    print(HEADING)
    for story, backends in STORIES.items():
        for backend in backends:
            print(row(story, backend), flush=True)


if __name__ == "__main__":
    main()
