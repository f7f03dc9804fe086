"""Auth material: keys and tokens of providers, which travel in one snapshot of their own.

The snapshot has the source's fields. Whatever is not of its form is refused, so that settings
cannot slip into this channel, as secrets cannot slip into settings (`entities.refuse_secrets`). Its
checksum is the SHA-256 of the canonical payload (RFC 8785).

Nothing here shows a secret: values that hold one have a repr without it, errors name fields and
providers only, and `summary` is all that a log, a metric or a route's diagnostics may say.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from hmac import compare_digest
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from holdfast.rules import limits, names
from holdfast.rules.errors import BadChecksum, BadInput, NotAuthMaterial, OverLimit
from holdfast.rules.quorum.moments import moment_text, parse_moment

SNAPSHOT_VERSION: Final = "1.0"


class _Hiding:
    """Shows of itself what kind it is, and no field: to `repr`, to `str`, and to rich, which prints
    tracebacks.
    """

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: hidden>"

    __str__ = __repr__

    def __rich_repr__(self, /) -> list[tuple[str, Any]]:
        return [("fields", "hidden")]


class ApiKeyAuth(_Hiding, msgspec.Struct, frozen=True, tag="api_key", forbid_unknown_fields=True):
    key: str


class OauthAuth(
    _Hiding,
    msgspec.Struct,
    frozen=True,
    tag="oauth",
    rename="camel",
    forbid_unknown_fields=True,
    omit_defaults=True,
):
    access_token: str
    refresh_token: str
    expires: int
    """Milliseconds after 1970."""
    account_id: str | None = None


ProviderAuthEntry = ApiKeyAuth | OauthAuth


class AuthPayload(_Hiding, msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    provider_auth: dict[str, ProviderAuthEntry]


class AuthMaterialSnapshot(
    _Hiding, msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True
):
    version: str | int
    """`1.0`; some write the major version alone, as a number."""
    exported_at: str
    checksum: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    payload: AuthPayload


class AuthSummary(msgspec.Struct, frozen=True, rename="camel"):
    """All that may be told about a snapshot."""

    providers: tuple[str, ...]
    count: int
    kinds: dict[Literal["api_key", "oauth"], int]


def make_snapshot_of_auth(
    provider_auth: Mapping[str, ProviderAuthEntry], exported_at_ms: int
) -> AuthMaterialSnapshot:
    payload = AuthPayload(dict(provider_auth))
    _check_payload(payload)
    return AuthMaterialSnapshot(
        SNAPSHOT_VERSION, moment_text(exported_at_ms), auth_checksum(payload), payload
    )


def encode_auth(snapshot: AuthMaterialSnapshot) -> bytes:
    """For the sealed channel and the sealed column only."""
    return msgspec.json.encode(snapshot)


def decode_auth(raw: bytes) -> AuthMaterialSnapshot:
    """Reads and checks a snapshot from outside. No error of it holds a part of the bytes."""
    if len(raw) > limits.AUTH_PROVIDERS_MAX * limits.AUTH_SECRET_BYTES_MAX:
        raise OverLimit(f"a snapshot of auth material of {len(raw)} bytes is too large")
    try:
        snapshot = msgspec.json.decode(raw, type=AuthMaterialSnapshot)
    except msgspec.ValidationError as error:
        raise NotAuthMaterial(f"not a snapshot of auth material: {_place(error)}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise NotAuthMaterial("not a snapshot of auth material: it cannot be read") from None
    major, dot, minor = str(snapshot.version).partition(".")
    if major != "1" or (dot and not minor.isdecimal()):
        raise NotAuthMaterial("a snapshot of auth material of another major version")
    try:
        parse_moment(snapshot.exported_at)
    except BadInput:
        raise NotAuthMaterial("exportedAt of a snapshot of auth material is no time") from None
    _check_payload(snapshot.payload)
    if not compare_digest(auth_checksum(snapshot.payload), snapshot.checksum):
        raise BadChecksum("the snapshot of auth material does not hash to its checksum")
    return snapshot


def auth_checksum(payload: AuthPayload) -> str:
    from rfc8785 import dumps  # slow to import, and few calls need it

    plain: dict[str, Any] = msgspec.to_builtins(payload)
    return sha256(dumps(plain)).hexdigest()


def summary(snapshot: AuthMaterialSnapshot) -> AuthSummary:
    """Names of providers, and how many of which kind: what a log may say."""
    entries = snapshot.payload.provider_auth
    oauth = sum(isinstance(one, OauthAuth) for one in entries.values())
    return AuthSummary(
        tuple(sorted(entries)), len(entries), {"api_key": len(entries) - oauth, "oauth": oauth}
    )


def _check_payload(payload: AuthPayload) -> None:
    entries = payload.provider_auth
    if len(entries) > limits.AUTH_PROVIDERS_MAX:
        raise OverLimit(f"{len(entries)} providers; the most is {limits.AUTH_PROVIDERS_MAX}")
    for provider, entry in entries.items():
        names.check_key(provider, "name of a provider")
        secrets = (
            {"key": entry.key}
            if isinstance(entry, ApiKeyAuth)
            else {"accessToken": entry.access_token, "refreshToken": entry.refresh_token}
        )
        for field, secret in secrets.items():
            if not secret:
                raise NotAuthMaterial(f"{field} of {provider!r} is empty")
            if len(secret) > limits.AUTH_SECRET_BYTES_MAX:
                raise OverLimit(f"{field} of {provider!r} is too long")
        if isinstance(entry, OauthAuth) and not 0 <= entry.expires < limits.SOURCE_TIME_MS_MAX:
            raise NotAuthMaterial(f"expires of {provider!r} is no time")


def _place(error: msgspec.ValidationError) -> str:
    """Where it is wrong. What is wrong may quote a value, and so is not told."""
    _, found, place = str(error).rpartition(" - at ")
    return f"wrong at {place}" if found and len(place) < 80 else "it has another form"
