"""Whether a fit fits in memory: an estimate before any is taken."""

import contextlib
import os
import pathlib

GIB = 1 << 30


def available_bytes():
    """Memory that is free for this process, or `None` if it is unknown.

    That of the machine, or what the control group of a container leaves.
    """
    limits = []
    with contextlib.suppress(OSError, ValueError, IndexError):
        lines = pathlib.Path("/proc/meminfo").read_text().splitlines()
        (line,) = (each for each in lines if each.startswith("MemAvailable"))
        limits.append(1024 * int(line.split()[1]))
    with contextlib.suppress(OSError, ValueError):
        group = pathlib.Path("/sys/fs/cgroup")
        limit = int((group / "memory.max").read_text())
        limits.append(limit - int((group / "memory.current").read_text()))
    if not limits:
        with contextlib.suppress(AttributeError, OSError, ValueError):
            pages = os.sysconf("SC_PHYS_PAGES")
            limits.append(pages * os.sysconf("SC_PAGE_SIZE"))
    return min(limits, default=None)


def refuse_too_large(needed, what, remedy):
    """Raise unless so many bytes are available.

    Args:
        needed: int, bytes.
        what: what needs them, for the message.
        remedy: how the message ends.

    Raises:
        ValueError: with both numbers.
    """
    available = available_bytes()
    if available is not None and needed > available:
        raise ValueError(
            f"{what} needs about {needed / GIB:.3g} GiB of memory, and "
            f"{available / GIB:.3g} GiB are available. {remedy}"
        )
