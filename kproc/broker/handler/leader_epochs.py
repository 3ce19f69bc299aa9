"""LeaderEpochRaises: partitions whose log has a higher leader epoch than the metadata.

The files come from another broker, or the metadata were restored from an older copy. A leader epoch must not decrease:
a client that has seen the higher one treats answers with a lower one as stale and retries for ever. The log is
therefore opened with an epoch above its last one, and the Handler asks the controller to raise the partition's epoch to
that. Until then, for a few milliseconds, clients refresh their metadata.

A request is sent again each second until the metadata have the epoch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

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


class _Raise(NamedTuple):
    topic_id: bytes
    epoch: int


class LeaderEpochRaises:
    """The raises of leader epochs that one Handler has requested and that the metadata do not have yet."""

    def __init__(self, image: Callable[[], ClusterImage], ask_controller: AskController) -> None:
        self._image = image
        self._ask_controller = ask_controller
        self._wanted: dict[PartitionKey, _Raise] = {}
        self._in_flight: set[PartitionKey] = set()

    def request(self, key: PartitionKey, topic_id: bytes, epoch: int) -> None:
        """Request that the controller raises a partition's leader epoch to at least `epoch`."""
        logger.warning(
            "%s-%d has records of leader epoch %d, which the metadata do not know yet: requesting epoch %d from the "
            "controller",
            *key,
            epoch - 1,
            epoch,
        )
        self._wanted[key] = _Raise(topic_id, epoch)
        self._send(key)

    def tick(self) -> None:
        """Remove the requests whose epoch the metadata have reached. Send the others again. Called once a second."""
        for key, wanted in list(self._wanted.items()):
            topic, partition = self._image().topic_by_id(wanted.topic_id), self._image().partition(*key)
            # A deleted partition needs no epoch, so its request would otherwise be sent for ever.
            if topic is None or partition is None or partition.leader_epoch >= wanted.epoch:
                del self._wanted[key]
            # The controller has answered an error, or the call was lost because the controller was restarted.
            elif key not in self._in_flight:
                self._send(key)

    def _send(self, key: PartitionKey) -> None:
        wanted = self._wanted[key]
        self._in_flight.add(key)

        def on_reply(reply: RaisedLeaderEpochs | Lost) -> None:
            self._in_flight.discard(key)
            error = failure_of(reply)
            # Keep the request, so that the next tick sends it again.
            if error is not None:
                logger.info("cannot raise the leader epoch of %s-%d, trying again: %s", *key, error)

        body = LeaderEpochsRequest(wanted.topic_id, [key[1]], at_least=[wanted.epoch])
        self._ask_controller(LEADER_EPOCHS, body, on_reply)
