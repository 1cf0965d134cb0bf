"""The average of networks that were trained apart."""

import keras
from keras import ops

from keras_calib.models.networks import check_networks
from keras_calib.models.networks import log_probabilities


@keras.saving.register_keras_serializable(package="keras_calib")
class DeepEnsemble(keras.Model):
    """Average the probabilities of networks that were trained apart.

    A model like any other: `compile` it for `evaluate`, or hand it to
    `kc.calibrate`. It gives probabilities whatever its members give, so losses
    and metrics take `from_logits=False`. Train the members one by one, each
    from its own initial weights; `fit` of the ensemble would train the average,
    which is another method.

    Args:
        members: list of `keras.Model` with one output of shape
            `(..., num_classes)`, over the same classes.
        from_logits: whether the members give logits. By default the end of
            each member's graph tells; a subclassed member has none.
        **kwargs: `name`, as in Keras.

    Raises:
        ValueError: if there is no member, if members share weights, differ in
            the number of classes or in what they give, or if none of them has
            a graph and `from_logits` is not given.

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

    def __init__(self, members, from_logits=None, **kwargs):
        members = list(members)
        if not members:
            raise ValueError("An ensemble needs members. Received: none.")
        found = check_networks(
            {f"member {i}": member for i, member in enumerate(members)},
            from_logits,
        )
        kwargs = {"dtype": members[0].dtype_policy, "autocast": False, **kwargs}
        super().__init__(**kwargs)
        self.from_logits = from_logits
        self._logits = known(found, from_logits)
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
        logs = [
            log_probabilities(member(inputs, training=training), self._logits)
            for member in self.members
        ]
        return mean_probabilities(ops.stack(logs), axis=0)

    def get_config(self):
        serialize = keras.saving.serialize_keras_object
        return {
            "name": self.name,
            "dtype": keras.dtype_policies.serialize(self.dtype_policy),
            "members": [serialize(member) for member in self.members],
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


def known(found, from_logits):
    """Whether networks give logits: as told, or as their graphs say."""
    if from_logits is None and found is None:
        raise ValueError(
            "A subclassed network does not show whether it gives logits or "
            "probabilities. Pass `from_logits=`."
        )
    return bool(found if from_logits is None else from_logits)


def mean_probabilities(logs, axis):
    """Mean of probabilities, given their logarithms; its own log is kept.

    The softmax of `log mean p` is `mean p`, and Keras keeps what went into a
    softmax (not in compiled code on JAX): losses then see the tail that a
    float32 loses.
    """
    return keras.activations.softmax(ops.logsumexp(logs, axis=axis))
