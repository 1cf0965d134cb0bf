"""`kc.check` finds what does not fit, and nothing where all fits."""

import keras
import numpy as np
import pytest
from keras import layers
from keras import ops

import keras_calib as kc
from tests.helpers import Pieces

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 5)).astype("float32")
Y = RNG.integers(0, 3, 40)
TOKENS = np.array([[1, 2, 3, 0], [4, 1, 0, 0]])
TAGS = np.array([[0, 1, 2, 9], [2, 1, 9, 9]])
SEVERAL = RNG.integers(0, 2, (40, 3)).astype("float32")
Sparse = keras.losses.SparseCategoricalCrossentropy


def network(activation=None, units=3, loss=None, metrics=None, **kwargs):
    model = keras.Sequential(
        [keras.Input((5,)), layers.Dense(units, activation, **kwargs)]
    )
    if loss is not None:
        model.compile("sgd", loss, metrics=metrics)
    return model


def tagger(*stages):
    model = keras.Sequential(
        [
            keras.Input((None,), dtype="int32"),
            layers.Embedding(5, 4, mask_zero=True),
            *stages,
            layers.Dense(3),
        ]
    )
    model.compile("sgd", Sparse(True))
    return model


class KnownEntries(keras.losses.Loss):
    """A loss of labels, which leaves out what is not known."""

    ignore_class = -1

    def call(self, y_true, y_pred):
        known = ops.cast(y_true != self.ignore_class, y_pred.dtype)
        return ops.mean(known * (y_pred - y_true) ** 2, axis=-1)


def known_hits(y_true, y_pred):
    return ops.where(y_true == 255, 1.0, 0.0)


FITS = {
    "softmax": lambda: (network("softmax", loss=Sparse()), X, Y),
    "string": lambda: (
        network("softmax", loss="sparse_categorical_crossentropy"),
        X,
        Y,
    ),
    "logits": lambda: (network(loss=kc.losses.ACLS(from_logits=True)), X, Y),
    "one-hot": lambda: (
        network("softmax", loss="categorical_crossentropy"),
        X,
        np.eye(3)[Y],
    ),
    "sigmoid": lambda: (
        network("sigmoid", 1, "binary_crossentropy", ["accuracy"]),
        X,
        Y > 0,
    ),
    "sigmoid, our loss and metric": lambda: (
        network(
            "sigmoid",
            1,
            "binary_crossentropy",
            [kc.metrics.ExpectedCalibrationError()],
        ),
        X,
        Y > 0,
    ),
    "not compiled": lambda: (network("softmax"), X, Y),
    "masked labels of any kind": lambda: (
        compiled(tagger(), kc.losses.FocalLoss(from_logits=True)),
        TOKENS,
        TAGS,
    ),
    "void": lambda: (
        network(loss=Sparse(True, ignore_class=255)),
        X,
        np.where(np.arange(40) % 4, Y, 255),
    ),
    "void that weighted accuracy leaves out": lambda: (
        compiled(
            network("softmax"),
            Sparse(ignore_class=255),
            weighted_metrics=["accuracy"],
        ),
        X,
        np.where(np.arange(40) % 4, Y, 255),
        (np.arange(40) % 4 > 0).astype("float32"),
    ),
    "void that an accuracy of one's own leaves out": lambda: (
        network(
            "softmax",
            loss=Sparse(ignore_class=255),
            metrics=[keras.metrics.MeanMetricWrapper(known_hits, "accuracy")],
        ),
        X,
        np.where(np.arange(40) % 4, Y, 255),
    ),
    "a softmax of features that are probabilities": lambda: (
        keras.Sequential([network("softmax", 4), layers.Dense(3, "softmax")]),
        X,
        Y,
    ),
    "weights": lambda: (
        network(loss=Sparse(True)),
        X,
        Y,
        RNG.uniform(size=(40, 1)),
    ),
    "multi-label": lambda: (
        network(
            "sigmoid",
            3,
            "binary_crossentropy",
            [kc.metrics.MultilabelCalibrationError()],
        ),
        X,
        SEVERAL,
    ),
    "multi-label logits": lambda: (
        network(
            None,
            3,
            keras.losses.BinaryCrossentropy(True),
            [kc.metrics.MultilabelCalibrationError(from_logits=True)],
        ),
        X,
        SEVERAL,
    ),
    "multi-label logits, by the loss": lambda: (
        network(None, 3, keras.losses.BinaryCrossentropy(True)),
        X,
        SEVERAL,
    ),
    "names of metrics": lambda: (
        network(
            "softmax",
            3,
            Sparse(),
            ["accuracy", "sparse_categorical_crossentropy", "crossentropy"],
        ),
        X,
        Y,
    ),
    "several sigmoids, unknown entries that are left out": lambda: (
        network(
            "sigmoid",
            3,
            KnownEntries(),
            [kc.metrics.MultilabelCalibrationError(ignore_class=-1)],
        ),
        X,
        np.where(X[:, :3] > 1, -1.0, SEVERAL),
    ),
    "precision of logits above 0": lambda: (
        network(
            None,
            1,
            keras.losses.BinaryCrossentropy(True),
            [keras.metrics.Precision(thresholds=0.0)],
        ),
        X,
        Y > 0,
    ),
    "precision of probabilities": lambda: (
        network(
            "sigmoid",
            1,
            keras.losses.BinaryCrossentropy(),
            [keras.metrics.Precision()],
        ),
        X,
        Y > 0,
    ),
    "one output without a loss": lambda: (
        without_loss(network("softmax")),
        X,
        Y,
    ),
    "subclassed, whose values show what the loss says": lambda: (
        compiled(Subclassed("softmax"), Sparse()),
        X,
        Y,
    ),
    "subclassed, logits": lambda: (
        compiled(Subclassed(), kc.losses.FocalLoss(from_logits=True)),
        X,
        Y,
    ),
    "one unit of logits": lambda: (
        network(None, 1, keras.losses.BinaryCrossentropy(True)),
        X,
        Y > 0,
    ),
}


def without_loss(model):
    model.compile("sgd", loss=[None])
    return model


@pytest.mark.parametrize("case", FITS)
def test_nothing_is_found_where_all_fits(case, capsys):
    assert kc.check(*FITS[case]()) == []
    assert capsys.readouterr().out == "Nothing found.\n"


class Subclassed(keras.Model):
    def __init__(self, activation=None, units=3):
        super().__init__()
        self.dense = layers.Dense(units, activation)

    def call(self, x):
        return self.dense(x)


class Broken(keras.Model):
    def call(self, x):
        raise RuntimeError("no such layer")


def pooled_without_mask():
    return tagger(layers.Conv1D(4, 1))


ECE = kc.metrics.ExpectedCalibrationError
FOUND = {
    "softmax, logits expected": (
        lambda: (network("softmax", loss=Sparse(True)), X, Y),
        "has `from_logits=True`, but the model gives probabilities",
    ),
    "softmax, our loss": (
        lambda: (
            network("softmax", loss=kc.losses.FocalLoss(from_logits=True)),
            X,
            Y,
        ),
        "FocalLoss has `from_logits=True`, but the model gives probabilities",
    ),
    "logits, string": (
        lambda: (network(loss="sparse_categorical_crossentropy"), X, Y),
        "`sparse_categorical_crossentropy` has `from_logits=False`, but",
    ),
    "metric": (
        lambda: (
            network("softmax", 3, Sparse(), [ECE(from_logits=True)]),
            X,
            Y,
        ),
        "the metric 'expected_calibration_error' has `from_logits=True`",
    ),
    "subclassed softmax, logits expected": (
        lambda: (compiled(Subclassed("softmax"), Sparse(True)), X, Y),
        "has `from_logits=True`, but the model gives probabilities",
    ),
    "one unit, logits expected": (
        lambda: (
            network("sigmoid", 1, keras.losses.BinaryCrossentropy(True)),
            X,
            Y > 0,
        ),
        "BinaryCrossentropy has `from_logits=True`",
    ),
    "several sigmoids": (
        lambda: (network("sigmoid", loss="binary_crossentropy"), X, Y),
        "Several sigmoid units are a multi-label model",
    ),
    "several sigmoids, a metric of classes": (
        lambda: (
            network("sigmoid", 3, "binary_crossentropy", [ECE()]),
            X,
            SEVERAL,
        ),
        "Several sigmoid units are a multi-label model",
    ),
    "several sigmoids, logits expected": (
        lambda: (
            network("sigmoid", 3, keras.losses.BinaryCrossentropy(True)),
            X,
            SEVERAL,
        ),
        "BinaryCrossentropy has `from_logits=True`",
    ),
    "several sigmoids, unknown labels": (
        lambda: (
            network("sigmoid", 3, "binary_crossentropy"),
            X,
            np.where(np.arange(40)[:, None] % 4, SEVERAL, -1),
        ),
        "0 or 1. Received: labels from -1 to 1",
    ),
    "a metric of Keras by name": (
        lambda: (
            network(
                loss=Sparse(True), metrics=["sparse_categorical_crossentropy"]
            ),
            X,
            Y,
        ),
        "'sparse_categorical_crossentropy' has `from_logits=False`",
    ),
    "accuracy of one unit of logits": (
        lambda: (
            network(
                None, 1, keras.losses.BinaryCrossentropy(True), ["accuracy"]
            ),
            X,
            Y > 0,
        ),
        "the metric 'accuracy' compares with 0.5",
    ),
    "labels from 1": (
        lambda: (network(loss=Sparse(True)), X, np.resize([1, 2, 3], 40)),
        "seem to start at 1",
    ),
    "labels from -1": (
        lambda: (network(loss=Sparse(True)), X, np.resize([-1, 0, 1], 40)),
        "seem to start at -1: shift them. Or, if -1 is no class",
    ),
    "softmax twice": (
        lambda: (
            keras.Sequential([network("softmax"), layers.Softmax()]),
            X,
            Y,
        ),
        "it is applied twice",
    ),
    "sigmoid of a sigmoid": (
        lambda: (
            keras.Sequential(
                [network("sigmoid", 1), layers.Activation("sigmoid")]
            ),
            X,
            Y > 0,
        ),
        "it is applied twice",
    ),
    "accuracy of void": (
        lambda: (
            network(
                "softmax",
                loss=Sparse(ignore_class=255),
                metrics=[keras.metrics.SparseCategoricalAccuracy("hits")],
            ),
            X,
            np.where(np.arange(40) % 4, Y, 255),
        ),
        "8 of 32 labels are none of the classes, and the metric 'hits' counts",
    ),
    "labels out of range": (
        lambda: (network(loss=Sparse(True)), X, Y * 10),
        "Labels must be the class ids 0 to 2",
    ),
    "labels that are not whole": (
        lambda: (network(loss=Sparse(True)), X, Y + 0.5),
        "Labels must be the class ids 0 to 2",
    ),
    "void": (
        lambda: (
            network(
                loss=Sparse(True, ignore_class=255),
                metrics=[ECE(from_logits=True)],
            ),
            X,
            np.where(np.arange(40) % 4, Y, 255),
        ),
        "`ignore_class=255` to the metric 'expected_calibration_error'.",
    ),
    "soft rows that do not sum": (
        lambda: (
            network("softmax", loss="categorical_crossentropy"),
            X,
            np.eye(3)[Y] * 2,
        ),
        "sum to one",
    ),
    "ids for rows": (
        lambda: (network("softmax", loss="categorical_crossentropy"), X, Y),
        "takes one-hot rows, and the labels are class ids",
    ),
    "rows for ids": (
        lambda: (network("softmax", loss=Sparse()), X, np.eye(3)[Y]),
        "takes class ids, and the labels are rows",
    ),
    "binary for classes": (
        lambda: (
            network("softmax", loss="binary_crossentropy"),
            X,
            np.eye(3)[Y],
        ),
        "takes each of the 3 classes as a label of its own",
    ),
    "one unit of softmax": (
        lambda: (network("softmax", 1, "binary_crossentropy"), X, Y > 0),
        "a softmax over a single unit",
    ),
    "sparse for one unit": (
        lambda: (network("sigmoid", 1, Sparse()), X, Y > 0),
        "is constant",
    ),
    "accuracy of logits": (
        lambda: (
            network(
                None,
                1,
                keras.losses.BinaryCrossentropy(True),
                [keras.metrics.BinaryAccuracy()],
            ),
            X,
            Y > 0,
        ),
        "`threshold=0.0`",
    ),
    "precision of logits": (
        lambda: (
            network(
                None,
                1,
                keras.losses.BinaryCrossentropy(True),
                [keras.metrics.Precision(), keras.metrics.Recall()],
            ),
            X,
            Y > 0,
        ),
        "compares with 0.5.*`thresholds=0.0`",
    ),
    "NaN": (
        lambda: (network(loss=Sparse(True)), X * np.nan, Y),
        "outputs are NaN or infinite",
    ),
    "shapes": (
        lambda: (network(loss=Sparse(True)), X, np.eye(4)[Y]),
        "Labels and predictions do not fit",
    ),
    "weights": (
        lambda: (network(loss=Sparse(True)), X, Y, np.full(40, -1.0)),
        "weights cannot be negative",
    ),
    "shape of weights": (
        lambda: (network(loss=Sparse(True)), X, Y, np.ones((40, 3))),
        "Sample weights do not fit",
    ),
    "weights of zero": (
        lambda: (network(loss=Sparse(True)), X, Y, np.zeros(40)),
        "All weights are 0",
    ),
    "unknown": (
        lambda: (Subclassed(), X, Y),
        "a subclassed model has no graph",
    ),
    "unknown unit": (
        lambda: (
            compiled(Subclassed("sigmoid", 1), "binary_crossentropy"),
            X,
            Y > 0,
        ),
        "a subclassed model has no graph.*may be either",
    ),
    "unknown, several values in [0, 1]": (
        lambda: (
            compiled(
                Subclassed("sigmoid"), kc.losses.FocalLoss(from_logits=True)
            ),
            X,
            Y,
        ),
        "a subclassed model has no graph.*or several sigmoid units",
    ),
    "unknown layer": (
        lambda: (
            keras.Sequential(
                [
                    keras.Input((5,)),
                    layers.Dense(3),
                    layers.Lambda(lambda t: ops.softmax(t)),
                ]
            ),
            X,
            Y,
        ),
        "is not one that proves it",
    ),
    "logits that are probabilities": (
        lambda: (of_thirds(network()), X, Y),
        "ends as if it gave logits, but its outputs, from 0.333333 to 0.333333,"
        " are probabilities",
    ),
    "one number for each sample": (
        lambda: (
            keras.Sequential(
                [keras.Input((5,)), layers.Dense(1), layers.Reshape(())]
            ),
            X,
            Y,
        ),
        "labels are 2, which is none of the classes 0 to 1",
    ),
    "labels in words": (
        lambda: (network("softmax"), X, np.array(["cat"] * 40)),
        "numbers",
    ),
    "several sigmoids, labels in words": (
        lambda: (
            network("sigmoid", 3, "binary_crossentropy"),
            X,
            SEVERAL.astype(str),
        ),
        "numbers",
    ),
    "lost mask": (
        lambda: (pooled_without_mask(), TOKENS, np.minimum(TAGS, 2)),
        "A layer makes a mask, and the outputs have none",
    ),
    "all masked": (
        lambda: (tagger(), TOKENS * 0, TAGS),
        "mask is false everywhere",
    ),
    "cannot run": (lambda: (Broken(), X, Y), "cannot run.*no such layer"),
    "wrong width of input": (
        lambda: (network(), X[:, :3], Y),
        "The model cannot run on the batch",
    ),
    "several outputs": (
        lambda: (two_outputs(), X, Y),
        "a model with one output",
    ),
    "infinite loss": (
        lambda: (compiled(network(), infinite), X, Y),
        "`infinite` is NaN or infinite on the batch",
    ),
    "loss that fails": (
        lambda: (compiled(network(), fails), X, Y),
        "`fails` fails on the batch: a shape",
    ),
}


def compiled(model, loss, **options):
    model.compile("sgd", loss, **options)
    return model


def of_thirds(model):
    model.set_weights([np.zeros((5, 3)), np.full(3, 1 / 3)])
    return model


def infinite(y_true, y_pred):
    return ops.mean(y_pred, axis=-1) * np.inf


def fails(y_true, y_pred):
    raise ValueError("a shape")


def two_outputs():
    inputs = keras.Input((5,))
    return keras.Model(inputs, [layers.Dense(3)(inputs)] * 2)


@pytest.mark.parametrize("case", FOUND)
def test_what_does_not_fit_is_found(case, capsys):
    make, message = FOUND[case]
    findings = kc.check(*make())
    matching = [one for one in findings if message in one]
    if ".*" in message:
        before, after = message.split(".*")
        matching = [one for one in findings if before in one and after in one]
    assert matching, findings
    printed = capsys.readouterr().out
    assert all(f"- {one}\n" in printed for one in findings)


@pytest.mark.parametrize("loss", [Sparse, kc.losses.FocalLoss])
def test_a_wrong_from_logits_is_the_only_finding(loss):
    model = network("softmax", loss=loss(from_logits=True))
    (finding,) = kc.check(model, X, Y)
    assert finding.endswith("pass `from_logits=False`.")


def test_crl_is_at_home_in_a_model_with_a_history():
    model = kc.models.SampleHistoryModel(network("softmax"), num_samples=40)
    model.compile("sgd", kc.losses.CRL())
    assert kc.check(model, X, Y) == kc.check(model, kc.add_sample_index(X), Y)
    assert kc.check(model, X, Y) == []
    alone = network("softmax", loss=kc.losses.CRL())
    (finding,) = kc.check(alone, X, Y)
    assert "needs the history of each sample" in finding


def test_parts_of_a_loss_are_looked_at():
    parts = kc.losses.DCA(from_logits=True).component_metrics()
    model = network("softmax", loss=Sparse(), metrics=parts)
    assert [one.split(" has ")[0] for one in kc.check(model, X, Y)] == [
        "the metric 'primary_loss'",
        "the metric 'penalty'",
    ]


def test_datasets_and_generators_give_their_first_batch():
    model = network("softmax", loss=Sparse(True))
    taken = []

    def pairs():
        while True:
            taken.append(0)
            yield X, Y

    for source in (Pieces(X, Y), pairs(), [(X, Y, np.ones(40))]):
        assert len(kc.check(model, source)) == 1
    assert len(taken) == 1


def test_nothing_is_changed():
    model = network("softmax", loss=Sparse(), metrics=["accuracy"])
    before = [np.array(ops.convert_to_numpy(w)) for w in model.weights]
    kc.check(model, X, Y)
    for weight, old in zip(model.weights, before, strict=True):
        np.testing.assert_array_equal(ops.convert_to_numpy(weight), old)
    history = model.fit(X, Y, epochs=1, verbose=0).history
    assert set(history) == {"accuracy", "loss"}


def test_bad_arguments():
    with pytest.raises(ValueError, match="must be a Keras model"):
        kc.check(layers.Dense(3), X, Y)
    with pytest.raises(ValueError, match="no batch"):
        kc.check(network(), [])
    with pytest.raises(ValueError, match="same length"):
        kc.check(network(), X, Y[:3])


@pytest.mark.parametrize(
    "loss",
    [
        pytest.param(
            Sparse,
            marks=pytest.mark.backends(
                "torch", reason="elsewhere Keras takes the last axis only"
            ),
        ),
        kc.losses.FocalLoss,
        keras.losses.CategoricalCrossentropy,
    ],
)
def test_channels_first(loss):
    x = RNG.normal(size=(2, 3, 4, 4)).astype("float32")
    y = RNG.integers(0, 3, (2, 4, 4))
    if loss is keras.losses.CategoricalCrossentropy:
        y = np.moveaxis(np.eye(3)[y], -1, 1)
    model = keras.Sequential([keras.Input((3, 4, 4)), layers.Softmax(axis=1)])
    model.compile("sgd", loss(axis=1))
    assert kc.check(model, x, y) == []
    model.compile("sgd", loss(axis=1, from_logits=True))
    findings = kc.check(model, x, y)
    assert len(findings) == 1 and "gives probabilities" in findings[0]


@pytest.mark.parametrize("loss", [Sparse, kc.losses.FocalLoss])
def test_a_softmax_over_another_axis_than_that_of_the_labels(loss):
    inputs = keras.Input((4, 3))
    model = keras.Model(inputs, layers.Softmax(axis=1)(inputs))
    model.compile("sgd", loss())
    x = RNG.normal(size=(8, 4, 3)).astype("float32")
    (finding,) = kc.check(model, x, RNG.integers(0, 3, (8, 4)))
    assert "classes on axis 1" in finding and "on axis -1" in finding
