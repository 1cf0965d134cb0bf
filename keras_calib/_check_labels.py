"""The labels of a batch, for `kc.check`."""

import numpy as np

from keras_calib._check_compiled import setting
from keras_calib.inputs import label_rules
from keras_calib.inputs import rules


def about_multi_label(y, objects, weights, axis):
    """Findings on the labels of a multi-label model that count."""
    try:
        label_rules.check_numbers(y)
    except ValueError as error:
        yield str(error)
        return
    rows = np.moveaxis(y, axis, -1).reshape(-1, y.shape[axis])[weights > 0]
    rows = rows.astype("float64")
    strange = np.unique(rows[~((rows >= 0) & (rows <= 1))])
    for void in strange[:1]:
        lacking = [
            title
            for title, each in objects
            if setting(each, "ignore_class", None) != void
        ]
        if len(strange) > 1 or lacking:
            yield (
                "Labels of a multi-label model are 0 or 1. Received: labels "
                f"from {rows.min():g} to {rows.max():g}. An entry that is not "
                "known needs a loss that leaves it out, and `ignore_class` in "
                "`MultilabelCalibrationError`."
            )


def about_labels(y, layout, objects, weights, axis):
    """Findings on the labels that count."""
    try:
        label_rules.check_numbers(y)
    except ValueError as error:
        yield str(error)
        return
    if layout.one_hot:
        rows = np.moveaxis(y, axis, -1) if y.ndim > 1 else y
        rows = rows.reshape(-1, layout.num_classes)[weights > 0]
        try:
            label_rules.checked_rows(rows)
        except ValueError as error:
            yield str(error)
        return
    ids = y.reshape(-1)[weights > 0]
    wrong = rules.wrong_ids(ids, layout.num_classes, np)
    strange = np.unique(ids[wrong])
    if not len(strange):
        return
    last = layout.num_classes - 1
    if len(strange) > 1 or np.floor(strange[0]) != strange[0]:
        yield (
            f"Labels must be the class ids 0 to {last}. Received: labels from "
            f"{ids.min()} to {ids.max()}, of which {wrong.sum()} in "
            f"{len(ids)} are not."
        )
        return
    void, shifted = int(strange[0]), _are_shifted(ids, layout.num_classes)
    start = (
        f" The ids seem to start at {ids.min():g}: shift them. Or, if {void} "
        "is no class, pass"
        if shifted
        else " Pass"
    )
    lacking = [
        title
        for title, each in objects
        if setting(each, "ignore_class", "none") not in ("none", void)
    ]
    if lacking or shifted or not objects:
        whose = " and ".join(lacking) or "what takes it"
        yield (
            f"{wrong.sum()} of {len(ids)} labels are {void}, which is none of "
            f"the classes 0 to {last}.{start} `ignore_class={void}` to {whose}."
        )


def _are_shifted(ids, num_classes):
    """Whether class ids are all one too large, or one too small."""
    return (ids.min(), ids.max()) in ((1, num_classes), (-1, num_classes - 2))


def about_accuracies(y, layout, weights, titles):
    """Findings on accuracies that count labels of no class as mistakes."""
    ids = y.reshape(-1)[weights > 0]
    titles = list(dict.fromkeys(titles))
    if not titles or not len(ids) or _are_shifted(ids, layout.num_classes):
        return
    wrong = rules.wrong_ids(ids, layout.num_classes, np)
    if len(np.unique(ids[wrong])) == 1:
        yield (
            f"{wrong.sum()} of {len(ids)} labels are none of the classes, and "
            f"{' and '.join(titles)} counts them as mistakes: Keras' "
            "accuracies have no `ignore_class`. Give these labels a weight of "
            "0, and pass the accuracy in `weighted_metrics=`."
        )
