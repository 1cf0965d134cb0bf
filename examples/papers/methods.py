"""Methods by name: a loss, and a procedure of `procedures` that trains with it.

Everything that is written here is in the settings of each stored row.
"""

import json


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


# Margins and weights are the papers' for CIFAR-10 where they give them. The
# temperature of SB-ECE is not the library's default, which is 0.001.
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
    "DCA": single(of("DCA", weight=10.0)),
    "CPC": single(of("CPC")),
    "ACLS, min": single(of("ACLS", margin=6.0, reference="min")),
    "ACLS, AR only": single(of("ACLS", margin=6.0, conditional=False)),
    "ACLS, CR only": single(of("ACLS", margin=6.0, adaptive=False)),
    "AvUC": single(of("AvUC", weight=3.0)),
    "AvUC-GS": single(of("AvUC", weight=3.0, stop_gradient=True)),
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
    # ACLS, table 6, in `condition_losses`.
    "CRL, margin": single(of("MarginCRL", margin=6.0)),
    "ACLS, ranking": by("ranked", of("RankedACLS", margin=6.0)),
    "AdaFocal": by("adaptive_focal", of("AdaFocalLoss")),
    "FL, pruned (DTDP)": by("pruned", FL1, fraction=0.1, every=5),
    "CaPE": by("observed_frequencies"),
    "MC dropout": single(CE, dropout=0.2, num_masks=20),
    "CutMix": by("cut_mixed"),
    "AugMix": by("aug_mixed"),
    "SAM": by("sharpness_aware", radius=0.05),
}
# Protocol S has all of these; the others choose.
FROM_SCRATCH = tuple(METHODS)
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
# Diff-DML with other auxiliaries than the protocol's (its table S4).
AUXILIARIES = {"CNN": "cnn", "ResNet-34": "resnet34", "ResNet-50": "resnet50"}
METHODS |= {
    f"Diff-DML, {name}": {**mutual("DiffDML"), "auxiliary": network}
    for name, network in AUXILIARIES.items()
}
# The rest of the soft calibration objectives' table 2: primaries and penalties.
_PENALTIES = {
    "MMCE": of("MMCE"),
    "AvUC": of("AvUC", weight=3.0),
    "AvUC-GS": of("AvUC", weight=3.0, stop_gradient=True),
    "S-AvUC": of("SoftAvUC"),
}
CROSSED = {
    f"{name}+{penalty}": single({**loss, "primary": primary})
    for name, primary in (("FL", FL1), ("Brier", BRIER))
    for penalty, loss in _PENALTIES.items()
}
METHODS |= CROSSED


# Settings of a variant that are not its loss's.
OF_TRAINING = ("auxiliary_rate",)


def variant(name, settings):
    """Name of a method with other settings of its loss or its training.

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
    loss, others = dict(found["loss"]), {}
    for key, value in pairs:
        place = others if key in OF_TRAINING else loss
        place[key] = json.loads(value)
    return {**found, "loss": loss, **others}
