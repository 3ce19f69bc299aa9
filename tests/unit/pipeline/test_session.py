"""The start of a session: the Java version, jars, settings, and the package for a cluster."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from kproc.pipeline import session
from kproc.pipeline.errors import PipelineError
from kproc.pipeline.scratch import Scratch
from kproc.pipeline.session import RunningSpark, check_java, package_kproc, settings, worker_environment
from kproc.pipeline.spec import parse_spec
from tests.support.pipeline_specification import CONNECTOR_SPEC

pytest.importorskip("pyspark")


def java_that_says(directory: Path, version: str) -> dict[str, str]:
    """An environment whose java answers so."""
    java = directory / "java"
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2024-01-01' >&2\n")
    java.chmod(0o755)
    return {"PATH": str(directory)}


@pytest.mark.parametrize("version", ["17.0.15", "21", "25-ea"])
def test_a_java_that_will_do_is_taken(tmp_path: Path, version: str) -> None:
    check_java(java_that_says(tmp_path, version))


@pytest.mark.parametrize(("version", "major"), [("1.8.0_392", 8), ("11.0.2", 11)])
def test_an_old_java_is_refused_by_its_number(tmp_path: Path, version: str, major: int) -> None:
    with pytest.raises(
        PipelineError, match=rf"needs Java 17 or newer; {tmp_path}/java is Java {major}: set JAVA_HOME"
    ):
        check_java(java_that_says(tmp_path, version))


def test_no_java_is_said_with_where_it_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="there is none on the PATH: install one or set JAVA_HOME"):
        check_java({"PATH": str(tmp_path)})
    with pytest.raises(PipelineError, match="there is none in JAVA_HOME=/nowhere"):
        check_java({"PATH": str(tmp_path), "JAVA_HOME": "/nowhere"})


def settings_for(tmp_path: Path, master: str, connector: str = "kproc") -> dict[str, str]:
    spec = parse_spec(CONNECTOR_SPEC.format(master=master, connector=connector), tmp_path / "p.toml")
    return settings(spec, tmp_path, {"HOME": str(tmp_path)}, tmp_path / "temporary")


def test_settings_of_specification_override_defaults(tmp_path: Path) -> None:
    local = settings_for(tmp_path, "local[3,4]")
    assert (local["spark.ui.enabled"], local["spark.x"]) == ("true", "2")
    assert (local["spark.sql.shuffle.partitions"], local["spark.driver.host"]) == ("3", "127.0.0.1")
    cluster = settings_for(tmp_path, "spark://far:7077")
    assert "spark.driver.host" not in cluster
    assert "spark.sql.shuffle.partitions" not in cluster
    assert cluster["spark.executorEnv.PYTHONPATH"].endswith(".zip")


@pytest.mark.long
def test_the_package_is_all_that_an_executor_imports(tmp_path: Path) -> None:
    package = package_kproc(tmp_path)
    names = zipfile.ZipFile(package).namelist()
    assert {"kproc/__init__.py", "kproc/spark/source.py", "pyspark_kproc/__init__.py"} <= set(names)
    code = (
        "import kproc.spark.source, pyspark_kproc; print(kproc.__file__); print(pyspark_kproc.DefaultSource.name());"
        # The first request reads the schemas.
        "from kproc.wire.codec import prepare; prepare(0, 9)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": str(package)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.splitlines() == [f"{package}/kproc/__init__.py", "kproc"], done.stderr


def test_children_are_found_when_a_thread_ends_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    read, ended = Path.read_text, [True]

    def read_after_an_end(path: Path) -> str:
        if ended:
            ended.clear()
            raise FileNotFoundError
        return read(path)

    with subprocess.Popen(["sleep", "60"]) as child:
        monkeypatch.setattr(Path, "read_text", read_after_an_end)
        assert child.pid in session.child_pids()
        child.kill()


def test_workers_use_this_python_and_kproc_unless_set() -> None:
    environment = worker_environment({"PYTHONPATH": "/x"})
    assert environment["KPROC_WORKER_PYTHON"] == sys.executable
    assert "PYSPARK_PYTHON" not in worker_environment({"PYSPARK_PYTHON": "/other"})
    assert worker_environment({}, is_local=False)["PYSPARK_PYTHON"] == sys.executable


def test_workers_drop_spark_zips_from_path_and_keep_rest(tmp_path: Path) -> None:
    zips = ["/spark/python/lib/pyspark.zip", "/spark/python/lib/py4j-0.10.9.9-src.zip"]
    others = ["/spark/jars/a b.jar", str(tmp_path)]
    (tmp_path / "mine.py").write_text("")
    environment = worker_environment({})
    done = subprocess.run(
        [environment["PYSPARK_PYTHON"], "-c", "import mine, sys; print(*sys.path[:2], sep='|')", "--x"],
        env={**environment, "PYTHONPATH": ":".join([*zips, *others])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == "|".join(others), done.stderr


@pytest.mark.parametrize("how", ["kill -9 $$", "exit 3"])
def test_stop_after_end_of_jvm_removes_its_files(how: str) -> None:
    with subprocess.Popen(["sh", "-c", how], stdin=subprocess.PIPE) as process:
        scratch = Scratch()
        gateway = SimpleNamespace(proc=process)
        spark = RunningSpark(session=None, gateway=gateway, package=None, scratch=scratch)  # type: ignore[arg-type]
        assert spark.has_ended(10)
        spark.stop()  # It sends nothing to the ended JVM, which would hang.
        assert not scratch.path.exists()
