"""The cases themselves: what is chosen of them reaches every kind."""

import collections

import numpy as np

from tests.differential import cases
from tests.differential import reference
from tests.differential import test_losses
from tests.differential import test_metrics


def test_each_name_meets_each_kind_and_each_case_three_names():
    for names, applies in (
        (test_losses.LOSSES, test_losses.applies),
        (test_metrics.METRICS, test_metrics.applies),
    ):
        chosen = cases.covering(names, applies)
        for name in names:
            met = [cases.BY_NAME[case] for n, case in chosen if n == name]
            for kind, belongs in cases.KINDS.items():
                possible = any(
                    belongs(case) and applies(name, case)
                    for case in cases.CASES
                )
                assert any(map(belongs, met)) or not possible, (name, kind)
        uses = collections.Counter(case for _, case in chosen)
        for case in cases.CASES:
            assert uses[case.name] >= 3, case.name


def test_rows_that_do_not_count_would_show():
    # A reader that forgets a mask or a weight of 0 meets sure errors.
    seen = set()
    for case in cases.CASES:
        counted = case.rows()
        if case.garbage or len(counted) == counted.total:
            continue
        rows = reference.read(
            case.labels,
            case.predictions,
            axis=case.axis,
            from_logits=case.from_logits,
            # Void rows have no label that could be wrong.
            ignore_class=case.options.get("ignore_class"),
        )
        silent = ~np.isin(rows.place, counted.place)
        assert (rows.c[silent] > 0.9).all(), case.name
        assert not rows.a[silent].any(), case.name
        seen.add(silent.any())
    assert True in seen
