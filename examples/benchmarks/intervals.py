"""How often an interval of `calibration_errors` holds the true value.

Sets of 400 predictions of one overconfident model of 5 classes, or of 2 where a
statistic is of an event, whose true probabilities are known: rows that are
independent, with weights, and in clusters of equal rows.
The true value of a statistic is that of 400,000 predictions. In a table, the
part of the sets whose interval holds it, which is meant to be 95 %, with
percentile intervals and with the default, `interval="auto"`.

    KERAS_BACKEND=torch python examples/benchmarks/intervals.py [--store]

With `--only` a few statistics are counted, in less time. With `--calibrated`
instead, in which part of sets of a calibrated model the interval of a part of
`refinement=True` is above 0: meant are at most 5 % of what a temperature takes
off, and 2.5 % of bounds. With `--sparse` instead, the same part of the default
intervals where bins or errors are few: of classwise errors of 10 and 30 classes
of an overconfident model, and of means of a calibrated model of 2 classes that
is nearly always right.
"""

import argparse
import collections
import datetime
import functools
import platform

import cost_rows
import numpy as np

import keras_calib as kc

ROWS, MANY, SETS, RESAMPLES, CLASSES = 400, 400_000, 200, 300, 5
STATISTICS = (
    "negative_log_likelihood",
    "brier_score",
    "accuracy",
    "expected_calibration_error",
    "expected_calibration_error_l2",
    "maximum_calibration_error",
    "overconfidence_error",
    "adaptive_calibration_error",
    "sweep_calibration_error",
    "label_binned_calibration_error",
    "smooth_calibration_error",
    "ks_calibration_error",
    "kernel_calibration_error",
    "classwise_calibration_error",
    "classwise_calibration_error_l2",
    "classwise_adaptive_calibration_error",
    "marginal_calibration_error",
    "thresholded_adaptive_calibration_error",
    "debiased_calibration_error",
    "debiased_calibration_error_l1",
    "debiased_marginal_calibration_error",
)
# Of `refinement=True`; all keys of it are found, some are shown.
PARTS = (
    "refinement_loss",
    "calibration_loss",
    "brier_calibration_loss",
    "calibration_error_lower_bound",
    "isotonic_calibration_error_lower_bound",
    "calibration_error_l2_lower_bound",
)
# Of the second of two classes.
EVENTS = (
    "binary_calibration_error",
    "integrated_calibration_index",
    "e50",
    "e90",
    "emax",
    "calibration_slope",
    "calibration_intercept",
)
KINDS = ("percentile", "auto")
# What is 0 of a calibrated model, and the sizes of the sets.
ABOVE_ZERO, SIZES, CALIBRATED_SETS = PARTS[1:], (200, 1000, 5000), 1000
# Of many classes: how many, the size of the sets, and the temperature and the
# standard deviation of the logits.
SPARSE = (10, 300, 2.5, 6.0), (30, 500, 2.0, 5.0)
SPARSE_SETS, FEW_SETS = 100, 1000
OF_CLASSES = (
    "classwise_calibration_error",
    "classwise_adaptive_calibration_error",
)
FEW_ERRORS = 100, 300, 1000
OF_ROWS = "accuracy", "confidence_gap", "brier_score", "negative_log_likelihood"


def independent(rng, n, num_classes, temperature=1.5, spread=2):
    """Labels, probabilities and the other arguments of `n` predictions."""
    logits = spread * rng.normal(size=(n, num_classes))
    labels = (logits / temperature + rng.gumbel(size=logits.shape)).argmax(
        axis=1
    )
    e = np.exp(logits - logits.max(axis=1, keepdims=True))
    return labels, e / e.sum(axis=1, keepdims=True), {}


def weighted(rng, n, num_classes):
    labels, p, _ = independent(rng, n, num_classes)
    return labels, p, {"sample_weight": rng.exponential(size=n)}


def clustered(rng, n, num_classes):
    """Each prediction and its label up to four times, 1 to 4 alike."""
    labels, p, _ = independent(rng, n, num_classes)
    ids = np.repeat(np.arange(n), rng.integers(1, 5, n))[:n]
    return labels[ids], p[ids], {"clusters": ids}


def nearly_right(rng, n):
    """Predictions of two classes of which 1 % are wrong, as they say."""
    logit = np.maximum(5 + rng.normal(size=n), 0.1)
    wrong = 1 / (1 + np.exp(logit))
    labels = (rng.random(n) < wrong).astype(int)
    return labels, np.stack([1 - wrong, wrong], axis=1), {}


FORMS = {
    "independent": independent,
    "weighted": weighted,
    "clusters of equal rows": clustered,
}


def errors(data, names, **options):
    labels, p, more = data
    found = kc.metrics.calibration_errors(
        labels,
        p,
        metrics=[name for name in names if name not in PARTS],
        refinement=not set(names).isdisjoint(PARTS),
        verbose=0,
        **more,
        **options,
    )
    return {name: found[name] for name in names}


def coverage(form, true, num_classes):
    """The part of the sets that hold the true value, by kind and statistic."""
    rng = np.random.default_rng(0)
    held = collections.Counter()
    for _ in range(SETS):
        data = FORMS[form](rng, ROWS, num_classes)
        for kind in KINDS:
            found = errors(data, true, num_resamples=RESAMPLES, interval=kind)
            for name, value in found.items():
                held[kind, name] += value.low <= true[name] <= value.high
    return {key: number / SETS for key, number in held.items()}


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--only",
        nargs="+",
        choices=[*STATISTICS, *PARTS, *EVENTS],
        metavar="STATISTIC",
    )
    parser.add_argument("--calibrated", action="store_true")
    parser.add_argument("--sparse", action="store_true")
    cost_rows.add_option(parser)
    arguments = parser.parse_args(arguments)
    print(f"{platform.machine()}, {datetime.date.today()}\n")
    if arguments.calibrated:
        show_calibrated(arguments.store)
        return
    if arguments.sparse:
        show_sparse(arguments.store)
        return
    print(
        f"{SETS} sets of {ROWS} predictions, {RESAMPLES} resamples\n\n"
        "| statistic | rows | percentile | auto |\n|---|---|---|---|"
    )
    wanted = arguments.only or [*STATISTICS, *PARTS, *EVENTS]
    for num_classes in CLASSES, 2:
        names = [n for n in wanted if (n in EVENTS) == (num_classes == 2)]
        if names:
            show(names, num_classes, arguments.store)


def show(names, num_classes, store):
    """Count for statistics of models of so many classes, and print it."""
    many = independent(np.random.default_rng(1), MANY, num_classes)
    true = errors(many, names)
    found = {form: coverage(form, true, num_classes) for form in FORMS}
    for name in names:
        for form, held in found.items():
            cells = [f"{held[kind, name]:.1%}" for kind in KINDS]
            print(f"| `{name}` | {form} | {' | '.join(cells)} |")
            values = {"statistic": name, "rows": form, "sets": SETS}
            values |= {kind: held[kind, name] for kind in KINDS}
            cost_rows.store(store, "intervals", **values)


def show_calibrated(store):
    """Count intervals above 0 of calibrated models, and print it."""
    print("| statistic | rows | above 0 |\n|---|---|---|")
    for size in SIZES:
        rng = np.random.default_rng(size)
        above = collections.Counter()
        for _ in range(CALIBRATED_SETS):
            data = independent(rng, size, CLASSES, temperature=1.0)
            found = errors(data, ABOVE_ZERO, num_resamples=RESAMPLES)
            above.update(name for name, v in found.items() if v.low > 0)
        for name in ABOVE_ZERO:
            share = above[name] / CALIBRATED_SETS
            print(f"| `{name}` | {size} | {share:.1%} |")
            values = {"statistic": name, "size": size, "sets": CALIBRATED_SETS}
            cost_rows.store(store, "above zero", above=share, **values)


def show_sparse(store):
    """Count default intervals of few rows in a bin, or with few errors."""
    print("| statistic | sets | classes | rows | held |\n|---|---|---|---|---|")
    for num_classes, size, temperature, spread in SPARSE:
        kind = functools.partial(
            independent,
            num_classes=num_classes,
            temperature=temperature,
            spread=spread,
        )
        show_held(kind, OF_CLASSES, num_classes, size, SPARSE_SETS, store)
    for size in FEW_ERRORS:
        show_held(nearly_right, OF_ROWS, 2, size, FEW_SETS, store)


def show_held(predictions, names, num_classes, size, sets, store):
    """Count the sets whose interval holds the true value, and print it."""
    true = errors(predictions(np.random.default_rng(1), MANY), names)
    rng = np.random.default_rng(size)
    held = collections.Counter()
    for _ in range(sets):
        found = errors(predictions(rng, size), names, num_resamples=RESAMPLES)
        held.update(n for n, v in found.items() if v.low <= true[n] <= v.high)
    for name in names:
        share = held[name] / sets
        print(f"| `{name}` | {sets} | {num_classes} | {size} | {share:.1%} |")
        values = {"statistic": name, "size": size, "sets": sets}
        values |= {"classes": num_classes, "held": share}
        cost_rows.store(store, "sparse intervals", **values)


if __name__ == "__main__":
    main()
