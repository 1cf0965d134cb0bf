"""What a run trains, and by which method: two small declarative tables.

A protocol fixes data, network and schedule; a method fixes loss and
procedure. Everything in both is written into each row of the results.
"""

import dataclasses


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

# Which rows a table has, those that decide most first: method, seeds.
MAIN = (
    "CE LS FL MbLS ACLS MDCA FL+MDCA SB-ECE FL+SB-ECE MMCE DML Diff-DML"
).split()
TABLES = {
    "S": {name: 5 if name in MAIN else 3 for name in METHODS},
    "S10k": {name: 3 for name in MAIN},
    "G30": {
        name: 3
        for name in (
            *("CE", "FL+MDCA", "MbLS", "ACLS", "FL+SB-ECE", "DML", "Diff-DML"),
            *("Diff-DML, labels 10 %", "Diff-DML, labels 20 %"),
        )
    },
    "miniature": {name: 1 for name in METHODS},
}
TABLES["G100"] = TABLES["G30"]
TABLES["G200"] = TABLES["G30"]
