"""DividedRequests: the large requests and answers that are in work in one role, and the order of their steps.

Large work is done in steps of a few milliseconds, with a duty cycle of the role between two of them. A job is a
DividedRequest (divided_request.py), or a long answer to a short request, collected in pages (listing.py). A small
request may stand for many rows (all topics). Its handler function names them with `RequestContext.divide`.

`DividedRequests` bounds how many jobs are in work and runs one step of one of them in each duty cycle. Steps are
counted in rows and not by the clock, so that the simulation repeats them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from kproc.broker.request.divided_request import DecodedBySteps, DividedRequest, Fields
from kproc.broker.request.listing import ListedPages, Listing
from kproc.broker.request.registry import APIS, Api
from kproc.broker.request.request import HandlerRequest
from kproc.common.containment import Containment
from kproc.common.errors import ProtocolError

# Limits of the jobs in work: their number, and the sum of their bytes. A single request may be larger. Further requests
# wait as encoded bytes.
IN_WORK_MAX: Final = 4
IN_WORK_BYTES_MAX: Final = 4 << 20
# Requests up to this size may have come through a ring instead of the arena.
SMALL_BYTES: Final = 16 << 10


Job = DividedRequest | Listing | ListedPages


class DividedRequests:
    """The large requests and answers of one role, in order of arrival. `work` calls `on_end` for each one that ends."""

    __slots__ = (
        "_containment",
        "_has_stepped",
        "_in_work",
        "_on_end",
        "_refuse",
        "_waiting",
        "jobs",
        "newest",
    )

    def __init__(
        self,
        containment: Containment,
        refuse: Callable[[HandlerRequest, str], None],
        on_end: Callable[[Job], None] = lambda _job: None,
    ) -> None:
        self._containment = containment
        self._refuse = refuse
        self._on_end = on_end
        self._in_work: deque[Job] = deque()
        self._waiting: deque[Job] = deque()
        # All jobs, in work or waiting. Every duty cycle checks whether it is empty.
        self.jobs: dict[Job, None] = {}
        self.newest: DividedRequest | None = None  # The request that was added last.
        self._has_stepped = False  # True if a page was collected since the last `work`.

    def __len__(self) -> int:
        return len(self.jobs)

    def add(self, request: HandlerRequest, api: Api, decoded: DecodedBySteps, size_bytes: int) -> None:
        """Divide a request into slices, which later duty cycles handle.

        decoded: the request's fields, decoded in steps. size_bytes: the size of its frame.
        """
        self.newest = DividedRequest(request, api, size_bytes, decoded=decoded)
        self._add(self.newest)

    def divide(self, request: HandlerRequest, name_rows: Callable[[], Fields], *, is_held: bool) -> None:
        """Handle the request that `name_rows` returns instead of `request`, in later duty cycles.

        `is_held`: the connection's later requests must wait until this one is answered.
        """
        divided = DividedRequest(request, APIS[request.api_key], name_rows=name_rows)
        if is_held:
            self.newest = divided
        else:
            request.when_gone(divided.stop)
        self._add(divided)

    def add_listing(self, listing: Listing) -> None:
        """Collect the first page of a list now, if a slot is free, and the rest in later duty cycles."""
        if self._has_slot():
            listing.step()
            self._has_stepped = True
        if listing.is_over:
            return
        listing.request.when_gone(listing.stop)
        self._add(listing)

    def add_pages(self, pages: ListedPages) -> None:
        """Send a list to another Handler, the first page now and the others in later duty cycles."""
        self._send_page(pages)
        if not pages.is_over:
            # A list for another Handler takes no slot. The calling Handler may wait in a slot of its own, and two
            # Handlers that wait for each other's slots would wait for ever.
            self.jobs[pages] = None
            self._in_work.append(pages)

    def _add(self, job: Job) -> None:
        self.jobs[job] = None
        self._waiting.append(job)
        self._admit()

    def _admit(self) -> None:
        while self._waiting and self._has_slot():
            self._in_work.append(self._waiting.popleft())

    def _has_slot(self) -> bool:
        return sum(not isinstance(job, ListedPages) for job in self._in_work) < IN_WORK_MAX

    def has_room(self, size_bytes: int) -> bool:
        """Return True if a large request of that size may start now. A single one may have any size.

        Requests that came through a ring do not count: many of them must not keep large requests out, and the number of
        connections limits them.
        """
        in_memory = sum(each.size_bytes for each in self.jobs if each.size_bytes > SMALL_BYTES)
        return not in_memory or in_memory + size_bytes <= IN_WORK_BYTES_MAX

    def is_ready(self) -> bool:
        """Return True if `work` has something to do at once."""
        return any(each.is_ready for each in self._in_work) or bool(self._waiting and self._has_slot())

    def work(self) -> int:
        """Run one step of one job. Return 1 if a job had a step to run, else 0. Jobs take turns.

        Run none if a new list has already collected a page in this duty cycle.
        """
        self._admit()
        work, self._has_stepped = int(self._has_stepped), False
        for _ in range(len(self._in_work)):
            job = self._in_work.popleft()
            if not work and job.is_ready:
                work = 1
                if isinstance(job, ListedPages):
                    self._send_page(job)
                else:
                    self._step(job)
            if job.is_over:
                self.jobs.pop(job, None)
                self._on_end(job)
            else:
                self._in_work.append(job)
        return work

    def _send_page(self, pages: ListedPages) -> None:
        try:
            pages.step()
        except Exception as error:  # noqa: BLE001 - fails this list only
            self._containment.caught("a list for another Handler", error)
            pages.fail()

    def _step(self, job: DividedRequest | Listing) -> None:
        request = job.request
        if request.meter is not None:
            request.meter.resume()
        before, self._containment.owner = self._containment.owner, request
        try:
            job.step()
        except ProtocolError as error:
            job.is_over = True
            self._refuse(request, str(error))
        except Exception as error:  # noqa: BLE001 - fails this request only
            job.is_over = True
            self._containment.caught(f"a slice of API key {request.api_key}", error, request)
        finally:
            self._containment.owner = before
        if request.meter is not None:
            request.meter.stop()

    def clear(self) -> None:
        """Abandon all jobs, because the only Processor, and with it every client's connection, has died."""
        for job in list(self.jobs):
            self.abandon(job)

    def abandon(self, job: Job) -> None:
        """Stop and remove a job whose client has disconnected."""
        job.abandon()
        self.jobs.pop(job, None)
        for queue in (self._in_work, self._waiting):
            if job in queue:
                queue.remove(job)
