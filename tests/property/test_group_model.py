"""A classic group and random clients: they join, sync, send heartbeats, leave, die, restart; writes fail, the
coordinator moves, time passes. Whatever happens, the rules below hold, and once things calm down the group settles.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kproc.broker.group.classic.group import ClassicGroup
from kproc.broker.group.classic.state import GroupState
from kproc.broker.group.messages import JoinResult, SyncResult
from kproc.common.errors import ErrorCode
from tests.support.group_rig import INITIAL_DELAY_MS, REBALANCE_MS, SESSION_MS, Answer, GroupRig

pytestmark = pytest.mark.long

RETRY = {
    ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
}
FORGET_ID = {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION}
# Long enough for each of the timeouts that a settled group may have had to wait for, one after the other.
CALM_MS = 4 * REBALANCE_MS
CLIENTS_MAX = 5


class Client:
    """A consumer as the real ones are: it does the next thing that the protocol asks of it."""

    def __init__(
        self, machine: GroupMachine, name: str, fields: dict[str, Any], *, instance_id: str | None
    ) -> None:
        self.machine = machine
        self.name = name
        self.instance_id = instance_id
        self.fields = fields
        self.revision = 0
        self.member_id = ""
        self.generation = -1
        self.join: Answer[JoinResult] | None = None
        self.sync: Answer[SyncResult] | None = None
        self.coordinator = 0  # that the join was sent to
        self.assignments: tuple[tuple[str, bytes], ...] = ()
        self.is_settled = False
        self.is_gone = False

    def act(self) -> None:
        """The next step: look at an answer, or send the next request."""
        if self.join is not None:
            self._look_at_join(self.join)
        elif self.sync is not None:
            self._look_at_sync(self.sync)
        elif self.is_settled:
            self._react(self.machine.rig.heartbeat(self.member_id, self.generation, self.instance_id))
        elif self.generation >= 0:
            self.sync = self.machine.sync(self)
        else:
            self.send_join()

    def send_join(self) -> None:
        self.is_settled = False
        self.generation = -1
        self.sync = None
        self.coordinator = self.machine.coordinator
        self.join = self.machine.join(self)

    def _look_at_join(self, join: Answer[JoinResult]) -> None:
        if join.is_open:
            return
        self.join = None
        result = join.value
        if join.code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = result.member_id
        elif join.code:
            self._react(join.code)
        else:
            self.member_id, self.generation = result.member_id, result.generation
            self.assignments = ()
            if result.leader == result.member_id and not result.skip_assignment:
                self.assignments = tuple(self.machine.assign(result, self.coordinator))

    def _look_at_sync(self, sync: Answer[SyncResult]) -> None:
        if sync.is_open:
            return
        self.sync = None
        if sync.code:
            self._react(sync.code)
            return
        # What it was given is what the leader of this very generation meant for it.
        assert sync.value.assignment == self.machine.share(
            self.generation, self.instance_id or self.member_id
        )
        self.is_settled = True

    def _react(self, code: ErrorCode) -> None:
        if not code:
            return
        assert code in RETRY | FORGET_ID | {ErrorCode.FENCED_INSTANCE_ID}, code
        self.is_settled, self.generation = False, -1
        if code in FORGET_ID:
            self.member_id = ""
        elif code == ErrorCode.FENCED_INSTANCE_ID:
            self.machine.ends(self)


class GroupMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.rig = GroupRig()
        self.clients: list[Client] = []
        self.started = 0
        self.answers: list[Answer[Any]] = []
        self.seen_generation = 0
        self.leaders: dict[
            tuple[int, int], set[str]
        ] = {}  # (coordinator, generation) -> who was told to assign
        self.coordinator = 0

    @initialize(delay=st.sampled_from([0, INITIAL_DELAY_MS]), holds=st.booleans())
    def begin(self, delay: int, holds: bool) -> None:
        self.rig.configure(group_initial_rebalance_delay_ms=delay)
        self.rig.holds_writes = holds

    # What clients use.

    def join(self, client: Client) -> Answer[JoinResult]:
        metadata = f"{client.revision}".encode()
        answer = self.rig.join(
            client.member_id,
            group_instance_id=client.instance_id,
            protocols=(("range", metadata), ("sticky", metadata)),
            **client.fields,
        )
        self.answers.append(answer)
        return answer

    def sync(self, client: Client) -> Answer[SyncResult]:
        answer = self.rig.sync(
            client.member_id,
            client.generation,
            group_instance_id=client.instance_id,
            assignments=client.assignments,
        )
        self.answers.append(answer)
        return answer

    def share(self, generation: int, name: str) -> bytes:
        return f"{generation}:{name}".encode()

    def assign(self, result: JoinResult, coordinator: int) -> Iterator[tuple[str, bytes]]:
        told = self.leaders.setdefault((coordinator, result.generation), set())
        told.add(result.member_id)
        assert len(told) == 1, "two members were told to assign in one generation"
        for member in result.members:
            share = self.share(result.generation, member.group_instance_id or member.member_id)
            yield member.member_id, share

    def ends(self, client: Client) -> None:
        client.is_gone = True
        if client in self.clients:
            self.clients.remove(client)

    # Rules.

    @precondition(lambda self: len(self.clients) < CLIENTS_MAX)
    @rule(
        static=st.booleans(),
        known=st.booleans(),
        skip=st.booleans(),
        rebalance=st.sampled_from([5_000, REBALANCE_MS]),
    )
    def a_client_starts(self, static: bool, known: bool, skip: bool, rebalance: int) -> None:
        self.started += 1
        fields = {
            "requires_known_member_id": known,
            "supports_skip_assignment": skip,
            "rebalance_timeout_ms": rebalance,
        }
        instance_id = f"i{self.started}" if static else None
        self.clients.append(Client(self, f"c{self.started}", fields, instance_id=instance_id))

    def _pick(self, number: int) -> Client:
        return self.clients[number % len(self.clients)]

    @precondition(lambda self: self.clients)
    @rule(number=st.integers(0, 9), steps=st.integers(1, 4))
    def a_client_goes_on(self, number: int, steps: int) -> None:
        client = self._pick(number)
        for _ in range(steps):
            if not client.is_gone:
                client.act()

    @precondition(lambda self: self.clients)
    @rule(steps=st.integers(1, 4))
    def all_go_on(self, steps: int) -> None:
        for _ in range(steps):
            for client in list(self.clients):
                client.act()

    @precondition(lambda self: self.clients)
    @rule(number=st.integers(0, 9), changes=st.booleans())
    def a_client_joins_again(self, number: int, changes: bool) -> None:
        """Also while its last join or sync waits: its connection broke."""
        client = self._pick(number)
        client.revision += changes
        client.send_join()

    @precondition(lambda self: self.clients)
    @rule(number=st.integers(0, 9))
    def a_static_client_restarts(self, number: int) -> None:
        client = self._pick(number)
        if client.instance_id is not None:
            client.member_id = ""
            client.send_join()

    @precondition(lambda self: self.clients)
    @rule(number=st.integers(0, 9))
    def a_client_leaves(self, number: int) -> None:
        client = self._pick(number)
        self.ends(client)
        if client.member_id:
            self.answers.append(self.rig.leave(client.member_id))

    @precondition(lambda self: self.clients)
    @rule(number=st.integers(0, 9))
    def a_client_dies(self, number: int) -> None:
        self.ends(self._pick(number))

    @precondition(lambda self: self.clients)
    @rule(number=st.integers(0, 9), behind=st.integers(0, 2))
    def a_client_commits(self, number: int, behind: int) -> None:
        client = self._pick(number)
        # Not below 0: without a generation it would be somebody who needs none in an empty group.
        generation = max(client.generation - behind, 0)
        code = self.rig.can_commit(client.member_id, generation, client.instance_id)
        if client.is_settled and behind:
            assert code in RETRY | FORGET_ID | {ErrorCode.FENCED_INSTANCE_ID}

    @rule(
        duration_ms=st.sampled_from(
            [1, 500, INITIAL_DELAY_MS, 5_000, SESSION_MS - 1, SESSION_MS, REBALANCE_MS]
        )
    )
    def time_passes(self, duration_ms: int) -> None:
        self.rig.pass_ms(duration_ms)

    @rule(code=st.sampled_from([ErrorCode.NONE, ErrorCode.NONE, ErrorCode.KAFKA_STORAGE_ERROR]))
    def appends_succeed_or_fail(self, code: ErrorCode) -> None:
        self.rig.append_error = code

    @precondition(lambda self: self.rig.writing)
    @rule(code=st.sampled_from([ErrorCode.NONE, ErrorCode.NONE, ErrorCode.KAFKA_STORAGE_ERROR]))
    def a_write_ends(self, code: ErrorCode) -> None:
        self.rig.write(code)

    @precondition(lambda self: self.clients)
    @rule(seconds=st.integers(1, 8))
    def clients_work(self, seconds: int) -> None:
        """Rules at random alone would seldom reach a stable group."""
        self.rig.pass_ms(seconds * 1_000, before=lambda: [client.act() for client in list(self.clients)])

    @precondition(lambda self: self.clients)
    @rule(dice=st.integers(0, 5), clean=st.booleans())
    def the_coordinator_moves(self, dice: int, clean: bool) -> None:
        if dice != 5:
            return  # Or the others had no time in between.
        if clean:
            self.rig.write()
        list(self.rig.group.resign())
        self.rig.writing.clear()
        self.coordinator += 1
        self._restore()

    def _restore(self) -> None:
        rig = self.rig
        if rig.log:
            rig.restore(rig.log[-1])
            assert rig.group.state.snapshot() == rig.log[-1]
        else:
            rig.group = ClassicGroup("g", rig.environment)
        self.seen_generation = rig.group.generation

    # What always holds.

    @invariant()
    def generations_grow(self) -> None:
        assert self.rig.group.generation >= self.seen_generation
        self.seen_generation = self.rig.group.generation

    @invariant()
    def the_roster_is_consistent(self) -> None:
        roster = self.rig.group.roster
        members = roster.members
        assert (roster.leader in members) if members else (roster.leader is None)
        assert roster.static_ids == {
            each.group_instance_id: each.member_id
            for each in members.values()
            if each.group_instance_id is not None
        }
        assert all(member_id == each.member_id for member_id, each in members.items())
        assert roster.joined_count == sum(each.join_reply is not None for each in members.values())
        assert not roster.pending.keys() & members.keys()

    @invariant()
    def the_state_says_who_waits(self) -> None:
        group = self.rig.group
        members = group.roster.members.values()
        assert (
            bool(members) == (group.state.current is not GroupState.EMPTY)
            or group.state.current is GroupState.PREPARING_REBALANCE
        )
        if group.state.current is not GroupState.COMPLETING_REBALANCE:
            assert all(each.sync_reply is None for each in members)
        if group.state.current is GroupState.COMPLETING_REBALANCE or (
            group.state.current is GroupState.STABLE and not self.rig.writing
        ):
            assert all(each.join_reply is None for each in members)
        assert group._rebalance._pending_sync <= group.roster.members.keys()

    @invariant()
    def no_deadline_is_missed(self) -> None:
        group = self.rig.group
        deadline_ms = group.next_deadline_ms()
        deadlines = [each.deadline_ms for each in group.roster.members.values() if not each.is_waiting]
        deadlines += group.roster.pending.values()
        assert all(deadline_ms is not None and deadline_ms <= each for each in deadlines)
        if group.state.current is GroupState.PREPARING_REBALANCE:
            assert deadline_ms is not None

    # And in the end.

    def teardown(self) -> None:
        rig = self.rig
        rig.holds_writes = False
        rig.append_error = ErrorCode.NONE
        rig.write()
        rig.pass_ms(CALM_MS, before=lambda: [client.act() for client in list(self.clients)])
        expected = {client.member_id for client in self.clients}
        assert set(rig.group.roster.members) == expected
        assert rig.state == ("Stable" if expected else "Empty")
        assert all(client.is_settled for client in self.clients)
        assert not any(answer.is_open for answer in self.answers)
        if rig.log:
            described = rig.group.describe()
            self._restore()
            assert rig.group.describe() == described


TestGroup = GroupMachine.TestCase
TestGroup.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
