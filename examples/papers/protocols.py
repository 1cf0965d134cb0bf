"""What a run trains, and by which method: two small declarative tables.

A protocol fixes data, network and schedule; a method fixes loss and
procedure. Everything in both is written into each row of the results.
"""

import dataclasses
import json


@dataclasses.dataclass(frozen=True)
class Protocol:
    """Data, network and schedule of a family of runs.

    Attributes:
        data: name for `kc.datasets.load`.
        train: how many of the first exact training images, or `None` for all
            that are not held out.
        held_out: how many of the last training images validate (first half)
            and calibrate (second half).
        network: key of `networks.RESNETS`; `auxiliary` is that of peers.
        epochs, batch_size, learning_rate: of the schedule: linear warm-up
            over `warmup` of all steps, then cosine decay to 0.
        auxiliary_rate: fixed learning rate of Diff-DML's auxiliaries.
        shift: pixels of random shift; images are always mirrored.
        dtype: Keras' dtype policy.
    """

    data: str = "cifar10"
    train: int | None = 5000
    held_out: int = 5000
    test: int | None = None
    network: str = "resnet8"
    auxiliary: str = "resnet8"
    width: int | None = None
    epochs: int = 40
    batch_size: int = 128
    learning_rate: float = 0.1
    auxiliary_rate: float = 0.03
    warmup: float = 0.05
    weight_decay: float = 5e-4
    shift: int = 0
    dtype: str = "float32"

    # What other families of runs set. These are no fields here, so that rows
    # of this family keep the settings that they were stored with.
    kind = "images"
    optimizer = "sgd"
    schedule = "cosine"
    per_epoch = None
    ignore_class = None
    predict_batch = 1000


@dataclasses.dataclass(frozen=True)
class FineTuning(Protocol):
    """A published network is trained on with a small rate.

    Attributes:
        weights: file in the folder of the data; it tells the network.
        per_epoch: training images that an epoch draws.
        schedule: `"constant"`, the same rate in all steps.
        rows: where the test images are cut: held back for interleaved
            penalties, validation, calibration, test.
    """

    kind: str = "fine_tuning"
    train: int | None = None
    held_out: int = 0
    network: str = "published"
    weights: str = "resnet20_cifar10_weights.npz"
    epochs: int = 3
    per_epoch: int = 20000
    learning_rate: float = 0.01
    warmup: float = 0.0
    schedule: str = "constant"
    shift: int = 4
    rows: tuple = (2000, 3500, 5000)


@dataclasses.dataclass(frozen=True)
class LongTailed(Protocol):
    """Training, validation and calibration with a tail; a balanced test.

    Attributes:
        head: images of the largest class, in the three parts together.
        ratio: of the largest to the smallest class.
        shares: of train, validation and calibration in each class.
    """

    kind: str = "long_tailed"
    train: int | None = None
    held_out: int = 0
    head: int = 5000
    ratio: float = 50.0
    shares: tuple = (0.4, 0.1, 0.5)


@dataclasses.dataclass(frozen=True)
class SuperClasses(Protocol):
    """CIFAR-100 with its 20 super-classes."""

    kind: str = "super_classes"
    data: str = "cifar100"
    train: int | None = 12500
    epochs: int = 16


@dataclasses.dataclass(frozen=True)
class Text(Protocol):
    """Documents as word ids.

    Attributes:
        held_share: of the training documents: half of it validates, half
            calibrates.
        words: size of the vocabulary, with 0 (padding) and 1 (unknown).
        length: words that are read of a document.
        schedule: `"halves"`, a tenth of the rate in the second half.
    """

    kind: str = "text"
    data: str = "20newsgroups"
    train: int | None = None
    held_out: int = 0
    held_share: float = 0.1
    words: int = 20000
    length: int = 256
    network: str = "gpcn"
    epochs: int = 20
    optimizer: str = "adam"
    learning_rate: float = 0.001
    weight_decay: float = 0.0
    schedule: str = "halves"


@dataclasses.dataclass(frozen=True)
class Segmentation(Protocol):
    """A class for each pixel; images are mirrored with their labels.

    Attributes:
        ignore_class: label of pixels that do not count.
        predict_batch: images that are predicted at a time.
    """

    kind: str = "segmentation"
    data: str = "camvid"
    train: int | None = None
    held_out: int = 0
    network: str = "unet"
    width: int | None = 16
    epochs: int = 40
    batch_size: int = 8
    ignore_class: int = 255
    predict_batch: int = 32


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
    # A published ResNet-20, three short epochs.
    "F": FineTuning(),
    # S with a long tail, for class-wise scaling of what is fitted afterwards.
    "LT": LongTailed(),
    # CIFAR-100's super-classes, as many passes as S.
    "C": SuperClasses(),
    # 20 Newsgroups and a convolutional network.
    "T": Text(),
    # CamVid and a small U-Net.
    "D": Segmentation(),
    # Full CIFAR-10, for one GPU.
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


def single(loss, **arguments):
    """A network trained with one loss."""
    return {"train": "single", "loss": loss, **arguments}


def mutual(model, count=1, **arguments):
    """A primary with `count` auxiliaries, cross-entropy as supervised loss."""
    kind = {"train": "mutual", "model": model, "auxiliaries": count}
    return {**kind, "loss": CE, "arguments": arguments}


CE = {"class": "SparseCategoricalCrossentropy"}
FL1 = {"class": "FocalLoss", "gamma": 1.0}
FL3 = {"class": "FocalLoss", "gamma": 3.0}
BRIER = {"class": "BrierLoss"}
SB_ECE = {"weight": 0.1, "temperature": 0.01}


def by(procedure, loss=CE, **arguments):
    """A procedure of `procedures` with a loss and its own settings."""
    return {"train": procedure, "loss": loss, **arguments}


def interleaved(loss):
    """A tenth of the training images is left to the penalty."""
    return by("interleaved", loss, penalty_split=0.1)


def of(name, **arguments):
    """A loss of `kc.losses` by its class name."""
    return {"class": name, **arguments}


# Margins and weights are the papers' for CIFAR-10 where they give them.
METHODS = {
    "CE": single(CE),
    "LS": single(of("LabelSmoothing", smoothing=0.05)),
    "FL": single(FL3),
    "MbLS": single(of("MarginLabelSmoothing", margin=6.0, weight=0.1)),
    "ACLS": single(of("ACLS", margin=6.0)),
    "MDCA": single(of("MDCA")),
    "FL+MDCA": single(of("MDCA", primary=FL1)),
    "SB-ECE": single(of("SoftBinnedECE", **SB_ECE)),
    "FL+SB-ECE": single(of("SoftBinnedECE", primary=FL1, **SB_ECE)),
    "MMCE": single(of("MMCE")),
    "DML": mutual("MutualLearning"),
    "Diff-DML": mutual("DiffDML"),
    "Diff-DML, labels 10 %": mutual("DiffDML", label_warmup=0.1),
    "Diff-DML, labels 20 %": mutual("DiffDML", label_warmup=0.2),
    "ER": single(of("EntropyRegularization", weight=0.1)),
    "FLSD-53": single(of("SampleDependentFocalLoss")),
    "dual focal": single(of("DualFocalLoss", gamma=5.0)),
    "inverse focal": single(of("InverseFocalLoss")),
    "Brier": single(BRIER),
    "squared logit": single(of("SquaredLogitLoss")),
    "MMCE-w": single(of("MMCE", weighted=True)),
    "DCA": single(of("DCA")),
    "CPC": single(of("CPC")),
    "ACLS, min": single(of("ACLS", margin=6.0, reference="min")),
    "ACLS, AR only": single(of("ACLS", margin=6.0, conditional=False)),
    "ACLS, CR only": single(of("ACLS", margin=6.0, adaptive=False)),
    "AvUC": single(of("AvUC")),
    "AvUC-GS": single(of("AvUC", stop_gradient=True)),
    "S-AvUC": single(of("SoftAvUC")),
    "Brier+SB-ECE": single(of("SoftBinnedECE", primary=BRIER, **SB_ECE)),
    "DML-2": mutual("MutualLearning", 2),
    "Diff-DML-2": mutual("DiffDML", 2),
    "ensemble of 3": {"train": "ensemble", "members": 3, "loss": CE},
    # What is not a loss alone: see `procedures`.
    "SB-ECE, interleaved": interleaved(of("SoftBinnedECE", **SB_ECE)),
    "FL+SB-ECE, interleaved": interleaved(
        of("SoftBinnedECE", primary=FL1, **SB_ECE)
    ),
    "Brier+SB-ECE, interleaved": interleaved(
        of("SoftBinnedECE", primary=BRIER, **SB_ECE)
    ),
    "CRL": by("ranked", of("CRL")),
    "CRL, fraction": by("ranked", of("CRL", normalization="fraction")),
    "AdaFocal": by("adaptive_focal", of("AdaFocalLoss")),
    "FL, pruned (DTDP)": by("pruned", FL1, fraction=0.1, every=5),
    "CaPE": by("observed_frequencies"),
    "MC dropout": single(CE, dropout=0.2, num_masks=20),
    "CutMix": by("cut_mixed"),
    "AugMix": by("aug_mixed"),
    "SAM": by("sharpness_aware", radius=0.05),
}
_FROM_SCRATCH = tuple(METHODS)
METHODS |= {
    # What only fine-tuning needs: the network as it came, and penalties that
    # learn from images that it has not seen.
    "as published": by("as_it_is"),
    "MMCE, interleaved": interleaved(of("MMCE")),
    "MDCA, interleaved": interleaved(of("MDCA")),
    # The margin of the papers for data sets other than CIFAR-10.
    "MbLS, margin 10": single(of("MarginLabelSmoothing", weight=0.1)),
    "ACLS, margin 10": single(of("ACLS")),
}

# Which rows a table has, those that decide most first: method, seeds.
MAIN = (
    "CE LS FL MbLS ACLS MDCA FL+MDCA SB-ECE FL+SB-ECE MMCE DML Diff-DML"
).split()
# Single networks whose loss is all that differs from cross-entropy.
_LOSSES = tuple(
    name
    for name in _FROM_SCRATCH
    if METHODS[name]["train"] == "single" and name != "MC dropout"
)
TABLES = {
    "S": {name: 5 if name in MAIN else 3 for name in _FROM_SCRATCH},
    "S10k": {name: 3 for name in MAIN},
    "F": {
        name: 3
        for name in (
            *("as published", "CE", "LS", "FL", "MbLS", "ACLS"),
            *("MDCA", "MDCA, interleaved", "SB-ECE", "SB-ECE, interleaved"),
            *("MMCE", "MMCE, interleaved", "FL+SB-ECE", "FL+MDCA"),
            # Logits that are 0 or 1 are another network's.
            *(n for n in _LOSSES if n != "squared logit"),
            "FL+SB-ECE, interleaved",
            "CutMix",
            "SAM",
        )
    },
    "LT": {"CE": 5},
    "C": {name: 3 for name in MAIN},
    "T": {
        name: 3
        for name in (
            *("CE", "ER", "LS", "FL", "FLSD-53", "CPC", "MbLS, margin 10"),
            *("ACLS, margin 10", "MbLS", "ACLS", "MDCA", "FL+MDCA", "MMCE"),
            *("SB-ECE", "FL+SB-ECE", "Brier"),
        )
    },
    "D": {
        name: 3
        for name in (
            *("CE", "LS", "FL", "MbLS, margin 10", "ACLS, margin 10"),
            *("ER", "MbLS", "ACLS"),
        )
    },
    "G30": {
        name: 3
        for name in (
            *("CE", "FL+MDCA", "MbLS", "ACLS", "FL+SB-ECE", "DML", "Diff-DML"),
            *("Diff-DML, labels 10 %", "Diff-DML, labels 20 %"),
        )
    },
    "miniature": {name: 1 for name in _FROM_SCRATCH},
}
TABLES["F"]["as published"] = 1  # nothing is drawn at random
TABLES["G100"] = TABLES["G30"]
TABLES["G200"] = TABLES["G30"]
# Where the rows go from which settings are chosen; see `tuning`.
TUNED = ("S", "F", "C", "T", "D", "miniature")
for _name in TUNED:
    PROTOCOLS[f"{_name}-tuning"] = PROTOCOLS[_name]
    TABLES[f"{_name}-tuning"] = {}


def variant(name, settings):
    """Name of a method with other settings of its loss.

    >>> variant("MbLS", {"margin": 3.0, "weight": 0.1})
    'MbLS: margin=3.0, weight=0.1'
    """
    values = [f"{key}={json.dumps(value)}" for key, value in settings.items()]
    return f"{name}: {', '.join(values)}" if values else name


def method(name):
    """A method by its name in `METHODS`, or by the name of a `variant`.

    Raises:
        KeyError: if there is no such method.
    """
    if name in METHODS:
        return METHODS[name]
    first, _, rest = name.partition(": ")
    found = METHODS[first]
    pairs = (each.split("=") for each in rest.split(", "))
    settings = {key: json.loads(value) for key, value in pairs}
    return {**found, "loss": {**found["loss"], **settings}}
