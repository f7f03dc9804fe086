"""Where a lake lies: one map from the ways in which a place is named to what each library needs.

    locate("s3a://bucket/lake/").root == "s3://bucket/lake"

Spark, deltalake and Arrow name the same place differently, and each has schemes that it silently
misreads: a path without a scheme is a folder for Python and whatever `fs.defaultFS` says for Spark,
and `dbfs:/x` is a relative path for Python. So a place is read once, here, and every library gets
its own name for it. `root` is the same however the place was named: two jobs that name one lake
differently meet at one lock.

This module takes values and returns values; it looks at no disk and no network.
"""

from __future__ import annotations

import posixpath
import re
from typing import Final
from urllib.parse import unquote, urlsplit

import msgspec

from holdfast.rules.errors import BadPath, UnknownScheme
from holdfast.rules.paths import check_place

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_S3: Final = ("s3", "s3a")
_GOOGLE: Final = ("gs", "gcs")
_AZURE_FULL: Final = ("abfs", "abfss")
_AZURE: Final = (*_AZURE_FULL, "az", "azure")
_HADOOP: Final = ("hdfs", "viewfs")
_STORES: Final = (*_S3, *_GOOGLE, *_AZURE, *_HADOOP)
_ON_DATABRICKS: Final = ("/dbfs/", "/Volumes/")
_BAD_IN_STORE: Final = re.compile(r"[\[\]{}*?\\%#\s]")
"""Spark reads some of them as a pattern, others begin the query of a URI or escape a byte."""


class Location(msgspec.Struct, frozen=True, kw_only=True):
    """One folder, as each library names it."""

    root: str
    """Its name here and for deltalake: an absolute path on a disk, a URI elsewhere."""
    spark: str
    """Its URI for Spark; empty if Spark cannot be given one."""
    store: str = ""
    """The URI of the bucket or host that it lies in; empty on a disk."""
    path: str
    """Its path on the disk, or inside the store, without slashes at the end."""

    @property
    def on_disk(self) -> bool:
        return not self.store

    @property
    def scheme(self) -> str:
        """The scheme under which Spark knows it."""
        return self.spark.partition(":")[0]

    @property
    def bucket(self) -> str:
        """The name of the bucket or host."""
        return urlsplit(self.store).netloc


def locate(text: str, *, here: str, databricks: bool = False, account: str = "") -> Location:
    """Reads a place as a user names it. `here` is the folder from which relative paths count,
    `databricks` whether this is a machine of Databricks, `account` the storage account for Azure's
    URIs that do not name one.
    """
    check_place(text, "the place of a lake")
    match = _SCHEME.match(text)
    scheme = match[1].lower() if match is not None else ""
    rest = text[len(scheme) + 1 :]
    if scheme in _STORES:
        return _in_store(scheme, rest, account)
    if scheme == "file":
        return _on_disk(_file_path(rest), here, databricks)
    if scheme == "dbfs":
        if not databricks:
            raise UnknownScheme(
                f"{text} lies in the file system of Databricks, and this is no machine of it",
                hint="name the object store behind it: s3://…, abfss://… or gs://…",
            )
        path = "/" + rest.lstrip("/")
        return _on_disk(path if path.startswith("/Volumes/") else f"/dbfs{path}", here, databricks)
    if scheme and rest.startswith("/"):
        raise UnknownScheme(f"a lake cannot lie in {scheme}:")
    return _on_disk(text, here, databricks)


def _on_disk(path: str, here: str, databricks: bool) -> Location:
    path = posixpath.normpath(posixpath.join(here, path))
    path = "/" + path.lstrip("/")  # POSIX lets two slashes at the beginning mean something else
    spark = f"file://{path}"
    if databricks and path.startswith(_ON_DATABRICKS):
        spark = f"dbfs:{path.removeprefix('/dbfs')}"
    return Location(root=path, spark=spark, path=path)


def _file_path(rest: str) -> str:
    """The path in what follows `file:`."""
    if rest.startswith("//"):
        host, slash, path = rest[2:].partition("/")
        if host not in ("", "localhost"):
            raise BadPath(
                f"file://{host}/… names another machine",
                hint="write file:///PATH with three slashes, or the path alone",
            )
        rest = slash + path
    if not rest.startswith("/"):
        raise BadPath(f"file:{rest} is not absolute", hint="write the path alone, or file:///PATH")
    return unquote(rest)


def _in_store(scheme: str, rest: str, account: str) -> Location:
    host, _, inside = rest.removeprefix("//").partition("/")
    # The message repeats nothing of the URI: a query or a password would be a secret.
    if (":" in host.partition("@")[0] and "@" in host) or "?" in rest:
        raise BadPath(
            f"no credentials may stand in the {scheme}: URI of a lake",
            hint="give them as options: holdfast pipeline … --options-file FILE",
        )
    if not rest.startswith("//") or (not host and scheme not in _HADOOP):
        raise BadPath(
            f"{scheme}:{rest} names no bucket", hint=f"write {scheme}://BUCKET/FOLDER in full"
        )
    parts = [part for part in inside.split("/") if part]
    odd = sorted(set(_BAD_IN_STORE.findall(rest)))
    if odd or {".", ".."} & set(parts):
        raise BadPath(
            f"a lake cannot lie in {scheme}:{rest}: Spark or Delta would misread "
            f"{' '.join(map(repr, odd)) or 'its dots'}",
            hint="name a folder without these characters in its path",
        )
    path = "/".join(parts)
    ours, theirs = _schemes(scheme)
    spark = f"{theirs}://{_spark_host(scheme, host, account)}/{path}"
    return Location(
        root=f"{ours}://{host}/{path}".rstrip("/"),
        spark=spark.rstrip("/") if "///" not in spark or scheme in _HADOOP else "",
        store=f"{ours}://{host}/",
        path=path,
    )


def _schemes(scheme: str) -> tuple[str, str]:
    """The scheme that deltalake knows, and the one that Spark knows."""
    if scheme in _S3:
        return "s3", "s3a"
    if scheme in _GOOGLE:
        return "gs", "gs"
    if scheme in _AZURE_FULL:
        return scheme, scheme
    return ("az", "abfss") if scheme in _AZURE else (scheme, scheme)


def _spark_host(scheme: str, host: str, account: str) -> str:
    """What stands between the slashes for Spark; empty if it cannot be known."""
    if scheme not in _AZURE or "@" in host:
        return host
    return f"{host}@{account}.dfs.core.windows.net" if account else ""
