"""The rules of transactional ids against Kafka 4.3's tables: every state, every request."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from kproc.broker.transaction import rules
from kproc.broker.transaction.messages import AddRequest, EndRequest, InitRequest
from kproc.broker.transaction.rules import NEEDS_ID
from kproc.broker.transaction.state import (
    EPOCH_MAX,
    EXHAUSTED_EPOCH,
    NO_EPOCH,
    NO_ID,
    PREDECESSORS,
    State,
    Transaction,
)
from kproc.common.errors import ErrorCode
from tests.support.cases import in_one_test

P0, P1 = ("orders", 0), ("orders", 1)
ID, SPARE = 5, 99
NOW = 10_000
STORED = [state for state in State if state not in (State.DEAD, State.PREPARE_EPOCH_FENCE)]
FENCED, INVALID, CONCURRENT, NONE = (
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.NONE,
)


def transaction(state: State = State.EMPTY, *, epoch: int = 3, **fields: object) -> Transaction:
    has_partitions = state in (State.ONGOING, State.PREPARE_COMMIT, State.PREPARE_ABORT)
    fields.setdefault("partitions", frozenset({P0} if has_partitions else ()))
    return Transaction(
        producer_id=ID, epoch=epoch, timeout_ms=60_000, updated_ms=1, state=state, started_ms=2, **fields
    )  # type: ignore[arg-type]


# By state: what a repeated and a first commit get, and a repeated and a first abort; a state is the one to be written.
TABLE = {
    State.EMPTY: (FENCED, INVALID, FENCED, State.PREPARE_ABORT),
    State.ONGOING: (FENCED, State.PREPARE_COMMIT, FENCED, State.PREPARE_ABORT),
    # Kafka's state has others, that nobody sees: Complete* is pending until the markers are there.
    State.PREPARE_COMMIT: (CONCURRENT,) * 4,
    State.PREPARE_ABORT: (CONCURRENT,) * 4,
    State.COMPLETE_COMMIT: (NONE, INVALID, INVALID, State.PREPARE_ABORT),
    State.COMPLETE_ABORT: (INVALID, INVALID, NONE, State.PREPARE_ABORT),
}


@in_one_test("state", STORED)
def test_transaction_end_with_own_epoch_follows_kafkas_table(state: State) -> None:
    current = transaction(state)
    outcomes = []
    for is_commit, age in product((True, False), (1, 0)):
        decision = rules.end(current, EndRequest(ID, current.epoch - age, is_commit, 2), NOW)
        if isinstance(decision, Transaction):
            assert (decision.epoch, decision.last_epoch) == (current.epoch + 1, current.epoch)
            assert decision.partitions == current.partitions
            assert decision.started_ms == (2 if state == State.ONGOING else NOW)
            outcomes.append(decision.state)
        else:
            outcomes.append(decision)
    assert tuple(outcomes) == TABLE[state]


@in_one_test("state", STORED)
@in_one_test("epoch", [1, 4, 0, EXHAUSTED_EPOCH])
def test_any_other_epoch_is_fenced_whatever_the_state(state: State, epoch: int) -> None:
    is_ending = state in (State.PREPARE_COMMIT, State.PREPARE_ABORT)
    for is_commit, version in product((True, False), (0, 2)):
        expected = CONCURRENT if is_ending and version else FENCED
        assert rules.end(transaction(state), EndRequest(ID, epoch, is_commit, version), NOW) == expected


@in_one_test("state", STORED)
def test_the_end_of_a_transaction_without_an_epoch_of_its_own(state: State) -> None:
    current = transaction(state)
    for is_commit in (True, False):
        prepared = State.PREPARE_COMMIT if is_commit else State.PREPARE_ABORT
        completed = State.COMPLETE_COMMIT if is_commit else State.COMPLETE_ABORT
        known = {State.ONGOING: prepared, completed: NONE, State.EMPTY: INVALID}
        is_ending = state in (State.PREPARE_COMMIT, State.PREPARE_ABORT)
        expected = known.get(state, CONCURRENT if is_ending else INVALID)
        decision = rules.end(current, EndRequest(ID, current.epoch, is_commit, 0), NOW)
        assert (decision.state if isinstance(decision, Transaction) else decision) == expected
        if isinstance(decision, Transaction):
            assert decision.epoch == current.epoch


def test_the_end_names_the_id_before_the_epoch() -> None:
    for version in (0, 2):
        wrong = EndRequest(ID + 1, 99, True, version)
        assert rules.end(transaction(), wrong, NOW) == ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert rules.end(None, wrong, NOW) == ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_exhausted_epoch_changes_producer_id_at_end() -> None:
    current = transaction(State.ONGOING, epoch=EXHAUSTED_EPOCH)
    request = EndRequest(ID, EXHAUSTED_EPOCH, True, 2)
    assert rules.end(current, request, NOW) is NEEDS_ID
    prepared = rules.end(current, request, NOW, SPARE)
    assert isinstance(prepared, Transaction)
    assert (prepared.producer_id, prepared.epoch, prepared.next_producer_id) == (ID, EPOCH_MAX, SPARE)
    assert rules.end(prepared, request, NOW, SPARE) == CONCURRENT
    # The producer knows its next id already; it is too early, not unknown.
    assert rules.add(prepared, AddRequest(SPARE, 0, (P0,), 2), NOW) == CONCURRENT

    done = rules.complete(prepared, NOW)
    assert (done.producer_id, done.epoch, done.previous_producer_id) == (SPARE, 0, ID)
    assert (done.state, done.next_producer_id) == (State.COMPLETE_COMMIT, NO_ID)
    assert rules.end(done, request, NOW, SPARE) == NONE
    assert rules.end(done, EndRequest(ID, EXHAUSTED_EPOCH, False, 2), NOW, SPARE) == INVALID
    begun = rules.add(done, AddRequest(SPARE, 0, (P0,), 2), NOW)
    assert isinstance(begun, Transaction)
    assert rules.end(begun, request, NOW, SPARE) == FENCED


@pytest.mark.parametrize("state", [State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT])
def test_a_producer_that_begins_gets_the_next_epoch(state: State) -> None:
    begun = rules.init(transaction(state, last_epoch=2), InitRequest(5), NOW)
    assert begun == Transaction(
        producer_id=ID, epoch=4, timeout_ms=5, updated_ms=NOW, state=State.EMPTY, last_epoch=NO_EPOCH
    )


def test_a_producer_that_goes_on_gets_the_next_epoch_once() -> None:
    current = transaction(State.COMPLETE_ABORT)
    begun = rules.init(current, InitRequest(5, ID, 3), NOW)
    assert isinstance(begun, Transaction)
    assert (begun.epoch, begun.last_epoch) == (4, 3)
    again = rules.init(begun, InitRequest(5, ID, 3), NOW)
    assert isinstance(again, Transaction)
    assert again.epoch == 4
    assert rules.init(begun, InitRequest(5, ID, 2), NOW) == FENCED
    assert rules.init(begun, InitRequest(5, ID + 1, 4), NOW) == FENCED


def test_a_new_producer_fences_one_that_goes_on() -> None:
    begun = rules.init(transaction(), InitRequest(5), NOW)
    assert isinstance(begun, Transaction)
    assert rules.init(begun, InitRequest(5, ID, 3), NOW) == FENCED


def test_an_unknown_id_begins_with_a_new_producer_id() -> None:
    for request in (InitRequest(5), InitRequest(5, 77, 3)):
        assert rules.init(None, request, NOW) is NEEDS_ID
        begun = rules.init(None, request, NOW, SPARE)
        assert isinstance(begun, Transaction)
        assert (begun.producer_id, begun.epoch) == (SPARE, 0)


@pytest.mark.parametrize("state", [State.ONGOING, State.PREPARE_ABORT, State.PREPARE_COMMIT])
def test_init_producer_id_during_completion_is_concurrent(state: State) -> None:
    assert rules.init(transaction(state), InitRequest(5), NOW) == CONCURRENT
    assert rules.init(transaction(state), InitRequest(5, ID + 1, 3), NOW) == FENCED


def test_exhausted_epoch_changes_producer_id_at_init() -> None:
    current = transaction(epoch=EXHAUSTED_EPOCH)
    for request, last_epoch in (
        (InitRequest(5), NO_EPOCH),
        (InitRequest(5, ID, EXHAUSTED_EPOCH), EXHAUSTED_EPOCH),
    ):
        assert rules.init(current, request, NOW) is NEEDS_ID
        begun = rules.init(current, request, NOW, SPARE)
        assert isinstance(begun, Transaction)
        assert (begun.producer_id, begun.epoch, begun.last_epoch) == (SPARE, 0, last_epoch)
        assert begun.previous_producer_id == ID
    again = rules.init(begun, request, NOW, SPARE + 1)
    assert isinstance(again, Transaction)
    assert (again.producer_id, again.epoch) == (SPARE, 0)


def test_the_coordinators_abort_raises_the_epoch_by_one() -> None:
    ongoing = transaction(State.ONGOING)
    for version, last_epoch in ((0, NO_EPOCH), (1, NO_EPOCH), (2, 3)):
        fenced = rules.fence(ongoing, version, NOW)
        assert isinstance(fenced, Transaction)
        assert (fenced.state, fenced.epoch, fenced.last_epoch) == (State.PREPARE_ABORT, 4, last_epoch)
        done = rules.complete(fenced, NOW)
        assert (done.state, done.epoch) == (State.COMPLETE_ABORT, 4)


def test_abort_after_timeout_returns_epoch_to_old_producer() -> None:
    fenced = rules.fence(transaction(State.ONGOING), 2, NOW)
    assert isinstance(fenced, Transaction)
    done = rules.complete(fenced, NOW)
    assert rules.end(done, EndRequest(ID, 3, False, 2), NOW) == NONE
    assert rules.end(done, EndRequest(ID, 3, True, 2), NOW) == INVALID
    assert rules.end(done, EndRequest(ID, 3, False, 0), NOW) == FENCED


def test_the_coordinators_abort_does_not_overflow_the_epoch() -> None:
    at_the_end = transaction(State.ONGOING, epoch=EPOCH_MAX)
    fenced = rules.fence(at_the_end, 0, NOW)
    assert isinstance(fenced, Transaction)
    assert fenced.epoch == EPOCH_MAX
    exhausted = transaction(State.ONGOING, epoch=EXHAUSTED_EPOCH)
    assert rules.fence(exhausted, 2, NOW) is NEEDS_ID
    fenced = rules.fence(exhausted, 2, NOW, SPARE)
    assert isinstance(fenced, Transaction)
    assert (fenced.epoch, fenced.next_producer_id) == (EPOCH_MAX, SPARE)


def test_repeated_abort_never_gets_last_epoch() -> None:
    # Aborted by a coordinator below version 2, which has no other id for it, while its producer knows of version 2.
    fenced = rules.fence(transaction(State.ONGOING, epoch=EXHAUSTED_EPOCH), 1, NOW)
    assert isinstance(fenced, Transaction)
    done = rules.complete(fenced, NOW)
    assert done.epoch == EPOCH_MAX
    for is_commit in (True, False):
        assert rules.end(done, EndRequest(ID, EXHAUSTED_EPOCH, is_commit, 2), NOW, SPARE) == FENCED


def test_the_first_added_partition_begins_the_transaction() -> None:
    for state in (State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT):
        begun = rules.add(transaction(state), AddRequest(ID, 3, (P0,), 2), NOW)
        assert isinstance(begun, Transaction)
        assert (begun.state, begun.partitions, begun.started_ms) == (State.ONGOING, {P0}, NOW)
        assert begun.client_version == 2


def test_partitions_are_added_once() -> None:
    ongoing = transaction(State.ONGOING)
    assert rules.add(ongoing, AddRequest(ID, 3, (P0,)), NOW) == NONE
    more = rules.add(ongoing, AddRequest(ID, 3, (P0, P1)), NOW)
    assert isinstance(more, Transaction)
    assert (more.partitions, more.started_ms, more.epoch) == ({P0, P1}, 2, 3)


def test_add_beyond_the_limit_of_partitions_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each add writes all partitions, so that their number decides how long others wait."""
    monkeypatch.setattr(rules, "PARTITIONS_MAX", 1)
    request = AddRequest(ID, 3, (P1,), 0)
    assert rules.add(transaction(State.ONGOING), request, NOW) == ErrorCode.POLICY_VIOLATION
    assert isinstance(rules.add(transaction(), request, NOW), Transaction)


def test_add_is_rejected_by_id_then_epoch_then_state() -> None:
    mapping = ErrorCode.INVALID_PRODUCER_ID_MAPPING
    for state in STORED:
        assert rules.add(transaction(state), AddRequest(ID + 1, 9, (P0,)), NOW) == mapping
        assert rules.add(transaction(state), AddRequest(ID, 2, (P0,)), NOW) == FENCED
    for state in (State.PREPARE_COMMIT, State.PREPARE_ABORT):
        assert rules.add(transaction(state), AddRequest(ID, 3, (P0,)), NOW) == CONCURRENT
    assert rules.add(None, AddRequest(ID, 3, (P0,)), NOW) == mapping


def test_verification_returns_partitions_in_transaction() -> None:
    asked = AddRequest(ID, 3, (P0, P1))
    abortable = ErrorCode.TRANSACTION_ABORTABLE
    assert rules.verify(transaction(State.ONGOING), asked) == [NONE, abortable]
    assert rules.verify(transaction(State.EMPTY), asked) == [abortable] * 2
    assert rules.verify(transaction(State.PREPARE_COMMIT), asked) == [CONCURRENT] * 2
    assert rules.verify(transaction(State.ONGOING, epoch=4), asked) == [FENCED] * 2
    assert rules.verify(None, asked) == [ErrorCode.INVALID_PRODUCER_ID_MAPPING] * 2


def test_a_new_id_is_not_taken_where_none_is_needed() -> None:
    ended = rules.end(transaction(State.ONGOING), EndRequest(ID, 3, True, 2), NOW, SPARE)
    assert isinstance(ended, Transaction)
    assert ended.next_producer_id == NO_ID
    begun = rules.init(transaction(), InitRequest(5), NOW, SPARE)
    assert isinstance(begun, Transaction)
    assert begun.producer_id == ID


REQUESTS = st.one_of(
    st.builds(
        InitRequest, st.just(5), st.sampled_from([NO_ID, ID, 1]), st.sampled_from([NO_EPOCH, 0, 1, 2, 3])
    ),
    st.builds(
        AddRequest,
        st.sampled_from([ID, 1]),
        st.integers(0, 4),
        st.sampled_from([(P0,), (P0, P1)]),
        st.sampled_from([0, 2]),
    ),
    st.builds(
        EndRequest, st.sampled_from([ID, 1]), st.integers(0, 4), st.booleans(), st.sampled_from([0, 2])
    ),
    st.sampled_from(["fence", "complete"]),
)


@given(st.lists(REQUESTS, max_size=40), st.sampled_from([0, 2]), st.sampled_from([0, EXHAUSTED_EPOCH - 2]))
def test_random_requests_never_lower_epochs(
    requests: list[object], version: int, base: int
) -> None:
    current = transaction(epoch=base, partitions=frozenset())
    spare = 1000
    for request in requests:
        spare += 1
        decision: object
        if isinstance(request, InitRequest):
            wanted = request if request.epoch < 0 else replace(request, epoch=base + request.epoch)
            decision = rules.init(current, wanted, NOW, spare)
        elif isinstance(request, AddRequest):
            decision = rules.add(current, replace(request, epoch=base + request.epoch), NOW)
        elif isinstance(request, EndRequest):
            decision = rules.end(current, replace(request, epoch=base + request.epoch), NOW, spare)
        elif request == "fence":
            is_ongoing = current.state == State.ONGOING
            decision = rules.fence(current, version, NOW, spare) if is_ongoing else None
        else:
            is_prepared = current.state in (State.PREPARE_COMMIT, State.PREPARE_ABORT)
            decision = rules.complete(current, NOW) if is_prepared else None
        if decision == NONE and isinstance(request, EndRequest):
            assert current.epoch < EPOCH_MAX, "it is told an epoch that only a coordinator may have"
        if not isinstance(decision, Transaction):
            continue
        assert current.state in PREDECESSORS[decision.state]
        assert 0 <= decision.epoch <= EPOCH_MAX
        assert decision.epoch >= current.epoch or decision.producer_id != current.producer_id
        # Markers of two transactions of which the later has epochs of its own never share an epoch.
        if decision.state in (State.PREPARE_COMMIT, State.PREPARE_ABORT) and decision.client_version >= 2:
            assert decision.epoch > current.epoch
        if decision.state in (State.COMPLETE_COMMIT, State.COMPLETE_ABORT, State.EMPTY):
            assert not decision.partitions
        current = decision
