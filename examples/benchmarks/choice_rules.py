"""Rules by which `method="auto"` could weigh its maps, on the same fits.

Each candidate of `method="auto"` is fitted once to n samples and to folds of
them. A rule makes weights from the likelihoods that were held out. Measured on
other samples: the mixture with these weights, and the map with the largest.

    python examples/benchmarks/choice_rules.py run RESULTS.jsonl [--data fresh]
    python examples/benchmarks/choice_rules.py show RESULTS.jsonl

`run` appends a line for each draw of n samples and skips those that are there.
Rules were chosen on `development` data: the three files and the made tables of
`no_harm.py`, and made texts and imbalanced tables, which show the same fault
(few samples, and the spline is best). `fresh` data was opened after that;
`--logits FILE.npz ...` adds files with `test_logits` and `test_labels` to it.
"""

import argparse
import collections
import json
import os
import pathlib

import no_harm
import numpy as np

from keras_calib.calibration import _choose
from keras_calib.calibration._fit import Options
from keras_calib.calibration._guard import PRIOR
from keras_calib.calibration._guard import PRIOR_OF_EVIDENCE
from keras_calib.calibration._guard import evidence_of_temperature
from keras_calib.calibration._held_out import adapt
from keras_calib.calibration._held_out import folds
from keras_calib.calibration._methods import as_map
from keras_calib.inputs.calibration_rows import CalibrationRows

SIZES = (50, 100, 200)
MOST = 5000


def made_texts(folder):
    """Linear models of TF-IDF vectors of made documents."""
    from sklearn.feature_extraction.text import TfidfTransformer
    from sklearn.linear_model import SGDClassifier

    for classes, spread, seed in ((20, 0.5, 31), (10, 0.35, 32), (30, 0.6, 33)):
        rng = np.random.default_rng(seed)
        common = 1 / np.arange(1, 3001)
        topics = common * np.exp(spread * rng.normal(size=(classes, 3000)))
        topics /= topics.sum(axis=1, keepdims=True)
        labels = rng.integers(0, classes, 12_000)
        lengths = rng.lognormal(4.0, 0.8, 12_000).astype(int) + 5
        counts = np.stack(
            [
                rng.multinomial(length, topics[label])
                for length, label in zip(lengths, labels, strict=True)
            ]
        )
        train, held_out = slice(0, 2000), slice(2000, None)
        vectors = TfidfTransformer(sublinear_tf=True)
        model = SGDClassifier(loss="modified_huber", random_state=0)
        model.fit(vectors.fit_transform(counts[train]), labels[train])
        scores = model.decision_function(vectors.transform(counts[held_out]))
        yield (
            f"dev-text-{classes}",
            (4 * scores).astype("float32"),
            labels[held_out],
        )


def imbalanced_tables(folder):
    """Networks of scikit-learn on other imbalanced tables."""
    kinds = ((2, [0.9], 41), (2, [0.8], 42), (2, [0.95], 43))
    for classes, weights, seed in kinds:
        data = no_harm._made(classes, seed, weights=weights)
        name = f"dev-table-{classes}-imbalanced-{seed}"
        yield name, *no_harm._of_network(*data, seed=seed)


DEVELOPMENT = (
    *(no_harm.predictions, no_harm.development_tables),
    *(made_texts, imbalanced_tables),
)


def fresh(folder):
    """Other models of scikit-learn's data sets and of 20 Newsgroups."""
    from sklearn import datasets
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.naive_bayes import GaussianNB

    kinds = {
        "digits-forest": (datasets.load_digits, RandomForestClassifier(50)),
        "digits-bayes": (datasets.load_digits, GaussianNB()),
        "cancer-bayes": (datasets.load_breast_cancer, GaussianNB()),
    }
    for name, (load, model) in kinds.items():
        x, labels = load(return_X_y=True)
        order = np.random.default_rng(5).permutation(len(labels))
        train, held_out = np.split(order, [len(order) // 5])
        if hasattr(model, "random_state"):
            model.random_state = 0
        p = model.fit(x[train], labels[train]).predict_proba(x[held_out])
        yield name, np.log(np.maximum(p, 1e-6)), labels[held_out]
    yield from newsgroups(folder)


def newsgroups(folder):
    """Logistic regression and naive Bayes with few words, 20 Newsgroups."""
    import lzma

    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.naive_bayes import MultinomialNB

    with lzma.open(folder / "20newsgroups.jsonl.xz", "rt") as lines:
        rows = [json.loads(line) for line in lines]
    names = sorted({row["group"] for row in rows})
    texts, labels = collections.defaultdict(list), collections.defaultdict(list)
    for row in rows:
        texts[row["split"]].append(row["text"])
        labels[row["split"]].append(names.index(row["group"]))
    vectors = TfidfVectorizer(max_features=2000, sublinear_tf=True)
    x = vectors.fit_transform(texts["train"])
    test, y = vectors.transform(texts["test"]), np.array(labels["test"])
    order = np.random.default_rng(7).permutation(len(y))
    models = {
        "newsgroups-logistic": LogisticRegression(C=20, max_iter=300),
        "newsgroups-bayes": MultinomialNB(alpha=0.01),
    }
    for name, model in models.items():
        model.fit(x, labels["train"])
        p = model.predict_proba(test)
        yield name, np.log(np.maximum(p, 1e-12))[order], y[order]


def sources(arguments):
    """Name, logits and labels of each file."""
    folder = pathlib.Path(os.environ["KERAS_CALIB_DATA"])
    if arguments.data == "development":
        for source in DEVELOPMENT:
            yield from source(folder)
        return
    for file in map(pathlib.Path, arguments.logits):
        with np.load(file) as arrays:
            logits = arrays["test_logits"].astype("float32")
            name = f"{file.parent.name}-{file.stem}"
            yield name, logits, arrays["test_labels"].astype("int32")
    yield from fresh(folder)


def log_p_of(layer, logits, labels):
    """Log-probabilities of the labels by a fitted map."""
    return layer.log_q_of_labels(logits, labels, np.arange(len(labels)))
