"""Auth material of a home: keys and tokens of providers, sealed at rest.

There is one snapshot, which lies in the database as one sealed value, under the name of a job. The
key that seals it is a file of its own in the home (`auth.key`, readable by its user alone). That
file is in no backup: a backup of the home holds nothing that can be opened, and whoever restores
one receives the auth material anew.

A snapshot that comes in replaces what is here of the providers that it names. Nothing here tells
more of the content than names of providers, and counts.
"""

from __future__ import annotations

import logging
import os
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from holdfast.node.core.engine import NodeEngine
from holdfast.rules.bus.sealing import (
    KEY_BYTES,
    BodySeal,
    SealLock,
    SealSecret,
    make_lock,
    open_lock,
)
from holdfast.rules.errors import WrongKey
from holdfast.rules.quorum.auth_material import (
    AuthMaterialSnapshot,
    AuthSummary,
    ProviderAuthEntry,
    decode_auth,
    encode_auth,
    make_snapshot_of_auth,
    summary,
)
from holdfast.rules.rows import JobRow
from holdfast.storage.files.durable import alone_in, durable_replace
from holdfast.storage.files.home import HomePaths
from holdfast.storage.ports import Reader, Transaction

_JOB: Final = "auth.material"
_TABLE: Final = "auth_material"

log = logging.getLogger("holdfast")


class AuthMaterial:
    """The auth material of one home. Thread-safe: what is here lies in the store."""

    def __init__(self, engine: NodeEngine, paths: HomePaths) -> None:
        self._engine, self._paths = engine, paths

    def summary(self) -> AuthSummary:
        """All that may be told of it."""
        return summary(self.export())

    def export(self) -> AuthMaterialSnapshot:
        """All of it, as of now. WrongKey if it was sealed by another key than the one of now."""
        found = self._engine.read("auth.export", self._opened)
        return make_snapshot_of_auth(found, self._engine.ctx.now_ms())

    def receive(self, raw: bytes, by: str) -> AuthSummary:
        """Takes a snapshot from outside: NotAuthMaterial, BadChecksum or OverLimit if it is none.
        Returns what came with it.
        """
        came = decode_auth(raw)

        def work(tx: Transaction) -> None:
            after = {**self._opened(tx), **came.payload.provider_auth}
            kept = make_snapshot_of_auth(after, self._engine.ctx.now_ms())
            tx.job_put(self._sealed(SealSecret.key(secret), encode_auth(kept)))

        with alone_in(self._paths.root):
            secret = self._made_key()
            self._engine.write("auth.receive", work)
        told = summary(came)
        log.warning("auth material of %d providers came from %s", told.count, by)
        return told

    def forget(self, providers: Sequence[str] | None) -> AuthSummary:
        """Deletes the material of these providers, or all of it; returns what was deleted. What is
        left is sealed by a new key, and the old one is gone: whatever the database's file still has
        in free pages opens for nobody.
        """
        with alone_in(self._paths.root):
            row = self._engine.read("auth.export", lambda tx: tx.job_get(_JOB))
            if row is None:
                self._paths.auth_key.unlink(missing_ok=True)
                return summary(make_snapshot_of_auth({}, self._engine.ctx.now_ms()))
            gone = self._engine.read("auth.export", partial(self._named, providers=providers))
            new = os.urandom(KEY_BYTES)
            # Both keys stand there until the database has what the new one sealed.
            durable_replace(self._paths.auth_key, new + self._fitting(row))
            left = self._engine.write(
                "auth.forget", partial(self._without, gone=frozenset(gone), key=new)
            )
            if left:
                durable_replace(self._paths.auth_key, new)
            else:
                self._paths.auth_key.unlink()
        told = summary(make_snapshot_of_auth(gone, self._engine.ctx.now_ms()))
        log.warning("auth material of %d providers was deleted", told.count)
        return told

    def _named(self, tx: Reader, providers: Sequence[str] | None) -> dict[str, ProviderAuthEntry]:
        here = self._opened(tx)
        return {name: one for name, one in here.items() if providers is None or name in providers}

    def _without(self, tx: Transaction, gone: frozenset[str], key: bytes) -> int:
        left = {name: one for name, one in self._opened(tx).items() if name not in gone}
        if left:
            kept = make_snapshot_of_auth(left, self._engine.ctx.now_ms())
            tx.job_put(self._sealed(SealSecret.key(key), encode_auth(kept)))
        else:
            tx.job_drop(_JOB)
        return len(left)

    # --- at rest -----------------------------------------------------------------------------

    def _opened(self, tx: Reader) -> Mapping[str, ProviderAuthEntry]:
        row = tx.job_get(_JOB)
        if row is None:
            return {}
        key = open_lock(_lock_of(row), SealSecret.key(self._fitting(row)))
        body = BodySeal({1: key}, os.urandom).open(_TABLE, 1, 1, b64decode(row.cursor["sealed"]))
        return decode_auth(body).payload.provider_auth

    def _sealed(self, secret: SealSecret, body: bytes) -> JobRow:
        lock, key = make_lock(secret, os.urandom)
        sealed = BodySeal({1: key}, os.urandom).seal(_TABLE, 1, body)
        cursor = {
            "lock": b64encode(lock.encode()).decode(),
            "sealed": b64encode(sealed).decode(),
        }
        return JobRow(name=_JOB, cursor=cursor, updated_at=self._engine.ctx.now_ms())

    def _fitting(self, row: JobRow) -> bytes:
        """The key in the file that opens what is stored: while something is deleted, it has two."""
        keys = _keys_in(self._paths.auth_key)
        for key in keys:
            with suppress(WrongKey):
                open_lock(_lock_of(row), SealSecret.key(key))
                return key
        raise WrongKey(
            "the auth material was sealed by another key",
            hint=f"restore {self._paths.auth_key.name}, or receive the auth material again",
        )

    def _made_key(self) -> bytes:
        """The key of now; a new one if there is none."""
        path = self._paths.auth_key
        if not path.exists():
            durable_replace(path, os.urandom(KEY_BYTES))
        return _keys_in(path)[0]


def _lock_of(row: JobRow) -> SealLock:
    return SealLock.decode(b64decode(row.cursor["lock"]))


def _keys_in(path: Path) -> list[bytes]:
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise WrongKey(
            f"the key of auth material cannot be read: {error.strerror}",
            hint=f"restore {path.name}, or receive the auth material again",
        ) from None
    if len(raw) not in (KEY_BYTES, 2 * KEY_BYTES):
        raise WrongKey(f"{path} is no key of auth material")
    return [raw[at : at + KEY_BYTES] for at in range(0, len(raw), KEY_BYTES)]
