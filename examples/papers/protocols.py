"""What a run trains, and which methods a table has: declarations only.

A protocol of `kinds` fixes data, network and schedule; a method of `methods`
fixes loss and procedure. Everything in both is written into each row of the
results.
"""

import dataclasses
import itertools

import full_size
import published
from kinds import Development
from kinds import FineTuning
from kinds import LongTailed
from kinds import NoisyLabels
from kinds import Protocol
from kinds import Segmentation
from kinds import SuperClasses
from kinds import Text
from methods import CROSSED
from methods import FROM_SCRATCH
from methods import METHODS
from methods import variant

S = Protocol()
_GPU = Protocol(
    train=None,
    network="resnet34",
    auxiliary="resnet18",
    epochs=30,
    batch_size=512,
    learning_rate=0.4,
    auxiliary_rate=0.04,
    warmup=0.1,
    shift=4,
    dtype="mixed_bfloat16",
)
PROTOCOLS = {
    # From scratch, overconfident: 200,000 passes of an image; minutes on a CPU.
    "S": S,
    # The same with twice the images.
    "S10k": dataclasses.replace(S, train=10000),
    # S on other images, for rules that test images must not choose.
    "S-development": Development(),
    # A published ResNet-20, three short epochs.
    "F": FineTuning(),
    # S with a long tail, for class-wise scaling of what is fitted afterwards.
    "LT": LongTailed(),
    # S with 9 and 40 % of wrong labels.
    "N9": NoisyLabels(),
    "N40": NoisyLabels(labels="cifar10_worse_label"),
    # CIFAR-100's super-classes, as many passes as S.
    "C": SuperClasses(),
    # 20 Newsgroups and a convolutional network.
    "T": Text(),
    # CamVid and a small U-Net.
    "D": Segmentation(),
    # Full CIFAR-10, for one GPU; the papers' own networks and schedules are
    # those of `full_size`.
    "G30": _GPU,
    "G100": dataclasses.replace(_GPU, epochs=100),
    "G200": dataclasses.replace(_GPU, epochs=200),
    # The whole machinery in seconds, for the tests.
    "miniature": Protocol(
        train=256,
        held_out=256,
        test=256,
        width=4,
        epochs=2,
        batch_size=64,
        shift=4,
    ),
}


# Networks that are measured on corrupted images beside those of F, by file.
OTHER_PUBLISHED = {"as published, ResNet-56": "resnet56_cifar10_weights.npz"}

# Which rows a table has, those that decide most first: method, seeds.
MAIN = (
    "CE LS FL MbLS ACLS MDCA FL+MDCA SB-ECE FL+SB-ECE MMCE DML Diff-DML"
).split()
# Single networks whose loss is all that differs from cross-entropy.
_LOSSES = tuple(
    name
    for name in FROM_SCRATCH
    if METHODS[name]["train"] == "single" and name != "MC dropout"
)
_MARGIN_10 = ("MbLS, margin 10", "ACLS, margin 10")
# Losses that F runs first, and one that is for logits of 0 and 1, which the
# published network's are not.
_IN_F = "CE LS FL MbLS ACLS MDCA SB-ECE MMCE DCA".split()
_NOT_IN_F = ("squared logit",)
_UNDER_NOISE = ("CE", "FL", "MbLS", "ACLS", "MDCA")


def once(names):
    return {name: 1 for name in names}


def three(names):
    return {name: 3 for name in names}


# The question of Diff-DML is decided by as many seeds as the main rows.
_FIVE = (*MAIN, "Diff-DML, labels 10 %", "Diff-DML, labels 20 %")
TABLES = {
    "S": {name: 5 if name in _FIVE else 3 for name in FROM_SCRATCH},
    "S10k": {name: 3 for name in MAIN},
    "S-development": once((*MAIN[:-2], "CPC", "Brier", "MMCE-w", "CutMix")),
    "F": {
        # Nothing is drawn at random in the first one.
        "as published": 1,
        **three(_IN_F),
        **three(f"{name}, interleaved" for name in ("MDCA", "SB-ECE", "MMCE")),
        **three(n for n in _LOSSES if n not in (*_IN_F, *_NOT_IN_F)),
        **three(("FL+SB-ECE, interleaved", "CutMix", "SAM")),
    },
    "LT": {"CE": 5},
    "N9": once(_UNDER_NOISE),
    "N40": once(_UNDER_NOISE),
    "C": three(MAIN),
    "T": three(
        (
            *"CE ER LS FL FLSD-53 CPC MbLS ACLS".split(),
            *_MARGIN_10,
            *"MDCA FL+MDCA MMCE SB-ECE FL+SB-ECE Brier".split(),
        )
    ),
    "D": three(("CE", "LS", "FL", *_MARGIN_10, "ER", "MbLS", "ACLS")),
    "G30": three(
        (
            *("CE", "FL+MDCA", "MbLS", "ACLS", "FL+SB-ECE", "DML", "Diff-DML"),
            *("Diff-DML, labels 10 %", "Diff-DML, labels 20 %"),
        )
    ),
    "miniature": {name: 1 for name in FROM_SCRATCH},
}
# What else the pages of the papers show of the longest schedule, then.
for _paper in published.PAPERS:
    _rest = published.methods_of(_paper, "G200")
    TABLES["G30"] |= once(n for n in _rest if n not in TABLES["G30"])
TABLES["G100"] = TABLES["G30"]
TABLES["G200"] = TABLES["G30"]
PROTOCOLS |= full_size.PROTOCOLS
for _name in full_size.PROTOCOLS:
    _rest = [published.methods_of(each, _name) for each in published.PAPERS]
    _names = dict.fromkeys(n for names in _rest for n in names)
    if PROTOCOLS[_name].streamed:  # the others need arrays
        _names = [n for n in _names if METHODS[n]["train"] == "single"]
    TABLES[_name] = three(_names)
# Those that are for a GPU; all others are for a CPU.
GPU = ("G30", "G100", "G200", *full_size.PROTOCOLS)
# Settings whose effect is drawn, one axis at a time or as a grid: MbLS, figure
# 1 (weights of both losses, and a margin of 0); ACLS, figure A (margins) and
# table A (both weights).
_WEIGHTS = (0.01, 0.03, 0.1, 0.3, 1.0)
SWEPT = {
    "LS": {"smoothing": (0.01, 0.02, 0.05, 0.1, 0.2, 0.3)},
    "MbLS": {"margin": (0.0, 6.0), "weight": _WEIGHTS},
    "ACLS": {"margin": (0.0, 2.0, 4.0, 6.0, 8.0, 10.0)},
    "ACLS, weights": {
        "positive_weight": (0.0, 0.05, 0.1, 0.15),
        "negative_weight": (0.0, 0.005, 0.01, 0.015),
    },
}


def swept():
    """Names of the variants of `SWEPT`, as in `methods.variant`.

    >>> swept()[6]
    'MbLS: margin=0.0, weight=0.01'
    """
    names = []
    for name, axes in SWEPT.items():
        method = name.partition(", ")[0]
        for values in itertools.product(*axes.values()):
            settings = dict(zip(axes, values, strict=True))
            names.append(variant(method, settings))
    return names


# Three times the square loss: its mean over classes makes it small.
PROTOCOLS["S-square"] = dataclasses.replace(
    S, learning_rate=0.3, weight_decay=5e-4 / 3
)
TABLES["S-square"] = three(["squared logit"])
PROTOCOLS["S-cross"] = PROTOCOLS["S"]
TABLES["S-cross"] = once(CROSSED)
for _name in ("S", "miniature"):
    PROTOCOLS[f"{_name}-sweep"] = PROTOCOLS[_name]
    TABLES[f"{_name}-sweep"] = once(swept())
# Where the rows go from which settings are chosen; see `tuning`.
TUNED = ("S", "F", "C", "T", "D", "miniature")
for _name in TUNED:
    PROTOCOLS[f"{_name}-tuning"] = PROTOCOLS[_name]
    TABLES[f"{_name}-tuning"] = {}


NO_WEIGHTS = "Weights are kept only where a network is fine-tuned."


def keeps_weights(table):
    return PROTOCOLS[table].kind == "fine_tuning"
