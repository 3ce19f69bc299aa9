"""Checks that a Handler's DueTime overlooks nothing.

Whoever starts a timer or a rare state calls `press` or `bring_forward`. An omission delays a client by up to 100 ms,
until the tick presses, and no answer is wrong. So the rig and the simulation look for it after each duty cycle.
"""

from __future__ import annotations

from kproc.broker.handler.handler import Handler
from kproc.common.clock import NS_PER_MS


def check_due_time(handler: Handler) -> None:
    """Raise AssertionError if a timer or rare state waits that the Handler will look at too late."""
    due_ns, now_ns = handler._due.ns, handler._now_ns()
    if due_ns <= now_ns:
        return
    requests, group_commit, coordinators = handler._requests, handler._group_commit, handler._coordinators
    waiting = {
        "a large request": requests.large,
        "a request without space": requests.without_room,
        "a resting connection": requests.resting,
        "the request log": requests.log is not None,
        "a stop": handler._is_stopping or handler._is_leaving,
        "a sync in progress": group_commit.syncing,
        "a log to sync": group_commit.unsynced,
        "queued batches": handler._append_queue.queued,
        "a compacted log": handler._compaction.swaps,
        "a partition to close for its next owner": handler._transfers.is_retiring,
        "a deleted partition": handler._deletions.waiting,
        "a log to open": handler._transfers.deferred.is_opening,
        "a call without a link": handler._unlinked.waiting,
        "a parked request": handler._deadlines.first < due_ns,
        # Whole ms, so that it may come up to one too early.
        "a coordinator": now_ns + (coordinators._next_deadline_ms(now_ns) + 1) * NS_PER_MS < due_ns,
    }
    names = [name for name, is_waiting in waiting.items() if is_waiting]
    assert not names, f"nobody called DueTime.press for {', '.join(names)}"
