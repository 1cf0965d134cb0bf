"""Networks that train together, and networks that are averaged."""

from keras_calib.models.deep_ensemble import DeepEnsemble
from keras_calib.models.diff_dml import DiffDML
from keras_calib.models.interleaved_training import InterleavedTraining
from keras_calib.models.monte_carlo_dropout import MonteCarloDropout
from keras_calib.models.mutual_learning import MutualLearning
from keras_calib.models.mutual_learning import kl_divergence
from keras_calib.models.mutual_optimizer import MutualOptimizer
from keras_calib.models.sample_history_model import SampleHistoryModel

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
