"""Requests with many parts that several Handlers own: send the parts to the owners, join their answers, retry.

A part is a partition, a group or a Handler's own share. `Gather` handles our own parts here and sends one call with all
of its parts to every other owner; the answers keep the order of the request. An owner rejects a part that another
Handler owns by now. The part is then routed again with that owner's metadata, if they are newer than those of the first
attempt: otherwise this would not end. The parts of an owner that died are not sent again. Their outcome is unknown, so
each API chooses the error to return.

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

    def take(self, at: int, answer: A) -> None:
        """Store the answer of the part at this position. The last answer calls `on_done`."""
        assert self.left > 0, "a part was answered twice"
        self.answers[at] = answer
        self.left -= 1
        if not self.left:
            self._on_done(self.answers)

    def taker(self, at: int) -> Callable[[A], None]:
        """Return a callback for the answer of the part at this position."""
        return partial(self.take, at)


class Gone:
    """A flag that is set when the client of a request has disconnected."""

    __slots__ = ("is_so",)

    def __init__(self) -> None:
        self.is_so = False


class Question(Protocol[P_contra, A_co]):
    """An operation of an API on parts: how to find the owner, handle a part here, or call another owner."""

    def owner_of(self, part: P_contra) -> int:
        """Return the index of the part's owner. Without an owner, return ours: `serve` then answers with an error."""

    def serve(self, part: P_contra, on_answer: Callable[[A_co | None], None]) -> None:
        """Handle a part of ours, now or later. Answer None if it has another owner by then."""

    def ask(self, owner: int, parts: Sequence[P_contra], on_reply: OnOwnersReply) -> None:
        """Call another owner for its parts. It replies as `serve_parts` does."""

    def lost(self, part: P_contra) -> A_co:
        """Return the answer for a part whose owner died or could not be found. Its outcome is unknown."""


class Gather(Generic[P, A]):
    """Handles all parts of one request at their owners. `on_done` gets the answers in the order of the parts."""

    __slots__ = ("_gone", "_join", "_parts", "_question", "_services")

    def __init__(
        self,
        services: Services,
        question: Question[P, A],
        parts: Sequence[P],
        on_done: Callable[[list[Any]], None],
        gone: Gone | None = None,
    ) -> None:
        self._services = services
        self._question = question
        self._parts = parts
        self._gone = gone or Gone()
        self._join: Join[A | None] = Join([None] * len(parts), on_done)
        if not parts:
            on_done([])

    def start(self) -> None:
        """Handle our parts and call the other owners. `on_done` may be called before this returns."""
        self._place(range(len(self._parts)))

    def start_for(self, context: RequestContext) -> None:
        """Start, and discard the answers if the client disconnects first. For operations that can take minutes."""
        self.start()
        if self._join.left:
            context.when_gone(self._on_gone)

    def _on_gone(self) -> None:
        self._gone.is_so = True

    def _place(self, ats: Iterable[int]) -> None:
        """Route the parts at these positions to their present owners: handle ours, send the others in one call each."""
        question, parts = self._question, self._parts
        remote: dict[int, list[int]] = {}
        for at in ats:
            owner = question.owner_of(parts[at])
            if owner == self._services.handler_index:
                question.serve(parts[at], partial(self._take, at))
            else:
                remote.setdefault(owner, []).append(at)
        version = self._services.image.version
        for owner, asked in remote.items():
            question.ask(owner, [parts[at] for at in asked], partial(self._take_reply, asked, version))

    def _take(self, at: int, answer: A | None) -> None:
        if self._gone.is_so:
            return
        if answer is None:
            # The part waited here for its log, and the log was transferred to another owner meanwhile.
            self._place([at])
        else:
            self._join.take(at, answer)

    def _take_reply(self, ats: list[int], asked_by: int, reply: Answers | Lost) -> None:
        """Handle one owner's answers, or its death.

        A rejected part is routed again only with metadata newer than `asked_by`, so that this ends.
        """
        if isinstance(reply, Lost):
            reply = Answers([None] * len(ats), asked_by)
        moved: list[int] = []
        for at, answer in zip(ats, reply.answers, strict=True):
            if answer is not None:
                self._take(at, answer)
            elif reply.known > asked_by:
                moved.append(at)
            else:
                self._take(at, self._question.lost(self._parts[at]))
        if moved:
            self._services.transfers.when_image(reply.known, partial(self._place, moved))


def serve_parts(
    services: Services,
    parts: Sequence[P],
    serve: Callable[[P, Callable[[A | None], None]], None],
    on_reply: OnResult[Answers],
) -> None:
    """Handle another Handler's call for parts of ours, as their owner. Reply once, when all parts have answers.

    The answer None means that the part has another owner by now. The reply has the version of our metadata, which the
    caller needs to find that owner.
    """

    def done(answers: list[A | None]) -> None:
        on_reply(Answers(answers, services.image.version))

    join: Join[A | None] = Join([None] * len(parts), done)
    for at, part in enumerate(parts):
        serve(part, join.taker(at))
