"""`kproc scale --dry-run`: shows a change that the broker would make, and rejects others as the broker does."""

from __future__ import annotations

from typing import Any, Self

import pytest

from kproc.cli import scale
from kproc.client import ConnectionLost
from tests.support.command_line import call_kproc


class StatusClient:
    """A client of a broker with this transport, or of Kafka for None."""

    def __init__(self, transport: str | None) -> None:
        self._transport = transport

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def operate(self, op: str) -> dict[str, Any]:
        assert op == "status"
        if self._transport is None:
            raise ConnectionLost("it is not a kproc broker")
        return {"transport": self._transport}


def test_scale_dry_run_rejects_what_the_change_rejects(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It showed a change for Kafka, for roles that share a process, and for any number."""
    monkeypatch.setattr(scale, "broker_settings", lambda _client, _names: {"num.io.threads": "1"})
    for transport, count, code, shown in (
        ("process", 2, 0, "would change handlers: 1 -> 2\n"),
        ("process", 2**31 - 1, 1, "kproc: handlers must be a number from 1 to "),
        ("inline", 2, 1, "kproc: the number of roles changes at the next start only: "),
        (None, 2, 1, "kproc: it is not a kproc broker"),
    ):
        monkeypatch.setattr(scale, "connect", lambda _, transport=transport: StatusClient(transport))
        done = call_kproc(capsys, "scale", "--dry-run", "--handlers", str(count))
        assert (done.returncode, (done.stdout + done.stderr)[: len(shown)]) == (code, shown)
