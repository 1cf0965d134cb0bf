"""Run one script of keras.io with our loss, metric and `calibrate` put in.

    python keras_io_script.py SCRIPT '{"loss": "MDCA", "rows": 256}'

The script is read from where it is; what is altered is altered in memory:

- `compile` gets our loss in place of a cross-entropy and the ECE as one more
  metric, `fit` runs one epoch;
- data sets that the script would download are made, with the shapes that they
  have and `rows` rows;
- `replace` of the settings has pairs of texts, what stands in the script and
  what is put there. Each must be found. The new texts may use `kc`, this
  library, and `ours`, which makes an instance of the loss;
- `devices` is the number of virtual devices of TensorFlow and JAX.

The last model that was trained is calibrated with its validation data, or with
what it was trained with. In scripts without `fit`, `end` of the settings has
the arguments of the function `end`: a model, data and `from_logits`. The last
line that is printed is JSON and tells what was found.
"""

import functools
import json
import os
import pathlib
import sys
import weakref

SETTINGS = json.loads(sys.argv[2]) if len(sys.argv) > 2 else {}
DEVICES = SETTINGS.get("devices", 1)
if DEVICES > 1:
    os.environ["XLA_FLAGS"] = (
        f"--xla_force_host_platform_device_count={DEVICES}"
    )

import keras  # noqa: E402
import numpy as np  # noqa: E402

import keras_calib as kc  # noqa: E402

ROWS = SETTINGS.get("rows", 256)
LOSS = getattr(kc.losses, SETTINGS.get("loss", "FocalLoss"))
CROSS_ENTROPIES = ("sparse", "categorical", "binary")
# Shape of an image, classes.
IMAGES = {
    "mnist": ((28, 28), 10),
    "fashion_mnist": ((28, 28), 10),
    "cifar10": ((32, 32, 3), 10),
    "cifar100": ((32, 32, 3), 100),
}
# Columns of tables: how many values, or the values.
HEART = {
    "age": 70,
    "sex": 2,
    "cp": 5,
    "trestbps": 180,
    "chol": 400,
    "fbs": 2,
    "restecg": 3,
    "thalach": 190,
    "exang": 2,
    "oldpeak": 4.0,
    "slope": 4,
    "ca": 4,
    "thal": ["fixed", "normal", "reversible"],
    "target": 2,
}
ADULT = [80, [" Private", " State-gov"], 400_000.0, [" HS-grad", " Masters"]]
ADULT += [16, [" Divorced", " Married"], [" Sales", " Tech-support"]]
ADULT += [[" Husband", " Wife"], [" Black", " White"], [" Female", " Male"]]
ADULT += [9000, 3000, 80, [" Cuba", " Peru"], [" <=50K", " >50K"]]
END = "end.json"  # what a process of several has found
calls = {"loss": 0, "metric": 0}
trained = []


def images(shape, classes):
    """Images of noise and their labels, to train with and to test with."""
    rng = np.random.default_rng(0)

    def part(rows):
        labels = rng.integers(0, classes, (rows, 1), "uint8")
        pixels = rng.integers(0, 256, (rows, *shape), "uint8")
        return pixels, labels if len(shape) == 3 else labels[:, 0]

    return part(ROWS), part(min(ROWS, 256))


def reviews(num_words=1000, **_):
    """Lists of words, as of IMDB."""
    rng = np.random.default_rng(0)

    def part():
        lengths = rng.integers(20, 300, ROWS)
        words = [rng.integers(1, num_words, n).tolist() for n in lengths]
        return np.array(words, dtype=object), rng.integers(0, 2, ROWS)

    return part(), part()


def engine_noise():
    """Lines of FordA: a label of -1 or 1, and 500 numbers."""
    rng = np.random.default_rng(0)
    labels = rng.choice([-1, 1], (ROWS, 1))
    return np.hstack([labels, rng.normal(size=(ROWS, 500))])


def column(rng, values):
    """Numbers below a number, of its type, or some of a list."""
    if isinstance(values, int):
        return rng.integers(0, values, ROWS)
    if isinstance(values, float):
        return rng.uniform(0, values, ROWS).round(1)
    return rng.choice(values, ROWS)


def table(address, names=None, **_):
    """The heart disease table, or the adults' incomes, by their address."""
    import pandas

    rng = np.random.default_rng(0)
    heart = "heart" in address
    columns = HEART if heart else dict(zip(names, ADULT, strict=True))
    made = {name: column(rng, values) for name, values in columns.items()}
    found = pandas.DataFrame(made)
    if address.endswith(".test"):
        found[names[-1]] += "."
    return found


def transactions(path):
    """A file of payments, 30 numbers and whether they are fraud."""
    rng = np.random.default_rng(0)
    numbers = rng.normal(size=(ROWS, 30)).round(3)
    fraud = rng.random(ROWS) < 0.1
    lines = [",".join(f"V{n}" for n in range(30)) + ",Class"]
    lines += [
        ",".join(map(str, row)) + f',"{int(one)}"'
        for row, one in zip(numbers, fraud, strict=True)
    ]
    path = pathlib.Path(path)
    path.write_text("\n".join(lines))
    return str(path)


def cats_and_dogs(*_, split, **__):
    """Images of different sizes, a data set for each part."""
    import tensorflow as tf

    def rows():
        rng = np.random.default_rng(0)
        for label in rng.integers(0, 2, ROWS):
            height, width = rng.integers(100, 200, 2)
            yield rng.integers(0, 256, (height, width, 3), "uint8"), label

    kinds = (
        tf.TensorSpec((None, None, 3), "uint8"),
        tf.TensorSpec((), "int64"),
    )
    one = tf.data.Dataset.from_generator(rows, output_signature=kinds)
    one = one.apply(tf.data.experimental.assert_cardinality(ROWS))
    return [one for _ in split]


def ours(**arguments):
    """An instance of our loss."""
    return LOSS(**arguments)


def our_loss(loss):
    """Ours in place of a cross-entropy; any other loss as it is."""
    name = getattr(loss, "name", None) or getattr(loss, "__name__", loss)
    if not str(name).startswith(CROSS_ENTROPIES):
        return loss
    config = loss.get_config() if isinstance(loss, keras.Loss) else {}
    return ours(from_logits=config.get("from_logits", False))


def counted(kind, name, what):
    """Count the calls of a method, in compiled code those that trace."""
    method = getattr(kind, name)

    @functools.wraps(method)
    def count(*arguments, **more):
        calls[what] += 1
        return method(*arguments, **more)

    setattr(kind, name, count)


def put_in(model=keras.Model):
    """Replace what the script calls, in this process."""
    compile_, fit, evaluate = model.compile, model.fit, model.evaluate
    with_ece = weakref.WeakSet()

    @functools.wraps(compile_)
    def new_compile(
        self, optimizer="rmsprop", loss=None, *rest, metrics=None, **more
    ):
        changed = our_loss(loss)
        if changed is not loss:
            ece = kc.metrics.ExpectedCalibrationError(
                name="ece", from_logits=changed.from_logits
            )
            metrics = [*(metrics or []), ece]
        # Also of a model that was saved with it.
        if getattr((metrics or [None])[-1], "name", "") == "ece":
            with_ece.add(self)
        compile_(self, optimizer, changed, *rest, metrics=metrics, **more)

    @functools.wraps(fit)
    def new_fit(self, x=None, y=None, **more):
        history = fit(self, x, y, **{**more, "epochs": 1, "verbose": 0})
        if isinstance(self.loss, LOSS) or "ece" in history.history:
            data = more.get("validation_data") or (x if y is None else (x, y))
            trained.append((self, data, sorted(history.history)))
        return history

    @functools.wraps(evaluate)
    def new_evaluate(self, *arguments, **more):
        values = evaluate(self, *arguments, **more)
        if self not in with_ece or not isinstance(values, list):
            return values
        # The script unpacks the values that it knows of.
        return values[:-1] if len(values) > 2 else values[0]

    for new in (new_compile, new_fit, new_evaluate):
        # Where it is defined: Keras asks a model that it loads whether its
        # `compile` is its own.
        name = new.__name__
        owner = next(kind for kind in model.__mro__ if name in vars(kind))
        setattr(owner, name, new)
    counted(LOSS, "__call__", "loss")
    counted(kc.metrics.ExpectedCalibrationError, "update_state", "metric")


def make_data():
    """Replace what would download data."""
    for name, (shape, classes) in IMAGES.items():
        made = functools.partial(images, shape, classes)
        getattr(keras.datasets, name).load_data = made
    keras.datasets.imdb.load_data = reviews
    keras.utils.plot_model = lambda *_, **__: None
    loadtxt = np.loadtxt
    np.loadtxt = lambda name, *rest, **more: (
        engine_noise()
        if str(name).startswith("http")
        else loadtxt(name, *rest, **more)
    )
    if SETTINGS.get("pandas"):
        import pandas

        pandas.read_csv = table
    if SETTINGS.get("tensorflow_datasets"):
        import tensorflow_datasets

        tensorflow_datasets.load = cats_and_dogs


def devices():
    """Virtual devices of TensorFlow; JAX has its own by a variable."""
    if DEVICES > 1 and keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        cpu = tf.config.list_physical_devices("CPU")[0]
        one = tf.config.LogicalDeviceConfiguration()
        tf.config.set_logical_device_configuration(cpu, [one] * DEVICES)


def altered(text):
    """The script with what `replace` says.

    Raises:
        ValueError: if a text is not in it, so that another version is noticed.
    """
    for old, new in SETTINGS.get("replace", ()):
        if old not in text:
            raise ValueError(f"The script does not contain {old!r}.")
        text = text.replace(old, new)
    return text


def end(model, data, *more, from_logits=None):
    """Calibrate a model, and tell what was found."""
    data = (data, *more) if more else data
    arrays = data if isinstance(data, tuple) else (data,)
    calibrated = kc.calibrate(
        model, *arrays, verbose=0, from_logits=from_logits
    )
    record = kc.calibration_record(calibrated)
    if SETTINGS.get("ece"):
        metric = kc.metrics.ExpectedCalibrationError(from_logits=from_logits)
        model.compile(loss=ours(from_logits=from_logits), metrics=[metric])
        model.evaluate(*arrays, verbose=0)
    names = ("method", "nll_before", "nll_after", "ece_before", "ece_after")
    found = {name: record[name] for name in names}
    logged = trained[-1][-1] if trained else []
    counts = {f"{name}_calls": count for name, count in calls.items()}
    found |= {"trained": len(trained), "logged": logged, **counts}
    pathlib.Path(END).write_text(json.dumps(found))


def main():
    script = pathlib.Path(sys.argv[1]).resolve()
    sys.argv = [str(script)]
    devices()
    put_in()
    make_data()
    names = {"__name__": "__main__", "__file__": str(script), "kc": kc}
    names |= {"ours": ours, "end": end, "transactions": transactions}
    code = compile(altered(script.read_text()), str(script), "exec")
    exec(code, names)
    last = SETTINGS.get("end")
    if last:
        exec(f"end({last})", names)
    elif not pathlib.Path(END).exists():
        model, data, _ = trained[-1]
        end(model, data)
    print(pathlib.Path(END).read_text())


if __name__ == "__main__":
    main()
