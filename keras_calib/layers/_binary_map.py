"""Base of the maps of two classes: logistic regressions on the log-odds."""

import numpy as np

from keras_calib.inputs.arrays import LOWEST
from keras_calib.inputs.arrays import largest_seen
from keras_calib.inputs.tensors import maximum
from keras_calib.layers._shrunk import ShrunkCalibration
from keras_calib.solvers.logistic import binary_nll
from keras_calib.solvers.logistic import fit_logistic
from keras_calib.solvers.logistic import platt_targets

# A loss of separable classes, in nats.
SEPARABLE = 1e-8


class BinaryMap(ShrunkCalibration):
    """Base of maps of one number, the log-odds of the second class.

    The map is a logistic regression. A subclass has `features(log_odds)`,
    `(n, number of parameters)`, and `transform(log_odds, w, xp)`, the map of a
    tensor or array of any shape; see `FormulaCalibration._map`.
    """

    shift_invariant = True
    binary_only = True
    of_classes = True
    # The parameters at the identity, and their lower bounds.
    identity: dict[str, float] = {}
    lower: tuple[float, ...] = ()
    # Whether to fit to Platt's targets rather than 1 and 0.
    smooth_targets = False
    caution = 1.0

    def design(self) -> np.ndarray:
        """Maps the fitted parameters to all of them, a matrix."""
        return np.eye(len(self.identity))

    def degrees_of_freedom(self, num_classes: int) -> int:
        return self.design().shape[1]

    def _add_weights(self, num_classes):
        if num_classes > 2:
            raise ValueError(
                f"{type(self).__name__} is for two classes, or one sigmoid "
                f"unit. Received: logits of {num_classes} classes."
            )
        for name, value in self.identity.items():
            self._add(name, value)

    def _transform(self, logits, w, xp):
        # Infinity minus infinity is not a number.
        logits = maximum(logits, LOWEST, xp)
        half = self.transform(logits[..., 1:] - logits[..., :1], w, xp) / 2
        # Around 0: added to a large logit, the digits would be lost.
        return xp.concatenate([-half, half], axis=-1)

    def _solve(self, logits, labels, weights, objective, tempered):
        if labels.min() == labels.max():
            raise ValueError(
                f"{type(self).__name__} needs samples of both classes. "
                f"Received: {len(labels)} samples of class {labels[0]} only."
            )
        # A class at minus infinity is ruled out; float64 keeps the difference.
        logits = np.maximum(np.asarray(logits, "float64"), LOWEST)
        log_odds = logits[:, 1] - logits[:, 0]
        targets = labels.astype("float64")
        nll_before = binary_nll(log_odds, targets, weights)
        # Rows that rule out the class that they do not have say nothing. To
        # Platt's targets they would cost most of all.
        distances = np.abs(log_odds)
        seen = distances < largest_seen(distances)
        seen |= (log_odds > 0) != (labels == 1)
        if len(np.unique(labels[seen])) < 2:
            seen[:] = True
        features = self.features(log_odds)
        theta, smooth = self._best(features[seen], targets[seen], weights[seen])
        nll = binary_nll(features @ theta, targets, weights)
        if nll > nll_before:
            # Platt's targets can increase the NLL of the labels.
            theta, nll = self.identity.values(), nll_before
        parameters = dict(zip(self.identity, map(float, theta), strict=True))
        return parameters, {
            **parameters,
            "smooth_targets": smooth,
            "nll_before": nll_before,
            "nll_after": nll,
        }

    def _best(self, features, targets, weights):
        """The parameters, and whether Platt's targets were used.

        Separable classes, whose loss goes to 0, have no best parameters
        without them.
        """
        if not self.smooth_targets:
            theta = self._fit_to(targets, features, weights)
            if binary_nll(features @ theta, targets, weights) > SEPARABLE:
                return theta, False
        smooth = platt_targets(targets, weights)
        return self._fit_to(smooth, features, weights), True

    def _fit_to(self, targets, features, weights):
        """The parameters of a logistic regression."""
        design = self.design()
        # Tied parameters have the same start and the same bound.
        first = design.argmax(axis=0)
        start = np.array([*self.identity.values()])[first]
        lower = np.array(self.lower)[first]
        theta, _ = fit_logistic(
            features @ design, targets, start, weights, lower
        )
        return design @ theta
