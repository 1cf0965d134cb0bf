"""What callbacks take as validation data, and what they refuse."""

import itertools

import keras
import numpy as np
import pytest

import keras_calib as kc
from tests.helpers import small_network

MEASURES = ("negative_log_likelihood", "brier_score", "mean_confidence")


@pytest.fixture(scope="module")
def data(digits):
    (x, y), (x_val, y_val), _ = digits
    return (x[:64], y[:64]), (x_val[:100], y_val[:100])


def compiled(model, from_logits=True, **kwargs):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=from_logits)
    model.compile(keras.optimizers.SGD(0.0), loss, **kwargs)
    return model


def monitor(validation=None, from_logits=True, **kwargs):
    return kc.callbacks.CalibrationMonitor(
        validation, from_logits=from_logits, metrics="all", **kwargs
    )


def check(logs, labels, predictions, weight=None, from_logits=True):
    expected = kc.metrics.calibration_errors(
        labels, predictions, weight, from_logits=from_logits
    )
    for name in MEASURES:
        assert logs[f"val_{name}"][-1] == pytest.approx(
            expected[name], abs=1e-5
        ), name


CALLBACKS = {
    "monitor": kc.callbacks.CalibrationMonitor,
    "tracker": kc.callbacks.TemperatureTracker,
    "schedule": kc.callbacks.AdaFocalSchedule,
    "diagram": lambda data: kc.callbacks.ReliabilityDiagram(
        "logs", validation_data=data
    ),
}


@pytest.mark.parametrize("kind", CALLBACKS)
def test_data_that_cannot_be_read_again(kind, data):
    x, y = data[1]
    make = CALLBACKS[kind]
    endless = ((x, y) for _ in itertools.count())
    for generator in (endless, iter([(x, y)])):
        with pytest.raises(ValueError, match="used up after one epoch"):
            make(generator)
    with pytest.raises(ValueError, match="needs labels"):
        make(x)
    for wrong in ((x,), (x, y, y, y)):
        with pytest.raises(ValueError, match=f"a tuple of {len(wrong)}"):
            make(wrong)

    class Endless(keras.utils.PyDataset):
        num_batches = None

        def __getitem__(self, i):
            return x, y

    with pytest.raises(ValueError, match=r"no end.*Endless"):
        make(Endless())
    tf = pytest.importorskip("tensorflow")
    endless = tf.data.Dataset.from_tensor_slices((x, y)).batch(8).repeat()
    with pytest.raises(ValueError, match=r"`dataset.take\(steps\)`"):
        make(endless)


class Parts(keras.utils.PyDataset):
    """Arrays cut at the given places."""

    def __init__(self, x, y, cuts):
        super().__init__()
        self.x, self.y = np.split(x, cuts), np.split(y, cuts)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


def test_batches_without_a_sample(data):
    (x, y), (x_val, y_val) = data
    model = compiled(small_network())
    parts = Parts(x_val, y_val, [0, 40, 40, 99])
    logs = model.fit(x, y, callbacks=[monitor(parts)], verbose=0).history
    check(logs, y_val, model.predict(x_val, verbose=0))
    with pytest.raises(ValueError, match="has no validation data"):
        model.fit(
            x,
            y,
            callbacks=[monitor(Parts(x_val[:0], y_val[:0], []))],
            verbose=0,
        )


def test_lists_of_numbers(data):
    (x, y), (x_val, y_val) = data
    model = compiled(small_network())
    lists = x_val.tolist(), y_val.tolist(), [1.0] * 99 + [0.0]
    logs = model.fit(x, y, callbacks=[monitor(lists)], verbose=0).history
    check(logs, y_val[:99], model.predict(x_val[:99], verbose=0))


@pytest.mark.parametrize("own", [False, True], ids=["validation", "own"])
def test_nested_inputs(own, data):
    (x, y), (x_val, y_val) = data

    def nested(x):
        return {"a": {"b": x[:, :30]}, "c": [x[:, 30:50], x[:, 50:]]}

    inputs = {
        "a": {"b": keras.Input((30,))},
        "c": [keras.Input((20,)), keras.Input((14,))],
    }
    joined = keras.layers.Concatenate()(keras.tree.flatten(inputs))
    model = compiled(keras.Model(inputs, keras.layers.Dense(10)(joined)))
    validation = nested(x_val), y_val
    logs = model.fit(
        nested(x),
        y,
        validation_data=validation,
        callbacks=[monitor(validation if own else None)],
        verbose=0,
    ).history
    check(logs, y_val, model.predict(nested(x_val), verbose=0))


class Dictionary(keras.Model):
    """Outputs that only a call shows."""

    def __init__(self):
        super().__init__()
        self.a, self.b = keras.layers.Dense(10), keras.layers.Dense(10)

    def call(self, inputs):
        return {"a": self.a(inputs), "b": self.b(inputs)}


@pytest.mark.parametrize("own", [False, True], ids=["validation", "own"])
@pytest.mark.parametrize("form", ["dict", "list", "subclass"])
def test_several_outputs(form, own, data):
    (x, y), (x_val, y_val) = data
    inputs = keras.Input((64,))
    outputs = {name: keras.layers.Dense(10, name=name)(inputs) for name in "ab"}
    names = {"a": y, "b": y}, {"a": y_val, "b": y_val}
    if form == "subclass":
        model = Dictionary()
    elif form == "dict":
        model = keras.Model(inputs, outputs)
    else:
        model = keras.Model(inputs, list(outputs.values()))
        names = [y, y], [y_val, y_val]
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    if form == "list":
        model.compile("sgd", [loss, loss])
    else:
        model.compile("sgd", {"a": loss, "b": loss})
    for callback in (
        monitor((x_val, y_val) if own else None),
        kc.callbacks.TemperatureTracker((x_val, y_val) if own else None),
    ):
        with pytest.raises(ValueError, match=r"one output"):
            model.fit(
                x,
                names[0],
                validation_data=(x_val, names[1]),
                callbacks=[callback],
                verbose=0,
            )


@pytest.mark.parametrize("own", [False, True], ids=["validation", "own"])
@pytest.mark.parametrize("masks", [False, True])
def test_a_dict_of_one_output(masks, own, data):
    (x, y), (x_val, y_val) = data
    inputs = keras.Input((64,))
    kept = keras.layers.Masking()(inputs) if masks else inputs
    outputs = keras.layers.Dense(10)(kept)
    model = compiled(keras.Model(inputs, {"a": outputs}))
    weight = np.random.default_rng(0).uniform(0.5, 2.0, len(y_val))
    validation = x_val, {"a": y_val}, {"a": weight}
    logs = model.fit(
        x,
        {"a": y},
        validation_data=validation,
        callbacks=[monitor(validation if own else None)],
        verbose=0,
    ).history
    check(logs, y_val, model.predict(x_val, verbose=0)["a"], weight)


def test_class_axis_of_every_callback(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(24, 4, 5)).astype("float32")
    labels = (x + rng.gumbel(size=x.shape)).argmax(axis=1)
    labels[:, 0] = 255
    model = keras.Sequential(
        [keras.Input((4, 5)), keras.layers.Rescaling(2.0), Scaled()]
    )
    loss = kc.losses.AdaFocalLoss(
        num_bins=3, axis=1, ignore_class=255, from_logits=True
    )
    model.compile("sgd", loss, metrics=loss.component_metrics())
    schedule = kc.callbacks.AdaFocalSchedule((x, labels))
    shared = {"axis": 1, "ignore_class": 255, "from_logits": True}
    logs = model.fit(
        x,
        labels,
        callbacks=[
            schedule,
            kc.callbacks.TemperatureTracker((x, labels), **shared),
            kc.callbacks.CalibrationMonitor(
                (x, labels), metrics="all", **shared
            ),
            kc.callbacks.ReliabilityDiagram(
                tmp_path / "one.png", validation_data=(x, labels), **shared
            ),
        ],
        verbose=0,
    ).history
    assert (tmp_path / "one.png").exists()
    rows = np.moveaxis(model.predict(x, verbose=0), 1, -1)[labels != 255]
    ids = labels[labels != 255]
    check(logs, ids, rows)
    layer = kc.layers.TemperatureScaling().adapt(rows, ids)
    assert logs["val_temperature"][0] == pytest.approx(
        float(layer.temperature), rel=1e-4
    )
    p = np.exp(rows - np.log(np.exp(rows).sum(-1, keepdims=True)))
    gap = (p.max(-1) - (p.argmax(-1) == ids)).mean()
    counts = np.histogram(
        p.max(-1), [0, *schedule.edges[1:-1], 1], density=False
    )[0]
    assert np.average(schedule.gaps[0], weights=counts) == pytest.approx(
        gap, abs=0.02
    )


class Scaled(keras.layers.Layer):
    """What comes in, with a weight to train."""

    def build(self, input_shape):
        self.scale = self.add_weight((), "ones")

    def call(self, inputs):
        return inputs * self.scale


class Epochs(keras.callbacks.Callback):
    count = 0

    def on_epoch_begin(self, epoch, logs=None):
        self.count += 1


@pytest.mark.parametrize("activation", ["softmax", None])
@pytest.mark.parametrize("kind", ["monitor", "tracker", "diagram", "schedule"])
def test_the_wrong_from_logits_costs_no_epoch(kind, activation, data, tmp_path):
    train, validation = data
    model = small_network(activation=activation)
    from_logits = activation is not None
    loss = kc.losses.AdaFocalLoss(from_logits=from_logits)
    model.compile("sgd", loss, metrics=loss.component_metrics())
    arguments = {"from_logits": from_logits}
    callback = {
        "monitor": lambda: monitor(validation, **arguments),
        "tracker": lambda: kc.callbacks.TemperatureTracker(
            validation, **arguments
        ),
        "diagram": lambda: kc.callbacks.ReliabilityDiagram(
            tmp_path, validation_data=validation, **arguments
        ),
        "schedule": lambda: kc.callbacks.AdaFocalSchedule(validation),
    }[kind]()
    epochs = Epochs()
    other = "False" if from_logits else "True"
    with pytest.raises(ValueError, match=f"pass `from_logits={other}`"):
        model.fit(*train, callbacks=[callback, epochs], verbose=0)
    assert epochs.count == 0


@pytest.mark.parametrize("shown", [True, False])
@pytest.mark.parametrize("from_logits", [False, True])
def test_the_wrong_from_logits_in_the_validation_of_fit(
    from_logits, shown, data
):
    train, validation = data
    model = small_network(activation="softmax" if from_logits else None)
    if not shown:  # the graph proves nothing, the data of an epoch do
        model.add(keras.layers.Rescaling(1.0))
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy())
    epochs = Epochs()
    with pytest.raises(
        ValueError, match=f"pass `from_logits={not from_logits}"
    ):
        model.fit(
            *train,
            validation_data=validation,
            callbacks=[monitor(from_logits=from_logits), epochs],
            verbose=0,
        )
    assert epochs.count == (0 if shown else 1)


@pytest.mark.backends(
    "tensorflow", "jax", reason="Keras trains no stateful layer on torch"
)
def test_a_state_between_batches_is_the_trainings():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(16, 5, 3)).astype("float32")
    y = rng.integers(0, 4, 16)

    def build():
        keras.utils.set_random_seed(1)
        return compiled(
            keras.Sequential(
                [
                    keras.Input(batch_shape=(8, 5, 3)),
                    keras.layers.LSTM(6, stateful=True),
                    keras.layers.Dense(4),
                ]
            )
        )

    alone, watched = build(), build()
    arguments = {"batch_size": 8, "shuffle": False, "epochs": 2, "verbose": 0}
    expected = alone.fit(x, y, **arguments).history["loss"]
    # Batches of 8, as the model has them, without being told.
    logs = watched.fit(x, y, callbacks=[monitor((x, y))], **arguments).history
    assert logs["loss"] == pytest.approx(expected, rel=1e-6)
    watched.layers[0].reset_state()
    check(logs, y, watched.predict(x, batch_size=8, verbose=0))


@pytest.mark.parametrize("own", [False, True], ids=["validation", "own"])
@pytest.mark.parametrize("shape", [(100,), (100, 1)])
def test_one_sigmoid_unit(own, shape, data):
    (x, y), (x_val, y_val) = data
    layers = [keras.Input((64,)), keras.layers.Dense(1, activation="sigmoid")]
    if shape == (100,):
        layers.append(keras.layers.Reshape(()))
    model = keras.Sequential(layers)
    model.compile("sgd", "binary_crossentropy")
    validation = x_val, (y_val % 2).reshape(shape)
    logs = model.fit(
        x,
        (y % 2).reshape(-1, *shape[1:]),
        validation_data=validation,
        callbacks=[monitor(validation if own else None, from_logits=False)],
        verbose=0,
    ).history
    p = model.predict(x_val, verbose=0)
    assert p.shape == shape
    check(logs, y_val % 2, p, from_logits=False)
    assert "val_binary_calibration_error" in logs


def test_labels_that_do_not_exclude_each_other(data):
    (x, y), (x_val, y_val) = data
    model = small_network(activation="sigmoid")
    model.compile("sgd", "binary_crossentropy")
    several = np.eye(10)[y_val] + np.eye(10)[(y_val + 1) % 10]
    with pytest.raises(ValueError, match="MultilabelCalibrationError"):
        model.fit(
            x,
            np.eye(10)[y],
            callbacks=[monitor((x_val, several), from_logits=False)],
            verbose=0,
        )


@pytest.mark.parametrize("own", [False, True], ids=["validation", "own"])
@pytest.mark.parametrize("form", ["ids", "one_hot"])
def test_rows_that_do_not_count(own, form, data):
    (x, y), (x_val, y_val) = data
    weight = np.ones(100, "float32")
    weight[:20] = 0.0
    weight[50:] = 3.0
    labels = np.eye(10, dtype="float32")[y_val] if form == "one_hot" else y_val
    model = small_network()
    loss = "categorical_crossentropy"
    if form == "ids":
        labels = labels.copy()
        # Impossible, but of weight 0.
        labels[:20] = 77
        labels[20:30] = 255
        loss = kc.losses.FocalLoss(ignore_class=255, from_logits=True)
    model.compile(keras.optimizers.SGD(0.0), loss)
    logs = model.fit(
        x,
        np.eye(10)[y] if form == "one_hot" else y,
        validation_data=(x_val, labels, weight),
        callbacks=[
            monitor((x_val, labels, weight) if own else None, ignore_class=255)
        ],
        verbose=0,
    ).history
    start = 30 if form == "ids" else 20
    check(
        logs,
        y_val[start:],
        model.predict(x_val, verbose=0)[start:],
        weight[start:],
    )


def test_validation_split_and_later_epochs(data):
    x, y = data[1]
    model = compiled(small_network())
    watch = monitor(every=2)
    history = model.fit(
        x,
        y,
        validation_split=0.4,
        initial_epoch=3,
        epochs=8,
        callbacks=[watch],
        verbose=0,
    )
    # After epochs 4, 6 and 8, counted from 1.
    assert len(history.history["val_brier_score"]) == 3
    check(history.history, y[60:], model.predict(x[60:], verbose=0))
    # The same callback in another run, on another model.
    other = compiled(small_network())
    history = other.fit(
        x, y, validation_split=0.5, callbacks=[watch], verbose=0
    )
    check(history.history, y[50:], other.predict(x[50:], verbose=0))


def test_the_epoch_that_stops_is_the_last(data):
    (x, y), validation = data
    model = compiled(small_network())
    # Nothing gets better at a learning rate of 0.
    stop = keras.callbacks.EarlyStopping("loss", min_delta=1e-3, patience=1)
    history = model.fit(
        x,
        y,
        epochs=20,
        callbacks=[stop, monitor(validation, every=7)],
        verbose=0,
    ).history
    assert len(history["loss"]) == 2
    assert len(history["val_brier_score"]) == 1


def test_several_callbacks_watch_one_validation(data, tmp_path):
    (x, y), (x_val, y_val) = data
    loss = kc.losses.AdaFocalLoss(num_bins=5, from_logits=True)
    model = small_network()
    model.compile(
        keras.optimizers.SGD(0.0), loss, metrics=loss.component_metrics()
    )
    calls = []
    predict = model.predict_on_batch
    model.predict_on_batch = lambda x: calls.append(1) or predict(x)
    schedule = kc.callbacks.AdaFocalSchedule()
    history = model.fit(
        x,
        y,
        validation_data=(x_val, y_val),
        epochs=3,
        callbacks=[
            monitor(every=2),
            schedule,
            kc.callbacks.TemperatureTracker(from_logits=True),
            kc.callbacks.ReliabilityDiagram(
                tmp_path / "{epoch}.png", from_logits=True, every=3
            ),
            kc.callbacks.TemperatureTracker(from_logits=True, every=2),
        ],
        verbose=0,
    ).history
    assert not calls
    assert len(history["val_brier_score"]) == 2
    assert len(history["val_temperature"]) == len(schedule.gammas) == 3
    assert [path.name for path in tmp_path.iterdir()] == ["3.png"]
    check(history, y_val, model.predict(x_val, verbose=0))
    # A validation of its own has nothing to say, and keeps nothing.
    watch = monitor()
    model.fit(x, y, validation_data=(x_val, y_val), callbacks=[watch])
    found = model.evaluate(
        x_val, y_val, callbacks=[watch], return_dict=True, verbose=0
    )
    assert not [name for name in found if "calibration" in name]
    assert watch._fit_outputs is None


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("{run}/{epoch:02d}.png", "{run}/03.png"),
        ("{0}_{epoch}_{}.png", "{0}_3_{}.png"),
        ("{run}_{epoch}", "{run}_{epoch}/reliability_003.png"),
    ],
)
def test_braces_in_names(name, expected, data, tmp_path):
    callback = kc.callbacks.ReliabilityDiagram(
        tmp_path / name,
        validation_data=data[1],
        from_logits=True,
        every=3,
        tensorboard=False,
    )
    compiled(small_network()).fit(
        *data[0], epochs=3, callbacks=[callback], verbose=0
    )
    assert (tmp_path / expected).exists()


class Batches(keras.utils.PyDataset):
    """Validation data of a class that Keras reads by itself."""

    def __init__(self, x, y):
        super().__init__()
        self.x, self.y = x, y

    def __len__(self):
        return 1

    def __getitem__(self, index):
        return self.x, self.y


def test_a_dataset_costs_no_epoch_either(data):
    train, validation = data
    model = small_network()
    model.compile("sgd", "sparse_categorical_crossentropy")
    epochs = Epochs()
    callbacks = [monitor(Batches(*validation), from_logits=False), epochs]
    with pytest.raises(ValueError, match="pass `from_logits=True`"):
        model.fit(*train, callbacks=callbacks, verbose=0)
    assert epochs.count == 0
    with pytest.raises(ValueError, match="leave out `sample_weight` and"):
        monitor(Batches(*validation), batch_size=8)


@pytest.mark.parametrize("kind", ["monitor", "tracker", "diagram", "restore"])
def test_no_warning_where_no_epoch_ran(kind, data, recwarn):
    make = {
        **CALLBACKS,
        "restore": lambda data: kc.callbacks.RestoreCalibrated("val_loss"),
    }
    model = compiled(small_network())
    callback = make[kind](None)
    callback.from_logits = True
    history = model.fit(
        *data[0],
        epochs=3,
        initial_epoch=3,
        validation_data=data[1],
        callbacks=[callback],
        verbose=0,
    )
    assert history.epoch == []
    told = [str(each.message) for each in recwarn]
    assert not [text for text in told if "valid" in text]
