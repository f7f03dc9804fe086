"""A Java and a session, wherever this runs."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from holdfast.pipeline.spark import java, session
from holdfast.pipeline.spark.session import DRIVER_BYTES_MAX, settings_for, start
from holdfast.rules.errors import BadInput, NoJava, Unreachable
from holdfast.rules.limits import GIB, MIB


def test_P10_a_session_runs_what_python_gives_it(spark: SparkSession) -> None:
    frame = spark.range(10).mapInArrow(lambda batches: batches, "id long")
    assert frame.selectExpr("sum(id)").first() == (45,)


def test_P10_without_a_java_on_the_machine_the_packed_one_runs(tmp_path: Path) -> None:
    home = java.java_home({"PATH": str(tmp_path)}, tmp_path / "cache")
    assert home.is_relative_to(tmp_path / "cache")
    assert java._major(home / "bin" / "java") >= java.OLDEST
    again = java.java_home({"PATH": str(tmp_path)}, tmp_path / "cache")
    assert again == home


def test_P10_the_wrapper_drops_one_flag_and_nothing_else(tmp_path: Path) -> None:
    real = tmp_path / "real" / "bin"
    real.mkdir(parents=True)
    (real / "java").write_text('#!/bin/sh\nprintf "%s|" "$@"\n')
    (real / "java").chmod(0o755)
    home = java._wrapped(real.parent, tmp_path / "cache")
    import subprocess

    words = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "", "--add-modules=x", "*"]
    said = subprocess.run([home / "bin" / "java", *words], capture_output=True, text=True)
    assert said.stdout == "-cp|a b||--add-modules=x|*|"


def test_P10_a_java_that_is_too_old_or_broken_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    old = tmp_path / "bin" / "java"
    old.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_392\"' >&2\n")
    old.chmod(0o755)
    monkeypatch.setattr(java, "_packed", lambda: None)
    with pytest.raises(NoJava, match="is Java 8"):
        java.java_home({"JAVA_HOME": str(tmp_path), "PATH": ""})
    old.write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(NoJava, match="is no Java"):
        java.java_home({"JAVA_HOME": str(tmp_path), "PATH": ""})


def test_P10_settings_fit_the_machine() -> None:
    small = settings_for("local[*]", 2, 2 * GIB)
    assert small["spark.driver.memory"] == f"{1 * GIB // MIB}m"
    large = settings_for("local[*]", 64, 512 * GIB)
    assert large["spark.driver.memory"] == f"{DRIVER_BYTES_MAX // MIB}m"
    assert "spark.driver.memory" not in settings_for("spark://host:7077", 2, 8 * GIB)


def test_P10_a_server_that_never_answers_is_an_error_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session, "SPARK_REACH_MS_MAX", 200)
    with socket.create_server(("127.0.0.1", 0)) as black_hole:
        remote = f"sc://127.0.0.1:{black_hole.getsockname()[1]}/;token=secret"
        with pytest.raises(Unreachable, match=r"nothing answered within 0\.2 s") as refused:
            start(remote=remote)
    assert "secret" not in str(refused.value)
    with pytest.raises(BadInput, match="no address of Spark Connect"):
        start(remote="http://host?token=secret")


def test_P10_one_place_to_run_is_named() -> None:
    with pytest.raises(BadInput):
        start(master="local[2]", remote="sc://localhost")
