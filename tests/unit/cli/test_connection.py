"""Connections of commands: one that cannot be used is closed before its error is raised."""

from __future__ import annotations

from typing import Any

import pytest

from kproc.cli import answers
from kproc.cli.common import Failure
from kproc.cli.connection import connect, connect_for_records
from kproc.client import ClientError, ConnectionLost


class Opened:
    """A client whose calls fail by the names in `failing`."""

    address = "b:1"

    def __init__(self, *failing: str) -> None:
        self._failing = failing
        self.is_closed = False

    def introduce(self, _software: str, _version: str) -> None:
        self._fail("introduce")

    def api_versions(self) -> dict[int, tuple[int, int]]:
        self._fail("api_versions")
        return {}

    def operate(self, op: str) -> Any:
        self._fail(op)

    def _fail(self, call: str) -> None:
        if call in self._failing:
            raise ConnectionLost("gone")

    def close(self) -> None:
        self.is_closed = True

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def test_connection_that_fails_at_once_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    for failing, function, error in (
        ("introduce", connect, ClientError),
        ("introduce", connect_for_records, ClientError),
        ("api_versions", connect_for_records, ClientError),
        ("status", connect_for_records, Failure),
    ):
        client = Opened(failing)
        monkeypatch.setattr(answers.CommandClient, "connect", lambda *_, client=client, **__: client)
        with pytest.raises(error):
            function("b:1")
        assert client.is_closed, (failing, function)
