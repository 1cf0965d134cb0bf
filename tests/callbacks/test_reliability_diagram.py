import importlib.util
import struct
import sys

import keras
import numpy as np
import pytest

import keras_calib as kc
from keras_calib.callbacks._event_files import find_writer
from tests.helpers import small_network


def fit(digits, callback, epochs):
    model = small_network()
    model.compile(
        "sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    (x, y), *_ = digits
    model.fit(x, y, epochs=epochs, verbose=0, callbacks=[callback])


def test_files_of_the_chosen_epochs(digits, tmp_path):
    callback = kc.callbacks.ReliabilityDiagram(
        tmp_path / "diagrams" / "{epoch:02d}.png",
        validation_data=digits[1],
        every=2,
        from_logits=True,
    )
    fit(digits, callback, epochs=3)
    # After epoch 2, and after the third, which is the last.
    found = sorted(path.name for path in (tmp_path / "diagrams").iterdir())
    assert found == ["02.png", "03.png"]

    from matplotlib import image
    from matplotlib import pyplot

    shape = image.imread(tmp_path / "diagrams" / "03.png").shape
    assert min(shape[:2]) > 200
    assert not pyplot.get_fignums()  # figures do not pile up


def test_epochs_without_validation_have_no_diagram(digits, tmp_path):
    (x, y), validation, _ = digits
    model = small_network()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss)
    callback = kc.callbacks.ReliabilityDiagram(
        tmp_path / "{epoch}.png", from_logits=True
    )
    tracker = kc.callbacks.TemperatureTracker(from_logits=True)
    logs = model.fit(
        x[:32],
        y[:32],
        epochs=2,
        validation_data=validation,
        validation_freq=2,
        callbacks=[callback, tracker],
        verbose=0,
    ).history
    assert [path.name for path in tmp_path.iterdir()] == ["2.png"]
    assert len(logs["val_temperature"]) == 1


def test_tensorflow_writes_events_if_nothing_else_does(monkeypatch):
    # It is imported only where events are asked for.
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: name != "tensorboardX" or None
    )
    assert find_writer(True) == "tensorflow"
    assert find_writer(None) is None
    assert find_writer(False) is None


def test_draws_what_the_plot_draws(digits, tmp_path, monkeypatch):
    drawn = []
    original = kc.plots.reliability_diagram

    def spy(labels, predictions, *args, **kwargs):
        drawn.append((labels, predictions))
        return original(labels, predictions, *args, **kwargs)

    monkeypatch.setattr(kc.plots, "reliability_diagram", spy)
    callback = kc.callbacks.ReliabilityDiagram(
        tmp_path / "one.png", validation_data=digits[1], from_logits=True
    )
    fit(digits, callback, epochs=1)
    (labels, predictions), (x, y) = drawn[0], digits[1]
    assert np.array_equal(labels, y)
    expected = keras.ops.softmax(callback.model.predict(x, verbose=0))
    np.testing.assert_allclose(
        predictions, keras.ops.convert_to_numpy(expected), atol=1e-6
    )


@pytest.mark.backends("tensorflow", reason="elsewhere it is not loaded")
def test_tensorboard_images(digits, tmp_path):
    pytest.importorskip("tensorboard")
    import tensorflow as tf

    callback = kc.callbacks.ReliabilityDiagram(
        tmp_path, validation_data=digits[1], from_logits=True
    )
    fit(digits, callback, epochs=2)
    assert (tmp_path / "reliability_002.png").exists()
    (events,) = tmp_path.glob("events.*")
    steps = []
    for record in tf.data.TFRecordDataset(str(events)):
        event = tf.compat.v1.Event.FromString(record.numpy())
        for value in event.summary.value:
            assert value.tag == "reliability"
            width, height, first, *_ = value.tensor.string_val
            assert int(width) > 200
            assert int(height) > 200
            assert first.startswith(b"\x89PNG")
            steps.append(event.step)
    assert steps == [0, 1]


def hide(monkeypatch, *packages):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name: None if name in packages else find(name),
    )


def images_of(path):
    """Tag, step, width and PNG bytes of each image of an event file."""
    from tensorboardX.proto.event_pb2 import Event

    data, start = path.read_bytes(), 0
    while start < len(data):
        # Length and its checksum, the event and its checksum.
        (length,) = struct.unpack("<Q", data[start : start + 8])
        event = Event.FromString(data[start + 12 : start + 12 + length])
        start += 16 + length
        for value in event.summary.value:
            image = value.image
            yield value.tag, event.step, image.width, image.encoded_image_string


def test_images_without_tensorflow(digits, tmp_path, monkeypatch):
    pytest.importorskip("tensorboardX")
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    callback = kc.callbacks.ReliabilityDiagram(
        tmp_path, validation_data=digits[1], from_logits=True
    )
    assert callback.tensorboard
    fit(digits, callback, epochs=2)
    (events,) = tmp_path.glob("events.*")
    found = list(images_of(events))
    assert [(tag, step) for tag, step, *_ in found] == [
        ("reliability", 0),
        ("reliability", 1),
    ]
    for _, _, width, encoded in found:
        assert width > 200
        assert encoded.startswith(b"\x89PNG")
    if keras.backend.backend() != "tensorflow":
        assert "tensorflow" not in sys.modules


def test_only_files_if_nothing_writes_events(digits, tmp_path, monkeypatch):
    hide(monkeypatch, "tensorboardX")
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    callback = kc.callbacks.ReliabilityDiagram(
        tmp_path, validation_data=digits[1]
    )
    assert not callback.tensorboard


def test_bad_arguments(digits, tmp_path, monkeypatch):
    for wrong in ({"every": 0}, {"num_bins": 0}):
        with pytest.raises(ValueError, match="at least 1"):
            kc.callbacks.ReliabilityDiagram(
                tmp_path, validation_data=digits[1], **wrong
            )
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"keras-calib\[plots\]"):
        kc.callbacks.ReliabilityDiagram(tmp_path, validation_data=digits[1])


def test_tensorflow_needs_tensorboard(digits, tmp_path, monkeypatch):
    hide(monkeypatch, "tensorboard", "tensorboardX")
    monkeypatch.setitem(sys.modules, "tensorflow", sys)
    callback = kc.callbacks.ReliabilityDiagram(
        tmp_path, validation_data=digits[1]
    )
    assert not callback.tensorboard
    with pytest.raises(ImportError, match="pip install tensorboardX"):
        kc.callbacks.ReliabilityDiagram(
            tmp_path, validation_data=digits[1], tensorboard=True
        )
