"""Whatever holds numbers is read as one NumPy array."""

import numpy as np
import pytest

import keras_calib as kc
from keras_calib.inputs.arrays import as_array
from keras_calib.inputs.arrays import as_floats
from keras_calib.inputs.arrays import by_class


class OnDevice:
    """A tensor whose memory NumPy cannot read, as on a GPU."""

    def __init__(self, values):
        self.values = np.asarray(values)

    def detach(self):
        return self

    def cpu(self):
        return self.values

    def __array__(self, *arguments, **options):
        raise TypeError("can't convert a device tensor to numpy")


@pytest.mark.parametrize("kind", [list, tuple])
def test_lists_of_tensors_on_a_device_are_read(kind):
    values = kind([OnDevice(1.0), OnDevice(2.0)])
    np.testing.assert_array_equal(as_array(values), [1.0, 2.0])
    rows = kind([OnDevice([1.0, 2.0]), OnDevice([3.0, 4.0])])
    np.testing.assert_array_equal(as_array(rows), [[1.0, 2.0], [3.0, 4.0]])
    with pytest.raises(TypeError):
        np.asarray(values)


@pytest.mark.parametrize("dtype", [">f8", np.longdouble])
def test_wide_floats_keep_their_digits(dtype):
    given = np.array([1 / 3, 2 / 3]).astype(dtype)
    found = as_floats(given, "Scores")
    assert found.dtype == np.dtype("float64")  # of this byte order
    np.testing.assert_array_equal(found, [1 / 3, 2 / 3])
    assert as_floats(given.astype("float16"), "Scores").dtype == "float32"


def test_brain_floats_of_pytorch_are_read_on_every_backend():
    torch = pytest.importorskip("torch")
    p = torch.tensor([[0.25, 0.75], [0.5, 0.5]], dtype=torch.bfloat16)
    np.testing.assert_array_equal(as_array(p), [[0.25, 0.75], [0.5, 0.5]])
    labels = torch.tensor([1, 0])
    found = kc.metrics.calibration_errors(labels, p)
    expected = -np.log([0.75, 0.5]).mean()
    nll = found["negative_log_likelihood"]
    assert nll == pytest.approx(expected, rel=1e-6)
    loss = kc.losses.LabelSmoothing(smoothing=0.0)(labels, p)
    assert float(loss) == pytest.approx(expected, rel=1e-5)


def test_labels_that_are_missing_are_called_so():
    p = np.array([[0.25, 0.75]])
    with pytest.raises(
        ValueError, match=r"Labels must be real.*(NoneType|list)"
    ):
        kc.losses.LabelSmoothing(from_logits=False)(None, p)
    with pytest.raises(
        ValueError, match=r"Labels must be real.*(NoneType|list)"
    ):
        kc.metrics.NegativeLogLikelihood().update_state([None], p)


@pytest.mark.one_backend
def test_few_scores_are_read_by_class_and_many_are_not_copied():
    few = np.arange(12.0).reshape(4, 3)
    found = by_class(few, "float32")
    assert found.flags.f_contiguous and found.dtype == "float32"
    np.testing.assert_array_equal(found, few)
    for shape in ((3000, 100), (10, 200)):
        many = np.zeros(shape, "float32")
        assert by_class(many) is many
