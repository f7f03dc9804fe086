"""Real etcds that ask for certificates and passwords, or have little room."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from holdfast.protocol.etcd_json import (
    RANGE,
    TXN,
    RangeAnswer,
    RangeRequest,
    TxnAnswer,
    TxnRequest,
    WatchCreate,
    WatchRequest,
    put,
)
from holdfast.rules.errors import BadAnswer, DiskFull, EtcdDenied, EtcdTooOld, Unreachable
from holdfast.transport.etcd_address import parse_etcd_address
from holdfast.transport.etcd_gateway import EtcdGateway
from support.authority import Authority
from support.etcd_server import EtcdServer

QUOTA_BYTES = 16 * 1024 * 1024
PIECE = bytes(1024 * 1024)


class Secured(NamedTuple):
    server: EtcdServer
    authority: Authority
    options: dict[str, str]
    """Of an address with everything that is needed."""


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    authority = Authority(tmp_path_factory.mktemp("etcd-tls"))
    cert, key = authority.certificate("server", "etcd of a test")
    server = EtcdServer(
        1,
        *("--cert-file", str(cert), "--key-file", str(key)),
        *("--trusted-ca-file", str(authority.ca), "--client-cert-auth"),
        *("--bcrypt-cost", "4"),
        tls=True,
    )
    try:
        cert, key = authority.certificate("client", "")
        link = {"ca": str(authority.ca), "cert": str(cert), "key": str(key)}
        asyncio.run(_turn_auth_on(server.address(**link)))
        password = authority.folder / "password"
        password.write_text("sesame\n")
        login = {"user": "root", "password-file": str(password)}
        yield Secured(server, authority, link | login)
    finally:
        server.stop()


async def _turn_auth_on(address: str) -> None:
    gateway = EtcdGateway(parse_etcd_address(address))
    for path, body in (
        ("/v3/auth/user/add", {"name": "root", "password": "sesame"}),
        ("/v3/auth/role/add", {"name": "root"}),
        ("/v3/auth/user/grant", {"user": "root", "role": "root"}),
        ("/v3/auth/enable", {}),
    ):
        request = msgspec.defstruct("Asked", list(body))(**body)
        await gateway.call(path, request, dict[str, Any], until=_soon(), writes=True)
    await gateway.close()


def _soon(s: float = 20.0) -> float:
    return asyncio.get_running_loop().time() + s


def _open(secured: Secured, **options: str) -> EtcdGateway:
    return EtcdGateway(parse_etcd_address(secured.server.address(**(secured.options | options))))


async def _write(gateway: EtcdGateway, value: bytes = b"v") -> TxnAnswer:
    request = TxnRequest(success=(put(b"k", value),))
    return await gateway.call(TXN, request, TxnAnswer, until=_soon(), writes=True)


async def _read(gateway: EtcdGateway, s: float = 20.0) -> RangeAnswer:
    request = RangeRequest(key=b"k", keys_only=True)
    return await gateway.call(RANGE, request, RangeAnswer, until=_soon(s))


def test_Q11_with_certificate_and_password_an_etcd_is_read_written_and_watched(
    secured: Secured,
) -> None:
    async def story() -> None:
        gateway = _open(secured)
        written = await _write(gateway)
        assert (await _read(gateway)).header.revision == written.header.revision
        create = WatchCreate(key=b"k", range_end=b"l", start_revision="1")
        watch = gateway.watch(WatchRequest(create_request=create))
        assert (await anext(watch)).created
        await watch.aclose()
        assert gateway.tokens is not None
        assert gateway.tokens.renewals == 1
        await gateway.close()

    asyncio.run(story())


def test_Q11_a_token_that_the_etcd_no_longer_knows_is_renewed(secured: Secured) -> None:
    async def story() -> None:
        gateway = _open(secured)
        await _write(gateway)
        tokens = gateway.tokens
        assert tokens is not None
        tokens._token = "gone.1"
        await asyncio.gather(*(_write(gateway) for _ in range(8)))
        assert tokens.renewals == 2
        tokens._token = "gone.2"
        create = WatchCreate(key=b"k", range_end=b"l", start_revision="1")
        watch = gateway.watch(WatchRequest(create_request=create))
        assert (await anext(watch)).created
        await watch.aclose()
        assert tokens.renewals == 3
        await gateway.close()

    asyncio.run(story())


def test_Q11_whoever_is_not_known_is_denied(secured: Secured, tmp_path: Path) -> None:
    wrong = tmp_path / "password"
    wrong.write_text("hidden")
    link = {name: secured.options[name] for name in ("ca", "cert", "key")}
    named = dict(
        zip(
            ("cert", "key"),
            map(str, secured.authority.certificate("named", "root")),
            strict=True,
        )
    )

    async def story() -> None:
        for options in (secured.options | {"password-file": str(wrong)}, link, link | named):
            gateway = EtcdGateway(parse_etcd_address(secured.server.address(**options)))
            with pytest.raises(EtcdDenied) as refused:
                await _write(gateway)
            assert "hidden" not in refused.value.message
            await gateway.close()

    asyncio.run(story())


def test_Q11_a_server_of_another_authority_gets_no_word(secured: Secured, tmp_path: Path) -> None:
    async def story() -> None:
        gateway = _open(secured, ca=str(Authority(tmp_path / "other").ca))
        with pytest.raises(BadAnswer) as refused:
            await _read(gateway)
        assert "certificate" in refused.value.message
        await gateway.close()
        for options in ({"ca": secured.options["ca"]}, {}):  # no certificate of ours; no TLS
            gateway = EtcdGateway(parse_etcd_address(secured.server.address(**options)))
            with pytest.raises((Unreachable, BadAnswer, EtcdDenied)):
                await _read(gateway, 0.5)
            await gateway.close()

    asyncio.run(story())


def test_Q3_a_release_that_loses_writes_is_refused_by_name(secured: Secured) -> None:
    async def story() -> None:
        gateway = _open(secured, allow_old_version="no")
        with pytest.raises(EtcdTooOld, match=r"3\.5\.1"):
            await _read(gateway)
        await gateway.close()

    asyncio.run(story())


def test_Q3_an_etcd_without_room_says_so_and_is_still_read() -> None:
    async def fill(gateway: EtcdGateway) -> None:
        for _ in range(3 * QUOTA_BYTES // len(PIECE)):
            await _write(gateway, PIECE)

    async def story() -> None:
        gateway = EtcdGateway(parse_etcd_address(server.address()))
        with pytest.raises(DiskFull):
            await fill(gateway)
        assert (await _read(gateway)).kvs
        await gateway.close()

    server = EtcdServer(1, "--quota-backend-bytes", str(QUOTA_BYTES))
    try:
        asyncio.run(story())
    finally:
        server.stop()
