"""The scripts of keras.io that `keras_io.py` runs, and what is altered in each.

Each has its backend (the one that the script names, or one that it runs on), a
loss of ours, what is altered in a few words, and the pairs of texts for that.
"""


class Script:
    """How a script is run.

    Args:
        backend: `"tensorflow"`, `"jax"` or `"torch"`.
        loss: name of a loss of ours.
        altered: in a few words, what else is altered.
        *replace: pairs of texts, what is in the script and what is put there.
        needs: modules that it imports.
        **settings: others of `keras_io_script.py`.
    """

    def __init__(
        self, backend, loss, altered="", *replace, needs=(), **settings
    ):
        self.backend = backend
        self.altered = altered
        self.needs = needs
        self.settings = {"loss": loss, "replace": list(replace), **settings}


ECE = "kc.metrics.ExpectedCalibrationError"
SPARSE = "keras.losses.SparseCategoricalCrossentropy(from_logits=True)"
OF_ROWS = "keras.losses.CategoricalCrossentropy(from_logits=True)"
OF_TORCH = "torch.nn.CrossEntropyLoss()"
OURS = "ours(from_logits=True)"
OURS_IN_TORCH = "lambda logits, labels: ours(from_logits=True)(labels, logits)"
# The guides to `train_step` fit numbers: ours needs classes.
CLASSES = (
    ("Dense(1)(inputs)", 'Dense(4, activation="softmax")(inputs)'),
    (
        "y = np.random.random((1000, 1))",
        "y = np.random.randint(4, size=(1000, 1))",
    ),
    ('loss="mse"', "loss=ours()"),
    ('metrics=["mae"]', f'metrics=[{ECE}(name="ece")]'),
    ("keras.losses.MeanSquaredError()", "ours()"),
    ("keras.metrics.MeanAbsoluteError", ECE),
)
STEP = "four classes in place of numbers, our loss in place of mse"
# The guides to loops end with a model that they do not train.
LOOP = "10,256 rows"
NEXT = "class ActivityRegularizationLayer"
KEEP = (NEXT, f"trained_model = model\n\n\n{NEXT}")
KEEP_IN_JAX = (
    NEXT,
    "for variable, value in zip(model.trainable_variables, state[0]):\n"
    f"    variable.assign(value)\n{KEEP[1]}",
)
OF_LOOP = {
    "rows": 10_256,
    "end": "trained_model, x_val, y_val, from_logits=True",
}
VARIABLES = (
    "model.trainable_variables",
    "model.non_trainable_variables",
    "optimizer.variables",
)
VALUES = "values of variables (unaltered, it fails with this JAX)"
CSV = {"rows": 1024, "pandas": True, "needs": ["pandas", "tensorflow"]}

SCRIPTS = {
    "guides/custom_train_step_in_tensorflow.py": Script(
        "tensorflow",
        "FocalLoss",
        f"{STEP}; the GAN keeps its own loss",
        *CLASSES,
    ),
    "guides/custom_train_step_in_jax.py": Script("jax", "MDCA", STEP, *CLASSES),
    "guides/custom_train_step_in_torch.py": Script(
        "torch",
        "MarginLabelSmoothing",
        f"{STEP}; the GAN keeps its own loss, and takes the list that a "
        "`DataLoader` gives (unaltered, this part fails)",
        *CLASSES,
        ("isinstance(real_images, tuple)", "isinstance(real_images, list)"),
    ),
    "guides/writing_a_custom_training_loop_in_tensorflow.py": Script(
        "tensorflow",
        "DualFocalLoss",
        f"{LOOP}; the GAN keeps its own loss",
        (SPARSE, OURS),
        (
            "keras.metrics.SparseCategoricalAccuracy()",
            f"{ECE}(from_logits=True)",
        ),
        KEEP,
        **OF_LOOP,
    ),
    "guides/writing_a_custom_training_loop_in_jax.py": Script(
        "jax",
        "MarginLabelSmoothing",
        f"{LOOP}; {VALUES}",
        *(
            (f"= {variables}\n", f"= [each.value for each in {variables}]\n")
            for variables in (*VARIABLES, "train_acc_metric.variables")
        ),
        (OF_ROWS, OURS),
        ("keras.metrics.CategoricalAccuracy()", f"{ECE}(from_logits=True)"),
        KEEP_IN_JAX,
        needs=["tensorflow"],
        **OF_LOOP,
    ),
    "guides/writing_a_custom_training_loop_in_torch.py": Script(
        "torch",
        "MDCA",
        LOOP,
        (OF_ROWS, OURS),
        (OF_TORCH, OURS_IN_TORCH),
        ("keras.metrics.CategoricalAccuracy()", f"{ECE}(from_logits=True)"),
        KEEP,
        **OF_LOOP,
    ),
    "guides/distributed_training_with_tensorflow.py": Script(
        "tensorflow",
        "MDCA",
        "10,256 rows; two virtual devices",
        ("MirroredStrategy()\n", 'MirroredStrategy(["CPU:0", "CPU:1"])\n'),
        rows=10_256,
        devices=2,
    ),
    "guides/distributed_training_with_jax.py": Script(
        "jax",
        "FocalLoss",
        "two virtual devices; ECE by `evaluate`, as the loop has no metric; "
        f"{VALUES}",
        *(
            (f"{variables}, var", f"[each.value for each in {variables}], var")
            for variables in VARIABLES
        ),
        (SPARSE, OURS),
        needs=["tensorflow", "rich"],
        devices=2,
        end="model, eval_data.batch(64), from_logits=True",
        ece=True,
    ),
    "guides/distributed_training_with_torch.py": Script(
        "torch",
        "MDCA",
        "two processes on CPUs (gloo); ECE by `evaluate`, as the loop has no "
        "metric",
        ("torch.cuda.device_count()", "2"),
        (".cuda(non_blocking=True)", ""),
        ('backend="nccl"', 'backend="gloo"'),
        ("torch.cuda.set_device(device)", ""),
        ("model.to(current_gpu_index)", "model"),
        (
            "device_ids=[current_gpu_index], output_device=current_gpu_index",
            "",
        ),
        (OF_TORCH, OURS_IN_TORCH),
        (
            "num_epochs, optimizer, loss_fn)\n\n",
            "num_epochs, optimizer, loss_fn)\n"
            "    if current_gpu_index == 0:\n"
            "        end(model, *dataset.tensors, from_logits=True)\n\n",
        ),
        ece=True,
    ),
    "guides/transfer_learning.py": Script(
        "tensorflow",
        "FocalLoss",
        "16 images; Xception without its weights",
        ('weights="imagenet"', "weights=None"),
        rows=16,
        tensorflow_datasets=True,
        needs=["tensorflow_datasets", "matplotlib"],
    ),
    "guides/keras_tuner/getting_started.py": Script(
        "tensorflow",
        "FocalLoss",
        "10,256 rows; one-hot labels in its checks, not random numbers; "
        "files in its own folder",
        (
            "np.random.rand(100, 28, 28), np.random.rand(100, 10)",
            "np.random.rand(100, 28, 28), np.eye(10).repeat(10, axis=0)",
        ),
        ('"/tmp', '"./'),
        rows=10_256,
        needs=["keras_tuner"],
    ),
    "examples/vision/mnist_convnet.py": Script("jax", "FocalLoss"),
    "examples/vision/mlp_image_classification.py": Script(
        "torch", "MDCA", "64 rows", rows=64
    ),
    "examples/vision/image_classification_with_vision_transformer.py": Script(
        "tensorflow", "MarginLabelSmoothing", "64 rows", rows=64
    ),
    "examples/vision/convmixer.py": Script("jax", "MDCA", "64 rows", rows=64),
    "examples/vision/eanet.py": Script(
        "tensorflow", "BrierLoss", "64 rows", rows=64
    ),
    "examples/vision/cct.py": Script("torch", "FocalLoss", "64 rows", rows=64),
    "examples/nlp/bidirectional_lstm_imdb.py": Script(
        "torch", "FocalLoss", "64 rows", rows=64
    ),
    "examples/nlp/text_classification_with_transformer.py": Script(
        "jax", "MDCA"
    ),
    "examples/nlp/addition_rnn.py": Script(
        "tensorflow",
        "MarginLabelSmoothing",
        "512 sums, one epoch",
        ("TRAINING_SIZE = 50000", "TRAINING_SIZE = 512"),
        ("epochs = 30", "epochs = 2"),
    ),
    "examples/structured_data/imbalanced_classification.py": Script(
        "torch",
        "FocalLoss",
        "1,024 rows of a made file",
        (
            '"/Users/fchollet/Downloads/creditcard.csv"',
            'transactions("made.csv")',
        ),
        rows=1024,
    ),
    "examples/structured_data/"
    "structured_data_classification_with_feature_space.py": Script(
        "tensorflow", "MDCA", "1,024 rows", **CSV
    ),
    "examples/structured_data/tabtransformer.py": Script(
        "jax",
        "FocalLoss",
        "1,024 rows, as a `dict` (unaltered, columns come to the wrong inputs)",
        (
            ".map(encode_categorical)\n",
            ".map(encode_categorical)\n"
            "        .map(lambda x, y, weight: (dict(x), y, weight))\n",
        ),
        **CSV,
    ),
    "examples/structured_data/deep_neural_decision_forests.py": Script(
        "tensorflow",
        "MDCA",
        "1,024 rows, of the inputs only, as a `dict` (unaltered, columns come "
        "to the wrong inputs, and it fails)",
        (
            ".map(encode_categorical)\n",
            ".map(encode_categorical)\n"
            "        .map(lambda x, y: "
            "({name: x[name] for name in FEATURE_NAMES}, y))\n",
        ),
        **CSV,
    ),
    "examples/timeseries/timeseries_classification_from_scratch.py": Script(
        "tensorflow", "FocalLoss"
    ),
    "examples/timeseries/timeseries_classification_transformer.py": Script(
        "torch", "MDCA", "64 rows", rows=64
    ),
}
