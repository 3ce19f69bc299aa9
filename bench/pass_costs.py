"""Bytecodes that one request costs a Processor, a Handler and a log, with 1, 16 and 64 requests in a pass.

    python -m bench.pass_costs

The question: did a change make the path of a request longer? A count of bytecodes does not depend on the load of the
host, so run this in two checkouts and compare the tables. Counts of different versions of Python cannot be compared.

A bytecode is not a time: `python -m bench.before` measures rates and CPU and decides whether a change is kept.

Each row is measured in the parts of a broker that the unit tests use, after some passes that fill caches and templates.
"""

from __future__ import annotations

import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from kproc.broker.ipc.wait import Sleeper
from kproc.wire import codec
from kproc.wire.header import ApiKey
from tests.support.bytecodes import compiled_counter, count_bytecodes
from tests.support.fetch_frames import filled
from tests.support.fetch_frames import frame as fetch_frame
from tests.support.handler_rig import HandlerRig
from tests.support.handler_transactions import Producer, begun, cluster
from tests.support.logs import LogRig, append_one, batch, sequenced
from tests.support.processor_rig import Client, ProcessorRig, Request, framed, warm_up
from tests.support.raw import batch as raw_batch
from tests.support.raw import produce_fields
from tests.support.transaction_frames import transaction_frames

COUNTS: Final = (1, 16, 64)
"""Requests that a pass finds at once."""

_REQUEST, _RESPONSE = framed(bytes(100)), framed(bytes(40))
_NEWEST: Final = 120  # The end of the log that `filled` makes.
_CONSUMER: Final = 1000  # The connection of the consumer. Producers have smaller numbers.
_WARM_UP_PASSES: Final = 3
_REPEATS: Final = 3  # The smallest count is reported, because an append now and then adds an entry to the index.
_TRANSACTION_PARTITIONS: Final = 3

Row = tuple[str, str]
"""Label and figure of one line of the table."""


def main() -> int:
    """Print all rows."""
    print(f"bytecodes, CPython {sys.version.split()[0]}")
    for label, figure in rows():
        print(f"{label:56} {figure:>8}")
    return 0


def rows() -> Iterator[Row]:
    """Measure and yield the rows one by one."""
    yield from _processor_rows()
    yield from _handler_rows()
    yield from _log_rows()


def _count(work: Callable[[], object]) -> int:
    return count_bytecodes(work, unless_in=__file__)


# -- Processor -------------------------------------------------------------------------------------------------


def _processor_rows() -> Iterator[Row]:
    with _started_processor() as rig:
        rig.connect()
        rig.step(3)
        yield "Processor: a pass without requests", str(_cost_of_events(rig, [_do_nothing]))
    for count in COUNTS:
        with _started_processor() as rig:
            clients = [rig.connect() for _ in range(count)]
            requests = warm_up(rig, clients, _REQUEST, _RESPONSE)
            cost = _cost_of_events(rig, [_answering(rig, requests), _asking_again(clients)])
            yield f"Processor: a request and its response, {count} at once", _each(cost, count)


@contextmanager
def _started_processor() -> Iterator[ProcessorRig]:
    """Yield a Processor over rings, as a broker has them."""
    with ProcessorRig("ring") as rig:
        rig.clock.advance_ms(1000)
        yield rig


def _do_nothing() -> None:
    """Happen without an effect: the sleep ends by its timeout."""


def _answering(rig: ProcessorRig, requests: Sequence[Request]) -> Callable[[], None]:
    def answer() -> None:
        for request in requests:
            rig.handler.answer(request, _RESPONSE)

    return answer


def _asking_again(clients: Sequence[Client]) -> Callable[[], None]:
    def ask_again() -> None:
        _check_responses(clients)
        for client in clients:
            client.sock.send(_REQUEST)

    return ask_again


def _check_responses(clients: Sequence[Client]) -> None:
    for client in clients:
        received = client.received()
        assert received == _RESPONSE, f"a response of {len(received)} bytes instead of {len(_RESPONSE)}"


def _cost_of_events(rig: ProcessorRig, events: Sequence[Callable[[], object]]) -> int:
    """Return the bytecodes of the passes in whose sleeps the events happen, one in each sleep.

    The events themselves are not counted.
    """
    pending = deque(events)
    real_wait = Sleeper.wait

    def wait(sleeper: Sleeper, poll: Callable[[float], list[Any]], *rest: Any) -> list[Any]:
        def poll_after_event(timeout_s: float) -> list[Any]:
            if pending:
                _run_uncounted(pending.popleft())
            return poll(timeout_s)

        return real_wait(sleeper, poll_after_event, *rest)

    cost = 0
    with patch.object(Sleeper, "wait", wait):
        while pending:
            cost += _count(lambda: rig.processor.do_work(100))
    return cost


def _run_uncounted(event: Callable[[], object]) -> None:
    counter, tracer = compiled_counter(), sys.gettrace()
    if counter is None or tracer is not None:
        sys.settrace(None)
        event()
        sys.settrace(tracer)
        return
    counter.pause_counting()
    event()
    counter.resume_counting()


# -- Handler ---------------------------------------------------------------------------------------------------


def _handler_rows() -> Iterator[Row]:
    with _starting_handlers() as start:
        rig = _warm_handler(start)
        yield "Handler: a pass without requests", str(_handler_cost(rig, 0))
        for count in COUNTS:
            cost = min(_cost_of_produces(rig, count) for _ in range(_REPEATS))
            yield f"Handler: a Produce of one record, {count} at once", _each(cost, count)
        _send_fetch(rig, _NEWEST)
        yield "Handler: a Fetch of one batch", str(_handler_cost(rig, 1))
        _send_fetch(rig, rig.open("t").log.state.end_offset)
        cost = _handler_cost(rig, 0)
        _send_produces(rig, 1)
        cost += _handler_cost(rig, 2)
        yield "Handler: a Fetch that waits, and the Produce that ends it", str(cost)
    with _starting_handlers() as start:
        rig = cluster(start, handlers=1)
        producer = begun(rig)
        _transaction_cost(rig, producer)
        cost = _transaction_cost(rig, producer)
        yield f"Handler: a transaction of {_TRANSACTION_PARTITIONS} partitions", str(cost)


@contextmanager
def _starting_handlers() -> Iterator[Callable[..., HandlerRig]]:
    """Yield a function that starts Handlers over one temporary data directory."""
    with tempfile.TemporaryDirectory(prefix="pass-costs-") as directory:
        rigs: list[HandlerRig] = []

        def start(**parts: Any) -> HandlerRig:
            rigs.append(HandlerRig(Path(directory), **parts))
            return rigs[-1]

        try:
            yield start
        finally:
            for rig in rigs:
                rig.__exit__(None, None, None)


def _warm_handler(start: Callable[..., HandlerRig]) -> HandlerRig:
    """Return a Handler that has learned the requests of all producers and of the consumer."""
    rig = filled(start)
    for _ in range(_WARM_UP_PASSES):
        _send_produces(rig, max(COUNTS))
        _send_fetch(rig, _NEWEST)
        rig.handler().do_work(1)
        responses = rig.processors[0].answers()
        assert len(responses) == max(COUNTS) + 1, f"{len(responses)} responses"
    return rig


def _cost_of_produces(rig: HandlerRig, count: int) -> int:
    _send_produces(rig, count)
    return _handler_cost(rig, count)


def _send_produces(rig: HandlerRig, count: int) -> None:
    """Send one Produce from each of `count` connections."""
    fields = produce_fields([("t", bytes(16), [(0, raw_batch(b"value"))])])
    frame = codec.encode_request(ApiKey.PRODUCE, 9, 7, "test", fields)
    for connection in range(1, count + 1):
        rig.processors[0].send_frames([frame], connection=connection)


def _send_fetch(rig: HandlerRig, offset: int) -> None:
    frame = fetch_frame(rig, 12, offset, max_wait_ms=60_000)
    rig.processors[0].send_frames([frame], connection=_CONSUMER)


def _handler_cost(rig: HandlerRig, expected: int) -> int:
    """Return the bytecodes of the passes until `expected` responses have come. No response means one pass."""
    cost, responses = 0, 0
    while True:
        cost += _count(lambda: rig.handler().do_work(1))
        responses += len(rig.processors[0].answers(settles=False))
        if responses >= expected:
            assert responses == expected, f"{responses} responses instead of {expected}"
            return cost


def _transaction_cost(rig: HandlerRig, producer: Producer) -> int:
    """Return the bytecodes of a transaction, whose requests come in the passes in which librdkafka sends them."""
    cost = 0
    for frames in transaction_frames(producer, _TRANSACTION_PARTITIONS):
        rig.processors[0].send_frames(frames)
        cost += _count(lambda: rig.handler().do_work(1))
        assert len(rig.processors[0].answers()) == len(frames), "a request without a response"
    state = producer.describe()["transaction_state"]
    assert state == "CompleteCommit", state
    producer.init()  # Sequences begin at 0 again.
    return cost


# -- log -------------------------------------------------------------------------------------------------------


def _log_rows() -> Iterator[Row]:
    with tempfile.TemporaryDirectory(prefix="pass-costs-") as directory:
        log = LogRig(Path(directory, "t-0")).open()
        for _ in range(_WARM_UP_PASSES):
            append_one(log, batch())
        views = [batch()]
        first = _count(lambda: log.append(views))
        yield "log: an append of one batch", str(first)
        more = [batch() for _ in range(11)]
        yield "log: each further batch of an append", _each(_count(lambda: log.append(more)) - first, 10)
        append_one(log, sequenced(7, 0))
        views = [sequenced(7, 1)]
        yield "log: an append by an idempotent producer", str(_count(lambda: log.append(views)))
        yield "log: a read", str(_count(lambda: log.read(2, 1 << 20)))
        yield "log: a read of committed records", str(_count(lambda: log.read(2, 1 << 20, committed=True)))
        log.close(clean=False)


def _each(total: int, count: int) -> str:
    """Return the share of one of `count` requests."""
    return f"{total / count:.0f}"


if __name__ == "__main__":
    sys.exit(main())
