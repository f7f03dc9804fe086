"""Auth material: in by its own channel only, sealed at rest, and found nowhere else."""

from __future__ import annotations

import json
import logging
import re
from base64 import b64decode, b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.node.bus.auth_channel import boxed, unboxed
from holdfast.node.settings import QuorumSettings, Settings
from holdfast.pipeline.lake.lake import Lake
from holdfast.rules.bus.sealing import SealLock, SealSecret, open_lock
from holdfast.rules.errors import HoldfastError, NotAuthMaterial
from holdfast.rules.keys import public_key
from holdfast.rules.quorum.auth_material import (
    ApiKeyAuth,
    OauthAuth,
    decode_auth,
    encode_auth,
    make_snapshot_of_auth,
)
from support.bus_homes import LISTENING, Homes, befriend
from support.cli import Cli
from support.daemon import Plain, ask
from support.envelopes import MESH
from support.filled_lake import pour
from support.quorum_daemon import QuorumUp, quorum_daemon

SECRETS = ("sk-very-secret-0001", "oauth-access-0002", "oauth-refresh-0003")
KEY, ACCESS, REFRESH = SECRETS
RECEIVE, EXPORT = "/api/settings/auth-receive", "/api/settings/auth-export"
OPEN = Settings(tcp="127.0.0.1:0", quorum=QuorumSettings(auth_channel=True))


@pytest.fixture
def up(tmp_path: Path) -> Iterator[QuorumUp]:
    with quorum_daemon(tmp_path, OPEN) as made:
        yield made


def forms(secret: str) -> list[bytes]:
    """How a secret may be spelled in bytes: as it is, in hex, in base64 from any place on."""
    raw = secret.encode()
    shifted = (b64encode(b"x" * shift + raw)[4:-4] for shift in range(3))
    return [raw, raw.hex().encode(), *shifted]


def is_told(said: list[bytes]) -> bool:
    return any(form in part for part in said for secret in SECRETS for form in forms(secret))


def snapshot(**entries: Any) -> bytes:
    given = entries or {
        "openai": ApiKeyAuth(KEY),
        "claude": OauthAuth(ACCESS, REFRESH, 1_800_000_000_000, "acc"),
    }
    return encode_auth(make_snapshot_of_auth(given, 1_700_000_000_000))


def receive(up: QuorumUp, body: bytes) -> tuple[int, Any]:
    answer = up.ask("POST", RECEIVE, body)
    return answer.status, answer.json


def export(up: QuorumUp) -> dict[str, Any]:
    answer = up.ask("GET", EXPORT)
    assert answer.status == 200
    entries: dict[str, Any] = decode_auth(answer.body).payload.provider_auth
    return entries


def test_Q11_a_snapshot_comes_back_as_it_came_and_the_answers_name_providers_only(
    up: QuorumUp,
) -> None:
    assert receive(up, snapshot()) == (
        200,
        {"nodeId": "ana", "direction": "receive", "providers": ["claude", "openai"], "count": 2},
    )
    found = export(up)
    assert found["openai"].key == KEY
    assert (found["claude"].access_token, found["claude"].account_id) == (ACCESS, "acc")
    # By mesh sync: the providers that it names are replaced, the others stay.
    shared = {"authMaterial": json.loads(snapshot(openai=ApiKeyAuth("sk-newer")))}
    answer = up.ask("POST", "/api/mesh/sync", json.dumps({"sharedState": shared}).encode())
    assert answer.json["sharedState"]["authMaterial"]["providers"] == ["openai"]
    found = export(up)
    assert (found["openai"].key, found["claude"].refresh_token) == ("sk-newer", REFRESH)


def test_Q11_what_is_no_auth_material_is_refused_and_changes_nothing(up: QuorumUp) -> None:
    receive(up, snapshot())
    wrong = json.loads(snapshot())
    wrong["payload"]["providerAuth"]["openai"]["key"] = "sk-changed-on-the-way"
    loose = json.loads(snapshot())
    loose["payload"]["theme"] = "dark"
    odd = json.loads(snapshot())
    odd["payload"]["providerAuth"]["openai"]["type"] = KEY
    refusals = {
        json.dumps(wrong).encode(): "bad_checksum",
        json.dumps(loose).encode(): "not_auth_material",
        json.dumps(odd).encode(): "not_auth_material",
        b'{"theme": "dark"}': "not_auth_material",
        b"sk-very-secret-0001": "not_auth_material",
    }
    for body, code in refusals.items():
        status, said = receive(up, body)
        assert (status, said["error"]["code"]) == (422, code)
        assert not any(secret in json.dumps(said) for secret in SECRETS)
    assert export(up)["openai"].key == KEY


def test_Q11_no_secret_is_found_in_logs_metrics_errors_exports_the_lake_or_the_database(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    said: list[bytes] = []
    with quorum_daemon(tmp_path, OPEN) as up:
        receive(up, snapshot())
        for path in ("/metrics", "/v1/outbox", "/openapi.json", "/v1/status", "/api/nodes"):
            said.append(up.ask("GET", path).body)
        for body in (snapshot()[:-9], snapshot().replace(b"api_key", b"api_keys")):
            said.append(json.dumps(receive(up, body)).encode())
        home = up.home
        Cli(home)("entity", "put", "mission", "m1", "title=Sail")
        said.append(Cli(home)("export", "--mesh", MESH, str(tmp_path / "mesh.jsonl")).raw)
        Cli(home)("backup", str(tmp_path / "backup"))
        said.append(repr(up.daemon.daemon.api.bus.auth.material.export()).encode())  # type: ignore[union-attr]
    lake = Lake.open(tmp_path / "lake", create=True)
    pour(lake, home)
    lake = lake.fresh()
    columns = [name for name in lake.bronze.schema.fieldNames() if name not in ("day", "family")]
    rows = lake.bronze.load(lake.bronze.files(), columns)[0].to_pylist()
    assert any(b"Sail" in part for row in rows for part in row.values() if type(part) is bytes)
    said += [part for row in rows for part in row.values() if type(part) is bytes]
    said.append(repr(rows).encode())
    said.append(caplog.text.encode())
    said += [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert len(said) > 12
    assert not is_told(said)
    assert is_told([b64encode(b"xyz" + KEY.encode())]), "the search finds it where it is"
    # It was there to be found: the sealed value is in the database, and opens with its key.
    sealed = [path for path in home.glob("data.db*") if b"auth.material" in path.read_bytes()]
    assert sealed
    assert (home / "auth.key").stat().st_mode & 0o777 == 0o600
    assert not list((tmp_path / "backup").rglob("auth.key"))


def opened_by(key: bytes, home: Path) -> bool:
    """Whether a key opens anything that looks like sealed auth material in the files of a home."""
    for path in home.glob("data.db*"):
        for found in re.finditer(rb'"lock":"([A-Za-z0-9+/=]+)"', path.read_bytes()):
            try:
                open_lock(SealLock.decode(b64decode(found[1])), SealSecret.key(key))
            except (HoldfastError, ValueError):
                continue
            return True
    return False


def test_Q11_what_was_deleted_is_gone_and_what_the_files_still_have_opens_for_nobody(
    up: QuorumUp, tmp_path: Path
) -> None:
    receive(up, snapshot())
    first = (up.home / "auth.key").read_bytes()
    assert opened_by(first, up.home), "the search finds what is there"
    answer = up.ask("DELETE", "/v1/auth-material?provider=openai")
    assert answer.json == {
        **{"nodeId": "ana", "direction": "forget"},
        **{"providers": ["openai"], "count": 1},
    }
    assert set(export(up)) == {"claude"}
    second = (up.home / "auth.key").read_bytes()
    assert first not in second
    assert all(first not in path.read_bytes() for path in up.home.rglob("*") if path.is_file())
    # A crash between the two keys: both stand in the file, and the one that fits opens.
    (up.home / "auth.key").write_bytes(b"n" * 32 + second)
    assert set(export(up)) == {"claude"}
    assert up.ask("DELETE", "/v1/auth-material?provider=none").json["count"] == 0
    assert set(export(up)) == {"claude"}
    told = Cli(up.home)("quorum", "forget-auth", "--all")
    assert (told.out, "1 providers" in told.err) == ("claude\n", True)
    assert export(up) == {}
    assert not (up.home / "auth.key").exists()
    assert up.ask("DELETE", "/v1/auth-material").json["count"] == 0
    Cli(up.home)("quorum", "forget-auth", code=2)
    assert receive(up, snapshot())[0] == 200
    said = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert not is_told(said)


def test_Q11_without_its_key_the_material_cannot_be_opened(up: QuorumUp) -> None:
    receive(up, snapshot())
    (up.home / "auth.key").write_bytes(b"k" * 32)
    answer = up.ask("GET", EXPORT)
    assert answer.code == "wrong_key"
    (up.home / "auth.key").unlink()
    assert up.ask("GET", EXPORT).code == "wrong_key"


def test_Q11_a_token_that_reads_gets_no_auth_material(up: QuorumUp) -> None:
    trust = up.daemon.daemon.api.trust
    reads = up.daemon.run(lambda: trust.add_token("reader", reads=["*"]))
    at = up.daemon.tcp
    for method, path in (
        ("GET", "/api/settings/auth-export"),
        ("POST", "/api/settings/auth-receive"),
    ):
        answer = up.ask(method, path, snapshot(), at=at, token=reads)
        assert (answer.status, answer.code) == (403, "not_granted")


def test_Q11_a_box_opens_with_the_keys_it_was_made_for_and_with_no_other() -> None:
    ana, bo, cy = (bytes([number]) * 32 for number in (1, 2, 3))
    box = boxed(b"secret", [public_key(ana), public_key(bo)])
    assert b"secret" not in box
    assert (unboxed(box, ana), unboxed(box, bo)) == (b"secret", b"secret")
    for wrong, seed in ((box, cy), (b"\xc1", ana), (b"\x91\xc4\x01x", ana)):
        with pytest.raises(NotAuthMaterial):
            unboxed(wrong, seed)


@pytest.mark.parametrize("direction", ["push", "pull"])
def test_Q11_auth_material_goes_over_the_bus_to_a_peer_that_both_sides_name(
    direction: str, tmp_path: Path
) -> None:
    def settings(*peers: str) -> Settings:
        quorum = QuorumSettings(auth_channel=True, auth_peers=list(peers))
        return msgspec.structs.replace(LISTENING, quorum=quorum)

    with Homes(tmp_path) as homes:
        ana = homes.serve("ana", settings("bo"))
        befriend(homes.open("ana"), homes.open("bo"))
        bo = homes.serve("bo", settings())
        source, target = (ana, bo) if direction == "push" else (bo, ana)
        assert ask(source.unix, "POST", RECEIVE, snapshot()).status == 200

        def exchange() -> Plain:
            asked = json.dumps({"direction": direction}).encode()
            return ask(ana.unix, "POST", "/api/nodes/bo/auth/sync", asked)

        refused = exchange()
        assert (refused.status, refused.code) == (502, "request_refused")
        assert "may not exchange auth material" in refused.json["error"]["message"]
        bo.run(bo.daemon.api.bus.auth.set, settings("ana").quorum)  # type: ignore[union-attr]
        done = exchange()
        assert (done.status, done.json["providers"]) == (200, ["claude", "openai"])
        found = decode_auth(ask(target.unix, "GET", EXPORT).body).payload.provider_auth
        assert found["openai"] == ApiKeyAuth(KEY)
        assert ask(ana.unix, "POST", "/api/nodes/cy/auth/sync", b"{}").code == "not_granted"
    said = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert not is_told(said)
