"""Where the secret that seals messages at rest comes from."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import keyring
import pytest
from keyring.backend import KeyringBackend
from keyring.errors import NoKeyringError

from holdfast.node.bus.holder import hold_bus
from holdfast.node.bus.seal_secret import change_seal, end_seal, seal_secret, start_unsealed
from holdfast.node.settings import BusSettings, Settings
from holdfast.rules.bus.sealing import SealSecret, SealSource
from holdfast.rules.errors import AlreadyExists, BadInput, Conflict, WrongKey
from holdfast.storage.sqlite.bus.mesh_store import SqliteMeshStore, inline
from support.keeping import make_home
from support.mesh_stores import waiting_for

KEY = bytes(range(32))


class HeldKeyring(KeyringBackend):
    """A keyring of the system, for the time of a test."""

    priority = 1

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.held: dict[tuple[str, str], str] = {}
        self.locked = False

    def get_password(self, service: str, username: str) -> str | None:
        if self.locked:
            raise NoKeyringError("locked")
        return self.held.get((service, username))

    def set_password(self, service: str, username: str, password: str) -> None:
        self.held[service, username] = password


@pytest.fixture
def ring() -> Iterator[HeldKeyring]:
    before, ours = keyring.get_keyring(), HeldKeyring()
    keyring.set_keyring(ours)
    yield ours
    keyring.set_keyring(before)


def read(text: str, home: Path, *, sealed: bool = False) -> SealSecret:
    return seal_secret(SealSource.parse(text), home, sealed=sealed)


def test_B7_a_key_file_holds_32_bytes_or_their_digits(tmp_path: Path) -> None:
    raw, digits = tmp_path / "raw", tmp_path / "digits"
    raw.write_bytes(KEY)
    digits.write_text(KEY.hex() + "\n")
    for path in (raw, digits):
        path.chmod(0o600)
        assert read(f"key-file:{path}", tmp_path) == SealSecret.key(KEY)


def test_B7_a_passphrase_file_holds_one_line(tmp_path: Path) -> None:
    path = tmp_path / "words"
    path.write_text("correct horse battery\n")
    path.chmod(0o600)
    secret = read(f"passphrase-file:{path}", tmp_path)
    assert secret == SealSecret.passphrase("correct horse battery")


def test_B7_a_key_that_others_can_read_is_taken_from_them_aloud(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "raw"
    path.write_bytes(KEY)
    path.chmod(0o644)
    with caplog.at_level(logging.WARNING):
        read(f"key-file:{path}", tmp_path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert "others could read it" in caplog.text
    assert KEY.hex() not in caplog.text


@pytest.mark.parametrize(
    "content",
    [b"", b"short", b"\xff" * 33, b"x" * 5000, b"zz" * 32],
    ids=["empty", "short", "long", "huge", "no digits"],
)
def test_B7_a_file_without_a_key_says_how_to_make_one(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "raw"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(BadInput):
        read(f"key-file:{path}", tmp_path)
    with pytest.raises(BadInput):
        read(f"key-file:{tmp_path / 'nothing'}", tmp_path)


def test_B7_the_keyring_makes_a_key_for_a_home_once(ring: HeldKeyring, tmp_path: Path) -> None:
    secret = read("keyring", tmp_path)
    assert read("keyring", tmp_path, sealed=True) == secret
    assert read("keyring", tmp_path / "other") != secret
    with pytest.raises(WrongKey):
        read("keyring", tmp_path / "moved", sealed=True)
    assert len(ring.held) == 2, "no key is made for a home that was sealed by another"
    ring.locked = True
    with pytest.raises(BadInput):
        read("keyring", tmp_path, sealed=True)


def test_B7_without_the_package_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "keyring", None)
    with pytest.raises(BadInput) as caught:
        read("keyring", tmp_path)
    assert "holdfast[keyring]" in (caught.value.hint or "")


def test_B7_a_setting_that_names_no_place_is_refused() -> None:
    assert Settings(bus=BusSettings(seal="keyring")).check().bus.seal_source == ("keyring", "")
    with pytest.raises(BadInput):
        Settings(bus=BusSettings(seal="in my head")).check()


def test_B7_the_store_of_a_home_starts_with_the_key_of_its_settings(tmp_path: Path) -> None:
    node, key = make_home(tmp_path / "home"), tmp_path / "key"
    key.write_bytes(KEY)
    key.chmod(0o600)
    opened = node._opened

    async def start(setting: str | None) -> SqliteMeshStore:
        store = SqliteMeshStore(opened.store, opened.paths.bus_mark, write=inline(opened.store))
        return await start_unsealed(store, BusSettings(seal=setting).seal_source, node.home)

    async def story() -> None:
        store = await start(None)
        await store.enqueue_outbox(waiting_for("ben", 1, body=b"said in the clear"))
        store = await start(f"key-file:{key}")
        assert await store.is_sealed()
        with pytest.raises(WrongKey):
            await start(None)
        key.write_bytes(KEY[::-1])
        with pytest.raises(WrongKey):
            await start(f"key-file:{key}")

    asyncio.run(story())
    home = node.home
    node.close()
    assert b"said in the clear" not in (home / "data.db").read_bytes()


def test_B7_the_key_of_a_home_is_changed_while_nobody_holds_its_bus(tmp_path: Path) -> None:
    node = make_home(tmp_path / "home")
    places = [tmp_path / "one", tmp_path / "two"]
    for place, key in zip(places, (KEY, KEY[::-1]), strict=True):
        place.write_bytes(key)
        place.chmod(0o600)
    one, two = (SealSource.parse(f"key-file:{place}") for place in places)

    async def story() -> None:
        await change_seal(node._opened, None, one, new_data_key=False)
        await change_seal(node._opened, one, two, new_data_key=True)
        with pytest.raises(WrongKey):
            await change_seal(node._opened, one, two, new_data_key=False)
        with pytest.raises(WrongKey):
            await change_seal(node._opened, None, two, new_data_key=False)
        lock = hold_bus(node._opened.paths)
        with pytest.raises(AlreadyExists):
            await change_seal(node._opened, two, one, new_data_key=False)
        lock.close()

    asyncio.run(story())
    node.close()


def test_B7_sealing_ends_when_its_owner_says_so(tmp_path: Path) -> None:
    node, key = make_home(tmp_path / "home"), tmp_path / "key"
    key.write_bytes(KEY)
    key.chmod(0o600)
    opened, place = node._opened, SealSource.parse(f"key-file:{key}")

    async def start(source: SealSource | None) -> SqliteMeshStore:
        store = SqliteMeshStore(opened.store, opened.paths.bus_mark, write=inline(opened.store))
        return await start_unsealed(store, source, node.home)

    async def story() -> None:
        with pytest.raises(Conflict):
            await end_seal(opened, place)
        store = await start(place)
        row = await store.enqueue_outbox(waiting_for("ben", 1, body=b"sealed for now"))
        key.write_bytes(KEY[::-1])
        with pytest.raises(WrongKey):
            await end_seal(opened, place)
        key.write_bytes(KEY)
        await end_seal(opened, place)
        clear = await start(None)
        assert not await clear.is_sealed()
        ((found, item),) = await clear.outbox_of("ben", 9, [])
        assert (found, item.message.body) == (row, b"sealed for now")
        again = await start(place)
        assert await again.is_sealed(), "it can begin anew"
        assert [one.message.body for _, one in await again.outbox_of("ben", 9, [])] == [
            b"sealed for now"
        ]

    asyncio.run(story())
    node.close()
