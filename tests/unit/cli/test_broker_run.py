"""The settings that `kproc serve` and `kproc dev` build."""

from __future__ import annotations

import os
import threading

from kproc.broker.config import Config, ConfigError
from kproc.cli.broker_run import build_config
from kproc.common import regular_file
from tests.support.wait import PATIENCE_SECONDS


def test_configuration_from_a_pipe_is_read_once(tmp_path):
    """A FIFO that others may read was opened again for a warning, and nobody wrote to it then."""
    path = tmp_path / "server.properties"
    os.mkfifo(path)
    path.chmod(0o644)
    writer = threading.Thread(target=path.write_text, args=(f"log.dirs={tmp_path}\n",), daemon=True)
    writer.start()
    read: list[Config] = []
    reader = threading.Thread(target=lambda: read.append(build_config([], [], file=path)), daemon=True)
    reader.start()
    reader.join(PATIENCE_SECONDS)
    assert [config.log_dirs for config in read] == [str(tmp_path)]


def test_configuration_from_a_fifo_without_writer_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(regular_file, "WRITER_WAIT_S", 0)
    path = tmp_path / "server.properties"
    os.mkfifo(path)
    errors: list[ConfigError] = []

    def read() -> None:
        try:
            build_config([], [], file=path)
        except ConfigError as error:
            errors.append(error)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    reader.join(PATIENCE_SECONDS)
    problem = f"cannot read {path}: Not a regular file but a FIFO that no process writes to"
    assert [str(error) for error in errors] == [problem]
