"""Envelopes whose bytes were written down once, so that they stay readable for ever.

The files in tests/contract/golden hold, per op, the bytes as hex and the fields that reading them
must give. They are never rewritten: an op whose bytes change needs a new version and a new file.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[1] / "contract" / "node_store" / "golden"


@cache
def golden() -> dict[str, dict[str, Any]]:
    """Every written-down envelope by the name of its file."""
    found = {
        path.stem: json.loads(path.read_text(encoding="utf-8"))
        for path in sorted(FOLDER.glob("*.json"))
    }
    assert found, f"nothing in {FOLDER}"
    return found


def golden_bytes(name: str) -> bytes:
    return bytes.fromhex(golden()[name]["hex"])
