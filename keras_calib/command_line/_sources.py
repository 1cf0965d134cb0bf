"""What the arguments name: files of predictions, and models with data."""

import pathlib

import keras

from keras_calib.calibration._read_record import MAPS
from keras_calib.command_line._errors import LONGEST
from keras_calib.command_line._errors import one_line
from keras_calib.command_line._files import SUFFIXES
from keras_calib.command_line._files import Data
from keras_calib.command_line._files import read
from keras_calib.keras_graph.endings import gives_logits
from keras_calib.keras_private import flatten_layers


def read_models_or_predictions(
    paths: list[str], from_logits: bool | None = None
) -> tuple[dict[str, keras.Model], list[Data]]:
    """Read `a.npz b.csv`, or `a.keras b.keras data.npz`.

    Args:
        paths: of the files.
        from_logits: whether predictions are logits; `None` if their names or
            values say so. With models it is about what they give.

    Returns:
        models: by the names of their files; none if predictions came.
        data: of each file of predictions, or the only data of the models.

    Raises:
        ValueError: for other files, or files that cannot be read.
    """
    places = [pathlib.Path(each) for each in paths]
    whole = [each.resolve() for each in places]
    for place, each in enumerate(whole):
        if each in whole[:place]:
            raise ValueError(f"{places[place]}: it is named twice.")
    models = [each for each in places if each.suffix == ".keras"]
    files = [each for each in places if each.suffix != ".keras"]
    for each in files:
        if each.suffix.lower() not in SUFFIXES:
            raise ValueError(
                f"{each}: the suffix must be {', '.join(SUFFIXES)}, or "
                "`.keras` for a model."
            )
    if models and len(files) != 1:
        raise ValueError(
            "Models need one file with data. Received: "
            f"{len(models)} models and {len(files)} files."
        )
    names = names_of(models or files)
    told = None if models else from_logits
    data = [read(each, told) for each in files]
    if not models and any(each.scores is None for each in data):
        raise ValueError(f"{files[0]}: it holds no predictions, and no model.")
    loaded = [read_model(each) for each in models]
    return dict(zip(names, loaded, strict=True)) if models else {}, data


def read_model(path: pathlib.Path) -> keras.Model:
    """Load a `.keras` file; one line says what is wrong with it."""
    if not path.exists():
        raise ValueError(f"{path}: there is no such file.")
    try:
        return keras.saving.load_model(path)
    # Custom objects raise whatever they like.
    except Exception as error:
        # Of a broken file it may hold whole parts.
        raise ValueError(
            f"{path}: this model cannot be loaded: {one_line(error)[:LONGEST]}"
        ) from error


def names_of(paths: list[pathlib.Path]) -> list[str]:
    """The stems of files, or the paths where stems are equal."""
    stems = [each.stem for each in paths]
    return stems if len(set(stems)) == len(stems) else [str(p) for p in paths]


def remember_scores(model: keras.Model, data: Data) -> None:
    """Keep, with a map, what it takes: logits or not, and of which classes."""
    taken = {"from_logits": data.from_logits, "class_names": data.class_names}
    for layer in maps_of(model):
        layer.record = {**layer.record, "scores": taken}


def maps_of(model: keras.Model) -> list:
    """The fitted maps among its layers."""
    layers = flatten_layers(model, include_self=False)
    return [each for each in layers if isinstance(each, MAPS) and each.record]


def check_scores(model: keras.Model, data: Data) -> None:
    """Refuse scores that a map was not fitted to, but for what nothing shows.

    Raises:
        ValueError: if they are of another kind, or of other columns.
    """
    for taken in (each.record.get("scores") for each in maps_of(model)):
        for key, given in (
            ("from_logits", data.from_logits),
            ("class_names", data.class_names),
        ):
            known = (taken or {}).get(key)
            if None not in (known, given) and known != given:
                raise ValueError(
                    f"{data.path}: the map {model.name!r} was fitted to scores "
                    f"with {key}={known}, and these have {given}. Give it "
                    "scores of the same kind, in the same columns."
                )


def inputs_of(model: keras.Model, data: Data):
    """What a model is given: inputs, or scores if it is a map of them.

    Raises:
        ValueError: if there is neither, or if the model takes others.
    """
    of_scores = any("scores" in each.record for each in maps_of(model))
    if data.x is not None and not of_scores:
        refuse_text(model, data)
        return data.x
    shape = getattr(model, "input_shape", None)
    if isinstance(shape, tuple) and data.scores is not None:
        if shape[1:] == data.scores.shape[1:]:
            check_scores(model, data)
            return data.scores
    wanted = "" if of_scores else "inputs `x`, or "
    raise ValueError(
        f"{data.path}: the model {model.name!r} needs {wanted}scores of the "
        f"shape of its input, {shape}."
    )


def refuse_text(model: keras.Model, data: Data) -> None:
    """Refuse inputs that are text, if the graph of a model takes numbers.

    A preprocessor, as tasks of KerasHub have it, takes text before the graph.

    Raises:
        ValueError: if they are.
    """
    kinds = {each.dtype for each in getattr(model, "inputs", None) or []}
    is_text = data.x is not None and data.x.dtype.kind in "US"
    if not is_text or not kinds or "string" in kinds:
        return
    if getattr(model, "preprocessor", None) is None:
        raise ValueError(
            f"{data.path}: its inputs `x` are text, and the model "
            f"{model.name!r} takes numbers ({', '.join(sorted(kinds))}). Write "
            "what the model is given, as numbers."
        )


def one_input_of(models: dict[str, keras.Model], data: Data):
    """What all models are given.

    Raises:
        ValueError: as `inputs_of`, or if not all take the same.
    """
    found = [inputs_of(each, data) for each in models.values()]
    if any(each is not found[0] for each in found):
        raise ValueError(
            f"{data.path}: some of the models take its inputs `x`, others are "
            "maps of its scores. `evaluate` measures both; for this command "
            "give one kind."
        )
    return found[0]


def check_logits_known(model: keras.Model, from_logits: bool | None) -> None:
    """Raise unless an option or the model says whether it gives logits."""
    try:
        gives_logits(model, from_logits)
    except ValueError:
        raise ValueError(
            f"{model.name!r} does not show whether it gives logits or "
            "probabilities: say `--from-logits` or `--no-from-logits`."
        ) from None
