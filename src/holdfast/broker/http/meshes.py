"""Meshes, their members, and invites."""

from __future__ import annotations

from hmac import compare_digest
from os import urandom

from starlette.responses import Response

from holdfast.broker.access import require_member, require_mesh
from holdfast.broker.http.context import BrokerRequest, key_of, standing, standing_of
from holdfast.protocol.broker_http import (
    Grants,
    InviteInfo,
    Invites,
    Join,
    MadeInvite,
    MakeInvite,
    Member,
    Members,
    Register,
    Removed,
    Standing,
)
from holdfast.rules import limits
from holdfast.rules.broker_rows import AUDIT, GRANTS, MEMBER_GRANTS, InviteRow, MemberRow
from holdfast.rules.copied import other_names
from holdfast.rules.errors import (
    AlreadyExists,
    BadInput,
    BadValue,
    InviteEnded,
    NotAMember,
    NotGranted,
    UnknownKey,
    UnknownMesh,
)
from holdfast.rules.ids import id_text
from holdfast.rules.invites import SECRET_BYTES, digest
from holdfast.rules.keys import bytes_of, text_of
from holdfast.rules.limits import FREE_NAMES_MAX
from holdfast.rules.names import check_key, check_mesh
from holdfast.service.http.json_body import json_body
from holdfast.service.http.route import Route
from holdfast.storage.broker.port import BrokerStore

_AT = "/api/my/meshes/{mesh}"


def routes() -> list[Route]:
    return [*_meshes(), *_members(), *_invites()]


def _meshes() -> list[Route]:
    return [
        Route(
            "POST",
            "/api/my/meshes",
            _register,
            "Register a mesh. The same owner and name again get the same mesh.",
            request=Register,
            answers={200: Standing, 201: Standing},
            errors=(AlreadyExists, NotGranted),
        ),
        Route(
            "GET",
            "/api/my/meshes",
            _list,
            "The meshes that you are a member of.",
            answers={200: list[Standing]},
        ),
        Route("GET", _AT, _get, "Where a mesh stands.", answers={200: Standing},
              errors=(NotAMember,)),
        Route("DELETE", _AT, _remove, "Remove a mesh with everything in it (its owner).",
              answers={200: Removed}, errors=(NotAMember,)),
        Route(
            "POST",
            "/v1/join",
            _join,
            "Become a member, by an invite.",
            request=Join,
            answers={200: Standing},
            errors=(InviteEnded, AlreadyExists),
        ),
    ]  # fmt: skip


def _members() -> list[Route]:
    at = f"{_AT}/members"
    return [
        Route("GET", at, _member_list, "Who is a member.", answers={200: Members},
              errors=(NotAMember,)),
        Route("PUT", at + "/{key}", _grant, "Change what a member may do (its owner).",
              request=Grants, answers={200: Member}, errors=(NotAMember, UnknownKey)),
        Route("DELETE", at + "/{key}", _member_remove,
              "Remove a member, or leave the mesh. It acts at once.",
              answers={200: Removed}, errors=(NotAMember,)),
    ]  # fmt: skip


def _invites() -> list[Route]:
    at = f"{_AT}/invites"
    return [
        Route("POST", at, _invite, "Make an invite.", request=MakeInvite,
              answers={201: MadeInvite}, errors=(NotAMember,)),
        Route("GET", at, _invite_list, "Invites that were made.", answers={200: Invites},
              errors=(NotAMember,)),
        Route("DELETE", at + "/{id}", _invite_drop, "Take an invite back.",
              answers={200: Removed}, errors=(NotAMember,)),
    ]  # fmt: skip


# --- meshes --------------------------------------------------------------------------------------


async def _register(call: BrokerRequest) -> Response:
    given = await json_body(call, Register)
    store, key = call.api.store, call.key
    slug = check_mesh(given.slug)
    name = check_key(given.name or slug, "name of the mesh")
    known = await store.mesh_get(slug)
    if known is None or known.owner != key:
        _check_registration(call, given.token)
    server_id = id_text(call.api.broker.source.new_id())
    try:
        mesh = await store.mesh_register(
            slug, name, key, call.caller.name, server_id, call.api.now_ms()
        )
    except AlreadyExists as error:
        raise AlreadyExists(
            error.message, free=await _free_names(store, slug), hint=error.hint
        ) from None
    member = await require_member(store, slug, key)
    status = 201 if mesh.server_id == server_id else 200
    return call.answer(await standing_of(call.api, mesh, member), status)


async def _free_names(store: BrokerStore, slug: str) -> tuple[str, ...]:
    """Names like one that is taken; whoever may register a mesh could find them by trying."""
    free: list[str] = []
    for name in other_names(slug):
        if await store.mesh_get(name) is None:
            free.append(name)
        if len(free) == FREE_NAMES_MAX:
            break
    return tuple(free)


def _check_registration(call: BrokerRequest, token: str) -> None:
    settings = call.api.broker.settings
    if settings.registration == "closed":
        raise NotGranted("this broker takes no new meshes", hint="ask whoever runs it")
    wanted = settings.registration_token
    if wanted is not None and not compare_digest(wanted.encode(), token.encode()):
        raise NotGranted(
            "this broker takes new meshes only with its token", hint="ask whoever runs it"
        )


async def _list(call: BrokerRequest) -> Response:
    found = await call.api.store.memberships(call.key)
    return call.answer([standing(one) for one in found])


async def _get(call: BrokerRequest) -> Response:
    member = await call.member()
    mesh = await require_mesh(call.api.store, call.mesh)
    return call.answer(await standing_of(call.api, mesh, member))


async def _remove(call: BrokerRequest) -> Response:
    await call.member()
    await _require_owner(call)
    removed = await call.api.store.mesh_remove(call.mesh)
    call.api.broker.wakeups.wake_all(call.mesh)
    return call.answer(Removed(removed))


async def _require_owner(call: BrokerRequest) -> None:
    mesh = await call.api.store.mesh_get(call.mesh)
    if mesh is None:
        raise UnknownMesh(f"this broker has no mesh {call.mesh!r}", hint="")
    if mesh.owner != call.key:
        raise NotGranted(f"only the owner of mesh {call.mesh!r} may do that", hint="ask the owner")


async def _join(call: BrokerRequest) -> Response:
    given = await json_body(call, Join, limits.HELLO_BYTES_MAX)
    secret = bytes_of(given.secret, SECRET_BYTES, "the secret")
    store, key = call.api.store, call.key
    slug = await store.invite_use(digest(secret), key, call.caller.name, call.api.now_ms())
    member = await require_member(store, slug, key)
    return call.answer(await standing_of(call.api, await require_mesh(store, slug), member))


# --- members -------------------------------------------------------------------------------------


async def _member_list(call: BrokerRequest) -> Response:
    await call.member("read")
    rows = await call.api.store.member_list(call.mesh)
    return call.answer(Members([member_document(row) for row in rows]))


async def _grant(call: BrokerRequest) -> Response:
    given = await json_body(call, Grants)
    await call.member()  # an owner needs no grant for it: earlier versions let it lose them all
    await _require_owner(call)
    store, key, grants = call.api.store, key_of(call.path["key"]), _grants(given.grants)
    if key == call.key and "invite" not in grants:
        raise NotGranted(
            "the owner of a mesh keeps the grant invite, or nobody could look after it",
            hint="leave invite in the list",
        )
    changed = await store.member_grant(call.mesh, key, grants)
    if changed is None:
        raise UnknownKey(f"no member of mesh {call.mesh!r} has this key")
    return call.answer(member_document(changed))


async def _member_remove(call: BrokerRequest) -> Response:
    key = key_of(call.path["key"])
    if key == call.key:
        await call.member()
    else:
        await call.member("invite")
    return call.answer(Removed(await remove_member(call, key)))


async def remove_member(call: BrokerRequest, key: bytes) -> bool:
    """Removes a member of the mesh in the path; False if there is none."""
    mesh = await require_mesh(call.api.store, call.mesh)
    if mesh.owner == key:
        raise NotGranted("the owner of a mesh stays in it", hint="remove the mesh instead")
    removed = await call.api.store.member_remove(call.mesh, key, call.api.now_ms())
    # Whoever follows it notices with its next page.
    call.api.broker.wakeups.wake_all(call.mesh)
    return removed


def member_document(row: MemberRow) -> Member:
    return Member(
        key=row.key.hex(),
        name=row.name,
        grants=tuple(sorted(row.grants)),
        added_at=row.added_at,
        got_epoch=row.got_epoch,
        got_seq=row.got_seq,
        seen_at=row.seen_at,
    )


def _grants(given: list[str]) -> frozenset[str]:
    unknown = sorted(set(given) - set(GRANTS))
    if unknown:
        raise BadInput(
            f"{', '.join(map(repr, unknown))} cannot be granted", hint=f"use: {', '.join(GRANTS)}"
        )
    return frozenset(given)


# --- invites -------------------------------------------------------------------------------------


async def _invite(call: BrokerRequest) -> Response:
    given = await json_body(call, MakeInvite)
    member = await call.member("invite")
    grants = _grants(given.grants) or MEMBER_GRANTS
    if AUDIT in grants:
        # Its holder reads what others write to each other: only the owner may give it.
        await _require_owner(call)
    if not grants - {AUDIT} <= member.grants:
        lacks = ", ".join(sorted(grants - {AUDIT} - member.grants))
        raise NotGranted(f"nobody may give what it has not: {lacks}", hint="leave it out")
    if not 1 <= given.uses <= limits.INVITE_USES_MAX:
        raise BadValue(f"an invite is good for 1 to {limits.INVITE_USES_MAX} members")
    if not 1 <= given.expires_in_hours <= limits.INVITE_HOURS_MAX:
        raise BadValue(f"an invite lasts for 1 to {limits.INVITE_HOURS_MAX} hours")
    now = call.api.now_ms()
    secret = urandom(SECRET_BYTES)
    row = InviteRow(
        mesh=call.mesh,
        digest=digest(secret),
        grants=grants,
        uses_left=given.uses,
        expires_at=now + given.expires_in_hours * limits.HOUR_MS,
        made_by=call.key,
        made_at=now,
    )
    await call.api.store.invite_put(row)
    made = MadeInvite(text_of(secret), row.digest.hex(), given.uses, row.expires_at)
    return call.answer(made, 201)


async def _invite_list(call: BrokerRequest) -> Response:
    await call.member("invite")
    rows = await call.api.store.invite_list(call.mesh)
    return call.answer(
        Invites(
            [
                InviteInfo(
                    id=row.digest.hex(),
                    grants=tuple(sorted(row.grants)),
                    uses_left=row.uses_left,
                    expires_at=row.expires_at,
                    made_by=row.made_by.hex(),
                    made_at=row.made_at,
                )
                for row in rows
            ]
        )
    )


async def _invite_drop(call: BrokerRequest) -> Response:
    await call.member("invite")
    dropped = await call.api.store.invite_drop(call.mesh, key_of(call.path["id"]))
    return call.answer(Removed(dropped))
