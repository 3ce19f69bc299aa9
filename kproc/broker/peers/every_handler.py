"""List the groups or transactional ids of the coordinators of all Handlers.

The Handler of the client collects its own items, and calls every other Handler for theirs. Each answers with a page as
an open reply, and with one more in each later duty cycle until its list ends.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from kproc.broker.calls.calls import Call, Lost, OnResult
from kproc.broker.request.listing import Items, ListedPages, Listing, Page, ToRows
from kproc.common.errors import ErrorCode

if TYPE_CHECKING:
    from kproc.broker.coordinator.topic_coordinators import TopicCoordinators
    from kproc.broker.request.context import RequestContext, Services

Fields = dict[str, Any]


class EveryHandler(NamedTuple):
    """One list request to all Handlers. `own_items` is called when all coordinators of a Handler are loaded."""

    services: Services
    call: Call[Any, Page]
    body: Any  # The body of `call`.
    coordinators: TopicCoordinators[Any]
    own_items: Callable[[], Items]

    def respond(self, context: RequestContext, path: str, fields: Fields, to_rows: ToRows) -> None:
        """Respond with `fields` and the rows of all items at `path`, or with an error if a Handler dies meanwhile."""
        count = self.services.image.handler_count
        listing = Listing(context, (path,), fields, self._start, sources=count, to_rows=to_rows)
        self.services.clients.divided.add_listing(listing)

    def _start(self, listing: Listing) -> None:
        services = self.services
        self.coordinators.when_loaded(lambda: listing.collect(self.own_items()))
        for handler in range(services.image.handler_count):
            if handler != services.handler_index:
                services.peers.ask(handler, self.call, self.body, partial(_on_reply, listing))

    def handle_call(self, on_reply: OnResult[Page]) -> None:
        """Reply to another Handler's call with the items that this Handler lists."""
        services = self.services
        self.coordinators.when_loaded(
            lambda: services.clients.divided.add_pages(ListedPages(self.own_items(), on_reply))
        )


def _on_reply(listing: Listing, reply: Page | Lost) -> None:
    if isinstance(reply, Lost):
        # The items of a dead Handler are unknown until its successor has loaded its coordinators. Clients retry.
        listing.fail(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    else:
        listing.add_page(reply.items, is_last=not reply.is_open)
