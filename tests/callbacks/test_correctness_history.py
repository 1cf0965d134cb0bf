import numpy as np
import pytest

import keras_calib as kc
from tests.helpers import small_network


def test_arrays_and_logs_of_every_epoch(digits):
    x, y = digits[0]
    model = kc.models.SampleHistoryModel(small_network(), num_samples=len(x))
    model.compile("adam", kc.losses.CRL(from_logits=True), metrics=["accuracy"])
    watch = kc.callbacks.CorrectnessHistory(save_every_epoch=True)
    logs = model.fit(
        kc.add_sample_index(x), y, epochs=3, verbose=0, callbacks=[watch]
    ).history
    assert (watch.seen == 3).all()
    np.testing.assert_array_equal(watch.epochs[-1], watch.correctness)
    # A visit is right as often as the training accuracy says.
    means = np.cumsum(logs["accuracy"]) / [1, 2, 3]
    assert logs["mean_correctness"] == pytest.approx(means, abs=1e-6)
    assert [e.mean() for e in watch.epochs] == pytest.approx(means, abs=1e-6)


def test_a_loop_of_ones_own_has_no_logs():
    model = kc.models.SampleHistoryModel(small_network(), num_samples=5)
    watch = kc.callbacks.CorrectnessHistory()
    watch.set_model(model)
    watch.on_epoch_end(0)
    np.testing.assert_array_equal(watch.seen, np.zeros(5))
    assert watch.epochs == []
    logs = {}
    watch.on_epoch_end(1, logs)
    # No sample was seen.
    assert logs == {"mean_correctness": 0.0}


def test_a_plain_model_has_no_history(digits):
    model = small_network()
    model.compile("sgd", kc.losses.FocalLoss(from_logits=True))
    with pytest.raises(ValueError, match=r"CorrectnessHistory needs.*Sequent"):
        model.fit(
            *digits[0],
            verbose=0,
            callbacks=[kc.callbacks.CorrectnessHistory()],
        )
