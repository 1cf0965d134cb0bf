"""Small steps of `kc.calibrate`, and layers of the user's own."""

import keras
import numpy as np
import pytest

import keras_calib as kc
from keras_calib.calibration import _guard
from keras_calib.calibration import _warnings
from keras_calib.calibration._fit import Options
from keras_calib.calibration._held_out import adapt
from keras_calib.calibration._local import _check_model
from keras_calib.calibration._methods import as_map
from keras_calib.calibration._methods import is_affine
from keras_calib.calibration._methods import samples_needed
from keras_calib.calibration._network import _computes_the_same
from keras_calib.calibration._preprocessed import PreprocessedModel
from keras_calib.calibration._preprocessed import preprocess
from keras_calib.calibration._preprocessed import raw_arrays
from keras_calib.calibration._preprocessed import taken_apart
from keras_calib.inputs.calibration_rows import read_rows
from keras_calib.layers._base import CalibrationLayer
from tests.calibration.networks import LOGITS
from tests.calibration.networks import Subclassed
from tests.calibration.networks import X
from tests.calibration.networks import Y
from tests.calibration.networks import built
from tests.calibration.networks import dense
from tests.calibration.networks import functional
from tests.helpers import to_numpy


class TestMethods:
    def test_no_map_leaves_logits_as_they_are(self):
        layer = as_map("no_calibration")
        np.testing.assert_array_equal(to_numpy(layer(LOGITS)), LOGITS)
        layer.adapt(LOGITS, Y)
        np.testing.assert_array_equal(to_numpy(layer(LOGITS)), LOGITS)
        assert samples_needed(layer, 3) == 0 and is_affine(layer)
        scale, bias = layer.as_affine(3)
        assert scale == 1.0 and not bias.any() and len(bias) == 3

    def test_a_map_without_a_number_of_parameters_wants_no_samples(self):
        class Unknown(CalibrationLayer):
            pass

        assert samples_needed(Unknown(), 3) == 0

    def test_a_map_that_cannot_be_made_again_may_be_affine(self):
        class Made(kc.layers.TemperatureScaling):
            def __init__(self, *, how):
                super().__init__()

        assert is_affine(kc.layers.TemperatureScaling())
        assert is_affine(Made(how=1))
        assert not is_affine(kc.layers.IsotonicCalibration())

    def test_a_fit_of_the_users_own_gets_arrays(self):
        seen = []

        class Own(kc.layers.TemperatureScaling):
            def adapt(self, logits, labels, sample_weight=None, **options):
                seen.append((logits.shape, labels.shape, options))
                return super().adapt(logits, labels, sample_weight, **options)

        layer, rows = Own(), read_rows(LOGITS, Y)
        adapt(layer, rows)
        options = {"objective": "nll", "class_loss_scaling": None}
        assert seen == [((300, 3), (300,), options)]
        expected = kc.layers.TemperatureScaling().adapt(LOGITS, Y)
        assert layer.temperature == expected.temperature


class TestChecks:
    @pytest.mark.parametrize(
        ("layer", "words"),
        [
            (kc.layers.TemperatureScaling, '`objective="ece"` lowers the ECE'),
            (kc.layers.IntraOrderPreserving, "Try another `method`"),
        ],
    )
    def test_a_higher_ece_has_a_remedy(self, layer, words):
        found = {"ece_before": 0.02, "ece_after": 0.2}
        found |= {"nll_before": 0.5, "nll_after": 0.4}
        with pytest.warns(UserWarning, match=words):
            _warnings.warn_if_ece_rose(
                layer(), found, noise=0.1, objectives=layer.objectives
            )

    def test_a_guard_that_cannot_judge_says_why(self, monkeypatch):
        def fails(*_):
            raise ArithmeticError("no number")

        monkeypatch.setattr(_guard, "_expected_nll", fails)
        rows = read_rows(LOGITS, Y)
        layer = kc.layers.TemperatureScaling().adapt(LOGITS, Y)
        verdict = _guard.judge(layer, rows)
        assert verdict.skipped == "ArithmeticError: no number"

    def test_outputs_of_another_shape_are_not_the_same(self):
        model = built(functional(dense("softmax")))
        logits = built(functional(dense()))
        assert _computes_the_same(model, logits, "softmax", X[:5])
        assert not _computes_the_same(model, logits, None, X[:5])
        two = functional(keras.layers.Dense(2))
        assert not _computes_the_same(model, two, "softmax", X[:5])

    def test_local_maps_need_a_graph(self):
        with pytest.raises(ValueError, match=r"Subclassed with .*shapes \[\]"):
            _check_model(Subclassed())


class TestPreprocessing:
    def test_what_a_preprocessor_takes(self):
        def of_inputs(x):
            return x + 1

        def of_all(x, y=None, sample_weight=None):
            known = [each for each in (y, sample_weight) if each is not None]
            return (x + 1, *known) if known else x + 1

        assert preprocess(None)(1, 2, 3) == (1, 2, 3)
        assert preprocess(of_inputs)(1, 2, 3) == (2, 2, 3)
        assert preprocess(of_all)(1, 2, 3) == (2, 2, 3)
        assert preprocess(of_all)(1) == (2, None, None)

    def test_texts_are_arrays_at_any_depth(self):
        found = raw_arrays({"a": ["x", "yz"], "b": (["u"], [b"v"]), "c": []})
        assert found["a"].dtype == object and [*found["a"]] == ["x", "yz"]
        assert isinstance(found["b"], tuple) and found["b"][1][0] == b"v"
        assert found["c"] == []

    def test_an_iterator_of_unknown_length_is_read_to_its_end(self):
        class Doubled(keras.layers.Layer):
            def call(self, x):
                return 2 * x

        model = PreprocessedModel(functional(dense()), Doubled())
        batches = (X[i : i + 100] for i in range(0, 300, 100))
        expected = model.model.predict(2 * X, verbose=0)
        np.testing.assert_allclose(
            model.predict(batches, verbose=0), expected, rtol=1e-5
        )

    def test_a_task_without_a_graph_is_taken_as_it_is(self):
        class Task(Subclassed):
            preprocessor = staticmethod(lambda x: x)

            def preprocess_samples(self, *_):
                raise NotImplementedError

        task = Task()
        assert taken_apart(task) == (task, None)

    def test_a_task_keeps_its_history(self):
        class Task(keras.Model):
            preprocessor = staticmethod(lambda x: x)

            def preprocess_samples(self, *_):
                raise NotImplementedError

        inputs = keras.Input((8,))
        task = Task(inputs, dense()(inputs))
        task.history = keras.callbacks.History()
        plain, preprocessor = taken_apart(task)
        assert type(plain) is not Task and plain.history is task.history
        assert preprocessor is task.preprocessor


def test_the_options_of_a_fit_have_no_deadline():
    assert Options().started() == Options()


def test_a_mixture_needs_the_samples_of_its_maps():
    maps = [kc.layers.VectorScaling(), kc.layers.EnsembleTemperatureScaling()]
    mixture = kc.layers.CalibrationMixture(maps=maps, weights=[1, 1])
    # The first shrinks by itself; the second has three parameters.
    assert samples_needed(mixture, 100) == 30
