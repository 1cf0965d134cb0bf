"""Kinds of runs: what a protocol fixes, with its defaults.

A protocol has data, network and schedule; all of its fields are written into
each row of the results.
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

    # What other families of runs set. These are no fields here, so that rows
    # of this family keep the settings that they were stored with.
    kind = "images"
    optimizer = "sgd"
    schedule = "cosine"
    per_epoch = None
    ignore_class = None
    predict_batch = 1000
    nesterov = True
    streamed = None


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
class NoisyLabels(Protocol):
    """Labels by hand, with errors, on the images that train (CIFAR-N).

    Validation, calibration and test have the right ones.

    Attributes:
        labels: name in `cifar_n_labels.npz`.
    """

    kind: str = "noisy_labels"
    labels: str = "cifar10_aggre_label"


@dataclasses.dataclass(frozen=True)
class Development(Protocol):
    """Every part is cut from the training images; no test image is read.

    For rules that are chosen before they are tried on the test images.

    Attributes:
        first: row of the first image of each part, in the order train,
            validation, calibration, test; a part reaches to the next.
        test: how many images report.
    """

    kind: str = "development"
    held_out: int = 0
    first: tuple = (10000, 20000, 22500, 30000)
    test: int | None = 10000


@dataclasses.dataclass(frozen=True)
class LongTailed(Protocol):
    """Training, validation and calibration with a tail; a balanced test.

    Attributes:
        head: images of the largest class at most, in the three parts
            together; of CIFAR-10 they are 4,932, because one class has no more
            exact images.
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
    width: int | None = 12
    epochs: int = 40
    batch_size: int = 8
    ignore_class: int = 255
    predict_batch: int = 32


@dataclasses.dataclass(frozen=True)
class FullSize(Protocol):
    """A paper's own data, network and schedule, for a GPU.

    Attributes:
        schedule: `"steps"`, at each of `decays` the rate is multiplied by
            `factor`; or `"cosine"`, as in `Protocol`.
        decays: epochs.
        nesterov: kind of momentum.
        optimizer: `"sgd"`, `"adam"` or `"adamw"`.
    """

    held_out: int = 5000
    network: str = "resnet50"
    auxiliary: str = "resnet18"
    warmup: float = 0.0
    schedule: str = "steps"
    decays: tuple = ()
    factor: float = 0.1
    nesterov: bool = False
    optimizer: str = "sgd"
    shift: int = 4
    train: int | None = None
    dtype: str = "mixed_bfloat16"


@dataclasses.dataclass(frozen=True)
class EachClass(FullSize):
    """Of each class, the last images are held out.

    For data sets whose images lie class by class.
    """

    kind: str = "each_class"


@dataclasses.dataclass(frozen=True)
class FullSizeTail(FullSize):
    """`LongTailed` with a paper's network and schedule.

    Ratio 10 gives the number of images that the paper prints, where all images
    are exact; half of them train there, half calibrate.
    """

    kind: str = "long_tailed"
    held_out: int = 0
    head: int = 5000
    ratio: float = 10.0
    shares: tuple = (0.45, 0.05, 0.5)


@dataclasses.dataclass(frozen=True)
class Streamed(FullSize):
    """Images that are read while the network trains.

    Attributes:
        streamed: name for `kc.datasets.stream`.
        image_size: side of the images.
        classes: number of classes.
        validation: share of the official training images that is held out:
            the first half validates, the second calibrates.
        pixel_step: of segmentation, of which pixels logits are kept: every
            so many in both directions.
    """

    kind: str = "streamed"
    held_out: int = 0
    shift: int = 0
    streamed: str = "imagenet2012"
    image_size: int = 224
    classes: int = 1000
    validation: float = 0.1
    pixel_step: int = 1
    predict_batch: int = 64


@dataclasses.dataclass(frozen=True)
class StreamedPixels(Streamed):
    """`Streamed` with a label for each pixel."""

    kind: str = "streamed_pixels"
    ignore_class: int = 255
