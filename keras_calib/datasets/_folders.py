"""Where the files of a data set are looked for."""

import os
import pathlib

VARIABLES = ("KERAS_CALIB_DATA", "TFDS_DATA_DIR")


def folders(data_dir):
    """`data_dir`, or the folders that environment variables name."""
    if data_dir is not None:
        return [pathlib.Path(data_dir)]
    return [pathlib.Path(os.environ[k]) for k in VARIABLES if k in os.environ]


def find(data_dir, *names):
    """The first of the files (or folders) that is there, or `None`."""
    for folder in folders(data_dir):
        for name in names:
            if (folder / name).exists():
                return folder / name
    return None


def not_found(name, data_dir, wanted):
    """The error for a data set that is not there.

    Args:
        name: of the data set.
        data_dir: as given by the user.
        wanted: what to fetch, and where to put it.
    """
    looked = ", ".join(map(str, folders(data_dir))) or "any folder"
    return FileNotFoundError(
        f"{name} was not found in {looked}. {wanted} Pass the folder as "
        f"`data_dir=`, or name it by {' or '.join(VARIABLES)}."
    )
