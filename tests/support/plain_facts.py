"""Facts as nodes write them, which every reader of arriving facts takes."""

from __future__ import annotations

from typing import Final

from holdfast.rules.limits import LAMPORT_MAX
from support import envelopes as e

FACTS: Final = [
    e.fact_append("s", "is", {"a": [1, 2.5, None], "b": "text"}),
    e.fact_append("s", "ist", "ü", mesh="other.mesh-1", write_class="append-only"),
    e.fact_append("line1/pump7", "pressure", [-0.0625, 1.0, 0.0, 21.5], priority="now"),
    e.fact_append("é" * 20, "is", "x" * 100, origin="ana", lamport=70_000),
    e.fact_append("x" * 300, "is", {}, lamport=LAMPORT_MAX - 1, seq=1),
    e.fact_append("k" * 31, "is", 10**17, mesh="0"),
    e.fact_append("k" * 32, "is", True),
    e.fact_append("k" * 256, "is", []),
]
