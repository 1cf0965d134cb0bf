"""Which networks of other libraries work with which part of this one.

Small members of `keras.applications`, KerasCV and KerasHub with random weights
(nothing is downloaded), and the published ResNet-20 and ResNet-56 for CIFAR-10,
if `KERAS_CALIB_DATA` names a folder with their weights. For each:

- fit: two steps with `MDCA` and a streaming ECE, both finite;
- losses, metrics: each of this library, on what the network gives, is finite
  (without CRL, which needs a history of samples; without those of two classes
  or several labels; `SquaredLogitLoss` where there are logits);
- calibrate: `kc.calibrate`, whose predictions are probabilities;
- file: the calibrated model, saved and loaded, predicts the same to 1e-6;
- Diff-DML: two steps of `kc.models.DiffDML` with a second such network.

    KERAS_BACKEND=jax nice python examples/benchmarks/compatibility.py
    python examples/benchmarks/compatibility.py --bodies MobileNet

Prints Markdown: `works`, or the first sentence of the error.
`examples/results/compatibility.md` has runs on three backends.
"""

import argparse
import datetime
import gc
import importlib.util
import os
import pathlib
import platform
import tempfile
import warnings

import keras
import numpy as np

import keras_calib as kc

SIDE, CLASSES, SAMPLES, BATCH = 32, 4, 16, 8
WORDS, LENGTH = 30, 8
NETWORKS = pathlib.Path(__file__).parents[1] / "papers" / "networks.py"
APPLICATIONS = {
    "MobileNet": {"alpha": 0.25},
    "MobileNetV2": {"alpha": 0.35},
    "MobileNetV3Small": {"minimalistic": True},
    "EfficientNetV2B0": {},
    "DenseNet121": {},
    "ResNet50V2": {},
}
PUBLISHED = {"ResNet-20": "resnet20", "ResNet-56": "resnet56"}
# A KerasHub ResNet of one block.
SMALL_RESNET = {
    "input_conv_filters": [64],
    "input_conv_kernel_sizes": [3],
    "stackwise_num_filters": [64, 64, 64, 64],
    "stackwise_num_blocks": [1, 1, 1, 1],
    "stackwise_num_strides": [1, 2, 2, 2],
    "block_type": "basic_block",
    "image_shape": (SIDE, SIDE, 3),
}
SMALL_TRANSFORMER = {
    "vocabulary_size": WORDS,
    "num_layers": 1,
    "num_heads": 2,
    "hidden_dim": 16,
    "intermediate_dim": 16,
    "max_sequence_length": LENGTH,
}


# Bases, and what needs the history of its samples.
NO_LOSSES = {"ClassificationLoss", "PenalizedLoss", "CRL"}
# A base, and those of two classes or of several labels.
NO_METRICS = {
    "CalibrationMetric",
    "BinaryCalibrationError",
    "MultilabelCalibrationError",
}


class Body:
    """A kind of network, and data for it.

    Args:
        make: function without arguments that returns a network.
        kind: `"images"`, `"pixels"` (a class for each) or `"tokens"`.
        from_logits: whether the network returns logits.
        classes: int.
    """

    def __init__(self, make, kind="images", *, from_logits, classes=CLASSES):
        self.make = make
        self.kind = kind
        self.from_logits = from_logits
        self.classes = classes

    def data(self):
        """Inputs and labels."""
        rng = np.random.default_rng(0)
        shape = (SAMPLES, SIDE, SIDE)
        labels = rng.integers(0, self.classes, SAMPLES)
        if self.kind == "tokens":
            tokens = rng.integers(1, WORDS, (SAMPLES, LENGTH)).astype("int32")
            x = {"token_ids": tokens, "padding_mask": np.ones_like(tokens)}
            return {**x, "segment_ids": np.zeros_like(tokens)}, labels
        if self.kind == "pixels":
            labels = rng.integers(0, self.classes, shape)
        images = rng.integers(0, 256, (*shape, 3))
        whole = self.kind == "uint8 images"
        return images.astype("uint8" if whole else "float32"), labels


def application(name):
    """A network of `keras.applications`."""

    def make():
        return getattr(keras.applications, name)(
            weights=None,
            classes=CLASSES,
            input_shape=(SIDE, SIDE, 3),
            **APPLICATIONS[name],
        )

    return Body(make, from_logits=False)


def published(name):
    """A published network, with its weights."""
    folder = pathlib.Path(os.environ["KERAS_CALIB_DATA"])
    spec = importlib.util.spec_from_file_location("networks", NETWORKS)
    networks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(networks)

    def make():
        inputs = keras.layers.Normalization(
            mean=networks.PUBLISHED_MEAN,
            variance=[each**2 for each in networks.PUBLISHED_DEVIATION],
        )
        path = folder / f"{PUBLISHED[name]}_cifar10_weights.npz"
        return networks.published(path, inputs=inputs)

    return Body(make, "uint8 images", from_logits=True, classes=10)


def keras_cv(name):
    """A network of KerasCV."""
    import keras_cv

    models = keras_cv.models

    def resnet():
        return models.ResNetBackbone(
            stackwise_filters=[16, 16, 16, 16],
            stackwise_blocks=[1, 1, 1, 1],
            stackwise_strides=[1, 2, 2, 2],
            include_rescaling=True,
            input_shape=(SIDE, SIDE, 3),
        )

    if name == "classifier":
        return Body(
            lambda: models.ImageClassifier(resnet(), num_classes=CLASSES),
            from_logits=False,
        )
    return Body(
        lambda: models.DeepLabV3Plus(resnet(), num_classes=CLASSES),
        "pixels",
        from_logits=False,
    )


def keras_hub(name):
    """A network of KerasHub, without a preprocessor."""
    import keras_hub

    models = keras_hub.models

    def image_classifier():
        return models.ResNetImageClassifier(
            models.ResNetBackbone(**SMALL_RESNET), num_classes=CLASSES
        )

    def vision_transformer():
        backbone = models.ViTBackbone(
            image_shape=(SIDE, SIDE, 3),
            patch_size=8,
            num_layers=1,
            num_heads=2,
            hidden_dim=16,
            mlp_dim=16,
        )
        return models.ViTImageClassifier(backbone, num_classes=CLASSES)

    def text_classifier():
        return models.BertTextClassifier(
            models.BertBackbone(**SMALL_TRANSFORMER),
            num_classes=CLASSES,
            activation="softmax",
        )

    def segmenter():
        backbone = models.DeepLabV3Backbone(
            image_encoder=models.ResNetBackbone(**SMALL_RESNET),
            spatial_pyramid_pooling_key="P4",
            low_level_feature_key="P2",
            upsampling_size=4,
            dilation_rates=[2, 3],
            image_shape=(SIDE, SIDE, 3),
        )
        return models.DeepLabV3ImageSegmenter(
            backbone, num_classes=CLASSES, activation="softmax"
        )

    makers = {
        "ResNet": (image_classifier, "images", True),
        "ViT": (vision_transformer, "images", True),
        "BERT": (text_classifier, "tokens", False),
        "DeepLabV3": (segmenter, "pixels", False),
    }
    make, kind, from_logits = makers[name]
    return Body(make, kind, from_logits=from_logits)


# By name: a function that returns the body, which imports what it needs.
BODIES = {
    **{name: (application, name) for name in APPLICATIONS},
    **{f"{name}, published": (published, name) for name in PUBLISHED},
    "KerasCV ImageClassifier": (keras_cv, "classifier"),
    "KerasCV DeepLabV3Plus": (keras_cv, "segmenter"),
    "KerasHub ResNet": (keras_hub, "ResNet"),
    "KerasHub ViT": (keras_hub, "ViT"),
    "KerasHub BERT": (keras_hub, "BERT"),
    "KerasHub DeepLabV3": (keras_hub, "DeepLabV3"),
}


def fit(body, model, x, y):
    """Two steps with a loss and a metric of this library."""
    logits = {"from_logits": body.from_logits}
    model.compile(
        keras.optimizers.SGD(1e-3),
        kc.losses.MDCA(**logits),
        metrics=[kc.metrics.ExpectedCalibrationError(name="ece", **logits)],
        jit_compile=keras.backend.backend() == "jax",
    )
    history = model.fit(x, y, batch_size=BATCH, verbose=0).history
    for name in ("loss", "ece"):
        if not np.isfinite(history[name][0]):
            raise ValueError(f"{name} is {history[name][0]}.")


def classes_of(module, base, left_out):
    """The public classes of a package that derive from a base, by name."""
    for name in module.__all__:
        kind = getattr(module, name)
        if isinstance(kind, type) and issubclass(kind, base):
            if name not in left_out:
                yield name, kind


def check_finite(found):
    """Raise, with the names of what is not."""
    wrong = [name for name, value in found.items() if not np.isfinite(value)]
    if wrong:
        raise ValueError(f"not finite: {', '.join(wrong)}")


def losses(body, scores, y):
    """Every loss of what the network gives."""
    found = {}
    for name, kind in classes_of(kc.losses, keras.Loss, NO_LOSSES):
        more = {}
        if not body.from_logits:
            # Probabilities do not tell where a logit of zero was.
            if name == "SquaredLogitLoss":
                continue
            if name == "ACLS":
                more["reference"] = "min"
        loss = kind(from_logits=body.from_logits, **more)
        found[name] = float(loss(y, scores))
    check_finite(found)


def metrics(body, scores, y):
    """Every metric of what the network gives."""
    found = {}
    for name, kind in classes_of(kc.metrics, keras.Metric, NO_METRICS):
        more = {}
        if name == "ClasswiseCalibrationError":
            more["num_classes"] = body.classes
        metric = kind(from_logits=body.from_logits, **more)
        metric.update_state(y, scores)
        found[name] = np.mean(keras.ops.convert_to_numpy(metric.result()))
    check_finite(found)


def calibrate(body, model, x, y):
    """The calibrated model, whose predictions are probabilities."""
    calibrated = kc.calibrate(
        model, x, y, guard=False, verbose=0, from_logits=body.from_logits
    )
    sums = calibrated.predict(x, verbose=0).sum(axis=-1)
    np.testing.assert_allclose(sums, 1.0, atol=1e-5)
    return calibrated


def file(calibrated, x):
    """The same predictions after the model was saved and loaded."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "model.keras"
        calibrated.save(path)
        again = keras.saving.load_model(path, safe_mode=True)
        np.testing.assert_allclose(
            again.predict(x, verbose=0),
            calibrated.predict(x, verbose=0),
            atol=1e-6,
        )


def diff_dml(body, model, x, y):
    """Two steps with a second network."""
    pair = kc.models.DiffDML(
        model, body.make(), label_warmup=1, from_logits=body.from_logits
    )
    pair.compile(
        keras.optimizers.SGD(1e-3),
        keras.losses.SparseCategoricalCrossentropy(
            from_logits=body.from_logits
        ),
        jit_compile=keras.backend.backend() == "jax",
    )
    history = pair.fit(x, y, batch_size=BATCH, verbose=0).history
    if not np.isfinite(history["loss"][0]):
        raise ValueError(f"The loss is {history['loss'][0]}.")


def outcome(function, *arguments):
    """What a function returned, and `works`; or `None`, and why not."""
    try:
        return function(*arguments), "works"
    except Exception as error:
        sentence = str(error).strip().split("\n")[0].split(". ")[0]
        return None, f"{type(error).__name__}: {sentence}".replace("|", "/")


def row(name):
    """The outcome of each part for a body."""
    keras.utils.set_random_seed(0)
    find, which = BODIES[name]
    body, message = outcome(find, which)
    model = None
    if body is not None:
        model, message = outcome(body.make)
    if model is None:
        return [f"not built, {message}", *["-"] * 5]
    x, y = body.data()
    found = [outcome(fit, body, model, x, y)[1]]
    scores = model.predict(x, verbose=0)
    found += [outcome(part, body, scores, y)[1] for part in (losses, metrics)]
    calibrated, message = outcome(calibrate, body, model, x, y)
    found += [message, "-"]
    if calibrated is not None:
        found[-1] = outcome(file, calibrated, x)[1]
    return [*found, outcome(diff_dml, body, model, x, y)[1]]


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bodies", nargs="*", choices=BODIES)
    given = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    print(
        f"## {keras.backend.backend()}\n\n{platform.machine()}, Keras "
        f"{keras.__version__}, {datetime.date.today()}.\n\n"
        "| network | fit | losses | metrics | calibrate | file | Diff-DML |\n"
        "|---|---|---|---|---|---|---|"
    )
    for name in given.bodies or BODIES:
        if name.endswith("published") and "KERAS_CALIB_DATA" not in os.environ:
            continue
        print(f"| {name} | {' | '.join(row(name))} |", flush=True)
        keras.backend.clear_session()
        gc.collect()


if __name__ == "__main__":
    main()
