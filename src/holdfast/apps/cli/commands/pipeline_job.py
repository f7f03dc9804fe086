"""What all pipeline commands share: the lake, the Spark that works on it, and how that ends.

    @job("compact")
    def compact(work: Work) -> None:
        with work.spark() as spark:
            ...

`job` adds `--lake`, the options that say how to reach it and, where Spark is needed, `--master`,
`--remote` and `--conf`. Spark is imported inside the commands only, so that no other command waits
for it.
"""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import wraps
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import click

from holdfast.apps.cli import output
from holdfast.apps.cli.declare import noun, verb
from holdfast.apps.cli.session import CommandSession
from holdfast.rules.errors import BadInput, JobFailed, NoLake

if TYPE_CHECKING:
    from holdfast.pipeline import Lake
    from holdfast.pipeline.serve.client import LakeClient
    from holdfast.pipeline.spark.ending import SignalThread

pipeline_ = noun("pipeline", "Every log in one lake, on Spark.")

_LAKE = "The lake: a folder, or s3://, gs://, abfss://, hdfs://; without it, $HOLDFAST_LAKE."
_OPTION = "How to reach an object store, as aws_region=eu-west-1; repeatable."
_OPTIONS_FILE = "A file with such options, one on a line, secrets too; $HOLDFAST_LAKE_OPTIONS."
_MASTER = "Where Spark runs, as spark://host:7077; without it, in this process on all cores."
_REMOTE = "A Spark Connect server, as sc://host:15002, to use instead of starting Spark."
_CONF = "A setting of Spark; repeatable."

options_file = click.option(
    "--options-file", metavar="FILE", envvar="HOLDFAST_LAKE_OPTIONS", help=_OPTIONS_FILE
)


class Work:
    """What one pipeline command works with: its session, the lake, Spark, the time it takes."""

    def __init__(
        self,
        session: CommandSession,
        lake: str | None,
        master: str | None = None,
        remote: str | None = None,
        conf: tuple[str, ...] = (),
        options: Mapping[str, str] | None = None,
    ) -> None:
        self.session = session
        self.options = options or {}
        self.began = monotonic()
        self._lake = lake
        self._master = master
        self._remote = remote
        self._conf = dict(_setting(text) for text in conf)
        self._signals: SignalThread | None = None

    @property
    def names_spark(self) -> bool:
        """Whether the command says where or how Spark is to run."""
        return bool(self._master or self._remote or self._conf)

    @property
    def seconds(self) -> float:
        return round(monotonic() - self.began, 1)

    def lake(self, *, create: bool = False) -> Lake:
        """The lake of the command. NoSpark if packages of the pipeline are not installed."""
        if not self._lake:
            raise BadInput(
                "no lake is named", hint="name its folder: --lake FOLDER, or $HOLDFAST_LAKE"
            )
        from holdfast import pipeline

        return pipeline.Lake.open(self._lake, create=create, options=self.options)

    def server(self, lake: Lake, *, wanted: bool = True) -> LakeClient | None:
        """The server of the lake; None if there is none, or the command says how Spark is to run,
        or does not want it.
        """
        if self.names_spark or not wanted:
            return None
        from holdfast.pipeline import server_of

        return server_of(lake)

    def has_lake(self) -> bool:
        try:
            self.lake()
        except NoLake:
            return False
        return True

    @contextmanager
    def spark(self, *, by_tasks: bool = False) -> Iterator[Any]:
        """A Spark session until the block ends."""
        with self.spark_when_needed(by_tasks=by_tasks) as start:
            yield start()

    @contextmanager
    def spark_when_needed(self, *, by_tasks: bool = False) -> Iterator[Callable[[], Any]]:
        """A function that starts Spark, which is stopped at the end of the block. What Spark prints
        goes into a file, which stays if the work fails. An error of Spark becomes one of ours that
        names this file. `by_tasks`: the work is done by tasks in Python, and Java has little to do.
        """
        from holdfast.pipeline.spark.ending import SignalThread
        from holdfast.pipeline.spark.failures import spark_errors

        folder = Path(tempfile.mkdtemp(prefix="holdfast-spark-"))
        log = folder / "spark.log"
        started: list[Any] = []
        done = False
        signals = SignalThread(lambda number: self._last_words(number, folder, started))
        try:
            with (
                spark_errors("the job"),
                signals.watching() as self._signals,
                warnings.catch_warnings(),
            ):
                warnings.simplefilter("ignore")  # Spark warns about itself
                yield lambda: self._start(folder, log, started, by_tasks)
            done = True
        except JobFailed as error:
            if log.exists():
                error.hint = f"{error.hint}; what Spark said: {log}".removeprefix("; ")
            raise
        except BaseException:
            done = True
            raise
        finally:
            self.progress("")
            for spark in started:
                _stop(spark)
            if done or not log.exists():
                shutil.rmtree(folder, ignore_errors=True)

    @contextmanager
    def ending_gently(self, stop: Callable[[], None]) -> Iterator[None]:
        """While the block runs, the first signal calls `stop`, and only the next one ends the job.
        Only while Spark may be started.
        """
        assert self._signals is not None, "nobody waits for signals"
        with self._signals.gently(stop):
            yield

    def progress(self, what: str, done: int = 0, total: int = 0) -> None:
        """Shows people what is being done and how far it is, on a line that is written over. An
        empty text clears the line.
        """
        if sys.stderr.isatty() and not self.session.as_json:
            text = f"{what} {done} of {total}" if total else what
            sys.stderr.buffer.write(f"\r\x1b[K{text}".encode("utf-8", "backslashreplace"))
            sys.stderr.buffer.flush()

    def _start(self, folder: Path, log: Path, started: list[Any], by_tasks: bool) -> Any:
        from holdfast.pipeline.spark.session import BY_TASKS, is_running, start

        if is_running():  # the caller of this process started it and will stop it
            return start(remote=self._remote, master=None if self._remote else self._master)
        self.progress("starting Spark")
        ours = {} if self._remote else {"spark.sql.warehouse.dir": str(folder / "warehouse")}
        if by_tasks and not self._remote:
            ours |= BY_TASKS
        spark = start(
            master=self._master, remote=self._remote, conf={**ours, **self._conf}, log=log
        )
        started.append(spark)
        if self._signals is not None:
            self._signals.hold()
        return spark

    def _last_words(self, number: int, folder: Path, started: list[Any]) -> None:
        """Called in another thread when a signal ends the job, whatever the job does meanwhile."""
        self.progress("")
        name = signal.Signals(number).name
        what = f"{name} has ended the job: what was committed stays, and the next one goes on there"
        with suppress(OSError):
            output.failure("interrupted", what, "", self.session.as_json)
            output.flush()
        if self._remote:
            from holdfast.pipeline.spark.ending import end_remotely

            end_remotely(started)
        shutil.rmtree(folder, ignore_errors=True)


no_server = click.option(
    "--no-server", is_flag=True, help="Do the work in this process, also if a server is there."
)


def job(
    name: str, *, spark: bool = True, mesh: bool | str = False, removes: str = ""
) -> Callable[[Any], Any]:
    """Declares a verb of the pipeline, with the options that all of them share."""

    def declare(function: Callable[..., Any]) -> Any:
        @wraps(function)
        def run(
            session: CommandSession,
            lake: str | None,
            master: str | None = None,
            remote: str | None = None,
            conf: tuple[str, ...] = (),
            words: tuple[str, ...] = (),
            options_file: str | None = None,
            **given: Any,
        ) -> Any:
            options = store_options(words, options_file)
            return function(Work(session, lake, master, remote, conf, options), **given)

        options = [
            click.option("--lake", metavar="FOLDER", envvar="HOLDFAST_LAKE", help=_LAKE),
            click.option("--option", "words", metavar="KEY=VALUE", multiple=True, help=_OPTION),
            options_file,
        ]
        if spark:
            options += [
                click.option("--master", metavar="URL", help=_MASTER),
                click.option("--remote", metavar="URL", help=_REMOTE),
                click.option("--conf", metavar="KEY=VALUE", multiple=True, help=_CONF),
            ]
        for option in reversed(options):
            run = option(run)
        return verb(pipeline_, name, mesh=mesh, removes=removes)(run)

    return declare


def store_options(words: tuple[str, ...], options_file: str | None) -> Mapping[str, str]:
    """How to reach the lake's place: what the file says, and over that what the command says."""
    if not words and options_file is None:
        return {}
    from holdfast.pipeline.lake.storage_options import is_secret, parse_options, read_options

    said = parse_options(words, "--option")
    if open_secrets := sorted(filter(is_secret, said)):
        raise BadInput(
            f"{open_secrets[0]} is a secret, and others can read the words of a command",
            hint="write it into a file, as KEY=VALUE, and name that: --options-file FILE",
        )
    return {**(read_options(Path(options_file)) if options_file else {}), **said}


def _stop(spark: Any) -> None:
    """Stops Spark. A Spark whose Java has already ended raises errors, which do not matter."""
    from holdfast.pipeline.spark.failures import SPARK_ERRORS

    with suppress(*SPARK_ERRORS, OSError):
        spark.stop()


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise BadInput(f"{text!r} is no setting", hint="write it as --conf spark.key=value")
    return key, value
