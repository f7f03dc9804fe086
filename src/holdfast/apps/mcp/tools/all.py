"""Every tool, in the order in which agents see it."""

from __future__ import annotations

from typing import Final

from holdfast.apps.mcp.tools.conflicts import CONFLICTS
from holdfast.apps.mcp.tools.declare import AgentTool
from holdfast.apps.mcp.tools.files import FILES
from holdfast.apps.mcp.tools.info import INFO
from holdfast.apps.mcp.tools.memory import MEMORY
from holdfast.apps.mcp.tools.messages import MESSAGES
from holdfast.apps.mcp.tools.state import STATE
from holdfast.apps.mcp.tools.tasks import TASKS
from holdfast.apps.mcp.tools.vectors import VECTORS

ALL: Final[tuple[AgentTool, ...]] = (
    *(*INFO, *MEMORY, *STATE, *VECTORS, *FILES),
    *(*TASKS, *MESSAGES, *CONFLICTS),
)
BY_NAME: Final = {tool.name: tool for tool in ALL}
