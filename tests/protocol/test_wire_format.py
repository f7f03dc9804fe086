"""Every shape has the bytes that it has had since version 0.1.0: nodes, brokers and files of other
versions depend on them.

The golden file holds, per shape, the encoding of `samples.sample`. A new shape is added to it; a
changed one is a new version of the protocol, and needs a decision.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.protocol import export_lines, frames, log_wire, mesh_snapshot
from protocol.samples import sample, shapes

GOLDEN = Path(__file__).with_name("golden") / "wire.json"
MODULES = (frames, log_wire, export_lines, mesh_snapshot)
ENCODED = {"msgpack": lambda value: msgspec.msgpack.encode(value).hex()}
ENCODED["json"] = lambda value: msgspec.json.encode(value).decode()

# What is never encoded as it stands: results of reading, and what only others extend.
INNER = {"Checked", "ExportLine", "LineWriter", "NumberedLines"}


@cache
def golden() -> dict[str, dict[str, dict[str, str]]]:
    found: dict[str, dict[str, dict[str, str]]] = json.loads(GOLDEN.read_text(encoding="utf-8"))
    return found


def _cases() -> list[tuple[str, str, type[msgspec.Struct]]]:
    return [
        (module.__name__.rpartition(".")[2], name, kind)
        for module in MODULES
        for name, kind in shapes(module).items()
        if name not in INNER and not name.startswith("_")
    ]


@pytest.mark.parametrize(("module", "name", "kind"), _cases(), ids=lambda value: str(value)[:24])
def test_Q2_a_shape_has_the_bytes_that_it_always_had(module: str, name: str, kind: Any) -> None:
    value = sample(kind)
    expected = golden()[module][name]
    assert {form: ENCODED[form](value) for form in expected} == expected


def test_Q2_no_shape_of_the_golden_file_is_gone() -> None:
    there = {(module, name) for module, name, _ in _cases()}
    assert {(module, name) for module, names in golden().items() for name in names} <= there


@pytest.mark.parametrize("name", sorted(golden()["frames"]))
def test_Q2_a_frame_is_read_back_as_it_was(name: str) -> None:
    kind = shapes(frames)[name]
    value = sample(kind)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(value), type=kind) == value
