"""Making one struct from another that has the same fields.

A row, the line of an export that shows it and the document that HTTP answers with share most of
their fields. `copy_to` takes those over by name, so that only the differences are written down.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

S = TypeVar("S", bound=msgspec.Struct)


def copy_to(kind: type[S], source: object, /, **given: Any) -> S:
    """A `kind` with the `given` fields; the others come from `source`, by name. A field that
    `source` does not have keeps its default; one without a default raises TypeError.
    """
    missing = (name for name in kind.__struct_fields__ if name not in given)
    copied = {name: getattr(source, name) for name in missing if hasattr(source, name)}
    return kind(**copied, **given)
