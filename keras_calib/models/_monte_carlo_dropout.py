"""Dropout in prediction: the average over random masks of one network."""

import contextlib
import contextvars
import functools
import threading
from typing import Any

import keras
from keras import ops

from keras_calib._typing import Tensor
from keras_calib.inputs.arguments import require_integer
from keras_calib.keras_graph.composite import CompositeModel
from keras_calib.keras_private import flatten_layers
from keras_calib.models._averages import MeanProbabilities
from keras_calib.models._networks import ask_from_logits
from keras_calib.models._networks import check_networks
from keras_calib.models._wrapped import check_trains_by_its_loss
from keras_calib.ops.uncompiled import uncompiled_on_torch

DROPOUT = (
    keras.layers.Dropout,
    keras.layers.AlphaDropout,
    keras.layers.GaussianDropout,
)


@keras.saving.register_keras_serializable(package="keras_calib")
class MonteCarloDropout(CompositeModel):
    """Average the probabilities of a network over random dropout masks.

        p(x) = 1 / num_masks * sum_m p(x; mask_m)

    A trained network with dropout predicts with dropout switched on. This
    applies to `Dropout`, `SpatialDropout1D` to `3D`, `AlphaDropout` and
    `GaussianDropout`, and to the `dropout` and `recurrent_dropout` of attention
    layers, recurrent layers and their cells, at any depth. Nothing else is
    random: batch normalization, `GaussianNoise` and augmentation layers work as
    in inference. A custom layer with dropout in its `call` is found if it holds
    a `Dropout` layer.

    All masks run as one batch that is `num_masks` times as long, which takes
    as much more memory. If a `noise_shape` shares one mask among samples, the
    network runs `num_masks` times instead.

    Compile it for `evaluate`, or pass it to `kc.calibrate`. It returns
    probabilities, even if the network returns logits, with the shape and the
    mask of its outputs. Two calls differ; `keras.utils.set_random_seed` makes a
    program repeatable. `fit` trains the network with one mask per sample.
    Layers that were made in a `keras.RematScope` keep what they computed while
    masks are drawn, except on JAX: TensorFlow and PyTorch would compute the
    gradients of sampled predictions with other masks. A `keras.remat` in the
    `call` of a layer of yours is not seen: for such gradients leave it out.
    Exported as a SavedModel or a torch program, it averages over new masks in
    each call, too; other formats are refused, because they lose the masks.

    Args:
        model: a `keras.Model` with dropout and one output of shape
            `(batch, ..., num_classes)`, or `(batch, ..., 1)` for one sigmoid.
        num_masks: int, number of masks.
        multi_label: whether each unit is a separate label with a sigmoid; the
            units are then averaged one by one.
        from_logits: whether the network returns logits. By default this is read
            from the end of its graph, if that is a layer with a known
            activation. A subclassed network has no graph.
        **kwargs: `name`, as in Keras.

    Raises:
        ValueError: if the model has no dropout, or a stateful layer; if
            `num_masks` is below 1; if the graph does not show whether the
            network returns logits, and `from_logits` is not passed; for several
            sigmoid units without `multi_label`.

    Example:
        >>> import numpy as np, keras, keras_calib as kc
        >>> model = keras.Sequential([keras.Input((4,)),
        ...                           keras.layers.Dropout(0.5),
        ...                           keras.layers.Dense(3)])
        >>> sampled = kc.models.MonteCarloDropout(model, num_masks=8)
        >>> sampled.predict(np.ones((2, 4)), verbose=0).shape
        (2, 3)

    Reference:
        Gal, Ghahramani, "Dropout as a Bayesian Approximation", ICML 2016.
    """

    # Read by `kc.calibrate`, because the model has no graph.
    output_kind = "probabilities"
    settings = ("num_masks", "multi_label", "from_logits")
    # Converters to ONNX and OpenVINO fix the masks, or leave them out.
    random_formats = ("tf_saved_model", "torch")

    def __init__(
        self,
        model: keras.Model,
        *,
        num_masks: int = 20,
        multi_label: bool = False,
        from_logits: bool | None = None,
        **kwargs: Any,
    ) -> None:
        kinds = check_networks({"the model": model}, multi_label, from_logits)
        require_integer(1, num_masks=num_masks)
        if model.built:
            _check_dropout(model)
        super().__init__(model, **kwargs)
        self.model = model
        self.num_masks = num_masks
        self.multi_label = multi_label
        self.from_logits = from_logits
        logits = ask_from_logits(kinds, from_logits)
        self._mean_of_calls = MeanProbabilities(logits, multi_label=multi_label)
        self._mean = MeanProbabilities(
            logits, multi_label=multi_label, num_draws=num_masks
        )
        self.built = model.built

    def call(self, inputs: Any, training: bool | None = None) -> Tensor:
        if training:
            check_trains_by_its_loss(self.model)
            return self._mean_of_calls([self.model(inputs, training=True)])
        if not self.model.built:
            # Some layers create their dropout when they are built.
            self.model(inputs, training=False)
            _check_dropout(self.model)
        # PyTorch's compiler cannot trace the switch.
        return uncompiled_on_torch(self._sample)(inputs)

    def _sample(self, inputs):
        layers = _dropouts(self.model)
        with _switched_on(layers, self._recomputing()):
            if any(map(_shares_masks, layers)):
                return self._mean_of_calls(
                    [
                        self.model(inputs, training=False)
                        for _ in range(self.num_masks)
                    ]
                )
            repeated = keras.tree.map_structure(self._repeat, inputs)
            return self._mean([self.model(repeated, training=False)])

    def _recomputing(self):
        """Layers that may compute once more for gradients, with new masks."""
        if keras.backend.backend() == "jax":
            return []
        return flatten_layers(self.model)

    def _repeat(self, values):
        if values is None:  # an optional input
            return None
        return ops.repeat(values, self.num_masks, axis=0)


def _check_dropout(model):
    if not _dropouts(model):
        raise ValueError(
            "Without dropout every sample is the same. Received: a model "
            f"{model.name!r} that has no dropout layer with a rate above 0."
        )
    for layer in flatten_layers(model):
        if getattr(layer, "stateful", False):
            raise ValueError(
                "Each mask must start from the same state, which a stateful "
                "layer takes along from one prediction to the next. Received: "
                f"the layer {layer.name!r} with stateful=True. Build the "
                "network without it, and copy its weights."
            )


def _dropouts(model):
    """Layers with dropout, also inside other layers."""
    layers = flatten_layers(model)
    cells = []
    for layer in layers:
        if isinstance(layer, keras.layers.StackedRNNCells):
            cells += layer.cells
        elif isinstance(layer, keras.layers.RNN):
            cells.append(layer.cell)
    dropping = [cell for cell in cells if _drops(cell)]
    return [
        layer
        for layer in layers
        if (isinstance(layer, DROPOUT) and layer.rate > 0)
        or (isinstance(layer, keras.layers.Attention) and _drops(layer))
        or any(layer is cell for cell in dropping)
        # LSTM and GRU may run without calling their cell.
        or any(getattr(layer, "cell", None) is cell for cell in dropping)
    ]


def _drops(part):
    return any(
        getattr(part, name, 0) for name in ("dropout", "recurrent_dropout")
    )


def _shares_masks(layer):
    """Whether the samples of a batch share masks."""
    shape = getattr(layer, "noise_shape", None)
    return bool(shape) and shape[0] is not None


# Switches that are on, by `id` of their layer and name: those of this thread's
# blocks.
_training: contextvars.ContextVar[frozenset] = contextvars.ContextVar(
    "training", default=frozenset()
)
_changing_layers = threading.Lock()


@contextlib.contextmanager
def _switched_on(layers, recomputing):
    """Call these layers, and no others, as in training while a block runs.

    Those that are `recomputing` keep what they compute for gradients.

    Other threads may call the same layers meanwhile, with this switch or
    without: the `call` that is put on them reads what its own thread wants,
    and the last block takes it away.
    """
    kinds = [(layer, _Switch) for layer in layers]
    kinds += [(layer, _KeepingSwitch) for layer in recomputing]
    keys = {(id(layer), kind.name) for layer, kind in kinds}
    token = _training.set(_training.get() | keys)
    with _changing_layers:
        switches = [_put_on(layer, kind) for layer, kind in kinds]
    try:
        yield
    finally:
        with _changing_layers:
            for switch in switches:
                switch.take_off()
        _training.reset(token)


def _put_on(layer, kind):
    """The switch of a layer, which is put on it by the first block."""
    switch = vars(layer).get(kind.name)
    if not isinstance(switch, kind):
        switch = kind(layer)
        vars(layer)[kind.name] = switch
    switch.blocks += 1
    return switch


class _Switch:
    """The `call` of a layer, in training where `_training` has the layer."""

    name = "call"

    def __init__(self, layer):
        self.layer = layer
        # A `call` that the user has put on this one layer.
        self.before = vars(layer).get(self.name)
        self.run = getattr(layer, self.name)
        self.blocks = 0
        functools.update_wrapper(self, self.run)

    @property
    def is_on(self):
        return (id(self.layer), self.name) in _training.get()

    def __call__(self, *args, **kwargs):
        if self.is_on:
            kwargs = {**kwargs, "training": True}
        return self.run(*args, **kwargs)

    def take_off(self):
        self.blocks -= 1
        if self.blocks or vars(self.layer).get(self.name) is not self:
            return
        if self.before is None:
            del vars(self.layer)[self.name]
        else:
            vars(self.layer)[self.name] = self.before


class _KeepingSwitch(_Switch):
    """Calls of a layer as they are, without `keras.RematScope`."""

    name = "rematerialized_call"

    def __call__(self, layer_call, *args, **kwargs):
        if self.is_on:
            return layer_call
        return self.run(layer_call, *args, **kwargs)
