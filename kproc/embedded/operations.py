"""Operations of the control API: the functions of `kproc.Broker` that tests in other languages call as JSON over HTTP.

An operation is a plain function. Its first parameter is the broker, and its other ones are the members of the request's
JSON object, so that their annotations validate the request. Its result becomes the JSON of the answer:

    @operation("topic/delete")
    def delete_topic(broker: Broker, *, name: str) -> dict[str, Any]:

`kproc/embedded/control.py` serves them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any, Final, NamedTuple, get_type_hints

import msgspec

from kproc.client.faults import Rule
from kproc.embedded.broker import Broker

_TIMEOUT_MS: Final = 10_000
_WAIT_MS_MAX: Final = 60_000
"""Longest wait of one operation, because the end of the control API waits for it."""
_TTL_MS_MAX: Final = 86_400_000
Positive = Annotated[int, msgspec.Meta(ge=1, le=(1 << 31) - 1)]
Index = Annotated[int, msgspec.Meta(ge=0, le=(1 << 31) - 1)]
WaitMs = Annotated[int, msgspec.Meta(ge=0, le=_WAIT_MS_MAX)]
TtlMs = Annotated[int, msgspec.Meta(ge=1, le=_TTL_MS_MAX)]


class InvalidArgument(ValueError):
    """The arguments of an operation are wrong. The message is one line for the client."""


class ControlOperation(NamedTuple):
    """A function with the decoder of its arguments."""

    run: Callable[..., dict[str, Any]]
    decoder: msgspec.json.Decoder[msgspec.Struct]

    def call(self, broker: Broker, body: bytes) -> dict[str, Any]:
        """Call the function with the members of a JSON object. Raises msgspec.DecodeError for other arguments."""
        arguments = self.decoder.decode(body)
        return self.run(broker, **{name: getattr(arguments, name) for name in arguments.__struct_fields__})

    @property
    def summary(self) -> str:
        """The first line of the function's docstring."""
        return (self.run.__doc__ or "").partition("\n")[0]


OPERATIONS: Final[dict[str, ControlOperation]] = {}
"""Every operation by its name."""


def operation(name: str) -> Callable[[Callable[..., dict[str, Any]]], Callable[..., dict[str, Any]]]:
    """Register a function as an operation."""

    def register(function: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
        types = get_type_hints(function, include_extras=True)
        _broker, *parameters = inspect.signature(function).parameters.values()
        fields = [
            (each.name, types[each.name])
            if each.default is each.empty
            else (each.name, types[each.name], each.default)
            for each in parameters
        ]
        arguments = msgspec.defstruct("Arguments", fields, kw_only=True, forbid_unknown_fields=True)
        OPERATIONS[name] = ControlOperation(function, msgspec.json.Decoder(arguments))
        return function

    return register


# -- the broker


@operation("broker/info")
def describe_broker(broker: Broker) -> dict[str, Any]:
    """Return the broker's address, pids and data directory, as in its ready file."""
    return broker.ready


@operation("broker/restart")
def restart_broker(broker: Broker, *, kill: bool = False) -> dict[str, Any]:
    """Stop or kill the broker, and start it again at the same ports with the same data."""
    broker.restart(kill=kill)
    return broker.ready


@operation("broker/reset")
def reset_broker(broker: Broker) -> dict[str, Any]:
    """Return the broker to the empty state."""
    broker.reset()
    return broker.ready


@operation("role/kill")
def kill_role(broker: Broker, *, role: str, index: Index = 0) -> dict[str, Any]:
    """Kill a role's process, and return when its successor serves."""
    try:
        broker.kill_role(role, index)
    except ValueError as error:
        raise InvalidArgument(str(error)) from error
    return {"role": role, "index": index}


@operation("topic/create")
def create_topic(
    broker: Broker, *, name: str, partitions: Positive = 1, configs: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Create a topic, and return when every client can find it."""
    broker.create_topic(name, partitions=partitions, configs=configs)
    return {"name": name}


@operation("topic/delete")
def delete_topic(broker: Broker, *, name: str) -> dict[str, Any]:
    """Delete a topic with its records."""
    broker.delete_topic(name)
    return {"name": name}


# -- faults


@operation("fault/add")
def add_fault(broker: Broker, *, rule: dict[str, Any], ttl_ms: TtlMs | None = None) -> dict[str, Any]:
    """Add a fault rule, which ends with fault/remove, after `ttl_ms` or with the broker."""
    added = broker.faults.add(rule, ttl_ms=ttl_ms)
    return {"id": added.id, "matches": 0, "hits": 0, "rule": added.rule}


@operation("fault/list")
def list_faults(broker: Broker) -> dict[str, Any]:
    """Return all fault rules with the numbers of their matches and hits."""
    return {"rules": broker.faults.list()}


@operation("fault/get")
def get_fault(broker: Broker, *, id: Positive) -> dict[str, Any]:
    """Return a fault rule that this API has added, with its numbers of matches and hits."""
    return _described(_get_rule(broker, id))


@operation("fault/wait")
def wait_for_hits(
    broker: Broker,
    *,
    id: Positive,
    hits: Positive = 1,
    timeout_ms: WaitMs = _TIMEOUT_MS,
) -> dict[str, Any]:
    """Return when a rule has acted on this number of requests."""
    rule = _get_rule(broker, id)
    rule.wait_for_hits(hits, timeout_s=timeout_ms / 1000)
    return _described(rule)


@operation("fault/remove")
def remove_fault(broker: Broker, *, id: Positive) -> dict[str, Any]:
    """Remove a fault rule, and return it with its last numbers of matches and hits."""
    [row] = broker.faults.remove(id)
    return row


@operation("fault/clear")
def remove_all_faults(broker: Broker) -> dict[str, Any]:
    """Remove all fault rules, and return them."""
    return {"rules": broker.faults.remove()}


def _get_rule(broker: Broker, rule_id: int) -> Rule:
    rule = broker.faults.find(rule_id)
    if rule is None:
        raise InvalidArgument(f"fault rule {rule_id} was removed, or was not added by this API")
    return rule


def _described(rule: Rule) -> dict[str, Any]:
    counts = rule.counts
    return {"id": rule.id, "matches": counts.matches, "hits": counts.hits, "rule": rule.rule}
