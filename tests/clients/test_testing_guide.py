"""The examples of TESTING.md, as they stand there."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("aiokafka")
pytest.importorskip("confluent_kafka")
pytest.importorskip("kafka")

from kproc.embedded import Broker
from tests.support.command_server import kproc_on_path
from tests.support.documents import code_to_run
from tests.support.inner_pytest import passed, run_pytest
from tests.support.wait import PATIENCE_SECONDS

pytestmark = [pytest.mark.clients, pytest.mark.transports("process")]
GUIDE = "kproc/TESTING.md"


def test_python_examples_of_the_guide_pass(tmp_path: Path) -> None:
    code = "\n\n".join(code_to_run(GUIDE, "python"))
    # kafka-python warns of functions that later versions of Python remove.
    passed(run_pytest(tmp_path, code, "-W", "ignore"), code.count("def test_"))


def test_commands_of_the_guide_work(tmp_path: Path) -> None:
    [commands] = code_to_run(GUIDE, "sh")
    with Broker() as broker, kproc_on_path(tmp_path) as directory:
        environment = os.environ | {
            "PATH": f"{directory}:{os.environ['PATH']}",
            "KPROC_BOOTSTRAP": broker.bootstrap,
        }
        shown = subprocess.run(
            ["bash", "-ec", commands],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=True,
        ).stdout
        assert broker.faults.list() == []
    assert shown.count("NOT_LEADER_OR_FOLLOWER") == shown.count("fail-write") == 3
    assert shown.count("shop-*") == 3
