"""CoordinatorEpochs: requests a new coordinator epoch from the controller for each coordinator that a Handler opens.

The epoch is the partition's leader epoch. The controller raises it for each opening, at any Handler, so no two
coordinators of a partition have the same one. Partitions use it to reject late markers of a former coordinator. One
call requests the epochs of all partitions of a topic that are opened together.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from kproc.broker.calls.calls import Lost
from kproc.broker.calls.controller_calls import (
    LEADER_EPOCHS,
    AskController,
    LeaderEpochsRequest,
    RaisedLeaderEpochs,
    failure_of,
)
from kproc.broker.cluster.image import ClusterImage
from kproc.broker.request.context import PartitionKey

logger = logging.getLogger(__name__)


class CoordinatorEpochs:
    """The coordinator epochs that one Handler has requested from the controller, or has received and not used yet."""

    def __init__(
        self,
        image: Callable[[], ClusterImage],
        ask_controller: AskController,
        on_epoch: Callable[[PartitionKey], None],
    ) -> None:
        self._image = image
        self._ask_controller = ask_controller
        self._on_epoch = on_epoch
        self._known: dict[PartitionKey, int] = {}
        # Partitions with a call in flight, and a token of that call. After `discard` the token does not match any more,
        # so that a late reply is discarded.
        self._requested: dict[PartitionKey, object] = {}
        self.unsent: dict[PartitionKey, None] = {}

    def pop(self, key: PartitionKey, *, at_least: int) -> int | None:
        """Return the epoch for a coordinator that is opened now. If there is none, request one and return None.

        `on_epoch` is called when a requested epoch arrives. `at_least` is the leader epoch of the log. An epoch that
        was requested before the log was opened can be below the epochs of markers that another broker wrote. Partitions
        would then reject the coordinator's markers.
        """
        epoch = self._known.pop(key, None)
        if epoch is None or epoch < at_least:
            epoch = None
            self.request(key)
        return epoch

    def request(self, key: PartitionKey) -> None:
        """Request an epoch for a coordinator that will be opened soon. The next `send_requests` sends the call."""
        if key not in self._requested and key not in self._known:
            self.unsent[key] = None

    def discard(self, key: PartitionKey) -> None:
        """Discard the unused epoch of a partition that another Handler owns now.

        That Handler can have a newer epoch.
        """
        self._known.pop(key, None)
        self._requested.pop(key, None)
        self.unsent.pop(key, None)

    def send_requests(self) -> None:
        """Send the controller one call per topic for all epochs that were requested since the last such calls."""
        unsent = list(self.unsent)
        self.unsent.clear()
        by_topic: dict[str, list[int]] = {}
        for name, index in unsent:
            # One call per topic, because a start can request the epochs of 50 partitions, and each call is a synced
            # record of the controller.
            by_topic.setdefault(name, []).append(index)
        for name, indexes in by_topic.items():
            topic = self._image().topic(name)
            if topic is not None:
                self._send_request(name, topic.topic_id, indexes)

    def _send_request(self, name: str, topic_id: bytes, indexes: list[int]) -> None:
        token = object()
        keys = [(name, index) for index in indexes]
        self._requested.update(dict.fromkeys(keys, token))

        def on_reply(reply: RaisedLeaderEpochs | Lost) -> None:
            # A partition may have got another owner while the call was in flight, or a newer call may have
            # been sent. Do not use the epochs of such partitions.
            still = [key for key in keys if self._requested.get(key) is token]
            for key in still:
                del self._requested[key]
            error = failure_of(reply)
            # Do not retry here: the shard (shard.py) is opened again after 50 ms and then requests its epoch anew.
            if error is not None or isinstance(reply, Lost):
                logger.info(
                    "cannot get leader epochs from the controller for coordinators of %s, trying again in 50 ms: %s",
                    name,
                    error,
                )
                return
            epochs = dict(zip(keys, reply.epochs, strict=True))
            for key in still:
                self._known[key] = epochs[key]
                self._on_epoch(key)

        self._ask_controller(LEADER_EPOCHS, LeaderEpochsRequest(topic_id, indexes), on_reply)
