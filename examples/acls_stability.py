"""Which form of ACLS trains? The paper's, its gradient's, the released code's.

The positive term of ACLS pulls the largest logit down to `r + margin`. Paper
and released code differ in `r`, and the paper's gradient (eq. 12) holds its
`r = min z` constant. This script trains the quickstart's network on
scikit-learn's digits with each form and prints how the training loss goes.

    python examples/acls_stability.py
"""

import keras
import quickstart

import keras_calib as kc

FORMS = {
    'reference="zero" (released code, default)': {},
    'reference="min" (eq. 13, its own gradient)': {"reference": "min"},
    # Eq. 12 gives the gradient without the factor 2 of the squares, and sums
    # over the other classes.
    'reference="min", eq. 12 to the letter': {
        "reference": "min",
        "stop_gradient": True,
        "negatives": "sum",
        "positive_weight": 0.05,
        "negative_weight": 0.005,
    },
}
OPTIMIZERS = {
    "Adam 2e-3": lambda: keras.optimizers.Adam(2e-3),
    "SGD 0.05, momentum 0.9": lambda: keras.optimizers.SGD(0.05, 0.9),
}


EPOCHS = 40


def main():
    training, _, test = quickstart.digits()
    shown = (1, max(1, EPOCHS // 4), EPOCHS)
    words = ", ".join(map(str, shown))
    print(f"| form | optimizer | training loss, epochs {words} | accuracy |")
    print("|---|---|---|---|")
    for form, arguments in FORMS.items():
        for name, optimizer in OPTIMIZERS.items():
            keras.utils.set_random_seed(1)
            model = quickstart.small_cnn("digits")
            loss = kc.losses.ACLS(margin=6.0, from_logits=True, **arguments)
            model.compile(optimizer(), loss, metrics=["accuracy"])
            history = model.fit(
                *training, epochs=EPOCHS, batch_size=50, verbose=0
            ).history["loss"]
            _, accuracy = model.evaluate(*test, verbose=0)
            curve = ", ".join(f"{history[each - 1]:.3g}" for each in shown)
            print(f"| {form} | {name} | {curve} | {accuracy:.3f} |", flush=True)


if __name__ == "__main__":
    main()
