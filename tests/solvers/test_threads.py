"""Products of matrices inside a fit start no threads of their own."""

import concurrent.futures
import threading

import numpy as np
import pytest
import threadpoolctl

import keras_calib as kc
from keras_calib.solvers.blocks import one_blas_thread
from tests.layers.generated import generated


def blas_threads():
    libraries = threadpoolctl.threadpool_info()
    return {
        each["filepath"]: each["num_threads"]
        for each in libraries
        if each["user_api"] == "blas"
    }


@pytest.fixture
def given_back():
    before = blas_threads()
    if max(before.values(), default=1) == 1:
        pytest.skip("no BLAS library with several threads is loaded")
    yield
    assert {name: blas_threads()[name] for name in before} == before


@pytest.mark.usefixtures("given_back")
def test_a_fit_takes_one_and_gives_them_back(monkeypatch):
    seen = []
    layer = kc.layers.VectorScaling()
    solve = type(layer).solve

    def remember(self, *arguments):
        seen.append(set(blas_threads().values()))
        return solve(self, *arguments)

    monkeypatch.setattr(type(layer), "solve", remember)
    layer.adapt(*generated(200, 3))
    assert seen == [{1}]


@pytest.mark.usefixtures("given_back")
def test_a_fit_that_fails_gives_them_back():
    with pytest.raises(ValueError, match="is for two classes"):
        kc.layers.BetaCalibration().adapt(*generated(200, 3))


@pytest.mark.usefixtures("given_back")
def test_fits_that_overlap_give_them_back():
    both = threading.Barrier(2, timeout=60)

    def first():
        with one_blas_thread():
            both.wait()  # the second is inside now
            return blas_threads()

    def second():
        with one_blas_thread():
            both.wait()
            over.result(60)
            return blas_threads()

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        over = pool.submit(first)
        pool.submit(second).result(60)
    assert 1 in over.result().values()


def test_fits_do_not_depend_on_the_number_of_threads():
    logits, labels = generated(600, 20)
    found = []
    for number in (1, 2):
        with threadpoolctl.threadpool_limits(number, user_api="blas"):
            layer = kc.layers.MatrixScaling()
            layer.adapt(logits, labels)
        found.append(layer.get_weights())
    for one, two in zip(*found, strict=True):
        np.testing.assert_array_equal(one, two)
