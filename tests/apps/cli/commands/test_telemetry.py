"""`holdfast telemetry`: what people see of what stays on this node."""

from __future__ import annotations

from support.cli import Cli


def test_Q1_telemetry_is_set_shown_listed_and_deleted(cli: Cli) -> None:
    done = cli("telemetry", "set", "agent", "a", '{"pid":7}', "--json-value", "--ttl", "60")
    assert done.err == "set agent 'a' of team, on this node only\n"
    assert cli("telemetry", "get", "agent", "a").out == '{"pid":7}\n'
    one = cli("telemetry", "set", "run/1", "0001", "step 1", "--json").json
    assert (one["mesh"], one["kind"], one["key"], one["value"]) == (
        "team",
        "run/1",
        "0001",
        "step 1",
    )
    listed = cli("telemetry", "list", "--json").json
    assert [(row["kind"], row["value"]) for row in listed] == [
        ("agent", {"pid": 7}),
        ("run/1", "step 1"),
    ]
    assert [row["key"] for row in cli("telemetry", "list", "run/1", "--json").json] == ["0001"]
    assert cli("telemetry", "delete", "agent", "a").err == "deleted agent 'a' of team\n"
    gone = cli("telemetry", "get", "agent", "a", code=4)
    assert "has no agent 'a' here" in gone.err
    assert "has no telemetry" in cli("telemetry", "list", "other").err
    assert cli("log", "tail", "--json", code=None).out.strip() in ("", "[]"), (
        "nothing of it is in the log"
    )
