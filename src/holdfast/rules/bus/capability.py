"""A capability: a right that is shown, and can only be narrowed when it is passed on.

An issuer signs a first **step**: this key may do this, until then. Its holder may sign a further
step for another key, which may do less, or the same, and not for longer. So a capability is a chain
of steps. It begins with the issuer's key, each step is signed by the holder of the one before it,
and the key of the last step is the only one that can use it: a peer has proved its key before it
shows anything, so a capability that was copied is worth nothing.

    [version, issuer, [[holder, name, scopes, issued_at, expires_at, signature], …]]

Each signature covers a domain tag, the signature of the step before (the issuer's key for the first
one) and the fields of its own step. The bytes are msgpack in its shortest form; another spelling is
refused.

A step may give its holder a name only where the issuer signed it: otherwise a holder could pass its
right on under somebody else's name.

Ends are moments of the wall clock. A few minutes of difference are forgiven
(`BUS_CLOCK_SKEW_MS`). A node whose clock is far off refuses what is good, and its error says that
the clock may be the reason.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import UTC, datetime
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING, Annotated, Final, Literal, NamedTuple

import msgspec
from msgspec import Meta

from holdfast.rules.bus.scope import check_scope, one_covers
from holdfast.rules.errors import BadInput, CapabilityRefused
from holdfast.rules.keys import KEY_BYTES, bytes_of, check_key_bytes, text_of
from holdfast.rules.limits import (
    BUS_CAPABILITY_BYTES_MAX,
    BUS_CAPABILITY_DEPTH_MAX,
    BUS_CAPABILITY_MS_MAX,
    BUS_CAPABILITY_SCOPES_MAX,
    BUS_CLOCK_SKEW_MS,
    DAY_MS,
    HOUR_MS,
    LAMPORT_MAX,
)
from holdfast.rules.names import check_peer

if TYPE_CHECKING:
    from nacl.signing import SigningKey

VERSION: Final = 1
_WORDS: Final = b"holdfast bus capability 1\0"
_ID: Final = b"holdfast bus capability id 1\0"
ID_BYTES: Final = 16
KIND: Final = "capability"

Key = Annotated[bytes, Meta(min_length=KEY_BYTES, max_length=KEY_BYTES)]
Moment = Annotated[int, Meta(ge=0, lt=LAMPORT_MAX)]
Scopes = Annotated[tuple[str, ...], Meta(min_length=1, max_length=BUS_CAPABILITY_SCOPES_MAX)]


class CapabilityStep(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """One step of a chain: what its holder may do, and until when."""

    holder: Key
    name: str
    """What the issuer calls the holder; empty in all steps but the first."""
    scopes: Scopes
    issued_at: Moment
    expires_at: Moment
    signature: Annotated[bytes, Meta(min_length=64, max_length=64)]

    @property
    def id(self) -> bytes:
        """Names this step: whoever takes it back takes back what was narrowed from it, too."""
        return sha256(_ID + self.signature).digest()[:ID_BYTES]


class Capability(
    msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, dict=True
):
    """A chain of steps. Only `check_capability` says whether it is good."""

    version: Literal[1]
    issuer: Key
    steps: Annotated[tuple[CapabilityStep, ...], Meta(min_length=1)]

    @property
    def holder(self) -> bytes:
        return self.steps[-1].holder

    @property
    def name(self) -> str:
        """What the issuer calls the holder; empty if the right was passed on to it."""
        return self.steps[-1].name

    @property
    def id(self) -> bytes:
        return self.steps[-1].id

    @property
    def scopes(self) -> tuple[str, ...]:
        return self.steps[-1].scopes

    @property
    def expires_at(self) -> int:
        return self.steps[-1].expires_at

    @cached_property
    def raw(self) -> bytes:
        return _encode(self)

    def allows(self, scope: str, now_ms: int) -> bool:
        """Whether a capability that was found good gives this right at this moment."""
        return one_covers(self.scopes, scope) and now_ms < self.expires_at + BUS_CLOCK_SKEW_MS


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(Capability).decode


# --- making ------------------------------------------------------------------------------------


def issue(
    key: SigningKey,
    holder: bytes,
    scopes: Iterable[str],
    *,
    now_ms: int,
    expires_at: int,
    name: str = "",
) -> Capability:
    """A capability of one step: the owner of `key` lets `holder` do this until then."""
    issuer = bytes(key.verify_key)
    step = _signed(key, issuer, holder, name, scopes, now_ms, expires_at)
    return _checked_sizes(Capability(VERSION, issuer, (step,)))


def narrow(
    key: SigningKey,
    capability: Capability,
    holder: bytes,
    scopes: Iterable[str],
    *,
    now_ms: int,
    expires_at: int,
) -> Capability:
    """The same right or less of it for another key. Raises CapabilityRefused if it would be more,
    or is not the signer's to give.
    """
    if bytes(key.verify_key) != capability.holder:
        raise CapabilityRefused("only its holder can pass a capability on")
    step = _signed(key, capability.steps[-1].signature, holder, "", scopes, now_ms, expires_at)
    longer = Capability(VERSION, capability.issuer, (*capability.steps, step))
    _check_narrows(longer)
    return _checked_sizes(longer)


def _signed(
    key: SigningKey,
    before: bytes,
    holder: bytes,
    name: str,
    scopes: Iterable[str],
    issued_at: int,
    expires_at: int,
) -> CapabilityStep:
    check_key_bytes(holder)
    given = tuple(sorted({check_scope(scope) for scope in scopes}))
    if not 1 <= len(given) <= BUS_CAPABILITY_SCOPES_MAX:
        raise BadInput(f"a capability has 1 to {BUS_CAPABILITY_SCOPES_MAX} scopes")
    if not 0 < expires_at - issued_at <= BUS_CAPABILITY_MS_MAX:
        raise BadInput(f"a capability lasts 1 to {BUS_CAPABILITY_MS_MAX // DAY_MS} days")
    if name:
        check_peer(name)
    unsigned = CapabilityStep(holder, name, given, issued_at, expires_at, bytes(64))
    signature = key.sign(_signed_text(before, unsigned)).signature
    return msgspec.structs.replace(unsigned, signature=signature)


def _signed_text(before: bytes, step: CapabilityStep) -> bytes:
    # `before` has 32 bytes in the first step and 64 in all others, so no two chains give one text.
    fields = (step.holder, step.name, step.scopes, step.issued_at, step.expires_at)
    return b"".join((_WORDS, len(before).to_bytes(1), before, _encode(fields)))


def _checked_sizes(capability: Capability) -> Capability:
    if len(capability.steps) > BUS_CAPABILITY_DEPTH_MAX:
        raise CapabilityRefused(
            f"a capability has {len(capability.steps)} steps; most is {BUS_CAPABILITY_DEPTH_MAX}",
            hint="ask somebody nearer to its issuer to pass it on",
        )
    if len(capability.raw) > BUS_CAPABILITY_BYTES_MAX:
        raise CapabilityRefused(
            f"a capability has {len(capability.raw)} bytes; most is {BUS_CAPABILITY_BYTES_MAX}",
            hint="name fewer scopes",
        )
    return capability


# --- as a text -----------------------------------------------------------------------------------


def capability_text(issuer_name: str, capability: Capability) -> str:
    """One line that people hand on: `ana:capability:…`, with what its issuer is called. The name
    is a hint; the key inside decides.
    """
    return f"{issuer_name}:{KIND}:{text_of(capability.raw)}"


def parse_capability_text(text: str) -> tuple[str, Capability]:
    """The issuer's name and the capability; nothing is believed yet. Raises BadInput for another
    text, CapabilityRefused for a capability that breaks a rule.
    """
    name, kind, raw = [*text.strip().rsplit(":", 2), "", ""][:3]
    size = len(raw) * 3 // 4
    if kind != KIND or not 0 < size <= BUS_CAPABILITY_BYTES_MAX:
        raise BadInput("that is no capability", hint="it looks like ana:capability:…")
    return check_peer(name), read_capability(bytes_of(raw, size, "the capability"))


# --- checking ----------------------------------------------------------------------------------


def read_capability(raw: bytes) -> Capability:
    """Size, form and spelling. Nothing is believed yet: raises CapabilityRefused."""
    if len(raw) > BUS_CAPABILITY_BYTES_MAX:
        raise CapabilityRefused(
            f"a capability has {len(raw)} bytes; most is {BUS_CAPABILITY_BYTES_MAX}"
        )
    try:
        found = _decode(raw)
        for step in found.steps:
            for scope in step.scopes:
                check_scope(scope)
            if step.name:
                check_peer(step.name)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise CapabilityRefused("a capability cannot be read") from None
    except BadInput as error:
        raise CapabilityRefused(f"a capability breaks a rule: {error.message}") from None
    if found.raw != raw:
        raise CapabilityRefused("a capability is not spelled as it must be")
    return _checked_sizes(found)


def check_capability(raw: bytes, holder: bytes, now_ms: int) -> Capability:
    """The capability, if it is whole, for the peer that shows it, narrowed only, signed by all that
    it names, and good at this moment. The caller looks whether its issuer is one to believe.
    Raises CapabilityRefused with the step that is wrong, and why.
    """
    found = read_capability(raw)
    if found.holder != holder:
        raise CapabilityRefused("a capability is for another holder than the peer that shows it")
    _check_narrows(found)
    _check_times(found, now_ms)
    _check_signatures(found)
    return found


def check_genuine(capability: Capability) -> None:
    """Whether it was narrowed only, and signed by all that it names, for whomever and whenever.
    Raises CapabilityRefused with the step that is wrong.
    """
    _check_narrows(capability)
    _check_signatures(capability)


class ShownRights(NamedTuple):
    """What a peer that shows capabilities may do by them."""

    scopes: tuple[str, ...]
    """Services and topics: meshes have lists of members."""
    name: str
    """What the issuer called it; empty if the right was passed on to it."""
    ends_at: int
    steps: tuple[bytes, ...]
    """The ids of all steps by which it may."""


def rights_shown(
    shown: Iterable[bytes],
    issuer: bytes,
    holder: bytes,
    now_ms: int,
    revoked: Collection[bytes] = (),
) -> ShownRights | None:
    """What the capabilities that a peer shows give it at their issuer; None if it shows none of
    this issuer. Raises CapabilityRefused if none of them is good: what is wrong with the first.
    """
    refused: CapabilityRefused | None = None
    good: list[Capability] = []
    for raw in shown:
        try:
            if read_capability(raw).issuer == issuer:
                good.append(_unrevoked(check_capability(raw, holder, now_ms), revoked))
        except CapabilityRefused as error:
            refused = refused or error
    if not good:
        if refused is not None:
            raise refused
        return None
    wanted = (scope for one in good for scope in one.scopes if not scope.startswith("mesh:"))
    return ShownRights(
        tuple(dict.fromkeys(wanted)),
        next((one.name for one in good if one.name), ""),
        min(one.expires_at for one in good),
        tuple(step.id for one in good for step in one.steps),
    )


def _unrevoked(capability: Capability, revoked: Collection[bytes]) -> Capability:
    for at, step in enumerate(capability.steps, start=1):
        if step.id in revoked:
            raise CapabilityRefused(
                f"step {at} of {len(capability.steps)} of a capability was taken back by its issuer"
            )
    return capability


def _check_narrows(capability: Capability) -> None:
    """No step gives more than the one before it, or for longer."""
    of = len(capability.steps)
    for at, (before, step) in enumerate(
        zip(capability.steps, capability.steps[1:], strict=False), start=2
    ):
        wider = [scope for scope in step.scopes if not one_covers(before.scopes, scope)]
        if wider:
            raise CapabilityRefused(
                f"step {at} of {of} of a capability widens it: {wider[0]!r} is not within "
                f"{', '.join(before.scopes)}"
            )
        if step.expires_at > before.expires_at:
            raise CapabilityRefused(
                f"step {at} of {of} of a capability ends at {_shown(step.expires_at)}, later than "
                f"the step before it ({_shown(before.expires_at)})"
            )
        if step.name:
            raise CapabilityRefused(
                f"step {at} of {of} of a capability gives a name, which only its issuer may do"
            )


def _check_times(capability: Capability, now_ms: int) -> None:
    of = len(capability.steps)
    for at, step in enumerate(capability.steps, start=1):
        where = f"step {at} of {of} of a capability"
        if step.expires_at - step.issued_at > BUS_CAPABILITY_MS_MAX:
            raise CapabilityRefused(
                f"{where} lasts over {BUS_CAPABILITY_MS_MAX // DAY_MS} days, which nobody may give"
            )
        if now_ms >= step.expires_at + BUS_CLOCK_SKEW_MS:
            raise CapabilityRefused(
                f"{where} expired {_span(now_ms - step.expires_at)} ago, at "
                f"{_shown(step.expires_at)}; this node's clock says {_shown(now_ms)}",
                hint="get a new one from its issuer; if the clock is wrong, set it",
            )
        if step.issued_at > now_ms + BUS_CLOCK_SKEW_MS:
            raise CapabilityRefused(
                f"{where} was issued {_span(step.issued_at - now_ms)} in the future, at "
                f"{_shown(step.issued_at)}; this node's clock says {_shown(now_ms)}",
                hint="set the clock of this machine, or of the issuer's",
            )


def _check_signatures(capability: Capability) -> None:
    from nacl.exceptions import BadSignatureError  # here: its library takes long to load
    from nacl.signing import VerifyKey

    signer = before = capability.issuer
    for at, step in enumerate(capability.steps, start=1):
        try:
            VerifyKey(signer).verify(_signed_text(before, step), step.signature)
        except (BadSignatureError, ValueError):
            raise CapabilityRefused(
                f"step {at} of {len(capability.steps)} of a capability is not signed by "
                + ("its issuer" if at == 1 else "the holder of the step before it")
            ) from None
        signer, before = step.holder, step.signature


def _shown(at_ms: int) -> str:
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M UTC")
    except (ValueError, OverflowError, OSError):
        return f"{at_ms} ms"  # beyond the year 9999


def _span(ms: int) -> str:
    for unit, name in ((DAY_MS, "days"), (HOUR_MS, "hours"), (60_000, "minutes")):
        if ms >= 2 * unit:
            return f"{ms // unit} {name}"
    return f"{ms // 1000} seconds"
