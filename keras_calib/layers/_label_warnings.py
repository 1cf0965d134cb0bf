"""Warnings of the fits of many labels, one for each topic."""

import contextlib
import re
import warnings

from keras_calib._warning import warn


class LabelWarnings:
    """What the fits of labels warn of, to be said together."""

    def __init__(self):
        # By class and topic, then by kind and number of the label.
        self._said: dict[tuple[type, str], dict[str, dict]] = {}

    @contextlib.contextmanager
    def of_label(self, number):
        """Keep what is warned of in the block, for a label."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            yield
        for each in caught:
            topic, kind = _topic_and_kind(each)
            kinds = self._said.setdefault((each.category, topic), {})
            kinds.setdefault(kind, {}).setdefault(number, each)

    def drop(self, category):
        """Leave out the warnings of a class."""
        self._said = {
            key: kinds
            for key, kinds in self._said.items()
            if key[0] is not category
        }

    def warn(self, left, num_labels, fitted):
        """One warning for each topic, with the labels of each kind.

        Args:
            left: numbers of labels that are not fitted by themselves.
            num_labels: of all.
            fitted: whether they have a temperature nevertheless.
        """
        if left:
            how = "not fitted, T = 1"
            if fitted:
                how = "T is what all labels and its own samples tell"
            warn(
                f"{_named(left)} of {num_labels} without a positive or without "
                f"a negative calibration sample: {how}."
            )
        for (category, _), kinds in self._said.items():
            texts = []
            for warned in kinds.values():
                (k, first), *others = warned.items()
                whose = _named([*warned])
                whose += f" (figures of label {k})" if others else ""
                texts.append(f"{whose}: {first.message}")
                if not issubclass(category, UserWarning):  # not ours
                    texts[-1] = str(first.message)
            warn(" ".join(texts), category)


def _topic_and_kind(warning):
    """What warnings have in common: how they begin, and all but numbers."""
    kind = re.sub(r"[-+\d.e]+|\b(inf|nan)\b", "#", str(warning.message))
    return re.split("[,:]", kind)[0], kind


def _named(numbers):
    """`Labels 1, 2, 5`, the first ten of them."""
    text = ", ".join(map(str, numbers[:10]))
    if len(numbers) > 10:
        text = f"{text} and {len(numbers) - 10} more"
    return f"Label{'s' if len(numbers) > 1 else ''} {text}"
