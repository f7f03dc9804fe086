"""The folder of a broker's store, which only its user may read.

broker.db  broker.db-wal  broker.db-shm     0600
broker.mark                                 0600   see `mark`
"""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path

from holdfast.rules.errors import NotOurs
from holdfast.rules.paths import check_place
from holdfast.storage.files.durable import FILE_MODE, FOLDER_MODE, disk_errors, make_folder

log = logging.getLogger("holdfast")


def prepare(folder: Path, database: Path) -> None:
    """Makes the folder and the database file ours alone before anything is in them."""
    check_place(str(folder), "the folder of the broker")
    missing = [one for one in (folder, *folder.parents) if not os.path.exists(one)]
    for one in reversed(missing):
        make_folder(one)
    with disk_errors(f"open {folder}"):
        _guard(folder, os.stat(folder), FOLDER_MODE)
        for name in ("broker.db", "broker.db-wal", "broker.db-shm", "broker.mark"):
            try:
                _guard(folder / name, os.lstat(folder / name), FILE_MODE)
            except FileNotFoundError:
                if name == database.name:
                    # Before SQLite does: its files get the mode of this one, not of the umask.
                    fd = os.open(database, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, FILE_MODE)
                    os.fchmod(fd, FILE_MODE)
                    os.close(fd)


def _guard(path: Path, status: os.stat_result, mode: int) -> None:
    if stat.S_ISLNK(status.st_mode):
        raise NotOurs(f"{path} is a link where a file belongs", hint="put the file itself there")
    if status.st_uid != os.geteuid():
        raise NotOurs(
            f"{path} belongs to user {status.st_uid}, and this process runs as {os.geteuid()}",
            hint="run the broker as that user",
        )
    if stat.S_IMODE(status.st_mode) != mode:
        log.warning("%s had mode %04o", path, stat.S_IMODE(status.st_mode))
        os.chmod(path, mode)
