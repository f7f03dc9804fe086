"""Every verb of the library that is declared as a call."""

from __future__ import annotations

from typing import Final

from holdfast.node.calls.declare import Call
from holdfast.node.calls.families import FAMILIES
from holdfast.node.calls.meshes import MESHES
from holdfast.node.calls.shared import SHARED

CALLS: Final[tuple[Call, ...]] = (*MESHES, *SHARED, *FAMILIES)
