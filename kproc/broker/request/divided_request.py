"""DividedRequest: one large request in work, decoded in steps and handled as slices.

A request above its API's `direct_bytes_max` is decoded by `DecodedBySteps`. If the first step decodes all of it, and it
has few rows, it is handled at once, like a small request. Anything larger becomes a `DividedRequest`: its remaining
rows are decoded in steps, then it is divided (request/division.py), and each slice is handled after the one before is
answered. To the API's handler function, the coordinators, other owners and the controller each slice is a small request
of its own. Every slice is authorised, routed, parked, throttled and failed like any request. A change between two
slices (of rights, owners or topics) takes effect from the next slice on. Errors of the whole request, such as a
missing right on the cluster, are checked once, before the first slice.

divided_requests.py has the requests in work of one role, and decides which of them runs its next step.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from itertools import chain
from typing import Any, Final

from msgspec import msgpack
from msgspec.structs import replace

from kproc.broker.request import division
from kproc.broker.request.change_descriptions import CHANGES
from kproc.broker.request.change_log import ChangeLine
from kproc.broker.request.context import RequestContext
from kproc.broker.request.division import SLICE_ROWS, TOO_LARGE, JoinedAnswer, Rows, Slice, count_rows, divide
from kproc.broker.request.handler_call import check_whole, handle, handle_slice
from kproc.broker.request.registry import Api
from kproc.broker.request.request import HandlerRequest
from kproc.broker.request.rights import check_needs
from kproc.broker.security.acl import Operation, ResourceType
from kproc.broker.security.principal import Identity
from kproc.common.errors import ErrorCode, KafkaError
from kproc.wire import codec
from kproc.wire.schema_steps import RowBudget

# Limit (bytes) of a request that is decoded, documented in SECURITY.md. Produce has a limit of its own, because its
# batches are not decoded.
REQUEST_BYTES_MAX: Final = 16 << 20
ROWS_MAX: Final = 100_000
# Limit of the rows that are decoded in one step.
STEP_ROWS: Final = 200
Fields = dict[str, Any]


class DecodedBySteps:
    """A large request that is decoded in bounded steps. `fields` are set after the last step."""

    __slots__ = ("_steps", "fields")

    def __init__(self, api_key: int, version: int, body: memoryview, rows_max: int) -> None:
        budget = RowBudget(rows_max, STEP_ROWS)
        self._steps: Generator[None, None, Fields] = codec.decode_request_by_steps(
            api_key, version, body, budget
        )
        self.fields: Fields | None = None  # The decoded fields; None until the last step of decoding.

    def step(self) -> None:
        """Decode the rows of one step. Raises ProtocolError for malformed bytes."""
        try:
            next(self._steps)
        except StopIteration as done:
            self.fields = done.value


class SliceRequest(RequestContext):
    """One slice of a divided request, as the API's handler function sees it."""

    identity: Identity

    __slots__ = ("_divided", "_is_answered", "continued", "identity")

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
        self.continued = part.continued
        self.throttle_ms = 0
        self.meter = None  # Only the meter of the whole request charges the client.
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
        self._divided.on_answer(self, dict(fields))

    def divide(self, name_rows: Callable[[], Fields]) -> None:
        self._is_answered = True
        self._divided.replace_slice(self, name_rows())

    def throttle(self, duration_ms: int, quota: str) -> None:
        self._divided.request.start_throttle(duration_ms, quota)

    def fail(self) -> None:
        self._divided.fail_slice(self)

    def close(self) -> None:
        self._is_answered = True
        self._divided.close()

    def when_gone(self, on_gone: Callable[[], None]) -> None:
        self._divided.on_gone = on_gone


class DividedRequest:
    """A large request in work. Its bytes are `decoded` by steps, or `name_rows` returns its rows."""

    __slots__ = (
        "__weakref__",
        "_api",
        "_changed",
        "_decoded",
        "_errors_per_step",
        "_failure",
        "_fields",
        "_has_no_slices",
        "_is_waiting",
        "_joined",
        "_key",
        "_known",
        "_left",
        "_name_rows",
        "_preparing",
        "_shared",
        "_slices",
        "is_over",
        "on_gone",
        "request",
        "size_bytes",
    )

    def __init__(
        self,
        request: HandlerRequest,
        api: Api,
        size_bytes: int = 0,
        *,
        decoded: DecodedBySteps | None = None,
        name_rows: Callable[[], Fields] | None = None,
    ) -> None:
        self.request = request
        self.size_bytes = size_bytes
        self.on_gone: Callable[[], None] | None = None  # Cancels the slice that is parked.
        self.is_over = False
        self._api = api
        self._decoded = decoded
        self._name_rows = name_rows
        self._fields: Fields | None = None  # Set while the whole request is validated.
        self._preparing: Iterator[None] | None = None  # The validation of the whole request, in steps.
        self._shared = 0  # Rows.shared
        self._slices: Iterator[Slice] | None = None
        self._joined: JoinedAnswer | None = None
        self._failure: KafkaError | None = None  # The error for the rows of all remaining slices.
        self._left: Iterator[Slice] | None = None  # The slices of a long response that are not encoded yet.
        self._is_waiting = False
        self._has_no_slices = False  # True if all slices are handled.
        self._errors_per_step = 1
        # Encoded answers by encoded slice, if equal rows are looked up once (Rows.are_looked_up_once).
        self._known: dict[bytes, tuple[int, bytes]] | None = None
        self._key = b""  # The slice in work, encoded: its key in `_known`.
        # The changes that the slices have made so far, for the change log.
        self._changed = ChangeLine() if request.api_key in CHANGES else None

    @property
    def is_ready(self) -> bool:
        """True if `step` has something to do, False while a slice waits for its answer."""
        return not self._is_waiting and not self.is_over

    def step(self) -> None:
        """Decode or check some rows, or handle one slice."""
        if self._slices is None:
            self._step_before_slices()
            return
        if self._left is not None:
            left = next(self._left, None)
            if left is not None:
                self._add(left.fields, left.continued)
                return
            self._left = None
        if self._has_no_slices:
            self._answer()
            return
        if self._failure is None:
            self._handle_slice(self._slices)
            return
        # The request has failed, and rows with an error are cheap. So handle several slices in one step if this API's
        # slices are small because its rows are expensive.
        for _ in range(self._errors_per_step):
            self._handle_slice(self._slices)
            if self.is_over or self._has_no_slices:
                return

    def _handle_slice(self, slices: Iterator[Slice]) -> None:
        part = next(slices, None)
        if part is None:
            assert self._joined is not None
            self._has_no_slices = True
            # The slice iterator has just freed the request's rows, which takes up to 10 ms. So send a long response in
            # another step.
            if self._joined.count() <= SLICE_ROWS:
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
        context.services.containment.run(what, context, handle_slice, context, self._api, self._failure)

    def _step_before_slices(self) -> None:
        if self._fields is not None:
            self._prepare_some(self._fields)
        elif self._name_rows is not None:
            self._divide(self._name_rows())
            self._name_rows = None
        else:
            assert self._decoded is not None
            if self._decoded.fields is None:
                self._decoded.step()
            if self._decoded.fields is not None:
                self._start(self._decoded.fields)

    def _start(self, fields: Fields) -> None:
        """Begin to validate the decoded request as a whole. Handle it at once if it has no divisible rows."""
        request = self.request
        if self._api.rows_in(fields) is None:
            self.is_over = True
            request.decoded = fields
            check_whole(request, self._api)
            handle(request, self._api)
            return
        try:
            check_needs(request, self._api.needs, fields)
            if self._api.prepare is not None:
                self._preparing = self._api.prepare(request, fields)
        except KafkaError as error:
            self._fail(error)
        self._fields, self._decoded = fields, None
        self._prepare_some(fields)

    def _prepare_some(self, fields: Fields) -> None:
        """Run one step of `prepare` for the whole request. After the last step, divide the request."""
        if self._preparing is not None:
            try:
                next(self._preparing)
                return
            except StopIteration:
                pass
            except KafkaError as error:
                self._fail(error)
        self._preparing = self._fields = None
        self._divide(fields)

    def _fail(self, error: KafkaError) -> None:
        """Store the error with which all remaining rows are answered."""
        # Store a new error without the traceback, because its frames refer to all rows and to this object.
        self._failure = KafkaError(error.code, error.message)

    def _divide(self, fields: Fields) -> None:
        # `name_rows` may return a request without rows, because the rows have been deleted. It is divided into one
        # empty slice.
        where = self._find_rows(fields)
        self._shared = where.shared
        self._joined = JoinedAnswer(
            self.request.api_key, self.request.api_version, where.response, shared=where.shared
        )
        if where.are_looked_up_once:
            self._known = {}
        self._errors_per_step = max(1, SLICE_ROWS // where.size)
        if self._failure is not None:
            # A request that fails as a whole can have too many rows to search them for duplicates in one step.
            where = replace(where, unique=None, size=min(where.size, SLICE_ROWS))
        self._slices = divide(fields, where)

    def _find_rows(self, fields: Fields) -> Rows:
        return next(each for each in self._api.rows if each.request[0] in fields)

    def replace_slice(self, part: SliceRequest, fields: Fields) -> None:
        """Handle `fields` in slices of its own instead of the slice `part`.

        A slice calls this if its one row stands for more rows than a slice may have, such as "all partitions".
        """
        if self.is_over:
            return
        assert self._slices is not None
        self.on_gone = None
        self._is_waiting = False
        slices = divide(fields, self._find_rows(fields))
        first = next(slices)._replace(continued=part.continued)
        self._slices = chain((first,), slices, self._slices)

    def on_answer(self, part: SliceRequest, fields: Fields) -> None:
        """Add the answer of the slice in work. The next slice is handled in a later duty cycle."""
        if self._changed is not None:
            self.request.services.change_log.collect(self.request, part.decoded, fields, self._changed)
        if self.is_over:
            # The client disconnected while this slice was in work. The slice's changes are made, so log them.
            self._log_changes()
            return
        assert self._joined is not None
        self.on_gone = None
        self._is_waiting = False
        before = self._joined.count(), self._joined.size_bytes()
        path = self._joined.path
        if count_rows(fields, path) > 2 * SLICE_ROWS:
            self._left = divide(fields, Rows(path, path))
            fields = next(self._left).fields
        self._add(fields, self._shared + part.continued)
        if self._known is not None and self._failure is None:
            self._known[self._key] = self._joined.rows_since(*before)

    def _add(self, fields: Fields, continued: int) -> None:
        assert self._joined is not None
        self.request.count_row_errors({self._joined.path[0]: fields[self._joined.path[0]]})
        self._joined.add(fields, continued)
        self._check_size()

    def _repeat(self, count: int, encoded: bytes) -> None:
        assert self._joined is not None
        self._joined.repeat(count, encoded)
        self._check_size()

    def _check_size(self) -> None:
        assert self._joined is not None
        if self._failure is None and self._joined.size_bytes() > division.ANSWER_BYTES_MAX:
            self._failure = KafkaError(ErrorCode.INVALID_REQUEST, TOO_LARGE)

    def fail_slice(self, part: SliceRequest) -> None:
        """Answer a slice with UNKNOWN_SERVER_ERROR; if the API has no error response, close the connection."""
        error_response = self._api.error_response
        if error_response is None:
            self.close()
        else:
            part.reply(error_response(part.decoded, int(ErrorCode.UNKNOWN_SERVER_ERROR), None))

    def close(self) -> None:
        """Close the client's connection instead of answering the request."""
        if not self.is_over:
            self.is_over = True
            self._log_changes()
            self.request.close()

    def stop(self) -> None:
        """Handle no further slice, because the client has disconnected."""
        self.is_over = True
        if self.on_gone is not None:
            self.on_gone()
        # A slice that cannot be cancelled is still answered and may change something. Then `on_answer` logs the
        # changes.
        if self.on_gone is not None or not self._is_waiting:
            self._log_changes()

    def abandon(self) -> None:
        """Stop and finish the request, because the client has disconnected. Finishing it frees its arena block."""
        if not self.is_over:
            self.stop()
            self.request.no_op()

    def _answer(self) -> None:
        assert self._joined is not None
        self.is_over = True
        self._log_changes()
        # For a timed request: its local work ends with this response, not with the first step.
        self.request.done_ns = 0
        self.request.reply(self._joined.fields())

    def _log_changes(self) -> None:
        """Log what the slices have changed, also if the client has left before the last one."""
        if self._changed is not None:
            self.request.services.change_log.finish(self.request, self._changed)
            self._changed = None
