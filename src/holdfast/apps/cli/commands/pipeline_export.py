"""`holdfast pipeline snapshot`, `reembed`: what the lake gives back to nodes."""

from __future__ import annotations

import sys
from typing import Any

import click

from holdfast.apps.cli import documents, inputs, tables
from holdfast.apps.cli.commands.pipeline_job import Work, job
from holdfast.apps.cli.commands.pipeline_query import parse_as_of
from holdfast.apps.cli.declare import FILTER
from holdfast.apps.cli.times import parse_time, size
from holdfast.rules.errors import BadInput
from holdfast.rules.vectors import Model

MINILM = "holdfast.pipeline.minilm:embed"
"""A public path: it stands in scripts that people keep."""


@job("snapshot", mesh=FILTER)
@click.argument("target")
@click.option("--as-of", metavar="STAMP|TIME", help="The state at that point in the past.")
@click.option("--sign-home", metavar="FOLDER", help="Sign it with the key of this home.")
@click.option("--no-facts", is_flag=True, help="Leave facts out.")
@click.option(
    "--vectors",
    type=click.Choice(["all", "newest"]),
    default="all",
    help="Vectors of all models, or of each key only the newest.",
    show_default=True,
)
@click.option("--deletions-since", metavar="TIME", help="Leave out keys deleted before that.")
def snapshot(
    work: Work,
    target: str,
    as_of: str | None,
    sign_home: str | None,
    no_facts: bool,
    vectors: str,
    deletions_since: str | None,
) -> None:
    """Write what a new node needs into a new folder TARGET.

    A node starts from it with: holdfast restore --snapshot TARGET. Its links then continue from
    there, and it need not read the whole history.
    """
    when: dict[str, Any] = {} if as_of is None else dict(parse_as_of(as_of))
    if "offset" in when:
        raise BadInput("a snapshot is as of a stamp or of a time", hint="write 120 or a time")
    since = None if deletions_since is None else parse_time(deletions_since)
    lake = work.lake()
    from holdfast import pipeline
    from holdfast.node.snapshots.manifest import signer_of

    signer = None if sign_home is None else signer_of(sign_home)
    with work.spark() as spark:
        report = pipeline.build_snapshot(
            spark,
            lake,
            target,
            mesh=work.session.named_mesh,
            facts=not no_facts,
            vectors=vectors,
            deletions_since=since,
            sign=signer,
            progress=work.progress,
            **when,
        )
    work.session.talk(
        f"{report.rows} envelopes in {report.parts} parts, {size(report.bytes)}"
        f"{f', signed by {report.signed_by}' if report.signed_by else ''}"
    )
    work.session.show(documents.plain(report), f"{tables.visible(report.target)}\n")


@job("reembed", mesh=True)
@click.option(
    "--from",
    "source",
    required=True,
    metavar="MODEL",
    help="The model that made the vectors: provider:name[:version], or its id.",
)
@click.option(
    "--model",
    metavar="PROVIDER:NAME:VERSION:DIM",
    help="The new model; without it, the MODEL that stands beside the function of --embed.",
)
@click.option(
    "--embed",
    default=MINILM,
    show_default=True,
    metavar="MODULE:CALLABLE",
    help="The function that makes vectors of a list of texts.",
)
@click.option("--to", required=True, metavar="NODE|HOME", help="Where the new vectors go.")
@click.option("--token-file", metavar="FILE", help="The token for that node, in a file.")
def reembed(
    work: Work,
    source: str,
    model: str | None,
    embed: str,
    to: str,
    token_file: str | None,
) -> None:
    """Embed the texts of a node's vectors of one model by another model, and write that to it.

    A node writes only vectors of its own: run it for each node whose peer has some.
    It may be stopped and run again: what is done is not done twice. The old vectors stay.
    """
    mesh = work.session.named_mesh
    if mesh is None:
        raise BadInput("no mesh is named", hint="name it with --mesh or in $HOLDFAST_MESH")
    given = None if model is None else parse_model(model)
    lake = work.lake()
    from holdfast import pipeline

    target = given or _model_beside(embed)
    options = {} if token_file is None else {"token_file": token_file}
    with work.spark() as spark:
        old = pipeline.model_id(spark, lake, source)
        report = pipeline.reembed(
            spark,
            lake,
            mesh=mesh,
            source=old,
            target=target,
            embed=embed,
            to=to,
            options=options,
            progress=work.progress,
        )
    work.session.talk(
        f"{report.embedded} embedded, {report.up_to_date} were up to date, "
        f"{report.empty} have no text, {report.of_others} belong to other peers"
    )
    work.session.show(documents.plain(report), f"{report.target}\n")


def _model_beside(embed: str) -> Model:
    """The `MODEL` in the module of a function that embeds."""
    from holdfast.pipeline.embed.reembed import resolved

    resolved(embed)
    model = getattr(sys.modules[embed.partition(":")[0]], "MODEL", None)
    if not isinstance(model, Model):
        raise BadInput(
            f"{embed} does not say which model it is",
            hint="say it with --model provider:name:version:dim",
        )
    return model


def parse_model(text: str) -> Model:
    """`provider:name:version:dim`; everything between provider and version is the name."""
    rest, _, dim = text.rpartition(":")
    if not (dim.isascii() and dim.isdecimal() and rest.count(":") >= 2):
        raise BadInput(
            f"{text!r} does not name a model", hint="write it as provider:name:version:dim"
        )
    provider, name, version = inputs.split_model(rest)
    return Model(provider=provider, name=name, version=version, dim=int(dim))
