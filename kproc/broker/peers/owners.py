"""Requests with many parts that several Handlers own: send the parts to the owners, join their answers, retry.

A part is a partition or a group. `OwnersRequest` handles the parts of this Handler itself and sends one call with all
of its parts to every other owner, which handles it as a `HandledCall`. The answers keep the order of the request. An
owner rejects a part that another Handler owns by now. The part is then routed again, if the rejecting owner has newer
metadata than the attempt had. Otherwise it would go to the same owner for ever. The parts of an owner that died are not
sent again. Their outcome is unknown, so each API chooses the error to return.

A Produce or a Fetch of one partition of ours uses none of this. Those with parts of other owners use `Join` alone or
nothing: produce/forward.py and fetch_owners.py give the reasons.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from kproc.broker.calls.calls import Answers, Lost, OnResult

if TYPE_CHECKING:
    from kproc.broker.request.context import RequestContext, Services

A = TypeVar("A")
P = TypeVar("P")
A_co = TypeVar("A_co", covariant=True)
P_contra = TypeVar("P_contra", contravariant=True)
OnOwnersReply = Callable[[Answers | Lost], None]


class Join(Generic[A]):
    """Collects the answers of all parts and calls `on_done` after the last one.

    answers: placeholders for the answers, one per part.
    """

    __slots__ = ("_on_done", "answers", "left")

    def __init__(self, answers: list[A], on_done: Callable[[list[A]], None]) -> None:
        self.answers = answers
        self.left = len(answers)
        self._on_done = on_done

    def add(self, at: int, answer: A) -> None:
        """Store the answer of the part at this position. The last answer calls `on_done`."""
        assert self.left > 0, "a part was answered twice"
        self.answers[at] = answer
        self.left -= 1
        if not self.left:
            self._on_done(self.answers)

    def callback(self, at: int) -> Callable[[A], None]:
        """Return a callback for the answer of the part at this position."""
        return partial(self.add, at)


class PartOperation(Protocol[P_contra, A_co]):
    """Interface of an operation on parts. OwnersRequest calls these methods.

    `route` finds the owner of a part, `handle` runs the operation on a part of this Handler, and `send` sends parts to
    another owner.
    """

    def route(self, part: P_contra) -> int:
        """Return the index of the part's owner. Without an owner, return that of this Handler: `handle` then fails."""

    def handle(
        self, part: P_contra, on_answer: Callable[[A_co | None], None], request: OwnersRequest[Any, Any]
    ) -> None:
        """Run the operation on a part of this Handler, now or later, and call `on_answer`.

        The answer None means that the part has another owner by then.
        """

    def send(self, owner: int, parts: Sequence[P_contra], on_reply: OnOwnersReply) -> None:
        """Call another owner for its parts. `on_reply` gets Answers in the order of the parts, or Lost."""

    def unknown(self, part: P_contra) -> A_co:
        """Return the answer for a part whose owner died or could not be found. Its outcome is unknown."""


class OwnersRequest(Generic[P, A]):
    """Handles all parts of one request at their owners. `on_done` gets the answers in the order of the parts."""

    __slots__ = ("_left", "_on_done", "_operation", "_parts", "_services", "answers", "is_over")

    def __init__(
        self,
        services: Services,
        operation: PartOperation[P, A],
        parts: Sequence[P],
        on_done: Callable[[list[Any]], object],
    ) -> None:
        self._services = services
        self._operation = operation
        self._parts = parts
        self._on_done = on_done
        self._left = len(parts)
        self.answers: list[A | None] = [None] * len(parts)
        self.is_over = False  # True after the client has disconnected. Further answers are discarded.

    def start(self) -> None:
        """Run the parts of this Handler and call the owners of the others.

        `on_done` may be called before this returns.
        """
        if self._parts:
            self._route(range(len(self._parts)))
        else:
            # Without parts no owner would call back, and the client would wait for ever.
            self._on_done([])

    def start_for(self, context: RequestContext) -> None:
        """Start as `start` does, but discard the answers if the client of `context` disconnects first.

        For operations that can take minutes.
        """
        self.start()
        if self._left:
            context.when_gone(self._abandon)

    def _abandon(self) -> None:
        self.is_over = True

    def _route(self, ats: Iterable[int]) -> None:
        """Route the parts at these positions to their present owners: handle ours, send the others in one call each."""
        operation, parts = self._operation, self._parts
        remote: dict[int, list[int]] = {}
        for at in ats:
            owner = operation.route(parts[at])
            if owner == self._services.handler_index:
                operation.handle(parts[at], partial(self._on_answer, at), self)
            else:
                remote.setdefault(owner, []).append(at)
        if remote:
            version = self._services.image.version
            for owner, sent in remote.items():
                operation.send(owner, [parts[at] for at in sent], partial(self._on_reply, sent, version))

    def _on_answer(self, at: int, answer: A | None) -> None:
        if self.is_over:
            return
        if answer is None:
            # The part waited here for its log, and the log was transferred to another owner meanwhile.
            self._route([at])
            return
        assert self._left > 0, "a part was answered twice"
        self.answers[at] = answer
        self._left -= 1
        if not self._left:
            self._on_done(self.answers)

    def _on_reply(self, ats: list[int], sent_by: int, reply: Answers | Lost) -> None:
        """Handle one owner's answers, or its death. The outcome of the parts of a dead owner is unknown.

        A part that the owner rejected is routed again if the owner's metadata are newer than `sent_by`, as soon as we
        have them. Otherwise its outcome is unknown, too, because it would go to the same owner for ever.
        """
        if isinstance(reply, Lost):
            reply = Answers([None] * len(ats), sent_by)
        moved: list[int] = []
        for at, answer in zip(ats, reply.answers, strict=True):
            if answer is not None:
                self._on_answer(at, answer)
            # By the owner's newer metadata the part has moved. Wait until we have these metadata, because by ours the
            # part would go to the same owner again.
            elif reply.known > sent_by:
                moved.append(at)
            else:
                self._on_answer(at, self._operation.unknown(self._parts[at]))
        if moved:
            self._services.owner.transfers.when_image(reply.known, partial(self._route, moved))


class HandledCall(Generic[A]):
    """Another Handler's call for parts of ours. It replies once: when all parts have answers, or at `finish`.

    The answer None means that the part has another owner by now. The reply has the version of our metadata, which the
    caller needs to find that owner.

    answers: placeholders for the answers, one per part.
    home: the index of the calling Handler if the operation can take minutes, else None. `finish_calls_of_leavers` ends
    such a call when the calling Handler leaves.
    """

    __slots__ = ("_answers", "_left", "_on_reply", "_services", "home", "is_over")

    def __init__(
        self, services: Services, answers: list[A], on_reply: OnResult[Answers], *, home: int | None = None
    ) -> None:
        self._services = services
        self._answers = answers
        self._left = len(answers)
        self._on_reply = on_reply
        self.home = home
        self.is_over = False
        if home is not None:
            services.owner.forwarded[self] = None

    def on_answer(self, at: int, answer: A) -> None:
        """Store the answer of the part at this position. With the last answer, reply to the Handler that called."""
        assert self._left > 0, "a part was answered twice"
        self._answers[at] = answer
        self._left -= 1
        if not self._left:
            self.finish()

    def finish(self) -> None:
        """Reply with the answers and, for parts without one, their placeholders. Do nothing if the reply was sent."""
        if not self.is_over:
            self.is_over = True
            if self.home is not None:
                del self._services.owner.forwarded[self]
            self._on_reply(Answers(self._answers, self._services.image.version))


def finish_calls_of_leavers(services: Services) -> None:
    """Reply to the waiting calls of Handlers that are leaving. Called when the routing table has changed.

    A JoinGroup can wait for minutes, and a Handler cannot leave before its clients' requests are answered. The clients
    get NOT_COORDINATOR and retry.
    """
    for call in list(services.owner.forwarded):
        if call.home is not None and call.home >= services.image.handler_count:
            call.finish()
