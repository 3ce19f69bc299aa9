"""What other Handlers, the controller and the cleaner ask of the owner of partitions, by the op of their CALL.

A call whose sender knows newer metadata than we do waits for ours, and with it every later one of that sender.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from kproc.api import coordinator_call, fetch_owners, forwarding, list_groups
from kproc.api.context import OnReply, Services
from kproc.api.produce import ProduceBatcher
from kproc.handler import handler_figures
from kproc.handler.client_rates import ClientRates
from kproc.handler.compaction_calls import CompactionDesk
from kproc.handler.hand_over import HandOver
from kproc.handler.handler_telemetry import HandlerTelemetry
from kproc.handler.partitions import Partitions
from kproc.handler.retention_calls import serve_retention
from kproc.observe.broker_figures import FIGURES
from kproc.observe.telemetry_feed import CALL as TELEMETRY
from kproc.role.calls import PREPARE_COMPACTION, SWAP_SEGMENTS

_TAKE_PARTITIONS: Final = "take_partitions"
_ENFORCE_RETENTION: Final = "enforce_retention"
# Calls that change a log's files or its owner: half of that, only a successor can put right.
_UNCONTAINED: Final = frozenset({PREPARE_COMPACTION, SWAP_SEGMENTS, _TAKE_PARTITIONS, _ENFORCE_RETENTION})

_Body = dict[str, Any]
_ServeBody = Callable[[_Body, OnReply], None]
_ServePayload = Callable[[_Body, memoryview | bytearray, OnReply], None]


class OwnerCalls:
    """One per Handler."""

    __slots__ = ("_by_op", "_containment", "_hand_over", "_services")

    def __init__(
        self,
        services: Services,
        *,
        partitions: Partitions,
        produce: ProduceBatcher,
        hand_over: HandOver,
        rates: ClientRates,
        compaction: CompactionDesk,
        telemetry: HandlerTelemetry,
    ) -> None:
        self._services = services
        self._containment = services.containment
        self._hand_over = hand_over

        def hear_rates(body: _Body, on_reply: OnReply) -> None:
            rates.hear(body["told"])
            on_reply({})

        def enforce_retention(body: _Body, on_reply: OnReply) -> None:
            serve_retention(partitions, hand_over, (body["topic"], body["partition"]), on_reply)

        with_payload: dict[str, _ServePayload] = {
            "produce": produce.serve_forwarded,
            "produce_records": produce.serve_records,
            TELEMETRY: telemetry.serve,
        }
        without: dict[str, _ServeBody] = {
            fetch_owners.CALL: partial(fetch_owners.serve_forwarded, services),
            "client_bytes": hear_rates,
            _TAKE_PARTITIONS: hand_over.serve_claim,
            list_groups.CALL: partial(list_groups.serve_call, services),
            FIGURES: partial(handler_figures.serve_call, services),
            **{op: partial(each.serve_call, services) for op, each in coordinator_call.CALLS.items()},
            **{op: partial(forwarding.serve, services, op) for op in forwarding.OPERATIONS},
            **{op: partial(compaction.serve, op) for op in (PREPARE_COMPACTION, SWAP_SEGMENTS)},
            _ENFORCE_RETENTION: enforce_retention,
        }
        self._by_op = with_payload | {op: _without_payload(each) for op, each in without.items()}

    def serve(self, op: str, body: _Body, payload: memoryview | bytearray, on_reply: OnReply) -> None:
        """Answer a call, now or later. A surprise in what is done for a client stays inside that client's request:
        whoever passed it on answers as if we had died."""
        try:
            version = body.get("image", 0)
            if version > self._services.image.version:
                kept = bytearray(payload)  # The view dies with this pass; offsets are written into the bytes.
                self._hand_over.when_image(version, lambda: self.serve(op, body, kept, on_reply))
            else:
                self._by_op[op](body, payload, on_reply)
        except Exception as error:
            if op in _UNCONTAINED:
                raise
            self._containment.caught(f"{op}, passed on by another role,", error)
            on_reply({"lost": True})


def _without_payload(serve: _ServeBody) -> _ServePayload:
    return lambda body, _payload, on_reply: serve(body, on_reply)
