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
from collections.abc import Mapping
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
        secret = self._secret(make=True)

        def work(tx: Transaction) -> None:
            after = {**self._opened(tx), **came.payload.provider_auth}
            kept = make_snapshot_of_auth(after, self._engine.ctx.now_ms())
            tx.job_put(self._sealed(secret, encode_auth(kept)))

        self._engine.write("auth.receive", work)
        told = summary(came)
        log.warning("auth material of %d providers came from %s", told.count, by)
        return told

    # --- at rest -----------------------------------------------------------------------------

    def _opened(self, tx: Reader) -> Mapping[str, ProviderAuthEntry]:
        row = tx.job_get(_JOB)
        if row is None:
            return {}
        lock = SealLock.decode(b64decode(row.cursor["lock"]))
        key = open_lock(lock, self._secret(make=False))
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

    def _secret(self, *, make: bool) -> SealSecret:
        path = self._paths.auth_key
        if make:
            with alone_in(self._paths.root):
                if not path.exists():
                    durable_replace(path, os.urandom(KEY_BYTES))
        return SealSecret.key(_key_in(path))


def _key_in(path: Path) -> bytes:
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise WrongKey(
            f"the key of auth material cannot be read: {error.strerror}",
            hint=f"restore {path.name}, or receive the auth material again",
        ) from None
    if len(raw) != KEY_BYTES:
        raise WrongKey(f"{path} is no key of auth material")
    return raw
