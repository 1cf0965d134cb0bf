"""How many copies of a model train at once: `tf.distribute` alone has more."""

import keras


def num_replicas(model=None):
    """Replicas of the strategy of `model`, or of the one that is active.

    Args:
        model: a `keras.Model`; `None` inside a step, or a strategy's scope.
    """
    if keras.backend.backend() != "tensorflow":
        return 1
    strategy = getattr(model, "distribute_strategy", None)
    if strategy is None:
        import tensorflow as tf

        strategy = tf.distribute.get_strategy()
    return strategy.num_replicas_in_sync
