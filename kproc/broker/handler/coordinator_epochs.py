"""CoordinatorEpochs: a coordinator that a Handler opens gets an epoch that none before it of its partition had.

It is the partition's leader epoch, which the controller raises for each opening, at whichever Handler: what a former
coordinator sent late is told apart by it. One call asks for the epochs of all partitions that are opened together.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from kproc.broker.calls.calls import Lost
from kproc.broker.calls.controller_calls import (
    LEADER_EPOCHS,
    AskController,
    LeaderEpochs,
    LeaderEpochsWanted,
    failure_of,
)
from kproc.broker.cluster.image import ClusterImage
from kproc.broker.request.context import PartitionKey

logger = logging.getLogger(__name__)


class CoordinatorEpochs:
    """One per Handler."""

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
        self._asked: dict[PartitionKey, object] = {}  # With a token of the call.
        self.wanted: dict[PartitionKey, None] = {}

    def take(self, key: PartitionKey, *, at_least: int) -> int | None:
        """Return the epoch for a coordinator that is opened now, or None. `on_epoch` is called when it arrives.

        `at_least` is the leader epoch of the log. An epoch that was requested before the log was opened can be below
        the epochs of markers that another broker wrote. Partitions would then reject the coordinator's markers.
        """
        epoch = self._known.pop(key, None)
        if epoch is None or epoch < at_least:
            epoch = None
            self.want(key)
        return epoch

    def want(self, key: PartitionKey) -> None:
        """A coordinator is to be opened: have an epoch for it by then."""
        if key not in self._asked and key not in self._known:
            self.wanted[key] = None

    def forget(self, key: PartitionKey) -> None:
        """The partition has another owner: what was asked for it so far may be older than that owner's epoch."""
        self._known.pop(key, None)
        self._asked.pop(key, None)
        self.wanted.pop(key, None)

    def ask(self) -> None:
        """Ask the controller for what is wanted: a call for each topic."""
        wanted = list(self.wanted)
        self.wanted.clear()
        by_topic: dict[str, list[int]] = {}
        for name, index in wanted:
            by_topic.setdefault(name, []).append(index)
        for name, indexes in by_topic.items():
            topic = self._image().topic(name)
            if topic is not None:
                self._ask_for(name, topic.topic_id, indexes)

    def _ask_for(self, name: str, topic_id: bytes, indexes: list[int]) -> None:
        token = object()
        keys = [(name, index) for index in indexes]
        self._asked.update(dict.fromkeys(keys, token))

        def on_reply(reply: LeaderEpochs | Lost) -> None:
            still = [key for key in keys if self._asked.get(key) is token]
            for key in still:
                del self._asked[key]
            error = failure_of(reply)
            if error is not None or isinstance(reply, Lost):
                logger.info("no epochs for the coordinators of %s yet: %s", name, error)
                return
            epochs = dict(zip(keys, reply.epochs, strict=True))
            for key in still:
                self._known[key] = epochs[key]
                self._on_epoch(key)

        self._ask_controller(LEADER_EPOCHS, LeaderEpochsWanted(topic_id, indexes), on_reply)
