"""Two optimizers as one for `fit`: the primary's and the auxiliaries'."""

from typing import Any

import keras

from keras_calib.inputs.arguments import is_number
from keras_calib.inputs.arguments import require_kind
from keras_calib.keras_graph.composite import CompositeModel
from keras_calib.keras_private import copy_weight_decay_exclusions
from keras_calib.keras_private import moving_averages

# Attribute of a weight: its network. Paths of weights would not do, because
# networks of the same architecture have equal paths.
OWNER = "_keras_calib_owner"


class OwnedNetworks(CompositeModel):
    """Base of a model whose networks have two optimizers: tags their weights.

    The model has `primary` and `auxiliaries`.
    """

    def mark_owners(self):
        """Tag all weights, so that their optimizer finds them."""
        for network in (self.primary, *self.auxiliaries):
            owner = "primary" if network is self.primary else "auxiliary"
            for variable in network.variables:
                setattr(variable, OWNER, owner)

    # Another model may have the networks in other roles.
    def fit(self, *args: Any, **kwargs: Any) -> keras.callbacks.History:
        self.mark_owners()
        return super().fit(*args, **kwargs)

    def train_on_batch(self, *args: Any, **kwargs: Any) -> Any:
        self.mark_owners()
        return super().train_on_batch(*args, **kwargs)


@keras.saving.register_keras_serializable(package="keras_calib")
class _ByOwner(keras.optimizers.OptimizerMap):
    def __call__(self, variable):
        return self[getattr(variable, OWNER, "primary")]


@keras.saving.register_keras_serializable(package="keras_calib")
class MutualOptimizer(keras.optimizers.MultiOptimizer):
    """The optimizer of a primary network and that of its auxiliaries as one.

    `compile(optimizer, auxiliary_optimizer=...)` of `MutualLearning` and
    `DiffDML` creates one. `learning_rate` is that of the primary: schedules,
    `LearningRateScheduler` and `ReduceLROnPlateau` do not change that of the
    auxiliaries, and `SwapEMAWeights` swaps the weights of the primary only.
    Each optimizer clips and averages the weights of its own networks.

    Args:
        primary: optimizer of the primary network.
        auxiliary: optimizer of the auxiliary networks.
        loss_scale_factor: as in Keras, for both, because they share one loss.
            Defaults to the factor of `primary`, or else of `auxiliary`.
        name: as in Keras.

    Raises:
        ValueError: if one is no optimizer, or both are the same object.

    Example:
        >>> import keras, keras_calib as kc
        >>> optimizer = kc.models.MutualOptimizer(
        ...     keras.optimizers.SGD(0.1), keras.optimizers.SGD(0.01))
        >>> round(float(optimizer.learning_rate), 6)
        0.1
    """

    def __init__(
        self,
        primary: keras.optimizers.Optimizer,
        auxiliary: keras.optimizers.Optimizer,
        *,
        loss_scale_factor: float | None = None,
        name: str = "mutual_optimizer",
    ) -> None:
        primary = keras.optimizers.get(primary)
        auxiliary = keras.optimizers.get(auxiliary)
        require_kind(
            keras.optimizers.Optimizer,
            "an optimizer",
            primary=primary,
            auxiliary=auxiliary,
        )
        if primary is auxiliary:
            raise ValueError(
                "The primary and its auxiliaries need an optimizer each. "
                "Received: the same object twice."
            )
        if loss_scale_factor is None:
            loss_scale_factor = (
                primary.loss_scale_factor or auxiliary.loss_scale_factor
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
        # Callbacks would change the learning rates of these, too.
        raise AttributeError("Use `primary` and `auxiliary`.")

    @property
    def _model_variables_moving_average(self):
        # `SwapEMAWeights` pairs these with the variables of this optimizer,
        # of which the primary's are the first.
        return moving_averages(self.primary)

    def exclude_from_weight_decay(
        self, var_list: Any = None, var_names: Any = None
    ) -> None:
        """As in Keras, for both optimizers."""
        for optimizer in (self.primary, self.auxiliary):
            optimizer.exclude_from_weight_decay(var_list, var_names)

    def get_config(self) -> dict[str, Any]:
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


def is_mutual(optimizer):
    """Whether it is a `MutualOptimizer`, or scales the loss of one."""
    return isinstance(_inside(optimizer), MutualOptimizer)


def combined(primary, auxiliary):
    """Both optimizers as one; a `LossScaleOptimizer` goes around it.

    The networks share one loss, so they share its scale as well: the
    primary's, where both optimizers bring one.
    """
    primary = keras.optimizers.get(primary)
    auxiliary = keras.optimizers.get(auxiliary)
    both = MutualOptimizer(_inside(primary), _inside(auxiliary))
    for optimizer in (primary, auxiliary):
        if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
            return keras.optimizers.LossScaleOptimizer(
                both,
                initial_scale=optimizer.initial_scale,
                dynamic_growth_steps=optimizer.dynamic_growth_steps,
                name=optimizer.name,
            )
    return both


def _inside(optimizer):
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        return optimizer.inner_optimizer
    return optimizer


def at_fixed_rate(optimizer, ratio):
    """A copy of an optimizer whose learning rate stays at `ratio` of it.

    Args:
        optimizer: a `keras.optimizers.Optimizer`, with a schedule or without.
        ratio: float, of the learning rate that a schedule starts with, or that
            the optimizer has now.

    Returns:
        A new optimizer of the same class. It leaves the same weights out of
        weight decay.

    Raises:
        ValueError: if that learning rate is zero.
    """
    optimizer = _inside(optimizer)
    start = _first_rate(optimizer)
    if not (is_number(start) and start > 0):
        raise ValueError(
            "The auxiliaries' learning rate is by default a part of the one "
            f"that `optimizer` starts with. Received: {start}. Pass "
            "`auxiliary_optimizer=`."
        )
    config = optimizer.get_config()
    config["learning_rate"] = ratio * start
    config["name"] = "auxiliary_optimizer"
    copy = type(optimizer).from_config(config)
    copy_weight_decay_exclusions(optimizer, copy)
    return copy


def _first_rate(optimizer):
    """The rate of step 0: an optimizer that has trained is further on."""
    try:
        optimizer = type(optimizer).from_config(optimizer.get_config())
    except (TypeError, ValueError):
        pass  # a schedule that is not registered: the rate of now
    return float(keras.ops.convert_to_numpy(optimizer.learning_rate))
