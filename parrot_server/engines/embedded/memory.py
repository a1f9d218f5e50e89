"""How much memory this process may still take."""

from __future__ import annotations

import os
from pathlib import Path

_UNKNOWN_BYTES = 4 << 30
_MEMINFO = Path("/proc/meminfo")
_CGROUP = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current"))


def available_bytes() -> int:
    """What the machine has free, or what a container's limit leaves if that is less; a guess where neither is known."""
    return min(_of_the_machine(), _of_the_container())


def _of_the_machine() -> int:
    if _MEMINFO.is_file():
        for line in _MEMINFO.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (AttributeError, ValueError, OSError):  # not on this system
        return _UNKNOWN_BYTES


def _of_the_container() -> int:
    try:
        limit, used = (path.read_text().strip() for path in _CGROUP)
        return int(limit) - int(used)
    except (OSError, ValueError):  # no container, or one without a limit ("max")
        return _of_the_machine()
