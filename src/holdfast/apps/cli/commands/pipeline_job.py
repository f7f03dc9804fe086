"""What all pipeline commands share: the lake, the Spark that works on it, and how that ends.

    @job("compact")
    def compact(work: Work) -> None:
        with work.spark() as spark:
            ...

`job` adds `--lake`, and where Spark is needed `--master`, `--remote` and `--conf`. Spark and all
that comes with it is imported inside of the commands only: nobody else pays for it.
"""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import click

from holdfast.apps.cli.declare import noun, verb
from holdfast.apps.cli.session import CommandSession
from holdfast.rules.errors import BadInput, JobFailed, NoLake, NoSpark

if TYPE_CHECKING:
    from holdfast.pipeline.lake.lake import Lake

pipeline_ = noun("pipeline", "Every log in one lake, on Spark.")

_LAKE = "The lake's folder; else $HOLDFAST_LAKE."
_MASTER = "Where Spark runs, as spark://host:7077; else in this process, on all cores."
_REMOTE = "A Spark Connect server, as sc://host:15002, in place of a Spark of our own."
_CONF = "A setting of Spark's; repeatable."


class Work:
    """One pipeline command at work."""

    def __init__(
        self,
        session: CommandSession,
        lake: str | None,
        master: str | None = None,
        remote: str | None = None,
        conf: tuple[str, ...] = (),
    ) -> None:
        self.session = session
        self.began = monotonic()
        self._lake = lake
        self._master = master
        self._remote = remote
        self._conf = dict(_setting(text) for text in conf)

    @property
    def seconds(self) -> float:
        return round(monotonic() - self.began, 1)

    def lake(self, *, create: bool = False) -> Lake:
        """The lake that is meant. NoSpark where the packages of the pipeline are not there."""
        if not self._lake:
            raise BadInput(
                "which lake is not said", hint="name its folder: --lake FOLDER, or $HOLDFAST_LAKE"
            )
        return open_lake(self._lake, create=create)

    def has_lake(self) -> bool:
        try:
            self.lake()
        except NoLake:
            return False
        return True

    @contextmanager
    def spark(self) -> Iterator[Any]:
        """A Spark session until the block ends."""
        with self.spark_when_needed() as start:
            yield start()

    @contextmanager
    def spark_when_needed(self) -> Iterator[Callable[[], Any]]:
        """A function that starts Spark; it ends with the block. What Spark prints goes into a file,
        which stays if the work fails; what it raises leaves as an error of ours that names that
        file.
        """
        needs_packages()
        from holdfast.pipeline.spark.failures import told_plainly

        folder = Path(tempfile.mkdtemp(prefix="holdfast-spark-"))
        log = folder / "spark.log"
        begun: list[Any] = []
        done = False
        try:
            with told_plainly("the job"), _ended_by_signals(), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Spark's own, about itself
                yield lambda: self._start(folder, log, begun)
            done = True
        except JobFailed as error:
            if log.exists():
                error.hint = f"{error.hint}; what Spark said: {log}".removeprefix("; ")
            raise
        except BaseException:
            done = True
            raise
        finally:
            progress(self.session, None)
            for spark in begun:
                _stop(spark)
            if done or not log.exists():
                shutil.rmtree(folder, ignore_errors=True)

    def _start(self, folder: Path, log: Path, begun: list[Any]) -> Any:
        from holdfast.pipeline.spark.session import is_running, start

        if is_running():  # of whoever called us: it is theirs to stop
            return start(remote=self._remote, master=None if self._remote else self._master)
        progress(self.session, "starting Spark")
        ours = {} if self._remote else {"spark.sql.warehouse.dir": str(folder / "warehouse")}
        spark = start(
            master=self._master, remote=self._remote, conf={**ours, **self._conf}, log=log
        )
        begun.append(spark)
        return spark


def job(name: str, *, spark: bool = True, mesh: bool | str = False) -> Callable[[Any], Any]:
    """A verb of the pipeline."""

    def declare(function: Callable[..., Any]) -> Any:
        @wraps(function)
        def run(
            session: CommandSession,
            lake: str | None,
            master: str | None = None,
            remote: str | None = None,
            conf: tuple[str, ...] = (),
            **given: Any,
        ) -> Any:
            return function(Work(session, lake, master, remote, conf), **given)

        options = [click.option("--lake", metavar="FOLDER", envvar="HOLDFAST_LAKE", help=_LAKE)]
        if spark:
            options += [
                click.option("--master", metavar="URL", help=_MASTER),
                click.option("--remote", metavar="URL", help=_REMOTE),
                click.option("--conf", metavar="KEY=VALUE", multiple=True, help=_CONF),
            ]
        for option in reversed(options):
            run = option(run)
        return verb(pipeline_, name, mesh=mesh)(run)

    return declare


def open_lake(root: str, *, create: bool = False) -> Lake:
    needs_packages()
    from holdfast.pipeline.lake.lake import Lake

    return Lake.open(root, create=create)


def needs_packages() -> None:
    """NoSpark, which says what to install, where the pipeline cannot work."""
    try:
        import holdfast.pipeline.spark.session  # noqa: F401
    except ImportError as missing:
        raise NoSpark(f"the pipeline needs packages that are not here: {missing}") from None


def progress(session: CommandSession, text: str | None) -> None:
    """What is being done, on a line that is written over; None clears it."""
    if sys.stderr.isatty() and not session.as_json:
        sys.stderr.buffer.write(f"\r\x1b[K{text or ''}".encode("utf-8", "backslashreplace"))
        sys.stderr.buffer.flush()


def told(session: CommandSession) -> Callable[..., None]:
    """Progress of the library, for whoever watches: what is done, and how far that is."""

    def tell(what: str, done: int | None = None, total: int | None = None) -> None:
        far = "" if not total else f" {done} of {total}"
        progress(session, f"{what}{far}")

    return tell


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """SIGTERM ends a job as Ctrl-C does: what is committed stays, the rest is done by a rerun."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _stop(spark: Any) -> None:
    """Ends Spark. One that was cut off has nothing left to stop, and that is no news."""
    from holdfast.pipeline.spark.failures import SPARK_ERRORS

    try:
        spark.stop()
    except SPARK_ERRORS:
        return


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise BadInput(f"{text!r} is no setting", hint="write it as --conf spark.key=value")
    return key, value
