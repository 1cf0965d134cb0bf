"""Rules by which `method="auto"` could weigh its maps, on the same fits.

Each candidate of `method="auto"` is fitted once to n samples and to folds of
them. A rule makes weights from the likelihoods that were held out. Measured on
other samples: the mixture with these weights, and the map with the largest.

    python examples/benchmarks/choice_rules.py run RESULTS.jsonl [--data later]
    python examples/benchmarks/choice_rules.py show RESULTS.jsonl

`run` appends a line for each draw of n samples and skips those that are there.
Rules were chosen on `development` data: the three files and the made tables of
`no_harm.py`, and made texts and imbalanced tables, which show the same fault
(few samples, and the spline is best). `fresh` data was opened after that;
`--logits FILE.npz ...` adds files with `test_logits` and `test_labels` to it.
Rules with the average over temperatures were chosen on both, and `later` data
was opened after that. `networks` are the files of `--logits` alone: those of
protocol `S-development` of `examples/papers` and `development` data decided
about the structured matrix with more samples. `--peers` also fits probmetrics'
structured vector and matrix scaling.
"""

import collections
import json
import os
import pathlib
import warnings

import no_harm
import numpy as np
import stored_rows
from argument_types import positive_int

import keras_calib as kc
from keras_calib.calibration import _choose
from keras_calib.calibration import _few_samples
from keras_calib.calibration._fit import Options
from keras_calib.calibration._guard import PRIOR
from keras_calib.calibration._guard import PRIOR_OF_EVIDENCE
from keras_calib.calibration._guard import evidence_of_temperature
from keras_calib.calibration._held_out import adapt
from keras_calib.calibration._held_out import folds
from keras_calib.calibration._methods import as_map
from keras_calib.inputs.calibration_rows import CalibrationRows
from keras_calib.layers import VectorScaling
from keras_calib.solvers.shrinkage import log_mixture

SIZES = (50, 100, 200)
MOST = 5000
# Of the maps that the mixture is compared with, the names of `kc.calibrate`.
MIXED = (
    *("no_calibration", "temperature", "spline", "matrix"),
    *("order_preserving", "parameterized_temperature"),
)


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
    *(imbalanced_tables, no_harm.development_tables),
    *(made_texts, no_harm.predictions),
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
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.naive_bayes import MultinomialNB

    texts, labels = texts_of_newsgroups(folder)
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


def texts_of_newsgroups(folder):
    """Texts and class ids of `"train"` and `"test"`."""
    import lzma

    with lzma.open(folder / "20newsgroups.jsonl.xz", "rt") as lines:
        rows = [json.loads(line) for line in lines]
    names = sorted({row["group"] for row in rows})
    texts, labels = collections.defaultdict(list), collections.defaultdict(list)
    for row in rows:
        texts[row["split"]].append(row["text"])
        labels[row["split"]].append(names.index(row["group"]))
    return texts, labels


def later(folder):
    """What was opened last: other models, shapes and features."""
    yield from _of_scikit_learn()
    yield from _clear_tables()
    yield from _letters_of_newsgroups(folder)
    yield from _pixels()


def _of_scikit_learn():
    from sklearn import datasets
    from sklearn.ensemble import GradientBoostingClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.neighbors import KNeighborsClassifier
    from sklearn.svm import SVC

    digits, cancer = datasets.load_digits, datasets.load_breast_cancer
    boosted = GradientBoostingClassifier(n_estimators=30, random_state=0)
    kinds = {
        "digits-boosted": (digits, boosted),
        "digits-neighbors": (digits, KNeighborsClassifier(10)),
        "digits-svm": (digits, SVC()),
        "cancer-logistic": (cancer, LogisticRegression(C=1e4, max_iter=500)),
        "cancer-boosted": (cancer, boosted),
    }
    for name, (load, model) in kinds.items():
        x, labels = load(return_X_y=True)
        x = (x - x.mean(axis=0)) / (x.std(axis=0) + 1e-6)
        order = np.random.default_rng(6).permutation(len(labels))
        train, held_out = np.split(order, [len(order) // 5])
        model.fit(x[train], labels[train])
        if name == "digits-svm":
            scores = 2 * model.decision_function(x[held_out])
        else:
            p = model.predict_proba(x[held_out])
            scores = np.log(np.maximum(p, 1e-4))
        yield name, scores.astype("float32"), labels[held_out]


def _clear_tables():
    """Made tables without random labels, which favor a uniform part."""
    kinds = (
        (2, dict(weights=[0.85], class_sep=0.6), (32,)),
        (3, dict(class_sep=0.5), (64, 32)),
        (8, dict(weights=[0.4, 0.2, 0.1, *[0.06] * 4], class_sep=0.8), (48,)),
        (40, dict(n_informative=14), (96,)),
    )
    for seed, (classes, options, widths) in enumerate(kinds, 51):
        options = {"flip_y": 0.0, **options}
        data = no_harm._made(classes, seed, **options)
        name = f"clear-table-{classes}"
        yield name, *no_harm._of_network(*data, widths, seed)


def _letters_of_newsgroups(folder):
    """A linear model and nearest neighbors, of sequences of letters."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.neighbors import KNeighborsClassifier
    from sklearn.svm import LinearSVC

    texts, labels = texts_of_newsgroups(folder)
    vectors = TfidfVectorizer(
        analyzer="char_wb",
        ngram_range=(3, 4),
        max_features=20_000,
        sublinear_tf=True,
    )
    x = vectors.fit_transform(text[:2000] for text in texts["train"])
    test = vectors.transform(text[:2000] for text in texts["test"])
    y = np.array(labels["test"])
    order = np.random.default_rng(8).permutation(len(y))
    model = LinearSVC(C=0.5).fit(x, labels["train"])
    scores = (4 * model.decision_function(test)).astype("float32")
    yield "newsgroups-letters", scores[order], y[order]
    model = KNeighborsClassifier(15, metric="cosine", weights="distance")
    p = model.fit(x, labels["train"]).predict_proba(test[order])
    yield "newsgroups-neighbors", np.log(np.maximum(p, 1e-3)), y[order]


def _pixels():
    """Small models of CIFAR, on its test images."""
    from sklearn.decomposition import PCA
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.neural_network import MLPClassifier

    network = MLPClassifier((256,), max_iter=15, random_state=0)
    kinds = (
        ("cifar10-network", "cifar10", network, 20_000),
        ("cifar10-forest", "cifar10", RandomForestClassifier(60), 10_000),
        ("cifar100-logistic", "cifar100", LogisticRegression(), 10_000),
    )
    for name, data, model, count in kinds:
        (x, y), _, (test, labels) = kc.datasets.load(data, validation=0)
        x, test = (a.reshape(len(a), -1) / 255.0 for a in (x[:count], test))
        reduce = PCA(80, whiten=True, random_state=0).fit(x)
        if hasattr(model, "random_state"):
            model.random_state = 0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.fit(reduce.transform(x), y[:count].reshape(-1))
        p = np.maximum(model.predict_proba(reduce.transform(test)), 1e-4)
        yield name, np.log(p).astype("float32"), labels.reshape(-1)


def sources(arguments):
    """Name, logits and labels of each file."""
    folder = pathlib.Path(os.environ["KERAS_CALIB_DATA"])
    if arguments.data == "development":
        for source in DEVELOPMENT:
            yield from source(folder)
        return
    if arguments.data == "later":
        yield from later(folder)
        return
    for file in map(pathlib.Path, arguments.logits):
        with np.load(file) as arrays:
            logits = arrays["test_logits"].astype("float32")
            name = f"{file.parent.name}-{file.stem}"
            yield name, logits, arrays["test_labels"].astype("int32")
    if arguments.data == "fresh":
        yield from fresh(folder)


RULES = {
    **{f"one, power {p}": ("one", p) for p in (1.0, 0.7, 0.5, 0.4, 0.3)},
    "mixture, bootstrap": ("bootstrap", 1.0),
    **{f"mixture, {a:.0f} samples": ("mixture", a) for a in (4, 6, 8, 12)},
    "one, averaged, power 0.4": ("one averaged", 0.4),
    "one, averaged, nearest": ("nearest", 0.4),
    "mixture, averaged": ("bootstrap averaged", 1.0),
    "mixture, averaged, power 0.4": ("bootstrap averaged", 0.4),
    # Of more than 200 samples: the log odds of a structured matrix, or none.
    **{
        f"{kind}, structured matrix {odds}": (f"{kind} structured", odds)
        for kind in ("one", "mixture")
        for odds in ("none", 0, -1, -2, -3)
    },
}
STRUCTURED = "structured_matrix"
AVERAGED = _choose.AVERAGED
# The mixture of temperature scaling and the uniform distribution with which
# probmetrics' structured maps begin.
SMOOTHED = "smoothed temperature"
SVS, UNSMOOTHED = "probmetrics SVS", "probmetrics SVS, not smoothed"


def fits(rows, rest, peers):
    """What is known of each map, by its name.

    Returns:
        losses: held-out losses of the candidates.
        after: losses of `rest`, also of maps that are no candidates.
        fitted: maps that were fitted to all rows, and warnings.
    """
    options, losses, after, fitted = Options(), {}, {}, {}
    fold = folds(rows, _choose.NUM_FOLDS, options.seed)
    for name in _choose._candidates(rows.logits, options):
        if _choose._reason_to_skip(name, rows, options):
            continue
        try:
            losses[name] = _choose._losses(name, rows, fold, options, fitted)
        except (ArithmeticError, ValueError):
            continue
        if name == _choose.UNCHANGED:
            after[name] = _choose.losses_of_model(rest)
            continue
        if name not in fitted:
            layer = as_map(name)
            adapt(layer, rows)
            fitted[name] = layer, []
        after[name] = _losses_of(fitted[name][0], rest)
    gain = evidence_of_temperature(rows) / len(rows.labels)
    losses[_choose.UNCHANGED] = losses["temperature"] + gain
    n, num_classes = len(rows.labels), rows.logits.shape[1]
    after[SMOOTHED] = -log_mixture(
        -after["temperature"], -np.log(num_classes), 1 / (n + 1)
    )
    layer = VectorScaling()
    adapt(layer, rows)
    after["vector"] = _losses_of(layer, rest)
    if peers:
        for name in (SVS, "probmetrics SMS"):
            after[name] = _losses_of_peer(name, rows, rest)
        with unsmoothed():
            after[UNSMOOTHED] = _losses_of_peer(SVS, rows, rest)
    return losses, after, fitted


def _losses_of_peer(name, rows, rest):
    scores = no_harm.fitted(name, False, rows.logits, rows.labels)
    return no_harm.losses(scores(rest.logits), rest.labels)


def unsmoothed():
    """Let probmetrics' structured maps begin with temperature scaling alone."""
    from unittest import mock

    from probmetrics.calibrators import factory
    from probmetrics.calibrators import temperature_scaling

    plain = temperature_scaling.TemperatureScalingCalibrator
    return mock.patch.object(factory, "get_calibrator", lambda name: plain())


def _losses_of(layer, rest):
    every = np.arange(len(rest.labels))
    return -layer.log_q_of_labels(rest.logits, rest.labels, every)


def mixture_weights(losses, log_odds, pseudo):
    """The weights of the mixture that is most probable by held-out labels.

        maximize  sum_n log(sum_m w_m exp(-loss_mn)) + sum_m a_m log w_m

    over the simplex, by expectation and maximization. `a` are `pseudo` samples,
    shared by the prior odds: the prior is Dirichlet(1 + a).
    """
    names = [name for name, loss in losses.items() if np.isfinite(loss).all()]
    table = np.stack([losses[name] for name in names], axis=1)
    p = np.exp(table.min(axis=1, keepdims=True) - table)
    prior = np.exp([log_odds.get(name, 0.0) for name in names])
    prior *= pseudo / prior.sum()
    weights = prior / pseudo
    for _ in range(1000):
        before = weights
        weights = prior + before * ((1 / (p @ before)) @ p)
        weights /= len(p) + pseudo
        if np.abs(weights - before).max() < 1e-6:
            break
    return dict(zip(names, weights, strict=True))


def nll_of_rule(rule, losses, after, fitted, rows):
    """Mean NLL of `rest` by what a rule returns."""
    kind, number = RULES[rule]
    if kind.endswith("structured"):
        return nll_with_odds(kind, number, losses, after, rows)
    kind, averaged, _ = kind.partition(" averaged")
    odds = {_choose.UNCHANGED: -PRIOR_OF_EVIDENCE}
    if averaged or kind == "nearest":
        if AVERAGED in losses:
            odds["temperature"] = -np.inf
    else:
        losses = {n: loss for n, loss in losses.items() if n != AVERAGED}
    if kind == "mixture":
        weights = mixture_weights(losses, odds, number)
    else:
        if kind in ("one", "nearest"):
            odds[STRUCTURED] = -PRIOR
        weights = _choose.bootstrap_weights(losses, rows, odds, 0, number)
    if kind in ("one", "nearest"):
        expected = {}
        if kind == "nearest":
            q = _few_samples.probabilities_of_maps(
                weights, rows, Options(), fitted, {name: {} for name in weights}
            )
            expected = _few_samples.expected_losses(weights, rows, q)
        return nll_of_one(weights, losses, after, expected)
    return nll_of_mixture(weights, after)


def nll_of_one(weights, losses, after, expected):
    order = dict.fromkeys(losses)
    name = _choose.Choice(weights, order, {}, expected).best
    return float(after[name].mean())


def nll_of_mixture(weights, after):
    kept = {n: w for n, w in weights.items() if w >= _choose.LEAST_WEIGHT}
    total = sum(kept.values())
    p = sum(w / total * np.exp(-after[name]) for name, w in kept.items())
    return float(-np.log(np.maximum(p, 1e-300)).mean())


def nll_with_odds(kind, odds, losses, after, rows):
    """`nll_of_rule` by the likelihoods as they are, with or without a map."""
    losses = {n: loss for n, loss in losses.items() if n != AVERAGED}
    log_odds = {_choose.UNCHANGED: -PRIOR_OF_EVIDENCE}
    if odds == "none":
        losses.pop(STRUCTURED, None)
    else:
        log_odds[STRUCTURED] = odds
    weights = _choose.bootstrap_weights(losses, rows, log_odds, 0, 1.0)
    if kind.startswith("mixture"):
        return nll_of_mixture(weights, after)
    return nll_of_one(weights, losses, after, {})


def run(arguments):
    arguments.results.touch()
    rows = stored_rows.read(arguments.results)
    done = {(row["file"], row["n"], row["draw"]) for row in rows}
    for file, logits, labels in sources(arguments):
        labels = labels.astype("int32")
        half = len(labels) // 2
        rest = slice(half, half + MOST)
        rest = logits[rest], labels[rest], None, len(labels[rest])
        for n in (n for n in arguments.sizes if n <= half):
            for draw in range(arguments.draws):
                if (file, n, draw) in done:
                    continue
                chosen = np.random.default_rng([n, draw]).permutation(half)[:n]
                data = CalibrationRows(logits[chosen], labels[chosen], None, n)
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    part = CalibrationRows(*rest)
                    found = fits(data, part, arguments.peers)
                    nll = {r: nll_of_rule(r, *found, data) for r in RULES}
                row = {"file": file, "n": n, "draw": draw}
                maps = {k: float(v.mean()) for k, v in found[1].items()}
                for key, values in (("maps", maps), ("rules", nll)):
                    row[key] = {k: round(v, 6) for k, v in values.items()}
                stored_rows.append(arguments.results, row)


def show(arguments):
    rows = stored_rows.read(arguments.results)
    if arguments.also:
        for path in arguments.also:
            rows += stored_rows.read(path)
        print_sizes(rows)
        return
    for few in (True, False):
        part = [r for r in rows if (r["n"] <= _choose.FEW_SAMPLES) == few]
        if part:
            print_rules(part, "at most" if few else "more than")
            print_peers(part)
        if part and not few:
            print_structured(part)


def cells_of(rows):
    """The draws of each file and size."""
    cells = collections.defaultdict(list)
    for row in rows:
        cells[row["file"], row["n"]].append(row)
    return cells


def nll_behind(rule, draws, n):
    """Mean NLL of a rule minus that of the best map.

    The structured matrix is one of them with more than 200 samples, where rows
    have it: with fewer it was a candidate from the first rules on.
    """
    means = means_of(draws)
    names = MIXED if n <= _choose.FEW_SAMPLES else (*MIXED, STRUCTURED)
    best = min(means[name] for name in names if name in means)
    return np.mean([row["rules"][rule] for row in draws]) - best


def print_sizes(rows):
    """With and without the structured matrix, by the number of samples."""
    cells = cells_of(rows)
    none, few = "structured matrix none", _choose.NOISY_SAMPLES
    head = ("samples", "cells", "one map, without", "with")
    print(f"| {' | '.join((*head, 'mixture, without', 'with'))} |")
    print("|---|---|---|---|---|---|")
    for size in sorted({n for _, n in cells}):
        part = [draws for (_, n), draws in cells.items() if n == size]
        noisy = size <= few
        rules = (
            f"one, {none}",
            "one, power 0.4" if noisy else "one, power 1.0",
            f"mixture, {none}",
            "mixture, averaged, power 0.4" if noisy else "mixture, bootstrap",
        )
        text = []
        for rule in rules:
            behind = [nll_behind(rule, draws, size) for draws in part]
            text.append(f"{np.mean(behind):+.4f}, {max(behind):+.4f}")
        print(f"| {size:,} | {len(part)} | {' | '.join(text)} |")


def print_structured(rows):
    """The structured matrix beside the default one, by size."""
    found = collections.defaultdict(dict)
    for (file, n), draws in cells_of(rows).items():
        means = means_of(draws)
        if STRUCTURED in means and "matrix" in means:
            found[n][file] = means[STRUCTURED] - means["matrix"]
    if not found:
        return
    print(
        "\n| samples | files | structured matrix ahead | by up to | behind by |"
    )
    print("|---|---|---|---|---|")
    for n, values in sorted(found.items()):
        least, most = min(values.values()), max(values.values())
        ahead = sum(value < 0 for value in values.values())
        print(
            f"| {n:,} | {len(values)} | {ahead} | {-least:.4f} | {most:.4f} |"
        )


def print_rules(rows, how_many):
    """Behind the best map, and above the limit against temperature scaling."""
    cells = cells_of(rows)
    print(f"\n{how_many} {_choose.FEW_SAMPLES} samples: {len(cells)} cells\n")
    print(
        "| rule | minus temperature scaling | behind the best map | at worst "
        "| in | outside |"
    )
    print("|---|---|---|---|---|---|")
    for rule in rows[0]["rules"]:
        behind, above, outside = {}, [], 0
        for (file, n), draws in cells.items():
            nll = np.mean([row["rules"][rule] for row in draws])
            behind[file, n] = nll_behind(rule, draws, n)
            above.append(nll - means_of(draws)["temperature"])
            outside += above[-1] > (0.002 if n >= 200 else 0.01)
        worst = max(behind, key=behind.get)
        print(
            f"| {rule} | {np.mean(above):+.4f} "
            f"| {np.mean([*behind.values()]):+.4f} "
            f"| {behind[worst]:+.4f} | {worst[0]}, {worst[1]} | {outside} |"
        )


def means_of(draws):
    """Mean NLL of the maps that all draws have."""
    shared = set.intersection(*(set(row["maps"]) for row in draws))
    return {m: np.mean([row["maps"][m] for row in draws]) for m in shared}


def print_peers(rows):
    """Single maps, and rules, against temperature scaling and SVS."""
    cells = cells_of(rows)
    names = (AVERAGED, SMOOTHED, "vector", "spline", SVS, UNSMOOTHED)
    rules = tuple(rows[0]["rules"])
    compared = {
        "temperature": names,
        SVS: (AVERAGED, SMOOTHED, "vector", *rules),
        UNSMOOTHED: ("vector",),
    }
    for base, names in compared.items():
        found = {name: {} for name in names}
        for cell, draws in cells.items():
            means = means_of(draws)
            for rule in rules:
                means[rule] = np.mean([row["rules"][rule] for row in draws])
            for name in names:
                if name in means and base in means:
                    found[name][cell] = means[name] - means[base]
        if not any(found.values()):
            continue
        print(f"\n| NLL minus that of {base} | mean | most | in |")
        print("|---|---|---|---|")
        for name, values in found.items():
            if values:
                most = max(values, key=values.get)
                print(
                    f"| {name} | {np.mean([*values.values()]):+.4f} "
                    f"| {values[most]:+.4f} | {most[0]}, {most[1]} |"
                )


def main():
    parser, command, shown = stored_rows.run_and_show(__doc__, run, show)
    stored_rows.add_also(shown, "by size")
    command.add_argument(
        "--data",
        default="development",
        choices=("development", "fresh", "later", "networks"),
    )
    command.add_argument("--logits", nargs="*", default=[])
    command.add_argument("--sizes", nargs="*", type=positive_int, default=SIZES)
    command.add_argument("--draws", type=positive_int, default=5)
    command.add_argument("--peers", action="store_true")
    arguments = parser.parse_args()
    arguments.function(arguments)


if __name__ == "__main__":
    main()
