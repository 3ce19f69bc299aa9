"""The comparison's own judges: what is compared with what, and what a rule lets pass."""

from __future__ import annotations

from typing import Any

from tests.differential.compare import ITEMS, Difference, compare
from tests.differential.rules import Case, rule_for
from tests.differential.runner import without_ruled
from tests.differential.steps import Step
from tests.differential.symbols import Batch, Moment
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
    def rule(kproc: str, kafka: str, protocols: list[dict[str, Any]], *later: str) -> str | None:
        answers = [{"groups": [{"group_id": each} for each in names]} for names in (kproc, kafka)]
        (difference,) = compare(*answers)[0]
        join = {"group_id": "b", "protocol_type": "consumer", "protocols": protocols}
        before = [Step(0, "join_group", 2, join)]
        before += [Step(0, api, 2, {"group_id": "b"}) for api in later]
        return rule_for(Case(Step(0, "list_groups", 0, {}), difference, *answers, before))

    assert rule("a", "ab", []) == "a group that a refused JoinGroup named"
    assert rule("a", "ab", [{"name": "range"}]) is rule("ab", "a", []) is rule("b", "ab", []) is None
    assert rule("a", "ab", [{"name": "range"}], "leave_group") == "a group that a refused JoinGroup named"
    assert rule("a", "ab", [{"name": "range"}], "sync_group", "leave_group") is None


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
