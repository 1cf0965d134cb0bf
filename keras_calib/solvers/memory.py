"""Whether a fit fits in memory: an estimate before any is taken."""

import contextlib
import os
import pathlib

GIB = 1 << 30
CGROUP = pathlib.Path("/sys/fs/cgroup")
# Limit, use, and the key of what files of the use can be dropped, in control
# groups of versions 2 and 1.
GROUPS = (
    ("memory.max", "memory.current", "memory.stat", "inactive_file"),
    (
        "memory/memory.limit_in_bytes",
        "memory/memory.usage_in_bytes",
        "memory/memory.stat",
        "total_inactive_file",
    ),
)
# Version 1 has a number near 2^63 where there is no limit.
UNLIMITED = 1 << 60


def available_bytes():
    """Memory that is free for this process, or `None` if it is unknown.

    That of the machine, or what the control group of a container leaves.
    """
    limits = []
    with contextlib.suppress(OSError, ValueError, IndexError):
        lines = pathlib.Path("/proc/meminfo").read_text().splitlines()
        (line,) = (each for each in lines if each.startswith("MemAvailable"))
        limits.append(1024 * int(line.split()[1]))
    for most, used, stat, key in GROUPS:
        with contextlib.suppress(OSError, ValueError):
            limit = int((CGROUP / most).read_text())
            kept = int((CGROUP / used).read_text()) - _droppable(stat, key)
            if limit < UNLIMITED:
                limits.append(max(0, limit - kept))
    if not limits:
        with contextlib.suppress(AttributeError, OSError, ValueError):
            pages = os.sysconf("SC_PHYS_PAGES")
            limits.append(pages * os.sysconf("SC_PAGE_SIZE"))
    return min(limits, default=None)


def _droppable(stat, key):
    """Bytes of read files that the system drops when memory is needed."""
    with contextlib.suppress(OSError, ValueError):
        for line in (CGROUP / stat).read_text().splitlines():
            name, size = line.split()
            if name == key:
                return int(size)
    return 0


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
