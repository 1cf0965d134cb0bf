"""How much of the gain of class-wise scaling is balancing, from rows of LT."""

import measures
import numpy as np
import table
import words
from row_files import read_rows


def of_balancing(results):
    """How much of the gain of class-wise scaling balancing has alone."""
    rows = read_rows(results / "LT.jsonl")
    found = [
        [ways[way]["ece"] for way in measures.BALANCES]
        for row in rows.values()
        for ways in [row.get("class_balance", {}).get("TemperatureScaling")]
        if ways
    ]
    if not found:
        return ""
    columns = np.array(found).T
    plain, scaled, sums, balanced = columns.mean(1)
    shown = [table.cell(column, 100) for column in columns]
    share = 100 * (plain - balanced) / (plain - scaled)
    return (
        f"In LT ({words.seeds(len(found))}) the ECE after temperature scaling "
        f"is {shown[0]} %, with scaling {shown[1]} %, and with weights 1 / n_y "
        f"alone {shown[3]} %: balancing has {share:.0f} % of the gain. With "
        f"the sums of equation 3 it is {shown[2]} %, "
        f"{words.beside(100 * (sums - plain), 1, 'points', 'without them')}."
    )
