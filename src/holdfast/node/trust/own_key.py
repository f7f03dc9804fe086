"""This node's own key: the secret that it signs with, the card that others know it by, and changing
it.

**Changing the key without a pause.** `make_next` lays the next key beside the one in use. The
operator gives its card to every zone that trusts this node; each then knows two keys. `switch`
makes the next key the current one, which other processes notice with their next hello. At last the
operator revokes the old key there, or it ends by itself if it was trusted for some days only.

Before it goes, the old key signs the new one. Members of meshes without a broker follow that by
themselves (`rules/bus/succession.py`); zones are trusted by people, and wait for theirs.
"""

from __future__ import annotations

import os
from hmac import compare_digest

import msgspec

from holdfast.node.core.engine import NodeEngine
from holdfast.rules.bus.succession import Chain, KeySuccession, keys_before, succeed, with_step
from holdfast.rules.errors import StoreFailed, UnknownKey
from holdfast.rules.keys import card_of, public_key
from holdfast.storage.files.durable import alone_in, disk_errors, durable_replace, fsync_dir
from holdfast.storage.files.home import IDENTITY_BYTES, HomePaths


class OwnKey:
    """The key files of one home. Thread-safe: every call reads them anew."""

    def __init__(self, engine: NodeEngine, paths: HomePaths) -> None:
        self._engine = engine
        self._paths = paths

    @property
    def name(self) -> str:
        """The peer name of this node."""
        return self._engine.ctx.peer

    def seed(self) -> bytes:
        """The secret that this node signs with, read from its file: a switch needs no restart."""
        seed = _read_seed(self._paths.identity)
        if seed is None:
            raise StoreFailed(
                f"{self._paths.identity} is not a key of Holdfast",
                hint="restore it from a backup: it is in every one",
            )
        return seed

    def card(self) -> str:
        return card_of(self.name, public_key(self.seed()))

    def make_next(self) -> str:
        """Returns the card of the next key, which it makes if there is none yet."""
        with alone_in(self._paths.root):
            seed = self._next()
            if seed is None:
                seed = os.urandom(IDENTITY_BYTES)
                durable_replace(self._paths.identity_next, seed)
        return card_of(self.name, public_key(seed))

    def switch(self) -> str:
        """Makes the next key the current one and returns its card. The old key is gone."""
        with alone_in(self._paths.root):
            seed = self._next()
            if seed is None:
                raise UnknownKey(
                    "this node has no next key", hint="make it first: holdfast peer rotate"
                )
            step = succeed(self.seed(), public_key(seed))
            chain = with_step(self._chain(), step)
            durable_replace(self._paths.identity_former, msgspec.msgpack.encode(chain))
            # Replaced before the other goes: a crash between leaves both, with the same content.
            durable_replace(self._paths.identity, seed)
            self._drop_next()
        return card_of(self.name, public_key(seed))

    def former(self) -> tuple[KeySuccession, ...]:
        """How this node came to its key, the first step first; empty if it has its first one."""
        chain, key = self._chain(), public_key(self.seed())
        # A switch that was cut short has signed a key that is not in use yet.
        ends = [number for number, step in enumerate(chain, 1) if step.after == key]
        return chain[: ends[-1]] if ends else ()

    def former_keys(self) -> tuple[bytes, ...]:
        """The keys that this node had before, the newest first."""
        return keys_before(self.former(), public_key(self.seed()))

    def _chain(self) -> tuple[KeySuccession, ...]:
        path = self._paths.identity_former
        with disk_errors(f"read {path}"):
            try:
                raw = path.read_bytes()
            except FileNotFoundError:
                return ()
        try:
            return msgspec.msgpack.decode(raw, type=Chain)
        except msgspec.DecodeError:
            return ()  # it was harmed: peers that know only an older key do not follow

    def _next(self) -> bytes | None:
        seed = _read_seed(self._paths.identity_next)
        if seed is not None and compare_digest(seed, self.seed()):
            self._drop_next()  # a switch was cut short after its first step
            return None
        return seed

    def _drop_next(self) -> None:
        with disk_errors(f"remove {self._paths.identity_next}"):
            self._paths.identity_next.unlink(missing_ok=True)
        fsync_dir(self._paths.root)


def _read_seed(path: os.PathLike[str]) -> bytes | None:
    with disk_errors(f"read {os.fspath(path)}"):
        try:
            with open(path, "rb") as file:
                seed = file.read(IDENTITY_BYTES + 1)
        except FileNotFoundError:
            return None
    return seed if len(seed) == IDENTITY_BYTES else None
