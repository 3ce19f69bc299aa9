"""OwnerCalls: serves the calls of other Handlers, the controller and the cleaner to the owner of partitions.

The calls that Handlers make for their clients are in the table of api/served_calls.py, with types; the others have
plain values.

A call whose sender has newer metadata than we do waits until ours is as new, and so do all later calls of that sender.
It is dropped if the sender ends meanwhile, as if it had never been read: the sender's clients have lost their
connections, and what they asked again must not be undone by what they asked first.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec

from kproc.api.calls import B, Call, FromImage, OnResult, R
from kproc.api.context import OnReply, Services
from kproc.api.produce import ProduceBatcher
from kproc.api.produce_order import PRODUCE, PRODUCE_RECORDS
from kproc.api.served_calls import SERVED
from kproc.handler import handler_figures
from kproc.handler.client_rates import CLIENT_BYTES, ClientRates
from kproc.handler.compaction_calls import CompactionCalls
from kproc.handler.handler_telemetry import HandlerTelemetry
from kproc.handler.partition_transfer import TAKE_PARTITIONS, PartitionTransfer
from kproc.handler.partitions import Partitions
from kproc.handler.retention_calls import serve_retention
from kproc.observe.broker_figures import FIGURES
from kproc.observe.telemetry_feed import CALL as TELEMETRY
from kproc.role.calls import PREPARE_COMPACTION, SWAP_SEGMENTS, IsGone, decode_plain

_ENFORCE_RETENTION: Final = "enforce_retention"
# Calls that change a log's files or its owner: if one fails half way, only a successor can repair that.
_UNCONTAINED: Final = frozenset({PREPARE_COMPACTION, SWAP_SEGMENTS, TAKE_PARTITIONS.name, _ENFORCE_RETENTION})

_Body = dict[str, Any]
_Payload = memoryview | bytearray
_ServePlain = Callable[[_Body, OnReply], None]


class _Entry(NamedTuple):
    """How a call's body is read, and who answers it."""

    decode: Callable[[msgspec.Raw], Any]
    serve: Callable[[Any, _Payload, Callable[[Any], None]], None]


class OwnerCalls:
    """One per Handler."""

    __slots__ = ("_by_op", "_containment", "_services", "_transfers")

    def __init__(
        self,
        services: Services,
        *,
        partitions: Partitions,
        produce: ProduceBatcher,
        transfers: PartitionTransfer,
        rates: ClientRates,
        compaction: CompactionCalls,
        telemetry: HandlerTelemetry,
    ) -> None:
        self._services = services
        self._containment = services.containment
        self._transfers = transfers

        def enforce_retention(body: _Body, on_reply: OnReply) -> None:
            serve_retention(partitions, transfers, (body["topic"], body["partition"]), on_reply)

        self._by_op: dict[str, _Entry] = {}
        for each in SERVED.values():
            self._add(each.call, _without_payload(partial(each.serve, services)))
        self._add(PRODUCE, produce.serve_forwarded)
        self._add(PRODUCE_RECORDS, produce.serve_records)
        self._add(TAKE_PARTITIONS, _without_payload(transfers.serve_claim))
        self._add(CLIENT_BYTES, _without_payload(rates.serve))
        plain: dict[str, _ServePlain] = {
            FIGURES: partial(handler_figures.serve_call, services),
            **{op: partial(compaction.serve, op) for op in (PREPARE_COMPACTION, SWAP_SEGMENTS)},
            _ENFORCE_RETENTION: enforce_retention,
        }
        for op, serve in plain.items():
            self._by_op[op] = _Entry(decode_plain, _without_payload(serve))
        self._by_op[TELEMETRY] = _Entry(decode_plain, telemetry.serve)

    def _add(self, call: Call[B, R], serve: Callable[[B, _Payload, OnResult[R]], None]) -> None:
        self._by_op[call.name] = _Entry(call.decode_body, serve)

    def serve_raw(
        self,
        op: str,
        raw: msgspec.Raw,
        payload: _Payload,
        on_reply: Callable[[Any], None],
        is_gone: IsGone,
    ) -> None:
        """Answer a call as it comes from its link."""
        try:
            body = self._by_op[op].decode(raw)
        except Exception as error:
            if op in _UNCONTAINED:
                raise
            self._lose(op, error, on_reply)
        else:
            self.serve(op, body, payload, on_reply, is_gone)

    def serve(
        self, op: str, body: Any, payload: _Payload, on_reply: Callable[[Any], None], is_gone: IsGone
    ) -> None:
        """Answer a call, now or later. An exception in work for a client ends that client's request only: the
        Handler that made the call answers as if we had died.
        """
        try:
            version = _version_of(body)
            if version > self._services.image.version:
                # A copy: the view ends with this pass, and offsets are written into the bytes.
                kept = bytearray(payload)

                def go_on() -> None:
                    if not is_gone():
                        self.serve(op, body, kept, on_reply, is_gone)

                self._transfers.when_image(version, go_on)
            else:
                self._by_op[op].serve(body, payload, on_reply)
        except Exception as error:
            if op in _UNCONTAINED:
                raise
            self._lose(op, error, on_reply)

    def _lose(self, op: str, error: Exception, on_reply: Callable[[Any], None]) -> None:
        self._containment.caught(f"{op}, passed on by another role,", error)
        on_reply(None)


def _version_of(body: Any) -> int:
    """The sender's metadata version; 0: any version will do."""
    if isinstance(body, FromImage):
        return body.image
    return int(body.get("image", 0)) if isinstance(body, dict) else 0


def _without_payload(
    serve: Callable[[Any, Callable[[Any], None]], None],
) -> Callable[[Any, _Payload, Callable[[Any], None]], None]:
    return lambda body, _payload, on_reply: serve(body, on_reply)
