"""Spark is started from the kept directory only if the archive of its classes is there."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from tests.support.spark_home import jvm_variables, kept_home


def test_spark_home_is_set_once_its_archive_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    home = kept_home()
    assert home.parent == tmp_path / "kproc"
    assert "SPARK_HOME" not in jvm_variables()
    assert "SharedArchiveFile" not in jvm_variables()["SPARK_SUBMIT_OPTS"]
    home.mkdir(parents=True)
    (home / "classes.jsa").touch()
    assert jvm_variables()["SPARK_HOME"] == str(home)
    assert f"-XX:SharedArchiveFile={home}/classes.jsa" in jvm_variables()["SPARK_SUBMIT_OPTS"].split()
