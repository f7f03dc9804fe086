"""`holdfast vector`: embeddings with their content, searched by nearness within one model."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Callable
from typing import Any

import click
import msgspec

from holdfast.apps.cli import documents, inputs, tables
from holdfast.apps.cli.declare import noun, verb
from holdfast.apps.cli.progress import Progress
from holdfast.apps.cli.session import CommandSession
from holdfast.rules.errors import BadVector

MODEL = click.option(
    "--model", required=True, metavar="PROVIDER:NAME[:VERSION]", help="Which model made the vector."
)
DIM = click.option("--dim", type=int, metavar="N", help="The length of the model's vectors.")
SOURCE = click.option(
    "--from",
    "source",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="Read the vector from a file.",
)

vector_ = noun("vector", "Embeddings, searched by nearness within one model.")


@verb(vector_, "store", writes=True)
@click.argument("key")
@click.argument("vector", required=False)
@SOURCE
@MODEL
@DIM
@click.option(
    "--content", default="", metavar="TEXT", help="What the vector stands for; - is stdin."
)
@click.option("--metadata", metavar="JSON", help="Anything to keep with it.")
def store(
    session: CommandSession,
    key: str,
    vector: str | None,
    source: str | None,
    model: str,
    dim: int | None,
    content: str,
    metadata: str | None,
) -> None:
    """Store VECTOR, a JSON list of numbers (- reads stdin), under KEY."""
    numbers = inputs.vector_of(vector, source)
    extra = None if metadata is None else inputs.json_of(metadata, "the metadata")
    with session.mesh() as mesh:
        identity = inputs.model_for(mesh, model, len(numbers), dim)
        done = mesh.vectors.store(
            key,
            numbers,
            model=identity,
            content=inputs.text_of(content),
            metadata=extra,
            id=session.id,
        )
        stored = f"stored {key!r} ({len(numbers)} numbers) in"
        session.receipt(mesh, done, "vector.store", stored, key=key, model_id=identity.fingerprint)


@verb(vector_, "search")
@click.argument("vector", required=False)
@SOURCE
@MODEL
@DIM
@click.option("--limit", type=int, default=10, show_default=True)
@click.option("--exact", is_flag=True, help="Compare with every vector, without the index.")
def search(
    session: CommandSession,
    vector: str | None,
    source: str | None,
    model: str,
    dim: int | None,
    limit: int,
    exact: bool,
) -> None:
    """List what is nearest to VECTOR. It is a JSON list of numbers; - reads stdin."""
    numbers = inputs.vector_of(vector, source)
    with session.mesh() as mesh:
        identity = inputs.model_for(mesh, model, len(numbers), dim)
        hits = mesh.vectors.search(numbers, model=identity, limit=limit, exact=exact)
        session.rows(
            (documents.in_mesh(hit, mesh.slug) for hit in hits),
            "distance key peer content metadata",
            empty=f"nothing is stored under {model} in {mesh.slug}",
        )


@verb(vector_, "models")
def models(session: CommandSession) -> None:
    """List the models that vectors are stored under."""
    with session.mesh() as mesh:
        session.rows(
            map(documents.model, mesh.vectors.models()),
            "model dim quantization created_at deprecated_at last_read_at",
            empty="no vector is stored yet",
        )


@verb(vector_, "delete", writes=True)
@click.argument("key")
@MODEL
@DIM
def delete(session: CommandSession, key: str, model: str, dim: int | None) -> None:
    """Delete this peer's vector KEY of a model."""
    with session.mesh() as mesh:
        identity = inputs.model_for(mesh, model, None, dim)
        done = mesh.vectors.delete(key, model=identity, id=session.id)
        deleted = f"deleted {key!r} of {model} from"
        session.receipt(
            mesh, done, "vector.delete", deleted, key=key, model_id=identity.fingerprint
        )


@verb(vector_, "reembed")
@click.argument("old")
@click.argument("new")
@click.option("--dim", type=int, required=True, metavar="N", help="The length of NEW's vectors.")
@click.option("--old-dim", type=int, metavar="N", help="The length of OLD's, if it has several.")
@click.option(
    "--command",
    required=True,
    metavar="COMMAND",
    help="Reads a JSON list of texts on stdin, writes a JSON list of vectors to stdout.",
)
def reembed(
    session: CommandSession, old: str, new: str, dim: int, old_dim: int | None, command: str
) -> None:
    """Move this peer's vectors from the model OLD to the model NEW.

    The texts are embedded again by COMMAND, some at a time. It may be stopped at any moment: a
    second run goes on where the first one was.
    """
    with session.mesh() as mesh, Progress(session, "re-embedded") as progress:
        moved = mesh.vectors.reembed(
            inputs.model_for(mesh, old, None, old_dim),
            inputs.model_for(mesh, new, dim, dim),
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
