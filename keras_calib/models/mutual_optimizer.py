"""One optimizer for `fit` that is two: the primary's and the auxiliaries'."""

import keras

# Which network a weight belongs to. Not its path: two networks of the same
# architecture have equal paths.
OWNER = "_keras_calib_owner"


def mark(network, owner):
    """Tag the weights of a network, so that its optimizer finds them."""
    for variable in network.variables:
        setattr(variable, OWNER, owner)


@keras.saving.register_keras_serializable(package="keras_calib")
class _ByOwner(keras.optimizers.OptimizerMap):
    def __call__(self, variable):
        return self[getattr(variable, OWNER, "primary")]


@keras.saving.register_keras_serializable(package="keras_calib")
class MutualOptimizer(keras.optimizers.MultiOptimizer):
    """Two optimizers behind one: the primary's, and that of its auxiliaries.

    `compile(optimizer, auxiliary_optimizer=...)` of `MutualLearning` and
    `DiffDML` makes one. `learning_rate` is the primary's: schedules,
    `LearningRateScheduler` and `ReduceLROnPlateau` leave the auxiliaries
    alone. Each of the two clips and averages the weights of its own networks.

    Args:
        primary: optimizer of the primary network.
        auxiliary: optimizer of the auxiliary networks.
        loss_scale_factor: as in Keras, for both.
        name: as in Keras.

    Example:
        >>> import keras, keras_calib as kc
        >>> optimizer = kc.models.MutualOptimizer(
        ...     keras.optimizers.SGD(0.1), keras.optimizers.SGD(0.01))
        >>> round(float(optimizer.learning_rate), 6)
        0.1
    """

    def __init__(
        self,
        primary,
        auxiliary,
        loss_scale_factor=None,
        name="mutual_optimizer",
    ):
        primary = keras.optimizers.get(primary)
        auxiliary = keras.optimizers.get(auxiliary)
        if primary is auxiliary:
            raise ValueError(
                "The primary and its auxiliaries need an optimizer each. "
                "Received: the same object twice."
            )
        super().__init__(
            _ByOwner(primary, {"auxiliary": auxiliary}),
            loss_scale_factor=loss_scale_factor,
            name=name,
        )
        self.primary = primary
        self.auxiliary = auxiliary

    @property
    def learning_rate(self):
        return self.primary.learning_rate

    @learning_rate.setter
    def learning_rate(self, learning_rate):
        self.primary.learning_rate = learning_rate

    @property
    def optimizers(self):
        # Callbacks that find this would drive the auxiliaries as well.
        raise AttributeError("Use `primary` and `auxiliary`.")

    def get_config(self):
        serialize = keras.saving.serialize_keras_object
        return {
            "primary": serialize(self.primary),
            "auxiliary": serialize(self.auxiliary),
            "loss_scale_factor": self.loss_scale_factor,
            "name": self.name,
        }

    @classmethod
    def from_config(cls, config, custom_objects=None):
        config = dict(config)
        for part in ("primary", "auxiliary"):
            config[part] = keras.saving.deserialize_keras_object(
                config[part], custom_objects=custom_objects
            )
        return cls(**config)


def at_fixed_rate(optimizer, ratio):
    """A copy of an optimizer whose learning rate stays at `ratio` of it.

    Args:
        optimizer: a `keras.optimizers.Optimizer`, with a schedule or without.
        ratio: float, of the learning rate that `optimizer` starts with.

    Returns:
        A new optimizer of the same class.

    Raises:
        ValueError: if the schedule starts at zero.
    """
    start = float(keras.ops.convert_to_numpy(optimizer.learning_rate))
    if not start > 0:
        raise ValueError(
            "The auxiliaries' learning rate is by default a part of the one "
            f"that `optimizer` starts with. Received: {start}. Pass "
            "`auxiliary_optimizer=`."
        )
    config = optimizer.get_config()
    config["learning_rate"] = ratio * start
    config["name"] = "auxiliary_optimizer"
    return type(optimizer).from_config(config)
