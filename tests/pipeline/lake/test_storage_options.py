"""Options for object stores: read, hidden, and told to Hadoop."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import pytest

from holdfast.pipeline.lake.location import locate
from holdfast.pipeline.lake.object_store import store_failure
from holdfast.pipeline.lake.storage_options import (
    hadoop_settings,
    is_secret,
    parse_options,
    read_options,
    storage_options,
)
from holdfast.pipeline.spark.session import REDACTED
from holdfast.rules.errors import BadInput, JobFailed, Unreachable

SECRETS = (
    *("aws_secret_access_key", "AWS_SESSION_TOKEN", "azure_storage_account_key", "sas_token"),
    *("google_service_account_key", "azure_client_secret", "azure_storage_sas_key", "password"),
)
OPEN = (
    *("aws_access_key_id", "aws_region", "aws_endpoint", "azure_client_id", "aws_profile"),
    *("aws_web_identity_token_file", "google_service_account", "aws_sse_kms_key_id"),
)


def test_P10_options_come_from_a_file_of_lines(tmp_path: Path) -> None:
    path = tmp_path / "options"
    path.write_text("# the plant's bucket\n\nAWS_REGION = eu-west-1\naws_secret_access_key=a=b#c\n")
    assert read_options(path) == {"aws_region": "eu-west-1", "aws_secret_access_key": "a=b#c"}
    # Names that are not variables of the environment are left as they are.
    assert storage_options({"fs.defaultFS": "hdfs://a"}) == {"fs.defaultFS": "hdfs://a"}
    with pytest.raises(BadInput, match="No such file"):
        read_options(tmp_path / "missing")
    path.write_bytes(b"\xff")
    with pytest.raises(BadInput, match="UTF-8"):
        read_options(path)
    for bad in ("hunter2", "=hunter2"):
        with pytest.raises(BadInput) as told:
            parse_options([bad], "--option")
        assert "hunter2" not in told.value.message


def test_P11_no_secret_of_the_options_is_shown() -> None:
    assert [name for name in (*SECRETS, *OPEN) if is_secret(name)] == list(SECRETS)
    options = storage_options({name: f"value-of-{name}" for name in (*SECRETS, *OPEN)})
    again = pickle.loads(pickle.dumps(options))
    for shown in (repr(options), str(options), f"{again}", repr([again])):
        assert "aws_region" in shown
        assert "value-of" not in shown
    said = OSError("GET https://x/?sig=value-of-sas_token in 1 s, after 3 retries, timed out")
    told = store_failure(said, "abfss://box/lake", options)
    assert isinstance(told, Unreachable)
    assert "value-of" not in told.message
    assert "sig=***" in told.message
    odd = store_failure(OSError("\x1b[31m↳\x1b[0m something\n   else"), "s3://a", options)
    assert isinstance(odd, JobFailed)
    assert odd.message.endswith("something, else")


def test_P11_spark_hides_every_secret_that_hadoop_is_told() -> None:
    given = storage_options({name: f"hidden {name}" for name in SECRETS})
    places = ("s3://b/l", "abfss://box@us.dfs.core.windows.net/l", "gs://b/l")
    alone = [storage_options({name: value}) for name, value in given.items()]
    client = {"client_id": "i", "client_secret": "hidden", "tenant_id": "t"}
    told = [
        (name, value)
        for options in (given, storage_options(client), *alone)
        for place in places
        for name, value in hadoop_settings(locate(place, here="/"), options).items()
        if "hidden" in value
    ]
    assert len(told) > 6
    assert [name for name, _ in told if not re.search(REDACTED, name)] == []


def test_P10_hadoop_gets_the_same_options_for_this_bucket_only() -> None:
    s3 = locate("s3://b.ucket/lake", here="/")
    given = {
        "aws_access_key_id": "AKIA",
        "AWS_SECRET_ACCESS_KEY": "s",
        "aws_session_token": "t",
        "aws_endpoint": "http://minio:9000",
        "region": "eu-west-1",
    }
    assert hadoop_settings(s3, storage_options(given)) == {
        "fs.s3a.bucket.b.ucket.access.key": "AKIA",
        "fs.s3a.bucket.b.ucket.secret.key": "s",
        "fs.s3a.bucket.b.ucket.session.token": "t",
        "fs.s3a.bucket.b.ucket.aws.credentials.provider": (
            "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider"
        ),
        "fs.s3a.bucket.b.ucket.endpoint": "http://minio:9000",
        "fs.s3a.bucket.b.ucket.endpoint.region": "eu-west-1",
        "fs.s3a.bucket.b.ucket.path.style.access": "true",
        "fs.s3a.bucket.b.ucket.connection.ssl.enabled": "false",
    }
    assert hadoop_settings(s3, storage_options(None)) == {}
    host = "us.dfs.core.windows.net"
    azure = locate(f"abfss://box@{host}/lake", here="/")
    keyed = storage_options({"azure_storage_account_key": "k"})
    assert hadoop_settings(azure, keyed) == {f"fs.azure.account.key.{host}": "k"}
    signed = hadoop_settings(azure, storage_options({"sas_token": "s"}))
    assert signed[f"fs.azure.sas.fixed.token.{host}"] == "s"
    client = {"azure_client_id": "i", "azure_client_secret": "s", "azure_tenant_id": "t"}
    assert hadoop_settings(azure, storage_options(client))[
        f"fs.azure.account.oauth2.client.endpoint.{host}"
    ].endswith("/t/oauth2/token")
    google = storage_options({"google_service_account": "/etc/key.json"})
    assert "/etc/key.json" in hadoop_settings(locate("gs://b/l", here="/"), google).values()
    assert hadoop_settings(locate("/srv/lake", here="/"), storage_options(given)) == {}
