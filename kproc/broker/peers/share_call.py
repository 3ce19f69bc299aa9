"""Calls to the share coordinators, from the owners of partitions and from the coordinators of share groups.

The name of an item is the share partition's `state_key`. The outcome of INITIALIZE_STATE, WRITE_STATE and DELETE_STATE
is an error code, or 0 when the change is durable.

RESTORE_STATE goes to the coordinator of the share group instead. The name of its item is the group's id.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from kproc.broker.calls.calls import Lost
from kproc.broker.calls.controller_calls import CHANGE, Change, Changed
from kproc.broker.cluster.internal_topics import SHARE_STATE_TOPIC
from kproc.broker.group.coordinator import GroupCoordinator
from kproc.broker.peers.coordinator_call import CoordinatorCalls, Item, OnOutcome
from kproc.broker.peers.group_call import GROUPS
from kproc.broker.share.state.coordinator import ShareCoordinator
from kproc.broker.share.state.messages import (
    DeleteState,
    InitializeState,
    PersistedState,
    ReadState,
    ReadSummary,
    SharePartitionKey,
    WriteState,
)

if TYPE_CHECKING:
    from kproc.broker.request.context import Services

SHARE_STATE: Final[CoordinatorCalls[ShareCoordinator]] = CoordinatorCalls("share_state", SHARE_STATE_TOPIC)

INITIALIZE_STATE: Final = SHARE_STATE.operation("initialize", InitializeState, int)
READ_STATE: Final = SHARE_STATE.operation("read", ReadState, PersistedState)
WRITE_STATE: Final = SHARE_STATE.operation("write", WriteState, int)
DELETE_STATE: Final = SHARE_STATE.operation("delete", DeleteState, int)
# Reads the state of a share partition without fencing its owner.
READ_SUMMARY: Final = SHARE_STATE.operation("summary", ReadSummary, PersistedState)
# Sent by the owner of a partition that finds no state for an initialized share partition. The outcome is 0 when the
# state was created again.
RESTORE_STATE: Final = GROUPS.operation("restore_share_state", SharePartitionKey, int)


def initialize_states(
    services: Services, items: Sequence[Item], on_done: Callable[[list[int]], None]
) -> None:
    """Send INITIALIZE_STATE for the items, after creating the topic of the states if it is missing.

    on_done: called with the error code of each item. If the topic cannot be created, all are NOT_COORDINATOR, as for
    every operation without the topic.
    """

    def send() -> None:
        INITIALIZE_STATE.send_for_handler(services, items, on_done)

    def on_created(_reply: Changed | Lost) -> None:
        # Run `send` in a later duty cycle, because many groups can wait for this topic, and each `send` can be slow.
        services.owner.purgatory.defer(send)

    if services.image.topic(SHARE_STATE_TOPIC) is not None:
        send()
    else:
        body = Change("auto_create_topics", {"names": [SHARE_STATE_TOPIC]})
        services.peers.ask_controller(CHANGE, body, on_created)


INITIALIZE_STATE.handler(ShareCoordinator.initialize)
READ_STATE.handler(ShareCoordinator.read)
WRITE_STATE.handler(ShareCoordinator.write)
DELETE_STATE.handler(ShareCoordinator.delete)
READ_SUMMARY.handler(ShareCoordinator.summarize)


@RESTORE_STATE.handler
def handle_restore(
    coordinator: GroupCoordinator, _group_id: str, key: SharePartitionKey, on_outcome: OnOutcome[int]
) -> None:
    """Create a lost state of a share partition again."""
    coordinator.share_requests.restore_state(key, on_outcome)
