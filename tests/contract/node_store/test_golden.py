"""Bytes that were written once stay readable for ever, with the same meaning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.rules.bodies import OPS, decode_stored_body
from holdfast.rules.envelope import decode, encode
from support.golden import golden, golden_bytes
from support.nodes import KINDS, Nodes, team
from support.source import HandClock

NAMES = sorted(golden())


def plain(value: Any) -> Any:
    """As the files write it: bytes as hex, structs as their fields."""
    if isinstance(value, bytes):
        return {"hex": value.hex()}
    if isinstance(value, msgspec.Struct):
        return {name: plain(part) for name, part in msgspec.structs.asdict(value).items()}
    if isinstance(value, tuple):
        return [plain(part) for part in value]
    return value


@pytest.mark.parametrize("name", NAMES)
def test_Q2_an_old_envelope_reads_as_it_did(name: str) -> None:
    envelope = decode(golden_bytes(name))
    found = plain(envelope)
    written = golden()[name]["envelope"]
    assert {field: found[field] for field in written} == written
    body = decode_stored_body(envelope)
    expected = golden()[name]["body"]
    if expected is None:
        assert body is None
    else:
        read = plain(body)
        assert {field: read[field] for field in expected} == expected


@pytest.mark.parametrize("name", [name for name in NAMES if name != "later_minor_version"])
def test_Q2_todays_bytes_are_the_old_bytes(name: str) -> None:
    """Else two nodes would give one envelope two hashes and two signatures."""
    raw = golden_bytes(name)
    assert encode(decode(raw)) == raw


def test_Q2_every_op_is_written_down() -> None:
    assert {golden()[name]["envelope"]["op"] for name in NAMES} >= OPS


@pytest.mark.parametrize("kind", KINDS)
def test_Q2_a_node_takes_the_old_envelopes_and_keeps_their_bytes(kind: str, tmp_path: Path) -> None:
    nodes = Nodes(kind, tmp_path, HandClock())
    node = nodes.open("watcher")
    # Three are left out. One is another with fields of a later version: the same id. In another one
    # ana writes in bob's name, which no node ever did, and which is refused. And one is a strong
    # write, which does not come alone.
    refused = {"memory_forget": "forged_origin", "every_field": "not_committed"}
    names = [name for name in NAMES if name not in ("later_minor_version", *refused)]
    for name, code in refused.items():
        (result,) = node.apply([golden_bytes(name)])
        assert result.error is not None
        assert result.error.code == code
    raws = sorted((golden_bytes(name) for name in names), key=lambda raw: decode(raw).lamport)
    assert [result.error for result in node.apply(raws)] == [None] * len(raws)
    assert [entry.raw for entry in node.log.range()] == raws
    mesh = team(node)
    assert mesh.state.get("build/status") is None
    assert mesh.files.info("data/big.bin", peer="ana").size == 80_000
    assert [task.status.value for task in mesh.tasks.list()] == ["completed"]
    nodes.close()


def test_Q2_fields_of_a_later_minor_version_are_kept_in_the_bytes(tmp_path: Path) -> None:
    nodes = Nodes("sqlite", tmp_path, HandClock())
    node = nodes.open("watcher")
    raw = golden_bytes("later_minor_version")
    node.apply([raw])
    (entry,) = nodes.reopen(node).log.range()
    assert entry.raw == raw
    nodes.close()
