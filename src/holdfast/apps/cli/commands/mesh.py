"""`holdfast mesh`: who shares what with whom. Its verbs by theme are in the modules beside this
one."""

from __future__ import annotations

from holdfast.apps.cli.commands import mesh_shared, mesh_sync  # noqa: F401 - they add verbs
from holdfast.apps.cli.commands.mesh_local import mesh_

__all__ = ["mesh_"]
