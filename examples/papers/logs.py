"""What the log of a process tells whoever started it."""

import re

# Arguments of the library, and what stands for them on the command line.
AS_OPTIONS = (
    ("`download=True`", "`--download`"),
    ("Pass the folder as `data_dir=`, or name it by", "Name the folder by"),
)


def last_line(path):
    """The last line of a log that is not empty, as `for_command_line`."""
    lines = path.read_text(errors="replace").splitlines()
    lines = [line.strip() for line in lines if line.strip()]
    return for_command_line(lines[-1]) if lines else "nothing"


def for_command_line(text):
    """An error of the library in the words of the command line."""
    for ours, option in AS_OPTIONS:
        text = text.replace(ours, option)
    return re.sub(r"\s+", " ", text)
