"""Reject or answer with a set: decisions that calibrated confidences allow.

Temperature scaling makes the confidence a probability. Two more layers are
fitted to samples that neither the network nor the temperature has seen.
`RiskThreshold` answers only where at most 5 % of the answers will be wrong,
`ConformalSets` always, with as many classes as it takes to be right in 90 %.
The picture has the error rate among the most confident samples, and the sizes
of the sets.

    python examples/stories/reject_and_predict_sets.py
"""

import keras
import made
import numpy as np
from common import probabilities
from common import tell

import keras_calib as kc

RISK, COVERAGE = 0.05, 0.9


def network():
    return keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(6),
        ]
    )


def log_p(calibrated, x):
    return np.log(probabilities(calibrated, x))


def main():
    keras.utils.set_random_seed(0)
    train, (x, y), test = made.table(8000, classes=6, strength=5.0)
    model = network()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss)
    model.fit(*train, epochs=10, batch_size=64, verbose=0)
    calibrated = kc.calibrate(model, x[:1000], y[:1000], verbose=0)

    held = log_p(calibrated, x[1000:]), y[1000:]
    threshold = kc.layers.RiskThreshold(target_risk=RISK).adapt(*held)
    sets = kc.layers.ConformalSets(coverage=COVERAGE).adapt(*held)

    scores, labels = log_p(calibrated, test[0]), test[1]
    answers = np.asarray(threshold(scores))
    accepted = answers >= 0
    members = np.asarray(sets(scores))
    inside = members[np.arange(len(labels)), labels]
    risk = float((answers != labels)[accepted].mean())

    def draw():
        from matplotlib import pyplot

        figure, (left, right) = pyplot.subplots(
            1, 2, figsize=(9, 4), layout="constrained"
        )
        p = np.exp(scores)
        kc.plots.risk_coverage(labels, {"calibrated": p}, axes=left)
        left.plot(accepted.mean(), risk, "o", color="black")
        left.annotate("RiskThreshold", (accepted.mean(), risk), (0.5, 0.01))
        left.axhline(RISK, linestyle=":", color="black")
        sizes = np.bincount(members.sum(axis=1), minlength=7) / len(labels)
        right.bar(range(len(sizes)), sizes)
        right.set(xlabel="classes in the set", ylabel="fraction of samples")
        right.set_title(f"the label is in {inside.mean():.1%} of the sets")
        return figure

    tell(
        model,
        calibrated,
        *test,
        draw=draw,
        accepted=float(accepted.mean()),
        risk=risk,
        coverage=float(inside.mean()),
    )


if __name__ == "__main__":
    main()
