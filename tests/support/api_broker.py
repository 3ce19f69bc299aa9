"""A request context without a broker: Config, image and a controller in memory.

What a handler answers goes through the real codec in the version that was asked for, so that a misspelt
field, a wrong type or a version without a handler fails here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from kproc.broker.api.init_producer_id import ProducerIdAllocator
from kproc.broker.calls.call_links import CallHandlers
from kproc.broker.calls.calls import B, Call, Lost, R
from kproc.broker.cluster.controller import failure_reply
from kproc.broker.controller.change_calls import add_change_calls
from kproc.broker.request import registry
from kproc.broker.request.change_log import ChangeLog
from kproc.broker.request.listing import Listing
from kproc.broker.request.rights import check_needs
from kproc.broker.security.acl import Operation, ResourceType
from kproc.broker.security.authorizer import make_authorizer
from kproc.broker.security.principal import ANONYMOUS, Identity
from kproc.common.containment import Containment
from kproc.common.errors import ErrorCode, KafkaError
from kproc.wire import codec
from kproc.wire.header import ApiKey, kafka_name, parse_request_header
from tests.support.in_memory_controller import InMemoryController

Fields = dict[str, Any]
HOST, PORT = "advertised.example", 19092


class Broker:
    """What the api files see of a Handler. `controller_failure` makes every call to the controller fail."""

    def __init__(self, settings: dict[str, object] | None = None, *, handlers: int = 2) -> None:
        self.cluster = InMemoryController(settings, handlers=handlers)
        self.calls: deque[tuple[Call[Any, Any], Any, Callable[[Any], None]]] = deque()
        self.controller_failure: Fields | Lost | None = None
        self._served = CallHandlers(Containment())
        add_change_calls(self._served, self._decide)
        self.client = Identity("/127.0.0.1", ANONYMOUS)  # Who asks.
        self.services = SimpleNamespace(
            change_log=ChangeLog(),
            containment=Containment(),
            config=self.cluster.config,
            image=self.cluster.image,
            authorizer=make_authorizer(self.cluster.config, lambda: self.cluster.image.acls, kafka_name),
            clients=SimpleNamespace(divided=SimpleNamespace(add_listing=_list_all)),
            owner=SimpleNamespace(producer_ids=ProducerIdAllocator(self.ask_controller, Containment())),
        )

    def ask_controller(self, call: Call[B, R], body: B, on_reply: Callable[[R | Lost], None]) -> None:
        self.calls.append((call, body, on_reply))

    def _decide(self, op: str, body: Fields, on_reply: Callable[[Fields], None]) -> None:
        assert not isinstance(self.controller_failure, Lost)
        on_reply(self.controller_failure or self.cluster.do(op, **body))

    def run_controller(self) -> None:
        """Answer everything that was asked so far, and what the answers ask."""
        while self.calls:
            call, body, on_reply = self.calls.popleft()
            if isinstance(self.controller_failure, Lost):
                on_reply(self.controller_failure)
            else:
                self._served.handle_own(call, body, on_reply)

    def send(self, key: ApiKey, version: int, /, **fields: Any) -> PendingAnswer:
        """A request, through the codec and the handler; parked until `run_controller` if it must wait."""
        api = registry.lookup(key)
        assert api is not None
        assert api.serves(version)
        frame = memoryview(codec.encode_request(key, version, 7, "test", fields))[4:]
        _, body_at = parse_request_header(frame)
        request = codec.decode_request(key, version, frame[body_at:])
        answer = PendingAnswer(key, version)
        context = SimpleNamespace(
            api_key=int(key),
            decoded=request,
            count_row_errors=lambda _fields: None,
            api_version=version,
            client_id_bytes=b"test",
            principal=self.client.principal,
            client_host=self.client.host,
            start_throttle=lambda _duration_ms: None,
            services=self.services,
            advertised_host=HOST,
            advertised_port=PORT,
            ask_controller=self.ask_controller,
            is_allowed_for_any=lambda *_: True,
            reply=answer.reply,
            is_allowed=lambda *what, **how: self._is_allowed(key, *what, **how),
        )
        try:
            check_needs(context, api.needs, request)
            if api.prepare is not None:
                api.prepare(context, request)
            immediate = api.handler(context, request)
        except KafkaError as error:
            assert api.error_response is not None
            immediate = api.error_response(request, error.code, error.message)
        if immediate is not None:
            answer.reply(immediate)
        return answer

    def _is_allowed(
        self, key: ApiKey, operation: Operation, resource: ResourceType, name: str, **_: Any
    ) -> bool:
        authorizer = self.services.authorizer
        return authorizer is None or authorizer.is_allowed(
            (self.client, operation, resource, name), api_key=int(key)
        )

    def ask(self, key: ApiKey, version: int, /, **fields: Any) -> Fields:
        """`send`, and the answer once the controller has done its part."""
        answer = self.send(key, version, **fields)
        self.run_controller()
        return answer.fields

    def fail_controller(self, code: ErrorCode, message: str) -> None:
        self.controller_failure = failure_reply(code, message)


def _list_all(listing: Listing) -> None:
    while not listing.is_over:
        listing.step()


class PendingAnswer:
    """The one answer to a request, as a client decodes it."""

    def __init__(self, key: ApiKey, version: int) -> None:
        self._key = key
        self._version = version
        self._fields: Fields | None = None

    def reply(self, fields: Fields) -> None:
        assert self._fields is None, "answered twice"
        frame = codec.encode_response(self._key, self._version, 7, fields)
        _, self._fields = codec.decode_response(self._key, self._version, memoryview(frame)[4:])

    @property
    def is_parked(self) -> bool:
        return self._fields is None

    @property
    def fields(self) -> Fields:
        assert self._fields is not None, "not answered"
        return self._fields
