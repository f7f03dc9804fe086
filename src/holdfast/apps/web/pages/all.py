"""Every page, in the order in which the side and the tabs name them."""

from __future__ import annotations

from typing import Final

from holdfast.apps.web.page import ConsolePage
from holdfast.apps.web.pages import (
    conflicts,
    consumers,
    files,
    inbox,
    lake,
    log,
    memory,
    mesh,
    order,
    outbox,
    overview,
    past,
    settings,
    state,
    tasks,
    topology,
    vectors,
)

NODE_PAGES: Final[tuple[ConsolePage, ...]] = (
    *overview.PAGES,
    *topology.PAGES,
    *mesh.PAGES,
    *state.PAGES,
    *past.PAGES,
    *memory.PAGES,
    *files.PAGES,
    *vectors.PAGES,
    *tasks.PAGES,
    *order.PAGES,
    *conflicts.PAGES,
    *inbox.PAGES,
    *outbox.PAGES,
    *log.PAGES,
    *consumers.PAGES,
    *lake.PAGES,
    *settings.PAGES,
)
