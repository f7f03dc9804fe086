"""Clients that know nothing of us but `/openapi.json`: one made by a generator, one that tries odd
arguments on every route.
"""

from __future__ import annotations

import importlib
import io
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis.core.failures import FailureGroup
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from holdfast.node.calls.all import CALLS
from holdfast.node.http.app import node_routes
from holdfast.node.settings import Settings
from support.daemon import UpInThread, ask, make_home, running

NAME = "made_client"
GENERATOR = Path(sys.executable).parent / "openapi-python-client"
CONFIG = {
    "project_name_override": NAME,
    "package_name_override": NAME,
    "post_hooks": [],
}


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpInThread]:
    home = make_home(tmp_path_factory.mktemp("strange") / "home", "ana", "team")
    with running(home, Settings(tcp="127.0.0.1:0")) as started:
        yield started


@pytest.fixture(scope="module")
def token(up: UpInThread) -> str:
    return up.daemon.api.trust.add_token("own")


@pytest.fixture(scope="module")
def description(up: UpInThread) -> dict[str, Any]:
    found: dict[str, Any] = ask(up.unix, "GET", "/openapi.json").json
    return found


# --- made by a generator -------------------------------------------------------------------------


class Made:
    """A client that the generator has made, with a function for every operation."""

    def __init__(self, description: dict[str, Any], address: str, token: str) -> None:
        self.client = importlib.import_module(f"{NAME}.client").AuthenticatedClient(
            base_url=address, token=token
        )
        self.models = importlib.import_module(f"{NAME}.models")
        self.types = importlib.import_module(f"{NAME}.types")
        self._tags = {
            operation["operationId"]: operation["tags"][0].replace("-", "_")
            for path in description["paths"].values()
            for operation in path.values()
        }
        self._bodies = {
            operation["operationId"]: operation["requestBody"]["content"]["application/json"]
            for path in description["paths"].values()
            for operation in path.values()
            if "application/json" in operation.get("requestBody", {}).get("content", {})
        }
        self.called: set[str] = set()

    def __call__(self, name: str, *path: str, body: Any = None, **asked: Any) -> Any:
        """What the operation answers, as a dict where it is a document."""
        self.called.add(name)
        module = importlib.import_module(f"{NAME}.api.{self._tags[name]}.{name}")
        if isinstance(body, bytes):
            asked["body"] = self.types.File(payload=io.BytesIO(body))
        elif body is not None:
            kind = self._bodies[name]["schema"]["$ref"].rpartition("/")[2]
            asked["body"] = getattr(self.models, kind).from_dict(body)
        answer = module.sync_detailed(*path, client=self.client, **asked)
        assert answer.status_code < 300, (name, answer)
        found = answer.parsed
        if isinstance(found, self.types.File):
            return found.payload.read()
        return found.to_dict() if hasattr(found, "to_dict") else found


@pytest.fixture(scope="module")
def made(
    up: UpInThread,
    token: str,
    description: dict[str, Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Made]:
    folder = tmp_path_factory.mktemp("made")
    (folder / "openapi.json").write_text(json.dumps(description))
    (folder / "config.json").write_text(json.dumps(CONFIG))
    done = subprocess.run(
        [
            *(GENERATOR, "generate", "--meta", "none", "--path", folder / "openapi.json"),
            *("--config", folder / "config.json", "--output-path", folder / NAME),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "will not be generated" not in done.stdout, done.stdout
    sys.path.insert(0, str(folder))
    try:
        found = Made(description, up.tcp, token)
        yield found
        found.client.get_httpx_client().close()
    finally:
        sys.path.remove(str(folder))


MODEL = {"provider": "p", "name": "m", "dim": 2}


def test_U4_a_client_that_a_generator_makes_reads_and_writes_every_family(made: Made) -> None:
    first = made("state_set", "team", "a/b c", body={"value": {"n": 1}, "meta": {"why": "so"}})
    assert (first["peer"], first["duplicate"]) == ("ana", False)
    entry = made("state_entry", "team", "a/b c")
    assert entry["value"] == {"n": 1}
    made("state_set", "team", "z", body={"value": None}, if_none_match="*")
    assert [row["key"] for row in made("state_list", "team", prefix="a")["items"]] == ["a/b c"]
    page = made("state_list", "team", limit=1)
    rest = made("state_list", "team", after=page["next"])
    assert [row["key"] for row in rest["items"]] == ["z"]
    assert len(made("state_as_of", "team", lamport=1)["items"]) == 1
    made("state_delete", "team", "z")

    made("memories_set", "team", "tea", body={"value": 1, "tags": ["t"]})
    assert made("memories_recall", "team", "tea", scope="all")["items"][0]["tags"] == ["t"]
    assert len(made("memories_list", "team")["items"]) == 1
    assert len(made("memories_as_of", "team", lamport=99)["items"]) == 1
    made("memories_forget", "team", "tea")

    made("vectors_store", "team", "v", body={"embedding": [1, 0], "model": MODEL, "content": "c"})
    hits = made("vectors_search", "team", body={"query": [1, 0], "model": MODEL})
    assert [hit["content"] for hit in hits["items"]] == ["c"]
    assert made("vectors_models", "team")["items"][0]["dim"] == 2
    made("vectors_delete", "team", "v", model="p:m:unknown:2:float32")

    made("files_share", "team", "a/b.txt", body=b"content")
    assert made("files_read", "team", "a/b.txt") == b"content"
    assert made("files_last_known", "team", "a/b.txt") == b"content"
    assert made("files_info", "team", "a/b.txt")["size"] == 7
    assert len(made("files_list", "team")["items"]) == 1
    made("files_delete", "team", "a/b.txt")

    task = made("tasks_create", "team", body={"title": "paint"})["task"]
    for turn in ("claim", "release", "claim", "complete"):
        made(f"tasks_{turn}", "team", task)
    other = made("tasks_create", "team", body={"title": "sweep"})["task"]
    made("tasks_cancel", "team", other)
    assert made("tasks_get", "team", task)["status"] == "completed"
    assert len(made("tasks_list", "team", status="cancelled")["items"]) == 1
    assert [row["turn"] for row in made("tasks_events", "team", other)["items"]] == [
        *("create", "cancel")
    ]

    made("facts_append", "team", body={"subject": "s", "predicate": "is", "object": [1]})
    made("peerpresences_set", "team", body={"status": "here"})
    assert made("peerpresences_list", "team")["items"][0]["status"] == "here"
    made("post_meshes_mesh_audit_stream", "team", "log", body={"payload": {"did": "it"}})
    assert len(made("get_meshes_mesh_audit_stream", "team", "log")["events"]) == 1
    made("put_meshes_mesh_telemetry_kind_key", "team", "heart", "a", body={"value": 1})
    assert made("get_meshes_mesh_telemetry_kind_key", "team", "heart", "a")["value"] == 1

    made("node_create_mesh", body={"slug": "other"})
    assert [row["slug"] for row in made("node_meshes")["items"]] == ["other", "team"]
    assert made("mesh_info", "team")["slug"] == "team"
    assert made("mesh_clock", "team")["lamport"] > 0
    assert made("mesh_counts", "team")["counts"]["state"] == 1
    made("mesh_peers", "team")
    assert made("mesh_restamp", "team", body={"past": 1})["state"] == 1
    made("node_deletion_plan", "other")
    made("node_delete_mesh", "other")
    made("node_conflicts")
    made("node_take_warnings")
    assert len(made("log_range", start=1, limit=2)["items"]) == 2
    assert len(made("log_tail", count=3)["items"]) == 3
    made("state_history", "team", "k")
    made("memories_history", "team", "k")
    made("log_place_at", at_ms=0)
    made("post_consumers", body={"consumer": "reader"})
    assert len(made("log_fetch", body={"consumer": "reader", "limit": 2})["items"]) == 2
    made("get_inbox")
    made("get_outbox")
    # What is about the whole node needs other nodes, and is proved in other suites.
    others = {"Sharing", "Node"}
    declared = {call.name.replace(".", "_") for call in CALLS if call.face.__name__ not in others}
    assert declared - made.called == set()


# --- odd arguments -------------------------------------------------------------------------------

UNENDING = frozenset(route.path for route in node_routes() if route.kind == "stream")
DELETES = "DELETE /v1/meshes/{mesh}"
"""It deletes no mesh that other calls are about."""
WAITING = ("wait_ms", "timeout_ms")
"""Nothing is learnt by waiting for it."""
CHECKS = [
    *(status_code_conformance, content_type_conformance, response_schema_conformance),
]
EXAMPLES = 4
PATIENCE_S = 30


def test_R4_no_arguments_get_an_answer_that_the_description_does_not_name(
    up: UpInThread, token: str, description: dict[str, Any]
) -> None:
    """Every operation, with arguments that fit and with some that do not."""
    up.daemon.api.node.mesh("team", create=True)
    schema = schemathesis.openapi.from_dict(description)
    odd: list[str] = []
    tried = 0
    with requests.Session() as session:
        for found in schema.get_all_operations():
            operation: Any = found.ok()  # type: ignore[union-attr]
            if operation.path in UNENDING:
                continue
            for mode in schemathesis.GenerationMode:
                tried += 1
                try:
                    _try(operation, mode, up.tcp, token, session)
                except Unsatisfiable:
                    continue  # there is nothing that does not fit
                except (Exception, FailureGroup) as error:
                    told = getattr(error, "exceptions", [error])
                    odd += [f"{operation.label} {mode.value}: {one}" for one in told]
    assert odd == [], "\n".join(odd)
    assert tried > len(description["paths"])


def _try(operation: Any, mode: Any, address: str, token: str, session: Any) -> None:
    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(mode))
    def one(case: Any) -> None:
        if "mesh" in (case.path_parameters or {}) and operation.label != DELETES:
            case.path_parameters["mesh"] = "team"
        for where in (case.query, case.body):
            for name in WAITING if isinstance(where, dict) else ():
                where.pop(name, None)
        headers = {"authorization": f"Bearer {token}"}
        answer = case.call(base_url=address, session=session, headers=headers, timeout=PATIENCE_S)
        assert b'"code":"internal"' not in answer.content, "a fault of ours"
        case.validate_response(answer, checks=CHECKS)

    one()
