"""The compiled part, where there is one: `_compiled.c`, built when Holdfast is installed.

It does what Python does too, only sooner. Who calls it has the same in Python beside the call: that
is the reference, and takes over for all that is not plain. Where there was no compiler, or with
HOLDFAST_PURE=1 in the environment, there is nothing else.
"""

from __future__ import annotations

try:
    from holdfast.rules import _compiled

    part = _compiled
except ImportError:
    part = None  # type: ignore[assignment]


def reader() -> str:
    """How `status` calls what reads pushes."""
    return "python" if part is None else "compiled"
