"""The tables of the five papers as they print them, in their own layout.

Numbers are the papers', in percent but for what a column says. A line of a
table is a label, our method with what follows its training (`@`), and the
paper's numbers, column by column; `-` where the paper has none.
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Block:
    """A table of a paper, or the part of it that is of one data set.

    Attributes:
        title: number and data set.
        networks: of the paper.
        metrics: of each network, keys of `paper_pages.METRICS`.
        ours: our tables that stand beside it; for a tuple of several see
            `paper_pages.chosen_of`.
        text: the lines.
        note: what must be said of it.
    """

    title: str
    networks: tuple[str, ...]
    metrics: tuple[str, ...]
    ours: tuple
    text: str
    note: str = ""

    def groups(self):
        """`ours` as tuples."""
        return [(e,) if isinstance(e, str) else e for e in self.ours]

    def lines(self):
        """Yields label, method, what follows, and the paper's numbers."""
        width = len(self.networks) * len(self.metrics)
        for line in self.text.strip().splitlines():
            label, source, numbers = (part.strip() for part in line.split("|"))
            method, _, after = source.partition("@")
            found = numbers.split()
            if len(found) != width:
                raise ValueError(f"{self.title}: {line}")
            yield label, method.strip(), after.strip(), found


@dataclasses.dataclass(frozen=True)
class Paper:
    """A paper and its tables.

    Attributes:
        title: authors, name and year.
        blocks: its tables.
        missing: tables that no protocol stands beside, and why.
        swept: methods of `S-sweep` on its page and its figures.
    """

    title: str
    blocks: tuple[Block, ...]
    missing: str = ""
    swept: tuple[str, ...] = ()


# Our runs with ResNet-34 on all of CIFAR-10, where there are none of a paper's
# own network and schedule (`full_size`).
GPU = ("G200", "G100", "G30")
_TEN_CLASSES = ("S", "F", ("cifar10-resnet50", *GPU), "cifar10-resnet101")
_TINY = ("tiny-resnet50", "tiny-resnet101")
_NOT_HERE = "Only 10 of the 200 classes were at hand, so that it was not run."
_DEFAULT_MAPS = (
    "Our maps are the library's defaults, which few samples leave near "
    "temperature scaling, and not the papers' (no penalty; ODIR)."
)
_CLASSIFIED = ("ACC", "ECE", "AECE")

ACLS = Paper(
    "Park et al., Adaptive and conditional label smoothing (ACLS), ICCV 2023",
    (
        Block(
            "Table 3, CIFAR-10",
            ("ResNet-50", "ResNet-101"),
            _CLASSIFIED,
            _TEN_CLASSES,
            """
            CE     | CE      | 93.20 5.85 5.84 93.33 5.74 5.73
            CE+TS  | CE@TS   | 93.20 3.68 3.67 93.33 3.62 3.62
            MMCE   | MMCE    | 95.18 3.10 3.10 94.99 3.61 3.61
            ECP    | ER      | 94.75 3.01 2.99 93.35 5.41 5.40
            LS     | LS      | 94.87 2.79 3.85 93.23 3.56 4.68
            FL     | FL      | 94.82 3.90 3.86 92.42 4.60 4.58
            FLSD   | FLSD-53 | 94.77 3.84 3.60 92.38 4.58 4.57
            MDCA   | MDCA    | 94.84 6.86 6.73 95.66 6.88 7.23
            CPC    | CPC     | 95.04 3.91 3.91 95.36 3.78 3.75
            MbLS   | MbLS    | 95.25 1.16 3.18 95.13 1.38 3.25
            CRL    | CRL     | 95.08 3.14 3.11 95.04 3.74 3.73
            ACLS   | ACLS    | 95.40 1.12 2.87 95.34 1.36 3.25
            """,
            "CRL is not fine-tuned in F: its history needs whole epochs.",
        ),
        Block(
            "Table 3, Tiny-ImageNet",
            ("ResNet-50", "ResNet-101"),
            _CLASSIFIED,
            _TINY,
            """
            CE     | CE      | 65.02 3.73 3.69 65.62 4.97 4.97
            CE+TS  | CE@TS   | 65.02 1.63 1.52 65.62 2.08 2.03
            MMCE   | MMCE    | 64.75 5.15 5.12 65.92 4.88 4.88
            ECP    | ER      | 64.98 4.00 3.92 65.69 4.68 4.66
            LS     | LS      | 65.78 3.17 3.16 65.87 2.20 2.21
            FL     | FL      | 63.09 2.96 3.12 62.97 2.55 2.44
            FLSD   | FLSD-53 | 64.09 2.91 2.95 62.96 4.91 4.91
            MDCA   | MDCA    | 63.57 2.77 2.61 66.34 6.06 6.06
            CPC    | CPC     | 65.44 3.12 3.05 66.56 3.90 4.00
            MbLS   | MbLS, margin 10 | 64.74 1.64 1.73 65.81 1.62 1.68
            CRL    | CRL     | 64.88 1.65 1.52 65.87 3.57 3.56
            ACLS   | ACLS, margin 10 | 64.84 1.05 1.03 65.78 1.11 1.15
            """,
            _NOT_HERE,
        ),
        Block(
            "Table 3, ImageNet",
            ("ResNet-50",),
            _CLASSIFIED,
            ("imagenet-resnet50",),
            """
            CE     | CE      | 73.96 9.10 9.24
            CE+TS  | CE@TS   | 73.96 1.86 1.90
            MMCE   | MMCE    | 74.36 8.75 8.75
            ECP    | ER      | 73.84 8.63 8.63
            LS     | LS      | 75.24 2.33 2.43
            FL     | FL      | 71.76 1.79 1.79
            FLSD   | FLSD-53 | 72.19 1.82 1.86
            MDCA   | MDCA    | 75.65 7.45 7.53
            CPC    | CPC     | 75.76 4.80 4.82
            MbLS   | MbLS, margin 10 | 75.39 4.07 4.14
            CRL    | CRL     | 73.83 8.47 8.47
            ACLS   | ACLS, margin 10 | 75.65 1.02 1.20
            """,
            "The data were not at hand, so that it was not run. CRL needs its "
            "images as arrays.",
        ),
        Block(
            "Table 4, PASCAL VOC; D is CamVid",
            ("DeepLabV3",),
            ("mIoU", "ECE", "AECE"),
            ("D", "voc-deeplab"),
            """
            CE     | CE              | 70.92 8.26 8.23
            ECP    | ER              | 71.16 8.31 8.26
            LS     | LS              | 71.00 9.35 9.95
            FL     | FL              | 69.99 11.44 11.43
            MbLS   | MbLS, margin 10 | 71.20 7.94 7.99
            ACLS   | ACLS, margin 10 | 70.63 7.29 7.28
            """,
        ),
        Block(
            "Table 5, both halves of ACLS; there Tiny-ImageNet, here CIFAR-10",
            ("ResNet-50", "ResNet-101"),
            ("ECE", "AECE"),
            ("S", "F"),
            """
            LS      | LS            | 3.17 3.16 2.20 2.21
            MDCA    | MDCA          | 2.77 2.61 6.06 6.06
            AR only | ACLS, AR only | 1.54 1.42 1.34 0.89
            MbLS    | MbLS          | 1.64 1.73 1.62 1.68
            CR only | ACLS, CR only | 1.32 1.43 1.38 1.41
            ACLS    | ACLS          | 1.05 1.03 1.11 1.15
            """,
        ),
        Block(
            "Table 6, conditions; there Tiny-ImageNet, here CIFAR-10",
            ("ResNet-50",),
            ("ECE", "AECE"),
            ("S",),
            """
            CRL, ranking  | CRL  | 1.65 1.52
            CRL, margin   | CRL, margin | 1.47 1.40
            ACLS, ranking | ACLS, ranking | 1.48 1.19
            ACLS, margin  | ACLS | 1.05 1.03
            """,
            "The two mixed forms are our reading: the paper prints no formula "
            "of them (`condition_losses.py`).",
        ),
        Block(
            "Table A, accuracy / ECE by weights; there Tiny-ImageNet, here "
            "CIFAR-10",
            ("0", "0.005", "0.01", "0.015"),
            ("ACC", "ECE"),
            (),
            """
            0    | | 64.62 4.39 64.43 3.42 55.81 2.94 - -
            0.05 | | 64.83 2.36 64.83 1.95 64.76 1.73 64.48 1.41
            0.1  | | 65.43 2.67 64.74 1.94 65.40 1.31 65.17 1.52
            0.15 | | 65.04 2.71 65.18 1.44 65.23 1.42 64.11 1.47
            """,
            "Rows are `positive_weight`, columns `negative_weight`; a dash did "
            "not converge there.",
        ),
        Block(
            "Table B, other methods, 15 bins; there Tiny-ImageNet, here "
            "CIFAR-10",
            ("ResNet-50",),
            _CLASSIFIED,
            ("S",),
            """
            CE                  | CE                | 65.02 3.73 3.69
            CE+TS               | CE@TS             | 65.02 1.63 1.52
            MMCE                | MMCE              | 64.75 5.15 5.12
            CutMix              | CutMix            | 65.11 2.71 2.66
            CaPE-bin            | CaPE              | 59.78 2.99 2.96
            MCdrop              | MC dropout        | 65.33 2.58 2.54
            Patra et al. (DTDP) | FL, pruned (DTDP) | 48.74 - -
            ACLS                | ACLS              | 64.84 1.05 1.03
            """,
        ),
    ),
    "Table 1 is the column of Tiny-ImageNet, ResNet-50, of table 3.",
    swept=("ACLS",),
)

_CLASSWISE = ("ACC", "ECE", "cw-ECE")
_RATE_TRIED = (
    "Of ours in S, the rate of Diff-DML's auxiliaries, 0.03, had been tried on "
    "test images of CIFAR-10 before; the one that was chosen on validation "
    "images, 0.1, has a row in [S-tuning](S-tuning.md)."
)
DIFF_DML = Paper(
    "Differentiated deep mutual learning (Diff-DML), CVPR 2025, supplement",
    (
        Block(
            "Table S1, CIFAR-10",
            ("ResNet-34", "ResNet-50"),
            _CLASSWISE,
            ("S", "F", ("cifar10-resnet34", *GPU), "cifar10-resnet50"),
            """
            Baseline | | 95.03 3.23 6.66 94.91 2.95 6.42
            CE       | CE                | 94.53 2.26 5.35 94.70 2.68 6.15
            CE+TS    | CE@TS             | 94.53 0.51 2.99 94.70 0.34 3.19
            CE+VS    | CE@VectorScaling  | 94.63 0.55 3.03 94.73 0.58 2.96
            CE+DS    | CE@DirichletScaling | 94.57 0.61 3.14 94.70 0.52 3.17
            DCA      | DCA               | 95.22 3.28 7.01 94.91 3.22 6.68
            MMCE     | MMCE              | 94.68 3.22 6.54 94.34 3.29 6.73
            FL       | FL                | 94.88 1.21 3.36 94.31 1.07 4.06
            FL+DTDP  | FL, pruned (DTDP) | 93.59 2.46 5.72 93.88 2.35 5.69
            FL+MDCA  | FL+MDCA           | 94.75 0.87 3.04 94.16 0.68 3.72
            DML      | DML               | 94.84 1.26 3.32 94.10 1.06 3.06
            Diff-DML | Diff-DML          | 95.39 0.68 2.43 95.20 0.90 2.60
            """,
            '"Baseline" is a training that the supplement does not describe. '
            + f"{_DEFAULT_MAPS} {_RATE_TRIED}",
        ),
        Block(
            "Table S2, Tiny-ImageNet",
            ("ResNet-34", "ResNet-50"),
            _CLASSWISE,
            ("tiny-resnet34", "tiny-resnet50"),
            """
            Baseline | | 54.88 9.03 1.75 54.84 7.53 1.74
            CE       | CE | 54.73 7.63 1.71 54.38 6.14 1.64
            CE+TS    | CE@TS | 54.73 1.92 1.53 54.38 1.62 1.53
            CE+VS    | CE@VectorScaling | 55.34 1.46 1.52 54.02 1.52 1.43
            CE+DS    | CE@DirichletScaling | 52.54 7.19 2.13 49.74 10.08 2.44
            DCA      | DCA | 54.36 8.62 1.84 54.74 7.92 1.81
            MMCE     | MMCE | 54.50 6.55 1.67 54.12 4.37 1.56
            FL       | FL | 54.16 2.72 1.61 53.38 2.13 1.63
            FL+DTDP  | FL, pruned (DTDP) | 55.70 1.31 1.59 57.92 1.76 1.57
            FL+MDCA  | FL+MDCA | 53.92 3.00 1.62 52.98 3.14 1.66
            DML      | DML | 56.44 3.78 1.61 56.50 2.52 1.54
            Diff-DML | Diff-DML | 57.50 1.33 1.52 58.02 1.20 1.48
            """,
            _NOT_HERE,
        ),
        Block(
            "Table S3, CIFAR-10: more auxiliaries, and an ensemble",
            ("ResNet-34", "ResNet-50"),
            _CLASSWISE,
            ("S", ("cifar10-resnet34", *GPU), "cifar10-resnet50"),
            """
            DE-3       | ensemble of 3 | 95.79 1.19 3.64 95.63 0.77 3.01
            DML        | DML           | 94.84 1.26 3.32 94.10 1.06 3.06
            DML-2      | DML-2         | 94.52 1.17 3.31 94.66 1.06 3.27
            Diff-DML   | Diff-DML      | 95.39 0.68 2.43 95.20 0.90 2.60
            Diff-DML-2 | Diff-DML-2    | 95.29 0.51 2.48 95.23 0.63 2.48
            labels 10 % (ours) | Diff-DML, labels 10 % | - - - - - -
            labels 20 % (ours) | Diff-DML, labels 20 % | - - - - - -
            """,
            "The last two lines are `DiffDML(label_warmup=)`, which is not in "
            "the paper. " + _RATE_TRIED,
        ),
        Block(
            "Table S3, Tiny-ImageNet",
            ("ResNet-34", "ResNet-50"),
            _CLASSWISE,
            ("tiny-resnet34", "tiny-resnet50"),
            """
            DE-3       | ensemble of 3 | 58.78 1.95 1.58 57.60 3.32 1.59
            DML        | DML | 56.44 3.78 1.61 56.50 2.52 1.54
            DML-2      | DML-2 | 57.46 3.24 1.58 55.72 2.33 1.56
            Diff-DML   | Diff-DML | 57.50 1.33 1.52 58.02 1.20 1.48
            Diff-DML-2 | Diff-DML-2 | 58.60 1.08 1.49 58.08 1.10 1.53
            """,
            _NOT_HERE,
        ),
        Block(
            "Table S4, Diff-DML by auxiliary, CIFAR-10",
            ("ResNet-34", "ResNet-50"),
            _CLASSWISE,
            (("cifar10-resnet34", *GPU), "cifar10-resnet50"),
            """
            CNN      | Diff-DML, CNN | 94.35 8.00 16.8 94.10 7.65 16.14
            ResNet18 | Diff-DML | 95.39 0.68 2.34 95.20 0.90 2.60
            ResNet34 | Diff-DML, ResNet-34 | 95.48 0.65 2.35 95.16 0.59 2.59
            ResNet50 | Diff-DML, ResNet-50 | 95.48 0.57 2.56 95.25 0.64 2.36
            """,
            "The auxiliary of the GPU protocols is ResNet-18; with others it "
            'is a method of its own, `--only "Diff-DML, CNN"`.',
        ),
        Block(
            "Table S4, Diff-DML by auxiliary, CIFAR-100",
            ("ResNet-34", "ResNet-50"),
            _CLASSWISE,
            ("cifar100-resnet34", "cifar100-resnet50"),
            """
            CNN      | Diff-DML, CNN | 76.09 5.31 2.03 75.36 7.67 2.42
            ResNet18 | Diff-DML | 78.20 0.65 1.43 79.05 0.86 1.40
            ResNet34 | Diff-DML, ResNet-34 | 79.46 1.17 1.37 78.74 0.91 1.36
            ResNet50 | Diff-DML, ResNet-50 | 79.02 0.78 1.38 79.01 0.85 1.37
            """,
        ),
    ),
)

_SCALED = ("PreT", "PosT", "T")
MBLS = Paper(
    "Liu et al., Margin-based label smoothing (MbLS), CVPR 2022, appendix",
    (
        Block(
            "Table 1, CIFAR-10",
            ("ResNet-50", "ResNet-101"),
            _SCALED,
            _TEN_CLASSES,
            """
            CE   | CE      | 5.85 2.34 3.9 5.74 2.51 3.9
            LS   | LS      | 2.79 1.75 0.9 3.56 2.71 0.9
            FL   | FL      | 3.90 1.34 0.7 4.60 1.24 1.4
            FLSD | FLSD-53 | 3.84 1.30 0.7 4.58 1.21 1.9
            MbLS | MbLS    | 1.16 1.16 1.0 1.38 1.13 0.9
            """,
        ),
        Block(
            "Table 1, 20 Newsgroups",
            ("GPCN",),
            _SCALED,
            ("T",),
            """
            CE   | CE              | 22.75 3.01 3.1
            LS   | LS              | 8.07 3.69 1.2
            FL   | FL              | 10.80 3.33 1.4
            FLSD | FLSD-53         | 10.87 4.10 1.4
            MbLS | MbLS, margin 10 | 5.40 2.09 1.1
            """,
            "Another copy of the data, divided at random: 15,098 training, 900 "
            "validation and 3,999 test documents. There word vectors are "
            "GloVe's; ours are learned.",
        ),
        Block(
            "Table 1, Tiny-ImageNet",
            ("ResNet-50", "ResNet-101"),
            _SCALED,
            _TINY,
            """
            CE   | CE | 3.73 1.86 1.1 4.97 2.01 1.2
            LS   | LS | 3.17 1.79 0.9 2.20 2.20 1
            FL   | FL | 2.96 1.74 0.9 2.55 2.22 0.9
            FLSD | FLSD-53 | 2.91 1.74 0.9 4.91 1.64 0.9
            MbLS | MbLS, margin 10 | 1.64 1.64 1.0 1.62 1.62 1.0
            """,
            _NOT_HERE,
        ),
        Block(
            "Table 1, CUB-200-2011",
            ("ResNet-101",),
            _SCALED,
            ("cub-resnet101",),
            """
            CE   | CE | 6.75 2.00 1.2
            LS   | LS | 5.16 3.05 0.9
            FL   | FL | 8.41 2.45 0.8
            FLSD | FLSD-53 | 8.54 3.61 3.8
            MbLS | MbLS, margin 10 | 2.78 1.72 1.2
            """,
            "The data were not at hand, so that it was not run. The paper's "
            "network was trained on ImageNet before.",
        ),
        Block(
            "Table 2, vision transformer",
            ("CIFAR-10", "Tiny-ImageNet"),
            ("ACC", "ECE"),
            ("cifar10-vit", "tiny-vit"),
            """
            LS   | LS | 98.57 1.39 90.50 2.37
            FL   | FL | 98.49 1.20 90.39 4.51
            FLSD | FLSD-53 | 98.55 1.13 90.47 4.25
            MbLS | MbLS, margin 10 | 98.57 0.39 90.65 1.26
            """,
            "The paper's transformer was trained on other images before; ours "
            "is a small one that begins at random.",
        ),
    ),
    "In the paper data sets are rows and losses columns; here it is the other "
    "way, so that ours fit beside them.",
    swept=("LS", "MbLS"),
)

_POST_HOC = ("ECE",)
_TEN = ("DenseNet40", "WRN-32", "ResNet110", "ResNet110SD")


def _of(data):
    """Our tables with the paper's four networks, in its order."""
    networks = ("densenet40", "wrn28-10", "resnet110", "resnet110sd")
    return tuple(f"{data}-{network}" for network in networks)


CLASS_SCALING = Paper(
    "Jung et al., Scaling of class-wise training losses, ICML 2023",
    (
        Block(
            "Table 1, CIFAR-10",
            _TEN,
            _POST_HOC,
            ("S", "F", *_of("cifar10")),
            """
            uncalibrated | CE | 5.50 4.51 4.75 4.11
            TS   | CE@TS      | 0.96 0.82 1.14 0.54
            ETS  | CE@EnsembleTemperatureScaling | 0.97 0.81 1.14 0.54
            PTS  | CE@ParameterizedTemperatureScaling  | 0.95 0.78 1.13 0.56
            CTS  | CE@ClassTemperatureScaling    | 1.01 0.84 1.31 0.75
            TS+LS  | CE@LS TemperatureScaling | 0.44 0.68 1.20 1.29
            ETS+LS | CE@LS EnsembleTemperatureScaling | 8.27 7.35 5.13 8.59
            PTS+LS | CE@LS ParameterizedTemperatureScaling | 8.73 7.76 5.42 9.03
            CTS+LS | CE@LS ClassTemperatureScaling | 1.21 1.13 0.63 0.52
            TS+FL  | CE@FL TemperatureScaling | 1.75 1.46 0.58 0.84
            ETS+FL | CE@FL EnsembleTemperatureScaling | 8.94 11.27 14.72 8.33
            PTS+FL | CE@FL ParameterizedTemperatureScaling | \
9.62 11.88 15.68 8.99
            CTS+FL | CE@FL ClassTemperatureScaling | 1.76 1.47 0.81 0.83
            TS, scaled  | CE@ND TemperatureScaling | 0.71 0.78 0.85 0.49
            ETS, scaled | CE@ND EnsembleTemperatureScaling | 0.71 0.76 0.86 0.47
            PTS, scaled | CE@ND ParameterizedTemperatureScaling | \
0.71 0.77 0.82 0.47
            CTS, scaled | CE@ND ClassTemperatureScaling | 0.74 0.44 1.04 0.61
            """,
            "LS and FL: the objective of the map is label smoothing (0.05) or "
            "focal loss (gamma 3).",
        ),
        Block(
            "Table 1, CIFAR-100",
            _TEN,
            _POST_HOC,
            _of("cifar100"),
            """
            uncalibrated | CE | 21.16 18.78 18.48 15.86
            TS   | CE@TS | 0.97 1.49 2.47 1.27
            ETS  | CE@EnsembleTemperatureScaling | 0.99 1.50 2.50 1.25
            PTS  | CE@ParameterizedTemperatureScaling | 0.90 1.47 2.38 1.21
            CTS  | CE@ClassTemperatureScaling | 0.99 1.61 2.50 1.15
            TS+LS  | CE@LS TemperatureScaling | 3.26 3.15 1.97 2.38
            ETS+LS | CE@LS EnsembleTemperatureScaling | 8.94 7.10 5.29 9.57
            PTS+LS | CE@LS ParameterizedTemperatureScaling | \
9.61 7.68 5.86 10.12
            CTS+LS | CE@LS ClassTemperatureScaling | 3.29 3.20 2.17 2.13
            TS+FL  | CE@FL TemperatureScaling | 3.45 3.20 1.67 2.30
            ETS+FL | CE@FL EnsembleTemperatureScaling | 11.07 9.36 10.46 10.52
            PTS+FL | CE@FL ParameterizedTemperatureScaling | \
11.91 10.12 11.10 11.07
            CTS+FL | CE@FL ClassTemperatureScaling | 3.87 3.94 1.75 1.15
            TS, scaled  | CE@ND TemperatureScaling | 0.81 1.23 1.84 1.18
            ETS, scaled | CE@ND EnsembleTemperatureScaling | 0.85 1.15 1.85 1.02
            PTS, scaled | CE@ND ParameterizedTemperatureScaling | \
0.80 1.18 1.88 1.05
            CTS, scaled | CE@ND ClassTemperatureScaling | 0.74 1.42 1.99 0.97
            """,
        ),
        Block(
            "Table 1, ImageNet",
            ("ResNet152", "DenseNet161"),
            _POST_HOC,
            ("imagenet-resnet152", "imagenet-densenet161"),
            """
            uncalibrated | CE | 6.54 5.72
            TS   | CE@TS | 2.07 1.96
            ETS  | CE@EnsembleTemperatureScaling | 2.06 1.96
            PTS  | CE@ParameterizedTemperatureScaling | 2.08 1.94
            CTS  | CE@ClassTemperatureScaling | 2.38 2.24
            TS+LS  | CE@LS TemperatureScaling | 6.75 6.55
            ETS+LS | CE@LS EnsembleTemperatureScaling | 8.19 7.84
            PTS+LS | CE@LS ParameterizedTemperatureScaling | 8.48 8.06
            CTS+LS | CE@LS ClassTemperatureScaling | 6.79 5.84
            TS+FL  | CE@FL TemperatureScaling | 4.70 4.73
            ETS+FL | CE@FL EnsembleTemperatureScaling | 7.59 7.78
            PTS+FL | CE@FL ParameterizedTemperatureScaling | 7.78 8.05
            CTS+FL | CE@FL ClassTemperatureScaling | 1.83 1.94
            TS, scaled | CE@ND TemperatureScaling | 2.01 1.93
            ETS, scaled | CE@ND EnsembleTemperatureScaling | 2.02 1.96
            PTS, scaled | CE@ND ParameterizedTemperatureScaling | 2.03 1.92
            CTS, scaled | CE@ND ClassTemperatureScaling | 1.68 1.60
            """,
            "The data were not at hand, so that it was not run. The paper's "
            "networks were trained by others.",
        ),
        Block(
            "Table 2, CIFAR10-LT",
            ("DenseNet40", "WRN-28", "ResNet110", "ResNet110SD"),
            _POST_HOC,
            ("LT", *_of("cifar10-lt")),
            """
            uncalibrated | CE | 21.08 9.11 19.14 14.43
            TS   | CE@TS                               | 6.16 4.47 5.94 6.84
            ETS  | CE@EnsembleTemperatureScaling | 6.15 4.46 5.93 6.84
            PTS  | CE@ParameterizedTemperatureScaling  | 6.10 4.43 5.90 6.76
            CTS  | CE@ClassTemperatureScaling    | 6.02 4.16 5.74 7.36
            TS+LS  | CE@LS TemperatureScaling | 8.16 2.24 8.99 2.90
            ETS+LS | CE@LS EnsembleTemperatureScaling | 0.74 1.54 1.49 1.63
            PTS+LS | CE@LS ParameterizedTemperatureScaling | 1.02 1.67 1.12 1.50
            CTS+LS | CE@LS ClassTemperatureScaling | 8.13 2.59 8.94 4.59
            TS+FL  | CE@FL TemperatureScaling | 7.24 1.68 8.45 4.33
            ETS+FL | CE@FL EnsembleTemperatureScaling | 9.57 11.69 9.51 9.85
            PTS+FL | CE@FL ParameterizedTemperatureScaling | \
10.52 12.42 10.20 10.24
            CTS+FL | CE@FL ClassTemperatureScaling | 9.82 1.35 10.58 2.60
            TS, scaled  | CE@scaled TemperatureScaling | 3.22 3.19 3.53 2.53
            ETS, scaled | CE@scaled EnsembleTemperatureScaling | \
3.08 3.17 3.40 2.39
            PTS, scaled | CE@scaled ParameterizedTemperatureScaling | \
3.13 3.16 3.47 2.40
            CTS, scaled | CE@scaled ClassTemperatureScaling | \
2.79 1.99 2.96 2.19
            TS, equation 3 (sums) | CE@scaled, sums TemperatureScaling | - - - -
            TS, classes balanced | CE@weights 1 / n_y TemperatureScaling | \
- - - -
            """,
            "The last two lines are not in the paper: scaling by the sums of "
            "its equation 3, and weights 1 / n_y without scaling. The test "
            "images are balanced and the calibration images are not, so that "
            "the second shows how much of the gain is balancing. TS+LS of the "
            "paper is from a fit that had not ended. The paper's images are "
            "those of ratio 10 (20,431), LT's of ratio 50: compare how the "
            "lines of a column differ.",
        ),
        Block(
            "Table 2, CIFAR100-LT",
            ("DenseNet40", "WRN-28", "ResNet110", "ResNet110SD"),
            _POST_HOC,
            _of("cifar100-lt"),
            """
            uncalibrated | CE | 38.40 9.11 41.98 30.32
            TS   | CE@TS | 8.89 9.62 8.46 4.81
            ETS  | CE@EnsembleTemperatureScaling | 8.85 9.60 8.38 4.76
            PTS  | CE@ParameterizedTemperatureScaling | 8.77 9.60 8.29 4.69
            CTS  | CE@ClassTemperatureScaling | 11.54 8.06 11.43 7.43
            TS+LS  | CE@LS TemperatureScaling | 12.37 7.43 15.02 5.85
            ETS+LS | CE@LS EnsembleTemperatureScaling | 4.40 6.89 4.64 1.74
            PTS+LS | CE@LS ParameterizedTemperatureScaling | 3.62 6.72 3.85 1.54
            CTS+LS | CE@LS ClassTemperatureScaling | 14.35 6.76 16.94 8.47
            TS+FL  | CE@FL TemperatureScaling | 10.01 6.04 12.91 2.31
            ETS+FL | CE@FL EnsembleTemperatureScaling | 0.96 6.15 1.24 3.56
            PTS+FL | CE@FL ParameterizedTemperatureScaling | 1.25 6.17 1.76 4.53
            CTS+FL | CE@FL ClassTemperatureScaling | 11.26 5.40 14.48 4.52
            TS, scaled  | CE@scaled TemperatureScaling | 4.44 6.99 4.50 1.48
            ETS, scaled | CE@scaled EnsembleTemperatureScaling | \
4.18 6.92 4.23 1.56
            PTS, scaled | CE@scaled ParameterizedTemperatureScaling | \
4.29 6.90 4.33 1.45
            CTS, scaled | CE@scaled ClassTemperatureScaling | \
3.44 5.56 3.85 1.50
            """,
        ),
        Block(
            "Table 3, normalizations, CIFAR-10",
            _TEN,
            _POST_HOC,
            ("S", "F", *_of("cifar10")),
            """
            TS, base | CE@TS | 0.96 0.82 1.14 0.54
            TS, ND   | CE@ND TemperatureScaling    | 0.71 0.78 0.85 0.49
            TS, CM   | CE@CM TemperatureScaling    | 0.86 0.78 1.03 0.53
            TS, MM   | CE@MM TemperatureScaling    | 0.91 0.79 1.03 0.54
            ETS, base | CE@EnsembleTemperatureScaling | 0.97 0.81 1.14 0.54
            ETS, ND  | CE@ND EnsembleTemperatureScaling | 0.71 0.76 0.86 0.47
            ETS, CM  | CE@CM EnsembleTemperatureScaling | 0.86 0.78 1.02 0.55
            ETS, MM  | CE@MM EnsembleTemperatureScaling | 0.87 0.77 1.02 0.53
            PTS, base | CE@ParameterizedTemperatureScaling | 0.95 0.78 1.13 0.56
            PTS, ND  | CE@ND ParameterizedTemperatureScaling | \
0.71 0.77 0.82 0.47
            PTS, CM  | CE@CM ParameterizedTemperatureScaling | \
0.85 0.79 1.02 0.55
            PTS, MM  | CE@MM ParameterizedTemperatureScaling | \
0.86 0.78 1.03 0.55
            CTS, base | CE@ClassTemperatureScaling | 1.01 0.84 1.31 0.75
            CTS, ND  | CE@ND ClassTemperatureScaling | 0.74 0.44 1.04 0.61
            CTS, CM  | CE@CM ClassTemperatureScaling | 0.85 0.74 1.11 0.57
            CTS, MM  | CE@MM ClassTemperatureScaling | 1.07 0.77 1.13 0.67
            """,
            "The columns of CIFAR-100 and ImageNet are left out.",
        ),
    ),
    "Ours are cross-entropy's rows: one network, and the maps at their "
    "defaults, which stay near temperature scaling. Accuracies are left out. "
    "Table 4 has settings.",
)

_SOFT = ("ACC", "ECE l2", "ECE l2+TS", "ECE l2+TS-SB-ECE")
SOFT_OBJECTIVES = Paper(
    "Karandikar et al., Soft calibration objectives, NeurIPS 2021",
    (
        Block(
            "Table 2, CIFAR-10",
            ("WRN-28-10",),
            _SOFT,
            ("S", "F", ("cifar10-wrn28-10", *GPU)),
            """
            NLL           | CE        | 95.5 5.59 1.95 1.16
            NLL+MMCE      | MMCE      | 95.0 1.55 1.09 1.45
            NLL+AvUC      | AvUC      | 95.5 5.27 2.39 1.30
            NLL+AvUC-GS   | AvUC-GS   | 95.6 4.94 2.07 1.31
            NLL+S-AvUC    | S-AvUC    | 95.4 5.87 2.24 1.20
            NLL+SB-ECE    | SB-ECE    | 95.4 5.84 2.28 1.27
            Focal         | FL        | 95.0 5.45 2.69 1.77
            Focal+MMCE    | FL+MMCE | 95.1 8.74 3.13 2.16
            Focal+AvUC    | FL+AvUC | 94.1 1.34 2.53 1.12
            Focal+AvUC-GS | FL+AvUC-GS | 95.2 1.39 2.30 1.46
            Focal+S-AvUC  | FL+S-AvUC | 94.4 1.58 1.34 1.05
            Focal+SB-ECE  | FL+SB-ECE | 95.1 1.19 2.08 1.38
            MSE           | Brier     | 95.0 6.58 5.33 4.43
            MSE, of logits | squared logit | - - - -
            MSE+MMCE      | Brier+MMCE | 95.1 2.82 3.23 2.34
            MSE+AvUC      | Brier+AvUC | 94.8 3.64 4.72 4.01
            MSE+AvUC-GS   | Brier+AvUC-GS | 94.8 5.44 5.56 5.20
            MSE+S-AvUC    | Brier+S-AvUC | 92.0 3.40 1.87 1.50
            MSE+SB-ECE    | Brier+SB-ECE | 95.1 4.37 5.08 4.26
            """,
            "The rows of S in which focal loss or MSE meets MMCE, AvUC or "
            "S-AvUC are those of `S-cross`. The paper does not define its "
            '"MSE"; the second line of it is Hui and Belkin\'s, on outputs '
            "without softmax.",
        ),
        Block(
            "Table 2, CIFAR-100; C has its 20 super-classes",
            ("WRN-28-10",),
            _SOFT,
            ("C", "cifar100-wrn28-10"),
            """
            NLL           | CE | 78.7 9.10 5.36 4.69
            NLL+MMCE      | MMCE | 77.2 4.77 4.06 4.11
            NLL+AvUC      | AvUC | 76.2 11.4 4.40 7.64
            NLL+AvUC-GS   | AvUC-GS | 78.3 6.21 8.36 5.40
            NLL+S-AvUC    | S-AvUC | 78.6 6.10 9.13 5.88
            NLL+SB-ECE    | SB-ECE | 77.7 6.86 3.18 3.51
            Focal         | FL | 78.3 4.66 6.47 4.84
            Focal+MMCE    | FL+MMCE | 77.3 5.07 3.58 2.82
            Focal+AvUC    | FL+AvUC | 77.7 5.68 5.87 3.93
            Focal+AvUC-GS | FL+AvUC-GS | 78.1 3.38 4.89 2.91
            Focal+S-AvUC  | FL+S-AvUC | 78.1 1.57 4.15 2.89
            Focal+SB-ECE  | FL+SB-ECE | 78.6 2.30 5.16 4.10
            MSE           | Brier | 77.9 4.17 5.22 4.79
            MSE+MMCE      | Brier+MMCE | 78.0 4.22 5.06 4.90
            MSE+AvUC      | Brier+AvUC | 77.6 4.27 5.29 4.42
            MSE+AvUC-GS   | Brier+AvUC-GS | 77.8 4.31 5.03 4.15
            MSE+S-AvUC    | Brier+S-AvUC | 77.6 3.69 4.60 4.26
            MSE+SB-ECE    | Brier+SB-ECE | 77.9 4.14 5.00 4.27
            """,
        ),
        Block(
            "Table 1c, ImageNet",
            ("ResNet-50",),
            ("ACC", "ECE l2", "ECE l2+TS"),
            ("imagenet-resnet50-sgd",),
            """
            NLL        | CE | 75.8 3.81 2.17
            NLL+MMCE   | MMCE | 75.2 3.12 2.18
            NLL+SB-ECE | SB-ECE | 74.7 3.11 1.92
            NLL+S-AvUC | S-AvUC | 75.6 2.26 2.02
            """,
            "The data were not at hand, so that it was not run.",
        ),
        Block(
            "Table 3, memorization, CIFAR-10",
            ("WRN-28-10",),
            ("Test ECE", "Train ECE", "ratio"),
            ("S", "F", ("cifar10-wrn28-10", *GPU)),
            """
            NLL   | CE    | 2.66 0.05 49.82
            Focal | FL    | 5.28 7.13 0.74
            MSE   | Brier | 6.53 9.82 0.66
            """,
            "Ours on at most 5,000 training images. Interleaved training: the "
            "table below.",
        ),
        Block(
            "Interleaved training, CIFAR-10",
            ("WRN-28-10",),
            ("ACC", "ECE l2", "Test ECE", "Train ECE"),
            ("S", "F"),
            """
            NLL                      | CE     | 95.5 5.59 2.66 0.05
            NLL+SB-ECE               | SB-ECE | 95.4 5.84 - -
            NLL+SB-ECE, interleaved  | SB-ECE, interleaved | - - - -
            Focal+SB-ECE, interleaved | FL+SB-ECE, interleaved | - - - -
            MSE+SB-ECE, interleaved  | Brier+SB-ECE, interleaved | - - - -
            NLL+MMCE, interleaved    | MMCE, interleaved | - - - -
            NLL+MDCA, interleaved    | MDCA, interleaved | - - - -
            """,
            "No table of the paper: it trains with NLL interleaved and does "
            "not print the rows apart.",
        ),
        Block(
            "Table 4b, other errors, CIFAR-10",
            ("WRN-28-10",),
            ("ACC", "ECE l2", "KS", "sweep"),
            ("S", "F", ("cifar10-wrn28-10", *GPU)),
            """
            NLL          | CE        | 95.5 5.59 2.64 4.78
            NLL+MMCE     | MMCE      | 95.0 1.55 0.83 1.30
            Focal        | FL        | 95.0 5.45 5.22 5.41
            Focal+SB-ECE | FL+SB-ECE | 95.1 1.19 0.41 0.77
            Focal+S-AvUC | FL+S-AvUC | 94.4 1.58 0.66 1.43
            """,
        ),
        Block(
            "Table 5, Dirichlet calibration, CIFAR-10",
            ("WRN-28-10",),
            ("ACC", "ECE l2", "ECE l2 w/ Dirichlet"),
            ("S", "F", ("cifar10-wrn28-10", *GPU)),
            """
            NLL          | CE        | 95.5 5.59 2.45
            NLL+MMCE     | MMCE      | 95.0 1.55 1.28
            Focal        | FL        | 95.0 5.45 2.48
            Focal+SB-ECE | FL+SB-ECE | 95.1 1.19 2.24
            Focal+S-AvUC | FL+S-AvUC | 94.4 1.58 1.70
            MSE          | Brier     | 95.0 6.58 4.69
            """,
            _DEFAULT_MAPS,
        ),
        Block(
            "Table 6b, marginal error, CIFAR-10",
            ("WRN-28-10",),
            ("ACC", "ECE l2", "marginal"),
            ("S", "F", ("cifar10-wrn28-10", *GPU)),
            """
            NLL          | CE        | 95.5 5.59 2.31
            NLL+MMCE     | MMCE      | 95.0 1.55 2.06
            Focal        | FL        | 95.0 5.45 5.64
            Focal+SB-ECE | FL+SB-ECE | 95.1 1.19 2.24
            Focal+S-AvUC | FL+S-AvUC | 94.4 1.58 1.65
            """,
        ),
    ),
    "ECE l2 is the root of the mean squared gap, 15 bins of equal mass. The "
    "paper's standard errors (0.03 to 0.2) are left out. Table 1 repeats lines "
    "of table 2; the rest of tables 2, 4 and 6 is of CIFAR-100 or ImageNet. "
    "Figures 2 and 7 to 9, on corrupted images: [networks of F](F_shift.md), "
    "where what figure 7 says is not seen.",
)

PAPERS = {
    "acls": ACLS,
    "mbls": MBLS,
    "diff_dml": DIFF_DML,
    "class_scaling": CLASS_SCALING,
    "soft_objectives": SOFT_OBJECTIVES,
}


def methods_of(paper, table):
    """Methods whose rows of one of our tables the page of a paper shows.

    Args:
        paper: key of `PAPERS`.
        table: key of `protocols.TABLES`.

    Returns:
        The names, in the order of the paper.
    """
    found = {}
    for block in PAPERS[paper].blocks:
        if any(table in group for group in block.groups()):
            found |= dict.fromkeys(method for _, method, *_ in block.lines())
    return [name for name in found if name]
