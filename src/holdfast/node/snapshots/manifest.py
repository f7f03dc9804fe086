"""What a snapshot consists of: parts full of envelopes, and the manifest that vouches for them.

    <snapshot>/manifest.json        what it is a snapshot of, and the hash of every part
              /parts/<name>.gz      envelopes as they were written, each behind its length

The pipeline makes snapshots and any node reads them; this module and `parts` hold all that both
need. The manifest is written last, so a folder without one is not a snapshot.

The maker of a snapshot may sign its digest with the Ed25519 key of a node. The digest alone shows
that nothing was damaged. Only a signature, checked with a key that the reader knows from elsewhere,
shows who made it.
"""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Final

import msgspec
from nacl.exceptions import BadSignatureError
from nacl.signing import SigningKey, VerifyKey

from holdfast.rules.errors import (
    BadInput,
    BadPath,
    StoreCorrupt,
    StoreFailed,
    UnsupportedProtocol,
    ZoneNotTrusted,
)
from holdfast.rules.keys import (
    KEY_BYTES,
    PROOF_BYTES,
    bytes_of,
    card_of,
    check_key_bytes,
    parse_card,
    public_key,
    text_of,
)
from holdfast.storage.files.durable import disk_errors
from holdfast.storage.files.home import HomePaths, require_home
from holdfast.storage.sqlite.snapshot_copy import open_read_only

FORMAT: Final = 1
VOTED: Final = 2
"""The format of a snapshot that has orders of commits in it; older versions refuse it."""
NAME: Final = "manifest.json"
PARTS: Final = "parts"
_WORDS: Final = b"holdfast snapshot 1\0"
OTHER: Final = "use another snapshot, or copy this one again; nothing was changed"


class SnapshotPart(msgspec.Struct, frozen=True, kw_only=True):
    """One file of envelopes."""

    path: str
    rows: int
    size: int
    sha256: str
    raw_bytes: int
    """Its size when unpacked."""


class MeshPoint(msgspec.Struct, frozen=True, kw_only=True):
    """Where one mesh stands in the snapshot."""

    clock: int
    """The highest stamp of the mesh that the lake has seen."""
    forgotten: int = 0
    """Deletions up to this stamp may have been left out: an older write must not come back."""


class LogCoverage(msgspec.Struct, frozen=True, kw_only=True):
    """How far one node's log is covered."""

    log: str
    epoch: int
    offset: int
    tail: tuple[tuple[str, str], ...] = ()
    """Ids and fingerprints of the last entries up to there, in hex. A link that goes on from this
    place recognises the log by them, although many of them may have been superseded."""


class SnapshotManifest(msgspec.Struct, frozen=True, kw_only=True):
    """The first thing to read in a snapshot, and the last that is written."""

    holdfast: str = "snapshot"
    version: int = FORMAT
    lake: str
    created_at: int
    meshes: dict[str, MeshPoint]
    lamport: int | None = None
    """If given, the snapshot holds only what has no higher stamp."""
    at: int | None = None
    """If given, the snapshot holds only what some log had recorded by then, in milliseconds."""
    facts: bool = True
    vectors: str = "all"
    counts: dict[str, int]
    """Envelopes by family."""
    rows: int
    content: str
    """The sum of the digests of all envelopes (those of `rules.digests` for a log) modulo 2^256:
    the same for the same set, in whatever order and parts it comes."""
    logs: tuple[LogCoverage, ...] = ()
    origins: dict[str, int] = {}
    """The peers whose envelopes are in it, each with the highest epoch that was seen."""
    parts: tuple[SnapshotPart, ...]
    signer: str = ""
    """The card of the node that signed it; empty if it is not signed."""
    digest: str = ""
    """SHA-256 of the manifest with this field and the next one empty."""
    signature: str = ""

    @property
    def total_bytes(self) -> int:
        return sum(part.size for part in self.parts)

    def sealed(self, signer: Signer | None = None) -> SnapshotManifest:
        """The same manifest with its digest, signed if there is a signer."""
        bare = msgspec.structs.replace(
            self, signer="" if signer is None else signer.card, digest="", signature=""
        )
        digest = _digest(bare)
        proof = "" if signer is None else text_of(signer.sign(_WORDS + digest.encode()))
        return msgspec.structs.replace(bare, digest=digest, signature=proof)

    def encode(self) -> bytes:
        return msgspec.json.format(msgspec.json.encode(self)) + b"\n"


class VotedManifest(SnapshotManifest, frozen=True, kw_only=True):
    """The manifest of a snapshot of meshes some of which have voters."""

    version: int = VOTED
    plain: int
    """So many of the parts hold envelopes. Those behind them hold commits: records with their
    envelopes, mesh by mesh, in the order of their numbers."""
    commits: dict[str, int]
    """By mesh with voters: the number of the last commit. The first is always in it."""


def plain_parts(manifest: SnapshotManifest) -> int:
    """How many of the parts hold envelopes."""
    return manifest.plain if isinstance(manifest, VotedManifest) else len(manifest.parts)


def commits_of(manifest: SnapshotManifest) -> dict[str, int]:
    """By mesh with voters: the number of the last commit."""
    return manifest.commits if isinstance(manifest, VotedManifest) else {}


class Signer:
    """A node's name and the secret that it signs with."""

    def __init__(self, name: str, seed: bytes) -> None:
        self._seed = seed
        self.card = card_of(name, public_key(seed))

    def sign(self, message: bytes) -> bytes:
        return SigningKey(self._seed).sign(message).signature


def signer_of(home: str | Path) -> Signer:
    """The signer for the node of a home; the home may be in use."""
    paths = require_home(Path(home).absolute())
    with open_read_only(paths.database) as reader:
        name = reader.peer_name()
    return Signer(name or "", _seed(paths))


def _seed(paths: HomePaths) -> bytes:
    with disk_errors(f"read {paths.identity}"):
        seed = paths.identity.read_bytes()
    if len(seed) != KEY_BYTES:
        raise StoreFailed(f"{paths.identity} is not a key of Holdfast")
    return seed


# --- reading the manifest ------------------------------------------------------------------------


def read_manifest(folder: Path) -> SnapshotManifest:
    """Reads and checks the manifest of a snapshot; the error says what is wrong with it."""
    try:
        raw = (folder / NAME).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise BadPath(
            f"{folder} is not a snapshot: it has no {NAME}",
            hint="name the folder of a snapshot; one whose making was cut short has to be made "
            "again",
        ) from None
    try:
        head = msgspec.json.decode(raw, type=_Head)
        if head.holdfast != "snapshot" or head.version not in (FORMAT, VOTED):
            raise UnsupportedProtocol(
                f"{folder} is a {head.holdfast} of format {head.version}; "
                f"a snapshot of format {FORMAT} or {VOTED} was expected",
                hint="a backup is restored without --snapshot; a newer snapshot needs a newer "
                "Holdfast",
            )
        kind = VotedManifest if head.version == VOTED else SnapshotManifest
        manifest = msgspec.json.decode(raw, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StoreCorrupt(
            f"the manifest of {folder} cannot be read: {error}", hint=OTHER
        ) from None
    bare = msgspec.structs.replace(manifest, digest="", signature="")
    if manifest.digest != _digest(bare):
        raise StoreCorrupt(f"the manifest of {folder} was changed or is damaged", hint=OTHER)
    _check_whole(folder, manifest)
    _check_signature(folder, manifest)
    return manifest


def check_signer(manifest: SnapshotManifest, signed_by: str) -> None:
    """Raises `ZoneNotTrusted` if the snapshot is not signed with this card or bare key."""
    key = _pinned(signed_by)
    if not manifest.signature:
        raise ZoneNotTrusted("the snapshot is not signed", hint="make it with --sign-home")
    name, found = parse_card(manifest.signer)
    if found != key:
        raise ZoneNotTrusted(
            f"the snapshot is signed by another key, which calls itself {name!r}",
            hint="ask whoever made it for the card that it was signed with",
        )


def _pinned(text: str) -> bytes:
    if ":" in text:
        return parse_card(text)[1]
    return check_key_bytes(bytes_of(text.strip(), KEY_BYTES, "the key"))


def _check_signature(folder: Path, manifest: SnapshotManifest) -> None:
    if not manifest.signature and not manifest.signer:
        return
    try:
        _, key = parse_card(manifest.signer)
        proof = bytes_of(manifest.signature, PROOF_BYTES, "the signature")
        VerifyKey(key).verify(_WORDS + manifest.digest.encode(), proof)
    except (BadInput, BadSignatureError):
        raise StoreCorrupt(
            f"the signature of {folder} does not fit its manifest", hint=OTHER
        ) from None


def _check_whole(folder: Path, manifest: SnapshotManifest) -> None:
    """Refuses paths that lead out of the folder of the snapshot, and numbers that do not add up."""
    names = [part.path for part in manifest.parts]
    inside = all(
        path.startswith(f"{PARTS}/") and path.count("/") == 1 and len(path) > len(PARTS) + 1
        for path in names
    )
    rows = sum(part.rows for part in manifest.parts)
    plain = plain_parts(manifest)
    inside &= 0 <= plain <= len(names) and set(commits_of(manifest)) <= set(manifest.meshes)
    if not inside or len(set(names)) != len(names) or rows != manifest.rows:
        raise StoreCorrupt(f"the manifest of {folder} contradicts itself", hint=OTHER)


def _digest(bare: SnapshotManifest) -> str:
    return sha256(msgspec.json.encode(bare, order="deterministic")).hexdigest()


class _Head(msgspec.Struct):
    holdfast: str
    version: int
