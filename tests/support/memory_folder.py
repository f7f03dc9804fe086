"""Tests keep their homes in memory, where a sync costs nothing.

Most tests are about what code does, and every home of theirs syncs as homes do: on a disk half of
their time was waiting for it. So pytest makes its folders in the memory of the system where there
is room for them. Whoever is killed finds the same files there as on a disk, since a kill takes
nothing from the system; what a loss of power leaves is simulated anyway.

On a disk stay the tests of faults, which is where they are looked for, and all tests of a soak.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

FOLDER = Path("/dev/shm")
FOLDER_VARIABLE = "PYTEST_DEBUG_TEMPROOT"
"""Where pytest makes its folders, if it is set before the first test asks for one."""
GIB = 1 << 30
ROOM = 4 * GIB
MEMORY = 8 * GIB


def use() -> None:
    """From now on, in this process and in those that it starts."""
    if "HOLDFAST_SEED" not in os.environ and has_room():
        os.environ.setdefault(FOLDER_VARIABLE, str(FOLDER))


def has_room() -> bool:
    if not os.access(FOLDER, os.W_OK | os.X_OK):
        return False
    return shutil.disk_usage(FOLDER).free >= ROOM and _available() >= MEMORY


def _available() -> int:
    """The memory that programs can still have."""
    with open("/proc/meminfo", encoding="ascii") as file:
        lines = dict(line.split(":", 1) for line in file)
    return int(lines["MemAvailable"].split()[0]) * 1024
