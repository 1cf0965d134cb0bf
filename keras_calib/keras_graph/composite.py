"""What all models around other models share: configuration and loading."""

import os
from typing import Any

import keras

from keras_calib._whole_file import whole_file
from keras_calib.inputs.arguments import require_kind
from keras_calib.keras_graph.preprocessors import refuse_preprocessor
from keras_calib.keras_private import flatten_layers
from keras_calib.keras_private import input_signature as signature_of


class CompositeModel(keras.Model):
    """Base of the models that hold other models.

    Args:
        first: the model whose dtype policy is the default.
        **kwargs: `name`, as in Keras.

    Attributes:
        parts: names of the arguments of `__init__` that are models, or lists
            of models; each is an attribute, too.
        settings: names of the other arguments.
        random_formats: formats to which a model that draws random numbers in
            prediction can be exported; `None` if it draws none.
    """

    parts: tuple[str, ...] = ("model",)
    settings: tuple[str, ...] = ()
    random_formats: tuple[str, ...] | None = None

    def __init__(self, first: keras.Model, **kwargs: Any) -> None:
        require_kind(keras.layers.Layer, "a Keras model", model=first)
        refuse_preprocessor(first)
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

    def export(
        self,
        filepath: str | os.PathLike,
        format: str = "tf_saved_model",
        verbose: bool | None = None,
        input_signature: Any = None,
        **kwargs: Any,
    ) -> None:
        """Export the model, as `keras.Model.export` does.

        Args:
            filepath: see `keras.Model.export`.
            format: see `keras.Model.export`.
            verbose: see `keras.Model.export`.
            input_signature: defaults to that of the first model inside.
            **kwargs: see `keras.Model.export`.

        Raises:
            ValueError: for a format in which random numbers would be lost; see
                `keras.Model.export`.
        """
        for part in flatten_layers(self):
            formats = getattr(part, "random_formats", None)
            if formats is not None and format not in formats:
                raise ValueError(
                    "A model that draws random numbers in prediction can be "
                    f"exported to {' and '.join(formats)}; files of other "
                    "formats would draw none. Received: "
                    f"format={format!r} for the model {part.name!r}."
                )
        if input_signature is None:
            # Keras has recorded it only for a model that its first call built.
            input_signature = signature_of(self._innermost())
        super().export(filepath, format, verbose, input_signature, **kwargs)

    def _innermost(self):
        """The first model inside, inside of that, and so on."""
        model = self
        while isinstance(model, CompositeModel):
            first = getattr(model, model.parts[0])
            model = first[0] if isinstance(first, list) else first
        return model

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
