"""`method="auto"`: a map, or a mixture of maps, chosen by held-out likelihood.

Every candidate gives each calibration sample a probability of its label, fitted
to the other folds. A candidate's weight is how often it would win if other
samples had been drawn: the samples get weights from a flat Dirichlet
distribution (the Bayesian bootstrap), the candidates' log-likelihoods of all
samples then become probabilities, and these are averaged over many draws. The
smallest of several cross-validated losses is often the smallest by luck; the
average knows. Two candidates are judged otherwise:

- Leaving the model as it is stands behind temperature scaling by the evidence
  of a temperature, as in the guard: one fold may hold most of the errors.
- The structured matrix is the only one that does not shrink to temperature
  scaling. A mixture hedges it; alone, it has prior odds of 1 to 20.

One map is the one with the largest weight. Samples of unequal weight count as
`(sum w)^2 / sum w^2` samples, in the likelihoods, too. With few samples three
things differ:

- Bayesian temperature scaling takes the place of temperature scaling, which
  then is only what the model as it is is compared with. A map whose fit ends at
  temperature scaling gives its weight to it.
- The likelihoods are taken to the power of 0.4: they differ by luck, also
  between maps that most draws of weights tell apart.
- One map is the one that is expected to lose least if the mixture of all is
  right: the least mean cross-entropy between the mixture and the map. A map
  that most others contradict is then not chosen for a small lead.

The candidates were chosen on three files of predictions, 50 to 5,000 samples
(`examples/benchmarks/no_harm.py`): few that differ, because votes for maps that
are nearly the same are divided. The odds were chosen on these and on four made
tables, 50 to 500 samples (`--data tables`), what holds for few samples on all
these and on the development data of `choice_rules.py` beside it.
"""

import dataclasses
import time
import warnings

import numpy as np

from keras_calib._warning import warn_again
from keras_calib.calibration._few_samples import LEAST_WEIGHT
from keras_calib.calibration._few_samples import credit_temperature
from keras_calib.calibration._few_samples import expected_losses
from keras_calib.calibration._few_samples import probabilities_of_maps
from keras_calib.calibration._guard import PRIOR
from keras_calib.calibration._guard import PRIOR_OF_EVIDENCE
from keras_calib.calibration._guard import evidence_of_temperature
from keras_calib.calibration._held_out import adapt
from keras_calib.calibration._held_out import folds
from keras_calib.calibration._held_out import groups_from_zero
from keras_calib.calibration._held_out import held_out_losses
from keras_calib.calibration._held_out import losses_of_folds
from keras_calib.calibration._held_out import losses_of_model
from keras_calib.calibration._held_out import quiet_fit
from keras_calib.calibration._held_out import standard_error
from keras_calib.calibration._held_out import subsample
from keras_calib.calibration._methods import as_map
from keras_calib.calibration._methods import is_affine
from keras_calib.calibration._no_calibration import UNCHANGED
from keras_calib.inputs.arguments import generator
from keras_calib.keras_graph.head import free_name
from keras_calib.layers import CalibrationMixture
from keras_calib.layers._base import CalibrationLayer
from keras_calib.layers._shrunk import ShrunkCalibration
from keras_calib.solvers import matrix_evidence

NUM_FOLDS = 5
NUM_DRAWS = 200
# More calibration samples do not change which map is best.
MAX_SAMPLES = 20_000
# Weights that differ by less are equal.
TIE = 0.01
# With more classes, a fit of these takes too long.
SLOW = ("structured_matrix", "parameterized_temperature")
MAX_CLASSES = 100
# With more samples one temperature is known well enough, and the map with the
# largest weight is not worse than the one that is nearest to all.
FEW_SAMPLES = 200
# Likelihoods of up to so many samples are taken to this power, and with more a
# structured matrix, which does not shrink, did harm on some networks.
NOISY_SAMPLES, POWER = 500, 0.4
AVERAGED = "bayesian_temperature"
# In the order in which they are tried, as long as `max_seconds` lasts: what is
# quick, then affine maps, which win most often. The matrix contains vector,
# class-wise and bias-corrected temperatures.
CANDIDATES = (
    UNCHANGED, "temperature", AVERAGED, "spline", "matrix",
    "structured_matrix", "order_preserving", "parameterized_temperature",
)  # fmt: skip
BINARY = (
    UNCHANGED, "temperature", AVERAGED, "platt", "beta", "quadratic", "spline",
)  # fmt: skip
AFFINE = (UNCHANGED, "temperature", "platt", "matrix")


@dataclasses.dataclass(frozen=True)
class Choice:
    """What `choose` found.

    Attributes:
        weights: dict from the name of a method to its weight, the largest
            first; they sum to 1.
        trials: what each candidate scored, see `CalibrationRecord`.
        fitted: dict from the name of a method to a map that was fitted to all
            samples on the way, and the warnings of its fit.
        expected: with few samples, dict from the name of a method to the mean
            cross-entropy between the mixture and its map; otherwise empty.
    """

    weights: dict[str, float]
    trials: dict[str, dict]
    fitted: dict[str, tuple[CalibrationLayer, list]]
    expected: dict[str, float] = dataclasses.field(default_factory=dict)

    @property
    def best(self):
        """With few samples, the one that is expected to lose least.

        Otherwise the first, so the cheapest, of those with the largest weight.
        """
        if self.expected:
            return min(self.expected, key=self.expected.get)
        most = max(self.weights.values()) - TIE
        return next(n for n in self.trials if self.weights.get(n, 0) >= most)

    def adapt(self, layer, rows, **options):
        """`adapt` of the best, or of a mixture, which fits no map again.

        Args:
            layer: a layer for `best`, or what `mixture_of` returned.
            rows: `CalibrationRows`, those of `choose`.
            **options: as those of `choose`.
        """
        if not isinstance(layer, CalibrationMixture):
            self._adapt(self.best, layer, rows, options)
            return
        twins = layer.twins()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for twin in twins:
                self._adapt(twin.name, twin, rows, options)
        # Maps that start from one temperature warn of it each.
        warn_again({str(each.message): each for each in caught}.values())
        layer.take(twins, rows)

    def _adapt(self, name, layer, rows, options):
        if name not in self.fitted:
            adapt(layer, rows, **options)
            return
        fitted, caught = self.fitted[name]
        warn_again(caught)
        layer.build((None, rows.logits.shape[1]))
        layer.set_weights(fitted.get_weights())
        layer.record = fitted.record


def choose(rows, options, *, mixture=False):
    """Compare candidates on held-out samples.

    Args:
        rows: `CalibrationRows`, one row per sample.
        options: `Options`.
        mixture: whether the candidates are to be averaged.

    Returns:
        `Choice`.

    Raises:
        ValueError: if there are fewer samples than folds, or temperature
            scaling cannot be fitted.
    """
    if len(rows.labels) != rows.num_samples:
        raise ValueError(
            '`method="auto"` compares layers on samples of one class each. '
            "Received: soft labels. Pass class ids, or name a method."
        )
    whole, rows = rows, subsample(rows, MAX_SAMPLES, options.seed)
    fold = folds(rows, NUM_FOLDS, options.seed)
    if fold is None:
        kind, received = "sample", f"{len(rows.labels)} calibration samples"
        if rows.group is not None:
            kind = "group of samples, such as an image,"
            received = f"{len(np.unique(rows.group))} groups"
        raise ValueError(
            f'`method="auto"` needs a {kind} for each of {NUM_FOLDS} folds. '
            f"Received: {received}. Use more, or name a method."
        )
    by_evidence = rows.group is None
    log_odds = {} if mixture else {"structured_matrix": -PRIOR}
    log_odds[UNCHANGED] = -PRIOR_OF_EVIDENCE if by_evidence else -PRIOR
    trials, losses, fitted = _tried(rows, fold, options)
    shown = dict(losses)
    if by_evidence:
        shown[UNCHANGED] = losses_of_model(rows)
        evidence = evidence_of_temperature(rows)
        trials[UNCHANGED]["temperature_log_evidence"] = evidence
        losses[UNCHANGED] = (
            losses["temperature"] + evidence / rows.effective_num_samples
        )
    if np.isfinite(losses.get(AVERAGED, np.nan)).all():
        log_odds["temperature"] = -np.inf
    power = POWER if rows.effective_num_samples <= NOISY_SAMPLES else 1.0
    power *= rows.effective_num_samples / rows.num_samples
    weights = bootstrap_weights(losses, rows, log_odds, options.seed, power)
    if log_odds.get("temperature") == -np.inf:
        credit_temperature(weights, trials, rows, options, fitted)
    for name, weight in weights.items():
        nll = float(np.average(shown[name], weights=rows.weights))
        trials[name] = {"nll": nll, **trials[name], "weight": weight}
        trials[name]["standard_error"] = standard_error(
            shown[name] - shown["temperature"], rows
        )
    order = sorted(weights, key=lambda name: -weights[name])
    weights = {name: weights[name] for name in order}
    expected = {}
    if rows.effective_num_samples <= FEW_SAMPLES and not mixture:
        q = probabilities_of_maps(weights, rows, options, fitted, trials)
        expected = expected_losses(weights, rows, q)
        for name, loss in expected.items():
            trials[name]["expected_nll"] = loss
    return Choice(weights, trials, fitted if rows is whole else {}, expected)


def _tried(rows, fold, options):
    """`trials` and `fitted` of `Choice`, and losses by `_losses`."""
    trials, losses, fitted = {}, {}, {}
    for name in _candidates(rows.logits, options):
        begin = time.perf_counter()
        reason = _reason_to_skip(name, rows, options)
        if reason is None:
            try:
                losses[name] = _losses(name, rows, fold, options, fitted)
            except TimeoutError:
                reason = "max_seconds"
            except (ArithmeticError, ValueError) as error:
                if name == "temperature":
                    raise  # all others are compared with it
                reason = str(error)
        if reason is not None:
            trials[name] = {"skipped": reason}
            continue
        trials[name] = {"seconds": round(time.perf_counter() - begin, 3)}
    return trials, losses, fitted


def mixture_of(choice, network, options):
    """The candidates whose weights are worth a map, still to be fitted."""
    kept = {
        name: weight
        for name, weight in choice.weights.items()
        if weight >= LEAST_WEIGHT
    }
    maps = [as_map(name, affine=options.affine) for name in kept]
    name = free_name(network, "mixture")
    return CalibrationMixture(maps=maps, weights=[*kept.values()], name=name)


def bootstrap_weights(losses, rows, log_odds, seed=0, power=1.0):
    """Mean posterior probability of each candidate over redrawn samples.

        weight_m = mean_d  exp(-power sum_n v_dn loss_mn) / sum_m' exp(...)

    with `v_d` from `Dirichlet(1, ..., 1)`, times sample weights, brought to the
    sum `n`, and `exp` also of the log of the prior odds. Groups are redrawn as
    a whole.

    Args:
        losses: dict from name to held-out losses, `(n,)`.
        rows: `CalibrationRows`.
        log_odds: dict from name to the log of its prior odds against the
            others; 0 for a name that is not there.
        seed: int.
        power: of the likelihoods.

    Returns:
        dict from name to weight; 0 where a loss is not finite.
    """
    names = [name for name, loss in losses.items() if np.isfinite(loss).all()]
    table = np.stack([losses[name] for name in names], axis=1)
    if rows.weights is not None:
        table = table * rows.weights[:, None]
    unit = groups_from_zero(rows)
    sums = np.stack([np.bincount(unit, column) for column in table.T], axis=1)
    drawn = generator(seed).exponential(size=(NUM_DRAWS, len(sums)))
    drawn *= len(sums) / drawn.sum(axis=1, keepdims=True)
    scores = power * (drawn @ sums)
    scores = [log_odds.get(name, 0.0) for name in names] - scores
    scores -= scores.max(axis=1, keepdims=True)
    chances = np.exp(scores)
    chances /= chances.sum(axis=1, keepdims=True)
    found = dict(zip(names, map(float, chances.mean(axis=0)), strict=True))
    return {name: found.get(name, 0.0) for name in losses}


def _candidates(logits, options):
    num_units = logits.shape[-1]
    names = BINARY if num_units <= 2 else CANDIDATES
    if options.affine:
        names = [name for name in AFFINE if num_units <= 2 or name != "platt"]
    instead = None
    if not matrix_evidence.fits_matrix(num_units):
        # The default matrix is one of slopes and biases there.
        instead = "vector"
    elif not options.affine and np.isneginf(logits.min()):
        # A matrix cannot mix the logits of classes that are ruled out.
        instead = "dirichlet"
    if instead is not None:
        names = [instead if name == "matrix" else name for name in names]
    if not options.affine:
        return names
    return [
        name
        for name in names
        if name == UNCHANGED or is_affine(as_map(name, affine=True))
    ]


def _reason_to_skip(name, rows, options):
    num_classes = max(2, rows.logits.shape[-1])
    if options.preserve_accuracy and name != UNCHANGED:
        if not as_map(name, affine=options.affine).preserves_accuracy:
            return "may change predictions"
    if name in SLOW and num_classes > MAX_CLASSES:
        return f"more than {MAX_CLASSES} classes"
    if options.of_pixels and name not in (UNCHANGED, "temperature", AVERAGED):
        return "pixels of images without `groups`"
    limits = {AVERAGED: FEW_SAMPLES, "structured_matrix": NOISY_SAMPLES}
    if rows.effective_num_samples > limits.get(name, np.inf):
        return f"more than {limits[name]:,} samples"
    if name not in (UNCHANGED, "temperature") and options.seconds_left() <= 0:
        return "max_seconds"
    return None


def _losses(name, rows, fold, options, fitted):
    """`-log q_y` of each sample, by maps that were not fitted to it.

    For the model as it is, `None` where `choose` judges it by evidence. What is
    fitted to all samples on the way is added to `fitted`.

    Raises:
        TimeoutError: if the time is over before all folds are.
    """
    if name == UNCHANGED:
        return None if rows.group is None else losses_of_model(rows)
    layer = as_map(name, affine=options.affine)
    scaling = options.class_loss_scaling
    learns_from_folds = isinstance(layer, ShrunkCalibration) and layer.has_folds
    if scaling is None and learns_from_folds:
        layer.deadline = options.deadline
        fitted[name] = layer, quiet_fit(layer, rows, options)
        found = losses_of_folds(layer, rows)
        layer.folds = None  # arrays of the size of the data
        if found is not None:
            return found[0]
    deadline = np.inf if name == "temperature" else options.deadline
    return held_out_losses(
        layer, rows, fold, class_loss_scaling=scaling, deadline=deadline
    )
