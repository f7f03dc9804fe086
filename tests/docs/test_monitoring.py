"""The rules and the dashboard ask for figures that nodes and brokers really have."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator

import pytest
import yaml  # type: ignore[import-untyped]

from holdfast.node.settings import BusSettings, Settings
from support.broker_up import broker_at
from support.cli import Cli
from support.daemon import ask, make_home, running
from support.project import ROOT, expect_none
from support.waiting import until

RULES = ROOT / "packaging" / "prometheus" / "holdfast.rules.yaml"
BOARD = ROOT / "packaging" / "grafana" / "holdfast.json"
FROM_ELSEWHERE = {
    "up": {"job", "instance"},
    # Written by `holdfast check backup --format prometheus`, for a collector of text files.
    "holdfast_check_backup_level": {"instance"},
}
ALWAYS = {"job", "instance"}
WORDS = re.compile(r"\b(?:up|holdfast_\w+)\b")
SELECTED = re.compile(r"\b(up|holdfast_\w+)\{([^}]*)\}")

Exported = dict[str, set[str]]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """Every figure of a node and a broker that have something of each kind, with its labels; also
    of figures that have no row now.
    """
    folder = tmp_path_factory.mktemp("figures")
    ana = Cli(make_home(folder / "ana", "ana"))
    other = Cli(make_home(folder / "bob", "bob"))
    bus = Settings(tcp="127.0.0.1:0", bus=BusSettings(listen=["127.0.0.1:0"], discovery="off"))
    with broker_at(folder / "hub") as hub:
        ana("mesh", "publish", "team", "--broker", hub.url, "--no-wait")
        ana("mesh", "queue", "jobs")
        ana("consumer", "add", "lake")
        ana("peer", "trust", other("peer", "card").out.strip())
        ana("link", "add", "https://127.0.0.1:9", "--peer", "bob")
        with running(ana.home, bus) as up:
            ana("quorum", "init", "team")
            until(lambda: "quorum_lease_epoch{" in _scraped(up.unix))
            found = _scraped(up.unix) + _scraped(f"unix:{hub.folder / 'api.sock'}")
    return dict(_read(found))


def _scraped(address: str) -> str:
    return ask(address, "GET", "/metrics").body.decode()


def _read(text: str) -> Iterator[tuple[str, set[str]]]:
    named = re.findall(r"(?m)^# TYPE (\w+) ", text)
    for name in named:
        labels = set(re.findall(rf"(?m)^{name}\{{(.*)\}} ", text))
        yield name, {label for row in labels for label in re.findall(r'(\w+)="', row)}


def asked() -> Iterator[tuple[str, str]]:
    """Every expression, with who asks."""
    for group in yaml.safe_load(RULES.read_bytes())["groups"]:
        for rule in group["rules"]:
            yield rule["alert"], rule["expr"]
    for panel in json.loads(BOARD.read_bytes())["panels"]:
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"]


def test_U7_rules_and_dashboard_ask_for_figures_that_are_exported(exported: Exported) -> None:
    known = {**exported, **FROM_ELSEWHERE}
    assert len(exported) > 80
    wrong = []
    for who, expression in asked():
        names = set(WORDS.findall(expression.replace("holdfast.*", "")))
        assert names, who
        wrong += [f"{who}: {name}" for name in names - known.keys()]
        for name, selectors in SELECTED.findall(expression):
            labels = set(re.findall(r"(\w+)\s*(?:=|!)", selectors)) - ALWAYS
            # A figure without rows now shows no labels: the code says which it has.
            unknown = labels - known.get(name, labels) if known.get(name) else set()
            wrong += [f"{who}: {name} has no label {label}" for label in unknown]
    expect_none(wrong, "no node and no broker exports it")


def test_U7_alerts_name_labels_that_their_figure_has(exported: Exported) -> None:
    wrong = []
    for group in yaml.safe_load(RULES.read_bytes())["groups"]:
        for rule in group["rules"]:
            names = WORDS.findall(rule["expr"].replace("holdfast.*", ""))
            has = set().union(*(exported.get(name, set()) for name in names)) | ALWAYS
            told = set(re.findall(r"\$labels\.(\w+)", json.dumps(rule["annotations"])))
            if any(exported.get(name) for name in names):
                wrong += [f"{rule['alert']}: {label}" for label in told - has]
    expect_none(wrong, "the alert would show an empty place")


def test_U7_every_alert_says_what_to_do_by_commands_that_are_there() -> None:
    from holdfast.apps.cli.app import root

    nouns = set(root.list_commands(None))  # type: ignore[arg-type]
    names = []
    for group in yaml.safe_load(RULES.read_bytes())["groups"]:
        for rule in group["rules"]:
            names.append(rule["alert"])
            assert rule["labels"]["severity"] in ("warning", "critical")
            said = rule["annotations"]
            assert said["summary"]
            assert said["action"]
            commands = re.findall(r"holdfast (\w+)", said["action"])
            assert set(commands) <= nouns, rule["alert"]
    assert len(names) == len(set(names)) > 20


def test_U7_the_dashboard_is_one_that_grafana_takes() -> None:
    board = json.loads(BOARD.read_bytes())
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids)) > 25
    variables = {one["name"] for one in board["templating"]["list"]}
    assert variables == {"datasource", "job", "instance"}
    for panel in board["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        for target in panel.get("targets", []):
            used = set(re.findall(r"\$(\w+)", target["expr"])) - {"__rate_interval"}
            assert used <= variables
            assert target["datasource"]["uid"] == "${datasource}"


@pytest.mark.parametrize("words", [("check", RULES.name), ("test", "holdfast.test.yaml")])
def test_U7_prometheus_understands_the_rules(words: tuple[str, str]) -> None:
    """By its own tool where that is; else what every YAML reader sees must do."""
    if shutil.which("promtool") is None:
        assert yaml.safe_load((RULES.parent / words[1]).read_bytes())
        return
    done = subprocess.run(
        ["promtool", words[0], "rules", words[1]], cwd=RULES.parent, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
