"""Stands in for the tables of `others` until one of them is asked for.

A command that sets one key is a process of its own, and loading the code of thirty tables would
cost it more than everything that it does. So only those that every write touches are loaded with
the store. The first call of any other method puts the rest in the place of the two classes here,
for all stores of the process. Type checkers see the real classes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = ["LaterReads", "LaterWrites"]

if TYPE_CHECKING:
    from holdfast.storage.sqlite.tables.others import OtherReads as LaterReads
    from holdfast.storage.sqlite.tables.others import OtherWrites as LaterWrites
else:

    class _Later:
        def __getattr__(self, name):
            # Python asks this for what is not there, and no more once the bases are others.
            from holdfast.storage.sqlite.tables.others import OtherReads, OtherWrites

            LaterReads.__bases__, LaterWrites.__bases__ = (OtherReads,), (OtherWrites,)
            return getattr(self, name)

    class LaterReads(_Later):
        """Becomes `OtherReads`."""

    class LaterWrites(_Later):
        """Becomes `OtherWrites`."""
