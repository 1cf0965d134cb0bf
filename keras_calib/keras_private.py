"""Every private name of Keras and TensorFlow that the library uses.

One function per name. Where a public way gives the same, it is tried first;
where the private name is missing, the function falls back as its docstring
says. `tests/test_keras_private.py` has a canary for each function, which fails
when a new version of Keras changes the name.
"""

import types

import keras
from keras import ops

from keras_calib.inputs.arguments import require_kind

try:
    from keras.src.backend.common.masking import (
        get_keras_mask as _get_keras_mask,
    )
except ImportError:
    _get_keras_mask = None
try:
    from keras.src.export.export_utils import (
        get_input_signature as _get_input_signature,
    )
except ImportError:
    _get_input_signature = None


def keras_mask(tensor):
    """Keras' mask of a tensor, boolean, or `None`.

    Public, and the fallback: `Layer.__call__` passes the mask of its input to
    a `call` with an argument `mask`. That takes 0.3 ms, too long for a loss in
    eager code, so Keras' own `get_keras_mask` is asked where it is there. (The
    attribute `_keras_mask` would not do: JAX arrays cannot have attributes.)

    Args:
        tensor: an eager, compiled or symbolic tensor.
    """
    if _get_keras_mask is not None:
        return _get_keras_mask(tensor)
    if isinstance(tensor, keras.KerasTensor) or not ops.is_tensor(tensor):
        return getattr(tensor, "_keras_mask", None)
    reader = _MaskReader()
    reader(tensor)
    return reader.found.mask


class _MaskReader(keras.layers.Layer):
    """Keeps the mask of its input."""

    def __init__(self):
        super().__init__(autocast=False)
        # Keras wraps lists and dicts that become attributes of a layer.
        self.found = types.SimpleNamespace(mask=None)
        self.supports_masking = True
        self.built = True

    def call(self, inputs, mask=None):
        self.found.mask = mask
        return inputs


def carried_logits(tensor):
    """Logits that Keras keeps on the output of a softmax or sigmoid, or `None`.

    In compiled code they are present on TensorFlow, from the second call on
    PyTorch, and never on JAX: no result may depend on them. `_keras_logits`
    has no public twin; without it the answer is `None`.
    """
    return getattr(tensor, "_keras_logits", None)


def in_symbolic_scope():
    """Whether Keras computes shapes, with tensors that hold no data.

    Public: `keras.SymbolicScope` remembers the scope that it was entered from.
    Without that attribute the answer is `False`.
    """
    with keras.SymbolicScope() as scope:
        return getattr(scope, "original_scope", None) is not None


def producer(model, tensor):
    """The operation that computed a symbolic tensor, and its input tensors.

    `_keras_history` and `_inbound_nodes` know every call. Public, and the
    fallback: `Operation.output` and `.input`, which describe the first call
    of an operation and are something else for a nested model.

    Args:
        model: the Functional or Sequential model whose graph holds `tensor`.
        tensor: a `keras.KerasTensor`.

    Returns:
        operation: a `keras.Operation`.
        inputs: list of `keras.KerasTensor`.

    Raises:
        ValueError: if the operation is not found.
    """
    history = getattr(tensor, "_keras_history", None)
    if history is not None:
        operation, index = history[0], history[1]
        nodes = getattr(operation, "_inbound_nodes", None)
        if nodes is not None:
            return operation, list(nodes[index].input_tensors)
    for operation in _operations(model):
        if isinstance(operation, keras.Model):
            continue
        try:
            output, inputs = operation.output, operation.input
        except (AttributeError, ValueError):
            continue
        if any(part is tensor for part in keras.tree.flatten(output)):
            return operation, keras.tree.flatten(inputs)
    raise ValueError(
        "The operation that computes a tensor was not found in the graph. "
        f"Received: tensor={tensor}, model={getattr(model, 'name', None)!r}. "
        "Pass `from_logits=`, and leave out `fuse`."
    )


def inside(nested, tensor):
    """The output of a nested model that a call of it returned as a tensor.

    `_keras_history` has its place. Without it `producer` finds no such call.
    """
    return nested.outputs[tensor._keras_history[2]]


def _operations(model):
    # A Sequential holds a Functional model, and shows its layers only.
    return getattr(model, "operations", getattr(model, "layers", ()))


def called_symbolically(layer):
    """Whether a layer is part of the graph of a Functional model.

    Public: `layer.output` raises `AttributeError` before the first symbolic
    call. (A nested model has an output of its own, and counts as called.)
    """
    try:
        _ = layer.output
    except AttributeError:
        return False
    except ValueError:
        pass
    return True


def flatten_layers(layer, include_self=True):
    """All layers inside a layer or model, at any depth, each once.

    The layers of a nested model come where it does, in its order. No public way
    sees layers that a custom layer holds. Without `_flatten_layers` the public
    `layers` of models and attributes of layers are searched, also lists.

    Args:
        layer: a `keras.layers.Layer` or `keras.Model`.
        include_self: whether `layer` itself comes first in the list.
    """
    require_kind(keras.layers.Layer, "a Keras model or layer", model=layer)
    found, waiting = {}, [layer]
    while waiting:
        current = waiting.pop()
        if id(current) not in found:
            found[id(current)] = current
            waiting += reversed(_layers_of(current))
    return list(found.values())[0 if include_self else 1 :]


def _layers_of(layer):
    """The layers that a layer or model holds itself."""
    # Keras' own order of all depths is reversed inside nested models.
    flatten = getattr(layer, "_flatten_layers", None)
    if flatten is not None:
        return flatten(include_self=False, recursive=False)
    held = [getattr(layer, "layers", []), list(_values(layer))]
    return [
        part
        for part in keras.tree.flatten(held)
        if isinstance(part, keras.layers.Layer)
    ]


def _values(layer):
    return [value for name, value in vars(layer).items() if name[:1] != "_"]


def input_signature(model):
    """What `keras.Model.export` takes the inputs of a model to be, or `None`.

    Keras asks its own `get_input_signature` the same. Without it, and where
    Keras does not know the inputs, the answer is `None`, with which `export`
    looks for itself.

    Args:
        model: a `keras.Model`.
    """
    if _get_input_signature is None:
        return None
    try:
        return _get_input_signature(model)
    except ValueError:
        return None


def compile_loss(model, y, y_pred, sample_weight=None):
    """The loss given to `compile`, without the penalties of the layers.

    Public: `keras.Model.compute_loss`, which adds `model.losses`. Without
    `_compile_loss` these are subtracted again.

    Args:
        model: a compiled `keras.Model`.
        y: labels.
        y_pred: outputs of the model.
        sample_weight: `None`, or weights.

    Returns:
        A scalar tensor.
    """
    if sample_weight is not None and ops.is_tensor(sample_weight):
        # A copy: on torch, Keras multiplies weights by a mask in place.
        sample_weight = sample_weight * ops.ones_like(sample_weight)
    loss = getattr(model, "_compile_loss", None)
    if loss is not None:
        return loss(y, y_pred, sample_weight)
    total = keras.Model.compute_loss(
        model, y=y, y_pred=y_pred, sample_weight=sample_weight
    )
    return total - sum(additional_loss(model, loss) for loss in model.losses)


def additional_loss(model, loss):
    """A regularizer's or `add_loss` value as `Model.compute_loss` adds it.

    Keras divides it by the number of replicas of a `tf.distribute` strategy.
    Without `_aggregate_additional_loss` the same is computed here.

    Args:
        model: the `keras.Model` whose loss is computed.
        loss: a tensor, one of the `losses` of a layer.

    Returns:
        A scalar tensor.
    """
    aggregate = getattr(model, "_aggregate_additional_loss", None)
    if aggregate is not None:
        return aggregate(loss)
    strategy = getattr(model, "distribute_strategy", None)
    return ops.sum(loss) / getattr(strategy, "num_replicas_in_sync", 1)


def lower_is_better(metric):
    """Make `mode="auto"` of callbacks minimize a metric, and return it.

    `EarlyStopping` and `ModelCheckpoint` read `_direction`, which has no
    public twin. Where Keras does not read it, users pass `mode="min"`.

    Args:
        metric: a `keras.metrics.Metric`, or a class of them (as a decorator).
    """
    metric._direction = "down"
    return metric


def without_direction(metric_class):
    """Make `mode="auto"` of callbacks raise for metrics of a class; return it.

    A class that inherits a direction loses it: callbacks ask whether
    `_direction` is there, and must not find it.

    Args:
        metric_class: a subclass of `keras.metrics.Metric` (as a decorator).
    """

    def missing(self):
        raise AttributeError("Pass `mode=`: the metric has no direction.")

    metric_class._direction = property(missing)
    return metric_class


def metrics_of_compile(model):
    """The metrics given to `compile`, also before they are built, as a list.

    Public: `model.metrics` has them once they are built; TensorFlow builds
    them in the first step. Before that they are `_user_metrics` and
    `_user_weighted_metrics` of what `model.metrics` holds.

    Args:
        model: a compiled `keras.Model`.
    """
    found = keras.tree.flatten(model.metrics) + given_to_compile(model)
    return [each for each in found if isinstance(each, keras.metrics.Metric)]


def given_to_compile(model, weighted=(False, True)):
    """What `compile` was given as metrics, names and objects, as a list.

    Args:
        model: a compiled `keras.Model`.
        weighted: which of `metrics` (`False`) and `weighted_metrics` (`True`).
    """
    names = [("_user_metrics", "_user_weighted_metrics")[w] for w in weighted]
    given = [[getattr(m, n, None) for n in names] for m in model.metrics]
    return [each for each in keras.tree.flatten(given) if each is not None]


def validation_iterator(model):
    """The data of `fit`'s validation, or `None` where Keras keeps none.

    Inside `fit`, `_eval_epoch_iterator` is the iterator that the next
    validation uses; `data_adapter` and `steps_per_epoch` are its public
    attributes. It has no public twin.

    Args:
        model: a `keras.Model` in training.
    """
    return getattr(model, "_eval_epoch_iterator", None)


def dataset_inputs(dataset):
    """The datasets that a `tf.data.Dataset` is computed from, as a list.

    `_inputs` has no public twin; without it the list is empty.
    """
    inputs = getattr(dataset, "_inputs", None)
    return [] if inputs is None else list(inputs())


def dataset_freedoms(dataset):
    """Arguments by which a step of `tf.data` may reorder each epoch, a list.

    `_deterministic` and `_rerandomize` have no public twins; without them the
    list is empty.
    """
    found = []
    if getattr(dataset, "_deterministic", None) == "false":
        found.append("deterministic=False")
    if getattr(dataset, "_rerandomize", None) is True:
        found.append("rerandomize_each_iteration=True")
    return found


# What models of several networks need.


def forward_losses(model):
    """Penalties that JAX's training step collected in the forward pass.

    JAX's trainer runs the forward pass apart from `compute_loss`, and keeps
    the `losses` of the model in `_losses_override`. Other backends keep none,
    and neither does code outside of a step: an empty list. There is no public
    twin for a model that says itself what its `losses` are.

    Args:
        model: a `keras.Model`.
    """
    return list(getattr(model, "_losses_override", None) or [])


def copy_weight_decay_exclusions(source, target):
    """Exclude from weight decay what another optimizer excludes.

    `Optimizer.exclude_from_weight_decay` keeps its arguments in two attributes
    and leaves them out of the config; there is no public way to read them.
    Without these attributes nothing is copied.

    Args:
        source: a `keras.optimizers.Optimizer`.
        target: another one, not built yet; it is changed.
    """
    for name in (
        "_exclude_from_weight_decay",
        "_exclude_from_weight_decay_pattern",
    ):
        if getattr(source, name, None):
            setattr(target, name, getattr(source, name))


def moving_averages(optimizer):
    """The averages of the weights that an optimizer with `use_ema` keeps.

    `_model_variables_moving_average`, which `SwapEMAWeights` reads, has no
    public twin.

    Args:
        optimizer: a built `keras.optimizers.Optimizer`.

    Raises:
        AttributeError: if it keeps none.
    """
    return optimizer._model_variables_moving_average
