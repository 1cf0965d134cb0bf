"""Networks that train together, and networks that are averaged."""

from keras_calib.models._deep_ensemble import DeepEnsemble
from keras_calib.models._diff_dml import DiffDML
from keras_calib.models._divergence import kl_divergence
from keras_calib.models._interleaved_training import InterleavedTraining
from keras_calib.models._monte_carlo_dropout import MonteCarloDropout
from keras_calib.models._mutual_learning import MutualLearning
from keras_calib.models._mutual_optimizer import MutualOptimizer
from keras_calib.models._sample_history_model import SampleHistoryModel

__all__ = [
    "DeepEnsemble",
    "DiffDML",
    "InterleavedTraining",
    "MonteCarloDropout",
    "MutualLearning",
    "MutualOptimizer",
    "SampleHistoryModel",
    "kl_divergence",
]
