"""Where the server of a lake has its lock and its socket: beside the lake, or, for a lake in an
object store, in a folder of this user that is named after the lake.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import platformdirs

from holdfast.pipeline.lake.folder import Folder
from holdfast.pipeline.lake.lake import Lake
from holdfast.storage.files.home import HomePaths

_NAME: Final = ".serve"


def server_place(lake: Lake) -> HomePaths:
    """The folder, which need not be there."""
    local = Folder(lake.root).local if "://" not in lake.root else None
    if local is not None:
        return HomePaths(local / _NAME)
    return HomePaths(Path(platformdirs.user_runtime_dir("holdfast")) / f"lake-{lake.id}")
