"""`holdfast mesh`: who shares what with whom. Its verbs are in the two modules beside this one, and
each adds its own."""

from __future__ import annotations

from holdfast.apps.cli.commands import mesh_shared
from holdfast.apps.cli.commands.mesh_local import mesh_

__all__ = ["mesh_", "mesh_shared"]
