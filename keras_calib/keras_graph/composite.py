"""What all models around other models share: configuration and loading."""

import os
from typing import Any

import keras

from keras_calib._whole_file import whole_file
from keras_calib.inputs.arguments import require_kind


class CompositeModel(keras.Model):
    """Base of the models that hold other models.

    Args:
        first: the model whose dtype policy is the default.
        **kwargs: `name`, as in Keras.

    Attributes:
        parts: names of the arguments of `__init__` that are models, or lists
            of models; each is an attribute, too.
        settings: names of the other arguments.
    """

    parts: tuple[str, ...] = ("model",)
    settings: tuple[str, ...] = ()

    def __init__(self, first: keras.Model, **kwargs: Any) -> None:
        require_kind(keras.layers.Layer, "a Keras model", model=first)
        # Inputs reach each model as they are, whatever its policy.
        super().__init__(
            **{"dtype": first.dtype_policy, "autocast": False, **kwargs}
        )

    def _hold(self, name, models):
        """Hold models as `name_0`, `name_1`, ..."""
        # In a list, PyTorch would find only one of several equally named
        # weights, and not reset the gradients of the others.
        for i, model in enumerate(models):
            setattr(self, f"{name}_{i}", model)

    def _held(self, name, number):
        return [getattr(self, f"{name}_{i}") for i in range(number)]

    def compile_from_config(self, config: dict[str, Any]) -> None:
        # Keras does this only for models that do not override `compile`.
        self.compile(**keras.saving.deserialize_keras_object(config))
        if self.optimizer is not None and self.built:
            self.optimizer.build(self.trainable_variables)

    def save(
        self,
        filepath: str | os.PathLike,
        overwrite: bool = True,
        zipped: bool | None = None,
        **kwargs: Any,
    ) -> None:
        """Save the model, as `keras.Model.save` does.

        A local file is written as a whole or not at all: a process that is
        killed, or a full disk, leaves the old one as it was.

        Args:
            filepath: see `keras.Model.save`; what is no local `.keras` or
                `.h5` file is written by Keras alone.
            overwrite: see `keras.Model.save`.
            zipped: see `keras.Model.save`.
            **kwargs: see `keras.Model.save`.
        """
        name = os.fspath(filepath)
        one_file = zipped is not False and name.endswith((".keras", ".h5"))
        asks = not overwrite and os.path.exists(name)
        if "://" in name or not one_file or asks:
            super().save(filepath, overwrite, zipped, **kwargs)
            return
        with whole_file(name) as place:
            super().save(place, True, zipped, **kwargs)

    def get_config(self) -> dict[str, Any]:
        serialize = keras.saving.serialize_keras_object
        return {
            "name": self.name,
            "dtype": keras.dtype_policies.serialize(self.dtype_policy),
            **{part: serialize(getattr(self, part)) for part in self.parts},
            **{name: getattr(self, name) for name in self.settings},
        }

    @classmethod
    def _with_models(cls, config, custom_objects=None):
        """The config with models instead of their configs."""
        models = {
            part: keras.saving.deserialize_keras_object(
                config[part], custom_objects=custom_objects
            )
            for part in cls.parts
        }
        return {**config, **models}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        return cls(**cls._with_models(config, custom_objects))
