"""Options, help and warnings of `kproc serve`."""

from __future__ import annotations

import pytest

from kproc.cli.main import run
from tests.support.kproc_command import kproc


def test_mistakes_and_warnings_of_a_file_are_one_block(tmp_path, capsys):
    file = tmp_path / "server.properties"
    file.write_text("process.roles=broker\nzookeeper.connect=x\nnum.partitions=none\nno.such=1\n")
    assert run(["serve", "--config", str(file)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "kproc: 2 settings cannot be used:"
    assert [line.strip().partition(": ")[0] for line in lines[1:]] == [f"{file}:3", f"{file}:4"]


@pytest.mark.long
def test_the_eight_warnings_of_a_server_properties_are_one_block(tmp_path):
    file = tmp_path / "server.properties"
    without_effect = [
        "process.roles=broker,controller",
        "controller.quorum.voters=1@localhost:9093",
        "offsets.topic.replication.factor=1",
        "transaction.state.log.replication.factor=1",
        "transaction.state.log.min.isr=1",
        "share.coordinator.state.topic.replication.factor=1",
        "share.coordinator.state.topic.min.isr=1",
        "num.recovery.threads.per.data.dir=1",
    ]
    file.write_text("\n".join(without_effect))
    # A data directory that cannot be: it ends after the warnings.
    done = kproc("serve", "--config", str(file), "--port", "0", "--data", str(file / "data"))
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    assert lines[0] == "kproc: 8 warnings:", done.stderr
    for number, (line, setting) in enumerate(zip(lines[1:9], without_effect, strict=True), 1):
        name = setting.partition("=")[0]
        assert line.startswith(f"  {file}:{number}: {name}")
        assert "has no effect" in line
    assert len(lines) == 10
