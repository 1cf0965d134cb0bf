"""The average of networks that were trained apart."""

import keras

from keras_calib.models._averages import MeanProbabilities
from keras_calib.models._networks import ask_from_logits
from keras_calib.models._networks import check_networks


@keras.saving.register_keras_serializable(package="keras_calib")
class DeepEnsemble(keras.Model):
    """Average the probabilities of networks that were trained apart.

    A model like any other: `compile` it for `evaluate`, or hand it to
    `kc.calibrate`. It gives probabilities whatever its members give, in the
    shape that they have, with their mask; so losses and metrics take
    `from_logits=False`. Train the members one by one, each from its own
    initial weights; `fit` of the ensemble would train the average, which is
    another method.

    Args:
        members: list of `keras.Model` with one output of shape
            `(..., num_classes)`, over the same classes; or `(..., 1)`, one
            sigmoid unit.
        multi_label: whether units are labels of their own, each with a
            sigmoid: they are averaged one by one.
        from_logits: whether the members give logits. By default the end of
            each member's graph tells, where it is a layer with a known
            activation; a subclassed member has no graph.
        **kwargs: `name`, as in Keras.

    Raises:
        ValueError: if there is no member; if members share trainable weights,
            differ in the number of classes or in what they give; if one of
            them does not show what it gives, and `from_logits` is not given;
            for several sigmoid units without `multi_label`.

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

    # What `kc.calibrate` asks of a model without a graph.
    output_kind = "probabilities"

    def __init__(
        self, members, *, multi_label=False, from_logits=None, **kwargs
    ):
        if not isinstance(members, list | tuple) or not members:
            raise ValueError(
                "An ensemble needs a list of members. Received: "
                f"members={members or 'none'}."
            )
        members = list(members)
        kinds = check_networks(
            {f"member {i}": member for i, member in enumerate(members)},
            multi_label,
        )
        kwargs = {"dtype": members[0].dtype_policy, "autocast": False, **kwargs}
        super().__init__(**kwargs)
        self.multi_label = multi_label
        self.from_logits = from_logits
        self._mean = MeanProbabilities(
            ask_from_logits(kinds, from_logits), multi_label
        )
        # See `MutualLearning`: an attribute each, for PyTorch.
        self.num_members = len(members)
        for i, member in enumerate(members):
            setattr(self, f"member_{i}", member)
        self.built = all(member.built for member in members)

    @property
    def members(self):
        """The networks, a list."""
        return [getattr(self, f"member_{i}") for i in range(self.num_members)]

    def call(self, inputs, training=None):
        return self._mean(
            [member(inputs, training=training) for member in self.members]
        )

    def get_config(self):
        serialize = keras.saving.serialize_keras_object
        return {
            "name": self.name,
            "dtype": keras.dtype_policies.serialize(self.dtype_policy),
            "members": [serialize(member) for member in self.members],
            "multi_label": self.multi_label,
            "from_logits": self.from_logits,
        }

    @classmethod
    def from_config(cls, config, custom_objects=None):
        members = [
            keras.saving.deserialize_keras_object(
                member, custom_objects=custom_objects
            )
            for member in config["members"]
        ]
        return cls(**{**config, "members": members})
