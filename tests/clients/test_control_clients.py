"""The examples of TESTING.md in other languages, as they stand there, against the control API."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from kproc.embedded import Broker
from kproc.embedded.control import ControlServer
from tests.support.broker import TRANSPORTS, forked_broker
from tests.support.documents import code_to_run
from tests.support.kafka_jars import classpath, missing_reason, short_lived_jvm
from tests.support.wait import PATIENCE_SECONDS

pytestmark = [
    pytest.mark.clients,
    pytest.mark.long,
    # The programs drive the control API, which is outside of the broker.
    pytest.mark.transports(*TRANSPORTS, slow=TRANSPORTS[1:]),
    pytest.mark.no_leak_guard,  # A restore replaces the processes of the file's broker.
]
GUIDE = "kproc/TESTING.md"


@pytest.fixture(scope="module")
def broker_under_control(transport: str) -> Iterator[tuple[Broker, ControlServer]]:
    """A broker of this file with its control API, and the check that no program leaves a rule."""
    with forked_broker()(transport=transport) as broker, ControlServer(broker) as control:
        yield broker, control
        assert broker.faults.list() == []


def run_example(
    found: tuple[Broker, ControlServer], directory: Path, language: str, file: str, command: Sequence[str]
) -> None:
    """Run the guide's program in a language."""
    broker, control = found
    [code] = code_to_run(GUIDE, language)
    (directory / file).write_text(code)
    environment = os.environ | {
        "KPROC_CONTROL_URL": control.url,
        "KPROC_CONTROL_TOKEN": control.token,
        "KPROC_BOOTSTRAP": broker.bootstrap,
    }
    done = subprocess.run(
        [*command, file],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(shutil.which("go") is None, reason="no go on the PATH")
def test_go_program_controls_faults_time_and_state(
    broker_under_control: tuple[Broker, ControlServer], tmp_path: Path
) -> None:
    run_example(broker_under_control, tmp_path, "go", "main.go", ["go", "run"])


@pytest.mark.skipif(shutil.which("node") is None, reason="no node on the PATH")
def test_javascript_program_controls_the_broker(
    broker_under_control: tuple[Broker, ControlServer], tmp_path: Path
) -> None:
    run_example(broker_under_control, tmp_path, "javascript", "main.mjs", ["node"])


@pytest.mark.java
def test_java_program_controls_faults_time_and_state(
    broker_under_control: tuple[Broker, ControlServer], tmp_path: Path
) -> None:
    if (missing := missing_reason()) is not None:
        pytest.skip(missing)
    command = ["java", *short_lived_jvm(), "-cp", classpath()]
    run_example(broker_under_control, tmp_path, "java", "RetryTest.java", command)
