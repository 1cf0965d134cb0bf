"""Settings of methods, chosen on validation data as the papers choose them.

One setting after the other, in the order of the soft calibration objectives'
appendix G: the threshold of the penalty, its temperature, its weight. What was
chosen stays while the next one is tried. Of the values of a setting, the one
with the lowest ECE is taken among those that lose at most one point of accuracy
to the most accurate one; one whose training diverges is out. The decay of the
weights, which the paper tunes last, stays that of the protocol.
"""

import json
import os

import methods

# In the order in which they are tried. A setting without a value in
# `methods.METHODS` has its default until its turn comes.
_WEIGHTS = (0.01, 0.03, 0.1, 0.3, 1.0)
_SB_ECE = {"temperature": (1e-4, 1e-3, 1e-2, 1e-1), "weight": _WEIGHTS}
_LOWER = {**_SB_ECE, "temperature": (1e-5, *_SB_ECE["temperature"])}
GRIDS = {
    "LS": {"smoothing": (0.01, 0.02, 0.05, 0.1, 0.2)},
    "FL": {"gamma": (1.0, 2.0, 3.0, 5.0)},
    "ER": {"weight": _WEIGHTS},
    "MbLS": {"margin": (0.0, 3.0, 6.0, 10.0), "weight": (0.01, 0.03, 0.1, 0.3)},
    "ACLS": {"margin": (0.0, 3.0, 6.0, 10.0)},
    "MDCA": {"weight": (0.3, 1.0, 3.0, 10.0, 30.0, 100.0)},
    "FL+MDCA": {"weight": (0.3, 1.0, 3.0, 10.0, 30.0, 100.0)},
    "DCA": {"weight": (0.3, 1.0, 3.0, 10.0)},
    "MMCE": {"weight": (0.3, 1.0, 2.0, 4.0, 8.0)},
    "SB-ECE": _LOWER,
    "FL+SB-ECE": _LOWER,
    "Brier+SB-ECE": _SB_ECE,
    "AvUC": {"weight": (0.1, 0.3, 1.0, 3.0)},
    "Diff-DML": {"auxiliary_rate": (0.01, 0.03, 0.1, 0.3)},
    "S-AvUC": {
        "kappa": (0.1, 0.3, 0.5, 0.7),
        "temperature": (1e-3, 1e-2, 1e-1),
        "weight": (*_WEIGHTS, 3.0, 10.0),
    },
}
ACCURACY_LOST = 0.01


def start(method):
    """Settings of a method that are tuned and that its line gives."""
    loss = methods.METHODS[method]["loss"]
    return {key: loss[key] for key in GRIDS[method] if key in loss}


def candidates(method, settings, name):
    """The variants in which one setting takes each value of its grid."""
    return {
        value: methods.variant(method, {**settings, name: value})
        for value in GRIDS[method][name]
    }


def choose(found):
    """The value with the lowest ECE among those that keep the accuracy.

    Args:
        found: dict from a value to its row's errors on validation data.
    """
    best = max(errors["accuracy"] for errors in found.values())
    # Accuracies are multiples of 1 / n, so that a limit may be met exactly.
    limit = best - ACCURACY_LOST - 1e-9
    kept = {v: e for v, e in found.items() if e["accuracy"] >= limit}
    return min(kept, key=lambda value: kept[value]["ece"])


def progress(method, rows, lost=()):
    """How far a method has been tuned.

    Args:
        method: key of `GRIDS`.
        rows: stored rows, a dict from `(variant, seed)`.
        lost: the same pairs, of trainings that diverged.

    Returns:
        `settings, waiting, steps`: what has been chosen, the variants that
        must be run before the next choice, and for each choice a dict with
        `setting`, `tried` (accuracy and ECE of each value, or `diverged`) and
        `chosen`.

    Raises:
        ValueError: if a method diverges with each value of a setting.
    """
    settings, steps = start(method), []
    known = {*rows, *lost}
    for name in GRIDS[method]:
        variants = candidates(method, settings, name)
        waiting = [v for v in variants.values() if (v, 0) not in known]
        if waiting:
            return settings, waiting, steps
        found = {
            value: rows[variant, 0]["validation"]
            for value, variant in variants.items()
            if (variant, 0) not in lost
        }
        if not found:
            raise ValueError(f"{method} diverges with every {name}.")
        settings = {**settings, name: choose(found)}
        tried = [
            {"value": v, **{key: found[v][key] for key in ("accuracy", "ece")}}
            if v in found
            else {"value": v, "diverged": True}
            for v in variants
        ]
        chosen = settings[name]
        steps.append({"setting": name, "tried": tried, "chosen": chosen})
    return settings, [], steps


def store(path, names, *known):
    """Write grids and choices of the methods that are tuned to the end.

    Args:
        path: of the file.
        names: of the methods.
        *known: see `progress`.
    """
    choices = {}
    for method in names:
        settings, waiting, steps = progress(method, *known)
        if not waiting:
            name = methods.variant(method, settings)
            choices[method] = {"variant": name, "steps": steps}
    part = path.with_suffix(".part")
    part.parent.mkdir(parents=True, exist_ok=True)
    part.write_text(json.dumps(choices, indent=1) + "\n")
    os.replace(part, path)
    return choices
