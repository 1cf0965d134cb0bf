"""What the papers report: accuracy (or mean overlap) and ECE in percent.

Each table stands for itself: its own network, schedule, and cross-entropy. A
claim is the difference from that cross-entropy, never a number across tables.
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Published:
    """One table of a paper.

    Attributes:
        source: paper, table and network.
        baseline: accuracy and ECE of plain cross-entropy in this table; `None`
            where the table has no accuracy.
        methods: the same of each method, by its name in `methods.METHODS`.
        ece: which error it is, where it is not 15 bins of equal width.
        tables: ours that it is shown beside.
        score: what stands in the place of accuracy: a key of our rows.
    """

    source: str
    baseline: tuple[float | None, float]
    methods: dict[str, tuple[float | None, float]]
    ece: str = ""
    tables: tuple[str, ...] = ("S", "S10k", "F", "G30", "G100", "G200")
    score: str = "accuracy"

    @property
    def short(self):
        """Paper and table, without the network."""
        return self.source.rpartition(", ")[0]


PUBLISHED = (
    Published(
        "ACLS, table 3, ResNet-50",
        (93.20, 5.85),
        {
            "MMCE": (95.18, 3.10),
            "ER": (94.75, 3.01),
            "LS": (94.87, 2.79),
            "FL": (94.82, 3.90),
            "FLSD-53": (94.77, 3.84),
            "MDCA": (94.84, 6.86),
            "CPC": (95.04, 3.91),
            "MbLS": (95.25, 1.16),
            "CRL": (95.08, 3.14),
            "ACLS": (95.40, 1.12),
        },
    ),
    # The row "CE"; "Baseline" is another training without a name.
    Published(
        "Diff-DML, tables S1 and S3, ResNet-34",
        (94.53, 2.26),
        {
            "DCA": (95.22, 3.28),
            "MMCE": (94.68, 3.22),
            "FL": (94.88, 1.21),
            "FL, pruned (DTDP)": (93.59, 2.46),
            "FL+MDCA": (94.75, 0.87),
            "DML": (94.84, 1.26),
            "DML-2": (94.52, 1.17),
            "Diff-DML": (95.39, 0.68),
            "Diff-DML-2": (95.29, 0.51),
            "ensemble of 3": (95.79, 1.19),
        },
    ),
    Published(
        "Soft calibration objectives, table 2, WRN-28-10",
        (95.5, 5.59),
        {
            "FL": (95.0, 5.45),
            "Brier": (95.0, 6.58),
            "MMCE": (95.0, 1.55),
            "AvUC": (95.5, 5.27),
            "AvUC-GS": (95.6, 4.94),
            "S-AvUC": (95.4, 5.87),
            "SB-ECE": (95.4, 5.84),
            "FL+SB-ECE": (95.1, 1.19),
            "Brier+SB-ECE": (95.1, 4.37),
        },
        ece="l2, equal mass",
    ),
    # The appendix does not say which margin.
    Published(
        "MbLS, appendix, table 1, GPCN on another copy of 20 Newsgroups",
        (None, 22.75),
        {
            "LS": (None, 8.07),
            "FL": (None, 10.80),
            "FLSD-53": (None, 10.87),
            "MbLS": (None, 5.40),
            "MbLS, margin 10": (None, 5.40),
        },
        tables=("T",),
    ),
    Published(
        "ACLS, table 4, DeepLabV3 on PASCAL VOC",
        (70.92, 8.26),
        {
            "ER": (71.16, 8.31),
            "LS": (71.00, 9.35),
            "FL": (69.99, 11.44),
            "MbLS, margin 10": (71.20, 7.94),
            "ACLS, margin 10": (70.63, 7.29),
        },
        tables=("D",),
        score="miou",
    ),
)

# ECE in percent on CIFAR10-LT after temperature scaling: fitted plainly, and
# with scaled class losses. Class-wise scaling paper, table 2.
LONG_TAILED = {
    "DenseNet-40": (6.16, 3.22),
    "WRN-28": (4.47, 3.19),
    "ResNet-110": (5.94, 3.53),
    "ResNet-110 SD": (6.84, 2.53),
}

_INTERLEAVED = "the penalty needs data that the network has not memorized"
_ABLATION = "half of ACLS: a higher ECE than with both"
_OURS = "nothing: this warm-up is an addition here"
_SB_ECE = "lower ECE for less than 1 point of accuracy, with FL and Brier"

# What the paper of a method says of it, in short.
SAYS = {
    "CE": "the baseline",
    "as published": "nothing: the network before fine-tuning",
    "LS": "lower ECE (Müller 2019)",
    "FL": "lower ECE, also after TS (Mukhoti 2020)",
    "MbLS": "lower ECE than LS and FL, accuracy kept (Liu 2022)",
    "MbLS, margin 10": "the margin for other data sets (Liu 2022)",
    "ACLS": "lower ECE than MbLS, accuracy kept (Park 2023)",
    "ACLS, margin 10": "the margin for other data sets (Park 2023)",
    "ACLS, min": "equation 13 as it is written (Park 2023)",
    "ACLS, AR only": _ABLATION,
    "ACLS, CR only": _ABLATION,
    "MDCA": "lower ECE and classwise ECE (Hebbalaguppe 2022)",
    "FL+MDCA": "the best primary for MDCA is FL (Hebbalaguppe 2022)",
    "SB-ECE": f"{_SB_ECE} (Karandikar 2021)",
    "FL+SB-ECE": f"{_SB_ECE} (Karandikar 2021)",
    "Brier+SB-ECE": f"{_SB_ECE} (Karandikar 2021)",
    **{
        f"{primary}+{penalty}": "the primary crossed (Karandikar 2021)"
        for primary in ("FL", "Brier")
        for penalty in ("MMCE", "AvUC", "AvUC-GS", "S-AvUC")
    },
    "MMCE": "lower ECE, accuracy kept (Kumar 2018)",
    "MMCE-w": "lower ECE, accuracy kept (Kumar 2018)",
    "DML": "higher accuracy (Zhang 2018); lower ECE in Diff-DML's tables",
    "DML-2": "lower ECE than with one peer, in Diff-DML's tables",
    "Diff-DML": "higher accuracy and lower ECE than DML",
    "Diff-DML-2": "lower ECE than with one auxiliary",
    "Diff-DML, labels 10 %": _OURS,
    "Diff-DML, labels 20 %": _OURS,
    "ER": "higher accuracy (Pereyra 2017)",
    "FLSD-53": "lower ECE than with one gamma (Mukhoti 2020)",
    "dual focal": "lower ECE than FL, less underconfident (Tao 2023)",
    "inverse focal": "higher ECE, but better after TS (Wang 2021)",
    "Brier": "lower ECE (as a baseline in Mukhoti 2020)",
    "squared logit": "accuracy as with CE (Hui 2021)",
    "DCA": "lower ECE, accuracy kept (Liang 2020)",
    "CPC": "lower ECE, accuracy kept (Cheng 2022)",
    "AvUC": "lower ECE, above all under shift (Krishnan 2020)",
    "AvUC-GS": "its uncertainty without a gradient (Karandikar 2021)",
    "S-AvUC": "lower ECE than AvUC (Karandikar 2021)",
    "ensemble of 3": "higher accuracy, lower NLL (Lakshminarayanan 2017)",
    "SB-ECE, interleaved": f"{_INTERLEAVED} (Karandikar 2021)",
    "FL+SB-ECE, interleaved": f"{_INTERLEAVED} (Karandikar 2021)",
    "Brier+SB-ECE, interleaved": f"{_INTERLEAVED} (Karandikar 2021)",
    "MMCE, interleaved": f"{_INTERLEAVED} (Karandikar 2021, of SB-ECE)",
    "MDCA, interleaved": f"{_INTERLEAVED} (Karandikar 2021, of SB-ECE)",
    "CRL": "confidence ranked by correctness, lower ECE (Moon 2020)",
    "CRL, fraction": "the same, normalized otherwise",
    "Diff-DML, CNN": "higher ECE than with ResNet-18 as auxiliary (table S4)",
    "Diff-DML, ResNet-34": "ECE near that with ResNet-18 (table S4, CIFAR-10)",
    "Diff-DML, ResNet-50": "ECE near that with ResNet-18 (table S4, CIFAR-10)",
    "CRL, margin": "lower ECE than CRL (Park 2023, table 6)",
    "ACLS, ranking": "higher ECE than ACLS (Park 2023, table 6)",
    "AdaFocal": "lower ECE than FLSD-53, accuracy kept (Ghosh 2022)",
    "FL, pruned (DTDP)": "lower ECE with fewer samples (Patra 2023)",
    "CaPE": "better probabilities than CE (Liu 2022)",
    "MC dropout": "better uncertainty (Gal 2016)",
    "CutMix": "higher accuracy, less overconfident (Yun 2019)",
    "AugMix": "lower ECE, above all under shift (Hendrycks 2020)",
    "SAM": "higher accuracy (Foret 2021)",
}


# What was fitted to the calibration images before a part was measured.
AFTER = {"test_scaled": "TS", "test_scaled_to_sb_ece": "TS-SB-ECE"}


@dataclasses.dataclass(frozen=True)
class Claim:
    """What a paper says of a method beside another one.

    Attributes:
        method: name in `methods.METHODS`.
        other: of the method that it is compared with.
        key: of an error.
        sign: of the difference that is claimed, -1 for lower, 1 for higher.
        margin: what may be lost: 0.01 for "at most a point of accuracy less".
        part: of a row.
        other_part: that of the other method, if it is another one.
    """

    method: str
    other: str
    key: str = "ece"
    sign: int = -1
    margin: float = 0.0
    part: str = "test"
    other_part: str = ""

    def __str__(self):
        words = {"ece": "ECE", "classwise_ece": "classwise ECE", "nll": "NLL"}
        name = words.get(self.key, self.key)
        if self.part in AFTER:
            name += f" after {AFTER[self.part]}"
        other = self.other
        if self.other_part:
            other += f" after {AFTER[self.other_part]}"
        if self.margin:
            lost = f"{100 * self.margin:.0f} point"
            return f"{name} at most {lost} below {other}"
        return f"{name} {'below' if self.sign < 0 else 'above'} {other}"


def kept(method, margin=0.01):
    """The accuracy of cross-entropy, but for a point."""
    return Claim(method, "CE", "accuracy", 1, margin)


# What can be tested of `SAYS`. "Accuracy kept" is at most a point less.
CLAIMS = (
    Claim("LS", "CE"),
    Claim("FL", "CE"),
    Claim("FL", "CE", part="test_scaled"),
    Claim("MbLS", "LS"),
    Claim("MbLS", "FL"),
    kept("MbLS"),
    Claim("ACLS", "MbLS"),
    kept("ACLS"),
    Claim("ACLS, AR only", "ACLS", sign=1),
    Claim("ACLS, CR only", "ACLS", sign=1),
    Claim("MbLS, margin 10", "LS"),
    Claim("MbLS, margin 10", "FL"),
    kept("MbLS, margin 10"),
    Claim("ACLS, margin 10", "MbLS, margin 10"),
    kept("ACLS, margin 10"),
    Claim("MDCA", "CE"),
    Claim("MDCA", "CE", "classwise_ece"),
    Claim("FL+MDCA", "MDCA"),
    Claim("FL+MDCA", "FL"),
    Claim("SB-ECE", "CE"),
    kept("SB-ECE"),
    Claim("FL+SB-ECE", "FL"),
    Claim("Brier+SB-ECE", "Brier"),
    Claim("MMCE", "CE"),
    kept("MMCE"),
    Claim("MMCE-w", "CE"),
    kept("MMCE-w"),
    Claim("DML", "CE", "accuracy", 1),
    Claim("DML", "CE"),
    Claim("DML-2", "DML"),
    Claim("Diff-DML", "DML", "accuracy", 1),
    Claim("Diff-DML", "DML"),
    Claim("Diff-DML-2", "Diff-DML"),
    Claim("Diff-DML, CNN", "Diff-DML", sign=1),
    Claim("ER", "CE", "accuracy", 1),
    Claim("FLSD-53", "FL"),
    Claim("dual focal", "FL"),
    Claim("inverse focal", "CE", sign=1),
    Claim("inverse focal", "CE", "nll", part="test_scaled"),
    Claim("Brier", "CE"),
    kept("squared logit"),
    Claim("DCA", "CE"),
    kept("DCA"),
    Claim("CPC", "CE"),
    kept("CPC"),
    Claim("AvUC", "CE"),
    Claim("S-AvUC", "AvUC"),
    Claim("ensemble of 3", "CE", "accuracy", 1),
    Claim("ensemble of 3", "CE", "nll"),
    Claim("SB-ECE, interleaved", "SB-ECE"),
    Claim("FL+SB-ECE, interleaved", "FL+SB-ECE"),
    Claim("Brier+SB-ECE, interleaved", "Brier+SB-ECE"),
    Claim("CRL", "CE"),
    Claim("CRL, margin", "CRL"),
    Claim("ACLS, ranking", "ACLS", sign=1),
    Claim("AdaFocal", "FLSD-53"),
    kept("AdaFocal"),
    Claim("FL, pruned (DTDP)", "FL"),
    Claim("CaPE", "CE", "nll"),
    Claim("MC dropout", "CE", "nll"),
    Claim("CutMix", "CE", "accuracy", 1),
    Claim("CutMix", "CE"),
    Claim("AugMix", "CE"),
    Claim("SAM", "CE", "accuracy", 1),
    # The order of table 2 of the soft calibration objectives.
    Claim("FL+MMCE", "FL", sign=1),
    *(Claim(f"FL+{name}", "FL") for name in ("AvUC", "AvUC-GS", "S-AvUC")),
    *(
        Claim(f"Brier+{name}", "Brier")
        for name in ("MMCE", "AvUC", "AvUC-GS", "S-AvUC")
    ),
)
# The same of corrupted images: soft calibration objectives, figures 2 and 7 to
# 9, and AvUC. Networks as they were trained for calibration, beside
# cross-entropy with a temperature; and one temperature beside the other.
FOR_CALIBRATION = (
    *("MMCE", "FL", "FL+SB-ECE", "SB-ECE", "S-AvUC", "AvUC", "Brier"),
    "Brier+SB-ECE",
)
SHIFT_CLAIMS = (
    *(Claim(n, "CE", other_part="test_scaled") for n in FOR_CALIBRATION),
    *(
        Claim(n, n, part="test_scaled_to_sb_ece", other_part="test_scaled")
        for n in ("CE", "as published")
    ),
    Claim("AvUC", "CE"),
)


def of_method(name, table):
    """Published tables beside `table`, and what each reports of a method."""
    for published in PUBLISHED:
        if table in published.tables and name in published.methods:
            yield published, published.methods[name]
