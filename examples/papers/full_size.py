"""The papers' own data sets, networks and schedules, each for one GPU.

Names are those of data and network: `run.py tiny-resnet50`. Where a paper does
not print a setting, a comment says what stands for it. Held-out images come
from the training part, as in `protocols`.
"""

from kinds import EachClass
from kinds import FullSize
from kinds import FullSizeTail
from kinds import Streamed
from kinds import StreamedPixels

# Margin-based label smoothing, appendix B; ACLS, section 4.1. Diff-DML's
# supplement prints no schedule: theirs. Mixed precision is ours.
CIFAR = {"epochs": 350, "decays": (150, 250)}
TINY = {"epochs": 100, "decays": (40, 60), "batch_size": 64}
PROTOCOLS = {
    f"{data}-{network}": FullSize(data=data, network=network, **CIFAR)
    for data, network in (
        ("cifar10", "resnet34"),
        ("cifar10", "resnet50"),
        ("cifar10", "resnet101"),
        ("cifar100", "resnet34"),
        ("cifar100", "resnet50"),
    )
}
PROTOCOLS |= {
    f"tiny-{network}": EachClass(
        data="tiny_imagenet", network=network, held_out=10000, **TINY
    )
    for network in ("resnet34", "resnet50", "resnet101")
}
# A transformer that begins at random, instead of the paper's, which was
# trained on other images before; the schedule is ours.
_TRANSFORMER = {
    "network": "vit",
    "epochs": 200,
    "optimizer": "adam",
    "learning_rate": 1e-3,
    "weight_decay": 0.0,
    "schedule": "cosine",
    "warmup": 0.05,
}
PROTOCOLS["cifar10-vit"] = FullSize(data="cifar10", **_TRANSFORMER)
PROTOCOLS["tiny-vit"] = EachClass(
    data="tiny_imagenet", held_out=10000, **_TRANSFORMER
)
# Soft calibration objectives, section 5.1 and appendix G: 200 epochs, rate 0.1,
# batches of 512. The steps, which it does not print, and the decay of the
# weights, which it tunes, are those of Zagoruyko and Komodakis. Weights and
# temperatures of the penalties are those of `methods`.
_WIDE = {
    "network": "wrn28-10",
    "epochs": 200,
    "decays": (60, 120, 160),
    "factor": 0.2,
    "batch_size": 512,
}
PROTOCOLS |= {
    f"{data}-wrn28-10": FullSize(data=data, **_WIDE)
    for data in ("cifar10", "cifar100")
}
# Class-wise scaling, table 4: rate and decay of each network, for tails; the
# balanced data have the same here. The steps are those of He et al. On balanced
# data the paper fits to 25,000 images; here to half of `held_out`. Its "WRN-32"
# of balanced data is WRN-28-10 here, with the schedule above.
_RATES = {
    "densenet40": (0.01, 1e-4),
    "wrn28-10": (0.1, 5e-4),
    "resnet110": (0.1, 1e-4),
    "resnet110sd": (0.04, 1e-4),
}
_RATES_100 = {**_RATES, "resnet110sd": (0.05, 1e-3)}
for _data, _rates, _head in (
    ("cifar10", _RATES, 5000),
    ("cifar100", _RATES_100, 500),
):
    for _network, (_rate, _decay) in _rates.items():
        _settings = {
            "data": _data,
            "network": _network,
            "learning_rate": _rate,
            "weight_decay": _decay,
            "epochs": 200,
            "decays": (100, 150),
        }
        if _network != "wrn28-10":  # balanced, that is above
            PROTOCOLS[f"{_data}-{_network}"] = FullSize(**_settings)
        PROTOCOLS[f"{_data}-lt-{_network}"] = FullSizeTail(
            head=_head, **_settings
        )
# ImageNet: ACLS, section 4.1, with AdamW; soft calibration objectives, section
# 5.1 and appendix G, with SGD for 90 epochs, whose steps and decay it does not
# print: those of Goyal et al.
_IMAGENET = {"network": "resnet50, 7 x 7 stem"}
PROTOCOLS["imagenet-resnet50"] = Streamed(
    epochs=200,
    batch_size=256,
    optimizer="adamw",
    learning_rate=5e-4,
    weight_decay=5e-2,
    schedule="cosine",
    **_IMAGENET,
)
PROTOCOLS["imagenet-resnet50-sgd"] = Streamed(
    epochs=90,
    batch_size=512,
    decays=(30, 60, 80),
    weight_decay=1e-4,
    **_IMAGENET,
)
# Class-wise scaling, section 5.1: networks that others trained. Their papers
# have steps, decay and batches of these (He et al., Huang et al.).
PROTOCOLS |= {
    f"imagenet-{network}": Streamed(
        network=f"{network}, 7 x 7 stem",
        epochs=90,
        batch_size=256,
        decays=(30, 60),
        weight_decay=1e-4,
    )
    for network in ("resnet152", "densenet161")
}
# Margin-based label smoothing, appendix B. There both networks were trained on
# ImageNet before; here they begin at random. There nothing is held out of the
# training images; here a tenth. There birds are crops of 224 of 256 pixels;
# here of 8 to 100 % of the area. There brightness and contrast of VOC's images
# change at random; here they do not.
PROTOCOLS["cub-resnet101"] = Streamed(
    streamed="cub",
    classes=200,
    network="resnet101, 7 x 7 stem",
    epochs=200,
    decays=(80, 160),
    batch_size=16,
)
PROTOCOLS["voc-deeplab"] = StreamedPixels(
    streamed="voc2012",
    classes=21,
    image_size=512,
    pixel_step=8,
    network="deeplab",
    epochs=100,
    decays=(40, 80),
    learning_rate=0.01,
    batch_size=8,
    predict_batch=8,
)
