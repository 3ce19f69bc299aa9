"""A broker at its limit of processes and threads: a control group's pids.max, as containers and systemd set it.

The limit is an error of what needs a thread or a process at that moment. It ends nothing for good.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kproc.broker.storage.checkpoints import CLEAN_SHUTDOWN_FILE
from kproc.wire.header import ApiKey
from tests.support.broker import ServedBroker
from tests.support.raw import NO_TOPIC_ID, RawClient, batch, produce_fields
from tests.support.status import processes, wait_replaced
from tests.support.wait import wait_until

pytestmark = [pytest.mark.faults, pytest.mark.own_broker, pytest.mark.transports("process")]

PARTITIONS = 4
_CONTROL_GROUPS = (Path("/sys/fs/cgroup/pids"), Path("/sys/fs/cgroup"))  # Versions 1 and 2.


@contextmanager
def control_group(pids: list[int]) -> Iterator[Path]:
    """Put processes into a control group of their own and yield its pids.max. Skip the test without the right to."""
    for parent in _CONTROL_GROUPS:
        group = parent / f"kproc-test-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            if not (group / "pids.max").exists():
                continue
            for pid in pids:
                (group / "cgroup.procs").write_text(f"{pid}\n")
            yield group / "pids.max"
            return
        finally:
            for pid in (group / "cgroup.procs").read_text().split():
                (parent / "cgroup.procs").write_text(f"{pid}\n")
            group.rmdir()
    pytest.skip("control groups with a limit of processes cannot be created here")


def produce_to_all(client: RawClient) -> list[int]:
    """Produce to all partitions in one request of acks=all. The round of its sync has as many logs."""
    fields = produce_fields([("t", NO_TOPIC_ID, [(index, batch(b"x")) for index in range(PARTITIONS)])])
    rows = client.call(ApiKey.PRODUCE, 9, fields)["responses"][0]["partition_responses"]
    return [row["error_code"] for row in rows]


def test_broker_at_its_process_limit_syncs_and_recovers(tmp_path: Path) -> None:
    """A round of several logs and a clean stop want threads, and a killed role's successor wants a process."""
    with ServedBroker(tmp_path / "data", settings={"num.io.threads": 1}) as broker:
        with RawClient(broker.bootstrap) as client:
            client.create_topic("t", partitions=PARTITIONS)
        before = processes(broker.bootstrap)
        with control_group([broker.pid, *before.values()]) as limit:
            # A limit below the present number ends no process. It only permits no further one.
            limit.write_text("1\n")
            with RawClient(broker.bootstrap) as client:
                assert produce_to_all(client) == [0] * PARTITIONS
            os.kill(before["handler", 0], signal.SIGKILL)
            wait_until(lambda: "cannot be started now" in broker.log(), what="the Handler has no successor")
            limit.write_text("max\n")
            wait_replaced(broker.bootstrap, ("handler", 0), before["handler", 0])
            limit.write_text("1\n")
            with RawClient(broker.bootstrap) as client:
                wait_until(lambda: produce_to_all(client) == [0] * PARTITIONS, what="records are stored")
                assert client.end_offset("t") == 2
            assert broker.stop() == 0
        assert (tmp_path / "data" / CLEAN_SHUTDOWN_FILE).exists()
