"""`holdfast pipeline`: what is refused without Spark, and one story with it from end to end."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

import holdfast
from holdfast.apps.cli.commands.pipeline_check import tell_audited, tell_verified
from holdfast.apps.cli.commands.pipeline_job import Work
from holdfast.apps.cli.commands.pipeline_query import parse_as_of
from holdfast.apps.cli.session import CommandSession
from holdfast.pipeline.audits.gold import AuditFinding, AuditReport, AuditResult
from holdfast.pipeline.jobs.sources import log_source, remember
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.spark import session
from holdfast.pipeline.verify.verify import Difference, VerifiedLog
from holdfast.rules.errors import BadInput
from holdfast.rules.vectors import Model
from support.cli import Cli
from support.daemon import running
from support.one_spark import one_spark
from support.read_in_turns import read_in_turns
from support.set_back import restored

PATIENCE_S = 300
SMALL = [f"--conf={key}={value}" for key, value in session.SMALL.items()]
METRICS = {
    *("lake", "lake_id", "ok", "rows", "lag", "logs", "quarantined", "failures", "tables"),
    *("versions", "bytes", "batches", "seconds", "seconds_ingest", "seconds_fold"),
}
"""Names that schedulers rely on."""
HEAVY = "pyspark pyarrow pandas deltalake matplotlib numpy holdfast.pipeline"


def test_P10_nobody_pays_for_spark_who_does_not_use_it() -> None:
    code = (
        "import sys, holdfast.apps.cli.commands.pipeline, holdfast.apps.cli.app\n"
        f"print(*(sys.modules.keys() & set({HEAVY.split()!r})))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "\n"


def test_P10_without_the_extra_a_command_says_what_to_install(cli: Cli, tmp_path: Path) -> None:
    hidden = (
        "import sys\n"
        f"sys.modules.update(dict.fromkeys({HEAVY.split()[:4]!r}))\n"
        "from holdfast.apps.cli.main import main\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    words = ["pipeline", "status", "--lake", str(tmp_path / "lake"), "--json"]
    done = subprocess.run(
        [sys.executable, "-c", hidden, *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert '"code":"no_spark"' in done.stderr
    assert "pip install 'holdfast[spark]'" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "code", "error"),
    [
        (("status",), 4, "no_lake"),
        (("run",), 4, "no_lake"),
        (("run", "nowhere"), 2, "bad_input"),
        (("run", "http://user:pass@host"), 2, "bad_input"),
        (("run", "broker+https://user:pass@host/team"), 2, "bad_input"),
        (("run", "broker+https://host", "--key-file", "ana"), 2, "bad_input"),
        (("run", "broker+https://host/team"), 7, "bad_token"),
        (("run", ".", "--name", "x"), 2, "bad_input"),
        (("run", ".", "--name", "x=y"), 2, "bad_input"),
        (("run", ".", "--conf", "nonsense"), 2, "bad_input"),
        (("query", "select 1"), 4, "no_lake"),
        (("state", "team"), 4, "no_lake"),
        (("state", "team", "--as-of", "yesterday"), 2, "bad_input"),
        (("verify",), 4, "no_lake"),
        (("audit",), 4, "no_lake"),
        (("compact",), 4, "no_lake"),
        (("vacuum",), 4, "no_lake"),
        (("repair",), 4, "no_lake"),
        (("forget", "ana"), 4, "no_lake"),
        (("snapshot", "there"), 4, "no_lake"),
        (("snapshot", "there", "--as-of", "ana:7"), 2, "bad_input"),
        (("stream", "--every", "soon"), 2, "bad_input"),
    ],
)
def test_U2_what_cannot_work_is_refused_before_spark_starts(
    cli: Cli, tmp_path: Path, words: tuple[str, ...], code: int, error: str
) -> None:
    lake = tmp_path / "lake"
    refused = cli("pipeline", *words, "--json", code=code, env={"HOLDFAST_LAKE": str(lake)})
    assert refused.error["code"] == error
    assert not lake.exists()


def test_U2_a_repair_tells_what_is_missing_and_what_it_could_not_read(
    cli: Cli, tmp_path: Path
) -> None:
    filled = read_in_turns(tmp_path)
    lake = str(filled.lake.root)
    ana, zoe = filled.histories.homes
    gone = log_source(str(tmp_path / "nowhere"))
    remember(filled.lake, [gone, log_source(str(filled.histories.homes[ana]))])
    restored(filled.lake.sightings, filled.older / "sightings")
    shown = cli("pipeline", "repair", "--dry-run", "--lake", lake, code=1)
    assert "LOG" in shown.out
    assert "21 to" in shown.out
    done = cli("pipeline", "repair", "--lake", lake, "--json", code=1).json
    assert done["left"] is True
    assert [log["log"] for log in done["logs"] if log["left"]] == [zoe]
    assert [one["location"] for one in done["failures"]] == [gone.location]


def test_U2_which_lake_must_be_said(cli: Cli) -> None:
    refused = cli("pipeline", "status", "--json", code=2, env={"HOLDFAST_LAKE": ""})
    assert "--lake" in refused.error["hint"]


@pytest.mark.parametrize("place", ["dbfs:/lake", "ftp://host/lake", "s3:/bucket/lake", "s3a:x"])
def test_P10_a_place_that_is_none_makes_no_folder_of_that_name(
    cli: Cli, tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    refused = cli("pipeline", "run", str(cli.home), "--lake", place, "--json", code=2)
    assert refused.error["code"] in ("unknown_scheme", "bad_path")
    assert list((tmp_path / "here").iterdir()) == []


def test_P11_secrets_of_a_store_stand_in_a_file_and_not_in_the_command(
    cli: Cli, tmp_path: Path
) -> None:
    status = ("pipeline", "status", "--lake", "s3://bucket/lake", "--json")
    said = cli(*status, "--option", "aws_secret_access_key=hunter2hunter2", code=2)
    assert "--options-file" in said.error["hint"]
    options = tmp_path / "options"
    options.write_text(
        "aws_endpoint=http://127.0.0.1:1\naws_allow_http=true\nmax_retries=0\n"
        "aws_access_key_id=ana\naws_secret_access_key=hunter2hunter2\n"
    )
    away = cli(*status, "--options-file", str(options), code=1)
    named = cli(*status, env={"HOLDFAST_LAKE_OPTIONS": str(options)}, code=1)
    for answer in (said, away, named):
        assert "hunter2" not in answer.out + answer.err
    assert away.error["code"] == named.error["code"] == "unreachable"
    missing = cli(*status, "--options-file", str(tmp_path / "none"), code=2)
    assert "none" in missing.error["message"]


@pytest.mark.parametrize(
    "sql",
    ["drop table state", "", "  ", "insert into state values (1)", "with a as (select 1) "
     "insert into b select * from a", "create view x as select 1", "set a=b", "; select 1",
     "select reflect('java.lang.System', 'exit')", "from state insert into x select *"],
)  # fmt: skip
def test_U2_a_query_that_would_change_something_is_refused(
    cli: Cli, tmp_path: Path, sql: str
) -> None:
    lake = str(tmp_path / "lake")
    Lake.open(lake, create=True)
    refused = cli("pipeline", "query", sql, "--lake", lake, "--json", code=2)
    assert refused.error["code"] == "bad_input"
    assert "only reads" in refused.error["message"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("120", {"lamport": 120}),
        ("lamport:120", {"lamport": 120}),
        ("plant:17", {"log": "plant", "offset": 17}),
        ("a:b:17", {"log": "a:b", "offset": 17}),
        ("2026-11-15T10:00:00Z", {"at": datetime(2026, 11, 15, 10, tzinfo=UTC)}),
        ("2026-11-15", {"at": datetime(2026, 11, 15, tzinfo=UTC)}),
        ("2026-11-15T10:00", {"at": datetime(2026, 11, 15, 10, tzinfo=UTC)}),
    ],
)
def test_P9_a_place_in_the_past_is_a_stamp_a_time_or_an_offset(
    text: str, said: dict[str, object]
) -> None:
    assert parse_as_of(text) == said


@pytest.mark.parametrize("text", ["", "plant:", ":7", "soon", "-3", "plant:-1"])
def test_P9_what_is_no_place_in_the_past_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="not a point in the past"):
        parse_as_of(text)


def test_P3_a_difference_is_shown_from_both_sides(capfd: pytest.CaptureFixture[str]) -> None:
    ours = {"value": 1, "lamport": 3, "peer": "ana", "id": "01"}
    difference = Difference(
        mesh="team", table="state", bucket="7f", key=["build"], node=ours, lake=None
    )
    fine = VerifiedLog(log="ana", location="a", status="same", epoch=1, head=4)
    wrong = VerifiedLog(
        log="ben", location="b", status="differs", differences=(difference,), behind={"state": 2}
    )
    tell_verified(Work(CommandSession(), None), (fine, wrong))
    sys.stdout.flush()
    lines = capfd.readouterr().out.splitlines()
    assert lines[0].split() == ["LOG", "STATUS", "ROWS", "BEHIND", "EPOCH", "HEAD", "REASON"]
    assert lines[2].split()[:4] == ["ben", "differs", "0", "2"]
    assert lines[4:] == [
        "ben differs first in state of team: build",
        '  node  {"value":1,"lamport":3,"peer":"ana","id":"01"}',
        "  lake  has no such row",
    ]
    tell_verified(Work(CommandSession(as_json=True), None), (fine, wrong))
    sys.stdout.flush()
    document = json.loads(capfd.readouterr().out)
    assert document["differs"]
    assert document["logs"][1]["differences"][0]["node"] == ours


def test_P5_findings_are_listed_under_the_summary(capfd: pytest.CaptureFixture[str]) -> None:
    found = AuditFinding(
        severity="finding", mesh="team", log="ana", epoch=1, offset=7, origin="ana", entity="k",
        id=None, detail="seq 3 came twice", at=None, weight=1,
    )  # fmt: skip
    repeats = AuditResult(
        name="repeats", about="numbers given twice", weight="none", findings=1, sample=(found,)
    )
    report = AuditReport(bronze_version=3, rows=7, audits=(repeats,))
    tell_audited(Work(CommandSession(), None), report, ["lag.png"])
    sys.stdout.flush()
    said = capfd.readouterr()
    assert said.out.splitlines()[-1] == "repeats: finding: seq 3 came twice"
    assert "drew lag.png" in said.err
    assert "1 findings, 0 notices" in said.err


def test_P11_status_asks_nodes_that_serve(cli: Cli, tmp_path: Path) -> None:
    lake = Lake.open(tmp_path / "lake", create=True)
    with running(cli.home) as up:
        remember(lake, [log_source(up.unix)])
        cli("state", "set", "build", "green")
        (log,) = cli("pipeline", "status", "--lake", lake.root, "--json").json["logs"]
        assert (log["log"], log["head"], log["lag"], log["trouble"]) == ("ana", 1, 1, None)
    (away,) = cli("pipeline", "status", "--lake", lake.root, "--json").json["logs"]
    assert away["lag"] is None
    assert away["trouble"]


# --- with Spark, as real processes ---------------------------------------------------------------


@pytest.fixture
def two(tmp_path: Path) -> tuple[Cli, Path, Path]:
    """A command without a home, and two homes that have not met."""
    for peer, colour in (("ana", "green"), ("ben", "red")):
        with holdfast.open(tmp_path / peer, peer=peer, create=True, sync="normal") as node:
            node.create_mesh("team").state.set("build", {"colour": colour})
    return Cli(tmp_path / "none"), tmp_path / "ana", tmp_path / "ben"


@pytest.mark.timeout(400)
def test_P11_a_run_says_what_it_did_and_the_next_one_needs_no_words(
    two: tuple[Cli, Path, Path], tmp_path: Path
) -> None:
    cli, ana, ben = two
    lake = ("--lake", str(tmp_path / "lake"), "--json")
    events = tmp_path / "lineage.jsonl"
    words = ("pipeline", "run", str(ana), str(ben), "--name", f"bo={ben}", *lake, *SMALL)
    first = cli.process(*words, "--lineage", str(events), patience=PATIENCE_S)
    assert first.code == 0, first.err
    done = first.json
    assert {log["log"]: (log["from"], log["to"], log["new"]) for log in done["logs"]} == {
        "ana": (1, 1, 1),
        "bo": (1, 1, 1),
    }
    assert [log["lag"] for log in done["logs"]] == [0, 0]
    assert (done["tables"]["bronze"], done["tables"]["silver/state"]) == (2, 1)
    assert done["failures"] == []
    assert first.err == "", "nothing but what we say ourselves"
    assert done.keys() >= METRICS
    assert (done["ok"], done["rows"]["new"], done["lag"]) == (True, 2, 0)
    assert (done["versions"]["bronze"], done["bytes"]["bronze"] > 0) == (0, True)
    started, completed = map(json.loads, events.read_bytes().splitlines())
    assert (started["eventType"], completed["eventType"]) == ("START", "COMPLETE")
    read = [log["inputFacets"]["inputStatistics"]["rowCount"] for log in completed["inputs"]]
    assert read == [1, 1]

    # Programs that follow the state get what changed, and from where to go on.
    row, end = map(json.loads, cli("pipeline", "changes", "state", *lake).out.splitlines())
    assert (row["change"], row["key"], row["peer"]) == ("set", "build", "ben")
    assert end == {"table": "state", "since": -1, "upto": 0, "rows": 1}
    (end,) = map(json.loads, cli("pipeline", "changes", "state", "--since=0", *lake).out.split())
    assert (end["upto"], end["rows"]) == (0, 0)
    assert "go on with: --since 0" in cli("pipeline", "changes", "state", *lake[:2]).err
    assert cli("pipeline", "changes", "state", "--since=1", *lake, code=2).error["code"]

    # Engines that read Delta get the SQL, and tables that can be read.
    made = cli("pipeline", "register", "state", "--print", "duckdb", *lake[:2]).out
    assert made.count("CREATE OR REPLACE VIEW") == 3
    assert (tmp_path / "lake" / "increments" / "state" / "_delta_log").is_dir()
    assert cli("pipeline", "register", "nothing", "--print", "trino", *lake, code=4).error

    # Schedulers tell by the code that it is worth a try later.
    with Lake.open(tmp_path / "lake").working("a fold"):
        assert cli("pipeline", "run", *lake, code=5).error["code"] == "lake_busy"

    # Nothing is new: Spark is not even started.
    again = cli("pipeline", "run", *lake).json
    assert [(log["from"], log["to"], log["lag"]) for log in again["logs"]] == [(None, 1, 0)] * 2
    with holdfast.open(ana, sync="normal") as node:
        node.mesh("team").state.set("more", 1)
    logs = {log["log"]: log for log in cli("pipeline", "status", *lake).json["logs"]}
    assert (logs["ana"]["lag"], logs["bo"]["lag"], logs["ana"]["trouble"]) == (1, 0, None)

    sql = "select peer, value from state"
    asked = cli.process("pipeline", "query", sql, *lake[:2], *SMALL, patience=PATIENCE_S)
    assert asked.out.splitlines() == ["PEER  VALUE", 'ben   {"colour":"red"}']
    assert asked.err == ""

    # A log that is gone keeps nobody from the others, and what went wrong is said.
    shutil.rmtree(ben)
    tried = cli("pipeline", "forget", str(ana), *lake, "--dry-run")
    assert (tried.json["dry_run"], "stop reading" in tried.err) == (True, False)
    assert cli("pipeline", "forget", "nothing", *lake, "--dry-run", code=4).error["code"]
    cli("pipeline", "forget", str(ana), *lake)
    cli("pipeline", "forget", str(ana), *lake, "--dry-run", code=4)
    gone = cli("pipeline", "run", *lake, code=1)
    assert gone.json["failures"][0]["log"] == "bo"
    assert gone.json["failures"][0]["code"] == "bad_input"
    assert "error: bo: there is no log" in cli("pipeline", "run", *lake[:2], code=1).err


@pytest.mark.timeout(400)
def test_P11_a_stream_keeps_up_and_ends_well_when_it_is_told_to(
    two: tuple[Cli, Path, Path], tmp_path: Path
) -> None:
    cli, ana, _ = two
    lake = ("--lake", str(tmp_path / "lake"), "--json")
    with cli.start("pipeline", "stream", str(ana), "--every", "200ms", *lake, *SMALL) as running:
        assert running.stdout is not None
        assert json.loads(running.stdout.readline())["new"] == 1
        with holdfast.open(ana, sync="normal") as node:
            node.mesh("team").state.set("more", 1)
        step = json.loads(running.stdout.readline())
        assert (step["event"], step["new"], step["lag"]) == ("batch", 1, {"ana": 0})
        running.send_signal(signal.SIGTERM)
        _, err = running.communicate(timeout=PATIENCE_S)
    assert (running.returncode, err) == (0, b"")
    (ana_log,) = cli("pipeline", "status", *lake).json["logs"]
    assert (ana_log["offset"], ana_log["lag"]) == (2, 0)


EMBEDDING = """
def embed(texts):
    return [[float(len(text)), 1.0] for text in texts]
"""


@pytest.mark.timeout(600)
def test_P7_verify_audit_and_reembed_as_people_call_them(tmp_path: Path) -> None:
    ana = tmp_path / "ana"
    model = Model(provider="acme", name="old", version="1", dim=3)
    with holdfast.open(ana, peer="ana", create=True, sync="normal") as node:
        mesh = node.create_mesh("team")
        mesh.state.set("build", "green")
        mesh.vectors.store("doc", [1.0, 2.0, 3.0], model=model, content="seven")
    (tmp_path / "lengths.py").write_text(EMBEDDING)
    lake = ("--lake", str(tmp_path / "lake"))
    words = ("--mesh", "team", "--from", "acme:old:1", "--model", "acme:new:1:2")
    commands: list[tuple[str, ...]] = [
        ("run", str(ana)),
        ("verify",),
        ("audit", "gaps", "growth", "--plots", str(tmp_path / "plots")),
        ("reembed", *words, "--embed", "lengths:embed", "--to", str(ana)),
    ]
    _, verified, audited, made = one_spark(
        *(("pipeline", *command, *lake) for command in commands),
        env={"PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"},
    )
    assert not verified["differs"]
    assert [(log["log"], log["status"], log["head"]) for log in verified["logs"]] == [
        ("ana", "same", 2)
    ]
    assert audited["findings"] == 0
    assert audited["plots"]
    assert all(Path(path).read_bytes().startswith(b"\x89PNG") for path in audited["plots"])
    assert (made["embedded"], made["up_to_date"]) == (1, 0)
    with holdfast.open(ana) as node:
        assert node.log.head().offset == 3


@pytest.mark.timeout(400)
def test_P10_the_same_runs_over_spark_connect(two: tuple[Cli, Path, Path], tmp_path: Path) -> None:
    cli, ana, ben = two
    lake = ("--lake", str(tmp_path / "lake"))
    # `local` starts a server of Spark Connect on this machine and talks to it as to any other.
    conf = ("--remote", "local[2]", *SMALL)
    done = cli.process(
        "pipeline", "run", str(ana), str(ben), *lake, *conf, "--json", patience=PATIENCE_S
    )
    assert done.code == 0, done.err
    assert done.json["tables"] == {**done.json["tables"], "bronze": 2, "silver/state": 1}


@pytest.mark.timeout(400)
def test_P11_a_failed_job_says_why_in_one_line_and_where_the_rest_is(
    cli: Cli, tmp_path: Path
) -> None:
    lake = str(tmp_path / "lake")
    Lake.open(lake, create=True)
    conf = ("--conf", "spark.driver.memory=1m")
    failed = cli.process(
        "pipeline", "query", "select 1", "--lake", lake, *conf, "--json", patience=PATIENCE_S
    )
    assert failed.code == 1
    assert failed.error["code"] == "job_failed"
    assert failed.err.count("\n") == 1
    log = Path(failed.error["hint"].rpartition(" ")[2])
    assert log.read_text()
    shutil.rmtree(log.parent)
