"""Run every story on the backends it supports, and print a table of them.

    python examples/stories/run.py > examples/results/stories.md

With `--only STORY ...` the rows of these alone, without the heading.
`--figures` writes their pictures into `examples/figures`, too: those of JAX,
and of a story that does not run on JAX those of its backend.
"""

import argparse
import importlib.util
import json
import os
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
import stored_rows

FOLDER = pathlib.Path(__file__).parent
FIGURES = FOLDER.parent / "figures"
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
    "tokens": ALL,
    "pixels": ALL,
    "reject_and_predict_sets": ALL,
    "corrupted_images": ALL,
    "keras_hub_text": ALL,
    "published_network": ALL,
}
NEEDED = {"tuned": "keras_tuner", "keras_hub_text": "keras_hub"}
OF_DATA = ("published_network",)
HEADING = """# Sixteen stories in the manner of keras.io

Written by `examples/stories/run.py`. Each script of `examples/stories` is
short, makes its data (`published_network` reads CIFAR-10), and has losses,
metrics, callbacks and `kc.calibrate` of this package put in where an example of
Keras has its own. NLL and ECE are of test data, before and after calibration.
The data are small and noisy: the figures show that the parts work together, not
how good they are. The floor is the ECE that the calibrated model would have on
so few samples if it were perfectly calibrated. Near it, a difference of two
ECEs says nothing.

| story | backend | method | NLL before | after | ECE before | after | floor |
|---|---|---|---|---|---|---|---|"""


def run(story, backend, *options):
    """What a story prints, as a dictionary.

    Raises:
        RuntimeError: if it fails, with the end of its errors.
    """
    done = subprocess.run(
        [sys.executable, str(FOLDER / f"{story}.py"), *map(str, options)],
        capture_output=True,
        text=True,
        env={**os.environ, "KERAS_BACKEND": backend},
    )
    if done.returncode:
        raise RuntimeError(f"{story} on {backend}:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def missing(story):
    """What a story needs and is not there, a package or data, or `None`."""
    if story in OF_DATA and "KERAS_CALIB_DATA" not in os.environ:
        return "KERAS_CALIB_DATA"
    name = NEEDED.get(story)
    return name if name and not importlib.util.find_spec(name) else None


def row(story, backend, *options):
    if lack := missing(story):
        return f"| {story} | {backend} | not run: no {lack} | | | | | |"
    try:
        found = run(story, backend, *options)
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return f"| {story} | {backend} | failed | | | | | |"
    names = ("nll_before", "nll_after", "ece_before", "ece_after", "ece_floor")
    values = [f"{found[name]:.3f}" for name in names]
    return f"| {story} | {backend} | {found['method']} | {' | '.join(values)} |"


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=STORIES)
    parser.add_argument("--figures", action="store_true")
    given = parser.parse_args(arguments)
    if not given.only:
        print(HEADING)
    for story in given.only or STORIES:
        file = FIGURES / f"story_{story}.png"
        backends = STORIES[story]
        drawing = "jax" if "jax" in backends else backends[0]
        for backend in backends:
            draws = given.figures and backend == drawing
            options = ["--figure", file] if draws else []
            print(row(story, backend, *options), flush=True)
    if not given.only:
        print(f"\n{stored_rows.made_with()}")


if __name__ == "__main__":
    main()
