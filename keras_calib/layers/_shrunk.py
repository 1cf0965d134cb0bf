"""The base of the maps that are mixed with temperature scaling."""

import dataclasses
import functools
import time
import warnings
from typing import Any

import numpy as np
from keras import ops

from keras_calib.inputs.arguments import require_one_of
from keras_calib.inputs.arrays import LOWEST
from keras_calib.inputs.arrays import effective_num_samples
from keras_calib.inputs.large import selected_rows
from keras_calib.layers._formula import FormulaCalibration
from keras_calib.layers._formula import log_q_of_rows
from keras_calib.layers._formula import tempered_log_q
from keras_calib.layers._logit_ops import keep_prediction
from keras_calib.layers._logit_ops import log_softmax
from keras_calib.layers._logit_ops import logaddexp
from keras_calib.layers._objectives import Objective
from keras_calib.layers._temperature_scaling import solve_temperature
from keras_calib.layers._tempered import TemperedCalibration
from keras_calib.solvers.shrinkage import NUM_FOLDS
from keras_calib.solvers.shrinkage import fold_of_rows
from keras_calib.solvers.shrinkage import log_mixture
from keras_calib.solvers.shrinkage import mixture_weight
from keras_calib.solvers.shrinkage import ratio_by_fold
from keras_calib.solvers.temperature import ALL_CORRECT


class ShrunkCalibration(TemperedCalibration):
    """Base of maps `f` that few samples leave near temperature scaling.

        q = (1 - c) softmax(z / T) + c softmax(f(z))

    The output is `log q`. `T` is the temperature that minimizes the objective,
    and `c` the posterior mean of the mixture weight, given out-of-fold
    probabilities of the labels from five folds; see `solvers.shrinkage`. If
    the map cannot be fitted to four of the folds, `c` is 0.

    A subclass creates its variables, at the identity (`_add_weights`), has the
    map of two or more logits (`_transform`, with the arguments of `_map`) and
    its fit (`_solve`; both are those of the map alone). Where a subclass
    changes `call`, folds judge by what it returns for `c = 1`.

    Args:
        shrinkage: `"auto"`, or `None` for the map alone, `softmax(f(z))`.
        **kwargs: `record`, `name`, `dtype`, `trainable`.
    """

    settings: tuple[str, ...] = ("shrinkage",)
    # Whether `_solve` starts from temperature scaling; it is given `None` as
    # `tempered` where neither this nor the mixture needs it.
    _starts_tempered = False
    # What the folds of the last fit showed; `None` where there were none.
    folds = None
    # `time.perf_counter()` after which a fit begins no other fold, but raises
    # `TimeoutError`.
    deadline = np.inf
    # The prior of the mixture weight is Beta(1, caution).
    caution = 4.0

    def __init__(
        self, *, shrinkage: str | None = "auto", **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        check_shrinkage(shrinkage)
        self.shrinkage = shrinkage

    def build(self, input_shape: tuple) -> None:
        self._add_weights(max(2, input_shape[-1]))
        if self.shrinkage is not None:
            self._add("temperature", 1.0, trainable=False)
            self._add("mixture", 0.0, trainable=False)
        self.built = True

    @property
    def has_folds(self):
        return self.shrinkage is not None

    def _transform(self, logits, w, xp):
        raise NotImplementedError

    def _map(self, logits, w, xp):
        formula = self._transform if self.shrinkage is None else self._mixed
        return formula(logits, w, xp)

    def _mixed(self, logits, w, xp):
        """`log((1 - c) softmax(z / T) + c softmax(f(z)))`."""
        c = ops.convert_to_tensor(w.mixture) if xp is ops else w.mixture
        rich = log_softmax(self._transform(logits, w, xp), xp) + xp.where(
            c > 0, xp.log(xp.where(c > 0, c, 1.0)), LOWEST
        )
        plain = log_softmax(logits / w.temperature, xp) + xp.log(1 - c)
        log_q = logaddexp(plain, rich, xp)
        if self.preserves_accuracy:
            return keep_prediction(logits, log_q, xp)
        return log_q

    def solve(
        self,
        logits: np.ndarray,
        labels: np.ndarray,
        weights: np.ndarray,
        objective: Objective,
    ) -> tuple[dict, dict]:
        data = logits, labels, weights
        tempered: Any = None
        if self.shrinkage is not None or self._starts_tempered:
            tempered = solve_temperature(*data, objective)
        if self.shrinkage is None:
            return self._solve(*data, objective, tempered)
        with warnings.catch_warnings():
            # A fold does not concern the user.
            warnings.simplefilter("ignore")
            seen = self._seen(logits)
            rest = labels, weights, objective
            found, record = self._solve_seen(seen, *rest, tempered)
            temperature, known = tempered
            folds, reason = None, None
            # Where all samples are right, folds only ask for sharper maps.
            if known["stop_reason"] != ALL_CORRECT:
                folds, reason = self._out_of_fold(
                    seen, *data, objective, tempered
                )
        c = 0.0
        if folds is not None:
            c = folds.mixture_weight(weights, self.caution)
        # They do not hold the mixture that a changed `call` returns.
        self.folds = None if self._changes_call else folds
        found = {**found, "temperature": temperature, "mixture": c}
        record = {
            **record,
            "temperature": temperature,
            "mixture_weight": c,
            "stop_reason": known["stop_reason"] or reason,
        }
        if objective.is_plain_nll:
            rows = np.arange(len(labels))
            if self._changes_call:
                log_q = self._log_q_of_call(found, *data[:2], rows)
            else:
                plain = tempered_log_q(*data[:2], rows, temperature)
                rich = self._log_q_with(found, *data[:2], rows, self._transform)
                log_q = log_mixture(plain, rich, c)
            record["nll_before"] = known["nll_before"]
            record["nll_after"] = -float(np.average(log_q, weights=weights))
        return found, record

    @property
    def _changes_call(self):
        return type(self).call is not FormulaCalibration.call

    def _log_q_of_map(self, found, temperature, logits, labels, rows):
        """Log-probabilities of the labels of some rows by the map alone."""
        data = logits, labels, rows
        if not self._changes_call:
            return self._log_q_with(found, *data, self._transform)
        alone = {**found, "temperature": temperature, "mixture": 1.0}
        return self._log_q_of_call(alone, *data)

    def _log_q_of_call(self, weights, logits, labels, rows):
        """`_log_q_of_map`, with these weights, by `call`."""
        # This layer stays as it is, also not built, until the fit is done.
        twin = type(self).from_config(self.get_config())
        twin.build((None, logits.shape[1]))
        scores = functools.partial(twin._scores, weights)
        return log_q_of_rows(scores, logits, labels, rows)

    def _seen(self, logits):
        """What a fit needs of each row of logits, for all folds at once."""
        return logits

    def _solve_seen(self, seen, labels, weights, objective, tempered):
        """`_solve` of rows of `_seen`."""
        return self._solve(seen, labels, weights, objective, tempered)

    def _out_of_fold(self, seen, logits, labels, weights, objective, tempered):
        """Fit temperature scaling and the map without each fold.

        These fits start from the temperature of all rows.

        Args:
            seen: see `_seen`.
            logits: `(n, num_classes)`.
            labels: int class ids, `(n,)`.
            weights: `(n,)`.
            objective: `Objective`.
            tempered: see `solve_temperature`, of all rows.

        Returns:
            folds: `Folds`, or `None`.
            reason: `None`, or why there are none.
        """
        fold, sample = fold_of_rows(logits, weights, self._groups)
        num_folds = fold.max() + 1
        if num_folds < (NUM_FOLDS if self._groups is None else 2):
            return None, "too few samples"
        plain, rich = np.empty((2, len(labels)))
        try:
            for number in range(num_folds):
                if time.perf_counter() > self.deadline:
                    raise TimeoutError
                rows, part = np.flatnonzero(fold == number), fold != number
                share = weights[part]
                count = np.count_nonzero(np.bincount(sample[part]))
                share = share * (count / share.sum())
                data = labels[part], share, objective
                inside = selected_rows(logits, part), *data
                start = solve_temperature(*inside, tempered[0])
                inside = selected_rows(seen, part), *data
                found, _ = self._solve_seen(*inside, start)
                rest = logits, labels, rows
                rich[rows] = self._log_q_of_map(found, start[0], *rest)
                plain[rows] = tempered_log_q(*rest, start[0])
        except (ArithmeticError, ValueError, np.linalg.LinAlgError):
            return None, "too few samples"
        return Folds(fold, plain, rich), None


@dataclasses.dataclass(frozen=True)
class Folds:
    """Log-probabilities of labels by maps that were not fitted to them.

    Attributes:
        fold: int, `(n,)`, the fold that was left out.
        plain: of temperature scaling, `(n,)`.
        rich: of the map, `(n,)`.
    """

    fold: np.ndarray
    plain: np.ndarray
    rich: np.ndarray

    def mixture_weight(self, weights, caution):
        return mixture_weight(self._ratios(weights).sum(axis=0), caution)

    def _ratios(self, weights):
        # Rows of soft labels are worth no more than their samples.
        share = min(1.0, effective_num_samples(weights) / weights.sum())
        return ratio_by_fold(self.plain, self.rich, share * weights, self.fold)

    def mixed(self, weights, caution):
        """Of the mixture, whose weight each time comes from other folds."""
        log_q = np.empty(len(self.fold))
        ratios = self._ratios(weights)
        for number in range(len(ratios)):
            rows = self.fold == number
            others = np.delete(ratios, number, axis=0).sum(axis=0)
            c = mixture_weight(others, caution)
            log_q[rows] = log_mixture(self.plain[rows], self.rich[rows], c)
        return log_q


def check_shrinkage(shrinkage):
    """Raise unless it is `"auto"` or `None`."""
    require_one_of(("auto", None), shrinkage=shrinkage)
