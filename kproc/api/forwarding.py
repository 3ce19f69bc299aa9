"""Requests about many partitions: ours are answered here, the others' by their owners, all in one answer.

An API declares with `@operation(name)` how one partition of ours is answered, and calls `gather`. Owners get what
they are asked for in one call each. A partition that does not exist, that cannot be opened, or whose owner died, gets
the API's own error; one that is on its way to this Handler is waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from kproc.api.context import PartitionMoving
from kproc.cluster.image import PartitionImage
from kproc.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kproc.api.context import OnReply, RequestContext, Services

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


def answer_by_topic(
    context: RequestContext,
    name: str,
    topics: Sequence[tuple[str, Sequence[tuple[int, Any]]]],
    *,
    label: str = "name",
) -> None:
    """Answer (topic, [(partition index, wanted)...]) each, in the shape that most such responses have."""
    parts = [(topic, index, wanted) for topic, rows in topics for index, wanted in rows]

    def on_done(answers: list[Answer]) -> None:
        rows = iter(answers)
        context.reply(
            {
                "topics": [
                    {label: topic, "partitions": [next(rows) for _ in wanted]} for topic, wanted in topics
                ]
            }
        )

    gather(context.services, name, parts, on_done)


def serve(services: Services, name: str, body: dict[str, Any], on_reply: OnReply) -> None:
    """Another Handler's call for partitions of ours. It has None for what is another owner's by now; whoever asked
    looks for that one when it knows the metadata that we know."""
    parts = body["parts"]
    answers: list[Answer | None] = [None] * len(parts)
    left = len(parts)

    def taker(at: int) -> Callable[[Answer | None], None]:
        def take(answer: Answer | None) -> None:
            nonlocal left
            answers[at] = answer
            left -= 1
            if not left:
                on_reply({"answers": answers, "known": services.image.version})

        return take

    for at, (topic, index, wanted) in enumerate(parts):
        _serve_ours(services, name, topic, index, wanted, taker(at))


def _serve_ours(
    services: Services,
    name: str,
    topic: str,
    index: int,
    wanted: Any,
    on_answer: Callable[[Answer | None], None],
) -> None:
    """Answer for a partition of ours; if its log is still on its way from another Handler, when it is here. None if
    it is not ours (any more)."""
    operation_ = OPERATIONS[name]
    partition = services.image.partition(topic, index)
    if partition is None:
        on_answer(operation_.failed(index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None))
        return
    if partition.owner != services.handler_index:
        on_answer(None)
        return

    def go_on(is_ready: bool) -> None:
        if is_ready:
            _serve_ours(services, name, topic, index, wanted, on_answer)
        else:
            on_answer(operation_.failed(index, ErrorCode.NOT_LEADER_OR_FOLLOWER, None))

    try:
        services.partitions.get(topic, partition)
    except PartitionMoving as moving:
        services.hand_over.when_ready(moving.key, go_on)
    except KafkaError as error:
        on_answer(operation_.failed(index, error.code, error.message))
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
        self._place(range(len(self._parts)))
        self._finish_one()

    def _place(self, ats: Iterable[int]) -> None:
        """Let each be answered where it is."""
        services = self._services
        remote: dict[int, list[int]] = {}
        for at in ats:
            topic, index, wanted = self._parts[at]
            partition = services.image.partition(topic, index)
            if partition is None or partition.owner == services.handler_index:
                _serve_ours(services, self._name, topic, index, wanted, self._taker(at))
            else:
                remote.setdefault(partition.owner, []).append(at)
        for owner, asked in remote.items():
            body = {"image": services.image.version, "parts": [list(self._parts[at]) for at in asked]}
            services.peers.call(owner, self._name, body, self._reply_taker(asked))

    def _taker(self, at: int) -> Callable[[Answer | None], None]:
        return lambda answer: self._take(at, answer)

    def _reply_taker(self, ats: list[int]) -> OnReply:
        def take(reply: dict[str, Any]) -> None:
            if "answers" not in reply:
                failed = OPERATIONS[self._name].failed
                for at in ats:
                    self._take(at, failed(self._parts[at][1], ErrorCode.NOT_LEADER_OR_FOLLOWER, None))
                return
            moved = []
            for at, answer in zip(ats, reply["answers"], strict=True):
                if answer is None:
                    moved.append(at)
                else:
                    self._take(at, answer)
            if moved:
                self._services.hand_over.when_image(reply["known"], lambda: self._place(moved))

        return take

    def _take(self, at: int, answer: Answer | None) -> None:
        if answer is None:  # It waited here for its log, which went on to another owner.
            self._place([at])
            return
        self._answers[at] = answer
        self._finish_one()

    def _finish_one(self) -> None:
        self._left -= 1
        if not self._left:
            self._on_done([answer for answer in self._answers if answer is not None])
