"""ShareRequests: requests about the share groups of one coordinator (KIP-932)."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import TYPE_CHECKING

from kproc.broker.coordinator.rules import OnCode
from kproc.broker.share.membership.messages import (
    AlterShareOffsets,
    ChangedShareOffsets,
    DeleteShareOffsets,
    ShareHeartbeat,
    ShareHeartbeatReply,
    ShareHeartbeatResult,
)
from kproc.broker.share.membership.share_groups import ShareGroups
from kproc.broker.share.state.messages import SharePartitionKey
from kproc.common.errors import ErrorCode

if TYPE_CHECKING:
    from kproc.broker.group.coordinator import GroupCoordinator


class ShareRequests:
    """The part of a GroupCoordinator that handles heartbeats, start offsets and lost states of share groups.

    `deleting` has the ids of the groups that are being deleted.
    """

    def __init__(self, coordinator: GroupCoordinator, shares: ShareGroups, deleting: Container[str]) -> None:
        self._coordinator = coordinator
        self._shares = shares
        self._deleting = deleting

    def heartbeat(self, group_id: str, request: ShareHeartbeat, reply: ShareHeartbeatReply) -> None:
        """Handle a ShareGroupHeartbeat: a member joins, renews its session or leaves.

        Reply when the change is durable.
        """
        self._coordinator.handle_heartbeat(
            group_id,
            lambda: self._shares.heartbeat(group_id, request),
            reply,
            lambda code: ShareHeartbeatResult(error_code=code),
        )

    def change_offsets(
        self,
        group_id: str,
        request: AlterShareOffsets | DeleteShareOffsets,
        reply: Callable[[ChangedShareOffsets], None],
    ) -> None:
        """Set or delete start offsets of share partitions (AlterShareGroupOffsets, DeleteShareGroupOffsets)."""

        def failed(code: ErrorCode) -> ChangedShareOffsets:
            return ChangedShareOffsets(error_code=code)

        def on_done(result: ChangedShareOffsets) -> None:
            self._coordinator.reply_when_durable(reply, result, failed)

        if group_id in self._deleting:
            reply(failed(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
        elif isinstance(request, AlterShareOffsets):
            self._shares.alter_offsets(group_id, request, on_done)
            self._coordinator.delete_unused(group_id)
        else:
            self._shares.delete_offsets(group_id, request, on_done)

    def restore_state(self, key: SharePartitionKey, on_code: OnCode) -> None:
        """Handle the request of a log's owner to create the lost state of a share partition again."""
        if key.group_id in self._deleting:
            on_code(ErrorCode.INVALID_REQUEST)
        else:
            self._shares.states.restore(key, on_code)
