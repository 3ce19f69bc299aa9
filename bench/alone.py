"""Questions that need a broker of their own: many partitions, and settings that others must not have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from bench.cells import Cell
from bench.peers.registry import PeerKind
from bench.scenarios import Run, memory_bytes
from kproc.tools.load.run import Result, run_load


def partitions(kind: PeerKind, cell: Cell, run: Run) -> Result:
    """Made, touched, looked at; then stopped in order, started with all of them, and touched again."""
    topic, count = run.topic(cell), cell.options["partitions"]
    with kind.make(cell.settings, cell.work_us) as peer:
        before = memory_bytes(peer)
        result = run_load("touch", peer.bootstrap, topic=topic, partitions=count, pids=peer.pids)
        result["touch_seconds"] = result["seconds"]
        result["kb_per_partition"] = (memory_bytes(peer) - before) / count / 1e3
        result["stop_seconds"] = peer.restart()
        again = run_load("touch", peer.bootstrap, topic=topic, partitions=count)
        peer.kill()  # To close them all a second time is no part of the question.
    # Ready: Metadata names a leader for every partition. Kafka has opened all logs by then, kproc opens them when
    # they are used, so the time to a record in each stands beside it.
    result["restart_seconds"] = peer.start_seconds + again["leaders_seconds"]
    result["restart_touched_seconds"] = result["restart_seconds"] + again["seconds"]
    return result


def work(kind: PeerKind, cell: Cell, run: Run) -> Result:
    """Handlers that burn CPU: who can use more than one core?"""
    with kind.make(cell.settings, cell.work_us) as peer:
        options = {
            "topic": run.topic(cell),
            "seconds": run.seconds,
            "warmup": run.warmup + 0.2,
            **cell.options,
        }
        result = run_load("produce", peer.bootstrap, pids=peer.pids, **options)
    result["cores_used"] = result["broker_cpu_seconds"] / result["seconds"]
    return result


ALONE: Final[dict[str, Callable[[PeerKind, Cell, Run], Result]]] = {"partitions": partitions, "work": work}
