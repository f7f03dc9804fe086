"""`holdfast mesh`: who shares what with whom. Its verbs are in the modules beside this one, each of
which adds its own.
"""

from __future__ import annotations

from holdfast.apps.cli.commands import mesh_bus, mesh_delete, mesh_shared
from holdfast.apps.cli.commands.mesh_local import mesh_

__all__ = ["mesh_", "mesh_bus", "mesh_delete", "mesh_shared"]
