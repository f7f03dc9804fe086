"""Talkers that go away with their test, and certificates made once."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.transport.tls import make_certificate, server_context
from transport.talkers import Talk, Talker

Talking = Callable[..., Talker]


@pytest.fixture
def talking() -> Iterator[Talking]:
    made: list[Talker] = []

    def talking(talk: Talk, **how: Any) -> Talker:
        made.append(Talker(talk, **how))
        return made[-1]

    yield talking
    for talker in made:
        talker.close()


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The certificate of an honest server; its key lies beside it."""
    return make_certificate(tmp_path_factory.mktemp("tls"))[0]


@pytest.fixture(scope="session")
def context(certificate: Path) -> ssl.SSLContext:
    return server_context(certificate, certificate.with_suffix(".key"))


@pytest.fixture(scope="session")
def other_certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificate(tmp_path_factory.mktemp("other-tls"))[0]


@pytest.fixture(scope="session")
def other_context(other_certificate: Path) -> ssl.SSLContext:
    """With another certificate: of somebody in the middle, or of a server after a restart."""
    return server_context(other_certificate, other_certificate.with_suffix(".key"))
