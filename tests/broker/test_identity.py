"""What a broker is known by: one key for one database, and for its user alone."""

from __future__ import annotations

import asyncio
import logging
import os
import stat
from pathlib import Path

import pytest

from holdfast.rules.errors import AnotherBroker, NotOurs
from support.broker_people import Person, broker_up
from support.postgres import name_for, server


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_D1_a_broker_with_another_key_does_not_serve_the_database_of_one(
    tmp_path: Path, kind: str
) -> None:
    async def run() -> None:
        dsn = await server().database(name_for(tmp_path)) if kind == "postgres" else None
        async with broker_up(tmp_path, dsn=dsn) as up:
            await Person("ana").register(up, "team")
            first = up.broker.me.key
        folder = tmp_path / "broker"
        key = (folder / "identity.key").read_bytes()
        (folder / "identity.key").write_bytes(bytes(32))
        with pytest.raises(AnotherBroker, match=first.hex()):
            async with broker_up(tmp_path, dsn=dsn):
                pass
        # The right key again, or, if it is lost, by the operator's word.
        (folder / "identity.key").write_bytes(key)
        async with broker_up(tmp_path, dsn=dsn) as up:
            assert up.broker.me.key == first
        (folder / "identity.key").write_bytes(bytes(32))
        for _ in range(2):
            async with broker_up(tmp_path, dsn=dsn, replace_key=True) as up:
                assert up.broker.me.key != first

    asyncio.run(run())


def test_S1_a_key_that_others_could_read_is_mended_aloud_or_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def up_and_down() -> None:
        async with broker_up(tmp_path, listen="127.0.0.1:0"):
            pass

    asyncio.run(up_and_down())
    assert not [one for one in caplog.records if "had mode" in one.message]
    chmod = os.chmod
    secrets = [tmp_path / "broker" / name for name in ("identity.key", "tls.key")]
    for secret in secrets:
        for mode in (0o604, 0o640):
            secret.chmod(mode)
            caplog.clear()
            with caplog.at_level(logging.WARNING):
                asyncio.run(up_and_down())
            assert stat.S_IMODE(secret.stat().st_mode) == 0o600
            (told,) = [one.message for one in caplog.records if "had mode" in one.message]
            assert str(secret) in told
        secret.chmod(0o644)

        def no_chmod(path: Path, mode: int, *, of: Path = secret) -> None:
            if path == of:
                raise PermissionError(1, "Operation not permitted", str(path))
            chmod(path, mode)

        with monkeypatch.context() as patched:
            patched.setattr(os, "chmod", no_chmod)
            with pytest.raises(NotOurs, match="others can read"):
                asyncio.run(up_and_down())
        secret.chmod(0o600)
