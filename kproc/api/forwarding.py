"""Requests about many partitions: ours are answered here, the others' by their owners, all in one answer.

An API declares with `@operation(name)` how one partition of ours is answered, and calls `gather`. Owners get what
they are asked for in one call each. A partition that does not exist, that cannot be opened, or whose owner died, gets
the API's own error; one that is on its way to this Handler is waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from kproc.api.context import PartitionMoving
from kproc.cluster.image import PartitionImage
from kproc.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kproc.api.context import OnReply, Services

Answer = dict[str, Any]
OnAnswer = Callable[[Answer], None]
OnAnswers = Callable[[list[Answer]], None]
# (services, topic, partition, what is wanted, where the answer goes): for a partition of this Handler.
Serve = Callable[["Services", str, PartitionImage, Any, OnAnswer], None]
# (partition index, error code, message) -> the row that says so.
Failed = Callable[[int, int, str | None], Answer]


class Operation:
    """What an API does with one partition, and how it says that it could not."""

    __slots__ = ("failed", "serve")

    def __init__(self, serve: Serve, failed: Failed) -> None:
        self.serve = serve
        self.failed = failed


OPERATIONS: Final[dict[str, Operation]] = {}


def operation(name: str, failed: Failed) -> Callable[[Serve], Serve]:
    """Register how this Handler answers `name` for a partition that it owns."""

    def register(serve: Serve) -> Serve:
        OPERATIONS[name] = Operation(serve, failed)
        return serve

    return register


def gather(services: Services, name: str, parts: Sequence[tuple[str, int, Any]], on_done: OnAnswers) -> None:
    """Answer (topic, partition index, wanted) each; `on_done` gets the answers in that order."""
    _Gathering(services, name, parts, on_done).start()


def serve(services: Services, name: str, body: dict[str, Any], on_reply: OnReply) -> None:
    """Another Handler's call for partitions of ours."""
    parts = body["parts"]
    failed = OPERATIONS[name].failed
    answers: list[Answer | None] = [None] * len(parts)
    left = len(parts)

    def taker(at: int) -> OnAnswer:
        def take(answer: Answer) -> None:
            nonlocal left
            answers[at] = answer
            left -= 1
            if not left:
                on_reply({"answers": answers})

        return take

    for at, (topic, index, wanted) in enumerate(parts):
        partition = services.image.partition(topic, index)
        if partition is None or partition.owner != services.handler_index:
            taker(at)(failed(index, ErrorCode.NOT_LEADER_OR_FOLLOWER, None))
        else:
            _serve_when_here(services, name, topic, partition, wanted, taker(at))


def _serve_when_here(
    services: Services, name: str, topic: str, partition: PartitionImage, wanted: Any, on_answer: OnAnswer
) -> None:
    """Answer for a partition of ours; if its log is still on its way from another Handler, when it is here."""
    operation_ = OPERATIONS[name]

    def go_on(is_ready: bool) -> None:
        found = services.image.partition(topic, partition.index) if is_ready else None
        if found is None:
            on_answer(operation_.failed(partition.index, ErrorCode.NOT_LEADER_OR_FOLLOWER, None))
        else:
            operation_.serve(services, topic, found, wanted, on_answer)

    try:
        services.partitions.get(topic, partition)
    except PartitionMoving as moving:
        services.hand_over.when_ready(moving.key, go_on)
    except KafkaError as error:
        on_answer(operation_.failed(partition.index, error.code, error.message))
    else:
        operation_.serve(services, topic, partition, wanted, on_answer)


class _Gathering:
    """The answers of one request, filled by us and by other owners."""

    def __init__(
        self, services: Services, name: str, parts: Sequence[tuple[str, int, Any]], on_done: OnAnswers
    ) -> None:
        self._services = services
        self._name = name
        self._parts = parts
        self._on_done = on_done
        self._answers: list[Answer | None] = [None] * len(parts)
        self._left = len(parts) + 1  # One for start() itself: nothing is done before all have been asked.

    def start(self) -> None:
        services, failed = self._services, OPERATIONS[self._name].failed
        remote: dict[int, list[int]] = {}
        for at, (topic, index, wanted) in enumerate(self._parts):
            partition = services.image.partition(topic, index)
            if partition is None:
                self._take(at, failed(index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None))
            elif partition.owner == services.handler_index:
                _serve_when_here(services, self._name, topic, partition, wanted, self._taker(at))
            else:
                remote.setdefault(partition.owner, []).append(at)
        for owner, ats in remote.items():
            body = {"parts": [list(self._parts[at]) for at in ats]}
            services.peers.call(owner, self._name, body, self._reply_taker(ats))
        self._finish_one()

    def _taker(self, at: int) -> OnAnswer:
        return lambda answer: self._take(at, answer)

    def _reply_taker(self, ats: list[int]) -> OnReply:
        def take(reply: dict[str, Any]) -> None:
            failed = OPERATIONS[self._name].failed
            lost = [failed(self._parts[at][1], ErrorCode.NOT_LEADER_OR_FOLLOWER, None) for at in ats]
            for at, answer in zip(ats, reply.get("answers", lost), strict=True):
                self._take(at, answer)

        return take

    def _take(self, at: int, answer: Answer) -> None:
        self._answers[at] = answer
        self._finish_one()

    def _finish_one(self) -> None:
        self._left -= 1
        if not self._left:
            self._on_done([answer for answer in self._answers if answer is not None])
