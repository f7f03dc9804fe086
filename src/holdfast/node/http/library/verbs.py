"""Every verb of the library over HTTP, from its declaration (`node/calls`).

A read is for whoever may read the mesh; a write for this node's own user. Long reads come in pages,
or row by row as NDJSON. A write's answer brings the warnings that nobody has taken yet.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Any, Final

import msgspec
from starlette.responses import Response

from holdfast.node.calls.all import CALLS
from holdfast.node.calls.declare import Call, Shape
from holdfast.node.http.context import NodeRequest, check_still
from holdfast.node.http.quorum.access import check_may_read
from holdfast.node.http.quorum.held import quorum_of
from holdfast.node.library.aio import AsyncTasks
from holdfast.node.library.families import Facts, Files, Memories, State, Tasks, Vectors
from holdfast.node.library.node import Mesh, Node
from holdfast.node.library.presence import PeerPresences
from holdfast.node.log.log import Log
from holdfast.node.quorum.api import QuorumApi
from holdfast.node.sharing.sharing import Sharing
from holdfast.protocol.log_wire import JSON, NDJSON
from holdfast.rules.errors import BadInput, HoldfastError, NotGranted
from holdfast.rules.expected import ABSENT
from holdfast.rules.idempotency import id_of_key
from holdfast.rules.ids import id_text
from holdfast.rules.limits import BODY_BYTES_MAX, CALL_PAGE_BYTES, CALL_PAGE_ROWS, CHUNK_ROWS
from holdfast.rules.names import check_mesh
from holdfast.service.http.json_body import INLINE_BYTES, json_body
from holdfast.service.http.request import parse_int
from holdfast.service.http.route import Route
from holdfast.service.http.streaming import Streamed

_FACES: Final = (State, Memories, Vectors, Files, Facts, PeerPresences, Mesh)
"""Classes that are made of an engine and the name of a mesh."""
_NO_MESH: Final = "none"
"""Stands for the mesh in the ids of calls that are about no mesh."""
_KEEP: Final = "keep"


def routes() -> list[Route]:
    return [route_of(declared) for declared in CALLS]


def route_of(declared: Call) -> Route:
    """The route of a declared call."""
    status = 204 if declared.answer is None else 200
    return Route(
        declared.method,
        declared.path,
        partial(_handle, declared),
        declared.summary,
        name=declared.name.replace(".", "_"),
        request=declared.body,
        request_needed=declared.body is not None and declared.body_needed,
        answers={status: declared.document} | ({} if declared.tag is None else {304: None}),
        lines=declared.form != "one",
        params=declared.params(),
        errors=_errors(declared),
        example=declared.example,
        local_only=declared.writes,
    )


def _errors(declared: Call) -> tuple[type[HoldfastError], ...]:
    absent = () if declared.absent is None else (declared.absent,)
    return (*declared.errors, *absent, NotGranted)


async def _handle(declared: Call, call: NodeRequest) -> Response:
    if declared.of_mesh and not declared.writes:
        check_may_read(call, call.path["mesh"])
        call.api.engine.require_mesh(call.path["mesh"])
    if declared.trusted:
        call.require_trusted()
    if declared.answer is not None and declared.answer.warns:
        keeps_warnings(call)  # what is odd there is refused before anything is written
    given = await _given(declared, call)
    if declared.form != "one" and not declared.writes:
        return await _many(declared, call, given)
    found = await _run(declared, call, given)
    if declared.looks_again:
        await _look_again(call)
    if declared.answer is None:
        return Response(status_code=204)
    if declared.form == "list":
        return call.answer({"items": [declared.answer.of(row) for row in found]})
    return _one(declared, call, found)


async def _look_again(call: NodeRequest) -> None:
    if call.api.sync_manager is not None:
        await call.api.sync_manager.refresh(try_now=True)
    if call.api.bus is not None:
        await call.api.bus.refresh()


# --- what was asked ------------------------------------------------------------------------------


async def _given(declared: Call, call: NodeRequest) -> dict[str, Any]:
    """The arguments of the verb."""
    given: dict[str, Any] = {}
    for name in declared.in_path:
        text = call.path[name]
        wire = declared.wire(name)
        given[name] = wire.take(parse_int(name, text) if wire.type is int else text, {})
    for name in declared.in_query:
        value = _of_query(declared, call, name)
        if value is not None:
            given[name] = declared.wire(name).take(value, {})
        elif declared.is_required(name):
            call.required(name)  # raises
    if declared.body is not None:
        given |= await _of_body(declared, call)
    if declared.takes_id:
        _also_in_header(given, "id", id_in_header(call))
    if declared.takes_expect:
        _also_in_header(given, "expect", _expected_in_header(call))
    return given


def _also_in_header(given: dict[str, Any], name: str, value: str | None) -> None:
    if value is None:
        return
    if given.setdefault(name, value) != value:
        raise BadInput(
            f"{name} is {given[name]!r}, and a header says {value!r}",
            hint="say it in one place only",
        )


def _expected_in_header(call: NodeRequest) -> str | None:
    """The stamp in If-Match, as an ETag says it. `If-None-Match: *` expects that nothing stands."""
    if (none := call.headers.get("if-none-match")) is not None:
        if none.strip() != "*" or "if-match" in call.headers:
            raise BadInput("If-None-Match is for *, and alone, where something is written")
        return ABSENT
    tag = call.headers.get("if-match")
    if tag is None:
        return None
    try:
        text = tag.encode("latin-1").decode().strip()
    except UnicodeDecodeError:
        raise BadInput("If-Match is not UTF-8") from None
    if len(text) < 3 or not text[0] == text[-1] == '"':
        raise BadInput(f"If-Match is {text!r}", hint='give one ETag as it was read, like "12@ana"')
    return text[1:-1]


def id_in_header(call: NodeRequest) -> str | None:
    """The id that the Idempotency-Key names."""
    key = call.idempotency_key()
    if key is None:
        return None
    mesh = check_mesh(call.path.get("mesh", _NO_MESH))
    return id_text(id_of_key(key, mesh, call.api.node.peer))


def id_of(call: NodeRequest) -> str | None:
    """The id of a write whose body is no document: from the query or the Idempotency-Key."""
    said = call.one("id")
    given: dict[str, Any] = {} if said is None else {"id": said}
    _also_in_header(given, "id", id_in_header(call))
    return given.get("id")


def _of_query(declared: Call, call: NodeRequest, name: str) -> Any:
    kind = declared.wire(name).type
    if kind is int:
        return call.number(name)
    if kind is bool:
        return None if call.one(name) is None else call.flag(name)
    return call.one(name)


async def _of_body(declared: Call, call: NodeRequest) -> dict[str, Any]:
    if not declared.body_needed and call.has_no_body:
        return {}
    body = await json_body(call, declared.body, BODY_BYTES_MAX)
    said = {name: getattr(body, name) for name in declared.in_body}
    return {
        name: declared.wire(name).take(value, said)
        for name, value in said.items()
        if value is not msgspec.UNSET and (value is not None or declared.wire(name).null)
    }


# --- one answer ----------------------------------------------------------------------------------


def _one(declared: Call, call: NodeRequest, found: Any) -> Response:
    assert declared.answer is not None
    if found is None:
        assert declared.absent is not None, f"{declared.name} returns None and does not say when"
        raise declared.absent(f"there is nothing at {call.scope['path']}")
    if declared.mesh_of is not None and not declared.writes:
        check_may_read(call, declared.mesh_of(found))
    document = with_warnings(call, declared.answer, declared.answer.of(found))
    if declared.tag is None:
        return call.answer(document)
    tag = f'"{declared.tag(found)}"'.encode().decode("latin-1")
    headers = {"etag": tag}
    if tag in call.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return call.answer(document, headers=headers)


def keeps_warnings(call: NodeRequest) -> bool:
    """Whether the caller leaves the warnings; raises BadInput if it says anything else of them."""
    said = call.one("warnings")
    if said not in (None, _KEEP):
        raise BadInput(f"warnings is {said!r}", hint="give keep, or nothing")
    return said == _KEEP


def with_warnings(call: NodeRequest, shape: Shape, document: Any) -> Any:
    """The document with the warnings that nobody has taken yet, unless the caller leaves them."""
    if not shape.warns:
        return document
    kept = keeps_warnings(call)
    warnings = [] if kept else call.api.node.take_warnings(call.path.get("mesh"))
    return msgspec.structs.replace(document, warnings=warnings) if warnings else document


async def _run(declared: Call, call: NodeRequest, given: dict[str, Any]) -> Any:
    api, verb = call.api, declared.verb
    if declared.face is Tasks and declared.writes:
        return await _turn(declared, call, given)
    face = _face(declared, call)
    if "operation" in vars(verb):
        prepare = partial(vars(verb)["__wrapped__"], face, **given)
        work = await api.run(prepare) if _is_large(call) else prepare()
        return await api.writer.write(vars(verb)["operation"], work)
    run = partial(verb, face, **given)
    if declared.form == "list":
        run = partial(_listed, run)  # rows that are read one by one are read in the thread too
    return run() if declared.quick else await api.run(run)


def _listed(find: Callable[[], Iterable[Any]]) -> list[Any]:
    return list(find())


async def _turn(declared: Call, call: NodeRequest, given: dict[str, Any]) -> Any:
    """A turn of a task: written, or decided by the quorum of the mesh."""

    async def reach() -> QuorumApi:
        return quorum_of(call)

    tasks = AsyncTasks(call.api.writer, Tasks(call.api.engine, call.path["mesh"]), reach)
    turn: Callable[..., Awaitable[Any]] = getattr(tasks, declared.verb.__name__)
    return await turn(**given)


def _face(declared: Call, call: NodeRequest) -> Any:
    if declared.face is Node:
        return call.api.node
    if declared.face is Log:
        return call.api.node.log
    if declared.face is Sharing:
        return Sharing(call.api.engine, call.api.trust)
    if declared.face is Tasks:
        return Tasks(call.api.engine, call.path["mesh"])
    assert declared.face in _FACES, f"nobody knows how {declared.face.__name__} is made"
    return declared.face(call.api.engine, call.path["mesh"])


def _is_large(call: NodeRequest) -> bool:
    length = call.headers.get("content-length", "0")
    return "transfer-encoding" in call.headers or int(length) > INLINE_BYTES


# --- many rows -----------------------------------------------------------------------------------


async def _many(declared: Call, call: NodeRequest, given: dict[str, Any]) -> Response:
    limit = call.limit(CALL_PAGE_ROWS) if declared.form == "page" else None
    lines = NDJSON in call.headers.get("accept", "")
    if lines and (declared.form == "list" or call.number("limit") is None):
        limit = None
    rows = _Rows(declared, call, partial(declared.verb, _face(declared, call), **given))
    if lines:
        first = await call.api.run(rows.lines, limit)
        return Streamed(_stream(call, rows, first, limit), media_type=NDJSON)
    if declared.quick:
        return Response(rows.page(limit), media_type=JSON)
    return Response(await call.api.run(rows.page, limit), media_type=JSON)


async def _stream(
    call: NodeRequest, rows: _Rows, first: bytes, limit: int | None
) -> AsyncGenerator[bytes, None]:
    part = first
    while part:
        check_still(call)
        yield part
        part = await call.api.run(rows.lines, limit)


class _Rows:
    """The rows that a verb returns, as JSON; used by one thread at a time."""

    def __init__(self, declared: Call, call: NodeRequest, find: Callable[[], Any]) -> None:
        assert declared.answer is not None
        self._declared, self._find = declared, find
        self._of = declared.answer.of
        self._reads = call.caller.reads
        self._found: Iterator[Any] | None = None
        self._sent = 0

    def page(self, limit: int | None) -> bytes:
        """A page of at most `limit` rows, and of not many more bytes than it may have."""
        items: list[msgspec.Raw] = []
        size, last, behind = 0, None, None
        for row in self._rows():
            raw = msgspec.json.encode(self._of(row))
            if limit is not None and items and (len(items) == limit or size > CALL_PAGE_BYTES):
                behind = self._place(last)
                break
            items.append(msgspec.Raw(raw))
            size, last = size + len(raw), row
        if self._declared.form == "list":
            return msgspec.json.encode({"items": items})
        return msgspec.json.encode({"items": items, "next": behind})

    def lines(self, limit: int | None) -> bytes:
        """Some more rows as lines; empty at the end."""
        if self._found is None:
            self._found = self._rows()
        most = CHUNK_ROWS if limit is None else min(CHUNK_ROWS, limit - self._sent)
        lines = [msgspec.json.encode(self._of(row)) for row in islice(self._found, most)]
        self._sent += len(lines)
        return b"\n".join([*lines, b""]) if lines else b""

    def _rows(self) -> Iterator[Any]:
        mesh_of, reads = self._declared.mesh_of, self._reads
        if mesh_of is None or reads is None:
            return iter(self._find())
        return (row for row in self._find() if mesh_of(row) in reads)

    def _place(self, row: Any) -> str:
        assert self._declared.place is not None
        return str(self._declared.wire(self._declared.goes_on).send(self._declared.place(row), {}))
