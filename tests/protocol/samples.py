"""A value of every shape that crosses a wire or stands in a file, always the same one.

Values follow from the types of the fields, so that a field that is added, dropped or moved changes
the bytes of its shape.
"""

from __future__ import annotations

from itertools import count
from types import ModuleType
from typing import Any

import msgspec
from msgspec import inspect


def shapes(module: ModuleType) -> dict[str, type[msgspec.Struct]]:
    """The structs that a module declares and that can be sent, by name."""
    return {
        name: kind
        for name, kind in vars(module).items()
        if isinstance(kind, type)
        and issubclass(kind, msgspec.Struct)
        and kind.__module__ == module.__name__
        and kind.__struct_fields__
    }


def sample(kind: type[msgspec.Struct]) -> Any:
    return _value(inspect.type_info(kind), count(1))


def _value(info: inspect.Type, numbers: count[int]) -> Any:
    match info:
        case inspect.StructType():
            fields = {field.name: _value(field.type, numbers) for field in info.fields}
            return info.cls(**fields)
        case inspect.UnionType():
            return _value(next(t for t in info.types if not _is_none(t)), numbers)
        case inspect.ListType():
            return [_value(info.item_type, numbers)]
        case inspect.VarTupleType():
            return (_value(info.item_type, numbers),)
        case inspect.TupleType():
            return tuple(_value(item, numbers) for item in info.item_types)
        case inspect.DictType():
            return {str(_value(info.key_type, numbers)): _value(info.value_type, numbers)}
        case inspect.EnumType():
            return next(iter(info.cls))
        case inspect.LiteralType():
            return info.values[0]
        case _:
            return _plain(info, next(numbers))


def _plain(info: inspect.Type, number: int) -> Any:
    match info:
        case inspect.BoolType():
            return True
        case inspect.IntType():
            return number
        case inspect.FloatType():
            return number / 2
        case inspect.StrType():
            return f"text {number}"
        case inspect.BytesType():
            return b"bytes %d" % number
        case inspect.RawType():
            return msgspec.Raw(b'{"raw":%d}' % number)
        case inspect.NoneType():
            return None
        case inspect.AnyType():
            return f"any {number}"
    raise AssertionError(f"no sample is made of {info}")


def _is_none(info: inspect.Type) -> bool:
    return isinstance(info, inspect.NoneType)
