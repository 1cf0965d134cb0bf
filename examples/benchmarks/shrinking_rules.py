"""What each part of `regularization="auto"` does: the average, without it.

Vector and matrix scaling are fitted around temperature scaling as the layers do
it, and then averaged by other rules: by the most likely width alone, with one
width for all, without a prior on temperature scaling, without the dispersion,
by folds instead of evidence, with other scales. All rules see the same
samples, and most the same ridge fits. Measured on other samples, against
temperature scaling, beside the paper's map and the structured penalty.

    python examples/benchmarks/shrinking_rules.py run RESULTS.jsonl
    python examples/benchmarks/shrinking_rules.py show RESULTS.jsonl

`run` appends a line for each draw and skips those that are there; `--data
tables` takes the made tables. Both are development data of `no_harm.py`: the
constants were set on them.
"""

import collections
import functools
import os
import pathlib
import warnings
from unittest import mock

import no_harm
import numpy as np
import stored_rows
from argument_types import positive_int

import keras_calib as kc
from keras_calib.solvers import evidence
from keras_calib.solvers import matrix_deviations
from keras_calib.solvers import matrix_evidence
from keras_calib.solvers import ridge_paths
from keras_calib.solvers import temperature_posterior
from keras_calib.solvers.deviations import Deviations
from keras_calib.solvers.folds import random_folds
from keras_calib.solvers.laplace import mix
from keras_calib.solvers.matrix_deviations import MATRIX_WIDTHS
from keras_calib.solvers.matrix_deviations import MatrixDeviations
from keras_calib.solvers.temperature_posterior import cautious_scale

MOST = 5000
VECTOR, MATRIX = "VectorScaling", "MatrixScaling"
PATHS = ((True, False), (False, True), (True, True))
AS_IT_IS = "as it is"
AVERAGE = "the scale of the average alone"
LIKELIEST = "the likeliest scale"


def every_fit(function):
    """Let rules see the fits that the average leaves out, too."""

    @functools.wraps(function)
    def call(*arguments):
        with (
            mock.patch.object(ridge_paths, "MARGIN", np.inf),
            mock.patch.object(matrix_deviations, "MARGIN", np.inf),
        ):
            return function(*arguments)

    return call


class NoDispersion(Deviations):
    """Ridge fits that take the likelihood at its word."""

    def dispersion(self, scale):
        return 1.0


class FirstDispersion(Deviations):
    """Ridge fits with the dispersion under temperature scaling."""

    def _dispersion_without_misfit(self, widest, phi):
        return np.inf


def averaged(fits, *, flat=False, plain=evidence.PLAIN, keep=None):
    """Weights of the fits, and last of temperature scaling.

    Args:
        fits: list of `Fit`.
        flat: whether all widths are as likely before the data.
        plain: prior probability of temperature scaling.
        keep: function of a fit, whether it takes part; all by default.
    """
    widths = np.stack([fit.widths for fit in fits])
    log_prior = 0 * widths[:, 0] if flat else evidence.log_prior_of(widths)
    if keep is not None:
        log_prior[[not keep(fit) for fit in fits]] = -np.inf
    log_evidence = [fit.log_evidence for fit in fits]
    return mix(log_evidence, log_prior, 0.0, max(plain, 1e-300))[0]


def most_likely(fits):
    """All of the weight on one."""
    weights = averaged(fits)
    return (weights == weights.max()).astype(float)


def of_width(width):
    """Whether a fit has this width of biases, or of slopes alone."""
    return lambda fit: np.isclose(fit.widths[fit.widths > 0][-1], width)


def both(fit):
    return (fit.widths > 0).all()


def around_zero(fit):
    return not fit.typical


def around_typical(fit):
    return fit.typical or not both(fit)


RULES = {
    AS_IT_IS: averaged,
    "the most likely fit alone": most_likely,
    "no prior on temperature scaling": functools.partial(averaged, plain=0),
    "prior 3/4 on temperature scaling": functools.partial(averaged, plain=0.75),
    "all widths as likely": functools.partial(averaged, flat=True),
    "slopes and biases together only": functools.partial(averaged, keep=both),
    "slopes around 0": functools.partial(averaged, keep=around_zero),
    "slopes around typical": functools.partial(averaged, keep=around_typical),
    "width 0.1 only": functools.partial(averaged, keep=of_width(0.1)),
    "width 0.4 only": functools.partial(averaged, keep=of_width(0.4)),
}
# The same average of other fits.
DISPERSIONS = {
    "no dispersion": NoDispersion,
    "dispersion under temperature scaling": FirstDispersion,
}
BY_FOLDS = "the fit that is best in five folds"
MATRIX_RULES = {
    AS_IT_IS: matrix_evidence.MATRIX,
    "no matrix": 0.0,
    "prior 1/2 on a matrix": 0.5,
    "a matrix always": 1.0,
    "the most likely matrix alone": None,
}
# Maps of the layers, beside the rules.
LAYERS = {
    VECTOR: {"the paper's": {"regularization": None}},
    MATRIX: {"structured": {"regularization": "structured"}},
}


@every_fit
def vector_of_rules(x, labels):
    """Slopes and biases by each rule, `(2, num_classes)`."""
    data = labels, np.ones(len(labels)), 0.0
    problem = Deviations(x, *data)
    fits, _ = problem.fits_of_all_widths(PATHS)
    found = {
        rule: _mean(fits, weights(fits), problem.center)
        for rule, weights in RULES.items()
    }
    for rule, kind in DISPERSIONS.items():
        others, _ = kind(x, *data).fits_of_all_widths(PATHS)
        found[rule] = _mean(others, averaged(others), problem.center)
    losses = np.zeros(len(fits) + 1)
    fold = random_folds(np.arange(len(labels)), 5)
    for number in range(5):
        part, rest = fold != number, fold == number
        own = labels[part], np.ones(part.sum()), 0.0
        of_part, _ = Deviations(x[part], *own).fits_of_all_widths(PATHS)
        maps = [fit.parameters for fit in of_part] + [problem.center]
        scores = [x[rest] * slopes + biases for slopes, biases in maps]
        losses += [no_harm.losses(z, labels[rest]).sum() for z in scores]
    found[BY_FOLDS] = _mean(
        fits, np.eye(len(losses))[losses.argmin()], problem.center
    )
    return found


@every_fit
def matrix_of_rules(x, labels):
    """A matrix above biases by each rule, `(num_classes + 1, num_classes)`."""
    data = labels, np.ones(len(labels))
    diagonal = matrix_evidence._without_matrix(
        x, *data, PATHS, 0.0, plain=matrix_evidence.PLAIN
    )
    problem = MatrixDeviations(x, *data, 0.0)
    fits = list(problem.fits_of_all_widths(diagonal))
    log_evidence = [fit.log_evidence for fit in fits]
    widths = MATRIX_WIDTHS / matrix_evidence.MATRIX_WIDTH
    of_x = [problem.of_x(fit.parameters) for fit in fits]
    of_x = np.stack([*of_x, matrix_evidence._as_matrix(diagonal)])
    found = {}
    for rule, probability in MATRIX_RULES.items():
        alone = probability is None
        probability = matrix_evidence.MATRIX if alone else probability
        without = np.clip(1 - probability, 1e-300, 1 - 1e-15)
        weights, _ = mix(
            log_evidence, -0.5 * widths**2, diagonal.log_evidence, without
        )
        if alone:
            weights = (weights == weights.max()).astype(float)
        found[rule] = np.tensordot(weights, of_x, 1)
    return found


def _mean(fits, weights, center):
    parameters = np.stack([fit.parameters for fit in fits] + [center])
    return np.tensordot(weights, parameters, 1)


def nll_of_rules(name, logits, labels, rest):
    """Mean NLL of `rest` by each rule, and by temperature scaling."""
    layer = kc.layers.TemperatureScaling().adapt(logits, labels)
    temperature = layer.record["temperature"]
    factor = bare = 1.0
    if layer.record.get("stop_reason") is None:
        data = logits, labels, np.ones(len(labels)), temperature
        factor = cautious_scale(*data)
        with mock.patch.object(temperature_posterior, "unseen", lambda n: 0.0):
            bare = cautious_scale(*data)
    x, outside = (
        no_harm.log_softmax(z) / temperature for z in (logits, rest[0])
    )
    found = {"TemperatureScaling": outside}
    if name == VECTOR:
        for rule, (slopes, biases) in vector_of_rules(x, labels).items():
            found[rule] = factor * (outside * slopes + biases)
    else:
        for rule, parameters in matrix_of_rules(x, labels).items():
            found[rule] = factor * (outside @ parameters[:-1] + parameters[-1])
    found[AVERAGE] = found[AS_IT_IS] / factor * bare
    found[LIKELIEST] = found[AS_IT_IS] / factor
    for rule, arguments in LAYERS[name].items():
        layer = getattr(kc.layers, name)(**arguments).adapt(logits, labels)
        found[rule] = no_harm.keras.ops.convert_to_numpy(layer(rest[0]))
    return {
        rule: round(float(no_harm.losses(scores, rest[1]).mean()), 6)
        for rule, scores in found.items()
    }


def run(arguments):
    arguments.results.touch()
    keys = "file", "map", "n", "draw"
    rows = stored_rows.read(arguments.results)
    done = {tuple(row[key] for key in keys) for row in rows}
    folder = pathlib.Path(os.environ["KERAS_CALIB_DATA"])
    for source in no_harm.SETS[arguments.data]:
        for file, logits, labels in source(folder):
            half = len(labels) // 2
            rest = slice(half, half + MOST)
            rest = logits[rest], labels[rest]
            for n in (n for n in arguments.sizes if n <= half):
                for draw in range(arguments.draws if n < half else 1):
                    rng = np.random.default_rng([n, draw])
                    chosen = rng.permutation(half)[:n]
                    chosen = logits[chosen], labels[chosen]
                    for name in (VECTOR, MATRIX):
                        key = file, name, n, draw
                        if key in done:
                            continue
                        with warnings.catch_warnings():
                            warnings.simplefilter("ignore")
                            nll = nll_of_rules(name, *chosen, rest)
                        row = dict(zip(keys, key, strict=True)) | {"nll": nll}
                        stored_rows.append(arguments.results, row)


def show(arguments):
    rows = stored_rows.read(arguments.results)
    for name in (VECTOR, MATRIX):
        print_rules(name, [row for row in rows if row["map"] == name])


def print_rules(name, rows):
    """Means over files against temperature scaling, by rule and n."""
    cells = collections.defaultdict(list)
    for row in rows:
        cells[row["file"], row["n"]].append(row["nll"])
    sizes = sorted({n for _, n in cells})
    files = {file for file, _ in cells}
    print(f"\n{name}: {len(files)} files, {len(cells)} cells\n")
    print("| rule |", " | ".join(map(str, sizes)), "| at worst | outside |")
    print("|---|" + "---|" * (len(sizes) + 2))
    for rule in rows[0]["nll"]:
        if rule == "TemperatureScaling":
            continue
        by_size = collections.defaultdict(list)
        outside = 0
        for (_, n), draws in cells.items():
            minus = [nll[rule] - nll["TemperatureScaling"] for nll in draws]
            by_size[n].append(np.mean(minus))
            limit = no_harm.limit_of(n, no_harm.AGAINST_TEMPERATURE)
            outside += by_size[n][-1] > limit
        texts = [f"{np.mean(by_size[n]):+.4f}" for n in sizes]
        worst = max(max(values) for values in by_size.values())
        print(f"| {rule} |", " | ".join(texts), f"| {worst:+.4f} | {outside} |")


def main():
    parser, command, _ = stored_rows.run_and_show(__doc__, run, show)
    command.add_argument(
        "--data", choices=("development", "tables"), default="development"
    )
    sizes = no_harm.SIZES
    command.add_argument("--sizes", nargs="*", type=positive_int, default=sizes)
    command.add_argument("--draws", type=positive_int, default=5)
    arguments = parser.parse_args()
    arguments.function(arguments)


if __name__ == "__main__":
    main()
