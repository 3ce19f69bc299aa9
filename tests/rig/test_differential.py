"""The comparison's own judges: what is compared with what, and what a rule lets pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.differential.compare import ITEMS, Difference, compare
from tests.differential.logins import FIRST, SPAN
from tests.differential.rules import Case, rule_for
from tests.differential.runner import without_ruled
from tests.differential.steps import Step
from tests.differential.symbols import Batch, Moment, Ref, Words
from tests.differential.work import Notes


def paths(kproc: Any, kafka: Any) -> list[tuple[Any, ...]]:
    return [difference.path for difference in compare(kproc, kafka)[0]]


def test_compare_pairs_rows_of_one_name_by_content() -> None:
    long = {"name": "t", "configs": [{"name": "a", "value": "1"}, {"name": "b", "value": "2"}]}
    short = {"name": "t", "configs": [{"name": "b", "value": "2"}]}
    turned = {**long, "configs": long["configs"][::-1]}
    found = paths({"rows": [long, short]}, {"rows": [turned, short]})
    assert [path[-1] for path in found] == ["(order)"]


def create(kproc: list[dict[str, Any]], kafka: list[dict[str, Any]], *names: str) -> list[Difference]:
    step = Step(0, "create_topics", 7, {"topics": [{"name": name, "configs": []} for name in names]})
    answers = {"topics": kproc}, {"topics": kafka}
    return without_ruled(compare(*answers)[0], lambda each: Case(step, each, *answers), Notes())


def row(name: str, code: int, count: int) -> dict[str, Any]:
    return {"name": name, "error_code": code, "num_partitions": count}


def test_differential_error_rule_covers_only_its_row() -> None:
    kproc = [row("a.b", 0, 1), row("a_b", 17, -1), row("c", 17, -1)]
    kafka = [row("a.b", 0, 2), row("a_b", 0, 1), row("c", 0, 1)]
    found = create(kproc, kafka, "a.b", "a_b", "c")
    assert [(difference.path[1], difference.path[-1]) for difference in found] == [
        (2, "error_code"),
        (0, "num_partitions"),
        (2, "num_partitions"),
    ]


def test_setting_rejected_only_by_kafka_is_no_documented_rule() -> None:
    step = Step(0, "alter_configs", 2, {"resources": []})
    rows = ({"resource_type": 4, "resource_name": "1", "error_code": 0},)
    refused_here = Difference(("responses", 0, "error_code"), 40, 0, rows)
    refused_there = Difference(("responses", 0, "error_code"), 0, 40, rows)
    assert rule_for(Case(step, refused_here, {}, {})) == "settings of the broker"
    assert rule_for(Case(step, refused_there, {}, {})) is None


def test_fetch_rule_allows_records_of_the_next_segment_only() -> None:
    """The times in the header of a batch that was compressed anew differ, too."""

    def rule(kproc: list[int], kafka: list[int]) -> str | None:
        answers = [
            {
                "responses": [
                    {
                        "topic": "t",
                        "partitions": [
                            {
                                "partition_index": 0,
                                "records": [{"base": base, "base_time": time} for base in bases],
                            }
                        ],
                    }
                ]
            }
            for time, bases in enumerate((kproc, kafka))
        ]
        difference = next(each for each in compare(*answers)[0] if each.path[-1] == ITEMS)
        return rule_for(Case(Step(0, "fetch", 12, {}), difference, *answers))

    assert rule([1, 2], [1]) == "Fetch"
    assert rule([1, 2], []) is None
    assert rule([1], [1, 2]) is None
    assert rule([2, 1], [1]) is None


def test_rules_of_last_stable_offset_need_deleted_records() -> None:
    topics = [{"name": "t", "partitions": [{"partition_index": 0, "timestamp": -1}]}]
    deletion = Step(0, "delete_records", 2, {"topics": topics})

    def rules(*before: Step, kproc: int = 2, kafka: int = 0) -> set[str | None]:
        row = {"last_stable_offset": kproc, "log_start_offset": 2}
        difference = Difference(("responses", "last_stable_offset"), kproc, kafka, (row,))
        fetch = Case(Step(0, "fetch", 12, {}), difference, {}, {}, before)
        rows = ({"name": "t"}, {"partition_index": 0})
        step = Step(0, "list_offsets", 6, {"isolation_level": 1, "topics": topics})
        listed = Case(step, Difference(("topics", "offset"), kproc, kafka, rows), {}, {}, before)
        return {rule_for(fetch), rule_for(listed)}

    assert rules(deletion) == {"Fetch", "ListOffsets"}
    assert rules() == rules(deletion, kproc=1, kafka=3) == {None}


def test_acks_0_rule_needs_unwritable_partition() -> None:
    def rule(**batch: Any) -> str | None:
        rows = [{"index": 0, "records": [Batch({"records": [("k", 1, -500, [])], "time": 1000, **batch})]}]
        body = {"topic_data": [{"name": "t", "partition_data": rows}]}
        step = Step(0, "produce", 9, body, is_unanswered=True)
        return rule_for(Case(step, Difference((), None, "closed"), None, "closed"))

    assert rule(pid=1, epoch=-1) == rule(time=0) == "UNKNOWN_SERVER_ERROR"
    assert rule(pid=1, epoch=0) is None
    assert rule(time=Moment(0)) is None


def test_list_offsets_rule_needs_deleted_records() -> None:
    def rule(kproc: int, kafka: int, *before: Step) -> str | None:
        def answer(offset: int) -> dict[str, Any]:
            rows = [{"partition_index": 0, "offset": offset}]
            return {"topics": [{"name": "t", "partitions": rows}]}

        asked = [{"partition_index": 0, "timestamp": Moment(5)}]
        step = Step(0, "list_offsets", 6, {"topics": [{"name": "t", "partitions": asked}]})
        (difference,) = compare(answer(kproc), answer(kafka))[0]
        return rule_for(Case(step, difference, answer(kproc), answer(kafka), before))

    def deletion(partition: int) -> Step:
        rows = [{"partition_index": partition, "offset": 1}]
        return Step(0, "delete_records", 2, {"topics": [{"name": "t", "partitions": rows}]})

    assert rule(1, -1, deletion(0)) == "ListOffsets"
    assert (
        rule(1, -1) is rule(1, -1, deletion(1)) is rule(-1, 1, deletion(0)) is rule(1, 2, deletion(0)) is None
    )


def test_list_groups_rule_needs_a_commit_without_member() -> None:
    def rule(kproc: str, kafka: str, generation: int) -> str | None:
        commit = {"group_id": "b", "generation_id_or_member_epoch": generation}
        answers = [{"groups": [{"group_id": each} for each in names]} for names in (kproc, kafka)]
        (difference,) = compare(*answers)[0]
        before = [Step(0, "offset_commit", 8, commit)]
        return rule_for(Case(Step(0, "list_groups", 0, {}), difference, *answers, before))

    assert rule("ab", "a", -1) == "a group that a refused OffsetCommit named"
    assert rule("ab", "a", 1) is rule("ab", "b", -1) is rule("a", "ab", -1) is None


def test_list_groups_rule_of_rejected_join() -> None:
    def rule(
        kproc: str, kafka: str, protocols: list[dict[str, Any]], *later: str, version: int = 2, joins: int = 1
    ) -> str | None:
        answers = [{"groups": [{"group_id": each} for each in names]} for names in (kproc, kafka)]
        (difference,) = compare(*answers)[0]
        join = {"group_id": "b", "member_id": "", "protocol_type": "consumer", "protocols": protocols}
        join["group_instance_id"] = None
        before = [Step(0, "join_group", version, join)] * joins
        before += [Step(0, api, 2, {"group_id": "b"}) for api in later]
        return rule_for(Case(Step(0, "list_groups", 0, {}), difference, *answers, before))

    assert rule("a", "ab", []) == "a group that a refused JoinGroup named"
    assert rule("a", "ab", [{"name": "range"}]) is rule("ab", "a", []) is rule("b", "ab", []) is None
    assert rule("a", "ab", [{"name": "range"}], "leave_group") == "a group that a refused JoinGroup named"
    synced = "sync_group", "leave_group"
    assert rule("a", "ab", [{"name": "range"}], *synced) is None
    assert rule("a", "ab", [{"name": "range"}], *synced, version=4) == "a group that a refused JoinGroup named"
    assert rule("a", "ab", [{"name": "range"}], *synced, version=4, joins=2) is None


def test_rule_of_new_leader_needs_a_member_that_left() -> None:
    def rule(*before: Step, leader: str = "M2") -> str | None:
        kproc, kafka = ({"error_code": 0, "leader": each, "members": []} for each in ("M1", leader))
        kproc["members"] = [{"member_id": "M1"}, {"member_id": "M2"}]
        step = Step(0, "join_group", 9, {"group_id": "g"})
        found = {rule_for(Case(step, each, kproc, kafka, before)) for each in compare(kproc, kafka)[0]}
        return found.pop() if len(found) == 1 else None

    leaves = [Step(0, "leave_group", 5, {"group_id": group_id}) for group_id in ("other", "g")]
    assert rule(*leaves) == "the leader of a group whose leader has left"
    assert rule() is rule(*leaves[:1]) is rule(*leaves, leader="M1") is None


def test_timestamp_rule_needs_negative_largest_timestamp() -> None:
    def rule(api: str, field: str, kproc: int, kafka: int) -> str | None:
        step = Step(0, api, 0, {"topic_data": []})
        return rule_for(Case(step, Difference(("rows", 0, field), kproc, kafka), {}, {}))

    assert rule("describe_producers", "last_timestamp", -501, -1) == "timestamps in a batch's header"
    assert rule("fetch", "max_time", -501, -1) == "timestamps in a batch's header"
    assert rule("produce", "log_append_time", -500, -1) == "timestamps in a batch's header"
    assert rule("produce", "log_append_time", 5, -1) is None
    assert rule("describe_producers", "last_timestamp", 5, -1) is None
    assert rule("describe_producers", "last_timestamp", -501, 5) is None


def test_rule_of_producer_time_needs_batch_behind_marker() -> None:
    def rule(attributes: int, kproc: str = "NOW", open_from: int = -1) -> str | None:
        row = {"coordinator_epoch": "N", "current_txn_start_offset": open_from}
        batch = Batch(records=["r"], attributes=attributes)
        produce = Step(0, "produce", 9, {"topic_data": [{"partition_data": [{"records": [batch]}]}]})
        difference = Difference(("topics", "last_timestamp"), kproc, "T0+5", (row,))
        return rule_for(Case(Step(0, "describe_producers", 0, {}), difference, {}, {}, [produce]))

    assert rule(0) == "transactions"
    assert rule(16) is rule(0, kproc="T0+7") is rule(0, open_from=3) is None


def test_rule_of_sequences_needs_a_refused_producer() -> None:
    def rule(epoch: Any, name: str = "x") -> str | None:
        batch = Batch(records=["r"], attributes=16, pid=Ref("pid", "x"), epoch=epoch)
        body = {"transactional_id": name, "topic_data": [{"partition_data": [{"records": [batch]}]}]}
        step = Step(0, "produce", 9, body)
        before = [Step(0, "init_producer_id", 4, {"transactional_id": "x"}), step]
        return rule_for(Case(step, Difference(("error_code",), 0, 45), {}, {}, before))

    own = Ref("epoch", "x")
    assert rule(32767) == rule(own._replace(add=1)) == rule(own, name="y") == "transactions"
    assert rule(own) is None


def test_rules_of_strict_checks_need_their_requests() -> None:
    def rule(kafka: int, text: str) -> str | None:
        rows = ({"resource_type": 2, "resource_name": "t"},)
        difference = Difference(("responses", "error_code"), 40, kafka, rows)
        step = Step(0, "incremental_alter_configs", 1, {"resources": []})
        return rule_for(Case(step, difference, {"error_message": text}, {}))

    empty = "Configuration 'a' values must not be empty."
    assert rule(0, empty) == rule(3, empty) == "lists in a request"
    assert rule(17, empty) is rule(0, "other") is None


def share_answer(*acquired: tuple[int, int], code: int = 0) -> dict[str, Any]:
    """Return the answer to a ShareFetch of one partition; `acquired`: offsets with their delivery counts."""
    ranges = [{"first_offset": at, "last_offset": at, "delivery_count": count} for at, count in acquired]
    row = {"partition_index": 0, "error_code": 0, "acknowledge_error_code": code, "acquired_records": ranges}
    return {"responses": [{"topic_id": "t", "partitions": [row]}]}


def share_rule(
    field: str, kproc: Any, kafka: Any, *before: Step, most: int = 500, batches: Sequence[tuple[int, int]] = ()
) -> str | None:
    """Return the rule for a difference of two answers to a ShareFetch that acknowledges `batches`."""
    rows = [
        {"first_offset": first, "last_offset": last, "acknowledge_types": [2] * (last - first + 1)}
        for first, last in batches
    ]
    topics = [{"partitions": [{"partition_index": 0, "acknowledgement_batches": rows}]}]
    step = Step(0, "share_fetch", 2, {"max_records": most, "topics": topics})
    difference = next(each for each in compare(kproc, kafka)[0] if field in each.path)
    return rule_for(Case(step, difference, kproc, kafka, before))


def aborted_transaction(isolation: str = "read_committed", *, is_committed: bool = False) -> list[Step]:
    """Return steps that write record 0, and records 1 and 2 of a transaction."""
    configs = [{"name": "share.isolation.level", "value": isolation}]
    batches = [Batch(records=["r"]), Batch(records=["r", "r"], attributes=16)]
    return [
        Step(0, "incremental_alter_configs", 1, {"resources": [{"configs": configs}]}),
        *(
            Step(0, "produce", 13, {"topic_data": [{"partition_data": [{"records": [batch]}]}]})
            for batch in batches
        ),
        Step(0, "end_txn", 5, {"committed": is_committed}),
    ]


def test_share_fetch_rule_of_records_behind_held_ones() -> None:
    """kproc has read three offsets from the first available record on, so that it may lack the fourth one."""

    def rule(kproc: list[int], kafka: list[int]) -> str | None:
        answers = [share_answer(*((at, 2) for at in offsets)) for offsets in (kproc, kafka)]
        return share_rule("acquired_records", *answers, most=3)

    assert rule([0], [0, 3]) == rule([0, 1], [0, 1, 4]) == "records of a share group behind those that others hold"
    assert rule([0], [0, 2]) is rule([0, 3], [0]) is rule([1], [0, 3]) is rule([], [3]) is None


def test_share_fetch_rule_of_often_delivered_records() -> None:
    """kproc delivers such a record without its neighbours. In Kafka they are in the same response."""

    def rule(kproc: list[tuple[int, int]], kafka: list[tuple[int, int]]) -> str | None:
        return share_rule("acquired_records", share_answer(*kproc), share_answer(*kafka))

    some = [(1, 2), (2, 4), (3, 2)]
    assert rule(some[:1], some) == rule(some[:2], some) == "records whose deliveries are half used up"
    assert rule([(1, 2)], [(1, 2), (2, 2), (3, 4)]) is rule([], some) is rule(some, some[:1]) is None


def test_share_fetch_rule_of_end_inside_a_batch() -> None:
    """Record 4 must be delivered without its neighbours. It is in the batch of records 1 to 5."""
    rows = [{"index": 0, "records": [Batch(records=["r"] * count)]} for count in (1, 5, 2)]
    produce = [Step(0, "produce", 13, {"topic_data": [{"partition_data": [row]}]}) for row in rows]

    def rule(kproc: list[int], kafka: list[int], count: int = 2) -> str | None:
        answers = [share_answer(*((at, count) for at in offsets)) for offsets in (kproc, kafka)]
        return share_rule("acquired_records", *answers, *produce)

    assert rule([0, 1, 2, 3], [0]) == "records whose deliveries are half used up"
    assert rule([0, 1, 2, 3, 4, 5], [0]) is rule([0, 1, 2, 3], [0, 1]) is rule([1, 2, 3], []) is None
    assert rule([0, 1, 2, 3], [0], count=1) is None


def test_share_fetch_rule_of_late_initialization() -> None:
    def rule(kproc: dict[str, Any], *, epoch: int = 0) -> str | None:
        kafka = {"error_code": 0, "responses": []}
        step = Step(0, "share_fetch", 2, {"share_session_epoch": epoch, "max_records": 1, "topics": []})
        difference = next(each for each in compare(kproc, kafka)[0] if "responses" in each.path)
        return rule_for(Case(step, difference, kproc, kafka))

    assert rule(share_answer()) == "ShareFetch before the state of a share partition is initialized"
    assert rule(share_answer((0, 1))) is rule(share_answer(), epoch=1) is None


def test_login_rule_of_another_mechanism_twice() -> None:
    """Kafka closes the connection at the second SaslHandshake of a renewal by another mechanism."""

    def rule(first: str, second: str, *, listener: int = 2, kafka: Any = "closed") -> str | None:
        number = FIRST + (listener - 1) * SPAN
        before = [Step(number, "sasl_handshake", 1, {"mechanism": each}) for each in (first, second)]
        step = Step(number, "sasl_handshake", 1, {"mechanism": "PLAIN"})
        answer = {"error_code": 34, "mechanisms": []}
        return rule_for(Case(step, Difference((), "no answer", kafka), answer, kafka, before))

    assert rule("SCRAM-SHA-512", "SCRAM-SHA-256") == "SASL"
    assert rule("PLAIN", "PLAIN") is rule("PLAIN", "GSSAPI", listener=1) is rule("PLAIN", "GSSAPI", kafka={}) is None


def test_share_fetch_rules_judge_each_partition() -> None:
    """Equal records of another partition hide no difference, and excuse none."""

    def rule(kproc: list[tuple[int, int]], kafka: list[tuple[int, int]]) -> str | None:
        answers = share_answer(*kproc), share_answer(*kafka)
        for answer, others in zip(answers, (share_answer((7, 4)), share_answer((7, 4))), strict=True):
            (other,) = others["responses"][0]["partitions"]
            answer["responses"][0]["partitions"].append({**other, "partition_index": 1})
        return share_rule("acquired_records", *answers)

    assert rule([(1, 2)], [(1, 2), (2, 4)]) == "records whose deliveries are half used up"
    assert rule([(1, 2)], [(1, 2), (2, 2)]) is rule([], [(1, 4)]) is None


def test_rules_of_share_groups_need_two_answers() -> None:
    deletion = Step(0, "delete_records", 2, {"topics": []})
    for api in ("share_fetch", "share_acknowledge", "describe_share_group_offsets"):
        step = Step(0, api, 1, {"topics": []})
        for answers in (("no answer", share_answer()), (share_answer(), "closed")):
            case = Case(step, Difference((), *answers), *answers, [deletion, *aborted_transaction()])
            assert rule_for(case) is None, case


def test_share_ack_rule_needs_aborted_records_in_request() -> None:
    def rule(*before: Step, ours: int = 0, first: int = 2) -> str | None:
        answers = share_answer(code=ours), share_answer((0, 1), code=121 - ours)
        fields = ("acknowledge_error_code", "acquired_records")
        found = {share_rule(each, *answers, *before, batches=[(0, 0), (first, 5)]) for each in fields}
        return found.pop() if len(found) == 1 else None

    assert rule(*aborted_transaction()) == "acknowledgements of records of aborted transactions"
    assert rule(*aborted_transaction(), first=3) is rule(*aborted_transaction(), ours=121) is None
    assert rule(*aborted_transaction("read_uncommitted")) is rule(*aborted_transaction(is_committed=True)) is None


def test_share_ack_rule_of_window_that_only_kafka_has() -> None:
    def rule(text: str, *before: Step, kproc: int = 121, kafka: int = 42) -> str | None:
        row = {"error_code": kproc, "error_message": Words(text)}
        answer = {"responses": [{"partitions": [row]}]}
        step = Step(0, "share_acknowledge", 2, {"topics": []})
        return rule_for(Case(step, Difference(("error_code",), kproc, kafka), answer, answer, before))

    deletion = Step(0, "delete_records", 2, {"topics": []})
    part = Step(0, "share_fetch", 2, {"share_acquire_mode": 1})
    empty = "The request batch offsets are not found in the cache."
    for before in (deletion, part):
        assert rule(empty, before) == "acknowledgements behind the last record that was delivered"
    assert rule(empty) is rule("The offset is not acquired.", deletion) is rule(empty, deletion, kafka=0) is None


def test_share_lag_rule_allows_at_most_the_aborted_records() -> None:
    def rule(kproc: int, kafka: int, *before: Step) -> str | None:
        step = Step(0, "describe_share_group_offsets", 1, {"groups": []})
        return rule_for(Case(step, Difference(("groups", 0, "lag"), kproc, kafka), {}, {}, before))

    assert rule(1, 3, *aborted_transaction()) == "the lag of a share group over records of aborted transactions"
    assert rule(1, 4, *aborted_transaction()) is rule(3, 1, *aborted_transaction()) is rule(1, 3) is None


def test_rule_of_names_ignores_equal_acknowledge_types() -> None:
    """Two records with one type are no partition that the request names twice."""
    answers = share_answer(), share_answer((0, 1))
    assert share_rule("acquired_records", *answers, batches=[(0, 1)]) is None


def test_streams_shutdown_rule_needs_a_leave_that_requested_it() -> None:
    def heartbeat(epoch: int, *, is_shutdown: bool) -> Step:
        body = {"group_id": "g", "member_epoch": epoch, "shutdown_application": is_shutdown}
        return Step(0, "streams_group_heartbeat", 1, body)

    def rule(*before: Step, kproc: Sequence[int] = (), kafka: Sequence[int] = (4,)) -> str | None:
        ours, theirs = ({"status": [{"status_code": code} for code in codes]} for codes in (kproc, kafka))
        (difference,) = compare(ours, theirs)[0]
        return rule_for(Case(heartbeat(0, is_shutdown=False), difference, ours, theirs, before))

    leave, absence = heartbeat(-1, is_shutdown=True), heartbeat(-2, is_shutdown=True)
    name = "the shutdown of a streams application without members"
    assert rule(leave) == rule(absence) == rule(leave, kproc=[3], kafka=[3, 4]) == name
    assert rule() is rule(heartbeat(-1, is_shutdown=False)) is rule(leave, kafka=[3]) is None


def test_previous_epoch_rule_holds_for_streams_groups() -> None:
    def rule(epoch: int, order: str = "smaller") -> str | None:
        ours = {"member_epoch": epoch}
        theirs = {"error_message": f"a {order} member epoch (3) than the one known by the group coordinator (4)."}
        step = Step(0, "streams_group_heartbeat", 1, {})
        return rule_for(Case(step, Difference(("error_code",), 0, 110), ours, theirs))

    assert rule(4) == rule(5) == "the previous epoch of a member that waits for partitions"
    assert rule(3) is rule(4, "greater") is None
