"""Lineage: what a run tells a catalog, and that a catalog never stops a run."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import attr
import pytest
from openlineage.client import event_v2, facet_v2
from openlineage.client.serde import Serde

from holdfast.pipeline.fold.silver import FoldReport, TableFold
from holdfast.pipeline.ingest.ingest import IngestedLog, IngestReport
from holdfast.pipeline.ingest.plan import UnreadableLog
from holdfast.pipeline.jobs.run import RunReport
from holdfast.pipeline.jobs.run_lineage import followed_run
from holdfast.pipeline.jobs.sources import LogSource, remember
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.lineage.events import named
from holdfast.pipeline.lineage.outlet import Lineage, lineage_of, lineage_to
from holdfast.rules.errors import BadInput, Unreachable

FACETS = {
    "schema": facet_v2.schema_dataset.SchemaDatasetFacet,
    "version": facet_v2.dataset_version_dataset.DatasetVersionDatasetFacet,
    "documentation": facet_v2.documentation_dataset.DocumentationDatasetFacet,
    "inputStatistics": facet_v2.input_statistics_input_dataset.InputStatisticsInputDatasetFacet,
    "outputStatistics": (
        facet_v2.output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet
    ),
    "errorMessage": facet_v2.error_message_run.ErrorMessageRunFacet,
    "processing_engine": facet_v2.processing_engine_run.ProcessingEngineRunFacet,
    "jobType": facet_v2.job_type_job.JobTypeJobFacet,
}


@dataclass
class Catalog:
    """A real server that keeps what it is sent."""

    status: int = 201
    got: list[tuple[str, str | None, dict[str, Any]]] = field(default_factory=list)
    url: str = ""


@pytest.fixture
def catalog() -> Iterator[Catalog]:
    kept = Catalog()

    class Answer(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            kept.got.append((self.path, self.headers.get("Authorization"), body))
            self.send_response(kept.status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *text: object) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        kept.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield kept
        server.shutdown()
        thread.join()


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    made = Lake.open(tmp_path / "lake", create=True)
    made.bronze.commit([])
    made.silver("state").commit([])
    return made


def source(lake: Lake, location: str, log: str) -> LogSource:
    one = LogSource(location=location, log=log)
    remember(lake, [one])
    return one


def done(*failures: UnreadableLog) -> RunReport:
    log = IngestedLog("plant", 1, before=0, after=7, head=7, read=7, new=5, again=2)
    folded = TableFold(name="state", changes=5, how="appended")
    fold = FoldReport(version=0, tables=[folded], seconds=0.1)
    return RunReport(IngestReport([log], failures=list(failures)), fold)


def tell(lineage: Lineage | None, lake: Lake, report: RunReport) -> list[str]:
    warned: list[str] = []
    logs = [source(lake, "https://plant:7440", "plant")]
    with followed_run(lineage, lake, logs, warn=warned.append) as told:
        told(report)
    return warned


def check(event: dict[str, Any]) -> None:
    """The client of OpenLineage, generated from its schemas, makes the same document of it."""

    def facets(given: dict[str, Any]) -> dict[str, Any]:
        return {name: facet(name, fields) for name, fields in given.items()}

    def facet(name: str, given: dict[str, Any]) -> Any:
        kind = FACETS[name]
        fields = {key: value for key, value in given.items() if not key.startswith("_")}
        known = {one.name for one in attr.fields(kind)}
        assert fields.keys() <= known, f"{name} has no {fields.keys() - known}"
        made = kind(**fields, producer=given["_producer"])
        assert made._get_schema() == given["_schemaURL"]
        return made

    def dataset(kind: Any, side: str, given: dict[str, Any]) -> Any:
        own = {"facets": facets(given["facets"]), f"{side}Facets": facets(given[f"{side}Facets"])}
        return kind(namespace=given["namespace"], name=given["name"], **own)

    made = event_v2.RunEvent(
        eventTime=event["eventTime"],
        producer=event["producer"],
        eventType=event_v2.RunState[event["eventType"]],
        run=event_v2.Run(event["run"]["runId"], facets(event["run"]["facets"])),
        job=event_v2.Job(
            namespace=event["job"]["namespace"],
            name=event["job"]["name"],
            facets=facets(event["job"]["facets"]),
        ),
        inputs=[dataset(event_v2.InputDataset, "input", one) for one in event["inputs"]],
        outputs=[dataset(event_v2.OutputDataset, "output", one) for one in event["outputs"]],
    )
    assert json.loads(Serde.to_json(made)) == without_empty(event)


def without_empty(value: Any) -> Any:
    """As the client writes documents: without fields that say nothing."""
    if isinstance(value, dict):
        return {key: without_empty(inner) for key, inner in value.items() if inner is not None}
    return [without_empty(one) for one in value] if isinstance(value, list) else value


def states(events: Sequence[dict[str, Any]]) -> list[str]:
    return [event["eventType"] for event in events]


def test_P11_a_run_tells_a_file_what_it_read_and_wrote(lake: Lake, tmp_path: Path) -> None:
    assert tell(lineage_to(str(tmp_path / "told"), {}), lake, done()) == []
    events = [json.loads(line) for line in (tmp_path / "told").read_bytes().splitlines()]
    assert states(events) == ["START", "COMPLETE"]
    for event in events:
        check(event)
    first, last = events
    assert first["run"]["runId"] == last["run"]["runId"]
    assert last["job"]["name"] == f"{lake.consumer}.run"
    (log,) = last["inputs"]
    assert (log["namespace"], log["name"]) == ("https://plant:7440", "log")
    assert log["inputFacets"]["inputStatistics"]["rowCount"] == 7
    written = {Path(one["name"]).name: one for one in last["outputs"]}
    counts = {
        name: one["outputFacets"]["outputStatistics"]["rowCount"] for name, one in written.items()
    }
    assert counts == {"bronze": 5, "sightings": 2, "state": 5}
    assert written["bronze"]["facets"]["version"]["datasetVersion"] == "0"
    columns = {one["name"]: one for one in written["state"]["facets"]["schema"]["fields"]}
    assert columns["lamport"]["type"] == "bigint"
    assert columns["lamport"]["description"].startswith("the logical time")


def test_P11_a_server_gets_the_events_where_the_standard_says(lake: Lake, catalog: Catalog) -> None:
    environment = {
        "OPENLINEAGE_URL": catalog.url,
        "OPENLINEAGE_API_KEY": "a-secret-key",
        "OPENLINEAGE_NAMESPACE": "plants",
    }
    lineage = lineage_of(environment)
    assert lineage is not None
    assert "a-secret-key" not in repr(lineage)
    assert tell(lineage, lake, done()) == []
    assert [(path, key) for path, key, _ in catalog.got] == 2 * [
        ("/api/v1/lineage", "Bearer a-secret-key")
    ]
    assert states([event for _, _, event in catalog.got]) == ["START", "COMPLETE"]
    assert catalog.got[0][2]["job"]["namespace"] == "plants"
    for _, _, event in catalog.got:
        check(event)


def test_P11_a_run_with_a_lost_log_has_failed_and_says_which(lake: Lake, catalog: Catalog) -> None:
    lost = UnreadableLog("https://office:7440", Unreachable("office does not answer"), "office")
    tell(lineage_to(f"{catalog.url}/own/path?x=1", {}), lake, done(lost))
    path, _, event = catalog.got[-1]
    assert (path, event["eventType"]) == ("/own/path?x=1", "FAIL")
    message = event["run"]["facets"]["errorMessage"]["message"]
    assert message == "office: office does not answer"
    assert event["outputs"], "what the other logs brought is in the lake all the same"
    check(event)


@pytest.mark.parametrize(
    ("raised", "state"), [(Unreachable("gone"), "FAIL"), (KeyboardInterrupt(), "ABORT")]
)
def test_P11_a_run_that_ends_early_is_told_as_such(
    raised: BaseException, state: str, lake: Lake, catalog: Catalog
) -> None:
    with pytest.raises(type(raised)), followed_run(lineage_to(catalog.url, {}), lake, []):
        raise raised
    assert states([event for _, _, event in catalog.got]) == ["START", state]


def test_P11_a_catalog_that_fails_or_is_away_stops_no_run(lake: Lake, catalog: Catalog) -> None:
    catalog.status = 500
    assert len(tell(lineage_to(catalog.url, {}), lake, done())) == 2
    away = "http://127.0.0.1:1"
    warned = tell(lineage_to(away, {"OPENLINEAGE_API_KEY": "a-secret-key"}), lake, done())
    assert len(warned) == 2
    assert "a-secret-key" not in "".join(warned)


@pytest.mark.parametrize("environment", [{}, {"OPENLINEAGE_URL": ""}])
def test_P11_without_an_address_nothing_is_told(environment: dict[str, str], lake: Lake) -> None:
    assert lineage_of(environment) is None
    off = {"OPENLINEAGE_URL": "http://127.0.0.1:1", "OPENLINEAGE_DISABLED": "true"}
    assert lineage_of(off) is None
    assert tell(None, lake, done()) == []


@pytest.mark.parametrize(
    ("target", "environment"),
    [
        ("kafka://broker:9092/lineage", {}),
        ("http://user:word@catalog:5000", {}),
        ("http://catalog:5000", {"OPENLINEAGE_API_KEY": "must-not-travel-in-the-clear"}),
    ],
)
def test_P11_a_bad_address_of_lineage_is_refused(target: str, environment: dict[str, str]) -> None:
    with pytest.raises(BadInput):
        lineage_to(target, environment)


@pytest.mark.parametrize(
    ("location", "name"),
    [
        ("/srv/lake/bronze", ("file", "/srv/lake/bronze")),
        ("file:///srv/lake/bronze", ("file", "/srv/lake/bronze")),
        ("unix:/srv/ana/api.sock", ("file", "/srv/ana/api.sock")),
        ("s3a://bucket/lake/bronze", ("s3://bucket", "lake/bronze")),
        ("gs://bucket/lake", ("gs://bucket", "lake")),
        ("abfss://box@account/lake", ("abfss://box@account", "lake")),
        ("hdfs://name:8020/lake", ("hdfs://name:8020", "lake")),
        ("broker+https://hub:7450/notes", ("broker+https://hub:7450", "notes")),
        ("https://user:word@plant:7440", ("https://plant:7440", "")),
    ],
)
def test_P11_datasets_have_the_names_that_other_tools_give_them(
    location: str, name: tuple[str, str]
) -> None:
    assert named(location) == name
