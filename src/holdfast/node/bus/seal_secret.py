"""Fetches the secret that seals messages at rest, from where the settings say.

A file must be readable for its user alone: its mode is mended, and that is said aloud, or it is
refused. The keyring is that of the system, which needs the extra `keyring`; backends that keep
their secrets as plain text are refused, since a key file is no worse and says what it is.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from holdfast.node.bus.holder import hold_bus
from holdfast.node.home.opening import Opened
from holdfast.rules.bus.sealing import KEY_BYTES, SealPlace, SealSecret, SealSource
from holdfast.rules.errors import BadInput, Conflict, WrongKey
from holdfast.storage.files.secrets import guard_secret
from holdfast.storage.loop_queue import LoopWrites
from holdfast.storage.sqlite.bus.mesh_store import SqliteMeshStore
from holdfast.storage.sqlite.bus.resealing import (
    change_data_key,
    change_secret,
    open_all,
    unlock,
)

if TYPE_CHECKING:
    from keyring.backend import KeyringBackend

SERVICE: Final = "holdfast bus"
_FILE_BYTES_MAX: Final = 4096
_USE_A_FILE: Final = "use key-file:PATH, with a file that only its user can read"

log = logging.getLogger("holdfast")


async def start_unsealed(
    store: SqliteMeshStore, source: SealSource | None, home: Path
) -> SqliteMeshStore:
    """Starts the store of a home's bus with the secret that the settings name. Raises WrongKey."""
    if source is None:
        return await store.start()
    fetch = partial(seal_secret, source, home, sealed=await store.is_sealed())
    return await store.start(await store.beside(fetch))


async def change_seal(
    opened: Opened, old: SealSource | None, new: SealSource, *, new_data_key: bool
) -> None:
    """Seals the messages of a home by the secret of another place, or anew by another data key. No
    process may hold the bus of the home. Raises WrongKey unless `old` has the secret of now.
    """
    lock = hold_bus(opened.paths)
    try:
        store = SqliteMeshStore(
            opened.store, opened.paths.bus_mark, write=LoopWrites(opened.store.writer)
        )
        home = opened.paths.root
        await start_unsealed(store, old, home)
        fetch = partial(seal_secret, new, home, sealed=False)
        wanted = await store.beside(fetch)
        if old is None:
            await unlock(store, wanted)
            return
        known = await store.beside(partial(seal_secret, old, home, sealed=True))
        if wanted != known:
            await change_secret(store, known, wanted)
        if new_data_key:
            await change_data_key(store, wanted)
    finally:
        lock.close()


async def end_seal(opened: Opened, source: SealSource) -> None:
    """Opens the messages of a home for good. No process may hold the bus of the home. Raises
    WrongKey unless `source` has the secret of now.
    """
    lock = hold_bus(opened.paths)
    try:
        store = SqliteMeshStore(
            opened.store, opened.paths.bus_mark, write=LoopWrites(opened.store.writer)
        )
        if not await store.is_sealed():
            raise Conflict("messages of this home are not sealed", hint="nothing is to be done")
        await start_unsealed(store, source, opened.paths.root)
        fetch = partial(seal_secret, source, opened.paths.root, sealed=True)
        await open_all(store, await store.beside(fetch))
    finally:
        lock.close()


def seal_secret(
    source: SealSource,
    home: Path,
    *,
    sealed: bool,
    random: Callable[[int], bytes] = os.urandom,
) -> SealSecret:
    """The secret of a home. With a keyring, a key is made for a home that is not `sealed` yet."""
    if source.place is SealPlace.KEYRING:
        return _from_keyring(str(home.absolute()), sealed=sealed, random=random)
    raw = _read(Path(source.path))
    if source.place is SealPlace.PASSPHRASE_FILE:
        try:
            return SealSecret.passphrase(raw.decode().rstrip("\r\n"))
        except UnicodeDecodeError:
            raise BadInput(f"the passphrase in {source.path} is not UTF-8") from None
    return SealSecret.key(_key(raw, source.path))


def _read(path: Path) -> bytes:
    try:
        with open(path, "rb") as file:
            for mended in guard_secret(path):
                log.warning("%s", mended)
            raw = file.read(_FILE_BYTES_MAX + 1)
    except OSError as error:
        raise BadInput(f"the key at rest in {path} cannot be read: {error.strerror}") from None
    if len(raw) > _FILE_BYTES_MAX:
        raise BadInput(f"{path} is too large for a key at rest")
    return raw


def _key(raw: bytes, path: str) -> bytes:
    """32 bytes, or as many in hexadecimal."""
    if len(raw) == KEY_BYTES:
        return raw
    try:
        key = bytes.fromhex(raw.decode("ascii"))
    except (UnicodeDecodeError, ValueError):
        key = b""
    if len(key) != KEY_BYTES:
        raise BadInput(
            f"{path} holds no key at rest",
            hint=f"make one: (umask 077; head -c {KEY_BYTES} /dev/urandom > {path})",
        )
    return key


def _from_keyring(user: str, *, sealed: bool, random: Callable[[int], bytes]) -> SealSecret:
    backend, errors = _keyring()
    try:
        text = backend.get_password(SERVICE, user)
        if text is None:
            if sealed:
                raise WrongKey(f"the keyring of this system has no key for {user}")
            text = random(KEY_BYTES).hex()
            backend.set_password(SERVICE, user, text)
    except errors as error:
        raise BadInput(f"the keyring does not answer: {error}", hint=_USE_A_FILE) from None
    return SealSecret.key(_key(text.encode(), "the keyring"))


def _keyring() -> tuple[KeyringBackend, type[Exception]]:
    try:
        # Imported only here: it takes longer than the rest of a start, and few need it.
        import keyring
        from keyring.errors import KeyringError
    except ImportError:
        raise BadInput(
            "the system's keyring needs the package keyring",
            hint="pip install 'holdfast[keyring]'; or " + _USE_A_FILE,
        ) from None
    backend = keyring.get_keyring()
    kind = type(backend).__module__
    if kind.startswith(("keyrings.alt", "keyring.backends.null")):
        raise BadInput(f"the keyring {kind} keeps secrets as plain text", hint=_USE_A_FILE)
    return backend, KeyringError
