"""What the commands say of an error: one line, of which file, what to do."""

import json
import re

import keras
import numpy as np
import pytest

from keras_calib.command_line import _commands
from keras_calib.command_line import main
from keras_calib.command_line._errors import in_options
from keras_calib.command_line._errors import one_line
from tests.command_line.helpers import run

CELLS = ("--corruptions", "fog", "--severities", "1")
COMMANDS = {
    "evaluate": ["evaluate", "model.keras", "data.npz"],
    "report": ["report", "model.keras", "data.npz", "-o", "report.md"],
    "calibrate": ["calibrate", "model.keras", "data.npz", "-o", "new.keras"],
    "shift": ["shift", "model.keras", "data.npz", *CELLS],
}
Y = np.arange(12) % 3


def save_files(**arrays):
    """A model of images, and a file with arrays for it."""
    keras.Sequential(
        [
            keras.Input((16, 16, 3)),
            keras.layers.Rescaling(1 / 255),
            keras.layers.Flatten(),
            keras.layers.Dense(3, "softmax"),
        ]
    ).save("model.keras")
    x = np.random.default_rng(0).integers(0, 256, (12, 16, 16, 3))
    np.savez("data.npz", **{"x": x.astype("uint8"), "labels": Y, **arrays})


def error_of(capsys, *arguments):
    """The line that an error ends with."""
    status, out, err = run(capsys, *arguments, "--quiet")
    assert (status, out) == (2, "")
    *_, line = err.splitlines()
    assert line.startswith(f"keras-calib {arguments[0]}: error: ")
    return line


def refuse_batches(monkeypatch):
    """Let every model fail in a way that no input explains."""

    def fail(*_):
        raise TypeError("\x1b[1mno array\x1b[0m of this kind\nsecond line")

    monkeypatch.setattr(keras.Model, "predict_on_batch", fail)


@pytest.mark.parametrize("command", COMMANDS)
def test_error_of_a_model_is_one_line(folder, capsys, monkeypatch, command):
    save_files()
    refuse_batches(monkeypatch)
    line = error_of(capsys, *COMMANDS[command])
    assert line.endswith("error: data.npz: TypeError: no array of this kind")


@pytest.mark.parametrize("command", COMMANDS)
def test_traceback_shows_where_an_error_was_raised(
    folder, capsys, monkeypatch, command
):
    save_files()
    refuse_batches(monkeypatch)
    assert main(arguments=COMMANDS[command]) == 2
    assert "Traceback" not in capsys.readouterr().err
    assert main(arguments=[*COMMANDS[command], "--traceback"]) == 2
    err = capsys.readouterr().err
    assert "Traceback" in err and "in fail" in err
    assert err.splitlines()[-1].startswith(f"keras-calib {command}: error: ")


def test_traceback_shows_what_a_named_error_was(folder, capsys, monkeypatch):
    def fail(*_):
        raise ValueError("no batch")

    save_files()
    monkeypatch.setattr(keras.Model, "predict_on_batch", fail)
    keras.saving.load_model("model.keras").save("other.keras")
    report = "report", "other.keras", *COMMANDS["report"][1:], "--traceback"
    _, _, err = run(capsys, *report)
    assert "in fail" in err
    assert err.splitlines()[-1].endswith("data.npz: other: no batch")


def test_other_errors_are_not_taken_for_bad_input(folder, monkeypatch):
    def fail(*_, **__):
        raise KeyError("a bug")

    monkeypatch.setattr(_commands, "errors_of_predictions", fail)
    with pytest.raises(KeyError, match="a bug"):
        main(arguments=["evaluate", "a.npz"])


@pytest.mark.parametrize("command", COMMANDS)
def test_text_is_refused_where_numbers_are_taken(folder, capsys, command):
    save_files(x=np.array(["a"] * 12))
    line = error_of(capsys, *COMMANDS[command])
    assert "error: data.npz: its inputs `x` are text, and the model" in line


@pytest.mark.backends("tensorflow")
def test_model_of_text_is_given_text(folder, capsys):
    words = keras.layers.TextVectorization(
        vocabulary=["a", "b"], output_mode="multi_hot"
    )
    inputs = keras.Input((1,), dtype="string")
    outputs = keras.layers.Dense(2, "softmax")(words(inputs))
    model = keras.Model(inputs, outputs)
    # Of the columns: unknown words, "a" and "b".
    scale = np.array([[0, 0], [np.log(3), 0], [0, np.log(3)]])
    model.layers[-1].set_weights([scale, np.zeros(2)])
    model.save("model.keras")
    np.savez("data.npz", x=[["a"], ["b"], ["b"]], labels=[0, 1, 1])
    status, out, err = run(capsys, *COMMANDS["evaluate"], "--json", "--quiet")
    assert status == 0, err
    found = json.loads(out)["model"]["negative_log_likelihood"]
    assert found == pytest.approx(-np.log(0.75), rel=1e-5)


@pytest.mark.parametrize("command", ["evaluate", "report", "calibrate"])
def test_errors_of_keras_have_no_colors(folder, capsys, command):
    save_files(x=np.ones((12, 5)))
    line = error_of(capsys, *COMMANDS[command])
    assert "error: data.npz: " in line
    # The shape of a batch, as each backend writes it.
    assert re.search(r"[(\[]\d+, 5[)\]]", line)
    assert "\x1b" not in line and "Arguments received" not in line


@pytest.mark.backends("torch", "tensorflow")
def test_error_of_a_backend_says_its_cause(folder, capsys):
    inputs = keras.Input((2,), dtype="int32")
    outputs = keras.layers.Flatten()(keras.layers.Embedding(4, 3)(inputs))
    keras.Model(inputs, keras.layers.Softmax()(outputs)).save("model.keras")
    np.savez("data.npz", x=np.full((12, 2), 99), labels=Y)
    line = error_of(capsys, *COMMANDS["evaluate"])
    assert re.search(
        r"data\.npz: \w+Error: .*(out of range|99 is not in)", line
    )


def test_one_line_of_an_error():
    graph = (
        "Graph execution error:\n\nDetected at node a:\n  File b\n\nc\n\t [[d"
    )
    heading = "Exception encountered when calling A.call()."
    cause = "\x1b[1mb\n c\x1b[0m"
    layer = f"{heading}\n\n{cause}\n\nArguments received by A.call():\n d"
    for error, line in (
        (ValueError("a\n b"), "a b"),
        (ValueError(layer), f"{heading} b c"),
        (ValueError(f"{heading}\n\n{cause}"), f"{heading} b c"),
        (TypeError(layer), f"TypeError: {heading} b"),
        (RuntimeError(graph), "RuntimeError: c"),
        (RuntimeError("a" * 999), f"RuntimeError: {'a' * 500}"),
        (MemoryError(), "MemoryError"),
    ):
        assert one_line(error) == line


@pytest.mark.parametrize("command", COMMANDS)
def test_labels_of_other_classes_are_said_of_their_file(
    folder, capsys, command
):
    save_files(labels=Y + 7)
    line = error_of(capsys, *COMMANDS[command])
    assert "error: data.npz: A label is not one of the 3 classes" in line
    advised = re.findall(r"--[a-z-]+", line)
    assert advised == ([] if command == "shift" else ["--ignore-class"])
    # What is advised is an option of this command.
    for option in advised:
        assert main(arguments=[*COMMANDS[command], option, "9"]) == 2
    if command == "shift":
        assert "Leave out images with a void label" in line


def test_values_of_predictions_are_said_of_their_file(folder, capsys):
    np.savez("c.npz", probabilities=np.full((4, 2), 0.5), labels=[7, 8, 9, 7])
    for command in ("report", "calibrate"):
        output = {"report": "r.md", "calibrate": "c.keras"}[command]
        line = error_of(capsys, command, "c.npz", "-o", output)
        assert "error: c.npz: A label is not one of the 2 classes" in line


def test_warnings_advise_options(folder, capsys):
    x = np.random.default_rng(0).random((12, 16, 16, 3), "float32")
    save_files(x=x)
    status, _, err = run(capsys, *COMMANDS["shift"])
    assert status == 0
    assert "Pass `--value-range 0 1` if it is 1" in err


@pytest.mark.parametrize(
    ("text", "known", "expected"),
    [
        ("Pass `from_logits=`.", "from_logits", "`--from-logits` or `--no-"),
        (
            "Pass `from_logits=False`.",
            "from_logits",
            "Pass `--no-from-logits`.",
        ),
        ('`method="auto"` is it.', "method", "`--method auto` is it."),
        ("`max_seconds` is low.", "max_seconds", "`--max-seconds` is low."),
        ("`x` is text.", "x", "`x` is text."),
        (
            "`guard=False` keeps it.",
            "method",
            "it. (`guard`: in Python only, no option of this command.)",
        ),
        (
            "Pass `ignore_class=`.",
            "seed",
            "Pass `ignore_class=`. (`ignore_class`: in Python only,",
        ),
    ],
)
def test_advice_names_options_that_there_are(text, known, expected):
    assert expected in in_options(text, {known})
