"""Which errors are refusals, and which are accidents.

A refusal is raised by a `raise` statement, which somebody wrote for input of
this kind, in `keras_calib` or in Keras. An operation that happened to fail,
such as `None >= 1`, is an accident, whatever the class of its error.

The statement is found in the traceback: the innermost frame that is ours must
stand at a `raise`, or must have called Keras. What Keras refuses, or a backend
below it, such as what cannot be made a tensor, counts as it is: that is no code
of ours.
"""

import dis
import pathlib

import keras

import keras_calib

OURS = str(pathlib.Path(keras_calib.__file__).parent)
OUR_FOLDERS = (OURS, str(pathlib.Path(__file__).parents[1]))
KERAS = str(pathlib.Path(keras.__file__).parent)


def frames_of(error):
    """The entries of a traceback, outermost first."""
    found, entry = [], error.__traceback__
    while entry is not None:
        found.append(entry)
        entry = entry.tb_next
    return found


def file_of(entry):
    return entry.tb_frame.f_code.co_filename


def at_raise(entry):
    """Whether the frame of a traceback's entry stands at a `raise`."""
    return any(
        each.offset == entry.tb_lasti and each.opname == "RAISE_VARARGS"
        for each in dis.get_instructions(entry.tb_frame.f_code)
    )


def is_raised(error, others=()):
    """Whether an error comes from a `raise` statement that is for this.

    Args:
        error: the exception.
        others: names of packages whose own checks are also the answer.
    """
    entries = frames_of(error)
    files = list(map(file_of, entries))
    if any(f"/{each}/" in files[-1] for each in others):
        return at_raise(entries[-1])
    last = max(
        n for n, each in enumerate(files) if each.startswith(OUR_FOLDERS)
    )
    if last == len(entries) - 1:
        return files[last].startswith(OURS) and at_raise(entries[last])
    return files[last + 1].startswith(KERAS)
