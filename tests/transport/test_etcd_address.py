"""The address of an etcd: what it may say, and that it gives no secret away."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from holdfast.rules.errors import BadInput
from holdfast.transport.etcd_address import (
    EtcdMember,
    next_scope,
    parse_etcd_address,
    with_scope,
)


def test_Q3_an_address_names_members_and_files() -> None:
    found = parse_etcd_address(
        "etcd://a.example:1,b.example,[::1]:3?ca=/ca.pem&cert=/c.pem&key=/k.pem"
        "&user=ana&password-file=/p"
    )
    assert found.members == (
        EtcdMember("a.example", 1),
        EtcdMember("b.example", 2379),
        EtcdMember("::1", 3),
    )
    assert str(found.members[2]) == "[::1]:3"
    assert (found.tls, found.ca, found.cert, found.key) == (True, "/ca.pem", "/c.pem", "/k.pem")
    assert (found.user, found.password_file) == ("ana", "/p")
    assert not found.allow_old_version


@pytest.mark.parametrize(
    ("address", "tls"),
    [
        ("etcd://127.0.0.1:1", False),
        ("etcd://localhost:1,[::1]:2/", False),
        ("etcd://localhost:1?tls=on", True),
        ("etcd://localhost:1?ca=/ca.pem", True),
        ("etcd://etcd.example:1", True),
        ("etcd://127.0.0.1:1,etcd.example:1", True),
    ],
)
def test_Q11_everything_but_loopback_is_encrypted(address: str, tls: bool) -> None:
    assert parse_etcd_address(address).tls is tls


@pytest.mark.parametrize(
    "address",
    [
        "etcd://etcd.example:1?tls=off",
        "etcd://127.0.0.1:1,etcd.example:1?tls=off",
        "etcd://127.0.0.1.example:1?tls=off",
        "etcd://127.0.0.1:1?tls=off&ca=/ca.pem",
        "etcd://127.0.0.1:1?tls=maybe",
        "http://127.0.0.1:1",
        "etcd://",
        "etcd://127.0.0.1:99999",
        "etcd://127.0.0.1:x",
        "etcd://127.0.0.1:1/path",
        "etcd://127.0.0.1:1#x",
        "etcd://ana:hidden@127.0.0.1:1",
        "etcd://127.0.0.1:1?password=hidden",
        "etcd://127.0.0.1:1?user=hidden",
        "etcd://127.0.0.1:1?cert=hidden",
        "etcd://127.0.0.1:1?hidden",
        "etcd://127.0.0.1:1?allow-old-version=1",
        "etcd://127.0.0.1:1,127.0.0.1:1",
        "etcd://" + ",".join(f"127.0.0.1:{port}" for port in range(1, 18)),
        "etcd://127.0.0.1:1 ,b:2",
    ],
)
def test_Q11_an_address_that_cannot_be_used_is_refused_without_showing_it(address: str) -> None:
    with pytest.raises(BadInput) as refused:
        parse_etcd_address(address)
    assert "hidden" not in refused.value.message


def test_Q11_the_password_is_the_first_line_of_its_file(tmp_path: Path) -> None:
    place = tmp_path / "password"
    found = parse_etcd_address(f"etcd://127.0.0.1:1?user=ana&password-file={place}")
    with pytest.raises(BadInput):
        found.password()
    place.write_bytes(b"sesame\nmore\n")
    assert found.password() == "sesame"
    place.write_bytes(b"\xff")
    with pytest.raises(BadInput):
        found.password()


def test_Q11_certificates_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    wrong = tmp_path / "ca.pem"
    wrong.write_text("no certificate")
    for place in (wrong, tmp_path / "absent.pem"):
        with pytest.raises(BadInput):
            parse_etcd_address(f"etcd://127.0.0.1:1?ca={place}").context()


def test_U2_another_order_of_a_mesh_gets_a_name_that_can_be_pasted() -> None:
    for used, free in (("team", "team-2"), ("team-2", "team-3"), ("a-b", "a-b-2"), ("-9", "-9-2")):
        assert next_scope(used) == free
    for address in (
        "etcd://127.0.0.1:2379",
        "etcd://10.0.0.1:2379,10.0.0.2:2379?ca=/etc/a b.pem&user=team&password-file=pw&scope=team",
    ):
        again = parse_etcd_address(with_scope(address, "team-2"))
        assert again == msgspec.structs.replace(parse_etcd_address(address), scope="team-2")
    assert with_scope("etcd://127.0.0.1:2379", "x") == "etcd://127.0.0.1:2379?scope=x"
