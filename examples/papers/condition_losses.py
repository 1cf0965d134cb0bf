"""ACLS, table 6: its two ideas with the conditions of ACLS and CRL exchanged.

The paper names the mixed forms and prints no formula of them. Both are our
reading, built on the public losses.
"""

import keras
from keras import ops

import keras_calib as kc
from keras_calib.inputs.tensors import pick
from keras_calib.inputs.tensors import row_min


@keras.saving.register_keras_serializable(package="keras_calib_examples")
class RankedACLS(kc.losses.CRL):
    """Cross-entropy plus ACLS where the ranking condition of CRL holds.

        1[(h_i - h_j) (c_i - c_j) < 0] * ("AR only" of ACLS, sample i)

    with correctness h, confidence c, and j the sample after i in the batch:
    what was right more often has less confidence. The condition is constant.

    Args:
        margin: float >= 0, to which distances are pulled.
        positive_weight: float, see `kc.losses.acls`.
        negative_weight: float, see `kc.losses.acls`.
        reference: see `kc.losses.acls`.
        **kwargs: of `kc.losses.CRL`.
    """

    def __init__(
        self,
        *,
        margin=10.0,
        positive_weight=0.1,
        negative_weight=0.01,
        reference="zero",
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.keep(
            margin=margin,
            positive_weight=positive_weight,
            negative_weight=negative_weight,
            reference=reference,
        )

    def penalty(self, rows):
        history = self._history()
        if history.correct is None:
            return ops.zeros((), dtype=rows.logits.dtype)
        h = ops.cast(self.correctness(history), rows.logits.dtype)
        active = ranking_condition(h, rows.probability(rows.predicted))
        value = kc.losses.acls(
            rows.predicted,
            rows.logits,
            margin=self.margin,
            positive_weight=self.positive_weight,
            negative_weight=self.negative_weight,
            reference=self.reference,
            conditional=False,
        )
        total = ops.sum(active * value * rows.weights)
        return ops.divide_no_nan(total, ops.sum(rows.weights))


def ranking_condition(correctness, confidence):
    """1 where correctness and confidence of neighbors disagree, `(batch,)`."""
    gaps = [
        each - ops.roll(each, -1, axis=0) for each in (correctness, confidence)
    ]
    disagree = ops.cast(gaps[0] * gaps[1] < 0, gaps[1].dtype)
    return ops.stop_gradient(disagree)


@keras.saving.register_keras_serializable(package="keras_calib_examples")
class MarginCRL(kc.losses.PenalizedLoss):
    """Cross-entropy plus CRL's gradient where the margin of ACLS is exceeded.

    What CRL lowers is the confidence c. Its gradient in the logits, where the
    condition of eq. 11 holds:

        c (1 - c) 1[z_y - min z >= M]   for the predicted class y
        -c p_j 1[z_y - z_j >= M]        for the others

    It is no gradient of a simple function, so that the loss is the sum of this
    field, held constant, times the logits: its value means nothing.

    Args:
        margin: float >= 0, M.
        **kwargs: of `kc.losses.PenalizedLoss`.
    """

    def __init__(self, *, margin=10.0, **kwargs):
        super().__init__(**kwargs)
        self.keep(margin=margin)

    def penalty(self, rows):
        z, y = rows.logits, rows.predicted
        largest = pick(z, y)
        c = rows.probability(y)
        itself = ops.one_hot(y, rows.num_classes, dtype=z.dtype)
        beyond = ops.cast(largest[:, None] - z >= self.margin, z.dtype)
        far = ops.cast(largest - row_min(z) >= self.margin, z.dtype)
        others = -c[:, None] * rows.probabilities * beyond * (1 - itself)
        field = itself * (c * (1 - c) * far)[:, None] + others
        return ops.sum(ops.stop_gradient(field) * z, axis=-1)
