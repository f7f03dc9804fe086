"""The arguments of a verb are of the types that its signature names, or the call is refused.

Python checks no types, so `limit="3"` would go on until something deep down fails on it, or takes
it. Verbs check by `checks_arguments` on their class, or by `checked`, before they do anything.
Annotations that are not plain (`Any`, type variables) are let through: what they stand for is
checked where it is used.

This module stands on the CLI's cold path: keep its imports few.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from types import FunctionType, GenericAlias, UnionType
from typing import Any, ParamSpec, TypeVar, cast, get_args

from holdfast.rules.errors import BadInput

C = TypeVar("C")
P = ParamSpec("P")
T = TypeVar("T")


def checks_arguments(*, but: tuple[str, ...] = ()) -> Callable[[type[C]], type[C]]:
    """Makes every public verb of a class check its arguments, except those named: verbs that are
    called often and check for themselves. So do all verbs that write (`library.verbs`).
    """

    def make(cls: type[C]) -> type[C]:
        for name, verb in list(vars(cls).items()):
            own = (
                name.startswith("_") or name in but or "operation" in getattr(verb, "__dict__", ())
            )
            if isinstance(verb, FunctionType) and not own:
                setattr(cls, name, checked(verb))
        return cls

    return make


def checked(verb: Callable[P, T]) -> Callable[P, T]:
    """The same function, which refuses arguments of wrong types."""
    function = cast(FunctionType, verb)
    code = function.__code__
    names = code.co_varnames[: code.co_argcount]
    tests: dict[str, tuple[type, ...]] = {}

    @wraps(verb)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        if not tests:
            tests.update(_tests(function))
        for name, value in (*zip(names, args, strict=False), *kwargs.items()):
            takes = tests.get(name)
            if takes is None or (isinstance(value, takes) and type(value) is not bool):
                continue
            if type(value) is bool and bool in takes:
                continue
            raise BadInput(f"{name} is {_said(value)}, not {function.__annotations__[name]}")
        return verb(*args, **kwargs)

    return call


def _tests(verb: FunctionType) -> dict[str, tuple[type, ...]]:
    """For each parameter with a plain annotation: the types that it takes."""
    found: dict[str, tuple[type, ...]] = {"": ()}
    for name, annotation in verb.__annotations__.items():
        try:
            meant = eval(annotation, verb.__globals__) if type(annotation) is str else annotation
        except NameError:
            continue  # imported for type checkers only
        types = _types(meant)
        if types is not None and bool not in types:
            found[name] = types
    return found


def _types(meant: Any) -> tuple[type, ...] | None:
    """What `isinstance` asks for; None if everything may come."""
    if meant is None:
        return (type(None),)
    if isinstance(meant, UnionType):
        parts = [_types(part) for part in get_args(meant)]
        return None if None in parts else tuple(one for part in parts for one in part or ())
    if isinstance(meant, GenericAlias) or hasattr(meant, "__origin__"):
        meant = meant.__origin__
    if (
        not isinstance(meant, type)
        or meant in (object, Any)
        or meant.__module__ == "typing"  # BinaryIO and its kin: real files are none of them
        or getattr(meant, "_is_protocol", False)
    ):
        return None
    return (float, int) if meant is float else (meant,)


def _said(value: object) -> str:
    shown = repr(value)
    return f"{type(value).__name__} {shown if len(shown) <= 40 else shown[:40] + '…'}"
