"""`holdfast broker`: a real process, and looking after it while it runs and when it does not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

PATIENCE_S = 60


def holdfast(*words: str, **env: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", *words],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env={**os.environ, **env},
    )
    return done.returncode, done.stdout, done.stderr


@contextmanager
def serving(store: Path, *words: str) -> Iterator[dict[str, Any]]:
    command = [sys.executable, "-m", "holdfast", "broker", "serve", "--json", f"--store={store}"]
    process = subprocess.Popen(
        [*command, "--tcp=127.0.0.1:0", *words], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        yield json.loads(process.stdout.readline())
        process.send_signal(signal.SIGTERM)
        said = [json.loads(line)["event"] for line in process.stdout]
        assert process.wait(PATIENCE_S) == 0
        assert said == ["stopping", "stopped"]
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_U2_a_broker_is_served_looked_after_and_ended(tmp_path: Path) -> None:
    store = f"--store={tmp_path / 'b'}"
    with serving(tmp_path / "b", "--name=relay", "--dedupe=permanent") as ready:
        assert (ready["event"], ready["name"], ready["database"]) == ("ready", "relay", "sqlite")
        assert ready["card"].startswith("relay:ed25519:")
        code, out, _ = holdfast("broker", "status", store, "--json")
        told = json.loads(out)
        assert (code, told["card"], told["pid"]) == (0, ready["card"], ready["pid"])
        assert (told["dedupe_mode"], told["counts"]["meshes"]) == ("permanent", 0)
        code, out, _ = holdfast("broker", "sweep", store, "--json")
        assert (code, json.loads(out)["messages"]) == (0, 0)
        code, out, _ = holdfast("broker", "sweep", store, "--dry-run", "--json")
        tried = json.loads(out)
        assert (code, tried["messages"], tried["dry_run"], tried["at_least"]) == (0, 0, True, [])
        assert holdfast("broker", "orphans", store, "--json")[:2] == (0, "[]\n")
        assert holdfast("broker", "orphans", store, "--repair", "--json")[:2] == (0, "[]\n")
        code, out, _ = holdfast("broker", "doctor", store, "--json")
        looked_at = {check["name"]: check["status"] for check in json.loads(out)}
        assert looked_at == dict.fromkeys(("schema", "tables", "orphans", "clock", "key"), "ok")
        code, _, err = holdfast("broker", "doctor", store, "--rollback-schema=1", "--json")
        assert (code, json.loads(err)["error"]["code"]) == (5, "already_exists"), "it is in use"
        assert holdfast("broker", "new-epoch", store, "--json")[:2] == (0, "[]\n")
        code, _, err = holdfast("broker", "serve", store, "--tcp=127.0.0.1:0", "--json")
        assert (code, json.loads(err)["error"]["code"]) == (5, "already_exists")
    code, out, _ = holdfast("broker", "status", store, "--json")
    assert (code, json.loads(out)["pid"], json.loads(out)["card"]) == (0, None, ready["card"])
    assert holdfast("broker", "orphans", store)[0] == 0
    code, _, err = holdfast("broker", "sweep", store, "--dry-run")
    assert (code, "nothing was changed" in err) == (0, True)
    (tmp_path / "b" / "identity.key").chmod(0o644)
    code, out, err = holdfast("broker", "doctor", store, "--json")
    wrong = [check for check in json.loads(out) if check["status"] == "fail"]
    assert ([check["name"] for check in wrong], code != 0) == (["key"], True)
    assert "chmod 600" in wrong[0]["fix"]
    code, out, _ = holdfast("broker", "doctor", store, "--rollback-schema=1", "--json")
    done = json.loads(out)
    assert (code, done["schema"], done["undone"][-1]) == (0, 1, 2)
    assert Path(done["kept"]).exists()
    assert holdfast("broker", "doctor", store, "--rollback-schema=0")[0] == 2
    assert holdfast("broker", "status", store)[0] == 0, "it is brought up to date again"


def test_U2_a_broker_that_cannot_be_says_why(tmp_path: Path) -> None:
    store = f"--store={tmp_path / 'b'}"
    for words, code, named in (
        (("serve", store, "--dedupe=2"), 1, "feature_param_below_floor"),
        (("serve", store, "--tcp=0.0.0.0:1"), 2, "bad_input"),
        (("serve", store, "--registration=token"), 2, "bad_input"),
        (("serve",), 2, "bad_input"),
        (("status", store), 4, "no_home"),
    ):
        found, _, err = holdfast("broker", *words, "--json", HOLDFAST_BROKER_STORE="")
        assert (found, json.loads(err.splitlines()[-1])["error"]["code"]) == (code, named), words
    assert not (tmp_path / "b").exists()


def test_D1_a_dsn_is_never_printed(tmp_path: Path) -> None:
    dsn = "postgresql://someone:hunter2@127.0.0.1:1/nowhere"
    for words in ((f"--postgres={dsn}",), ()):
        code, out, err = holdfast(
            *("broker", "serve", f"--store={tmp_path / 'b'}", "--tcp=127.0.0.1:0", *words),
            HOLDFAST_BROKER_DSN=dsn,
        )
        assert code != 0
        assert "error: " in err
        assert "hunter2" not in out + err


def test_D16_a_broker_is_scraped_over_tcp_by_a_token_that_is_made_for_it(tmp_path: Path) -> None:
    store = f"--store={tmp_path / 'b'}"
    code, _, err = holdfast("token", "add", "prometheus", store)
    assert code == 2
    assert f"holdfast broker serve --store {tmp_path / 'b'}" in err
    with serving(tmp_path / "b") as ready:
        address = next(one for one in ready["listening"] if one.startswith("http"))
        code, out, err = holdfast("token", "add", "prometheus", store, "--days=30")
        assert (code, out[:3]) == (0, "hf_")
        bears = {"authorization": f"Bearer {out.strip()}"}
        with urlopen(Request(f"{address}/metrics", headers=bears)) as scraped:
            assert b"holdfast_broker_start_time_seconds" in scraped.read()
        code, out, _ = holdfast("token", "list", store, "--json")
        (told,) = json.loads(out)
        assert (told["token"], told["scope"], told["expired"]) == ("prometheus", "metrics", False)
        assert holdfast("token", "revoke", "prometheus", store)[0] == 0
        with pytest.raises(HTTPError, match="401"):
            urlopen(Request(f"{address}/metrics", headers=bears))
    assert holdfast("token", "add", "x", store, "--reads=team")[0] == 2
