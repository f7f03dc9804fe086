"""Every test here runs on every store of the bus: what one promises, all keep."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.rules.bus.mesh_store import MeshStore
from support.mesh_stores import MESH_STORES, SetClock, StoreMaker


@pytest.fixture(params=list(MESH_STORES))
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def make_store(kind: str) -> StoreMaker:
    return MESH_STORES[kind]


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture
def store(
    make_store: StoreMaker, runner: asyncio.Runner, tmp_path: Path, clock: SetClock
) -> Iterator[MeshStore]:
    async def opened() -> MeshStore:
        return await make_store(tmp_path, clock)

    store = runner.run(opened())
    yield store
    runner.run(store.close())


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    runner = pyfuncitem.funcargs.get("runner")
    names = pyfuncitem._fixtureinfo.argnames
    test = pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names})
    if isinstance(runner, asyncio.Runner):
        runner.run(test)
    else:
        asyncio.run(test)
    return True
