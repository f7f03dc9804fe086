"""Events of OpenLineage 2.0.2, as JSON documents: https://openlineage.io/spec/2-0-2/OpenLineage.json

An event says that a run of a job began, or how it ended, with the datasets that it read and wrote.
Facets are parts of an event, each with a schema of its own. Datasets are named as the naming rules
of OpenLineage say, so that other tools mean the same table by the same name.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from enum import StrEnum
from importlib.metadata import version
from typing import Any, Final
from urllib.parse import urlsplit

from pyspark.sql.types import StructType

from holdfast.pipeline.lake.schema import comments

PRODUCER: Final = f"urn:holdfast:{version('holdfast')}"
_SPEC: Final = "https://openlineage.io/spec"
_SCHEMA: Final = f"{_SPEC}/2-0-2/OpenLineage.json#/$defs/RunEvent"
_FACETS: Final = {
    "schema": ("1-2-0", "SchemaDatasetFacet"),
    "version": ("1-0-1", "DatasetVersionDatasetFacet"),
    "documentation": ("1-1-0", "DocumentationDatasetFacet"),
    "inputStatistics": ("1-0-0", "InputStatisticsInputDatasetFacet"),
    "outputStatistics": ("1-0-2", "OutputStatisticsOutputDatasetFacet"),
    "errorMessage": ("1-0-1", "ErrorMessageRunFacet"),
    "processing_engine": ("1-1-1", "ProcessingEngineRunFacet"),
    "jobType": ("2-0-4", "JobTypeJobFacet"),
}
"""By name of a facet: the version and the name of its schema."""
_SAME: Final = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfs": "abfss"}
"""Schemes that name the same store as another one."""

Document = dict[str, Any]


class RunState(StrEnum):
    """What an event says of a run."""

    START = "START"
    COMPLETE = "COMPLETE"
    FAIL = "FAIL"
    ABORT = "ABORT"


def run_event(
    state: RunState,
    *,
    run: str,
    job: tuple[str, str],
    at_ms: int,
    inputs: Iterable[Document] = (),
    outputs: Iterable[Document] = (),
    engine: tuple[str, str],
    problem: str | None = None,
) -> Document:
    """One event. `job`: its namespace and name; `engine`: name and version; `problem`: why it
    failed.
    """
    facets = facet("processing_engine", name=engine[0], version=engine[1])
    if problem is not None:
        facets |= facet("errorMessage", message=problem, programmingLanguage="PYTHON")
    batch = facet("jobType", processingType="BATCH", integration="HOLDFAST", jobType="JOB")
    return {
        "eventType": state.value,
        "eventTime": _time(at_ms),
        "producer": PRODUCER,
        "schemaURL": _SCHEMA,
        "run": {"runId": run, "facets": facets},
        "job": {"namespace": job[0], "name": job[1], "facets": batch},
        "inputs": list(inputs),
        "outputs": list(outputs),
    }


def log_read(location: str, rows: int | None = None) -> Document:
    """A log as an input; `rows`: how many entries were read."""
    namespace, name = named(location)
    told = {} if rows is None else facet("inputStatistics", rowCount=rows)
    return {"namespace": namespace, "name": name or "log", "facets": {}, "inputFacets": told}


def table_written(
    root: str,
    schema: StructType,
    *,
    about: str = "",
    at: int | None = None,
    rows: int | None = None,
) -> Document:
    """A table as an output; `at`: its version; `rows`: how many rows the run wrote to it."""
    namespace, name = named(root)
    described = comments(schema)
    fields = [
        {"name": f.name, "type": f.dataType.simpleString(), "description": described[f.name]}
        for f in schema.fields
    ]
    facets = facet("schema", fields=fields)
    if about:
        facets |= facet("documentation", description=about)
    if at is not None:
        facets |= facet("version", datasetVersion=str(at))
    told = {} if rows is None else facet("outputStatistics", rowCount=rows)
    return {"namespace": namespace, "name": name, "facets": facets, "outputFacets": told}


def named(location: str) -> tuple[str, str]:
    """The namespace and the name of a location: the store, and the path in it. What a location says
    about a user is left out.
    """
    if "://" not in location:
        return "file", location.removeprefix("file:").removeprefix("unix:")
    found = urlsplit(location)
    if found.scheme == "file":
        return "file", found.path
    scheme = _SAME.get(found.scheme, found.scheme)
    # An Azure address has its container before the @; everywhere else there is a user.
    host = found.netloc if scheme == "abfss" else found.netloc.rpartition("@")[2]
    return f"{scheme}://{host}", found.path.strip("/")


def facet(name: str, /, **fields: Any) -> dict[str, Document]:
    number, schema = _FACETS[name]
    url = f"{_SPEC}/facets/{number}/{schema}.json#/$defs/{schema}"
    return {name: {"_producer": PRODUCER, "_schemaURL": url, **fields}}


def _time(ms: int) -> str:
    moment = datetime.fromtimestamp(ms / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
