"""`kproc time` against brokers whose time is movable, and against one whose time is not."""

from __future__ import annotations

import json

import pytest

from tests.support.broker import forked_broker
from tests.support.command_line import call_kproc, told

pytestmark = pytest.mark.own_broker


def test_time_is_shown_moved_and_frozen(fork_server: None, capsys: pytest.CaptureFixture[str]) -> None:
    with forked_broker()(transport="inline") as broker:

        def run(*arguments: str) -> str:
            return told(call_kproc(capsys, "time", *arguments, "-b", broker.bootstrap))

        assert run("freeze").startswith("froze at ")
        [before] = json.loads(run("show", "--format", "json"))
        assert before["is_frozen"]
        assert run("advance", "8d", "--dry-run").startswith("would advance by 8d from ")
        assert run("unfreeze", "--dry-run").endswith(", frozen\n")
        assert run("advance", "8d").endswith(", frozen\n")
        assert broker.time.now_ms == before["now_ms"] + 8 * 86_400_000
        assert run("unfreeze").startswith("continues from ")
        assert run("show").endswith(" ahead of the host's time\n")
        failed = call_kproc(capsys, "time", "advance", "a week", "-b", broker.bootstrap)
        assert (failed.returncode, failed.stderr.count("\n")) == (2, 1)


def test_time_that_cannot_be_moved_is_one_line(fork_server: None, capsys: pytest.CaptureFixture[str]) -> None:
    with forked_broker()({"kproc.time.movable": False}, transport="inline") as broker:
        for command in (["show"], ["advance", "1s"], ["freeze"]):
            failed = call_kproc(capsys, "time", *command, "-b", broker.bootstrap)
            assert (failed.returncode, failed.stderr.count("\n"), failed.stdout) == (1, 1, "")
            assert "the time of this broker cannot be moved: start a broker for tests" in failed.stderr
