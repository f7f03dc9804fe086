"""How an object store is reached: its endpoint, its region, and the credentials.

The names are those of deltalake, which reads and writes the lake: `aws_endpoint`, `aws_region`,
`aws_access_key_id`, `azure_storage_account_key`, `google_service_account` and so on. What is not
given is taken from the environment of each process, so a machine's own role works without options.

Values may be secrets. They are in no `repr`, no message and no file that Holdfast writes. They
travel inside the tasks that Spark sends to its executors, and for a native scan they are set in
Hadoop's configuration inside the running JVM, never on a command line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from holdfast.pipeline.lake.location import Location
from holdfast.rules.errors import BadInput

_SECRET: Final = re.compile(r"secret|password|token|sas|credential|key$|authorization")
_NO_SECRET: Final = re.compile(r"_(file|path|uri|url|endpoint)$")
_PREFIXES: Final = ("aws_", "azure_storage_", "azure_", "google_")
_HIDDEN_CHARS_MIN: Final = 4
"""Shorter values are not searched for in messages: they would hide parts of ordinary words."""
_S3A: Final = {
    "access_key_id": "access.key",
    "secret_access_key": "secret.key",
    "session_token": "session.token",
    "token": "session.token",
    "endpoint": "endpoint",
    "endpoint_url": "endpoint",
    "region": "endpoint.region",
    "default_region": "endpoint.region",
}
_S3A_TEMPORARY: Final = "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider"
_ABFS_OAUTH: Final = "org.apache.hadoop.fs.azurebfs.oauth2.ClientCredsTokenProvider"


class StorageOptions(dict[str, str]):
    """Options by name. Shows its names, never its values."""

    def __repr__(self) -> str:
        return f"StorageOptions({', '.join(sorted(self))})"

    __str__ = __repr__

    @property
    def secrets(self) -> list[str]:
        """The values that nobody may see."""
        return [value for name, value in self.items() if is_secret(name)]

    def without_secrets(self, text: str) -> str:
        """A message of a library, with the secrets in it replaced by a sign."""
        for value in sorted(self.secrets, key=len, reverse=True):
            if len(value) >= _HIDDEN_CHARS_MIN:
                text = text.replace(value, "***")
        return text

    @property
    def account(self) -> str:
        """The storage account of Azure."""
        return self._plain().get("account_name", "")

    def _plain(self) -> dict[str, str]:
        """Without the prefixes that deltalake takes and needs not."""
        return {_unprefixed(name): value for name, value in self.items()}


def storage_options(given: Mapping[str, str] | None) -> StorageOptions:
    """Options as a caller hands them in. Names in capitals, as variables of the environment have
    them, mean the same as in small letters.
    """
    made = StorageOptions()
    for name, value in (given or {}).items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise BadInput("storage options are text by name")
        made[name.lower() if name.isupper() else name] = value
    return made


def is_secret(name: str) -> bool:
    """Whether the value of an option must not be shown."""
    return bool(_SECRET.search(name.lower())) and not _NO_SECRET.search(name.lower())


def parse_options(words: Iterable[str], what: str) -> StorageOptions:
    """Options written as `KEY=VALUE`. The error names the word's key only."""
    found: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not (name.strip() and equals):
            shown = name.strip() if equals else "a word without ="
            raise BadInput(f"{what}: {shown!r} is no option", hint="write it as KEY=VALUE")
        found[name.strip()] = value.strip()
    return storage_options(found)


def read_options(path: Path) -> StorageOptions:
    """The options in a file: `KEY=VALUE` on each line, empty lines and those with # are skipped."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise BadInput(f"{path} is not UTF-8", hint="write KEY=VALUE on each line") from None
    except OSError as error:
        raise BadInput(f"the options in {path} cannot be read: {error.strerror}") from None
    lines = (line.strip() for line in text.splitlines())
    return parse_options((line for line in lines if line and line[0] != "#"), str(path))


# --- the same for Hadoop's file systems ----------------------------------------------------------


def hadoop_settings(location: Location, options: StorageOptions) -> dict[str, str]:
    """The settings by which Spark's JVM reaches the place with these options: for this bucket or
    account only, so that two lakes do not share credentials.
    """
    plain = options._plain()
    if location.scheme == "s3a":
        return _s3a(location.bucket, plain)
    if location.scheme in ("abfs", "abfss"):
        return _abfs(location.spark.partition("@")[2].partition("/")[0], plain)
    if location.scheme == "gs" and (path := plain.get("service_account")):
        return {
            "fs.gs.auth.type": "SERVICE_ACCOUNT_JSON_KEYFILE",
            "fs.gs.auth.service.account.json.keyfile": path,
        }
    return {}


def _s3a(bucket: str, plain: Mapping[str, str]) -> dict[str, str]:
    found = {hadoop: plain[name] for name, hadoop in _S3A.items() if name in plain}
    if "session.token" in found:
        found["aws.credentials.provider"] = _S3A_TEMPORARY
    if "endpoint" in found:
        virtual = plain.get("virtual_hosted_style_request", "false").lower()
        found["path.style.access"] = "false" if virtual in ("true", "1") else "true"
        found["connection.ssl.enabled"] = str(not found["endpoint"].startswith("http:")).lower()
    return {f"fs.s3a.bucket.{bucket}.{name}": value for name, value in found.items()}


def _abfs(host: str, plain: Mapping[str, str]) -> dict[str, str]:
    if key := plain.get("account_key", plain.get("access_key", "")):
        return {f"fs.azure.account.key.{host}": key}
    if sas := plain.get("sas_token", plain.get("sas_key", "")):
        return {
            f"fs.azure.account.auth.type.{host}": "SAS",
            f"fs.azure.sas.fixed.token.{host}": sas,
        }
    if {"client_id", "client_secret", "tenant_id"} <= plain.keys():
        tenant = plain["tenant_id"]
        oauth = f"https://login.microsoftonline.com/{tenant}/oauth2/token"
        return {
            f"fs.azure.account.auth.type.{host}": "OAuth",
            f"fs.azure.account.oauth.provider.type.{host}": _ABFS_OAUTH,
            f"fs.azure.account.oauth2.client.id.{host}": plain["client_id"],
            f"fs.azure.account.oauth2.client.secret.{host}": plain["client_secret"],
            f"fs.azure.account.oauth2.client.endpoint.{host}": oauth,
        }
    return {}


def _unprefixed(name: str) -> str:
    for prefix in _PREFIXES:
        if name.startswith(prefix):
            return name.removeprefix(prefix)
    return name
