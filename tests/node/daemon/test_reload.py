"""Changed settings that take effect while the daemon runs."""

from __future__ import annotations

import shutil
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.node.daemon.upkeep import NodeUpkeep
from holdfast.node.library.node import Node
from holdfast.node.settings import Settings, load
from holdfast.node.upkeep.disk import DiskWatch
from holdfast.node.upkeep.sweep import Ttl
from holdfast.rules.limits import DAY_MS, RETENTION_FOREVER_MS
from holdfast.rules.outbox import Policy
from holdfast.transport.tls import certificate_digest, digest_of, make_certificate
from support.daemon import UpInThread, ask, make_home, running


class Config:
    """A file with settings, as an operator edits it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "holdfast.toml"
        self.write("")

    def write(self, text: str) -> None:
        self.path.write_text(text)

    def read(self, **flags: Any) -> Settings:
        return load({"HOLDFAST_CONFIG": str(self.path)}, flags)


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config(tmp_path)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return make_home(tmp_path / "home")


def reload(up: UpInThread) -> Any:
    return ask(up.unix, "POST", "/v1/reload")


def test_U4_changed_settings_take_effect_and_the_answer_names_them(
    home: Path, config: Config
) -> None:
    with running(home, config.read(), load=config.read) as up:
        api = up.daemon.api
        assert reload(up).json == {"changed": [], "restart": []}
        config.write(
            """
            disk_limit = "20 GiB"
            tcp = "127.0.0.1:0"
            hook_message = ["true"]
            hook_disk = ["false"]
            hook_environment = ["WANTED"]
            [outbox]
            policy = "halt"
            max_age_hours = 3
            """
        )
        assert reload(up).json == {
            "changed": ["disk_limit", "hook_disk", "hook_environment", "hook_message", "outbox"],
            "restart": ["tcp"],
        }
        assert api.disk is not None
        assert api.disk.limit_bytes == 20 * 1024**3
        assert api.settings.outbox.policy is Policy.HALT
        assert api.hooks is not None
        assert api.hooks.passed_on == ("WANTED",)
        assert api.event_hooks is not None
        assert api.event_hooks.commands["disk"] == ["false"]
        assert len(up.addresses) == 1, "it still listens where it did"
        assert reload(up).json == {"changed": [], "restart": ["tcp"]}


@pytest.mark.parametrize(
    "text",
    ["nonsense = 1", "disk_limit = 'much'", "hook_disk = ['']", "listen = ['x']", "= broken"],
)
def test_U4_settings_that_are_no_good_change_nothing(home: Path, config: Config, text: str) -> None:
    config.write('disk_limit = "1 GiB"')
    with running(home, config.read(), load=config.read) as up:
        before = up.daemon.api.settings
        config.write(f'hook_message = ["true"]\n{text}')
        answer = reload(up)
        assert (answer.status, answer.json["error"]["code"]) == (400, "bad_input")
        assert up.daemon.api.settings is before


def test_U4_a_renewed_certificate_is_shown_to_new_connections(
    home: Path, config: Config, tmp_path: Path
) -> None:
    (tmp_path / "certs").mkdir()
    old, key = make_certificate(tmp_path / "certs")
    settings = f"""
        listen = "127.0.0.1:0"
        tls_cert = "{old}"
        tls_key = "{key}"
        """
    config.write(settings)
    with running(home, config.read(), load=config.read) as up:
        assert shown(up) == up.daemon.api.certificate == certificate_digest(old)
        (tmp_path / "new").mkdir()
        new, new_key = make_certificate(tmp_path / "new")
        shutil.copy(new, old)  # the key does not fit yet
        answer = reload(up)
        assert answer.status == 500
        assert shown(up) == up.daemon.api.certificate != certificate_digest(new)
        shutil.copy(new_key, key)
        assert reload(up).json == {"changed": ["tls_cert"], "restart": []}
        assert shown(up) == up.daemon.api.certificate == certificate_digest(new)


def shown(up: UpInThread) -> bytes:
    """The digest of the certificate that a new connection gets."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    host, _, port = up.tls.removeprefix("https://").rpartition(":")
    with socket.create_connection((host, int(port))) as plain, context.wrap_socket(plain) as tls:
        der = tls.getpeercert(binary_form=True)
    assert der is not None
    return digest_of(der)


def test_U4_a_daemon_without_a_file_says_that_it_cannot_reload(home: Path) -> None:
    with running(home) as up:
        assert reload(up).json["error"]["code"] == "bad_input"


def test_S17_a_running_daemon_sweeps_by_the_retention_that_was_read_last(
    home: Path, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Callable[[], Ttl]] = []

    def upkeep(node: Node, disk: DiskWatch, *, ttl: Callable[[], Ttl], **others: Any) -> NodeUpkeep:
        asked.append(ttl)
        return NodeUpkeep(node, disk, ttl=ttl, **others)

    monkeypatch.setattr("holdfast.node.daemon.daemon.NodeUpkeep", upkeep)
    config.write('[retention]\nlog = "30d"')
    with running(home, config.read(), load=config.read) as up:
        assert asked[0]().log_ms == 30 * DAY_MS
        config.write('[retention]\nlog = "1d"')
        assert ask(up.unix, "POST", "/v1/reload").json["error"]["code"] == "retention_below_floor"
        assert asked[0]().log_ms == 30 * DAY_MS
        config.write('[retention]\nlog = "forever"')
        assert reload(up).json == {"changed": ["retention"], "restart": []}
        assert asked[0]().log_ms == RETENTION_FOREVER_MS
