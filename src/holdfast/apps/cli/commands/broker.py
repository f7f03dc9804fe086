"""`holdfast broker`: run a broker, and look after it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from holdfast.apps.cli import inputs, serving
from holdfast.apps.cli.commands.console import NO_BROWSER, show
from holdfast.apps.cli.declare import DRY, noun, verb
from holdfast.apps.cli.serving_log import log_options
from holdfast.apps.cli.session import CommandSession
from holdfast.rules import limits
from holdfast.rules.errors import BadInput, StoreCorrupt

if TYPE_CHECKING:
    from holdfast.broker.settings import BrokerSettings
    from holdfast.service.lifecycle import OnEvent, Service

F = TypeVar("F", bound=Callable[..., Any])

DSN = "HOLDFAST_BROKER_DSN"
TOKEN = "HOLDFAST_BROKER_TOKEN"
STORE = "HOLDFAST_BROKER_STORE"
_TCP = "127.0.0.1:7420"
_CONNECTIONS = {
    "newest": "prefer_newest",
    "oldest": "prefer_oldest",
    "all": "allow_concurrent",
}

broker_ = noun("broker", "Run a broker, through which nodes share meshes, and look after it.")


def _stored(function: F) -> F:
    """Adds the options that say where a broker keeps everything."""
    for option in (
        click.option(
            "--postgres",
            metavar="DSN",
            help=f"Keep everything but the key in PostgreSQL; better in ${DSN} or in the file that "
            f"${DSN}_FILE names, for a command line can be read by others.",
        ),
        click.option(
            "--store",
            metavar="FOLDER",
            help=f"The broker's folder; else ${STORE}. With PostgreSQL it holds the key and the "
            "certificate, and each process has a copy of its own.",
        ),
    ):
        function = option(function)
    return function


@verb(broker_, "serve", mesh=False)
@_stored
@click.option("--listen", metavar="HOST:PORT", help="For other machines, with TLS.")
@click.option("--tcp", metavar="HOST:PORT", help=f"On loopback; {_TCP} if neither is given.")
@click.option("--tls-cert", metavar="FILE", help="A certificate of your own, with --tls-key.")
@click.option("--tls-key", metavar="FILE", help="Its key.")
@click.option(
    "--allowed-hosts",
    metavar="NAMES",
    default="",
    help="Names for --tcp besides localhost; commas.",
)
@click.option(
    "--allowed-origins", metavar="URLS", default="", help="Web pages that may call; commas between."
)
@click.option("--replace-key", is_flag=True, help="The database's old key is lost; take this one.")
@click.option("--name", help="What the broker is called; given once, and kept.")
@click.option(
    "--registration",
    type=click.Choice(["open", "closed", "token"]),
    default="open",
    show_default=True,
    help=f"Who may make a mesh here: any key, no key, or a key with the token in ${TOKEN} or "
    f"in the file that ${TOKEN}_FILE names.",
)
@click.option(
    "--dedupe",
    metavar="DAYS|permanent",
    default=str(limits.DEDUPE_RETENTION_DAYS_DEFAULT),
    show_default=True,
    help="How long ids are remembered; 3 days at least.",
)
@click.option(
    "--keep-days",
    type=click.IntRange(1, limits.DEDUPE_RETENTION_DAYS_MAX),
    default=limits.BROKER_KEEP_DAYS,
    show_default=True,
    help="How long messages are kept, and changes that a snapshot covers.",
)
@click.option(
    "--rate",
    type=click.IntRange(1),
    default=limits.ACCEPT_RATE_PER_S,
    show_default=True,
    help="New envelopes that one member may hand in each second.",
)
@click.option(
    "--connections",
    type=click.Choice(list(_CONNECTIONS)),
    default="all",
    show_default=True,
    help="Which connections of one member stay, in each process of the broker.",
)
@click.option(
    "--processes",
    type=click.IntRange(1, limits.BROKER_PROCESSES_MAX),
    default=1,
    show_default=True,
    help="How many processes serve, behind the same addresses; more than one needs PostgreSQL.",
)
@log_options
@click.option("--detach", is_flag=True, help="Return when it is ready; print where it listens.")
def serve_(
    session: CommandSession,
    store: str | None,
    postgres: str | None,
    rate: int,
    connections: str,
    processes: int,
    detach: bool,
    log_level: str,
    log_format: str | None,
    **given: Any,
) -> int:
    """Serve a broker: HTTP and WebSocket. Port 0 takes a free one.

    One process keeps about one core busy. On PostgreSQL --processes begins several behind the same
    addresses, and again if one ends. Brokers on several machines may serve one PostgreSQL; they are
    one broker, so copy identity.key and broker.name from the folder of the first to the folder of
    each other one before it starts. Ends with SIGTERM or Ctrl-C; what was handed in is answered
    first.
    """
    if given["listen"] is None and given["tcp"] is None:
        given["tcp"] = _TCP
    token = inputs.secret_of(TOKEN) if given["registration"] == "token" else None
    settings = _settings(
        store,
        postgres,
        rate_per_s=rate,
        registration_token=token,
        connections=_CONNECTIONS[connections],
        processes=processes,
        **given,
    )
    if detach:
        from holdfast.storage.files.durable import make_folder
        from holdfast.storage.files.home import HomePaths

        make_folder(settings.store)
        return serving.detach(
            session,
            HomePaths(settings.store),
            ["broker", "serve", f"--store={settings.store}"],
            {**given, "rate": rate, "connections": connections, "processes": processes}
            | {"log_level": log_level, "log_format": log_format},
            down="holdfast broker down",
            environ={} if settings.dsn is None else {DSN: settings.dsn, f"{DSN}_FILE": ""},
        )
    return serving.serve(
        session,
        _made_by(session, settings, log_level, log_format),
        log_level=log_level,
        log_format=log_format,
        connections=limits.BROKER_CONNECTIONS_MAX,
    )


def _made_by(
    session: CommandSession, settings: BrokerSettings, log_level: str, log_format: str | None
) -> Callable[[OnEvent], Service]:
    if settings.processes > 1:
        from holdfast.apps.cli.processes.broker import MODULE
        from holdfast.broker.parent.supervisor import BrokerProcesses, process_command

        as_text = sys.stderr.isatty() and not session.as_json
        return lambda report: BrokerProcesses(
            settings,
            process_command(MODULE),
            log_level=log_level,
            log_format=log_format or ("text" if as_text else "json"),
            on_event=report,
        )
    from holdfast.apps.web.part import broker_console
    from holdfast.broker.daemon import BrokerDaemon

    return lambda report: BrokerDaemon(settings, on_event=report, parts=broker_console)


@verb(broker_, "down", mesh=False)
@click.option("--store", metavar="FOLDER", help=f"The broker's folder; else ${STORE}.")
def down_(session: CommandSession, store: str | None) -> None:
    """End the broker of a folder, and wait until it has ended."""
    from holdfast.storage.files.home import HomePaths

    serving.end_daemon(session, HomePaths(_settings(store, None).store), "store")


@verb(broker_, "console", mesh=False)
@click.option("--store", metavar="FOLDER", help=f"The broker's folder; else ${STORE}.")
@NO_BROWSER
def console_(session: CommandSession, store: str | None, no_browser: bool) -> None:
    """Open the console of the broker in a browser, logged in as its operator.

    The address that is printed logs in once, within two minutes, on this machine.
    """
    folder = _settings(store, None).store
    show(session, folder, no_browser=no_browser, begin="broker serve")


@verb(broker_, "status", mesh=False)
@_stored
def status_(session: CommandSession, store: str | None, postgres: str | None) -> None:
    """How the broker is: its card, its meshes, what it holds."""
    from holdfast.broker.operator import Operator

    document = Operator(_settings(store, postgres)).status()
    if session.as_json:
        session.show(document)
        return
    session.show(
        {**document, **document["counts"], "listening": ", ".join(document["listening"])},
        fields="name card pid store reader listening dedupe_mode dedupe_days connections meshes "
        "members messages dedupe ready taken dead objects snapshots",
    )
    if document.get("processes"):
        session.rows(document["processes"], "process pid connections waiting", empty="")
    session.rows(document["meshes"], "mesh epoch base first seq members lag", empty="no meshes yet")


_SWEPT = "dedupe messages released died invites snapshots objects"


@verb(broker_, "sweep", mesh=False, removes=DRY)
@_stored
def sweep_(session: CommandSession, store: str | None, postgres: str | None) -> None:
    """Remove what is past its time, now. A running broker does it every hour."""
    from holdfast.broker.operator import Operator

    operator = Operator(_settings(store, postgres))
    if session.dry_run:
        seen = operator.foresee_sweep()
        counts, at_least = seen["swept"], seen["at_least"]
        if session.as_json:
            session.show({**counts, "at_least": at_least, "dry_run": True})
            return
        shown = {name: f"{counts[name]} or more" for name in at_least}
        session.show({**counts, **shown}, fields=_SWEPT.removesuffix(" objects"))
        session.talk("this is what a sweep would remove; nothing was changed")
        return
    session.show(operator.sweep(), fields=_SWEPT)


@verb(broker_, "orphans", mesh=False)
@click.option("--repair", is_flag=True, help="Mend what can be mended.")
@_stored
def orphans_(
    session: CommandSession, store: str | None, postgres: str | None, repair: bool
) -> None:
    """Look for ids without their message, and messages without their id. There should be none.

    A running broker looks when it starts and every night. The command ends with an error if there
    are any.

    --repair makes an id again from its message. An id whose message is lost is forgotten, so that
    the message is taken when it comes again; `broker new-epoch` makes every node look what is lost.
    """
    from holdfast.broker.operator import Operator

    operator = Operator(_settings(store, postgres))
    mended = operator.repair_orphans() if repair else []
    if mended:
        session.talk(f"{len(mended)} are mended; let the nodes look: holdfast broker new-epoch")
    found = operator.orphans()
    session.rows(found, "mesh id seq what", empty="no orphans")
    if found:
        raise StoreCorrupt(
            f"{len(found)} orphans",
            hint="restore the store from a backup"
            if repair
            else "mend them: holdfast broker orphans --repair",
        )


@verb(broker_, "doctor", mesh=False)
@click.option(
    "--rollback-schema",
    type=int,
    metavar="VERSION",
    help="Take the schema back to this version, for an older Holdfast.",
)
@_stored
def doctor_(
    session: CommandSession,
    store: str | None,
    postgres: str | None,
    rollback_schema: int | None,
) -> None:
    """Look the broker over: schema, tables, orphans, clock, key.

    It ends with an error if something is wrong. --rollback-schema works while no broker runs; on
    SQLite the database as it was stays beside it, on PostgreSQL make a dump first.
    """
    from holdfast.broker.operator import Operator

    operator = Operator(_settings(store, postgres))
    if rollback_schema is not None:
        done = operator.rollback_schema(rollback_schema)
        session.show(done, fields="schema undone kept")
        return
    checks = operator.doctor()
    session.rows(checks, "name status message fix", empty="nothing was looked at")
    wrong = [check["name"] for check in checks if check["status"] == "fail"]
    if wrong:
        raise StoreCorrupt(f"wrong: {', '.join(wrong)}", hint="see what each check says")


@verb(broker_, "new-epoch")
@click.option("--reason", default="asked for by the operator", help="Kept with it.")
@_stored
def new_epoch_(
    session: CommandSession, store: str | None, postgres: str | None, reason: str
) -> None:
    """Begin a new epoch, in one mesh or in all: every node then looks what the broker has lost.

    Do this after a restore that the broker could not notice by itself.
    """
    from holdfast.broker.operator import Operator

    made = Operator(_settings(store, postgres)).new_epoch(session.named_mesh, reason)
    session.rows(made, "mesh epoch base", empty="no meshes yet")


def _settings(store: str | None, postgres: str | None, **given: Any) -> BrokerSettings:
    from holdfast.broker.settings import BrokerSettings

    folder = store or os.environ.get(STORE, "")
    if not folder:
        raise BadInput(
            "the broker's folder is not named", hint=f"give --store FOLDER, or set ${STORE}"
        )
    dsn = postgres or inputs.secret_of(DSN)
    return BrokerSettings(store=Path(folder).absolute(), dsn=dsn, **given).check()
