"""Which shapes of labels and predictions fit, by the rules alone."""

import pytest

from keras_calib.inputs.rules import layout

pytestmark = pytest.mark.one_backend


@pytest.mark.parametrize(
    ("labels", "predictions", "axis", "lead", "width", "one_hot"),
    [
        ((4,), (4, 3), -1, (4,), 3, False),
        ((4, 1), (4, 3), -1, (4,), 3, False),
        ((4, 3), (4, 3), -1, (4,), 3, True),
        ((4,), (4,), -1, (4,), 1, False),
        ((4, 1), (4, 1), -1, (4,), 1, False),
        ((4, 2), (4, 1), -1, (4,), 1, True),
        ((2, 5, 5), (2, 3, 5, 5), 1, (2, 5, 5), 3, False),
        ((2, 1, 5, 5), (2, 3, 5, 5), 1, (2, 5, 5), 3, False),
        ((2, 5, 5, 1), (2, 3, 5, 5), 1, (2, 5, 5), 3, False),
        ((2, 3, 5, 5), (2, 3, 5, 5), 1, (2, 5, 5), 3, True),
        # Sizes that are not known yet.
        ((None,), (None, 3), -1, (None,), 3, False),
        ((None, 1), (None, 3), -1, (None,), 3, False),
        ((None, None), (None, 3), -1, (None,), 3, True),
        ((None, None), (None, 1), -1, (None,), 1, False),
    ],
)
def test_layout(labels, predictions, axis, lead, width, one_hot):
    found = layout(labels, predictions, axis)
    assert (found.lead, found.width, found.one_hot) == (lead, width, one_hot)
    assert found.num_classes == max(width, 2)
    assert found.single == (width == 1)


@pytest.mark.parametrize("labels", [(5,), (4, 2), (4, 3, 1), ()])
def test_labels_that_do_not_fit_are_refused(labels):
    with pytest.raises(ValueError, match="Labels and predictions do not fit"):
        layout(labels, (4, 3), -1)
