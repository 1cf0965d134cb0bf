"""A model around a model: trains it in another way, predicts as it does."""

import inspect
from typing import Any

import keras

from keras_calib._typing import Tensor
from keras_calib.data.sample_index import INPUTS
from keras_calib.inputs.tensors import total
from keras_calib.inputs.tensors import wide_floatx
from keras_calib.keras_graph.composite import CompositeModel
from keras_calib.keras_graph.endings import check_one_output
from keras_calib.keras_graph.endings import has_outputs
from keras_calib.keras_graph.endings import output_kind
from keras_calib.keras_private import additional_loss
from keras_calib.models._networks import symbolic


class WrappedModel(CompositeModel):
    """Base of the training procedures: holds the model that it trains.

    A subclass defines how a batch of training data is packed (`unpack`) and
    its loss (`compute_loss`). It reports the parts of the loss by `show`.
    """

    def __init__(self, model: keras.Model, **kwargs: Any) -> None:
        check_trains_by_its_loss(model)
        if has_outputs(model):
            check_one_output(model, called=True)
        super().__init__(model, **kwargs)
        self.model = model
        self._parts = {
            part: keras.metrics.Mean(name=part, dtype=wide_floatx())
            for part in ("primary_loss", "penalty")
        }
        self.built = model.built

    @property
    def output_kind(self):
        """What the model returns, for `kc.calibrate`; `None` if unknown."""
        return output_kind(self.model)

    def unpack(self, inputs: Any) -> tuple[Any, Tensor | None]:
        """What the model takes, and what else was packed with it."""
        raise NotImplementedError

    def shows_parts(self) -> bool:
        """Whether the loss has parts to report."""
        return True

    def build(self, input_shape: Any) -> None:
        if isinstance(input_shape, dict):
            input_shape = input_shape.get(INPUTS, input_shape)
        if not self.model.built:
            self.model(symbolic(input_shape, self.model.input_dtype))
        self.built = True

    def call(self, inputs: Any, training: bool | None = None) -> Tensor:
        inputs, _ = self.unpack(inputs)
        return self.model(inputs, training=training)

    def export(self, *args: Any, **kwargs: Any) -> None:
        """Export the model inside, as `keras.Model.export` does."""
        return self.model.export(*args, **kwargs)

    def show(self, part, value, weight):
        """Report a part of the loss, a mean over rows of this weight."""
        self._parts[part].update_state(value, sample_weight=weight)

    @property
    def metrics(self):
        hidden = set()
        if not self.shows_parts():
            hidden = {id(metric) for metric in self._parts.values()}
        return [each for each in super().metrics if id(each) not in hidden]

    def additional_losses(self):
        """Weight penalties of the layers, as Keras would add them."""
        return total(additional_loss(self, loss) for loss in self.losses)


def check_trains_by_its_loss(model):
    """Raise `ValueError` for a model that another one cannot train.

    A model around it calls it and computes the loss. If the model overrides
    its training step, for example to train a second network, that step would
    not run.
    """
    for name in ("train_step", "compute_loss"):
        if getattr(type(model), name, None) is not getattr(keras.Model, name):
            raise ValueError(
                "A model that is trained inside another one is trained by its "
                "predictions and the loss of `compile`. Received: a "
                f"{type(model).__name__}, which has a `{name}` of its own that "
                "would not run. Train it by itself."
            )


def arguments_of_fit(model, args, kwargs):
    """The arguments of `keras.Model.fit` by name, however they were passed."""
    bound = inspect.signature(keras.Model.fit).bind(model, *args, **kwargs)
    arguments = dict(bound.arguments)
    arguments.pop("self")
    return arguments


def with_argument(function, name):
    """The signature of a function with one more keyword argument."""
    found = inspect.signature(function).parameters.values()
    kind = inspect.Parameter.KEYWORD_ONLY
    added = inspect.Parameter(name, kind, default=None)
    parameters = [each.replace(annotation=Any) for each in (*found, added)]
    return inspect.Signature(parameters, return_annotation=Any)


def with_callback(callback, callbacks):
    """`callbacks` of `fit` in any form, with one more that runs first."""
    if isinstance(callbacks, keras.callbacks.CallbackList):
        callback.set_model(callbacks.model)
        callback.set_params(callbacks.params)
        # An earlier `fit` may have added one.
        others = [
            c for c in callbacks.callbacks if type(c) is not type(callback)
        ]
        callbacks.callbacks = [callback, *others]
        return callbacks
    return [callback, *keras.tree.flatten(callbacks or [])]
