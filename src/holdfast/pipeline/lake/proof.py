"""Whether a task sees the same lake as the driver.

On a cluster a mount may be missing on one machine, or another folder may lie under the same path. A
task there would read nothing, or write where nobody looks, and all would seem well. So every task
reads the lake's id first.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Final

import msgspec

from holdfast.pipeline.lake.folder import Folder
from holdfast.rules.errors import LakeNotSeen

CARD: Final = "lake.json"
"""The file in the root of a lake that says which lake it is."""


class _Named(msgspec.Struct, frozen=True):
    id: str


class LakeProof(msgspec.Struct, frozen=True):
    """The proof as an object that Spark sends to the tasks."""

    root: str
    id: str
    options: Mapping[str, str] | None = None

    def __call__(self) -> None:
        """Raises LakeNotSeen if the lake here is missing or another one."""
        raw = Folder(self.root, self.options).read(CARD)
        try:
            found = None if raw is None else msgspec.json.decode(raw, type=_Named).id
        except (msgspec.DecodeError, UnicodeDecodeError):
            found = None
        if found == self.id:
            return
        there = "there is no lake" if found is None else f"there is another lake, {found}"
        where = f"a task on {socket.gethostname()} looked in {self.root} for the lake {self.id}"
        raise LakeNotSeen(f"{where}: {there}")
