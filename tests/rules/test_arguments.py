"""Arguments of the types that a signature names, and of others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest

from holdfast.rules.arguments import checked, checks_arguments
from holdfast.rules.errors import BadInput


@checked
def verb(
    name: str,
    count: int | None = None,
    *,
    share: float = 1.0,
    rows: Iterable[bytes] = (),
    meta: Mapping[str, Any] | None = None,
    each: Callable[[int], None] | None = None,
    anything: Any = None,
    on: bool = False,
) -> str:
    """Says what it got."""
    return f"{name} {count}"


@pytest.mark.parametrize(
    ("args", "kwargs", "said"),
    [
        ((3,), {}, "name is int 3, not str"),
        (("a", "3"), {}, "count is str '3', not int | None"),
        (("a", True), {}, "count is bool True, not int | None"),
        (("a",), {"count": 2.5}, "count is float 2.5, not int | None"),
        (("a",), {"share": "1"}, "share is str '1', not float"),
        (("a",), {"rows": 3}, "rows is int 3, not Iterable[bytes]"),
        (("a",), {"meta": [1]}, "meta is list [1], not Mapping[str, Any] | None"),
        (("a",), {"each": 3}, "each is int 3, not Callable[[int], None] | None"),
        ((["x" * 99],), {}, "name is list ['" + "x" * 38 + "…, not str"),
    ],
)
def test_U1_a_wrong_type_is_named(args: Any, kwargs: Any, said: str) -> None:
    with pytest.raises(BadInput) as refused:
        verb(*args, **kwargs)
    assert refused.value.message == said


def test_U1_right_types_pass_and_so_does_what_is_not_plain() -> None:
    assert verb("a", 3, share=2, rows=[b"x"], meta={}, each=print, anything=[], on=1) == "a 3"  # type: ignore[arg-type]
    assert verb("a", None) == "a None"
    with pytest.raises(TypeError, match="unexpected keyword"):
        verb("a", other=1)  # type: ignore[call-arg]


def test_U1_a_class_checks_its_public_verbs_except_those_that_check_themselves() -> None:
    @checks_arguments(but=("fast",))
    class Verbs:
        def slow(self, n: int) -> int:
            return n

        def fast(self, n: int) -> int:
            return n

        def _own(self, n: int) -> int:
            return n

    verbs: Any = Verbs()
    with pytest.raises(BadInput):
        verbs.slow("3")
    assert verbs.fast("3") == verbs._own("3") == "3"
