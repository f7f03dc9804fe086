"""Every test here runs on every store: what one promises, all keep.

A test may be a coroutine: it then runs in the loop in which its store was opened.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.storage.broker.port import BrokerStore
from support.broker_stores import STORES, VANDALS, StoreMaker, Vandal


@pytest.fixture(params=list(STORES))
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def make_store(kind: str) -> StoreMaker:
    return STORES[kind]


@pytest.fixture
def vandal(kind: str) -> Vandal:
    return VANDALS[kind]


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture
def store(make_store: StoreMaker, runner: asyncio.Runner, tmp_path: Path) -> Iterator[BrokerStore]:
    opening = make_store(tmp_path)
    yield runner.run(opening.__aenter__())
    runner.run(opening.__aexit__(None, None, None))


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    runner = pyfuncitem.funcargs.get("runner")
    names = pyfuncitem._fixtureinfo.argnames
    arguments = {name: pyfuncitem.funcargs[name] for name in names}
    test = pyfuncitem.obj(**arguments)
    if isinstance(runner, asyncio.Runner):
        runner.run(test)
    else:
        asyncio.run(test)
    return True
