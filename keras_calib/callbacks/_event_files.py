"""Images for TensorBoard, with TensorFlow or without it.

Keras has no writer of event files: `keras.callbacks.TensorBoard` uses that of
TensorFlow on every backend. tensorboardX writes the same files alone.
"""

import importlib.util
import os
import pathlib
import sys


def find_writer(wanted: bool | None) -> str | None:
    """The package that writes images: `"tensorflow"`, `"tensorboardX"`, `None`.

    Args:
        wanted: `False` for none; `True` for the first of TensorFlow if the
            program has imported it, tensorboardX, and TensorFlow; `None` for
            one of the first two, or none. So TensorFlow is never imported
            unless that was asked for.

    Raises:
        ImportError: if one is wanted, and none is there.
    """
    if wanted is False:
        return None
    # TensorFlow writes images only with TensorBoard installed.
    tensorflow = _is_there("tensorflow") and _is_there("tensorboard")
    if tensorflow and "tensorflow" in sys.modules:
        return "tensorflow"
    if _is_there("tensorboardX"):
        return "tensorboardX"
    if not wanted:
        return None
    if tensorflow:
        return "tensorflow"
    raise ImportError(
        "Images for TensorBoard need tensorboardX, or TensorFlow and "
        "TensorBoard: `pip install tensorboardX`."
    )


class ImageWriter:
    """Writes images to event files.

    Args:
        package: what `find_writer` returned.
        log_dir: the folder of the event files.
    """

    def __init__(self, package: str, log_dir: str | os.PathLike) -> None:
        self.package = package
        if package == "tensorflow":
            import tensorflow as tf

            self._writer = tf.summary.create_file_writer(str(log_dir))
        else:
            from tensorboardX import SummaryWriter

            self._writer = SummaryWriter(str(log_dir))

    def write(self, tag: str, path: pathlib.Path, step: int) -> None:
        """Add the image of a PNG file."""
        if self.package == "tensorflow":
            import tensorflow as tf

            image = tf.io.decode_png(path.read_bytes(), channels=3)
            with self._writer.as_default():
                tf.summary.image(tag, image[None], step=step)
        else:
            from matplotlib import image as images

            pixels = images.imread(path)[..., :3]
            self._writer.add_image(tag, pixels, step, dataformats="HWC")
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


def _is_there(module):
    return importlib.util.find_spec(module) is not None
