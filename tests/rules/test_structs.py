"""A struct that is made from another one."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.rules.structs import copy_to


class Row(msgspec.Struct, kw_only=True):
    id: bytes
    kind: str
    size: int = 0


class Document(msgspec.Struct, kw_only=True):
    id: str
    kind: str
    note: str = "none"


def test_S13_fields_are_copied_by_name_and_given_ones_replace_them() -> None:
    row = Row(id=b"\x01", kind="file", size=7)
    assert copy_to(Document, row, id="01") == Document(id="01", kind="file")
    assert copy_to(Document, row, id="01", kind="blob").kind == "blob"


def test_S13_a_field_that_neither_side_has_is_an_error() -> None:
    with pytest.raises(TypeError, match="kind"):
        copy_to(Document, object(), id="01")
