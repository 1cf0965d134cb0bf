"""Our maps in CalArena, the public benchmark of post-hoc calibration.

CalArena (arXiv 2605.30188) fits calibrators to the probabilities of 1,791
models. With a checkout of it and its data:

    KERAS_BACKEND=torch OMP_NUM_THREADS=1 python \
        examples/benchmarks/calarena.py CHECKOUT \
        --benchmark cv-multiclass --calibrator kc-matrix

starts CalArena's own `run_benchmark.py` with our maps among its calibrators;
like theirs, timed with one thread.
Without `--calibrator` it runs all of its own and ours. Results are where
CalArena writes them, one CSV file for each calibrator. Its data was not at hand
when this was written: the interface is tested, and no result is claimed.
"""

import os
import pathlib
import runpy
import sys
import types
import warnings

import keras
import numpy as np

import keras_calib as kc

METHODS = (
    *("temperature", "vector", "matrix", "dirichlet", "spline", "isotonic"),
    *("ensemble_temperature", "order_preserving", "histogram"),
    *("parameterized_temperature", "class_temperature", "structured_matrix"),
    *("bias_corrected_temperature", "bayesian_temperature"),
    *("auto", "mixture"),
)
BINARY = ("platt", "beta", "quadratic")


class Calibrator:
    """A map of `kc.calibrate` as CalArena wants it.

    Args:
        method: see `kc.calibrate`; or `"mixture"`, that of `"auto"`.
    """

    def __init__(self, method):
        self.method = method

    def fit(self, p_cal, y_cal):
        """Fit to probabilities, `(n, K)` or `(n,)` for two classes."""
        logits = log_of(p_cal)
        model = keras.Sequential(
            [keras.Input(logits.shape[1:]), keras.layers.Identity()]
        )
        method, mixture = self.method, self.method == "mixture"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.model = kc.calibrate(
                model,
                logits,
                np.asarray(y_cal).reshape(-1),
                method="auto" if mixture else method,
                mixture=mixture,
                from_logits=True,
                verbose=0,
            )

    def predict_proba(self, p_test):
        """Calibrated probabilities, `(n, K)`."""
        p = self.model.predict(log_of(p_test), batch_size=4096, verbose=0)
        p = p.astype("float64")
        return p / p.sum(axis=1, keepdims=True)


def log_of(p):
    """Log-probabilities with a column for each class.

    Raises:
        ValueError: for what is no probability, such as logits.
    """
    p = np.asarray(p, "float64")
    if p.ndim == 1 or p.shape[1] == 1:
        p = p.reshape(-1)
        p = np.stack([1 - p, p], axis=1)
    if not ((p >= 0) & (p <= 1)).all() or abs(p.sum(axis=1) - 1).max() > 1e-2:
        raise ValueError(
            "A calibrator of CalArena takes probabilities, whose rows sum to 1."
        )
    return np.log(np.maximum(p, np.finfo("float32").tiny)).astype("float32")


CALIBRATORS = {
    f"kc-{method.replace('_', '-')}": lambda method=method: Calibrator(method)
    for method in (*METHODS, *BINARY)
}


def main(arguments):
    if not arguments or arguments[0].startswith("-"):
        sys.exit(__doc__)
    folder, *options = arguments
    script = pathlib.Path(folder).resolve() / "run_benchmark.py"
    if not script.exists():
        sys.exit(f"No run_benchmark.py in {folder}: pass a checkout.")
    benchmark = ""
    if "--benchmark" in options[:-1]:
        benchmark = options[options.index("--benchmark") + 1]
    # CalArena imports the calibrators of its users from this module.
    module = types.ModuleType("custom_calibrators")
    module.CUSTOM_CALIBRATORS = {
        name: make
        for name, make in CALIBRATORS.items()
        if benchmark.endswith("-binary") or name[3:] not in BINARY
    }
    sys.modules["custom_calibrators"] = module
    sys.argv = [str(script), *options]
    os.chdir(script.parent)
    runpy.run_path(str(script), run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
