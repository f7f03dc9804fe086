"""What a file's content is as far as we know, while its newest version is still on its way.

A peer's envelope can arrive before the blob that it names. Until then the log still names the older
versions, and their content is often here: better than nothing, as long as it is called stale.
"""

from __future__ import annotations

from holdfast.node.core.engine import NodeEngine
from holdfast.node.core.files import find_file, read_file
from holdfast.node.core.views import LastKnown
from holdfast.rules.bodies import FileShare, decode_trusted_body
from holdfast.rules.envelope import Envelope, decode_trusted
from holdfast.rules.errors import BlobCorrupt, BlobElsewhere, BlobMissing
from holdfast.rules.merge import version_of
from holdfast.rules.order import order_key
from holdfast.storage.ports import Reader


def last_known(engine: NodeEngine, mesh: str, path: str, peer: str | None) -> LastKnown:
    row = find_file(engine, mesh, path, peer)
    try:
        content = read_file(engine, mesh, path, peer)
        return LastKnown("fresh", content, row.sha256, row.lamport, row.updated_at)
    except (BlobElsewhere, BlobMissing, BlobCorrupt):
        for envelope, share in engine.read(
            "file.get", lambda tx: _versions(tx, row.owner, mesh, row.path)
        ):
            found = _content(engine, share)
            if found is not None:
                sha256 = share.sha256.hex()
                at = envelope.created_at
                return LastKnown("stale", found, sha256, envelope.lamport, at)
        raise


def _versions(tx: Reader, owner: str, mesh: str, path: str) -> list[tuple[Envelope, FileShare]]:
    """Every version of the file that the log still names, newest first."""
    found = []
    for entry in tx.log_of(mesh, path, tx.log_bounds()[1] + 1):
        if entry.op == "file.share":
            envelope = decode_trusted(entry.raw)
            body = decode_trusted_body(envelope)
            if envelope.owner == owner and isinstance(body, FileShare):
                found.append((envelope, body))
    return sorted(found, key=lambda pair: order_key(version_of(pair[0])), reverse=True)


def _content(engine: NodeEngine, share: FileShare) -> bytes | None:
    if share.content is not None:
        return share.content
    try:
        return engine.blobs.read(share.sha256.hex())
    except (BlobMissing, BlobCorrupt):
        return None
