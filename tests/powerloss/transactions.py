"""Transactions in a scene: coordinators, markers between Handlers, clients, and what an image must keep of them.

A client's transaction has two partitions and a group's offset. Each of its steps is one of a scene's: begin, join,
write, commit the offset, end. What was answered and what was not is kept in its history, which the judge asks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from kproc.broker.coordinator.coordinator_log import CoordinatorKind
from kproc.broker.coordinator.memory_limit import MemoryLimit
from kproc.broker.coordinator.rules import Marker, Producer, Timing
from kproc.broker.coordinator.topic_coordinators import partition_for
from kproc.broker.group.messages import CommitRequest
from kproc.broker.group.records import CommittedOffset, OffsetKey
from kproc.broker.handler.coordinator_kinds import transactions
from kproc.broker.peers.markers import append_marker
from kproc.broker.storage.validate import TRANSACTION
from kproc.broker.transaction.coordinator import Environment, TransactionCoordinator
from kproc.broker.transaction.messages import AddRequest, EndRequest, Granted, InitRequest
from kproc.common.clock import NS_PER_MS
from kproc.common.errors import ErrorCode, KafkaError
from kproc.wire.record_batch import TRANSACTIONAL, encode_batch
from kproc.wire.records import Record

if TYPE_CHECKING:
    from tests.powerloss.scene import Handler, Scene

GROUP_TOPIC: Final = "__consumer_offsets"
STATE_TOPIC: Final = "__transaction_state"
PARTITIONS: Final = 2  # Of both.
TIMEOUT_MS: Final = 60_000
TRANSACTION_VERSION: Final = 2
_LATE: Final = 0.3  # How often a marker arrives later.
_LOST: Final = ErrorCode.NETWORK_EXCEPTION
_AGAIN: Final = frozenset(
    {_LOST, ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE}
)
OnCode = Callable[[int], None]


class HandlerServices:
    """What the coordinators and the markers of one Handler need of it."""

    def __init__(self, scene: Scene, handler: Handler) -> None:
        self.config, self.clock = scene.config, scene.clock
        self._handler = handler

    @property
    def image(self) -> Any:
        return self._handler.image

    @property
    def owner(self) -> HandlerServices:
        return self

    @property
    def partitions(self) -> Any:
        return self._handler.partitions

    @property
    def coordinators(self) -> Any:
        return self._handler.coordinators.by_topic


def kind_of(scene: Scene, handler: Handler, services: HandlerServices) -> CoordinatorKind[Any]:
    """The coordinators of transactions at one Handler."""
    clock = scene.clock
    environment = Environment(
        config=scene.config,
        timing=Timing(
            now_ms=lambda: clock.now_ns() // NS_PER_MS, wall_ms=clock.wall_ms, random_id=lambda: ""
        ),
        cluster_version=lambda: TRANSACTION_VERSION,
        new_producer_id=lambda on_id, _: on_id(scene.transactions.new_producer_id()),
        send_markers=partial(send_markers, scene, handler),
        memory=MemoryLimit("kproc.transactional.ids.max.bytes", 1 << 30),
    )
    return transactions(services)._replace(  # type: ignore[arg-type]
        make=lambda log, deadlines, epoch: TransactionCoordinator(environment, log, deadlines, epoch)
    )


def send_markers(
    scene: Scene,
    sender: Handler,
    parts: Sequence[tuple[tuple[str, int], Marker]],
    on_code: Callable[[int, int], None],
) -> None:
    """Markers to the owners that the sender knows; some come late, whatever becomes of the sender meanwhile."""

    def take(at: int, code: int) -> None:
        if scene.handlers[sender.index] is sender:
            on_code(at, code)

    for at, (key, marker) in enumerate(parts):
        found = sender.image.partition(*key)
        if found is None:
            take(at, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            continue
        owner = scene.handlers[found.owner]
        settle = partial(take, at)
        owner.asked[settle] = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        deliver = partial(_deliver, scene, owner, key, marker, settle)
        if scene.rng.random() < _LATE:
            scene.transactions.late.append(deliver)
        else:
            deliver()


def _deliver(scene: Scene, owner: Handler, key: tuple[str, int], marker: Marker, settle: OnCode) -> None:
    if settle not in owner.asked:
        return  # It has died.

    def reply(code: int) -> None:
        if owner.asked.pop(settle, None) is not None:
            settle(code)

    append_here = partial(append_marker, owner.services, key, marker, reply)
    scene.run_at(owner, append_here)


@dataclass
class Transaction:
    """One attempt of one client."""

    client: str
    number: int  # The offset that it commits, too.
    contents: dict[str, set[tuple[bytes, bytes]]] = field(default_factory=dict)  # By topic.
    open: int = 0  # Batches that are not answered,
    failed: bool = False  # or were refused or lost.
    has_offset: bool = False
    is_commit_sent: bool = False
    outcome: bool | None = None


class Client:
    """One transactional id: a step at a time."""

    def __init__(self, name: str, topics: Sequence[str], *, is_new: bool) -> None:
        self.name = name
        self.group = f"group-{name}"
        self.topics = topics
        self.version = TRANSACTION_VERSION if is_new else 0
        self.identity: tuple[int, int] | None = None
        self.granted = (-1, -1)  # The last producer id and epoch that it was given.
        self.sequences: dict[str, int] = {}
        self.current: Transaction | None = None
        self.history: list[Transaction] = []
        self.is_waiting = False
        self.has_joined = self.is_unsure = False
        self.commits: bool | None = None  # What it has decided.

    def step(self, scene: Scene) -> None:
        """The next thing that it does, if it does not wait for an answer."""
        if self.is_waiting:
            return
        if scene.rng.random() < 0.04:  # It dies; its successor begins anew.
            self.identity = None
        if self.identity is None:
            self._init(scene)
        elif self.current is None or not self.has_joined:
            self._join(scene)
        elif self.commits is None:
            self._go_on(scene, self.current)
        else:
            self._end(scene, self.current)

    # -- requests ----------------------------------------------------------------------------------------------

    def _ask(
        self,
        scene: Scene,
        topic: str,
        name: str,
        call: Callable[[Any, Callable[[Any], None]], None],
        on_outcome: Callable[[Any], None],
        lost: Any,
    ) -> None:
        """Ask the coordinator of a name; `on_outcome` gets `lost` if its Handler dies."""
        partition = scene.image.topics_by_name[topic].partitions[partition_for(name, PARTITIONS)]
        handler = scene.handlers[partition.owner]

        def settle(outcome: Any) -> None:
            self.is_waiting = False
            on_outcome(outcome)

        def reply(outcome: Any) -> None:
            if handler.asked.pop(settle, None) is not None:
                settle(outcome)

        def ask() -> None:
            try:
                coordinator = handler.coordinators.by_topic[topic].coordinator(partition.index)
            except KafkaError:
                reply(lost)  # It is loading, or has moved.
                return
            call(coordinator, reply)

        self.is_waiting = True
        handler.asked[settle] = lost
        scene.run_at(handler, ask)

    def _init(self, scene: Scene) -> None:
        self.current, self.has_joined, self.commits = None, False, None

        def on_granted(granted: Granted) -> None:
            if not granted.error_code:
                self._take(granted)

        self._ask(
            scene,
            STATE_TOPIC,
            self.name,
            lambda coordinator, reply: coordinator.init(self.name, InitRequest(TIMEOUT_MS), reply),
            on_granted,
            Granted(_LOST),
        )

    def _take(self, granted: Granted) -> None:
        self.identity = self.granted = granted.producer_id, granted.epoch
        self.sequences.clear()

    def _join(self, scene: Scene) -> None:
        assert self.identity is not None
        if self.current is None:
            self.current = Transaction(self.name, len(self.history) + 1)
            self.history.append(self.current)
        group = GROUP_TOPIC, partition_for(self.group, PARTITIONS)
        request = AddRequest(*self.identity, (*((each, 0) for each in self.topics), group), self.version)

        def on_code(code: int) -> None:
            if not code:
                self.has_joined = True
            elif code not in _AGAIN:
                self.identity = None

        self._ask(
            scene,
            STATE_TOPIC,
            self.name,
            lambda coordinator, reply: coordinator.add(self.name, request, reply),
            on_code,
            int(_LOST),
        )

    def _go_on(self, scene: Scene, transaction: Transaction) -> None:
        missing = [each for each in self.topics if each not in transaction.contents]
        if transaction.failed or scene.rng.random() < 0.1:
            self.commits = False
        elif missing or scene.rng.random() < 0.3:
            self._write(scene, transaction, missing[0] if missing else scene.rng.choice(self.topics))
        elif not transaction.has_offset:
            self._commit_offset(scene, transaction)
        elif not transaction.open:
            self.commits = True

    def _write(self, scene: Scene, transaction: Transaction, name: str) -> None:
        assert self.identity is not None
        owned = scene.owned(name)
        if owned is None:
            return
        count = scene.rng.randint(1, 3)
        now_ms = scene.clock.wall_ms()
        size = scene.rng.choice((10, 300, 3000))
        contents = [
            (b"%s.%d" % (self.name.encode(), transaction.number), scene.rng.randbytes(8) + bytes(size))
            for _ in range(count)
        ]
        transaction.contents.setdefault(name, set()).update(contents)
        sequence = self.sequences.get(name, 0)
        self.sequences[name] = sequence + count
        batch = encode_batch(
            [Record(key, value, now_ms) for key, value in contents],
            producer_id=self.identity[0],
            producer_epoch=self.identity[1],
            base_sequence=sequence,
            flags=TRANSACTIONAL,
        )
        log, first = owned.log, owned.log.state.end_offset
        for number, content in enumerate(contents):
            scene.ledger.sent.setdefault(log.state.topic_id, {}).setdefault(first + number, set()).add(content)
        scene.ledger.awaited.setdefault(log.state.topic_id, set()).update(contents)
        transaction.open += 1

        def on_synced(code: int) -> None:
            transaction.open -= 1
            if code:
                transaction.failed = True
            else:
                kept = scene.ledger.kept.setdefault(log.state.topic_id, {})
                kept.update({first + number: content for number, content in enumerate(contents)})

        # Its Handler is told by the coordinator that the transaction has the partition.
        guard = log.state.producers.start_verification(
            *self.identity, sequence, owns_epoch=self.version > 0, now_ms=now_ms
        )
        guard.is_confirmed = True
        handler = scene.handlers[scene.image.topics_by_name[name].partitions[0].owner]

        def on_lost(_code: int) -> None:
            transaction.failed = True

        handler.asked[on_lost] = int(_LOST)

        def synced(code: int) -> None:
            if handler.asked.pop(on_lost, None) is not None:
                on_synced(code)

        def append() -> None:
            (result,) = log.append([memoryview(batch)], TRANSACTION, hidden_from=0)
            guard.is_confirmed = False
            log.state.producers.finish_verification(self.identity[0] if self.identity else -1)
            if result.error_code:
                synced(result.error_code)
                return
            owned.after_append()
            owned.when_synced(first + count, synced)

        scene.run_at(handler, append)

    def _commit_offset(self, scene: Scene, transaction: Transaction) -> None:
        assert self.identity is not None
        value = CommittedOffset(offset=transaction.number, commit_timestamp_ms=scene.clock.wall_ms())
        request = CommitRequest(
            group_id=self.group, member_id="", group_instance_id=None, generation=-1, knows_unknown_group=True,
            offsets=[(OffsetKey(self.group, self.topics[0], 0), value)], producer=Producer(*self.identity),
        )  # fmt: skip

        def on_code(code: int) -> None:
            if not code:
                transaction.has_offset = True
            elif code not in _AGAIN:
                transaction.failed = True

        self._ask(
            scene,
            GROUP_TOPIC,
            self.group,
            lambda coordinator, reply: coordinator.offset_requests.commit(request, reply),
            on_code,
            int(_LOST),
        )

    def _end(self, scene: Scene, transaction: Transaction) -> None:
        assert self.identity is not None
        assert self.commits is not None
        commits, is_unsure = self.commits, transaction.is_commit_sent
        transaction.is_commit_sent |= commits
        request = EndRequest(*self.identity, commits, self.version)

        def on_granted(granted: Granted) -> None:
            code = granted.error_code
            if not code:
                transaction.outcome = commits
                self.current, self.has_joined, self.commits = None, False, None
                if self.version:
                    self._take(granted)
                elif transaction.failed:
                    self.identity = None  # What is late of it must not count for the next one.
            elif code not in _AGAIN:
                if not is_unsure:
                    transaction.outcome = False
                self.identity = None

        self._ask(
            scene,
            STATE_TOPIC,
            self.name,
            lambda coordinator, reply: coordinator.end(self.name, request, reply),
            on_granted,
            Granted(_LOST),
        )


class Transactions:
    """Those of a scene."""

    def __init__(self, topics: Sequence[str] = ()) -> None:
        self.clients = [
            Client(name, topics, is_new=is_new) for name, is_new in (("a", True), ("b", False), ("c", False))
        ]
        self.late: list[Callable[[], None]] = []  # Markers that are still under way.
        self._last_id = 1000

    def new_producer_id(self) -> int:
        self._last_id += 1
        return self._last_id

    def step(self, scene: Scene) -> None:
        """One of the clients does something."""
        scene.rng.choice(self.clients).step(scene)

    def deliver(self, scene: Scene) -> None:
        """A late marker arrives."""
        if self.late:
            self.late.pop(scene.rng.randrange(len(self.late)))()
