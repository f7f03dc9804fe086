"""`holdfast vector`: embeddings with their content, searched by nearness within one model."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Callable
from typing import Any, NamedTuple

import click
import msgspec

from holdfast.apps.cli import documents, inputs, tables
from holdfast.apps.cli.declare import DRY, noun, verb
from holdfast.apps.cli.lists.watching import watch_verb
from holdfast.apps.cli.progress import Progress
from holdfast.apps.cli.session import CommandSession
from holdfast.node.core.operations import require_vector
from holdfast.node.library.node import Mesh
from holdfast.rules.errors import BadInput, BadVector
from holdfast.rules.rows import VectorRow
from holdfast.rules.vectors import QUANTIZATIONS, Model

MODEL = click.option(
    "--model", required=True, metavar="PROVIDER:NAME[:VERSION]", help="Which model made the vector."
)
DIM = click.option("--dim", type=int, metavar="N", help="The length of the model's vectors.")
QUANTIZATION = click.option(
    "--quantization",
    type=click.Choice(QUANTIZATIONS),
    help="How the model's numbers are kept: float32, int8 (whole numbers from -128 to 127) or "
    "binary (zeros and ones). Else as stored before, or float32.",
)
MODEL_OF_VECTOR = click.option(
    "--model",
    metavar="PROVIDER:NAME[:VERSION]",
    help="Which model made the vector; not with --text.",
)
TEXT = click.option(
    "--text",
    metavar="TEXT",
    help="Words in place of a vector; - is stdin. The model of the extra `embed` reads them, here.",
)
SOURCE = click.option(
    "--from",
    "source",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="Read the vector from a file.",
)

SCOPE = click.option(
    "--scope",
    default="all",
    metavar="SCOPE",
    help="Whose: all (the default), self or peer:ID.",
)


class GivenVector(NamedTuple):
    """A vector from the command line, and of which model it is."""

    numbers: list[Any]
    text: str
    """The words that it stands for, if they were given in its place."""
    model: Model | str
    dim: int | None
    quantization: str | None

    def in_mesh(self, mesh: Mesh) -> tuple[Model, list[Any]]:
        """The model as it is known there, and the numbers."""
        if isinstance(self.model, Model):
            return self.model, self.numbers
        length = len(self.numbers)
        known = inputs.model_for(mesh, self.model, length, self.dim, self.quantization)
        return known, self.numbers


def _given(
    vector: str | None,
    source: str | None,
    text: str | None,
    model: str | None,
    dim: int | None,
    quantization: str | None,
) -> GivenVector:
    """The vector that is meant: as numbers with their model, or as words."""
    if text is None:
        if model is None:
            raise BadInput(
                "a vector is of a model",
                hint="say which: --model PROVIDER:NAME; or give words in its place: --text",
            )
        return GivenVector(inputs.vector_of(vector, source), "", model, dim, quantization)
    if any(one is not None for one in (vector, source, model, dim, quantization)):
        raise BadInput(
            "words have the model of the extra `embed`",
            hint="leave out the vector, --from, --model, --dim and --quantization",
        )
    # It brings NumPy, and the weights of the model.
    from holdfast.pipeline.minilm import of_text

    words = inputs.text_of(text)
    found, numbers = of_text(words)
    return GivenVector(numbers, words, found, None, None)


vector_ = noun("vector", "Embeddings, searched by nearness within one model.")

watch_verb(
    vector_,
    lambda mesh, prefix, **terms: mesh.vectors.watch(prefix, **terms),
    "Show vectors stored and deleted under keys that begin with PREFIX, as they come.",
    scoped=True,
)


@verb(vector_, "store", writes=True)
@click.argument("key")
@click.argument("vector", required=False)
@SOURCE
@TEXT
@MODEL_OF_VECTOR
@DIM
@QUANTIZATION
@click.option(
    "--content",
    default="",
    metavar="TEXT",
    help="What the vector stands for; - is stdin. Else what --text says.",
)
@click.option("--metadata", metavar="JSON", help="Anything to keep with it.")
def store(
    session: CommandSession,
    key: str,
    vector: str | None,
    source: str | None,
    text: str | None,
    model: str | None,
    dim: int | None,
    quantization: str | None,
    content: str,
    metadata: str | None,
) -> None:
    """Store VECTOR, a JSON list of numbers (- reads stdin), or --text, under KEY."""
    given = _given(vector, source, text, model, dim, quantization)
    extra = None if metadata is None else inputs.json_of(metadata, "the metadata")
    with session.mesh() as mesh:
        identity, numbers = given.in_mesh(mesh)
        done = mesh.vectors.store(
            key,
            numbers,
            model=identity,
            content=inputs.text_of(content) or given.text,
            metadata=extra,
            id=session.id,
        )
        stored = f"stored {key!r} ({len(numbers)} numbers) in"
        session.receipt(mesh, done, "vector.store", stored, key=key, model_id=identity.fingerprint)


@verb(vector_, "search", lists="")
@click.argument("vector", required=False)
@SOURCE
@TEXT
@MODEL_OF_VECTOR
@DIM
@QUANTIZATION
@click.option("--limit", type=int, default=10, show_default=True)
@click.option("--exact", is_flag=True, help="Compare with every vector, without the index.")
@SCOPE
def search(
    session: CommandSession,
    vector: str | None,
    source: str | None,
    text: str | None,
    model: str | None,
    dim: int | None,
    quantization: str | None,
    limit: int,
    exact: bool,
    scope: str,
) -> None:
    """List what is nearest to VECTOR, a JSON list of numbers (- reads stdin), or to --text."""
    given = _given(vector, source, text, model, dim, quantization)
    with session.mesh() as mesh:
        identity, numbers = given.in_mesh(mesh)
        hits = mesh.vectors.search(numbers, model=identity, limit=limit, exact=exact, scope=scope)
        session.rows(
            (documents.in_mesh(hit, mesh.slug) for hit in hits),
            "distance key peer content metadata",
            empty=f"nothing is stored under {identity.provider}:{identity.name} in {mesh.slug}",
        )


@verb(vector_, "models", lists="created_at")
def models(session: CommandSession) -> None:
    """List the models that vectors are stored under."""
    with session.mesh() as mesh:
        session.rows(
            map(documents.model, mesh.vectors.models()),
            "model dim quantization created_at deprecated_at last_read_at",
            empty="no vector is stored yet",
        )


@verb(vector_, "delete", writes=True, removes=DRY)
@click.argument("key")
@MODEL
@DIM
@QUANTIZATION
def delete(
    session: CommandSession, key: str, model: str, dim: int | None, quantization: str | None
) -> None:
    """Delete this peer's vector KEY of a model."""
    with session.mesh() as mesh:
        identity = inputs.model_for(mesh, model, None, dim, quantization)
        if session.dry_run:
            found = _own(session, mesh.slug, key, identity)
            session.goes_on(
                f"delete {key!r} of {model} from {mesh.slug}",
                mesh=mesh.slug,
                key=key,
                model_id=identity.fingerprint,
                content=found.content,
            )
            return
        done = mesh.vectors.delete(key, model=identity, id=session.id)
        deleted = f"deleted {key!r} of {model} from"
        session.receipt(
            mesh, done, "vector.delete", deleted, key=key, model_id=identity.fingerprint
        )


def _own(session: CommandSession, mesh: str, key: str, model: Model) -> VectorRow:
    """The vector that would go. Far away there is no read of one vector."""
    session.check_home()
    node = session.opened
    return node._engine.read(
        "vector.delete", lambda tx: require_vector(tx, mesh, node.peer, key, model)
    )


@verb(vector_, "reembed")
@click.argument("old")
@click.argument("new")
@click.option("--dim", type=int, required=True, metavar="N", help="The length of NEW's vectors.")
@QUANTIZATION
@click.option("--old-dim", type=int, metavar="N", help="The length of OLD's, if it has several.")
@click.option(
    "--command",
    required=True,
    metavar="COMMAND",
    help="Reads a JSON list of texts on stdin, writes a JSON list of vectors to stdout.",
)
def reembed(
    session: CommandSession,
    old: str,
    new: str,
    dim: int,
    quantization: str | None,
    old_dim: int | None,
    command: str,
) -> None:
    """Move this peer's vectors from the model OLD to the model NEW.

    The texts are embedded again by COMMAND, some at a time. It may be stopped at any moment: a
    second run goes on where the first one was.
    """
    leaves = "what was moved stays; the same command goes on from there"
    with session.mesh() as mesh, Progress(session, "re-embedded", leaves=leaves) as progress:
        moved = mesh.vectors.reembed(
            inputs.model_for(mesh, old, None, old_dim),
            inputs.model_for(mesh, new, dim, dim, quantization),
            _embedder(command),
            progress=progress.to,
        )
        document = {"mesh": mesh.slug, "old": old, "new": new, "moved": moved}
        session.show(document, f"{moved}\n")


def _embedder(command: str) -> Callable[[list[str]], list[Any]]:
    words = shlex.split(command)
    if not words:
        raise BadVector("the command is empty")

    def embed(texts: list[str]) -> list[Any]:
        try:
            done = subprocess.run(
                words, input=tables.encode(texts), stdout=subprocess.PIPE, check=True
            )
            vectors = msgspec.json.decode(done.stdout)
        except (OSError, subprocess.CalledProcessError) as error:
            raise BadVector(f"{words[0]} failed: {error}") from error
        except msgspec.DecodeError as error:
            raise BadVector(f"{words[0]} did not write JSON: {error}") from error
        if not isinstance(vectors, list):
            raise BadVector(f"{words[0]} wrote no JSON list")
        return vectors

    return embed
