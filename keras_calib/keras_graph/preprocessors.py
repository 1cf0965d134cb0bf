"""Models that preprocess raw inputs in `predict`, as tasks of KerasHub do."""


def preprocessor_of(model):
    """What preprocesses the inputs of a model, or `None`."""
    if not hasattr(model, "preprocess_samples"):
        return None
    return getattr(model, "preprocessor", None)


def refuse_preprocessor(model, name="model"):
    """Refuse a model that preprocesses its inputs, but not where it is called.

    Raises:
        ValueError: for a task of KerasHub with a preprocessor, or one that was
            calibrated.
    """
    preprocessor = preprocessor_of(model)
    if preprocessor is not None:
        raise ValueError(
            "A model inside of another one is called, and does not preprocess "
            f"its inputs then. Received: {name}, {model.name!r}, with a "
            f"{type(preprocessor).__name__}. Set its `preprocessor` to `None`, "
            "and preprocess the data before."
        )
