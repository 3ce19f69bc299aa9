"""The n-th system call of a real broker fails, by an LD_PRELOAD shim; tests/syscalls fails all of them in memory."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from kproc.common.errors import ErrorCode
from tests.support.broker import ServedBroker
from tests.support.nth_call import OPEN, SYNC, TRUNCATE, WRITE, NthCall
from tests.support.raw import RawClient, batch, values_of

pytestmark = [pytest.mark.faults, pytest.mark.own_broker, pytest.mark.transports("process")]

VALUE_BYTES = 300_000
SETTINGS = {"num.io.threads": 1, "log.segment.bytes": 1 << 20}
SHORT = [
    (OPEN, errno.EMFILE),
    (OPEN, errno.ENOMEM),
    (WRITE, errno.ENOSPC),
    (WRITE, errno.ENOMEM),
    (TRUNCATE, errno.ENOMEM),
]


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[NthCall]:
    made = NthCall(tmp_path, "/data/t-0/")
    for name, value in made.environment.items():
        monkeypatch.setenv(name, value)
    yield made
    made.close()


def stored(client: RawClient) -> list[bytes | None]:
    """All values that consumers get."""
    found: list[tuple[int, bytes | None]] = []
    while True:
        offset = found[-1][0] + 1 if found else 0
        row = client.fetch("t", offset=offset)
        assert row["error_code"] == ErrorCode.NONE
        more = [each for each in values_of(row["records"]) if each[0] >= offset]
        if not more:
            return [value for _, value in found]
        found += more


def produce(client: RawClient) -> bytes | None:
    """Send one record with acks=all; its value if it was acknowledged."""
    value = os.urandom(VALUE_BYTES)
    return value if client.produce("t", batch(value))["error_code"] == ErrorCode.NONE else None


def test_shortage_at_any_system_call_fails_only_its_request(tmp_path: Path, calls: NthCall) -> None:
    """Five records roll a segment once or twice: every call of that fails once, and the next record is stored."""
    kept: list[bytes] = []
    tried = 0
    with ServedBroker(tmp_path / "data", settings=SETTINGS) as broker:
        with RawClient(broker.bootstrap) as client:
            client.create_topic("t")
            for kind, error in SHORT:
                number = 0
                while True:
                    number += 1
                    calls.arm(kind, error, number)
                    kept += [value for _ in range(5) if (value := produce(client)) is not None]
                    has_failed = calls.failed > 0
                    calls.heal()
                    value = produce(client)
                    assert value is not None, (
                        f"call {number} of kind {kind} failed with {errno.errorcode[error]}"
                    )
                    kept.append(value)
                    if not has_failed:
                        break
                    tried += 1
            assert tried > 20
            found = [value for value in stored(client) if value in set(kept)]
        broker.stop()
    assert found == kept, "in their order, each once"
    with ServedBroker(tmp_path / "data", settings=SETTINGS) as broker, RawClient(broker.bootstrap) as client:
        assert [value for value in stored(client) if value in set(kept)] == kept


def test_failed_sync_takes_the_log_offline_until_the_next_start(tmp_path: Path, calls: NthCall) -> None:
    with ServedBroker(tmp_path / "data", settings=SETTINGS) as broker:
        with RawClient(broker.bootstrap) as client:
            client.create_topic("t")
            kept = [produce(client), produce(client)]
            calls.arm(SYNC, errno.EIO, 1)
            assert produce(client) is None
            calls.heal()
            assert produce(client) is None
        assert "log=offline partition=t-0 reason=" in broker.log()
        assert "Input/output error" in broker.log()
    with ServedBroker(tmp_path / "data", settings=SETTINGS) as broker, RawClient(broker.bootstrap) as client:
        assert stored(client)[:2] == kept
        assert produce(client) is not None
