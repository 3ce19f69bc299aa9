"""Lists of groups, rules or topics: a long response is collected page by page, at most one page in a duty cycle.

A small request can ask for any number of items. `list_items` answers a short list at once. A long one is collected,
filtered by the client's rights and encoded a page at a time, and the role handles other requests between two pages.
Only the encoded rows are kept, up to ANSWER_BYTES_MAX. Pages of other Handlers come as the open replies of one call
(every_handler.py).

`request/divided_requests.py` decides when a page is collected, and how many lists are in work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from kproc.broker.calls.calls import OnResult, Reply
from kproc.broker.request import division
from kproc.broker.request.registry import lookup
from kproc.common.errors import ErrorCode

if TYPE_CHECKING:
    from kproc.broker.request.context import RequestContext

Fields = dict[str, Any]
# Yields the items of a list, and None for an item that was examined and skipped. Both count for the page's size,
# because the limit is one of time.
Items = Iterator[Any | None]
ToRows = Callable[[list[Any]], list[Fields]]


class Page(Reply):
    """A bounded part of the items that one Handler lists for a request such as ListGroups."""

    items: list[Any]


def next_page(items: Items) -> tuple[list[Any], bool]:
    """Return the items of the next page, without skipped ones, and True if it is the last page."""
    page = list(islice(items, division.SLICE_ROWS))
    return [item for item in page if item is not None], len(page) < division.SLICE_ROWS


def _as_rows(items: list[Any]) -> list[Fields]:
    return items


class Listing:
    """The response to one client's list request.

    `start` is called once. It must see to it that `add_page` gets the pages of all sources, or that `fail` is called.
    `sources` is the number of Handlers whose items are listed.
    """

    __slots__ = (
        "_fields",
        "_is_started",
        "_items",
        "_joined",
        "_last",
        "_path",
        "_sources",
        "_start",
        "_to_rows",
        "is_over",
        "request",
        "size_bytes",
    )

    def __init__(
        self,
        request: RequestContext,
        path: tuple[str, ...],
        fields: Fields,
        start: Callable[[Listing], None],
        *,
        sources: int = 1,
        to_rows: ToRows = _as_rows,
    ) -> None:
        self.request: Final[Any] = request
        self.size_bytes = 0  # A request for a list is small, so it does not count for `has_room`.
        self.is_over = False
        self._path = path
        self._fields = fields  # The response's other fields. They are read when the last page is added.
        self._start = start
        self._is_started = False
        self._sources = sources
        self._to_rows = to_rows
        self._items: Items | None = None
        self._joined: division.JoinedAnswer | None = None
        self._last: Fields | None = None  # The last row that was added, without its nested rows.

    @property
    def is_ready(self) -> bool:
        """True if `step` has something to do, False while only pages of other Handlers are missing."""
        return not self.is_over and (self._items is not None or not self._is_started)

    def step(self) -> None:
        """Call `start` the first time. Then collect a page of this Handler's own items, if `collect` has set them."""
        if not self._is_started:
            self._is_started = True
            self._start(self)
        if self._items is not None and not self.is_over:
            page, is_last = next_page(self._items)
            if is_last:
                self._items = None
            self.add_page(page, is_last=is_last)

    def collect(self, items: Items) -> None:
        """Set the generator of the items that this Handler lists.

        Each step of the listing collects one page of items.
        """
        self._items = items

    def add_page(self, items: list[Any], *, is_last: bool) -> None:
        """Add a page of one source. After the last page of the last source, send the response."""
        if self.is_over:
            return
        self._sources -= is_last
        rows = self._to_rows(items)
        if self._joined is None and not self._sources:
            self._finish({**self._fields, self._path[0]: rows})
            return
        if self._joined is None:
            self._joined = division.JoinedAnswer(self.request.api_key, self.request.api_version, self._path)
        self.request.count_row_errors({self._path[0]: rows})
        self._joined.add({self._path[0]: rows}, self._continued_by(rows))
        if self._joined.size_bytes() > division.ANSWER_BYTES_MAX:
            self.fail(ErrorCode.INVALID_REQUEST, division.TOO_LARGE)
        elif not self._sources:
            self._finish({**self._fields, **self._joined.fields()})

    def _continued_by(self, rows: list[Fields]) -> int:
        """Return 1 if the first of these rows continues the last row of the previous page, or 0 if it is a new one.

        Store the last of these rows for the next call.
        """
        if len(self._path) == 1 or not rows:
            return 0
        # A row with inner rows, such as a topic with partitions, can be split over two pages. Compare everything but
        # the inner rows.
        first, last = ({**row, self._path[1]: None} for row in (rows[0], rows[-1]))
        before, self._last = self._last, last
        return int(first == before)

    def fail(self, code: int, message: str | None = None) -> None:
        """Send an error response instead of the list."""
        api = lookup(self.request.api_key)
        if not self.is_over:
            assert api is not None
            assert api.error_response is not None, "every API that lists has one"
            self._finish(api.error_response(self.request.decoded, int(code), message))

    def stop(self) -> None:
        """Collect no more pages, because the client has disconnected. The caller finishes the request."""
        self.is_over = True
        self._items = None

    def abandon(self) -> None:
        """Collect no more pages and finish the request, because the client has disconnected."""
        if not self.is_over:
            self.stop()
            self.request.no_op()

    def _finish(self, fields: Fields) -> None:
        self.stop()
        # For a timed request: its local work ends with the last page, not with the first step.
        self.request.done_ns = 0
        self.request.reply(fields)


class ListedPages:
    """The pages of a list for another Handler: replies to one call, which stays open until the last page."""

    __slots__ = ("_items", "_on_reply", "is_over", "size_bytes")

    def __init__(self, items: Items, on_reply: OnResult[Page]) -> None:
        self.size_bytes = 0
        self.is_over = False
        self._items = items
        self._on_reply = on_reply

    @property
    def is_ready(self) -> bool:
        """True until the last page is sent."""
        return not self.is_over

    def step(self) -> None:
        """Send the next page to the calling Handler."""
        page, self.is_over = next_page(self._items)
        self._on_reply(Page(items=page, is_open=not self.is_over))

    def fail(self) -> None:
        """Reply to the call as if this Handler had died."""
        self.is_over = True
        self._on_reply(None)

    def abandon(self) -> None:
        """Send no further page, because the calling Handler has ended."""
        self.is_over = True


def list_items(
    context: RequestContext,
    path: str,
    items: Items,
    *,
    fields: Fields | None = None,
    to_rows: ToRows = _as_rows,
) -> None:
    """Send a response with `fields` and the rows of `items` at the dotted `path`, now or page by page.

    `to_rows` converts the items of a page to rows. Without `fields`, the response has error_code NONE.
    """
    listing = Listing(
        context,
        tuple(path.split(".")),
        {"error_code": int(ErrorCode.NONE)} if fields is None else fields,
        lambda listing: listing.collect(items),
        to_rows=to_rows,
    )
    context.services.clients.divided.add_listing(listing)
