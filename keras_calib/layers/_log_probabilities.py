"""Probabilities as logits, for a network whose own logits are out of reach."""

from typing import Any

import keras
from keras import ops

from keras_calib._typing import Tensor
from keras_calib.inputs.arguments import require_flags
from keras_calib.inputs.tensors import at_least_float32
from keras_calib.inputs.tensors import maximum
from keras_calib.inputs.tensors import quarter_steps
from keras_calib.layers._recorded import LayerOfScores


@keras.saving.register_keras_serializable(package="keras_calib")
class LogProbabilities(LayerOfScores):
    """`log p`: the logits up to a constant per sample, which softmax ignores.

    The smallest output is the logarithm of the smallest normal float32, or of
    a quarter of the smallest float16 if probabilities are of float16. One
    sigmoid unit becomes its log-odds; that of a unit that is 1 is of a quarter
    of a step below 1, the middle of what rounds there.

    Args:
        multi_label: whether each of several units is a sigmoid, and becomes its
            log-odds.
        **kwargs: `name`, `dtype`, as in Keras.

    Raises:
        ValueError: if `multi_label` is not true or false.

    Example:
        >>> import numpy as np, keras_calib as kc
        >>> layer = kc.layers.LogProbabilities()
        >>> round(float(layer(np.array([[0.5, 0.5]]))[0, 0]), 4)
        -0.6931
    """

    # The output is logits.
    ends_in = "linear"

    def __init__(self, *, multi_label: bool = False, **kwargs: Any) -> None:
        # The dtype of the inputs tells how they were rounded.
        super().__init__(autocast=False, **kwargs)
        require_flags(multi_label=multi_label)
        self.multi_label = multi_label
        self.supports_masking = True

    def call(self, probabilities: Tensor) -> Tensor:
        least, least_other = quarter_steps(probabilities)
        # Keras leaves labels as they are.
        probabilities = at_least_float32(probabilities)
        logits = ops.log(maximum(probabilities, least))
        if self.multi_label or probabilities.shape[-1] == 1:
            logits -= ops.log(maximum(1.0 - probabilities, least_other))
        return logits

    def compute_output_shape(self, input_shape: tuple) -> tuple:
        return input_shape

    def get_config(self) -> dict:
        config = super().get_config()
        if self.multi_label:
            config["multi_label"] = True
        return config
