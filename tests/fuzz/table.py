"""From each public name to what calls it with drawn inputs."""

import contextlib
import functools
import inspect
import io
import tempfile

import keras
import numpy as np
from hypothesis import strategies as st
from keras.src.backend.common.masking import set_keras_mask

import keras_calib as kc
from keras_calib.layers._decision import DecisionLayer
from keras_calib.losses._batch_history import BatchHistory
from keras_calib.losses._batch_history import batch_history
from tests.fuzz.inputs import NOT_ARRAYS
from tests.fuzz.inputs import SILLY
from tests.fuzz.inputs import batches
from tests.fuzz.inputs import settings_of
from tests.fuzz.inputs import spoiled
from tests.test_house import CALLABLES

# Settings of every object of Keras, which Keras itself does not check.
OF_KERAS = {"name", "dtype", "trainable"}
# Methods without arguments, which some metrics have.
OF_METRICS = "decomposition", "impossible", "per_class", "signed", "used_bins"
DATA_SETTINGS = ("from_logits", "ignore_class", "axis")


def merged(settings, batch, function):
    """Settings, with those of the batch that a function has."""
    known = inspect.signature(function).parameters
    own = {k: v for k, v in batch.options.items() if k in known}
    return {**settings, **own}


def masked(batch):
    """The predictions, with Keras' mask on them where there is one."""
    if batch.mask is None:
        return batch.p
    try:
        p = keras.ops.convert_to_tensor(batch.p)
    except Exception:  # it is no array, which the callable shall say
        return batch.p
    set_keras_mask(p, keras.ops.convert_to_tensor(batch.mask))
    return p


def again(draw, found):
    """A copy by its configuration, in which one draw of eight is silly."""
    config = found.get_config()
    if draw(st.integers(0, 7)) == 0:
        name = draw(st.sampled_from(sorted(set(config) - OF_KERAS) or [""]))
        config[name] = draw(st.sampled_from(SILLY))
        draw.plain = False
    return type(found).from_config(config)


def a_loss(draw, make, batch=None):
    batch = batch or draw(batches())
    given = {**draw(settings_of(make, DATA_SETTINGS)), **batch.options}
    loss = again(draw, make(**given))
    for metric in getattr(loss, "component_metrics", list)():
        metric.update_state(batch.y, masked(batch), batch.w)
    return loss(batch.y, masked(batch), batch.w)


def crl(draw, make):
    """CRL, with the history that `SampleHistoryModel` gives it."""
    batch = draw(batches())
    often = draw(st.sampled_from([None, 0.0, 1.0]))
    history = BatchHistory()
    if often is not None and hasattr(batch.p, "shape"):
        rows = batch.p.shape[0] if batch.p.shape else 1
        correct = often * keras.ops.arange(rows, dtype="float32")
        history = BatchHistory(correct=correct, seen=correct + 1, lowest=0.0)
    with batch_history(history):
        return a_loss(draw, make, batch)


def a_function_of_logits(draw, function):
    batch = draw(batches(only_logits=True))
    arrays = [batch.y, batch.p]
    known = inspect.signature(function).parameters
    if "sample_weight" in known:
        arrays.append(batch.w)
    given = draw(settings_of(function))
    if "correctness" in known:
        arrays.append(draw(st.sampled_from([np.ones(6), *NOT_ARRAYS])))
    for name in ("edges", "gammas"):
        if name in known and name not in given:
            given[name] = [0.5] if name == "edges" else [1.0, 2.0]
    return function(*arrays, **given)


def a_metric(draw, make):
    batch = draw(batches())
    metric = make(**draw(settings_of(make, DATA_SETTINGS)), **batch.options)
    metric.update_state(batch.y, masked(batch), batch.w)
    other, metric = metric, again(draw, metric)
    metric.update_state(batch.y, masked(batch), batch.w)
    metric.update_state(batch.y, batch.p, batch.w)
    if draw(st.booleans()):
        metric.merge_state([other])
    for name in OF_METRICS:
        getattr(metric, name, dict)()
    found = metric.result()
    metric.reset_state()
    return found


def a_function_of_arrays(draw, function):
    batch = draw(batches())
    given = merged(draw(settings_of(function)), batch, function)
    arrays = [batch.y, batch.p]
    if "sample_weight" in inspect.signature(function).parameters:
        arrays.append(batch.w)
    return function(*arrays, **given)


def a_plot(draw, function):
    from matplotlib import pyplot

    try:
        a_function_of_arrays(draw, function)
    finally:
        pyplot.close("all")


def a_layer(draw, make):
    batch = draw(batches(only_logits=True))
    layer = make(**draw(settings_of(make)))
    if draw(st.integers(0, 9)) == 0:  # what `adapt` would refuse before
        draw.plain = False
        return layer(draw(spoiled(batch.p)))
    adapt(draw, layer, batch)
    other = again(draw, layer)
    other.build(np.shape(batch.p))
    other.set_weights(layer.get_weights())
    if callable(getattr(other, "temperatures", None)):
        other.temperatures(batch.p)
    return other(batch.p)


def a_local_layer(draw, make):
    """Local temperature scaling, which has images beside the logits."""
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    shape = draw(st.sampled_from([(3, 6, 6), (1, 5, 5), (0, 6, 6), (2, 6)]))
    pair = [
        rng.uniform(size=(*shape, 3)).astype("float32"),
        rng.normal(size=(*shape, 3)).astype("float32"),
    ]
    y = rng.integers(0, 3, shape)
    wrong = draw(st.integers(0, 5))
    if wrong < 2:
        pair[wrong] = draw(spoiled(pair[wrong]))
    elif wrong == 2:
        pair = draw(st.sampled_from([pair[0], pair[:1], *NOT_ARRAYS]))
    elif wrong == 3:
        y = draw(spoiled(y))
    layer = make(**draw(settings_of(make)))
    layer.adapt(pair, y, **draw(settings_of(layer.adapt)))
    return layer(pair)


def adapt(draw, layer, batch):
    given = draw(settings_of(layer.adapt))
    known = inspect.signature(layer.adapt).parameters
    if "ignore_class" in known:
        given["ignore_class"] = batch.options.get("ignore_class")
    weights = batch.w
    if isinstance(layer, DecisionLayer) and draw(st.booleans()):
        weights = None  # unequal ones are refused
    layer.adapt(batch.p, batch.y, weights, **given)


def an_objective(draw, make):
    batch = draw(batches(only_logits=True))
    layer = kc.layers.TemperatureScaling()
    layer.adapt(
        batch.p, batch.y, batch.w, objective=make(**draw(settings_of(make)))
    )
    return layer.temperature


def a_loss_objective(draw, make):
    loss = kc.losses.FocalLoss(from_logits=True)
    given = draw(st.sampled_from([loss, *SILLY]))
    return an_objective(draw, functools.partial(make, given))


def class_loss_scaling(draw, make):
    batch = draw(batches(only_logits=True))
    layer = kc.layers.TemperatureScaling()
    scaling = make(**draw(settings_of(make)))
    layer.adapt(batch.p, batch.y, batch.w, class_loss_scaling=scaling)
    return layer.temperature


def a_mixture(draw, make):
    batch = draw(batches(only_logits=True))
    layers = [kc.layers.TemperatureScaling(), kc.layers.VectorScaling()]
    maps = draw(st.sampled_from([layers, layers[:1], *SILLY]))
    weights = draw(st.sampled_from([[0.4, 0.6], [0, 1], *SILLY]))
    return make(maps=maps, weights=weights)(batch.p)


def a_prior_correction(draw, make):
    batch = draw(batches(only_logits=True))
    priors = [[0.2, 0.3, 0.5], [0.5, 0.5], [1, 0, 0], *SILLY]
    names = "source_prior", "target_prior"
    given = {name: draw(st.sampled_from(priors)) for name in names}
    if draw(st.booleans()):
        shape = getattr(batch.p, "shape", ())
        size = max(2, shape[-1] if shape else 2)
        given = dict.fromkeys(names, np.full(size, 1 / size))
    return make(**given)(batch.p)


def log_probabilities(draw, make):
    batch = draw(batches(only_logits=True))
    given = draw(st.sampled_from([batch.p, batch.p, *NOT_ARRAYS]))
    return make(**draw(settings_of(make)))(given)


def network(batch, softmax=False):
    """A model that gives what it gets, of the shape of the predictions."""
    shape = getattr(batch.p, "shape", ())[1:]
    inputs = keras.Input(shape if shape else (3,))
    last = keras.layers.Softmax() if softmax else keras.layers.Identity()
    return keras.Model(inputs, last(inputs))


def a_function_of_a_model(draw, function):
    batch = draw(batches())
    model = network(batch, draw(st.booleans()))
    if draw(st.integers(0, 19)) == 0:
        model = draw(st.sampled_from(SILLY))
    given = merged(draw(settings_of(function)), batch, function)
    arrays = [batch.p]
    known = inspect.signature(function).parameters
    arrays += [batch.y] if "y" in known else []
    if "sample_weight" in known:
        given["sample_weight"] = batch.w
    found = function(model, *arrays, **given)
    if isinstance(found, keras.Model):
        return found.predict(batch.p, verbose=0)
    return found


def a_shift(draw, function):
    """`adjust_prior`, of a calibrated model or of one that is not."""
    batch = draw(batches())
    model, priors = calibrated()[1], [[0.2, 0.3, 0.5], [1.0, 0.0, 0.0], None]
    x = draw(st.sampled_from([sample()[0], None, batch.p]))
    way = draw(st.integers(0, 3))
    if way == 0:
        model, x = network(batch, draw(st.booleans())), batch.p
    elif way == 1 and draw(st.booleans()):
        model = draw(st.sampled_from(SILLY))
    given = draw(settings_of(function))
    given["prior"] = draw(st.sampled_from([*priors, *SILLY]))
    weights = None if x is not batch.p else batch.w
    found = function(model, x, weights, **given)
    return found.predict(sample()[0], verbose=0)


def a_report(draw, function):
    batch = draw(batches())
    left_out = ("sample_weight",)
    given = merged(draw(settings_of(function, left_out)), batch, function)
    names = draw(st.sampled_from(["a", 1, "", None, "<b>|"]))
    what = {names: batch.p} if draw(st.booleans()) else batch.p
    found = function(what, y=batch.y, sample_weight=batch.w, **given)
    found.to_markdown()
    found.to_dict()


def a_record(draw, function):
    models = [*calibrated(), network(draw(batches()))]
    models += [calibrated()[1], draw(st.sampled_from(SILLY))]
    return function(models[draw(st.integers(0, len(models) - 1))])


def a_card(draw, function):
    # Most of what is silly is told apart by its class alone.
    silly = draw(st.sampled_from(SILLY))
    model = draw(st.sampled_from([*calibrated(), calibrated()[1], silly]))
    report = draw(st.sampled_from([None, a_small_report(), silly]))
    names = [None, "a", "<b>: |", "", 3, "\n---\n"]
    given = {
        each: draw(st.sampled_from(names))
        for each in ("name", "task", "dataset")
    }
    str(function(model, report, **given))


@functools.cache
def sample():
    rng = np.random.default_rng(0)
    z = rng.normal(0, 2, (40, 3)).astype("float32")
    return z, rng.integers(0, 3, 40)


@functools.cache
def calibrated():
    z, y = sample()
    inputs = keras.Input((3,))
    model = keras.Model(inputs, keras.layers.Softmax()(inputs))
    return model, kc.calibrate(model, z, y, verbose=0)


@functools.cache
def a_small_report():
    z, y = sample()
    return kc.report(
        {"a": z}, y=y, from_logits=True, num_resamples=5, verbose=0
    )


def small(num_classes=3):
    inputs = keras.Input((4,))
    return keras.Model(inputs, keras.layers.Dense(num_classes)(inputs))


def training_data(draw):
    """Inputs, labels and weights to train on, and what may be wrong."""
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    count = draw(st.sampled_from([6, 6, 1, 0]))
    arrays = [
        rng.normal(size=(count, 4)).astype("float32"),
        rng.integers(0, 3, count),
        draw(st.sampled_from([None, np.ones(count)])),
    ]
    if draw(st.booleans()):
        at = draw(st.integers(0, 2))
        arrays[at] = draw(spoiled(arrays[at]))
    return arrays


def compiled(model, loss=None, **kwargs):
    loss = loss or kc.losses.FocalLoss(from_logits=True)
    metrics = [
        "accuracy",
        *getattr(loss, "component_metrics", list)(),
    ]
    model.compile("sgd", loss, metrics=metrics, run_eagerly=True, **kwargs)
    return model


def fitted(model, data, callbacks=(), **kwargs):
    history = model.fit(
        *data[:2],
        sample_weight=data[2],
        callbacks=list(callbacks),
        epochs=1,
        verbose=0,
        **kwargs,
    )
    return list(history.history.values())


def a_model(draw, make):
    """`DiffDML` and `MutualLearning`."""
    given = draw(settings_of(make, ("name",)))
    others = [small(), [small(), small()], small(2), [], None, 3, [3]]
    pair = make(small(), draw(st.sampled_from(others)), **given)
    # Spoiled data is for the losses; here Keras itself would meet it.
    return fitted(compiled(pair), training_data_of_numbers(draw))


def training_data_of_numbers(draw):
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    count = draw(st.sampled_from([6, 1, 24]))
    weights = draw(st.sampled_from([None, np.ones(count), np.zeros(count)]))
    x = rng.normal(size=(count, 4)).astype("float32")
    return [x, rng.integers(0, 3, count), weights]


def an_average(draw, make):
    """`DeepEnsemble` and `MonteCarloDropout`."""
    given = draw(settings_of(make))
    one = small() if draw(st.booleans()) else dropout()
    members = [[small(), small()], [small()], [], small(), 3, None, [3]]
    if make is kc.models.DeepEnsemble:
        one = draw(st.sampled_from(members))
    x = draw(st.sampled_from([np.zeros((3, 4)), np.ones((1, 4))]))
    return make(one, **given).predict(x, verbose=0)


def dropout():
    inputs = keras.Input((4,))
    x = keras.layers.Dropout(0.5)(inputs)
    return keras.Model(inputs, keras.layers.Dense(3, "softmax")(x))


def interleaved(draw, make):
    given = draw(settings_of(make, ("name",)))
    model = draw(st.sampled_from([small(), small(), None, 3]))
    loss = kc.losses.MDCA(from_logits=True)
    return fitted(
        compiled(make(model, **given), loss), training_data_of_numbers(draw)
    )


def a_history(draw, make):
    given = draw(settings_of(make, ("name",)))
    given.setdefault("num_samples", draw(st.sampled_from([6, 24, 1, 0, None])))
    model = compiled(make(small(), **given), kc.losses.CRL(from_logits=True))
    x, y, w = training_data_of_numbers(draw)
    return fitted(model, (kc.add_sample_index(x), y, w))


def an_optimizer(draw, make):
    each = [keras.optimizers.SGD(0.1), "sgd", None, 3]
    given = [draw(st.sampled_from(each)) for _ in range(2)]
    optimizer = make(*given, **draw(settings_of(make, ("name",))))
    return float(optimizer.learning_rate)


def divergence(draw, function):
    first, second = draw(batches()), draw(batches())
    same = draw(st.booleans())
    # Of numbers that are no log-probabilities, exp can be infinite.
    draw.plain = False
    return function(first.p, first.p if same else second.p)


def a_callback(draw, make):
    """A watching callback, in a `fit` of one epoch."""
    given = draw(settings_of(make, DATA_SETTINGS))
    if make is kc.callbacks.CalibrationMonitor:
        metrics = [None, [], ["no"], "all", 3, ["accuracy"]]
        given["metrics"] = draw(st.sampled_from(metrics))
    own = [None, (*training_data_of_numbers(draw)[:2],), 3, (), ([1], [2])]
    given["validation_data"] = draw(st.sampled_from(own))
    if make is kc.callbacks.AdaFocalSchedule:
        loss = kc.losses.AdaFocalLoss(num_bins=3, from_logits=True)
    else:
        loss = None
        given["from_logits"] = True
    with tempfile.TemporaryDirectory() as folder:
        first = []
        if make is kc.callbacks.ReliabilityDiagram:
            first = [folder + draw(st.sampled_from(["/{epoch}.png", "/a{}"]))]
            given["tensorboard"] = False
        callback = make(*first, **given)
        data = training_data_of_numbers(draw)
        return fitted(
            compiled(small(), loss),
            data,
            [callback],
            validation_data=tuple(data[:2]),
        )


def restore(draw, make):
    given = draw(settings_of(make))
    key = draw(st.sampled_from(["val_refinement_loss", "val_loss", "", 3]))
    data = training_data_of_numbers(draw)
    watch = kc.callbacks.CalibrationMonitor(refinement=True, from_logits=True)
    return fitted(
        compiled(small()),
        data,
        [watch, make(key, **given)],
        validation_data=tuple(data[:2]),
    )


def correctness(draw, make):
    x, y, w = training_data_of_numbers(draw)
    model = kc.models.SampleHistoryModel(small(), num_samples=len(x))
    compiled(model, kc.losses.CRL(from_logits=True))
    callback = make(**draw(settings_of(make)))
    return fitted(model, (kc.add_sample_index(x), y, w), [callback])


def of_data(draw, make):
    """`DataPruning` and `EmpiricalTargets`, which take the training data."""
    x, y, w = training_data(draw)
    given = draw(settings_of(make))
    loss = keras.losses.CategoricalCrossentropy(from_logits=True)
    model = small()
    if make is kc.callbacks.DataPruning:
        loss = kc.losses.FocalLoss(from_logits=True)
        model = kc.models.SampleHistoryModel(model, num_samples=6)
    else:
        given.setdefault("num_classes", 3)
        given["from_logits"] = True
    callback = make(x, y, w, **given)
    return fitted(
        compiled(model, loss), (callback.data, None, None), [callback]
    )


def a_part(draw, make):
    batch = draw(batches(only_logits=True))
    loss = kc.losses.MDCA(**batch.options)
    given = draw(st.sampled_from([loss, loss, loss, None, 3, "mdca"]))
    parts = ["primary_loss", "penalty"]
    part = draw(st.sampled_from([*parts, *parts, "", None, 3]))
    found = again(draw, make(given, part))
    found.update_state(batch.y, batch.p, batch.w)
    return found.result()


def a_table(draw, make):
    given = draw(settings_of(make, ("name", "dtype")))
    given.setdefault("num_bins", draw(st.sampled_from([2, 3])))
    table = again(draw, make(**given))
    bins = [0.5], [0.2, 0.7], [], None, "x", [0.9, 0.1]
    gammas = [1.0, 2.0], [1.0, 0.0, -1.0], [1.0], None, [0.0]
    if draw(st.booleans()):
        table.set(draw(st.sampled_from(bins)), draw(st.sampled_from(gammas)))
    return table.result()


def an_index(draw, function):
    data = draw(st.sampled_from([np.zeros((3, 2)), [np.zeros(3)], *NOT_ARRAYS]))
    return function(data, **draw(settings_of(function)))


def sklearn(draw, make):
    models = [compiled(each) for each in (small(), small(2))]
    given = draw(st.sampled_from([*models, models[0], small, None, 3, "x"]))
    settings = draw(settings_of(make, ("model_kwargs", "fit_kwargs")))
    x, y, _ = training_data_of_numbers(draw)
    if draw(st.booleans()):
        batch = draw(batches())
        x, y = batch.p, batch.y
    found = make(given, **settings).fit(x, y)
    ways = found.predict, found.predict_proba, found.decision_function
    return draw(st.sampled_from(ways))(x)


def a_wrapper(draw, make):
    """`CalibratedModel` and `PreprocessedModel`."""
    heads = [
        kc.layers.TemperatureScaling(),
        keras.layers.Rescaling(2.0),
        None,
        3,
        small(),
    ]
    first = draw(st.sampled_from([small(), small(), None, 3]))
    return make(first, draw(st.sampled_from(heads)))(np.zeros((2, 4)))


def files(draw, function):
    known = inspect.signature(function).parameters
    # The digits come with scikit-learn; the others need files.
    names = ["digits", "cifar10", "cifar100", "no", "../x", "", None, 3]
    given = [draw(st.sampled_from(names))]
    if "part" in known:
        given.append(draw(st.sampled_from(["train", "test", "no", None])))
    return function(*given, **draw(settings_of(function)))


def tail(draw, function):
    batch = draw(batches())
    return function(batch.p, batch.y, **draw(settings_of(function)))


def history(draw, function):
    from matplotlib import pyplot

    logs = [
        {"loss": [1.0, 2.0], "val_expected_calibration_error": [0.1, 0.2]},
        {"val_expected_calibration_error": [NOT_ARRAYS[0], "x"]},
        {"val_expected_calibration_error": []},
        *NOT_ARRAYS,
    ]
    try:
        function(draw(st.sampled_from(logs)), **draw(settings_of(function)))
    finally:
        pyplot.close("all")


def profile(draw, function):
    from matplotlib import pyplot

    given = [
        {"focal": kc.losses.FocalLoss(from_logits=True)},
        {"x": None},
        kc.losses.MDCA(from_logits=True),
        *NOT_ARRAYS,
    ]
    try:
        function(draw(st.sampled_from(given)), **draw(settings_of(function)))
    finally:
        pyplot.close("all")


@st.composite
def images(draw):
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    shape = draw(
        st.sampled_from([(2, 16, 16, 3), (1, 20, 17, 3), (0, 16, 16, 3)])
    )
    x = rng.integers(0, 256, shape).astype("uint8")
    if draw(st.booleans()):
        return draw(spoiled(x))
    return x


def corrupted(draw, function):
    kinds = [*kc.shift.CORRUPTIONS, "no", "", None, 3]
    found = function(
        draw(images()),
        draw(st.sampled_from(kinds)),
        draw(st.sampled_from([1, 2, 3, 4, 5, 0, 6, None, "1", 1.5])),
        **draw(settings_of(function)),
    )
    return found


@functools.cache
def of_images():
    inputs = keras.Input((16, 16, 3))
    x = keras.layers.Flatten()(keras.layers.Rescaling(1 / 255)(inputs))
    return keras.Model(inputs, keras.layers.Dense(3, "softmax")(x))


def shifted(draw, function):
    model = draw(st.sampled_from([of_images(), {"a": of_images()}, None, {}]))
    x = draw(images())
    y = np.arange(len(x) if np.iterable(x) else 0) % 3
    found = function(model, x, y, **draw(settings_of(function)))
    found.to_markdown()
    return found.means


def curves(draw, function):
    from matplotlib import pyplot

    given = draw(st.sampled_from([shift_result(), *SILLY]))
    try:
        function(given, **draw(settings_of(function)))
    finally:
        pyplot.close("all")


@functools.cache
def shift_result():
    x = np.zeros((2, 16, 16, 3), "uint8")
    return kc.shift.evaluate(
        of_images(),
        x,
        [0, 1],
        corruptions=["contrast"],
        severities=[1],
        num_resamples=2,
        verbose=0,
    )


def command(draw, function):
    """Words on the command line; the files are fuzzed in `test_files`."""
    words = ["evaluate", "report", "--json", "-o", "r.md", "no.npz", "x.keras"]
    words += ["--seed", "1", "", "-1", "--ignore-class", "calibrate", "shift"]
    given = [draw(st.sampled_from(words)) for _ in range(4)]
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
        try:
            assert function(arguments=given) == 2
        except SystemExit as stopped:
            assert stopped.code in (0, 2)


def rooms():
    """Name: the function that draws and calls, and what it is called with."""
    for name, found in CALLABLES.items():
        room, _, own = name.rpartition(".")
        if name in SPECIAL:
            yield name, SPECIAL[name]
        elif room == "losses":
            yield name, a_loss if own[0].isupper() else a_function_of_logits
        elif room == "metrics":
            yield name, a_metric if own[0].isupper() else a_function_of_arrays
        elif room == "plots":
            yield name, a_plot
        elif room == "layers" and issubclass(found, kc.layers.Objective):
            yield name, an_objective
        elif room == "layers":
            yield name, a_layer


SPECIAL = {
    "SKLearnClassifier": sklearn,
    "add_sample_index": an_index,
    "adjust_prior": a_shift,
    "calibrate": a_function_of_a_model,
    "calibration_record": a_record,
    "check": a_function_of_a_model,
    "model_card": a_card,
    "report": a_report,
    "callbacks.AdaFocalSchedule": a_callback,
    "callbacks.CalibrationMonitor": a_callback,
    "callbacks.CorrectnessHistory": correctness,
    "callbacks.DataPruning": of_data,
    "callbacks.EmpiricalTargets": of_data,
    "callbacks.ReliabilityDiagram": a_callback,
    "callbacks.RestoreCalibrated": restore,
    "callbacks.TemperatureTracker": a_callback,
    "calibration.CalibratedModel": a_wrapper,
    "calibration.PreprocessedModel": a_wrapper,
    "command_line.main": command,
    "datasets.inexact_images": files,
    "datasets.load": files,
    "datasets.long_tailed": tail,
    "datasets.stream": files,
    "layers.CalibrationMixture": a_mixture,
    "layers.ClassLossScaling": class_loss_scaling,
    "layers.LocalTemperatureScaling": a_local_layer,
    "layers.LogProbabilities": log_probabilities,
    "layers.LossObjective": a_loss_objective,
    "layers.PriorCorrection": a_prior_correction,
    "losses.AdaFocalTable": a_table,
    "losses.CRL": crl,
    "losses.LossPart": a_part,
    "models.DeepEnsemble": an_average,
    "models.DiffDML": a_model,
    "models.InterleavedTraining": interleaved,
    "models.MonteCarloDropout": an_average,
    "models.MutualLearning": a_model,
    "models.MutualOptimizer": an_optimizer,
    "models.SampleHistoryModel": a_history,
    "models.kl_divergence": divergence,
    "plots.calibration_history": history,
    "plots.loss_profile": profile,
    "plots.shift_curves": curves,
    "shift.corrupt": corrupted,
    "shift.evaluate": shifted,
}
# Public names that are not called, and why.
NOT_CALLED = {
    "ModelCard": "what `model_card` returns",
    "Report": "what `report` returns",
    "layers.CalibrationLayer": "a base class, without `adapt` of its own",
    "layers.DecisionLayer": "a base class, without `adapt` of its own",
    "layers.Objective": "a base class, without a formula",
    "losses.ClassificationLoss": "a base class, without a formula",
    "losses.PenalizedLoss": "a base class, without a formula",
    "metrics.CalibrationMetric": "a base class, without a formula",
    "shift.ShiftResult": "what `shift.evaluate` returns",
}
TABLE = {
    name: (call, CALLABLES[name])
    for name, call in rooms()
    if name not in NOT_CALLED
}
# The same objects under another name.
ALIASES = {
    name
    for name, found in CALLABLES.items()
    if "." in name and CALLABLES.get(name.rpartition(".")[2]) is found
}
