"""Jars of Spark's stock connector."""

from __future__ import annotations

from pathlib import Path

import pytest

from kproc.pipeline.errors import PipelineError
from kproc.pipeline.session import settings
from kproc.pipeline.spec import parse_spec
from kproc.pipeline.stock import ARTIFACTS, stock_jars
from tests.support.pipeline_specification import CONNECTOR_SPEC

pytest.importorskip("pyspark")


def settings_for(tmp_path: Path, master: str, connector: str = "kproc") -> dict[str, str]:
    spec = parse_spec(CONNECTOR_SPEC.format(master=master, connector=connector), tmp_path / "p.toml")
    return settings(spec, tmp_path, {"HOME": str(tmp_path)}, tmp_path / "temporary")


def make_jar(repository: Path, directory: str, artifact: str, version: str) -> str:
    jar = repository / ".m2" / "repository" / directory / artifact / version / f"{artifact}-{version}.jar"
    jar.parent.mkdir(parents=True)
    jar.touch()
    return str(jar)


def test_stock_connector_jars_have_matching_versions(tmp_path: Path) -> None:
    with pytest.raises(
        PipelineError, match=r"needs jars that are neither in spark.jars nor in .*spark\.jars\.packages"
    ):
        settings_for(tmp_path, "local[2]", "kafka")
    wanted = {}
    for directory, artifact in ARTIFACTS:
        for version in ("3.9.0", "4.2.0", "9.9.9"):
            wanted[artifact, version] = make_jar(tmp_path, directory, artifact, version)
    jars = settings_for(tmp_path, "local[2]", "kafka")["spark.jars"].split(",")
    assert jars == [
        wanted[
            artifact, "3.9.0" if artifact == "kafka-clients" else "4.2.0" if "spark" in artifact else "9.9.9"
        ]
        for _, artifact in ARTIFACTS
    ]
    given = f"/jars/{ARTIFACTS[0][1]}-4.2.0.jar"
    assert stock_jars([given], {"HOME": str(tmp_path)}) == [], "whoever names the connector names the rest"
