"""FaultControl: the operations by which clients add, keep, remove and list fault rules. One per Handler."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, Final

import msgspec

from kproc.broker.calls.calls import Lost
from kproc.broker.calls.controller_calls import OWN, OwnAnswer, OwnRequest
from kproc.broker.calls.own_operations import (
    DISK_ACTIONS,
    AddFault,
    FaultOperation,
    FaultRule,
    KeepFault,
    RemoveFault,
    ShowClients,
)
from kproc.broker.faults.conditions import unmet_condition
from kproc.broker.faults.disk import used_bytes
from kproc.broker.faults.errors import has_error_response
from kproc.broker.faults.matching import API_NAMES
from kproc.broker.faults.rule_files import RULES_MAX, RuleFiles
from kproc.broker.faults.schedule import Schedule
from kproc.broker.request.registry import lookup
from kproc.common.errors import ErrorCode
from kproc.common.printable import printable
from kproc.wire.header import ApiKey, kafka_name

if TYPE_CHECKING:
    from kproc.broker.request.context import Services
    from kproc.broker.request.request import HandlerRequest

logger = logging.getLogger(__name__)

_API_VERSIONS: Final = kafka_name(ApiKey.API_VERSIONS)
_WITH_TIME: Final = ("delay", "delay-answer", "throttle")
_MS_MAX: Final = 3_600_000
_SHOWN: Final = 500
_VERSION_MAX: Final = 32_767  # The protocol has 16 bits for a version.

OnReply = Callable[[OwnAnswer], None]


class InvalidRule(ValueError):
    """A rule that cannot work. The message is one line for the client."""


class FaultControl:
    """Handles the operations on fault rules. reload_all: lets all Handlers read the rules, then calls back."""

    def __init__(self, services: Services, reload_all: Callable[[Callable[[], None]], None]) -> None:
        self._services = services
        self._reload_all = reload_all
        self._files = RuleFiles(services.config.log_dirs)
        # By rule id. A schedule continues from its last count of hits. A new one would count from the start each time,
        # and tests read the counts every few ms.
        self._schedules: dict[int, Schedule] = {}

    def respond(self, request: HandlerRequest, operation: FaultOperation, on_reply: OnReply) -> None:
        """Handle one operation on fault rules. Respond at once, or after a change once all Handlers have the rules."""
        try:
            if isinstance(operation, AddFault):
                self._add(request, operation, on_reply)
            elif isinstance(operation, RemoveFault):
                self._remove(request, operation.id, on_reply)
            elif isinstance(operation, KeepFault):
                self._keep(operation.id, on_reply)
            else:
                rows = [self._describe(*each) for each in self._files.read().items()]
                on_reply(OwnAnswer(result={"rules": rows}))
        except InvalidRule as error:
            on_reply(OwnAnswer(error=str(error)))
        except OSError as error:
            # The host can get what it lacks, such as disk space.
            reason = f"the fault rules cannot be stored: {error}"
            on_reply(OwnAnswer(error=reason, is_retriable=True))

    def _add(self, request: HandlerRequest, operation: AddFault, on_reply: OnReply) -> None:
        rule = operation.rule
        validate(rule)
        # Reject fail-sync on a broker that never syncs. The rule would never act, and a test would succeed without
        # having tested anything.
        if rule.action == "fail-sync" and not self._services.config.waits_for_sync:
            raise InvalidRule(
                "this broker never syncs its logs: start it with kproc.flush=group for fail-sync"
            )
        if operation.is_dry_run:
            on_reply(OwnAnswer(result={"rule": msgspec.to_builtins(rule)}))
            return
        # Handlers compare each request with all rules, so a test that never removes its rules would slow all
        # requests down.
        if len(self._files.read()) >= RULES_MAX:
            raise InvalidRule(f"{RULES_MAX} fault rules exist already, which is the limit: remove some")
        # Store the present size, because the rule counts the free bytes from the moment when it is added.
        if rule.action == "fill-disk":
            rule = msgspec.structs.replace(rule, used_bytes=used_bytes(self._services.config.log_dirs))
        rule_id = self._files.add(rule, request.connection_id)
        self._log(f"added by {_sender(request)}", rule_id, rule)
        self._reload_all(lambda: on_reply(OwnAnswer(result=self._describe(rule_id, rule))))

    def _remove(self, request: HandlerRequest, rule_id: int | None, on_reply: OnReply) -> None:
        rules = self._files.read()
        if rule_id is not None and rule_id not in rules:
            raise _unknown_rule(rule_id)
        gone = {rule_id: rules[rule_id]} if rule_id is not None else rules
        rows = [self._describe(*each) for each in gone.items()]
        for each, rule in gone.items():
            self._files.remove(each)
            self._log(f"removed by {_sender(request)}", each, rule)
        self._reload_all(lambda: on_reply(OwnAnswer(result={"rules": rows})))

    def _keep(self, rule_id: int, on_reply: OnReply) -> None:
        if rule_id not in self._files.read():
            raise _unknown_rule(rule_id)
        self._files.keep(rule_id)
        on_reply(OwnAnswer(result={}))

    def release(self, connection_ids: Collection[int]) -> None:
        """Remove the rules of connections that have ended. Each rule is removed and logged by only one Handler."""
        rules = self._files.read()
        removed = False
        for rule_id in self._files.leased_by(connection_ids):
            if rule_id in rules and self._files.remove(rule_id):
                self._log("removed at the end of its client's connection", rule_id, rules[rule_id])
                removed = True
        if removed:
            self._reload_all(lambda: None)

    def release_dead(self) -> None:
        """Remove the rules of connections that no Processor has.

        If a Processor gives no list of its connections, remove none. Its end leads to another check.
        """
        # Read the leases first. A connection that adds a rule during the call can be missing in the lists.
        leases = self._files.leases()
        if not leases:
            return

        def on_reply(answer: OwnAnswer | Lost) -> None:
            found = None if isinstance(answer, Lost) else answer.result
            if found is None or found["silent"]:
                return
            alive = {int(row["internal_id"]) for row in found["clients"]}
            if dead := set(leases.values()) - alive:
                self.release(dead)

        self._services.peers.ask_controller(OWN, OwnRequest(ShowClients()), on_reply)

    def _describe(self, rule_id: int, rule: FaultRule) -> dict[str, Any]:
        matches = self._files.matches(rule_id)
        schedule = self._schedules.get(rule_id)
        if schedule is None:
            schedule = self._schedules[rule_id] = Schedule(rule)
        counts = {"id": rule_id, "matches": matches, "hits": schedule.hits(matches)}
        return {**counts, "rule": msgspec.to_builtins(rule)}

    def _log(self, done: str, rule_id: int, rule: FaultRule) -> None:
        text = printable(msgspec.json.encode(rule).decode())[:_SHOWN]
        # A broker with a temporary directory belongs to one test (kproc.Broker, `kproc dev`), so nobody has to be
        # warned of its rules.
        level = logging.INFO if self._services.config.kproc_temporary_directory else logging.WARNING
        logger.log(level, "fault rule %d %s: %s", rule_id, done, text)

    def discard_all_but(self, rule_ids: Collection[int]) -> None:
        """Discard the counts of rules that do not exist any more."""
        for rule_id in self._schedules.keys() - rule_ids:
            del self._schedules[rule_id]


def _sender(request: HandlerRequest) -> str:
    return f"{request.principal} from {request.client_host.removeprefix('/')}"


def _unknown_rule(rule_id: int) -> InvalidRule:
    return InvalidRule(f"fault rule {rule_id} does not exist; kproc fault list shows all")


def validate(rule: FaultRule) -> None:
    """Raise InvalidRule for a rule that can never act as its fields say."""
    if rule.used_bytes or (rule.free_bytes and rule.action != "fill-disk"):
        raise InvalidRule("free_bytes is only for the action fill-disk, and only the broker sets used_bytes")
    if rule.action in DISK_ACTIONS:
        _validate_disk_rule(rule)
    for name in (*rule.apis, *rule.ranges):
        if lookup(API_NAMES.get(name, -1)) is None:
            raise InvalidRule(f"unknown API {printable(name)!r}: kproc api shows all, such as Produce")
    _validate_error(rule)
    _validate_time(rule)
    if (rule.action == "advertise") != bool(rule.ranges):
        raise InvalidRule(
            "ranges of API versions are only for the action advertise, which needs at least one"
        )
    if rule.action == "advertise" and rule.apis != [_API_VERSIONS]:
        raise InvalidRule(f"advertise changes the answers of {_API_VERSIONS}, so it takes no other API")
    if rule.times == 0:
        raise InvalidRule("a rule with times 0 never acts: use 1 at least, or leave it out")
    _validate_versions(rule)
    for api_name in rule.apis:
        if (problem := unmet_condition(rule, API_NAMES[api_name], api_name)) is not None:
            raise InvalidRule(problem)


def _validate_error(rule: FaultRule) -> None:
    """Raise InvalidRule if the action `fail` has no usable error or API, or if another action has an error.

    Actions on the disk have errors of their own, which `_validate_disk_rule` validates.
    """
    if rule.action == "fail":
        if rule.error not in ErrorCode.__members__ or rule.error == "NONE":
            raise InvalidRule(
                f"unknown error {printable(rule.error)!r}: use a name of Kafka's protocol, "
                "such as NOT_LEADER_OR_FOLLOWER"
            )
        if not rule.apis:
            raise InvalidRule("the action fail needs an API, such as Produce")
        for api_name in rule.apis:
            if not has_error_response(API_NAMES[api_name]):
                raise InvalidRule(
                    f"{api_name} has no error code in its answer: use another action, such as close"
                )
    elif rule.error and rule.action not in DISK_ACTIONS:
        raise InvalidRule(f"an error code is only for the action fail, not for {rule.action}")


def _validate_time(rule: FaultRule) -> None:
    """Raise InvalidRule if an action that takes time has none within the limit, or if another action has a time."""
    if rule.action not in _WITH_TIME and rule.ms:
        raise InvalidRule(
            f"a time in ms is only for the actions {', '.join(_WITH_TIME)}, not for {rule.action}"
        )
    if rule.action in _WITH_TIME and not 1 <= rule.ms <= _MS_MAX:
        raise InvalidRule(f"{rule.action} needs a time of 1 to {_MS_MAX:,} ms, not {rule.ms}")


def _validate_versions(rule: FaultRule) -> None:
    """Raise InvalidRule for an empty or a too high range of versions, to be matched or to be advertised."""
    for ranged, found in {"versions": rule.versions, **rule.ranges}.items():
        if found is not None and found[0] > found[1]:
            raise InvalidRule(f"{ranged}: the version range {found[0]}-{found[1]} is empty")
        if found is not None and found[1] > _VERSION_MAX:
            raise InvalidRule(f"{ranged}: version {found[1]} exceeds the limit of {_VERSION_MAX}")


def _validate_disk_rule(rule: FaultRule) -> None:
    """Raise InvalidRule if a rule about the disk has conditions of requests, no topic where needed, or a bad error."""
    if rule.apis or any((rule.versions, rule.client, rule.user, rule.group, rule.transactional_id)):
        raise InvalidRule(f"{rule.action} is about files, not requests: choose by topic and partition only")
    if rule.action == "fill-disk":
        if rule.topic is not None or rule.partition is not None or rule.error:
            raise InvalidRule(
                "fill-disk fills the disk for all topics, with ENOSPC: only free_bytes can be chosen"
            )
    elif rule.topic is None:
        raise InvalidRule(f"{rule.action} needs a topic, or * for all")
    elif rule.error and rule.error not in errno.errorcode.values():
        raise InvalidRule(f"unknown error {printable(rule.error)!r}: use a name of errno(3), such as EIO")
