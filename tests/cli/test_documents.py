"""The blocks of README, COMMANDS, OPERATING, SECURITY, DAYTWO and tests/README, run as they stand there.

`kproc` is a short script, whose commands a process forks that has imported them (tests/support/command_server.py).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bench.peers.base import free_ports
from kproc.broker.config import Config
from kproc.client.security.settings import parse_client_security, read_client_config
from tests.support.broker import ROOT, BrokerUnderTest
from tests.support.command_server import kproc_on_path
from tests.support.documents import code_to_run

pytestmark = [pytest.mark.long, pytest.mark.transports("process")]
SECONDS = 600
Shell = Callable[..., str]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The PATH of a shell in which `kproc` is this one."""
    with kproc_on_path(tmp_path_factory.mktemp("kproc")) as directory:
        yield f"{directory}:{os.environ['PATH']}"


@pytest.fixture
def shell(path: str, tmp_path: Path) -> Shell:
    """`shell(blocks, cwd=..., NAME="value")`: the standard output of blocks that must succeed."""

    def run(blocks: list[str], cwd: Path = tmp_path, **variables: str) -> str:
        assert blocks
        environment = {name: value for name, value in os.environ.items() if not name.startswith("KPROC_")}
        # Files, because a broker that is left running would hold a pipe open, and the timeout would wait for its end.
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
            done = subprocess.run(
                ["bash", "-c", "set -eo pipefail\n" + "".join(blocks)],
                cwd=cwd,
                env={**environment, "PATH": path, "XDG_CONFIG_HOME": str(tmp_path / "config"), **variables},
                stdout=out,
                stderr=errors,
                timeout=SECONDS,
                check=False,
            )
            for file in (out, errors):
                file.seek(0)
            shown = out.read()
            assert done.returncode == 0, shown + errors.read()
        return shown

    return run


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl on the PATH")
def test_security_document_and_second_day_run_as_typed(shell: Shell, tmp_path: Path) -> None:
    """In one directory, because the second document continues where the first one ends."""
    *ports, control, metrics = free_ports(5)
    blocks = [*code_to_run("kproc/SECURITY.md", "sh"), *code_to_run("kproc/DAYTWO.md", "sh")]
    blocks = [block.replace("--seconds 1", "--seconds 0.3") for block in blocks]
    for at, port in enumerate(ports):
        blocks = [block.replace(str(9092 + at), str(port)) for block in blocks]
    # A restored copy beside this broker must not bind these ports again.
    own = f"kproc.control.listener=127.0.0.1:{control}\nkproc.metrics.listener=127.0.0.1:{metrics}\n"
    blocks = [block.replace("log.dirs=data\n", f"log.dirs=data\n{own}") for block in blocks]
    shown = shell(blocks)
    assert "created orders" in shown
    assert "User:alice may WRITE topic orders" in shown
    assert f"LOCAL=127.0.0.1:{ports[0]} LAN=localhost:{ports[1]}" in shown
    assert "Certificate will not expire" in shown
    assert "bottleneck" in shown
    assert "\nlimit: " in shown
    assert f"data {tmp_path}/restored/data " in shown
    assert "whether it can change" not in shown
    # The one record of `orders` is printed from the topic, from the restored copy and from the exported one.
    assert shown.count("\nhello\n") == 3
    assert shown.count("stopped: pid") == 5
    assert "would delete" in shown
    # After the rotation every process writes to the new log.
    assert "stopping: signal=SIGTERM" in (tmp_path / "kproc.log").read_text()
    assert "reload: no setting in the configuration file has changed" in (tmp_path / "kproc.log").read_text()
    assert "reload: listener LAN uses the certificate of CN=localhost" in (tmp_path / "kproc.log.1").read_text()
    assert "stopping" not in (tmp_path / "kproc.log.1").read_text().rpartition("ready: ")[2]
    assert [path.name for path in tmp_path.iterdir() if path.stat().st_mode & 0o077] == []


def test_commands_of_the_readme_run_as_typed(shell: Shell, broker: BrokerUnderTest) -> None:
    shown = shell(code_to_run("README.md", "sh"), KPROC_BOOTSTRAP=broker.bootstrap)
    assert "\nhello\n" in shown
    shell(["kproc topic delete greetings --yes"], KPROC_BOOTSTRAP=broker.bootstrap)


def test_commands_of_the_tests_readme_run_as_typed(shell: Shell) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a checkout of git")
    assert "test_fetch_sessions.py" in shell(code_to_run("tests/README.md", "sh"), cwd=ROOT)


def test_saved_connections_of_commands_document(
    shell: Shell, broker: BrokerUnderTest, tmp_path: Path
) -> None:
    (tmp_path / "staging.properties").write_text("security.protocol=PLAINTEXT\n")
    blocks = [
        block.replace("10.0.0.5:9092", broker.bootstrap) for block in code_to_run("kproc/COMMANDS.md", "sh")
    ]
    assert broker.bootstrap in shell(blocks)


def test_client_file_of_commands_document_is_read(tmp_path: Path) -> None:
    [text] = code_to_run("kproc/COMMANDS.md", "properties")
    (tmp_path / "client.properties").write_text(text)
    security = parse_client_security(
        read_client_config(tmp_path / "client.properties", {"ALICE": "secret"}.get)
    )
    assert security.login is not None
    assert (security.login.username, security.login.password) == ("alice", "secret")


def test_broker_files_of_operating_document_are_valid(tmp_path: Path) -> None:
    blocks = code_to_run("kproc/OPERATING.md", "properties")
    assert len(blocks) >= 2
    for number, text in enumerate(blocks):
        file = tmp_path / f"{number}.properties"
        file.write_text(text.replace("/etc/kproc", str(tmp_path)))
        config = Config.build({}, file=file)
        assert config.listeners
