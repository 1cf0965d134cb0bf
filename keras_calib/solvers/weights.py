"""What the sum of sample weights stands for in a fit."""


def number_of_samples(labels, weight):
    """How many samples the rows given to `fit` stand for."""
    return len(labels) if weight is None else float(weight.sum())
