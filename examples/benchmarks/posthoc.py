"""Seconds to fit calibration maps: ours, and other packages', in one process.

Every contestant gets the same float32 logits, is warmed up once, and the
median of the repeats counts. Processor seconds are those of all threads: they
depend less on what else the machine does. A fit that is fast and not converged
shows in its NLL. Packages that are not installed are left out.

    python examples/benchmarks/posthoc.py [--map temperature ...]
    python examples/benchmarks/posthoc.py --predictions FILE.npz ...

The second form takes files of `predictions` and `ground_truth` (probabilities
and class ids), fits to the first 5,000 rows and prints the mean NLL of the
others, processor seconds, and the NLL of the fitted rows, for maps that both
packages have (`--same` names some of them).

    python examples/benchmarks/posthoc.py --defaults FILE.npz ...

The third form fits maps at their defaults, and the structured ones that both
packages have, to 200, 1,000 and 5,000 of the rows, and prints the processor
seconds of ours as a ratio to probmetrics', for the fit and for fit and
prediction of all other rows.

    python examples/benchmarks/posthoc.py --cells test

The fourth form does so for every file and number of samples of that data of
`no_harm.py`, which is in the folder `$KERAS_CALIB_DATA`.

With `--store` what is printed is kept, for `cost_tables.py`.

For scikit-learn, probmetrics and scipy: `pip install -e ".[peers]"`.
"""

import argparse
import importlib.util
import os
import platform
import statistics
import sys
import time
import tracemalloc
import warnings

os.environ.setdefault("KERAS_BACKEND", "torch")

import cost_rows
import keras
import numpy as np
from argument_types import positive_int

import keras_calib as kc


def has(package):
    return importlib.util.find_spec(package) is not None


def log_softmax(scores):
    scores = scores - scores.max(axis=1, keepdims=True)
    return scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))


def nll(scores, labels):
    rows = np.arange(len(labels))
    return float(-log_softmax(scores)[rows, labels].mean(dtype="float64"))


def ours(layer, **arguments):
    def fit(logits, labels):
        found = layer(**arguments).adapt(logits, labels)
        return lambda z: keras.ops.convert_to_numpy(found(z))

    return fit


def identity(shape):
    """A network that gives what it gets."""
    inputs = keras.Input(shape)
    return keras.Model(inputs, keras.layers.Identity()(inputs))


def calibrated(**arguments):
    """What `kc.calibrate` returns, with what its guard fits to folds."""

    def fit(logits, labels):
        found = kc.calibrate(
            identity(logits.shape[1:]),
            logits,
            labels,
            from_logits=True,
            output="logits",
            verbose=0,
            **arguments,
        )
        return lambda z: found.predict(z, verbose=0)

    return fit


def scikit_learn_temperature(logits, labels):
    from sklearn.calibration import _TemperatureScaling

    beta = _TemperatureScaling().fit(logits, labels).beta_
    return lambda z: beta * z


def probmetrics(name, **arguments):
    def fit(logits, labels):
        import torch
        from probmetrics import calibrators
        from probmetrics.distributions import CategoricalLogits

        for module in ("logistic", "orderpreserving", "temperature_scaling"):
            module = importlib.import_module(
                f"probmetrics.calibrators.{module}"
            )
            if hasattr(module, name):
                found = getattr(module, name)(**arguments)
        del calibrators
        found.fit_torch(
            CategoricalLogits(torch.from_numpy(logits)),
            torch.from_numpy(labels.astype("int64")),
        )

        def scores(z):
            given = CategoricalLogits(torch.from_numpy(z))
            return found.predict_proba_torch(given).get_logits().numpy()

        return scores

    return fit


def torch_uncertainty(name, **arguments):
    def fit(logits, labels):
        import torch
        from torch_uncertainty.post_processing import calibration

        if name != "TemperatureScaler":
            arguments["num_classes"] = logits.shape[1]
        found = getattr(calibration, name)(**arguments)
        data = torch.utils.data.TensorDataset(
            torch.from_numpy(logits), torch.from_numpy(labels.astype("int64"))
        )
        found.fit(
            torch.utils.data.DataLoader(data, batch_size=len(labels)),
            progress=False,
        )
        return lambda z: found(torch.from_numpy(z)).detach().numpy()

    return fit


def plain_lbfgs(scores, start, penalty=None):
    """What a careful script does: exact gradients, SciPy, to convergence."""

    def fit(logits, labels):
        from scipy.optimize import minimize

        n, num_classes = logits.shape
        rows = np.arange(n)

        def loss(parameters):
            forward, backward = scores(parameters, logits)
            log_p = log_softmax(forward)
            value = -log_p[rows, labels].mean(dtype="float64")
            residual = np.exp(log_p, out=log_p)
            residual[rows, labels] -= 1
            residual /= n
            gradient = backward(residual).astype("float64")
            if penalty is not None:
                strength = penalty(num_classes)
                value += (strength * parameters**2).sum()
                gradient += 2 * strength * parameters
            return value, gradient

        found = minimize(
            loss,
            start(num_classes),
            jac=True,
            method="L-BFGS-B",
            options={"maxiter": 2000, "gtol": 1e-6, "ftol": 1e-12},
        )
        return lambda z: scores(found.x, z)[0]

    return fit


def vector_scores(parameters, z):
    w, b = parameters.astype(z.dtype).reshape(2, -1)

    def backward(residual):
        return np.concatenate(
            [(residual * z).sum(axis=0), residual.sum(axis=0)]
        )

    return z * w + b, backward


def class_scores(parameters, z):
    return z * parameters.astype(z.dtype), lambda r: (r * z).sum(axis=0)


def dirichlet_scores(parameters, z):
    x = log_softmax(z)
    theta = parameters.astype(z.dtype).reshape(x.shape[1] + 1, -1)

    def backward(residual):
        return np.concatenate(
            [x.T @ residual, residual.sum(axis=0)[None]]
        ).ravel()

    return x @ theta[:-1] + theta[-1], backward


def vector_start(k):
    return np.concatenate([np.ones(k), np.zeros(k)])


def dirichlet_start(k):
    return np.concatenate([np.eye(k), np.zeros((1, k))]).ravel()


STRENGTH = 1e-3


def scikit_learn_l2(logits, labels):
    """Dirichlet-L2 but for the penalty on the bias, which it leaves out."""
    from sklearn.linear_model import LogisticRegression

    found = LogisticRegression(
        C=1 / (2 * STRENGTH * len(labels)), max_iter=2000, tol=1e-6
    )
    found.fit(log_softmax(logits), labels)
    return lambda z: found.decision_function(log_softmax(z))


LARGE = (25_000, 1_000)
SMALL, FEW = (5_000, 100), (1_000, 100)
# Map: shape of the logits, then contestants; the first is ours.
SMS = probmetrics("SMSCalibrator", print_init_info=False)
MAPS = {
    "temperature": (
        LARGE,
        {
            "keras_calib": ours(kc.layers.TemperatureScaling),
            "scikit-learn": scikit_learn_temperature,
            "probmetrics": probmetrics("TemperatureScalingCalibrator"),
            "torch-uncertainty": torch_uncertainty("TemperatureScaler"),
        },
    ),
    "class_temperature": (
        LARGE,
        {
            "keras_calib": ours(
                kc.layers.ClassTemperatureScaling, regularization=None
            ),
            "torch-uncertainty": torch_uncertainty("VectorScaler"),
            "SciPy L-BFGS": plain_lbfgs(class_scores, np.ones),
        },
    ),
    "vector": (
        LARGE,
        {
            "keras_calib": ours(kc.layers.VectorScaling, regularization=None),
            "probmetrics": probmetrics("VectorScalingCalibrator"),
            "SciPy L-BFGS": plain_lbfgs(vector_scores, vector_start),
        },
    ),
    "matrix": (
        SMALL,
        {
            "keras_calib": ours(
                kc.layers.MatrixScaling,
                regularization="structured",
                normalize_logits="log_softmax",
            ),
            "probmetrics SMS": SMS,
        },
    ),
    "matrix, few samples": (
        FEW,
        {
            "keras_calib": calibrated(method="structured_matrix"),
            "probmetrics SMS": SMS,
        },
    ),
    "matrix, 1,000 classes": (
        LARGE,
        {
            "keras_calib": ours(
                kc.layers.MatrixScaling, regularization="structured"
            ),
        },
    ),
    "matrix, defaults": (
        SMALL,
        {"keras_calib": ours(kc.layers.MatrixScaling), "probmetrics SMS": SMS},
    ),
    "matrix, no penalty": (
        SMALL,
        {
            "keras_calib": ours(kc.layers.MatrixScaling, regularization=None),
            "probmetrics": probmetrics("MatrixScalingCalibrator"),
        },
    ),
    "dirichlet": (
        SMALL,
        {
            "keras_calib": ours(
                kc.layers.DirichletScaling,
                regularization="l2",
                strength=STRENGTH,
            ),
            "scikit-learn": scikit_learn_l2,
            "SciPy L-BFGS": plain_lbfgs(
                dirichlet_scores, dirichlet_start, lambda k: STRENGTH
            ),
        },
    ),
}
NEEDS = {
    "scikit-learn": "sklearn",
    "probmetrics": "probmetrics",
    "probmetrics SMS": "probmetrics",
    "torch-uncertainty": "torch_uncertainty",
    "SciPy L-BFGS": "scipy",
}


# The same map, or the nearest there is, for the likelihood of other samples.
SAME = {
    "TemperatureScaling": (
        ours(kc.layers.TemperatureScaling),
        probmetrics("TemperatureScalingCalibrator"),
    ),
    "EnsembleTemperatureScaling": (
        ours(kc.layers.EnsembleTemperatureScaling),
        probmetrics("ETSCalibrator"),
    ),
    "VectorScaling": (
        ours(kc.layers.VectorScaling, regularization=None),
        probmetrics("VectorScalingCalibrator"),
    ),
    "MatrixScaling": (
        ours(
            kc.layers.MatrixScaling,
            regularization="structured",
            normalize_logits="log_softmax",
        ),
        SMS,
    ),
    "MatrixScaling, no penalty": (
        ours(
            kc.layers.MatrixScaling,
            regularization=None,
            normalize_logits="log_softmax",
        ),
        probmetrics("MatrixScalingCalibrator"),
    ),
    "IntraOrderPreserving": (
        ours(kc.layers.IntraOrderPreserving, family="order_invariant"),
        probmetrics("IntraOrderPreservingCalibrator"),
    ),
}


def read(path):
    """Float32 log-probabilities, and class ids."""
    with np.load(path) as file:
        p, labels = file["predictions"], file["ground_truth"].astype("int64")
    return np.log(np.maximum(p, 1e-30)).astype("float32"), labels


def held_out(path, names, store, rows=5_000):
    logits, labels = read(path)
    print(f"\n{os.path.basename(path)}: {logits.shape[1]} classes")
    print("| map | NLL, keras_calib | probmetrics | seconds | | NLL fitted | |")
    print("|---|---|---|---|---|---|---|")
    for name in names:
        each = [_fit_and_test(fit, logits, labels, rows) for fit in SAME[name]]
        both = {
            key: [one[key] for one in each]
            for key in ("nll", "processor", "fitted")
        }
        texts = [
            *(f"{value:.4f}" for value in both["nll"]),
            *(f"{value:.2f}" for value in both["processor"]),
            *(f"{value:.6f}" for value in both["fitted"]),
        ]
        print("| " + " | ".join([name, *texts]) + " |", flush=True)
        cost_rows.store(
            store,
            "held out",
            file=os.path.basename(path),
            map=name,
            ours=round(both["nll"][0], 4),
            theirs=round(both["nll"][1], 4),
            processor=both["processor"],
            fitted=both["fitted"],
        )


def quietly(fit, logits, labels):
    """What a fit returns, without its warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return fit(logits, labels)


def _fit_and_test(fit, logits, labels, rows):
    """NLL of the rows not fitted to, and of those, and processor seconds."""
    busy = time.process_time()
    scores = quietly(fit, logits[:rows], labels[:rows])
    busy = time.process_time() - busy
    fitted, tested = slice(rows), slice(rows, None)
    return {
        "nll": nll(np.asarray(scores(logits[tested])), labels[tested]),
        "processor": busy,
        "fitted": nll(np.asarray(scores(logits[fitted])), labels[fitted]),
    }


# At their defaults, which shrink here and are structured there, and the same.
SVS = probmetrics("SVSCalibrator")
DEFAULTS = {
    "TemperatureScaling / TS": SAME["TemperatureScaling"],
    "VectorScaling / SVS": (ours(kc.layers.VectorScaling), SVS),
    "MatrixScaling / SMS": (ours(kc.layers.MatrixScaling), SMS),
    "structured vector / SVS": (
        ours(
            kc.layers.VectorScaling,
            regularization="structured",
            normalize_logits="log_softmax",
        ),
        SVS,
    ),
    "structured matrix / SMS": SAME["MatrixScaling"],
}


def at_defaults(paths, store, sizes=(200, 1000, 5000), repeats=3):
    """Print ratios of processor seconds, and their median over all cells."""
    ratios = begin_ratios()
    for path in paths:
        logits, labels = read(path)
        for rows in sizes:
            for name, found in each_ratio(logits, labels, rows, repeats):
                ratios[name].append(found)
                cost_rows.store(
                    store,
                    "defaults",
                    maps=name,
                    file=os.path.basename(path),
                    classes=logits.shape[1],
                    samples=rows,
                    fit=found[0],
                    both=found[1],
                )
                shown = f"{os.path.basename(path)}, {logits.shape[1]} classes"
                print_ratios(name, shown, rows, found)
    for name, found in ratios.items():
        print_ratios(name, "median", "", np.median(found, axis=0))


def over_cells(kind, store, repeats=9):
    """The same for every cell of `no_harm.py`; of each pair a row is stored."""
    import no_harm

    if kind not in no_harm.SETS:
        sys.exit(f"--cells is one of {', '.join(no_harm.SETS)}.")
    folder, ratios = no_harm.data_folder(), begin_ratios()
    for source in no_harm.SETS[kind]:
        for file, logits, labels in source(folder):
            # Every draw has as many rows; the other half is predicted.
            half = len(labels) // 2
            order = np.random.default_rng(0).permutation(half)
            order = np.append(order, np.arange(half, len(labels)))
            logits = logits[order].astype("float32")
            for rows in (n for n in no_harm.SIZES if n <= half):
                data = logits, labels[order], rows, repeats, half
                for name, found in each_ratio(*data):
                    ratios[name].append(found)
                    print_ratios(name, file, rows, found)
    for name, found in ratios.items():
        middle = np.median(found, axis=0)
        print_ratios(name, f"median of {len(found)}", "", middle)
        cost_rows.store(
            store,
            "cells",
            maps=name,
            data=kind,
            cells=len(found),
            fit=middle[0],
            both=middle[1],
        )


def begin_ratios():
    """Print the head of a table; an empty list for each pair of maps."""
    print("| maps | file | samples | fit | fit and predict |")
    print("|---|---|---|---|---|")
    return {name: [] for name in DEFAULTS}


def each_ratio(logits, labels, rows, repeats, first=None):
    """Names of `DEFAULTS`, and ours to theirs: fit, and fit and predict."""
    for name, contestants in DEFAULTS.items():
        ours, theirs = (
            quickest(fit, logits, labels, rows, repeats, first)
            for fit in contestants
        )
        yield name, ours / theirs


def print_ratios(name, shown, rows, found):
    texts = " | ".join(f"{ratio:.2f}" for ratio in found)
    print(f"| {name} | {shown} | {rows} | {texts} |", flush=True)


def quickest(fit, logits, labels, rows, repeats, first=None):
    """Least processor seconds of a fit, and of fit and prediction.

    What is predicted begins with row `first`, by default with the next one.
    """
    rest = logits[rows if first is None else first :]
    found = []
    for _ in range(repeats):
        start = time.process_time()
        scores = quietly(fit, logits[:rows], labels[:rows])
        fitted = time.process_time()
        np.asarray(scores(rest))
        found.append((fitted - start, time.process_time() - start))
    return np.min(found, axis=0)


def generated(shape, mixed):
    """Logits that are off by a temperature, and labels drawn from the truth."""
    rng = np.random.default_rng(0)
    logits = 3 * rng.normal(size=shape).astype("float32")
    truth = logits / 2
    if mixed:
        size = shape[1]
        truth = truth + logits @ rng.normal(size=(size, size)) / size
    noise = rng.gumbel(size=shape).astype("float32")
    return logits, (truth + noise).argmax(axis=1)


def measure(name, repeats, store):
    shape, contestants = MAPS[name]
    contestants = {
        key: fit
        for key, fit in contestants.items()
        if key not in NEEDS or has(NEEDS[key])
    }
    logits, labels = generated(shape, shape in (SMALL, FEW))
    seconds = {key: [] for key in contestants}
    processor = {key: [] for key in contestants}
    found = {}
    for repeat in range(repeats + 1):
        for key, fit in contestants.items():
            start = time.perf_counter()
            busy = time.process_time()
            scores = quietly(fit, logits, labels)
            if repeat:  # the first is the warm-up
                seconds[key].append(time.perf_counter() - start)
                processor[key].append(time.process_time() - busy)
            else:
                found[key] = nll(scores(logits), labels)
    tracemalloc.start()
    contestants["keras_calib"](logits, labels)
    peak = (tracemalloc.get_traced_memory()[1] + logits.nbytes) / logits.nbytes
    tracemalloc.stop()

    print(f"\n{name}: {shape[0]} x {shape[1]} float32 logits")
    print("| package | NLL | seconds | ratio | processor seconds | ratio |")
    print("|---|---|---|---|---|---|")
    medians = {
        key: [statistics.median(times[key]) for times in (seconds, processor)]
        for key in contestants
    }
    for key, each in medians.items():
        row = f"| {key} | {found[key]:.6f} "
        for median, ours in zip(each, medians["keras_calib"], strict=True):
            row += f"| {median:.2f} | {median / ours:.1f} "
        print(row + "|")
        values = {"map": name, "shape": shape, "package": key}
        values |= dict(zip(("seconds", "processor"), each, strict=True))
        values |= {"nll": found[key]}
        if key == "keras_calib":
            values["memory"] = peak
        cost_rows.store(store, "fit", **values)
    print(f"peak memory of ours: {peak:.2f} times the logits", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--map", nargs="*", choices=MAPS, default=list(MAPS))
    parser.add_argument("--repeats", type=positive_int, default=3)
    parser.add_argument("--predictions", nargs="*", metavar="FILE")
    parser.add_argument("--same", nargs="*", choices=SAME, default=list(SAME))
    parser.add_argument("--defaults", nargs="*", metavar="FILE")
    parser.add_argument(
        "--cells", metavar="DATA", help="`--defaults` on data of no_harm.py"
    )
    cost_rows.add_option(parser)
    arguments = parser.parse_args()
    print(f"{platform.machine()}, {os.cpu_count()} cores")
    if arguments.predictions:
        for path in arguments.predictions:
            held_out(path, arguments.same, arguments.store)
        return
    if arguments.defaults:
        at_defaults(arguments.defaults, arguments.store)
        return
    if arguments.cells:
        over_cells(arguments.cells, arguments.store)
        return
    for name in arguments.map:
        measure(name, arguments.repeats, arguments.store)


if __name__ == "__main__":
    main()
