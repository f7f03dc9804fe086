"""Every call that a node answers, in one list."""

from __future__ import annotations

from holdfast.node.http import (
    append,
    brokers,
    bus,
    changes,
    consumers,
    digests,
    events,
    facts,
    health,
    inbox,
    links,
    metrics,
    objects,
    outbox,
    ranges,
    reload,
    send,
    status,
    version,
)
from holdfast.node.http.library import arrivals, files, reembed, tokens, verbs
from holdfast.node.http.quorum import (
    audit,
    commits,
    entities,
    mesh_sync,
    nodes,
    operators,
    settings,
    strong,
    telemetry,
    waiting,
)
from holdfast.service.http import docs_page, hello, openapi
from holdfast.service.http.route import Route

_MODULES = (
    *(send, inbox, outbox, brokers, bus),
    *(
        append,
        facts,
        audit,
        telemetry,
        changes,
        ranges,
        commits,
        consumers,
        objects,
        digests,
    ),
    *(operators, strong, entities, waiting, mesh_sync, nodes, settings),
    *(verbs, files, arrivals, reembed, tokens),
    *(status, events, links, reload, version, hello, health, metrics, openapi, docs_page),
)


def node_routes() -> list[Route]:
    """The routes of all modules of this room, and those that every service has."""
    return [route for module in _MODULES for route in module.routes()]
