"""A question to every Handler about all that its coordinators of one kind store: lists of groups, of transactions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from kproc.broker.calls.calls import Answers, Call, OnResult
from kproc.broker.peers.owners import Gather, OnOwnersReply, serve_parts
from kproc.common.errors import ErrorCode

if TYPE_CHECKING:
    from kproc.broker.request.context import Coordinators, RequestContext, Services

Row = dict[str, Any]
Rows = list[Row] | int  # One Handler's, or why they are not known.


class EveryHandler(NamedTuple):
    """The question; each Handler is a part."""

    services: Services
    call: Call[Any, Answers]
    body: Any  # Of the call.
    coordinators: Coordinators[Any]
    own_rows: Callable[[], list[Row]]  # When all of ours are loaded.

    def owner_of(self, handler: int) -> int:
        """The Handler itself."""
        return handler

    def serve(self, _handler: int, on_answer: Callable[[Rows | None], None]) -> None:
        """Answer for this one."""
        self.coordinators.when_loaded(lambda: on_answer(self.own_rows()))

    def ask(self, owner: int, _handlers: Sequence[int], on_reply: OnOwnersReply) -> None:
        """Ask another one."""
        self.services.peers.ask(owner, self.call, self.body, on_reply)

    def lost(self, _handler: int) -> Rows:
        """What a Handler stores is not known when it dies: clients ask again."""
        return int(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def ask_all(self, context: RequestContext, on_done: Callable[[int, list[Row]], None]) -> None:
        """`on_done` gets NONE and all rows, or an error code."""

        def on_answers(answers: list[Rows]) -> None:
            code = next((answer for answer in answers if isinstance(answer, int)), int(ErrorCode.NONE))
            on_done(code, [row for answer in answers if not isinstance(answer, int) for row in answer])

        Gather(self.services, self, range(self.services.image.handler_count), on_answers).start_for(context)

    def serve_call(self, on_reply: OnResult[Answers]) -> None:
        """Another Handler asks for ours."""
        serve_parts(self.services, [self.services.handler_index], self.serve, on_reply)
