"""Secrets that come in files: credentials of systemd, secrets of containers."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.apps.cli.inputs import secret_of
from holdfast.rules.errors import BadInput, OverLimit
from holdfast.rules.limits import TOKEN_FILE_BYTES_MAX
from support.cli import Cli

NAME = "HOLDFAST_BROKER_DSN"


def test_U7_a_secret_is_in_the_environment_or_in_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert secret_of(NAME) is None
    monkeypatch.setenv(NAME, "from the environment")
    monkeypatch.setenv(f"{NAME}_FILE", "")
    assert secret_of(NAME) == "from the environment"
    file = tmp_path / "dsn"
    file.write_text("from a file\n")
    monkeypatch.setenv(f"{NAME}_FILE", str(file))
    with pytest.raises(BadInput, match="two answers"):
        secret_of(NAME)
    monkeypatch.delenv(NAME)
    assert secret_of(NAME) == "from a file"
    file.write_bytes(b"x" * TOKEN_FILE_BYTES_MAX)
    assert secret_of(NAME) == "x" * TOKEN_FILE_BYTES_MAX


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"", BadInput),
        (b"one\ntwo\n", BadInput),
        (b"\xff", BadInput),
        (b"x" * (TOKEN_FILE_BYTES_MAX + 1), OverLimit),
    ],
)
def test_U7_a_file_without_one_line_is_refused_and_its_content_not_shown(
    content: bytes, error: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "dsn"
    file.write_bytes(content)
    monkeypatch.setenv(f"{NAME}_FILE", str(file))
    with pytest.raises(error) as refused:
        secret_of(NAME)
    assert "two" not in str(refused.value)


def test_U7_a_broker_takes_the_address_of_its_database_from_a_file(
    cli: Cli, tmp_path: Path
) -> None:
    file = tmp_path / "dsn"
    words = ("broker", "serve", "--store", str(tmp_path / "hub"))
    missing = cli(*words, "--json", env={f"{NAME}_FILE": str(file)}, code=1).error
    assert missing["message"].startswith(str(file))
    file.write_text("postgresql://user:secret@127.0.0.1:1/none")
    tried = cli(*words, "--json", env={f"{NAME}_FILE": str(file)}, code=None)
    assert tried.code != 0
    assert "secret" not in tried.err
    assert "PostgreSQL does not answer" in tried.err
