"""Members of a share group (KIP-932): they acquire records, and accept, release, reject or keep them."""

from __future__ import annotations

from typing import Any, Final

from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.simulation.client import Fields, Life
from tests.simulation.dead_letters import DEAD_LETTERS, DeadLetterReader
from tests.simulation.share_history import ACCEPT, LOCK_NS, REJECT, RELEASE, Session
from tests.simulation.workloads import PASSING, E, Worker
from tests.simulation.world import S
from tests.support.share_requests import share_acknowledge, share_fetch

GROUP: Final = "group-of-shares"
_REOPEN: Final = (E.SHARE_SESSION_NOT_FOUND, E.INVALID_SHARE_SESSION_EPOCH)
# A lost state exists again at most this time after its members have noticed it.
_RESTORED_NS: Final = 5 * S
_REJOIN: Final = (E.FENCED_MEMBER_EPOCH, E.UNKNOWN_MEMBER_ID, E.GROUP_ID_NOT_FOUND)
# Nothing comes any more when nothing has come for this time: all locks have ended.
_DRY_NS: Final = LOCK_NS + 5 * S


class ShareMember(Worker):
    """One member of the share group."""

    def __init__(self, *arguments: Any) -> None:
        self.member_epoch = 0
        self.starts = 0
        self.assigned: dict[bytes, list[int]] = {}
        self.session = Session("nobody", is_open=False)
        self.session_epoch = 0
        self.held: dict[tuple[bytes, int], list[int]] = {}  # By partition: offsets to acknowledge.
        self.fetched: set[tuple[bytes, int]] = set()  # The partitions of the session.
        self.is_fetching = False  # A ShareFetch is not answered yet.
        self.stateless_ns: int | None = None  # Since when the group has had no state that could be read.
        super().__init__(*arguments)

    @property
    def member_id(self) -> str:
        return f"{self.name}/{self.starts}"

    def on_lost(self) -> None:
        if self.is_fetching:
            self.history.shares.lost_fetches_ns.append(self.world.now_ns())
        self.is_fetching = False
        self._end_session()

    def _end_session(self) -> None:
        """End the session, whose last answer may be lost.

        A home that leaves closes its sessions. If it waits for an owner then, it answers without the records that the
        owner acquires. Their release counts as a delivery.
        """
        if self.session.is_open:
            self.history.shares.lost_answers_ns.append(self.world.now_ns())
        self.session.is_open = False
        self.session_epoch, self.held, self.fetched = 0, {}, set()

    # -- the group -----------------------------------------------------------------------------------------------

    def work(self) -> Life:
        if not any(each.name == "stable" for each in self.history.alive()):
            yield from self.pause(20)
            return
        yield from self.find_coordinator(GROUP)
        yield from self.configure()
        for _ in range(self.rng.choice((5, 10, 30))):
            if self.must_finish:
                return
            if not self.assigned or self.stateless_ns is not None or self.rng.random() < 0.3:
                yield from self.heartbeat(self.member_epoch)
            if self.assigned:
                yield from self.fetch()
                if self.held and self.rng.random() < 0.5:
                    yield from self.acknowledge()
            yield from self.pause(self.rng.choice((0, 1, 5, 20)))
        if self.rng.random() < 0.3:
            yield from self.close_session()

    def configure(self) -> Life:
        """Let the group begin at the start of its partitions, and write dead letters in some runs."""
        wanted = {"share.auto.offset.reset": "earliest"}
        if self.history.shares.has_dead_letters:
            wanted["errors.deadletterqueue.topic.name"] = DEAD_LETTERS
            wanted["errors.deadletterqueue.copy.record.enable"] = self.rng.choice(("false", "true"))
        configs = [{"name": name, "config_operation": 0, "value": value} for name, value in wanted.items()]
        resource = {"resource_type": 32, "resource_name": GROUP, "configs": configs}
        fields = {"resources": [resource], "validate_only": False}
        answer = yield from self.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, fields)
        self.check_code("IncrementalAlterConfigs", answer["responses"][0]["error_code"])
        if answer["responses"][0]["error_code"]:
            yield from self.pause(10)
            yield from self.configure()

    def heartbeat(self, epoch: int) -> Life:
        fields = {
            "group_id": GROUP, "member_id": self.member_id, "member_epoch": epoch, "rack_id": None,
            "subscribed_topic_names": ["stable"],
        }  # fmt: skip
        answer = yield from self.call(ApiKey.SHARE_GROUP_HEARTBEAT, 1, fields)
        code = answer["error_code"]
        if code in _REJOIN:
            self.history.miss_share_group()
            self.member_epoch, self.assigned = 0, {}
            self.starts += 1
        elif code and code not in PASSING:
            self.world.violate(f"{self.name}: a heartbeat was answered with {ErrorCode(code).name}")
        elif not code:
            self.member_epoch = answer["member_epoch"]
            if answer["assignment"] is not None:
                rows = answer["assignment"]["topic_partitions"]
                self.assigned = {row["topic_id"]: list(row["partitions"]) for row in rows}
                if self.assigned:
                    self.history.assign_share_group()

    # -- records -------------------------------------------------------------------------------------------------

    def fetch(self, *, max_wait_ms: int | None = None) -> Life:
        """ShareFetch of the assigned partitions, with what is to be acknowledged."""
        if not self.session_epoch:
            self._end_session()
            self.session = Session(f"{self.name}.{self.connections}.{self.world.now_ns()}")
        if self.sock is None:
            yield from self.connect()
            self._end_session()
            self.session = Session(f"{self.name}.{self.connections}.{self.world.now_ns()}")
        acknowledged = self._choose() if self.session_epoch and self.rng.random() < 0.5 else {}
        wait_ms = self.rng.choice((0, 5, 50)) if max_wait_ms is None else max_wait_ms
        (topic_id, partitions), *_ = self.assigned.items()
        fields = share_fetch(
            topic_id,
            [index for index in partitions if (topic_id, index) not in self.fetched],
            group_id=GROUP,
            member_id=self.member_id,
            epoch=self.session_epoch,
            max_wait=wait_ms,
            max_records=self.rng.choice((1, 5, 100)),
            batch_size=self.rng.choice((1, 100)),
            share_acquire_mode=self.rng.choice((0, 1)),
            acknowledge={key[1]: batches_of(kinds) for key, kinds in acknowledged.items()},
        )
        self._send(acknowledged)
        sent_ns = self.world.now_ns()
        self.is_fetching = True
        answer = yield from self.call(ApiKey.SHARE_FETCH, 2, fields)
        self.is_fetching = False
        if not (yield from self._accept(answer["error_code"])):
            return False
        self.fetched |= {(topic_id, index) for index in partitions}
        rows = {
            (topic["topic_id"], row["partition_index"]): row
            for topic in answer["responses"]
            for row in topic["partitions"]
        }
        for key, kinds in acknowledged.items():
            row = rows.get(key)
            self._answered(key, kinds, row["acknowledge_error_code"] if row is not None else 0)
        for key, row in rows.items():
            self._on_row(key, row, sent_ns)
        return any(row["acquired_records"] for row in rows.values())

    def _on_row(self, key: tuple[bytes, int], row: Fields, sent_ns: int) -> None:
        self._check_row(row["error_code"])
        offsets = [
            (at, each["delivery_count"])
            for each in row["acquired_records"]
            for at in range(each["first_offset"], each["last_offset"] + 1)
        ]
        for at, count in offsets:
            self.history.shares.acquired(
                self.session,
                (*key, at),
                count,
                now_ns=self.world.now_ns(),
                sent_ns=sent_ns,
                disturbed_ns=self.world.disturbed_ns,
                name=f"stable-{key[1]} at {at}",
            )
        self.held.setdefault(key, []).extend(at for at, _ in offsets)

    def _check_row(self, code: int) -> None:
        """Check the error of a partition.

        A power loss can take the group and its states. Its members learn this by their next heartbeat. When they have
        joined again, the states exist again.
        """
        if code != E.UNKNOWN_SERVER_ERROR or self.history.is_synced or not self.history.power_losses:
            self.check_code("ShareFetch", code)
            self.stateless_ns = None if not code else self.stateless_ns
            return
        now_ns = self.world.now_ns()
        if self.stateless_ns is None:
            self.stateless_ns = now_ns
        if now_ns - max(self.stateless_ns, self.world.disturbed_ns) > _RESTORED_NS:
            self.check_code("ShareFetch", code)

    def _choose(self, *, accepts_all: bool = False) -> dict[tuple[bytes, int], dict[int, int]]:
        """Some held offsets, each with a type."""
        chosen: dict[tuple[bytes, int], dict[int, int]] = {}
        for key, offsets in self.held.items():
            kinds = {
                at: ACCEPT if accepts_all else self.rng.choice((ACCEPT, ACCEPT, ACCEPT, RELEASE, REJECT))
                for at in offsets
                if accepts_all or self.rng.random() < 0.8
            }
            if kinds:
                chosen[key] = kinds
                self.held[key] = [at for at in offsets if at not in kinds]
        return chosen

    def acknowledge(self, *, accepts_all: bool = False) -> Life:
        chosen = self._choose(accepts_all=accepts_all)
        if not chosen or not self.session_epoch:
            return
        topic_id = next(iter(chosen))[0]
        batches = {key[1]: batches_of(kinds) for key, kinds in chosen.items()}
        fields = share_acknowledge(
            topic_id, batches, epoch=self.session_epoch, group_id=GROUP, member_id=self.member_id
        )
        self._send(chosen)
        answer = yield from self.call(ApiKey.SHARE_ACKNOWLEDGE, 2, fields)
        if not (yield from self._accept(answer["error_code"])):
            return
        for topic in answer["responses"]:
            for row in topic["partitions"]:
                key = topic["topic_id"], row["partition_index"]
                self._answered(key, chosen[key], row["error_code"])

    def _send(self, chosen: dict[tuple[bytes, int], dict[int, int]]) -> None:
        for key, kinds in chosen.items():
            for at in kinds:
                if (*key, at) in self.history.shares.records:
                    self.history.shares.acknowledging((*key, at))

    def _answered(self, key: tuple[bytes, int], kinds: dict[int, int], code: int) -> None:
        shares = self.history.shares
        known = {at: shares.records.get((*key, at)) for at in kinds}
        # One record that is not held any more makes the broker reject the acknowledgement of all.
        is_calm = shares.is_strict and all(
            each is not None and each.session is self.session and self.world.disturbed_ns < each.at_ns
            for each in known.values()
        )
        for at, kind in kinds.items():
            delivery = known[at]
            if delivery is None or delivery.session is not self.session:
                continue  # A power loss has taken it, or another session has it.
            if not code:
                shares.acknowledged((*key, at), kind)
                continue
            shares.failed((*key, at))
            is_late = self.world.now_ns() - delivery.at_ns >= LOCK_NS
            if code == E.INVALID_RECORD_STATE and is_calm and not is_late:
                self.world.violate(f"{self.name}: {key[1]} at {at} is said not to be held")
            # The window of a new owner can end before these offsets.
            also = () if is_calm else (E.INVALID_REQUEST,)
            self.check_code("an acknowledgement", code, E.INVALID_RECORD_STATE, *also)

    def _accept(self, code: int) -> Life:
        """Return True if the session is still open."""
        if code:
            self.check_code("a share session", code, *_REOPEN)
            self._end_session()
            yield from self.pause(5)
            return False
        self.session_epoch += 1
        return True

    def close_session(self) -> Life:
        if self.session_epoch:
            self.session.is_open = False
            fields = share_acknowledge(bytes(16), {}, epoch=-1, group_id=GROUP, member_id=self.member_id)
            answer = yield from self.call(ApiKey.SHARE_ACKNOWLEDGE, 2, fields)
            self.check_code("the end of a share session", answer["error_code"], *_REOPEN)
        self._end_session()

    def finish(self) -> Life:
        self.disconnect()
        self._end_session()
        return
        yield


class ShareDrain(ShareMember, DeadLetterReader):
    """Accepts all records of the share group until nothing comes any more, and has the history judged.

    It keeps the first records until their lock ends. A login can end its connection every 40 ms, and the share session
    with it.
    """

    last_ns = 0  # When a record came last.
    has_kept = False

    def work(self) -> Life:
        topic = next((each for each in self.history.alive() if each.name == "stable"), None)
        if topic is None:
            # All other clients have finished, so nobody creates it any more.
            self.must_finish = True
            return
        yield from self.find_coordinator(GROUP)
        yield from self.configure()
        while not self.assigned:
            yield from self.heartbeat(self.member_epoch)
            yield from self.pause(20)
        yield from self._await_states(topic.partitions)
        self.assigned = {topic.topic_id: list(range(topic.partitions))}
        self.last_ns = self.last_ns or self.world.now_ns()
        while self.world.now_ns() - self.last_ns < _DRY_NS:
            yield from self.heartbeat(self.member_epoch)
            self.assigned = {topic.topic_id: list(range(topic.partitions))}
            if (yield from self.fetch(max_wait_ms=5)):
                self.last_ns = self.world.now_ns()
                if not self.has_kept:
                    self.has_kept, self.held = True, {}
            yield from self.acknowledge(accepts_all=True)
            yield from self.pause(200)
        is_judged = not self.history.power_losses or self.history.is_synced
        starts: dict[int, int] = {}
        for partition in range(topic.partitions):
            starts[partition] = yield from self.find(topic.name, partition, -2)
            end = yield from self.find(topic.name, partition, -1)
            if is_judged:
                # A crash can undo a DeleteRecords that was not answered. The group has left its records out then.
                trimmed = self.history.of(topic.topic_id, partition).trimming_to
                self.history.shares.judge(
                    topic.topic_id, partition, max(starts[partition], trimmed), end
                )
        if is_judged and self.history.shares.has_dead_letters:
            letters = yield from self.read_dead_letters(topic.topic_id)
            self.history.shares.judge_dead_letters(letters, starts)
        self.must_finish = True

    def _await_states(self, count: int) -> Life:
        """Heartbeat until the group has states of so many partitions.

        The group creates a state again if the answer to the first attempt was lost. So it assigns no partition before,
        and nobody may have records of it.
        """
        found = 0
        while found < count:
            yield from self.heartbeat(self.member_epoch)
            yield from self.pause(200)
            fields = {"groups": [{"group_id": GROUP, "topics": None}]}
            answer = yield from self.call(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, 0, fields)
            found = sum(len(topic["partitions"]) for topic in answer["groups"][0]["topics"])

    def _choose(self, *, accepts_all: bool = False) -> dict[tuple[bytes, int], dict[int, int]]:
        return super()._choose(accepts_all=True) if accepts_all else {}


def batches_of(kinds: dict[int, int]) -> list[tuple[int, int, list[int]]]:
    """Batches of acknowledgements (first, last, types) of neighbouring offsets."""
    batches: list[tuple[int, int, list[int]]] = []
    for at in sorted(kinds):
        if batches and batches[-1][1] + 1 == at:
            first, _, types = batches[-1]
            batches[-1] = first, at, [*types, kinds[at]]
        else:
            batches.append((at, at, [kinds[at]]))
    return batches
