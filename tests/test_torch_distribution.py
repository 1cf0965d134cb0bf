"""Two processes of `torch.distributed` give what one process gives."""

import concurrent.futures

import keras
import pytest

from keras_calib.ops.replicas import of_all_replicas
from tests.helpers import run_in_fresh_process

START = """
import keras
import numpy as np
import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

import keras_calib as kc
from tests.walks import every_loss
from tests.walks import every_metric

rng = np.random.default_rng(0)
x = rng.normal(size=(64, 8)).astype("float32")
y = (3 * x[:, :4] + rng.gumbel(size=(64, 4))).argmax(axis=1)

def network():
    return keras.Sequential([
        keras.Input((8,)),
        keras.layers.Dense(16, "relu"),
        keras.layers.Dense(4),
    ])

def own(rows, parallel):
    return rows[RANK::2] if parallel else rows

def average_gradients(model):
    # What `DistributedDataParallel` does, but in `fit`.
    def average(value):
        distributed.all_reduce(value.grad)
        value.grad /= distributed.get_world_size()

    for variable in model.trainable_variables:
        variable.value.register_post_accumulate_grad_hook(average)
"""

END = """
def run(parallel):
    found = {}
    for part in (losses, metrics, monitored, mutual):
        keras.utils.set_random_seed(0)
        for name, value in part(parallel).items():
            found[f"{part.__name__}: {name}"] = value
    return found

one = run(False)
distributed.init_process_group(
    "gloo", init_method="file://" + STORE, rank=RANK, world_size=2
)
two = run(True)
assert set(one) == set(two), set(one) ^ set(two)
for name in one:
    np.testing.assert_allclose(
        np.asarray(one[name], float), np.asarray(two[name], float),
        rtol=1e-5, atol=2e-6, err_msg=name,
    )
distributed.destroy_process_group()
print("equal", len(one))
"""

# Also those that are one statistic of the batch.
LOSSES = """
def weights_after_training(loss, parallel):
    keras.utils.set_random_seed(0)
    model = network()
    forward = DistributedDataParallel(model) if parallel else model
    optimizer = keras.optimizers.SGD(0.1)
    variables = model.trainable_variables
    optimizer.build(variables)
    for batch in np.split(np.arange(64), 4):
        batch = own(batch, parallel)
        model.zero_grad()
        loss(torch.tensor(y[batch]), forward(torch.tensor(x[batch]))).backward()
        with torch.no_grad():
            gradients = [variable.value.grad for variable in variables]
            optimizer.apply(gradients, variables)
    return model.get_weights()[2]

def losses(parallel):
    return {
        name: weights_after_training(loss, parallel)
        for name, loss in every_loss(across_replicas=True)
    }
"""

METRICS = """
def metrics(parallel):
    values = {}
    rows = own(np.arange(64), parallel)
    for name, metric in every_metric(num_classes=4):
        metric.update_state(y[rows], 3 * x[rows, :4])
        if parallel:
            for variable in metric.variables:
                distributed.all_reduce(variable.value)
        values[name] = metric.result()
    return {name: value.detach() for name, value in values.items()}
"""

# 63 rows for `calibrate`, which has no parts.
MONITORED = """
def monitored(parallel):
    model = network()
    logits = {"from_logits": True}
    loss = kc.losses.MDCA(across_replicas=True, **logits)
    model.compile(
        keras.optimizers.SGD(0.1), loss, metrics=loss.component_metrics()
    )
    if parallel:
        average_gradients(model)
    monitors = [
        kc.callbacks.CalibrationMonitor(data, every=2, **logits)
        for data in (None, (x[:63], y[:63]))
    ]
    history = model.fit(
        own(x, parallel), own(y, parallel), batch_size=8 if parallel else 16,
        epochs=2, verbose=0, shuffle=False, validation_data=(x, y),
        validation_batch_size=16, callbacks=monitors,
    ).history
    calibrated = kc.calibrate(model, x[:63], y[:63], guard=False, verbose=0)
    temperature = kc.calibration_record(calibrated)["temperature"]
    return {**history, "temperature": temperature}
"""

MUTUAL = """
def mutual(parallel):
    pair = kc.models.DiffDML(network(), network(), label_warmup=3)
    pair.compile(
        keras.optimizers.SGD(0.1),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    if parallel:
        average_gradients(pair)
    pair.fit(
        own(x, parallel), own(y, parallel), batch_size=8 if parallel else 16,
        epochs=2, verbose=0, shuffle=False,
    )
    return {"weights": pair.get_weights()[0],
            "auxiliary": pair.auxiliaries[0].get_weights()[0]}
"""


UNEQUAL = """
distributed.init_process_group(
    "gloo", init_method="file://" + STORE, rank=RANK, world_size=2
)
loss = kc.losses.MDCA(from_logits=True, across_replicas=True)
y, z = torch.tensor(y), torch.tensor(x[:, :4], requires_grad=True)
assert float(loss(y, z)) > 0
try:
    loss(y[: 5 - RANK], z[: 5 - RANK])
except ValueError as error:
    print(error)
assert float(loss(y, z)) > 0
distributed.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.backends("torch", reason="its processes")
def test_batches_of_several_sizes_are_refused_by_each_process(tmp_path):
    # The collective of gloo ended the processes instead.
    for printed in of_two_processes(START + UNEQUAL, tmp_path):
        assert "Received: batches of [5, 4] rows" in printed


@pytest.mark.slow
@pytest.mark.backends("torch", reason="its processes")
def test_two_processes_are_as_good_as_one(tmp_path):
    # All in one pair of processes, which take long to start.
    code = START + LOSSES + METRICS + MONITORED + MUTUAL + END
    for printed in of_two_processes(code, tmp_path):
        assert printed.startswith("equal"), printed


def of_two_processes(code, folder):
    """What code prints in each of two processes, with their `RANK`."""

    def printed_by(rank):
        where = f"RANK, STORE = {rank}, {str(folder / 'store')!r}\n"
        return run_in_fresh_process(where + code)

    with concurrent.futures.ThreadPoolExecutor() as pool:
        return list(pool.map(printed_by, range(2)))


@pytest.mark.backends("torch")
def test_one_process_has_all_rows(tmp_path):
    from torch import distributed

    if not distributed.is_available():
        pytest.skip("this torch has no processes")
    rows = keras.ops.ones((3, 2), "float16")
    distributed.init_process_group(
        "gloo",
        init_method=f"file://{tmp_path / 'store'}",
        rank=0,
        world_size=1,
    )
    try:
        found = of_all_replicas(rows)
    finally:
        distributed.destroy_process_group()
    assert found.shape == (3, 2) and found.dtype == rows.dtype
