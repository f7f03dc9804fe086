"""Q11: auth material in its own snapshot, with a checksum, and never shown."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.rules.errors import BadChecksum, BadInput, NotAuthMaterial, OverLimit
from holdfast.rules.limits import AUTH_PROVIDERS_MAX, AUTH_SECRET_BYTES_MAX
from holdfast.rules.quorum.auth_material import (
    ApiKeyAuth,
    OauthAuth,
    auth_checksum,
    decode_auth,
    encode_auth,
    make_snapshot_of_auth,
    summary,
)

SECRETS = ("sk-hidden-1", "at-hidden-2", "rt-hidden-3")
KEY = ApiKeyAuth(SECRETS[0])
OAUTH = OauthAuth(SECRETS[1], SECRETS[2], 1_800_000_000_000, "acc")
BARE = OauthAuth(SECRETS[1], SECRETS[2], 5)
SNAPSHOT = make_snapshot_of_auth({"zed": OAUTH, "alpha": KEY, "beta": BARE}, 1_000)


def plain() -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode(encode_auth(SNAPSHOT))
    return found


def test_Q11_a_snapshot_has_the_fields_of_the_source_and_is_read_back() -> None:
    shown = plain()
    assert list(shown) == ["version", "exportedAt", "checksum", "payload"]
    entries = shown["payload"]["providerAuth"]
    assert entries["alpha"] == {"type": "api_key", "key": SECRETS[0]}
    assert list(entries["zed"]) == ["type", "accessToken", "refreshToken", "expires", "accountId"]
    assert "accountId" not in entries["beta"]
    assert shown["exportedAt"] == "1970-01-01T00:00:01.000Z"
    read = decode_auth(encode_auth(SNAPSHOT))
    assert read.payload == SNAPSHOT.payload
    assert read.checksum == auth_checksum(read.payload)
    for version in (1, "1", "1.0", "1.7"):
        assert decode_auth(msgspec.json.encode({**shown, "version": version}))


def test_Q11_diagnostics_name_providers_and_counts_only() -> None:
    told = summary(SNAPSHOT)
    assert (told.providers, told.count) == (("alpha", "beta", "zed"), 3)
    assert told.kinds == {"api_key": 1, "oauth": 2}
    for thing in (KEY, OAUTH, SNAPSHOT, SNAPSHOT.payload, told, [SNAPSHOT], {"x": KEY}):
        rich = getattr(thing, "__rich_repr__", None)
        for text in (repr(thing), str(thing), f"{thing}", repr(list(rich()) if rich else [])):
            assert "hidden-" not in text


def changed(**fields: Any) -> bytes:
    return msgspec.json.encode({**plain(), **fields})


def with_entry(entry: Any, provider: str = "alpha") -> bytes:
    return changed(payload={"providerAuth": {provider: entry}})


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"[]",
        b'{"theme":"sk-hidden-1"}',
        changed(version="2.0"),
        changed(version="1.x"),
        changed(exportedAt="sk-hidden-1"),
        changed(checksum="sk-hidden-1"),
        changed(payload={}),
        changed(payload={"providerAuth": {}, "theme": "sk-hidden-1"}),
        changed(settings={"theme": "sk-hidden-1"}),
        with_entry({"type": "api_key"}),
        with_entry({"type": "api_key", "key": 5}),
        with_entry({"type": "api_key", "key": ""}),
        with_entry({"type": "api_key", "key": "sk-hidden-1", "more": 1}),
        with_entry({"type": "sk-hidden-1", "key": "x"}),
        with_entry({"key": "sk-hidden-1"}),
        with_entry("sk-hidden-1"),
        with_entry({"type": "oauth", "accessToken": "at-hidden-2"}),
        with_entry({"type": "oauth", "accessToken": "a", "refreshToken": "r", "expires": -1}),
        with_entry({"type": "oauth", "accessToken": "a", "refreshToken": "", "expires": 1}),
        with_entry({"type": "api_key", "key": "sk-hidden-1"}, provider=""),
        with_entry({"type": "api_key", "key": "x" * (AUTH_SECRET_BYTES_MAX + 1)}),
    ],
)
def test_Q11_settings_and_broken_snapshots_are_refused_without_being_quoted(raw: bytes) -> None:
    with pytest.raises(BadInput) as caught:
        decode_auth(raw)
    assert "hidden-" not in f"{caught.value} {caught.value.hint} {caught.value.__cause__}"
    assert caught.value.code in ("not_auth_material", "over_limit", "bad_key")


def test_Q11_a_wrong_checksum_is_refused() -> None:
    with pytest.raises(BadChecksum):
        decode_auth(changed(checksum="0" * 64))
    other = plain()["payload"]
    other["providerAuth"]["alpha"]["key"] = "another"
    with pytest.raises(BadChecksum):
        decode_auth(changed(payload=other))


def test_Q11_a_snapshot_holds_so_many_providers() -> None:
    many = {f"p{number}": KEY for number in range(AUTH_PROVIDERS_MAX + 1)}
    with pytest.raises(OverLimit):
        make_snapshot_of_auth(many, 0)
    with pytest.raises(NotAuthMaterial):
        make_snapshot_of_auth({"p": ApiKeyAuth("")}, 0)
    with pytest.raises(OverLimit):
        decode_auth(b" " * (AUTH_PROVIDERS_MAX * AUTH_SECRET_BYTES_MAX + 1))
