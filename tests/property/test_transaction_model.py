"""A transactional producer, its coordinator and two partitions, while the coordinator dies at any moment.

Whatever a power loss leaves of the records that were not durable: a transaction ends in the same way everywhere, as its
producer was told, in every partition that had joined it.
"""

from __future__ import annotations

from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from kproc.broker.coordinator.rules import Marker
from kproc.broker.transaction.messages import Granted
from kproc.broker.transaction.state import PartitionKey, State
from kproc.common.errors import ErrorCode
from tests.support.transaction_rig import P0, P1, CoordinatorRig

RETRIED = {
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.REQUEST_TIMED_OUT,
}
STEPS = st.one_of(
    st.sampled_from(["init", "sync", "expire"]),
    st.tuples(st.just("add"), st.sampled_from([P0, P1])),
    st.tuples(st.just("end"), st.booleans()),
    st.tuples(st.just("deliver"), st.sampled_from([ErrorCode.NONE, *sorted(RETRIED)])),
    st.tuples(st.just("crash"), st.integers(0, 3)),
)


class World:
    """Who knows what."""

    def __init__(self) -> None:
        self.rig = CoordinatorRig()
        self.rig.log.holds_syncs = True
        self.durable = 0  # Records that no death takes away.
        self.epoch = 7
        self.producer: Granted | None = None
        self.question: tuple[str, Any] | None = None
        self.answers: list[Any] | None = None  # Where the answer comes; None: it was not asked, or got lost.
        self.joined: set[PartitionKey] = set()  # As the producer was told, in its transaction.
        # (producer id, epoch of the marker) -> how it ends, where it has ended, where it has to.
        self.ends: dict[tuple[int, int], bool] = {}
        self.markers: dict[PartitionKey, dict[tuple[int, int], bool]] = {P0: {}, P1: {}}
        self.promised: dict[tuple[int, int], tuple[bool, frozenset[PartitionKey]]] = {}

    def sync(self) -> None:
        self.durable = len(self.rig.log.records)
        self.rig.log.sync()
        self.hear()

    # -- the producer: one request at a time, asked again until it is answered ------------------------------------

    def init(self) -> None:
        self.ask("init", None)

    def add(self, key: PartitionKey) -> None:
        self.ask("add", key)

    def end(self, is_commit: bool) -> None:
        self.ask("end", is_commit)

    def ask(self, what: str, about: Any) -> None:
        """Ask this, unless another question is open: then that one, if it got lost."""
        if self.question is None:
            self.question = (what, about) if self.producer is not None or what == "init" else None
        if self.question is not None and self.answers is None:
            what, about = self.question
            if what == "init":
                self.answers = self.rig.init()
            else:
                assert self.producer is not None
                ask = self.rig.add if what == "add" else self.rig.end
                self.answers = ask(self.producer, about)
        self.hear()

    def hear(self) -> None:
        if not self.answers or self.question is None:
            return
        what, about = self.question
        (answer,) = self.answers
        self.answers = None
        code = answer if what == "add" else answer.error_code
        if code == ErrorCode.CONCURRENT_TRANSACTIONS:
            return  # The same again.
        self.question = None
        if code:
            self.producer = None  # It is at its end; the next one begins.
        elif what == "add":
            self.joined.add(about)
        else:
            if what == "end" and self.producer is not None:
                which = self.producer.producer_id, self.producer.epoch + 1
                self.promised[which] = about, frozenset(self.joined)
            self.producer, self.joined = answer, set()

    # -- the others ---------------------------------------------------------------------------------------------

    def deliver(self, code: ErrorCode) -> None:
        """The markers reach their partitions; the first of them may be refused."""
        self.rig.work()
        sent, self.rig.sent = self.rig.sent, []
        for parts, on_code in sent:
            codes = [int(code), *[int(ErrorCode.NONE)] * (len(parts) - 1)]
            for at, ((key, marker), each) in enumerate(zip(parts, codes, strict=True)):
                if not each:
                    self.take(key, marker)
                on_code(at, each)

    def take(self, key: PartitionKey, marker: Marker) -> None:
        which = marker.producer_id, marker.epoch
        assert self.ends.setdefault(which, marker.is_commit) == marker.is_commit, "torn"
        self.markers[key][which] = marker.is_commit

    def crash(self, lost: int) -> None:
        """The coordinator dies; of the records that are not durable the last ones may be gone."""
        records = self.rig.log.records
        kept = max(self.durable, len(records) - lost)
        self.epoch += 1
        self.rig.restart(records[:kept], epoch=self.epoch)
        self.rig.log.holds_syncs = True
        self.durable = kept
        self.answers = None

    def expire(self) -> None:
        self.rig.clock.advance_ms(80_000)
        self.rig.work()

    def step(self, step: str | tuple[str, object]) -> None:
        name, arguments = (step, ()) if isinstance(step, str) else (step[0], step[1:])
        getattr(self, name)(*arguments)
        self.hear()

    def come_to_rest(self) -> None:
        for _ in range(20):
            self.sync()
            self.deliver(ErrorCode.NONE)
            self.rig.clock.advance_ms(100)
            self.hear()


DELIVER = ("deliver", ErrorCode.NONE)
ONGOING = ["sync", ("add", P0), "sync", ("add", P1), "sync"]


# The decision is written, and lost before it was durable; nothing may have been sent of it.
@example([*ONGOING, ("end", True), DELIVER, ("crash", 3), "expire", "sync", DELIVER])
# It is durable, and one partition could not take its marker.
@example([*ONGOING, ("end", True), "sync", ("deliver", ErrorCode.REQUEST_TIMED_OUT), ("crash", 3), "expire"])
# A partition that had joined as far as the coordinator knew, not its producer.
@example(["sync", ("add", P0), "sync", ("add", P1), ("crash", 1), ("end", True), "sync", DELIVER])
@given(st.lists(STEPS, max_size=60))
def test_transaction_outcome_survives_coordinator_death(
    steps: list[str | tuple[str, object]],
) -> None:
    world = World()
    world.init()
    for step in steps:
        world.step(step)
    world.come_to_rest()
    for which, (is_commit, partitions) in world.promised.items():
        for key in partitions:
            assert world.markers[key].get(which) == is_commit, (which, key)
    found = world.rig.coordinator.describe("payments")
    assert found is None or found.transaction.state not in (State.PREPARE_COMMIT, State.PREPARE_ABORT)
