"""What is counted of one link that shares meshes."""

from __future__ import annotations

import msgspec


class MeshLinkFigures(msgspec.Struct):
    """What crossed one link."""

    entries_sent: int = 0
    entries_new: int = 0
    entries_known: int = 0
    entries_refused: int = 0
    words_sent: int = 0
    bytes_sent: int = 0
