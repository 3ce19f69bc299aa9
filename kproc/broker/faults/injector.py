"""FaultInjector: applies the fault rules to the requests of one Handler's clients.

While rules exist, ClientRequests passes each request to `FaultInjector.handle` instead of its own function, and uses no
fast path. The first rule that matches and is due acts; without one the request is handled as always. The broker's own
requests, kproc's own operations, and steps of logins are never faulted.

A delayed request delays the later ones of its connection, as it does in Kafka, which handles one request of a
connection at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING, Any

from kproc.broker.calls.own_operations import DISK_ACTIONS
from kproc.broker.cluster.client_quotas import REQUEST_PERCENTAGE
from kproc.broker.faults.answers import UNTIL_STOP_NS, Answer, hold, intercept
from kproc.broker.faults.errors import answer_error, decode_answer, send_fields
from kproc.broker.faults.matching import API_NAMES, Matcher, RequestNames
from kproc.broker.faults.schedule import Schedule
from kproc.broker.request.registry import lookup
from kproc.broker.role.purgatory import DelayedCall
from kproc.common.clock import NS_PER_MS
from kproc.common.errors import ErrorCode, ProtocolError

if TYPE_CHECKING:
    from kproc.broker.calls.own_operations import FaultRule
    from kproc.broker.faults.rule_files import RuleFiles
    from kproc.broker.request.context import Services
    from kproc.broker.request.request import HandlerRequest


class ActiveRule:
    """A fault rule with its conditions (Matcher), its Schedule and its open counter."""

    def __init__(self, rule_id: int, rule: FaultRule, files: RuleFiles) -> None:
        self.id = rule_id
        self.rule = rule
        self.matcher = Matcher(rule)
        self._schedule = Schedule(rule)
        self._counter = files.counter(rule_id)

    def acts_on(self, request: HandlerRequest, names: RequestNames) -> bool:
        """Return True if the rule matches the request and is due. Count the request if it matches."""
        return self.matcher.matches(request, names) and self._schedule.acts_on(self._counter.next())

    def close(self) -> None:
        self._counter.close()


class _DelayedRequests(DelayedCall):
    """A delayed request, and the later requests of its connection."""

    __slots__ = ("requests",)

    def __init__(self, deadline_ns: int, on_end: Callable[[], None]) -> None:
        super().__init__(deadline_ns, on_end)
        self.requests: deque[tuple[HandlerRequest, bytearray]] = deque()


class FaultInjector:
    """The rules of one Handler, and its delayed requests.

    handle_request: handles a request without a fault. start_entry: starts its line in the request log. on_switched:
    called when `is_on` has changed.
    """

    def __init__(
        self,
        services: Services,
        files: RuleFiles,
        *,
        handle_request: Callable[[HandlerRequest, memoryview], Any],
        start_entry: Callable[[HandlerRequest, memoryview], None],
        on_switched: Callable[[], None],
    ) -> None:
        self._services = services
        self._files = files
        self._handle_request = handle_request
        self._start_entry = start_entry
        self._on_switched = on_switched
        self._rules: dict[int, ActiveRule] = {}
        self._delayed: dict[int, _DelayedRequests] = {}  # By connection.
        self._was_on = False
        self.rule_ids: Collection[int] = ()
        """Ids of all rules, also of those about the disk, which act in the file system."""
        self.has_disk_rules = False

    @property
    def is_on(self) -> bool:
        """True while every request must pass through `handle`."""
        return bool(self._rules or self._delayed)

    def reload(self) -> None:
        """Read the rules again, because one was added or removed."""
        rules = self._files.read()
        self.rule_ids = tuple(rules)
        rules = {rule_id: rule for rule_id, rule in rules.items() if rule.action not in DISK_ACTIONS}
        self.has_disk_rules = len(rules) < len(self.rule_ids)
        for rule_id in self._rules.keys() - rules.keys():
            self._rules.pop(rule_id).close()
        for rule_id, rule in rules.items():
            if rule_id not in self._rules:
                try:
                    self._rules[rule_id] = ActiveRule(rule_id, rule, self._files)
                except FileNotFoundError:
                    continue  # Another Handler has removed the rule. Its call for a further reload is on its way.
        self._check_switch()

    def close(self) -> None:
        """Close the files that count the matches of the rules."""
        for rule in self._rules.values():
            rule.close()
        self._rules.clear()

    def _check_switch(self) -> None:
        if self.is_on != self._was_on:
            self._was_on = self.is_on
            self._on_switched()

    # -- requests

    def handle(self, request: HandlerRequest, body: memoryview) -> None:
        """Apply the first fault rule that acts on a request, or dispatch the request if no rule does.

        While an earlier request of the connection is delayed, queue this one behind it.
        """
        delayed = self._delayed.get(request.connection_id)
        if delayed is not None:
            self._start_entry(request, body)
            self._queue(delayed, request, bytearray(body))
        else:
            self._apply(request, body)

    def _apply(self, request: HandlerRequest, body: memoryview) -> None:
        api = lookup(request.api_key)
        if request.services is not self._services or api is None or not api.serves(request.api_version):
            self._handle_request(request, body)
            return
        try:
            names = RequestNames(request, body)
            acting = next((each for each in self._rules.values() if each.acts_on(request, names)), None)
            if acting is not None:
                self._start_entry(request, body)
                self._act(acting, request, body, names)
                return
        except ProtocolError:
            pass  # The request is malformed. Below it is rejected with the reason.
        except Exception as error:  # noqa: BLE001 - contained
            self._start_entry(request, body)
            self._services.containment.caught(f"fault rules for {api.key.name}", error, request)
            return
        self._handle_request(request, body)

    def _act(
        self, acting: ActiveRule, request: HandlerRequest, body: memoryview, names: RequestNames
    ) -> None:
        rule = acting.rule
        if rule.action == "fail":
            answer_error(request, names, acting.matcher, ErrorCode[rule.error], self._work)
        elif rule.action == "delay":
            self._delay(request, bytearray(body), rule.ms)
        elif rule.action == "close" or (rule.action == "drop-request" and rule.closes):
            request.close()
        elif rule.action == "drop-request":
            hold(request, self._services.owner.purgatory, UNTIL_STOP_NS, request.close)
        elif rule.action == "throttle":
            request.start_throttle(rule.ms, REQUEST_PERCENTAGE)
            self._handle_request(request, body)
        else:
            intercept(request, partial(self._on_answer, rule))
            self._handle_request(request, body)

    # -- delays before the work

    def _delay(self, request: HandlerRequest, body: bytearray, ms: int) -> None:
        connection_id = request.connection_id
        deadline_ns = self._services.clock.now_ns() + ms * NS_PER_MS
        delayed = _DelayedRequests(deadline_ns, partial(self._resume, connection_id))
        self._delayed[connection_id] = delayed
        self._services.owner.purgatory.watch(delayed, ())
        self._queue(delayed, request, body)

    def _queue(self, delayed: _DelayedRequests, request: HandlerRequest, body: bytearray) -> None:
        delayed.requests.append((request, body))
        request.when_gone(partial(self._discard, request.connection_id))

    def _discard(self, connection_id: int) -> None:
        """Discard the delayed requests of a client that has disconnected."""
        delayed = self._delayed.pop(connection_id, None)
        if delayed is not None:
            self._services.owner.purgatory.cancel(delayed)
            self._check_switch()

    def _resume(self, connection_id: int) -> None:
        """Dispatch a request whose delay is over, then those behind it in its connection, up to the next delay."""
        requests = self._delayed.pop(connection_id).requests
        handle: Callable[[HandlerRequest, bytearray], None] = self._work
        while requests and connection_id not in self._delayed:
            request, body = requests.popleft()
            request.stop_waiting()
            handle(request, body)
            handle = self._apply_late
            if request.is_closed:
                # The Processor ignores further answers, but an answer frees the memory of a large request.
                for each, _ in requests:
                    each.stop_waiting()
                    each.no_op()
                requests.clear()
        # One of the later requests is delayed, too. Those behind it wait for its end, so that the responses
        # keep their order.
        if requests:
            self._delayed[connection_id].requests.extend(requests)
        self._check_switch()

    def _apply_late(self, request: HandlerRequest, body: bytearray) -> None:
        self._apply(request, memoryview(body))
        self._release_division(request)

    def _work(self, request: HandlerRequest, body: bytearray) -> None:
        """Dispatch a delayed request.

        `body` is a copy of its frame, writable because the log stamps record batches in place.
        """
        self._handle_request(request, memoryview(body))
        self._release_division(request)

    def _release_division(self, request: HandlerRequest) -> None:
        """Keep ClientRequests from parking a connection because `request` was divided just now.

        The division stops if the client disconnects.
        """
        divided = self._services.clients.divided
        if divided.newest is not None and divided.newest.request is request:
            request.when_gone(divided.newest.stop)
            divided.newest = None

    # -- answers

    def _on_answer(self, rule: FaultRule, answer: Answer) -> None:
        """Do what a rule says with the answer of a request that was handled."""
        request, purgatory = answer.request, self._services.owner.purgatory
        if not answer.has_frame:
            answer.send()
        elif rule.action == "drop-answer" and rule.closes:
            answer.close()
        elif rule.action == "drop-answer":
            request.record_lost_answer("NoOp", 0)
            hold(request, purgatory, UNTIL_STOP_NS, answer.close)
        elif rule.action == "delay-answer":
            until_ns = self._services.clock.now_ns() + rule.ms * NS_PER_MS
            hold(request, purgatory, until_ns, answer.send)
        elif rule.action == "cut-answer":
            frame = answer.frame()
            answer.close(frame[: len(frame) // 2 if rule.bytes_sent is None else rule.bytes_sent])
        else:
            self._advertise(rule, answer)

    def _advertise(self, rule: FaultRule, answer: Answer) -> None:
        """Send an ApiVersions response with other version ranges."""
        fields = decode_answer(answer)
        assert fields is not None, "an ApiVersions request has a response"
        ranges = {API_NAMES[name]: found for name, found in rule.ranges.items()}
        rows = [row for row in fields["api_keys"] if row["api_key"] not in ranges]
        rows += [
            {"api_key": key, "min_version": found[0], "max_version": found[1]}
            for key, found in ranges.items()
            if found is not None
        ]
        fields["api_keys"] = sorted(rows, key=lambda row: row["api_key"])
        send_fields(answer, fields)
