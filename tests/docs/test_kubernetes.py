"""The chart for Kubernetes: its manifests fit together, and what they run and read, we have.

They were also compared with what Go's templates make of them, and checked against the schemas of
Kubernetes 1.31 and of the Spark operator, by hand: neither is to be had everywhere.
"""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import msgspec
import pytest
import yaml  # type: ignore[import-untyped]

from holdfast.apps.cli.commands.broker import DSN, STORE, TOKEN
from holdfast.broker.identity import KEY
from holdfast.node.settings import Settings
from support.command_words import parses
from support.helm_templates import Engine, TemplateProblem, rendered
from support.project import ROOT

CHART = ROOT / "packaging" / "helm" / "holdfast"
CONTAINER = (ROOT / "packaging" / "container" / "Containerfile").read_text(encoding="utf-8")
ALL: dict[str, Any] = {
    "broker": {"registration": "token", "registrationSecret": "reg", "options": ["--rate=1000"]},
    "image": {"pullSecrets": ["mine"]},
    "voters": {"enabled": True, "settings": '[bus]\npeers = ["voters-1@voters-1.voters:7412"]'},
    "lake": {
        **{"enabled": True, "lake": "s3://bucket/lake", "tokenSecret": "t", "optionsSecret": "o"},
        **{"logs": ["https://holdfast-nodes-0.holdfast-nodes:7411"], "conf": {"spark.a": 1}},
    },
}
Document = dict[str, Any]


@pytest.fixture(scope="module")
def documents() -> list[Document]:
    return rendered(CHART, ALL)


def the(documents: list[Document], kind: str, name: str) -> Document:
    (found,) = (one for one in documents if (one["kind"], one["metadata"]["name"]) == (kind, name))
    return found


def workloads(documents: list[Document]) -> list[Document]:
    found = [one for one in documents if one["kind"] in ("Deployment", "StatefulSet")]
    assert [one["metadata"]["name"] for one in found] == [
        *("holdfast-broker", "holdfast-nodes", "holdfast-voters"),
    ]
    return found


def test_U7_without_settings_the_chart_has_brokers_and_nodes() -> None:
    kinds = [one["kind"] for one in rendered(CHART, {})]
    assert kinds == [
        *("Deployment", "Service", "PodDisruptionBudget"),
        *("ConfigMap", "Service", "StatefulSet", "PodDisruptionBudget"),
    ]
    assert rendered(CHART, {"broker": {"enabled": False}, "nodes": {"enabled": False}}) == []


def test_U7_selectors_choose_the_pods_and_ports_that_are_meant(documents: list[Document]) -> None:
    for one in workloads(documents):
        name, pod = one["metadata"]["name"], one["spec"]["template"]
        labels = pod["metadata"]["labels"]
        assert one["spec"]["selector"]["matchLabels"] == labels
        assert labels["app.kubernetes.io/component"] == name.removeprefix("holdfast-")
        service, budget = (the(documents, k, name) for k in ("Service", "PodDisruptionBudget"))
        assert service["spec"]["selector"] == labels
        assert budget["spec"] == {"maxUnavailable": 1, "selector": {"matchLabels": labels}}
        (container,) = pod["spec"]["containers"]
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        assert {port["targetPort"] for port in service["spec"]["ports"]} == ports.keys()
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            asked = container[probe]["httpGet"]
            assert (asked["scheme"], asked["port"] in ports) == ("HTTPS", True)
            assert asked["path"] == ("/readyz" if probe == "readinessProbe" else "/healthz")


def test_U7_no_pod_is_root_or_writes_beside_its_volumes(documents: list[Document]) -> None:
    assert "USER 10001:10001" in CONTAINER
    for one in workloads(documents):
        pod = one["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] == pod["securityContext"]["fsGroup"] == 10001
        assert pod["automountServiceAccountToken"] is False
        volumes = {volume["name"] for volume in pod["volumes"]}
        volumes |= {
            claim["metadata"]["name"] for claim in one["spec"].get("volumeClaimTemplates", [])
        }
        for container in (*pod["initContainers"], *pod["containers"]):
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes


def test_U7_pods_run_our_commands_with_secrets_in_files(documents: list[Document]) -> None:
    broker, nodes, _ = (one["spec"]["template"]["spec"] for one in workloads(documents))
    (container,) = broker["containers"]
    parses(container["args"])
    assert "--rate=1000" in container["args"]
    env = {one["name"]: one["value"] for one in container["env"]}
    assert set(env) == {STORE, f"{DSN}_FILE", f"{TOKEN}_FILE"}
    mounts = [mount["mountPath"] for mount in container["volumeMounts"]]
    assert all(str(Path(value).parent) in mounts for name, value in env.items() if "_FILE" in name)
    copied = broker["initContainers"][0]["args"][0]
    assert f"/identity/{KEY} /identity/broker.name {env[STORE]}/" in copied
    (container,) = nodes["containers"]
    parses(container["args"])
    made = nodes["initContainers"][0]["args"][0]
    parses(shlex.split(made.partition("|| holdfast ")[2]))
    assert '"$HOLDFAST_HOME/data.db"' in made


def test_U7_the_settings_of_nodes_are_settings(documents: list[Document]) -> None:
    for name in ("holdfast-nodes", "holdfast-voters"):
        raw = the(documents, "ConfigMap", name)["data"]["holdfast.toml"]
        settings = msgspec.convert(msgspec.toml.decode(raw), Settings).check()
        assert (settings.listen, settings.copied_home) == ("0.0.0.0:7411", "allow")
    assert settings.bus.static_peers == {"voters-1": ("voters-1.voters:7412",)}


def test_U7_voters_stand_apart_and_homes_stay(documents: list[Document]) -> None:
    voters = the(documents, "StatefulSet", "holdfast-voters")
    apart = voters["spec"]["template"]["spec"]["affinity"]["podAntiAffinity"]
    (rule,) = apart["requiredDuringSchedulingIgnoredDuringExecution"]
    assert rule["topologyKey"] == "kubernetes.io/hostname"
    assert rule["labelSelector"]["matchLabels"] == voters["spec"]["selector"]["matchLabels"]
    nodes = the(documents, "StatefulSet", "holdfast-nodes")
    for one in (nodes, voters):
        assert one["spec"]["persistentVolumeClaimRetentionPolicy"] == {
            "whenDeleted": "Retain",
            "whenScaled": "Retain",
        }
        service = the(documents, "Service", one["spec"]["serviceName"])
        assert service["spec"]["clusterIP"] == "None"
        assert service["spec"]["publishNotReadyAddresses"] is True
    assert (
        "preferredDuringSchedulingIgnoredDuringExecution"
        in (nodes["spec"]["template"]["spec"]["affinity"]["podAntiAffinity"])
    )
    alone = rendered(CHART, {"nodes": {"apart": "no"}})
    assert "affinity" not in the(alone, "StatefulSet", "holdfast-nodes")["spec"]["template"]["spec"]


def test_U7_a_job_runs_the_pipeline_in_the_image_with_spark(documents: list[Document]) -> None:
    template = the(documents, "ScheduledSparkApplication", "holdfast-lake")["spec"]["template"]
    assert template["image"] == "holdfast:0.1.0-spark"
    program = Path(template["mainApplicationFile"].removeprefix("local://"))
    assert f"packaging/container/{program.name} {program.parent}/" in CONTAINER
    parses(template["arguments"])
    said = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    assert f"\npyspark=={template['sparkVersion']} " in said
    for role in ("driver", "executor"):
        paths = {secret["path"] for secret in template[role]["secrets"]}
        files = {word.partition("=")[2] for word in template["arguments"] if "-file=" in word}
        assert {str(Path(file).parent) for file in files} == paths
        assert template[role]["securityContext"]["runAsNonRoot"] is True
    account = template["driver"]["serviceAccount"]
    binding = the(documents, "RoleBinding", account)
    assert binding["subjects"][0]["name"] == binding["roleRef"]["name"] == account
    assert template["sparkConf"]["spark.a"] == "1"


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"lake": {"enabled": True}}, "where the lake is"),
        ({"broker": {"registration": "token"}}, "registrationSecret"),
    ],
)
def test_U7_what_has_to_be_said_is_asked_for(values: Document, says: str) -> None:
    with pytest.raises(TemplateProblem, match=says):
        rendered(CHART, values)


def test_U7_values_are_described_and_others_refused() -> None:
    schema = json.loads((CHART / "values.schema.json").read_bytes())
    own = yaml.safe_load((CHART / "values.yaml").read_bytes())
    check = jsonschema.Draft7Validator(schema)
    check.validate(own)
    for part, bad in (
        ("voters", {"replicas": 2}),
        ("nodes", {"apart": "maybe"}),
        ("nodes", {"misspelt": 1}),
        ("broker", {"registration": "everybody"}),
        ("image", {"name": ""}),
    ):
        assert not check.is_valid({**own, part: {**own[part], **bad}}), (part, bad)


def test_U7_the_notes_name_commands_that_are_there() -> None:
    notes = (CHART / "templates" / "NOTES.txt").read_text(encoding="utf-8")
    root = {"Values": yaml.safe_load((CHART / "values.yaml").read_bytes())}
    root |= {"Chart": {"AppVersion": "0.1.0"}, "Release": {"Name": "holdfast"}}
    text = Engine()
    shown = text.run(text.parse(notes), root, {"$": root})
    commands = re.findall(r"-- holdfast (.+)", shown)
    assert len(commands) == 4
    for words in commands:
        parses(shlex.split(words))


def test_U7_the_chart_has_the_version_of_the_program() -> None:
    from holdfast import __version__

    about = yaml.safe_load((CHART / "Chart.yaml").read_bytes())
    assert about["version"] == about["appVersion"] == __version__
    compose = (ROOT / "packaging" / "compose" / "compose.yaml").read_text(encoding="utf-8")
    assert f"HOLDFAST_VERSION:-{__version__}" in compose


@pytest.mark.parametrize("text", ["{{ nothing 1 }}", "{{ if .a }}", "{{ .b.c }}", "{{ $x }}"])
def test_U7_a_template_that_asks_for_more_is_refused(text: str) -> None:
    engine = Engine()
    with pytest.raises(TemplateProblem):
        engine.run(engine.parse(text), {"a": 1, "b": {}}, {})
