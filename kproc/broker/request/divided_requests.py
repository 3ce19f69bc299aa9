"""Handle large requests in steps of a few milliseconds, with a duty cycle of the role between two of them.

A request above its API's `direct_bytes_max` is decoded by `DecodedBySteps`. If the first step decodes all of it, and it
has few rows, it is handled at once, like a small request. Anything larger becomes a `DividedRequest`: its remaining
rows are decoded in steps, then it is divided (request/division.py), and each slice is handled after the one before is
answered. To the API's handler function, the coordinators, other owners and the controller each slice is a small request
of its own. Every slice is authorised, routed, parked, throttled and failed like any request. A change between two
slices (of rights, owners or topics) takes effect from the next slice on.

`DividedRequests` is one role's table of them. It bounds how many are in work and runs one step in each duty cycle.
Steps are counted in rows and not by the clock, so that the simulation repeats them.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from msgspec import msgpack

from kproc.broker.request.context import RequestContext, error_codes
from kproc.broker.request.division import SLICE_ROWS, JoinedAnswer, Rows, Slice, divide
from kproc.broker.request.registry import Api
from kproc.broker.request.request import HandlerRequest
from kproc.broker.request.rights import check_needs
from kproc.broker.security.acl import Operation, ResourceType
from kproc.broker.security.principal import Identity
from kproc.common.containment import Containment
from kproc.common.errors import ErrorCode, KafkaError, ProtocolError
from kproc.wire import codec
from kproc.wire.schema import RowBudget

logger = logging.getLogger(__name__)

# Documented in SECURITY.md. Produce has its own bound, because its batches are not decoded.
REQUEST_BYTES_MAX: Final = 16 << 20
ROWS_MAX: Final = 100_000
ANSWER_BYTES_MAX: Final = 16 << 20
# Limits of requests in work: their number and their bytes together. A single one may be larger. Others wait encoded.
IN_WORK_MAX: Final = 4
IN_WORK_BYTES_MAX: Final = 4 << 20
# Requests up to this size may have come through a ring instead of the arena.
SMALL_BYTES: Final = 16 << 10
# Rows that are decoded in one step.
STEP_ROWS: Final = 200

Fields = dict[str, Any]


class DecodedBySteps:
    """The fields of a request that may be large."""

    __slots__ = ("_steps", "fields")

    def __init__(self, api_key: int, version: int, body: memoryview, fields: Fields | None = None) -> None:
        budget = RowBudget(ROWS_MAX, STEP_ROWS)
        self._steps: Generator[None, None, Fields] = codec.decode_request_by_steps(
            api_key, version, body, budget
        )
        # None until the last step, unless a handler function has supplied them (ManyRows).
        self.fields = fields

    def step(self) -> None:
        """Decode the rows of one step. Raises ProtocolError for malformed bytes."""
        try:
            next(self._steps)
        except StopIteration as done:
            self.fields = done.value


class SliceRequest(RequestContext):
    """One slice of a divided request, as the API's handler function sees it."""

    identity: Identity

    __slots__ = ("_divided", "_is_answered", "identity", "is_continued")

    def __init__(self, divided: DividedRequest, part: Slice) -> None:
        request = divided.request
        self._divided = divided
        self.services = request.services
        self.identity = request.identity
        self.api_key = request.api_key
        self.api_version = request.api_version
        self.correlation_id = request.correlation_id
        self.client_id_bytes = request.client_id_bytes
        self.connection_id = request.connection_id
        self.listener_index = request.listener_index
        self.decoded = part.fields
        self.is_continued = part.is_continued
        self.throttle_ms = 0
        self.meter = None  # The whole request has the meter.
        self._is_answered = False

    @property
    def client_host(self) -> str:
        return self._divided.request.client_host

    def is_allowed(
        self,
        operation: Operation,
        resource: ResourceType,
        name: str,
        *,
        is_question: bool = False,
        count: int = 1,
    ) -> bool:
        return self._divided.request.is_allowed(
            operation, resource, name, is_question=is_question, count=count
        )

    def is_allowed_for_any(self, operation: Operation, resource: ResourceType) -> bool:
        return self._divided.request.is_allowed_for_any(operation, resource)

    def reply(self, fields: Mapping[str, Any]) -> None:
        if self._is_answered:
            return
        self._is_answered = True
        for code in row_error_codes(fields):
            self.count_error(code)
        self._divided.on_answer(self, dict(fields))

    def begin_throttle(self, duration_ms: int) -> None:
        self._divided.request.begin_throttle(duration_ms)

    def fail(self) -> None:
        self._divided.fail_slice(self)

    def close(self) -> None:
        self._is_answered = True
        self._divided.close()

    def when_gone(self, on_gone: Callable[[], None]) -> None:
        self._divided.on_gone = on_gone


class DividedRequest:
    """A large request in work."""

    __slots__ = (
        "__weakref__",
        "_api",
        "_decoded",
        "_errors_per_step",
        "_failure",
        "_is_waiting",
        "_joined",
        "_key",
        "_known",
        "_slices",
        "is_over",
        "on_gone",
        "request",
        "size_bytes",
    )

    def __init__(self, request: HandlerRequest, api: Api, decoded: DecodedBySteps, size_bytes: int) -> None:
        self.request = request
        self.size_bytes = size_bytes
        self.on_gone: Callable[[], None] | None = None  # Of the slice that is parked.
        self.is_over = False
        self._api = api
        self._decoded = decoded
        self._slices: Iterator[Slice] | None = None
        self._joined: JoinedAnswer | None = None
        self._failure: KafkaError | None = None  # The error for the remaining rows.
        self._is_waiting = False
        self._errors_per_step = 1
        # Encoded answers by encoded slice, if equal rows are looked up once (Rows.are_looked_up_once).
        self._known: dict[bytes, tuple[int, bytes]] | None = None
        self._key = b""  # Of the slice in work.

    @property
    def is_ready(self) -> bool:
        """True if `step` has something to do, False while a slice waits for its answer."""
        return not self._is_waiting and not self.is_over

    def step(self) -> None:
        """Decode some rows, or handle one slice."""
        if self._slices is None:
            if self._decoded.fields is None:
                self._decoded.step()
            if self._decoded.fields is not None:
                self._start(self._decoded.fields)
            return
        if self._failure is None:
            self._handle_slice(self._slices)
            return
        # Error rows are cheap, even for an API whose slices are small because its rows are expensive.
        for _ in range(self._errors_per_step):
            self._handle_slice(self._slices)
            if self.is_over:
                return

    def _handle_slice(self, slices: Iterator[Slice]) -> None:
        part = next(slices, None)
        if part is None:
            self._answer()
            return
        if self._known is not None and self._failure is None:
            self._key = msgpack.encode(part.fields)
            known = self._known.get(self._key)
            if known is not None:
                self._repeat(*known)
                return
        self._is_waiting = True
        context = SliceRequest(self, part)
        what = f"a slice of {self._api.key.name} version {self.request.api_version}"
        context.services.containment.run(what, context, handle, context, self._api, self._failure)

    def _start(self, fields: Fields) -> None:
        """Divide the decoded request. A request without divisible rows is handled as a whole."""
        request = self.request
        where = self._api.rows_in(fields)
        if where is None:
            self.is_over = True
            request.decoded = fields
            check_whole(request, self._api)
            handle(request, self._api)
            return
        if where.validate is not None:
            try:
                where.validate(fields)
            except KafkaError as error:
                # A new error without the traceback, whose frames refer to all rows and to this object.
                self._failure = KafkaError(error.code, error.message)
        self._joined = JoinedAnswer(request.api_key, request.api_version, where.response)
        self._known = {} if where.are_looked_up_once else None
        self._errors_per_step = max(1, SLICE_ROWS // where.size)
        # A request that fails as a whole may have far more rows than one step could search for duplicates.
        self._slices = divide(fields, where if self._failure is None else replace(where, unique=()))

    def on_answer(self, part: SliceRequest, fields: Fields) -> None:
        """Add the answer of the slice in work. The next slice is handled in a later duty cycle."""
        if self.is_over:
            return
        assert self._joined is not None
        self.on_gone = None
        self._is_waiting = False
        before = self._joined.count(), self._joined.size_bytes()
        self._joined.add(fields, is_continued=part.is_continued)
        if self._known is not None and self._failure is None:
            self._known[self._key] = self._joined.rows_since(*before)
        self._check_size()

    def _repeat(self, count: int, encoded: bytes) -> None:
        assert self._joined is not None
        self._joined.repeat(count, encoded)
        self._check_size()

    def _check_size(self) -> None:
        assert self._joined is not None
        if self._failure is None and self._joined.size_bytes() > ANSWER_BYTES_MAX:
            self._failure = KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"The answer is larger than {ANSWER_BYTES_MAX >> 20} MiB. Request fewer rows at once.",
            )

    def fail_slice(self, part: SliceRequest) -> None:
        """Answer a slice with UNKNOWN_SERVER_ERROR; if the API has no error response, close the connection."""
        error_response = self._api.error_response
        if error_response is None:
            self.close()
        else:
            part.reply(error_response(part.decoded, int(ErrorCode.UNKNOWN_SERVER_ERROR), None))

    def close(self) -> None:
        """Close the client's connection."""
        if not self.is_over:
            self.is_over = True
            self.request.close()

    def abandon(self) -> None:
        """Stop after the client has disconnected. The request is finished without an answer, which frees its block."""
        if self.is_over:
            return
        self.is_over = True
        if self.on_gone is not None:
            self.on_gone()
        self.request.no_op()

    def _answer(self) -> None:
        assert self._joined is not None
        self.is_over = True
        self.request.done_ns = 0  # The work of a timed request ends now, not at its first step.
        self.request.reply(self._joined.fields())


class DividedAnswer:
    """A large answer that is encoded in steps: an API that lists what the broker has cannot bound its answer."""

    __slots__ = ("_joined", "_name", "_slices", "is_over", "request", "size_bytes")

    def __init__(self, request: HandlerRequest, fields: Fields, path: tuple[str, ...]) -> None:
        self.request = request
        self.size_bytes = 0  # Of the request, which is not stored any more.
        self.is_over = False
        self._name = path[0]
        self._slices = divide(fields, Rows(path, path))
        self._joined = JoinedAnswer(request.api_key, request.api_version, path)
        request.when_gone(self._stop)

    @property
    def is_ready(self) -> bool:
        """True until the answer is encoded."""
        return not self.is_over

    def step(self) -> None:
        """Encode some rows. Send the answer after the last ones."""
        part = next(self._slices, None)
        if part is None:
            self.is_over = True
            self.request.done_ns = 0
            self.request.reply(self._joined.fields())
            return
        for code in row_error_codes({self._name: part.fields[self._name]}):
            self.request.count_error(code)
        self._joined.add(part.fields, is_continued=part.is_continued)

    def abandon(self) -> None:
        """Stop after the client has disconnected."""
        if not self.is_over:
            self.is_over = True
            self.request.no_op()

    def _stop(self) -> None:
        self.is_over = True  # The caller finishes the request.


Job = DividedRequest | DividedAnswer


def row_error_codes(fields: Mapping[str, Any]) -> Iterator[int]:
    """Yield the error codes in the rows of an answer. The code of the whole answer is counted when it is sent."""
    for value in fields.values():
        if isinstance(value, list):
            for row in value:
                if isinstance(row, dict):
                    yield from error_codes(row)


def handle(context: RequestContext, api: Api, failure: KafkaError | None = None) -> None:
    """Call the API's handler function for a decoded request or slice. With `failure`, answer that error instead."""
    if failure is not None:
        fields = _error_fields(context, api, failure)
    else:
        try:
            if api.needs:
                check_needs(context, api.needs, context.decoded)
            fields = api.handler(context, context.decoded)
        except KafkaError as error:
            fields = _error_fields(context, api, error)
    if fields is not None:
        context.reply(fields)


def _error_fields(context: RequestContext, api: Api, error: KafkaError) -> Fields | None:
    """Return the API's error response. If it has none, close the connection and return None."""
    if api.error_response is not None:
        return api.error_response(context.decoded, int(error.code), error.message)
    services = context.services
    if services.refusals.has_room(services.clock.now_ns()):
        logger.warning("closing a connection: %s failed with %s", api.key.name, ErrorCode(error.code).name)
    context.close()
    return None


def check_whole(request: HandlerRequest, api: Api) -> None:
    """Raise ProtocolError if a request that is handled in one step has too many rows for that."""
    rows = _count_all_rows(request.decoded)
    if rows > api.rows_max:
        raise ProtocolError(
            f"the arrays of the request have {rows} rows; {api.key.name} accepts at most {api.rows_max}"
        )


def _count_all_rows(fields: Mapping[str, Any]) -> int:
    """Count the elements of all arrays of a decoded request."""
    count = 0
    for value in fields.values():
        if isinstance(value, list):
            count += len(value)
            for row in value if value and isinstance(value[0], dict) else ():
                count += _count_all_rows(row)
    return count


class DividedRequests:
    """The large requests and answers of one role, in order of arrival. `on_end` is called for each one that ends."""

    __slots__ = ("_containment", "_in_work", "_on_end", "_refuse", "_waiting", "jobs", "newest")

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
        self.jobs: dict[Job, None] = {}  # All of them. The duty cycle checks whether it is empty.
        self.newest: DividedRequest | None = None  # The last request that was added.

    def __len__(self) -> int:
        return len(self.jobs)

    def add(self, request: HandlerRequest, api: Api, decoded: DecodedBySteps, size_bytes: int) -> None:
        """Handle a request in later duty cycles."""
        self.newest = DividedRequest(request, api, decoded, size_bytes)
        self._add(self.newest)

    def add_answer(self, request: HandlerRequest, fields: Fields, path: tuple[str, ...]) -> None:
        """Encode an answer, whose rows are at `path`, in later duty cycles, then send it."""
        self._add(DividedAnswer(request, fields, path))

    def _add(self, job: Job) -> None:
        self.jobs[job] = None
        self._waiting.append(job)

    def has_room(self, size_bytes: int) -> bool:
        """Return True if a large request of that size may start now. A single one may have any size.

        Requests that came through a ring do not count, because many of them must not keep the large ones out. The
        number of connections bounds them.
        """
        in_memory = sum(each.size_bytes for each in self.jobs if each.size_bytes > SMALL_BYTES)
        return not in_memory or in_memory + size_bytes <= IN_WORK_BYTES_MAX

    def is_ready(self) -> bool:
        """Return True if `work` has work now."""
        return any(each.is_ready for each in self._in_work) or bool(
            self._waiting and len(self._in_work) < IN_WORK_MAX
        )

    def work(self) -> int:
        """Run one step of one job. Jobs take turns. Return the number of steps."""
        while self._waiting and len(self._in_work) < IN_WORK_MAX:
            self._in_work.append(self._waiting.popleft())
        work = 0
        for _ in range(len(self._in_work)):
            job = self._in_work.popleft()
            if job.is_ready and not work:
                work = 1
                self._step(job)
            if job.is_over:
                self.jobs.pop(job, None)
                self._on_end(job)
            else:
                self._in_work.append(job)
        return work

    def _step(self, job: Job) -> None:
        request = job.request
        if request.meter is not None:
            request.meter.resume()
        before, self._containment.owner = self._containment.owner, request
        try:
            job.step()
        except ProtocolError as error:
            job.is_over = True
            self._refuse(request, str(error))
        except Exception as error:  # noqa: BLE001 - contained
            job.is_over = True
            self._containment.caught(f"a slice of API key {request.api_key}", error, request)
        finally:
            self._containment.owner = before
        if request.meter is not None:
            request.meter.stop()

    def clear(self) -> None:
        """Abandon all jobs: the Processor of all clients has died."""
        for job in list(self.jobs):
            self.abandon(job)

    def abandon(self, job: Job) -> None:
        """Stop and remove a job whose client has disconnected."""
        job.abandon()
        self.jobs.pop(job, None)
        for queue in (self._in_work, self._waiting):
            if job in queue:
                queue.remove(job)
