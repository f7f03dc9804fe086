"""Lists of any length with values of any size, in pages that can be shown; and values as trees."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from holdfast.apps.web.view import PageView
from holdfast.apps.web.words import as_json, cut
from holdfast.rules.errors import OverLimit
from holdfast.rules.limits import CONSOLE_ROWS, CONSOLE_TREE_DEPTH, CONSOLE_TREE_NODES

_FEWER: Final = (10, 1)
_LEAF_CHARS: Final = 400


async def fitting(
    view: PageView, path: str, *, limit: int = CONSOLE_ROWS, **query: Any
) -> tuple[Mapping[str, Any], int]:
    """Rows of a list, and how many it was asked for: fewer where their values are so large
    that one answer could not hold them.
    """
    for most in (limit, *(few for few in _FEWER if few < limit)):
        try:
            return await view.get(path, limit=most, **query), most
        except OverLimit:
            if most == 1:
                raise
    raise AssertionError("the last of them returns or raises")


@dataclass
class TreeNode:
    """A part of a JSON value."""

    name: str
    text: str
    """The value of a leaf, the size of what has parts."""
    has_parts: bool = False
    parts: list[TreeNode] = field(default_factory=list)


def tree(value: Any) -> TreeNode | None:
    """The parts of an object or a list; None of anything else, and of what has too many parts or
    too deep ones to be looked through.
    """
    left = [CONSOLE_TREE_NODES]
    if not isinstance(value, dict | list):
        return None
    return _node("", value, CONSOLE_TREE_DEPTH, left)


def _node(name: str, value: Any, deeper: int, left: list[int]) -> TreeNode | None:
    left[0] -= 1
    if left[0] < 0 or deeper == 0:
        return None
    if not isinstance(value, dict | list) or not value:
        return TreeNode(name, cut(as_json(value, indent=0), _LEAF_CHARS))
    named = value.items() if isinstance(value, dict) else enumerate(value)
    size = f"{{{len(value)}}}" if isinstance(value, dict) else f"[{len(value)}]"
    found = TreeNode(name, size, has_parts=True)
    for one, part in named:
        node = _node(str(one), part, deeper - 1, left)
        if node is None:
            return None
        found.parts.append(node)
    return found
