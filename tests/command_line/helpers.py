"""Small predictions, and a call of the command."""

import numpy as np

from keras_calib.command_line import main


def sample(n=400, num_classes=3):
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(num_classes), size=n)
    labels = (p.cumsum(1) > rng.random((n, 1))).argmax(1)
    return labels, p**2 / (p**2).sum(1, keepdims=True)


def run(capsys, *arguments):
    status = main(arguments=arguments)
    return status, *capsys.readouterr()
