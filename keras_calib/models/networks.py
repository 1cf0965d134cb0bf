"""What is asked of several networks before they work together."""

from keras import ops

from keras_calib.calibration.head import find_head
from keras_calib.inputs.arrays import TINY
from keras_calib.inputs.rows import at_least_float32


def check_networks(networks, from_logits=None):
    """Check that networks fit together, and find out what they give.

    Args:
        networks: dict of name (for messages) to `keras.Model`.
        from_logits: what the user says; then the graphs are not asked.

    Returns:
        `False` where the graph of a network ends in a softmax or sigmoid,
        `True` where every graph ends without one, `None` where no network has
        a graph to look at, or the user has said it.

    Raises:
        ValueError: if two networks share weights, differ in the number of
            classes, or if one gives logits and another probabilities.
    """
    _check_distinct(networks)
    check_class_counts(
        {
            name: network.outputs[0].shape
            for name, network in networks.items()
            if _has_graph(network)
        }
    )
    if from_logits is not None:
        return None
    kinds = {
        name: find_head(network).activation or "logits"
        for name, network in networks.items()
        if _has_graph(network)
    }
    if len(set(kinds.values())) > 1:
        raise ValueError(
            "All networks must give the same: logits, or probabilities. "
            f"Received: {_listed(kinds)}. Take the last activation off, or "
            "give each network one."
        )
    return None if not kinds else "logits" in kinds.values()


def check_class_counts(shapes):
    """Raise `ValueError` if outputs differ in rank or number of classes."""
    found = {name: (len(shape), shape[-1]) for name, shape in shapes.items()}
    if len(set(found.values())) > 1:
        shapes = {name: tuple(shape) for name, shape in shapes.items()}
        raise ValueError(
            "All networks must give scores of the same classes. Received: "
            f"outputs of shape {_listed(shapes)}."
        )


def _check_distinct(networks):
    owner = {}
    for name, network in networks.items():
        for part in [network, *network.variables]:
            if id(part) in owner:
                what = "are the same network"
                if part is not network:
                    what = f"share the weight {part.path!r}"
                raise ValueError(
                    "Networks that learn together must be built apart. "
                    f"Received: {owner[id(part)]} and {name} {what}. Build "
                    "each with layers of its own."
                )
            owner[id(part)] = name


def _has_graph(network):
    return bool(getattr(network, "outputs", None))


def _listed(found):
    return ", ".join(f"{name} {value}" for name, value in found.items())


def log_probabilities(scores, from_logits):
    """Log of class probabilities in float32, at least two classes.

    Args:
        scores: what a network gave, `(..., num_classes)`, or `(..., 1)` for
            one sigmoid unit.
        from_logits: whether these are logits. If not, the logits that Keras
            keeps on a softmax output are used, else `log(scores)`.

    Returns:
        Tensor of shape `(..., max(2, num_classes))`.
    """
    if not from_logits:
        carried = getattr(scores, "_keras_logits", None)
        if carried is not None:
            scores, from_logits = carried, True
    scores = at_least_float32(scores)
    if scores.shape[-1] == 1:
        other = -scores if from_logits else 1.0 - scores
        scores = ops.concatenate([other, scores], axis=-1)
        if from_logits:
            return ops.log_sigmoid(scores)
    if not from_logits:
        scores = ops.log(ops.maximum(scores, TINY))
    return ops.log_softmax(scores, axis=-1)
