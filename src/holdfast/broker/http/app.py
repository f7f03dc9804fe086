"""All that a broker answers over HTTP.

One call is made far more often than all others: handing in an envelope. `fast_accept` answers it at
the server, without the framework.
"""

from __future__ import annotations

from typing import Final

from starlette.types import Scope

from holdfast.broker.http import (
    commits,
    destinations,
    envelopes,
    logs,
    meshes,
    metrics,
    objects,
    operator,
    oversight,
    queues,
    snapshots,
    tokens,
)
from holdfast.broker.http.context import BrokerApi
from holdfast.broker.verdicts import for_members
from holdfast.rules.errors import HoldfastError
from holdfast.service.http import docs_page, hello, openapi
from holdfast.service.http.app import HttpApp
from holdfast.service.http.request import is_own
from holdfast.service.http.route import Route

_MODULES: Final = (
    *(hello, meshes, destinations, envelopes, logs, queues, objects, snapshots, commits),
    *(operator, oversight, tokens, metrics, openapi, docs_page),
)


def broker_routes() -> list[Route]:
    """Every call that a broker answers."""
    return [route for module in _MODULES for route in module.routes()]


def broker_app(api: BrokerApi) -> HttpApp:
    """The whole API as one ASGI application."""
    crew = api.broker.crew
    if crew is not None:
        operator.answer_others(api.broker, crew)
        metrics.answer_others(api, crew)
    return HttpApp(api, broker_routes(), translate=_shown)


def _shown(error: HoldfastError, scope: Scope) -> HoldfastError:
    return error if is_own(scope) else for_members(error)
