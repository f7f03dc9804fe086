"""`holdfast.connect` and contexts over TLS: whom they believe, and what they say if they do not."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast.node.settings import Settings
from holdfast.rules.errors import BadAnswer, BadInput, NotGranted
from support.authority import Authority
from support.cli import Cli
from support.daemon import UpInThread, make_home, running


@pytest.fixture(scope="module")
def plant(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpInThread]:
    """A daemon with the certificate that it has made itself."""
    home = make_home(tmp_path_factory.mktemp("plant") / "home", "plant")
    with holdfast.open(home, sync="normal") as node:
        node.mesh("team").state.set("build", "green")
    with running(home, Settings(listen="127.0.0.1:0")) as up:
        yield up


@pytest.fixture(scope="module")
def token(plant: UpInThread) -> str:
    """For reading, as all that come over the network."""
    return plant.daemon.api.trust.add_token("tablet", reads=["*"])


def test_U1_a_daemon_is_believed_by_its_own_certificate_at_any_address(
    plant: UpInThread, token: str
) -> None:
    own = plant.home / "tls.crt"
    port = plant.tls.rpartition(":")[2]
    for address in (plant.tls, f"https://localhost:{port}"):
        with holdfast.connect(address, token=token, ca=own) as node:
            assert node.mesh("team").state.get("build") == "green"

    async def read() -> str:
        async with holdfast.aconnect(plant.tls, token=token, ca=str(own)) as node:
            return str(await (await node.mesh("team")).state.get("build"))

    assert asyncio.run(read()) == "green"
    with (
        holdfast.connect(plant.tls, token=token, ca=own) as node,
        pytest.raises(NotGranted, match="this node's own user"),
    ):
        node.mesh("team").state.set("build", "red")


def test_U1_another_certificate_is_refused_and_the_hint_says_how_to_name_the_right_one(
    plant: UpInThread, token: str, tmp_path: Path
) -> None:
    with running(make_home(tmp_path / "bo", "bo"), Settings(listen="127.0.0.1:0")) as other:
        for trusted in (other.home / "tls.crt", None):
            with pytest.raises(BadAnswer, match="not trusted") as refused:
                holdfast.connect(plant.tls, token=token, ca=trusted)
            assert "tls.crt" in refused.value.hint
    (tmp_path / "none.pem").write_text("nothing")
    for wrong in (tmp_path / "none.pem", tmp_path / "absent.pem"):
        with pytest.raises(BadInput, match="holds no certificates"):
            holdfast.connect(plant.tls, token=token, ca=wrong)
    with pytest.raises(BadInput, match="two answers"):
        holdfast.connect(plant.tls, ca="x", context=ssl.create_default_context())


def test_U1_what_an_authority_vouches_for_must_bear_the_name(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    cert, key = map(str, authority.certificate("server", "plant"))
    settings = Settings(listen="127.0.0.1:0", tls_cert=cert, tls_key=key)
    with running(make_home(tmp_path / "plant", "plant"), settings) as up:
        token = up.daemon.api.trust.add_token("tablet", reads=["*"])
        with holdfast.connect(up.tls, token=token, ca=authority.ca) as node:
            assert node.peer == "plant"
        elsewhere = f"https://localhost:{up.tls.rpartition(':')[2]}"
        with pytest.raises(BadAnswer, match="not valid for"):
            holdfast.connect(elsewhere, token=token, ca=authority.ca)
        # Its certificate alone is that of one node, whatever it is called.
        with holdfast.connect(elsewhere, token=token, ca=cert) as node:
            assert node.peer == "plant"


def test_U2_a_context_over_tls_reads_by_a_token_for_reading(
    plant: UpInThread, token: str, tmp_path: Path
) -> None:
    cli = Cli(tmp_path / "none")
    (tmp_path / "token").write_text(token)
    env = {"HOLDFAST_HOME": "", "HOLDFAST_CONTEXTS": str(tmp_path / "contexts")}
    words = ["context", "add", "plant", "--daemon", plant.tls, "--card", plant.card, "--use"]
    words += ["--token-file", str(tmp_path / "token"), "--ca", str(plant.home / "tls.crt")]
    cli(*words, env=env)
    assert cli("state", "get", "build", env=env).out == "green\n"
    assert "build" in cli("state", "list", env=env).out
    refused = cli("state", "set", "build", "red", env=env, code=7)
    assert "PUT" in refused.err
    assert "this node's own user" in refused.err
