"""Digests of what a node holds: asked over HTTP, or computed from its files.

An export or a broker has a log and no tables, so there are no digests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar
from urllib.parse import urlencode

from holdfast.node.log.digests import BucketRows, Digests, bucket_rows, digests
from holdfast.pipeline.logs.disk import DiskLog
from holdfast.pipeline.logs.http import NodeLog
from holdfast.pipeline.logs.log import ReadableLog
from holdfast.rules.digests import FORMAT, parse_bucket
from holdfast.rules.errors import UnsupportedProtocol
from holdfast.rules.limits import DIGEST_ANSWER_BYTES_MAX, DIGEST_MS_MAX

T = TypeVar("T", Digests, BucketRows)


class NodeDigests(Protocol):
    """The tables beside a log."""

    def digests(self) -> Digests: ...
    def bucket_rows(self, mesh: str, table: str, bucket: str) -> BucketRows: ...


def node_digests(log: ReadableLog) -> NodeDigests | None:
    """None for a log that has no tables."""
    if isinstance(log, NodeLog):
        return _FromNode(log)
    if isinstance(log, DiskLog):
        return _FromDisk(log)
    return None


class _FromNode:
    """A node that answers."""

    def __init__(self, log: NodeLog) -> None:
        self._log = log

    def digests(self) -> Digests:
        answer = self._get("/v1/digests", (), Digests)
        if answer.format != FORMAT:
            raise UnsupportedProtocol(
                f"{self._log.location} makes digests of format {answer.format}, this Holdfast of "
                f"{FORMAT}",
                hint="use the same version of Holdfast on both sides",
            )
        return answer

    def bucket_rows(self, mesh: str, table: str, bucket: str) -> BucketRows:
        query = [("mesh", mesh), ("table", table), ("bucket", bucket)]
        return self._get("/v1/digests/rows", query, BucketRows)

    def _get(self, path: str, query: Sequence[tuple[str, str]], type: type[T]) -> T:
        where = f"{path}?{urlencode(query)}" if query else path
        answer = self._log.get(where, bytes_max=DIGEST_ANSWER_BYTES_MAX, read_ms=DIGEST_MS_MAX)
        return answer.json(type)


class _FromDisk:
    """A home or a backup on the disk."""

    def __init__(self, log: DiskLog) -> None:
        self._log = log

    def digests(self) -> Digests:
        with self._log.looked_at() as reader:
            return digests(reader, reader.peer_name() or "")

    def bucket_rows(self, mesh: str, table: str, bucket: str) -> BucketRows:
        with self._log.looked_at() as reader:
            return bucket_rows(reader, reader.peer_name() or "", mesh, table, parse_bucket(bucket))
