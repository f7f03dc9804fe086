"""How places are named: one map for Spark, deltalake and Arrow."""

from __future__ import annotations

import pytest

from holdfast.pipeline.lake.location import Location, locate
from holdfast.rules.errors import BadPath, UnknownScheme


def _at(text: str, **how: str | bool) -> Location:
    return locate(text, here="/srv/data", **how)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "root", "spark"),
    [
        ("s3://bucket/lake", "s3://bucket/lake", "s3a://bucket/lake"),
        ("s3a://bucket/lake/", "s3://bucket/lake", "s3a://bucket/lake"),
        ("S3A://bucket//a/lake", "s3://bucket/a/lake", "s3a://bucket/a/lake"),
        ("s3://bucket", "s3://bucket", "s3a://bucket"),
        ("gs://bucket/lake", "gs://bucket/lake", "gs://bucket/lake"),
        ("gcs://bucket/lake", "gs://bucket/lake", "gs://bucket/lake"),
        (
            "abfss://box@us.dfs.core.windows.net/lake",
            "abfss://box@us.dfs.core.windows.net/lake",
            "abfss://box@us.dfs.core.windows.net/lake",
        ),
        ("az://box/lake", "az://box/lake", ""),
        ("abfs://box/lake", "abfs://box/lake", ""),
        ("hdfs://name:8020/lake", "hdfs://name:8020/lake", "hdfs://name:8020/lake"),
        ("hdfs:///lake", "hdfs:///lake", "hdfs:///lake"),
        ("lake", "/srv/data/lake", "file:///srv/data/lake"),
        ("../lake/", "/srv/lake", "file:///srv/lake"),
        ("/a/./lake", "/a/lake", "file:///a/lake"),
        ("//a/lake", "/a/lake", "file:///a/lake"),
        ("file:///a/lake/", "/a/lake", "file:///a/lake"),
        ("file:/a/lake", "/a/lake", "file:///a/lake"),
        ("file://localhost/a/my%20lake", "/a/my lake", "file:///a/my lake"),
        ("odd:name", "/srv/data/odd:name", "file:///srv/data/odd:name"),
    ],
)
def test_P10_a_place_has_one_name_for_each_library(text: str, root: str, spark: str) -> None:
    found = _at(text)
    assert (found.root, found.spark) == (root, spark)
    assert found.on_disk == root.startswith("/")
    # A root names itself: tables and tasks are given roots, not what the user wrote.
    assert locate(root, here="/") == found


def test_P10_azure_needs_its_account_only_for_spark() -> None:
    found = _at("az://box/lake", account="us")
    assert found.spark == "abfss://box@us.dfs.core.windows.net/lake"
    assert (found.scheme, found.store, found.path) == ("abfss", "az://box/", "lake")


@pytest.mark.parametrize(
    ("text", "root", "spark"),
    [
        ("dbfs:/lake", "/dbfs/lake", "dbfs:/lake"),
        ("dbfs:///lake", "/dbfs/lake", "dbfs:/lake"),
        ("/dbfs/lake", "/dbfs/lake", "dbfs:/lake"),
        (
            "dbfs:/Volumes/main/raw/v/lake",
            "/Volumes/main/raw/v/lake",
            "dbfs:/Volumes/main/raw/v/lake",
        ),
        ("/Volumes/main/raw/v/lake", "/Volumes/main/raw/v/lake", "dbfs:/Volumes/main/raw/v/lake"),
        ("/local/lake", "/local/lake", "file:///local/lake"),
    ],
)
def test_P10_databricks_has_mounts_for_python_and_uris_for_spark(
    text: str, root: str, spark: str
) -> None:
    found = _at(text, databricks=True)
    assert (found.root, found.spark) == (root, spark)


def test_P10_the_file_system_of_databricks_is_no_folder_elsewhere() -> None:
    for text in ("dbfs:/lake", "dbfs:///lake", "dbfs:/Volumes/a/b/c", "dbfs:lake"):
        with pytest.raises(UnknownScheme, match="Databricks"):
            _at(text)
    # The disks of a Mac are mounted there.
    assert _at("/Volumes/disk/lake").spark == "file:///Volumes/disk/lake"


@pytest.mark.parametrize("text", ["ftp://host/lake", "https://host/lake", "s4:/lake", "C:/lake"])
def test_P10_an_unknown_scheme_is_named_with_those_that_are_known(text: str) -> None:
    with pytest.raises(UnknownScheme, match=text.partition(":")[0].lower()) as told:
        _at(text)
    assert "s3://" in told.value.hint


@pytest.mark.parametrize(
    "text",
    [
        *("s3:/bucket/lake", "s3:bucket", "s3:///lake", "gs://", "file://host/lake", "file:lake"),
        *("s3://bucket/a b", "s3://bucket/a%20b", "s3://bucket/{a}", "s3://bucket/../b"),
        *("s3://bucket/a#b", "s3://bucket/a*", "", "s3://bucket/a\0b"),
    ],
)
def test_P10_a_place_that_libraries_would_misread_is_refused(text: str) -> None:
    with pytest.raises(BadPath):
        _at(text)


@pytest.mark.parametrize(
    "text", ["s3://AKIA:hunter2@bucket/lake", "abfss://box@us/lake?sig=hunter2"]
)
def test_P10_a_place_with_credentials_is_refused_without_repeating_them(text: str) -> None:
    with pytest.raises(BadPath, match="credentials") as told:
        _at(text)
    assert "hunter2" not in f"{told.value.message}{told.value.hint}"
