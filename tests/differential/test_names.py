"""Every public name is compared with the reference, or says why not."""

import inspect

import keras_calib as kc
from tests.differential import test_callbacks
from tests.differential import test_losses
from tests.differential import test_metrics
from tests.differential import test_models
from tests.differential import test_posthoc

# What each room has of its own is walked in its file.
ROOMS = {
    "callbacks": test_callbacks,
    "layers": test_posthoc,
    "losses": test_losses,
    "metrics": test_metrics,
    "models": test_models,
}
COMPARED = {"calibrate", "calibration_record", "add_sample_index"}
ELSEWHERE = {
    "__version__": "a string",
    "adjust_prior": "by its own oracle: tests/calibration/test_adjust_prior.py",
    "SKLearnClassifier": "by scikit-learn's own checks: tests/interop",
    "check": "says in words what is wrong: tests/test_check.py",
    "datasets": "reads files: tests/datasets",
    "ModelCard": "what `model_card` returns: tests/reporting",
    "Report": "what `report` returns: tests/reporting",
    "model_card": "words, read back: tests/reporting/test_card.py",
    "report": "its numbers are those of calibration_errors: tests/reporting",
    "shift": "by its own oracle: tests/shift",
    "plots": "figures, read back from their axes: tests/plots",
}


def test_every_public_name():
    assert set(kc.__all__) - COMPARED - set(ROOMS) == set(ELSEWHERE)


def test_every_room_has_a_walk_over_its_names():
    for name, module in ROOMS.items():
        walks = [
            test
            for key, test in vars(module).items()
            if key.startswith("test_every_public")
        ]
        assert any(f"kc.{name}.__all__" in inspect.getsource(w) for w in walks)


def test_what_is_not_compared_exists_and_has_a_reason():
    for name, module in ROOMS.items():
        for key, reason in module.ELSEWHERE.items():
            assert key in getattr(kc, name).__all__ and reason
