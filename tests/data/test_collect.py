import errno
import io
import os
import tempfile

import keras
import numpy as np
import pytest

from keras_calib.data.batches import as_batches
from keras_calib.data.collect import collect
from keras_calib.data.collect import collect_outputs
from keras_calib.inputs.calibration_rows import checked_rows
from tests.calibration.networks import X
from tests.calibration.networks import Y
from tests.calibration.networks import built
from tests.calibration.networks import dense
from tests.calibration.networks import functional

NETWORK = built(functional(dense()))


def gathered(x=X, y=Y, weight=None, batch_size=64, **kwargs):
    source = as_batches(x, y, weight, batch_size=batch_size)
    with collect(NETWORK, source, **kwargs) as samples:
        return (
            np.array(samples.scores),
            samples.labels,
            checked_rows(
                samples.scores, samples.labels, samples.weights
            ).weights,
            samples.fingerprint,
        )


def test_what_is_larger_than_the_limit_goes_to_a_file(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    expected, labels, _, _ = gathered()
    with collect(
        NETWORK, as_batches(X, Y, batch_size=64), spill=2000
    ) as samples:
        assert isinstance(samples.scores, np.memmap)
        # Without a name, it is gone whatever ends the process.
        assert os.listdir(tmp_path) == []
        np.testing.assert_array_equal(samples.scores, expected)
        np.testing.assert_array_equal(samples.labels, labels)
    assert os.listdir(tmp_path) == []


def test_the_file_is_gone_after_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    labels = Y.copy()
    labels[-1] = 7
    with (
        pytest.raises(ValueError, match="from 0 to 7"),
        collect(NETWORK, as_batches(X, labels, batch_size=64), spill=2000),
    ):
        pass
    assert os.listdir(tmp_path) == []


def test_a_full_disk_is_told_and_leaves_no_file(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    closed = []

    class Full(io.BytesIO):
        def flush(self):
            raise error

        def close(self):
            # What is left is written as a file is closed.
            closed.append(0)
            if len(closed) == 1:
                raise error

    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: Full())
    with (
        pytest.raises(OSError, match=r"Outputs of the network.*bytes so far"),
        collect(NETWORK, as_batches(X, Y, batch_size=64), spill=2000),
    ):
        pass
    assert os.listdir(tmp_path) == []


def test_rows_that_do_not_count_are_left_out():
    labels, weight = Y.copy(), np.ones(len(Y))
    labels[:70] = 255  # more than one batch
    weight[70:80] = 0
    weight[80] = 2.5
    expected, _, _, _ = gathered()
    scores, found, weights, _ = gathered(
        y=labels, weight=weight, ignore_class=255
    )
    np.testing.assert_array_equal(scores, expected[80:])
    np.testing.assert_array_equal(found, Y[80:])
    relative = weight[80:] * len(Y[80:]) / weight[80:].sum()
    np.testing.assert_allclose(weights, relative)


def test_nothing_is_left():
    with pytest.raises(ValueError, match="no calibration sample"):
        gathered(y=np.full_like(Y, 255), ignore_class=255)


def test_outputs_of_batches_that_do_not_count_are_left_out():
    weight = np.ones(len(X))
    weight[:70] = 0  # more than one batch

    def outputs(weight):
        source = as_batches(X, None, weight, batch_size=64, labeled=False)
        with collect_outputs(NETWORK, source) as (scores, weights, by_sample):
            return np.array(scores), weights, by_sample

    expected = gathered()[0]
    scores, weights, by_sample = outputs(weight)
    np.testing.assert_array_equal(scores, expected[70:])
    assert weights is None and by_sample
    with pytest.raises(ValueError, match="There is no sample"):
        outputs(np.zeros(len(X)))


def test_the_fingerprint_ignores_order_and_batches_and_sees_a_change():
    first = gathered()[-1]
    order = np.random.default_rng(1).permutation(len(X))
    assert gathered(X[order], Y[order], batch_size=50)[-1] == first
    changed = X.copy()
    changed[17, 3] += 1e-3
    assert gathered(changed)[-1] != first
    assert gathered(X[:-1], Y[:-1])[-1] != first


def test_per_pixel_rows():
    inputs = keras.Input((10, 8))
    network = keras.Model(inputs, dense()(inputs))
    weight = np.arange(30.0)
    source = as_batches(
        X.reshape(30, 10, 8), Y.reshape(30, 10), weight, batch_size=7
    )
    with collect(network, source) as samples:
        assert samples.scores.shape == (290, 3)  # an image weighs nothing
        relative = weight[1:].repeat(10) * 290 / weight.sum() / 10
        rows = checked_rows(samples.scores, samples.labels, samples.weights)
        np.testing.assert_allclose(rows.weights, relative)
