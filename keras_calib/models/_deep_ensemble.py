"""The average of networks that were trained separately."""

from collections.abc import Sequence
from typing import Any

import keras

from keras_calib._typing import Tensor
from keras_calib._warning import warn
from keras_calib.keras_graph.composite import CompositeModel
from keras_calib.models._averages import MeanProbabilities
from keras_calib.models._networks import ask_from_logits
from keras_calib.models._networks import check_networks
from keras_calib.models._shared_layers import from_config
from keras_calib.models._shared_layers import to_config
from keras_calib.models._wrapped import check_trains_by_its_loss


@keras.saving.register_keras_serializable(package="keras_calib")
class DeepEnsemble(CompositeModel):
    """Average the probabilities of networks that were trained separately.

        p(x) = 1 / M * sum_m p_m(x)

    Compile it for `evaluate`, or pass it to `kc.calibrate`. It returns
    probabilities, even if its members return logits, with the shape and the
    mask of their outputs; so losses and metrics take `from_logits=False`. Train
    the members one by one from different initial weights. `fit` of the
    ensemble trains the average, which is another method, and warns.

    Args:
        members: list of `keras.Model` with one output of shape
            `(..., num_classes)`, over the same classes; or `(..., 1)`, one
            sigmoid unit.
        multi_label: whether each unit is a separate label with a sigmoid; the
            units are then averaged one by one.
        from_logits: whether the members return logits. By default this is read
            from the end of each member's graph, if that is a layer with a known
            activation. A subclassed member has no graph.
        **kwargs: `name`, as in Keras.

    Raises:
        ValueError: if there is no member; if members share trainable weights,
            differ in the number of classes, or return logits and
            probabilities; if the graph of one does not show which, and
            `from_logits` is not passed; for several sigmoid units without
            `multi_label`.

    Example:
        >>> import numpy as np, keras, keras_calib as kc
        >>> members = [keras.Sequential([keras.Input((4,)),
        ...                              keras.layers.Dense(3)])
        ...            for _ in range(3)]
        >>> ensemble = kc.models.DeepEnsemble(members)
        >>> p = ensemble.predict(np.ones((2, 4)), verbose=0)
        >>> p.shape, bool(abs(p.sum(axis=-1) - 1).max() < 1e-6)
        ((2, 3), True)

    Reference:
        Lakshminarayanan, Pritzel, Blundell, "Simple and Scalable Predictive
        Uncertainty Estimation using Deep Ensembles", NeurIPS 2017.
    """

    # Read by `kc.calibrate`, because the model has no graph.
    output_kind = "probabilities"
    parts = ("members",)
    settings = ("multi_label", "from_logits")

    def __init__(
        self,
        members: Sequence[keras.Model],
        *,
        multi_label: bool = False,
        from_logits: bool | None = None,
        **kwargs: Any,
    ) -> None:
        if not isinstance(members, list | tuple) or not members:
            raise ValueError(
                "An ensemble needs a list of members. Received: "
                f"members={members or 'none'}."
            )
        members = list(members)
        kinds = check_networks(
            {f"member {i}": member for i, member in enumerate(members)},
            multi_label,
            from_logits,
        )
        super().__init__(members[0], **kwargs)
        self.multi_label = multi_label
        self.from_logits = from_logits
        self._mean = MeanProbabilities(
            ask_from_logits(kinds, from_logits), multi_label=multi_label
        )
        self.num_members = len(members)
        self._hold("member", members)
        self.built = all(member.built for member in members)

    @property
    def members(self):
        """The networks, a list."""
        return self._held("member", self.num_members)

    def call(self, inputs: Any, training: bool | None = None) -> Tensor:
        if training:
            for member in self.members:
                check_trains_by_its_loss(member)
        return self._mean(
            [member(inputs, training=training) for member in self.members]
        )

    def fit(self, *args: Any, **kwargs: Any) -> Any:
        """As in Keras, with a warning: members are trained one by one."""
        if self.num_members > 1:
            warn(
                "`fit` of a `DeepEnsemble` trains the average of its members, "
                "which then learn from each other's errors and become alike. "
                "Call `fit` of each member instead."
            )
        return super().fit(*args, **kwargs)

    def get_config(self) -> dict[str, Any]:
        return to_config(super().get_config(), self.parts, self.members)

    @classmethod
    def _with_models(cls, config, custom_objects=None):
        config = super()._with_models(config, custom_objects)
        return from_config(config, cls.parts)
