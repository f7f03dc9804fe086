"""Calls for the operator of the broker, and the public ones that say what and how it is."""

from __future__ import annotations

import os
from typing import Any, Final

import msgspec
from starlette.responses import Response

from holdfast import __version__
from holdfast.broker.broker import Broker
from holdfast.broker.doctor import BrokerCheck, examine
from holdfast.broker.http.context import BrokerRequest
from holdfast.broker.processes.crew import Crew
from holdfast.broker.processes.gathered import ProcessStanding, encode_standing, standings
from holdfast.broker.upkeep import check_orphans, foresee, repair_orphans, sweep_asked
from holdfast.protocol.error_body import ErrorDetail
from holdfast.protocol.version_http import VersionInfo
from holdfast.rules import compiled
from holdfast.rules.broker_rows import BrokerSwept, MeshStanding, Orphan
from holdfast.rules.errors import HoldfastError, UnknownMesh
from holdfast.rules.ids import id_text
from holdfast.rules.names import check_mesh
from holdfast.service.http.json_body import json_body
from holdfast.service.http.request import is_own
from holdfast.service.http.route import Route
from holdfast.service.http.version import common_formats

OF_PROCESS: Final = "standing"
"""By what word processes ask each other how they are."""


class About(msgspec.Struct, frozen=True):
    """What this broker is, and what it offers."""

    name: str
    card: str
    version: str
    registration: str
    supported: dict[str, dict[str, Any]]


class BrokerHealth(msgspec.Struct, frozen=True, omit_defaults=True):
    status: str
    error: ErrorDetail | None = None


class BrokerStatusResponse(msgspec.Struct, frozen=True):
    """How the broker is."""

    name: str
    card: str
    version: str
    pid: int
    store: str
    """`sqlite` or `postgresql`."""
    reader: str
    """What reads pushes: `compiled` or `python`."""
    listening: list[str]
    dedupe_mode: str
    dedupe_days: int
    keep_days: int
    registration: str
    connections: int
    waiting: int
    counts: dict[str, int]
    meshes: list[MeshStanding]
    processes: list[ProcessStanding] = []
    """Of `broker serve --processes`: those that serve now. `connections` and `waiting` are sums
    then, and `pid` is that of their parent.
    """


class ForeseenSweep(msgspec.Struct, frozen=True):
    """What a sweep would remove. Contents that nothing names are not looked for."""

    swept: BrokerSwept
    at_least: tuple[str, ...]
    """Of which kinds it is that many or more."""


class OrphanResponse(msgspec.Struct, frozen=True):
    mesh: str
    id: str
    seq: int
    what: str


class Orphans(msgspec.Struct, frozen=True):
    orphans: list[OrphanResponse]


class BrokerChecks(msgspec.Struct, frozen=True):
    checks: list[BrokerCheck]


class NewEpoch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    mesh: str | None = None
    """None: in every mesh."""
    reason: str = "asked for by the operator"


class EpochResponse(msgspec.Struct, frozen=True):
    mesh: str
    epoch: int
    base: int


class Epochs(msgspec.Struct, frozen=True):
    epochs: list[EpochResponse]


def routes() -> list[Route]:
    return [
        Route("GET", "/healthz", _alive, "Is this broker alive?",
              answers={200: BrokerHealth, 503: BrokerHealth}, public=True, kind="probe"),
        Route("GET", "/readyz", _ready, "Is it ready for work?",
              answers={200: BrokerHealth, 503: BrokerHealth}, public=True, kind="probe"),
        Route("GET", "/v1/broker", _about, "What this broker is, and what it offers.",
              answers={200: About}, public=True),
        Route("GET", "/v1/version", _version, "The version of this broker, and what it speaks.",
              answers={200: VersionInfo}, public=True),
        Route("GET", "/v1/status", _status, "How this broker is.",
              answers={200: BrokerStatusResponse}, local_only=True),
        Route("GET", "/v1/sweep", _foresee, "What a sweep would remove now. Nothing changes.",
              answers={200: ForeseenSweep}, local_only=True),
        Route("POST", "/v1/sweep", _sweep, "Remove what is past its time.",
              answers={200: BrokerSwept}, local_only=True),
        Route("POST", "/v1/orphans", _orphans, "Look for ids without their message.",
              answers={200: Orphans}, local_only=True),
        Route("POST", "/v1/orphans/repair", _repair, "Mend ids and messages that lack each other.",
              answers={200: Orphans}, local_only=True),
        Route("GET", "/v1/doctor", _doctor, "Look this broker over.",
              answers={200: BrokerChecks}, local_only=True),
        Route("POST", "/v1/new-epoch", _new_epoch, "Begin a new epoch.", request=NewEpoch,
              answers={200: Epochs}, errors=(UnknownMesh,), local_only=True),
    ]  # fmt: skip


async def _version(call: BrokerRequest) -> Response:
    offered = {name: params["version"] for name, params in call.api.broker.me.supported.items()}
    return call.answer(VersionInfo("broker", __version__, common_formats(), offered))


async def _alive(call: BrokerRequest) -> Response:
    return await _health(call)


async def _ready(call: BrokerRequest) -> Response:
    if call.api.phase != "ready":
        return call.answer(BrokerHealth("not_ready"), 503)
    return await _health(call)


async def _health(call: BrokerRequest) -> Response:
    try:
        await call.api.store.ping()
    except HoldfastError as error:
        # Words may name what lies where on this machine, and from elsewhere anybody may ask.
        words = ErrorDetail(error.code, error.message, error.hint) if is_own(call.scope) else None
        return call.answer(BrokerHealth(error.code, words), 503)
    return call.answer(BrokerHealth("ok"))


async def _about(call: BrokerRequest) -> Response:
    broker = call.api.broker
    supported = {name: dict(params) for name, params in broker.me.supported.items()}
    about = (broker.identity.name, broker.identity.card(), __version__)
    return call.answer(About(*about, broker.settings.registration, supported))


async def _status(call: BrokerRequest) -> Response:
    api, broker = call.api, call.api.broker
    mode, days = broker.mode
    figures = await api.figures.latest()
    processes = await _processes(broker)
    alone = broker.crew is None
    return call.answer(
        BrokerStatusResponse(
            name=broker.identity.name,
            card=broker.identity.card(),
            version=__version__,
            pid=os.getpid() if broker.crew is None else broker.crew.place.parent,
            store="sqlite" if broker.settings.dsn is None else "postgresql",
            reader=compiled.reader(),
            listening=api.addresses,
            dedupe_mode=mode,
            dedupe_days=days,
            keep_days=broker.settings.keep_days,
            registration=broker.settings.registration,
            connections=sum(one.connections for one in processes),
            waiting=sum(one.waiting for one in processes),
            counts=figures.counts,
            meshes=figures.meshes,
            processes=[] if alone else processes,
        )
    )


def _standing(broker: Broker) -> ProcessStanding:
    number = 1 if broker.crew is None else broker.crew.place.number
    return ProcessStanding(number, os.getpid(), len(broker.connections), broker.accepting.rows)


async def _processes(broker: Broker) -> list[ProcessStanding]:
    own = _standing(broker)
    if broker.crew is None:
        return [own]
    found = await broker.crew.ask_all(OF_PROCESS)
    return standings({**found, own.process: encode_standing(own)})


def answer_others(broker: Broker, crew: Crew) -> None:
    """Lets the other processes know how this one is."""

    async def told(body: bytes) -> bytes:
        return encode_standing(_standing(broker))

    crew.answers(OF_PROCESS, told)


async def _foresee(call: BrokerRequest) -> Response:
    swept, at_least = await foresee(call.api.store, call.api.now_ms())
    return call.answer(ForeseenSweep(swept, at_least))


async def _sweep(call: BrokerRequest) -> Response:
    done = await sweep_asked(call.api.store, call.api.now_ms(), call.api.broker.counts)
    return call.answer(done)


async def _orphans(call: BrokerRequest) -> Response:
    return call.answer(_told(await check_orphans(call.api.store, call.api.broker.counts)))


async def _repair(call: BrokerRequest) -> Response:
    return call.answer(_told(await repair_orphans(call.api.store)))


def _told(orphans: list[Orphan]) -> Orphans:
    return Orphans(
        [OrphanResponse(each.mesh, id_text(each.id), each.seq, each.what) for each in orphans]
    )


async def _doctor(call: BrokerRequest) -> Response:
    broker = call.api.broker
    checks = await examine(
        broker.store,
        broker.settings.store,
        broker.source.now_ms(),
        broker.ticks_ms(),
        broker.clock_check,
    )
    return call.answer(BrokerChecks(checks))


async def _new_epoch(call: BrokerRequest) -> Response:
    given = await json_body(call, NewEpoch)
    api = call.api
    slug = None if given.mesh is None else check_mesh(given.mesh)
    if slug is not None and await api.store.mesh_get(slug) is None:
        raise UnknownMesh(f"this broker has no mesh {slug!r}", hint="see: holdfast broker status")
    made = await api.store.new_epoch(slug, given.reason, api.now_ms())
    for mesh in made:
        api.broker.wakeups.wake_all(mesh.slug)
    return call.answer(Epochs([EpochResponse(mesh.slug, mesh.epoch, mesh.base) for mesh in made]))
