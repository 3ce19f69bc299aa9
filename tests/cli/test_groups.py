"""`kproc group`, `config`, `topic alter` and `trim` against a running broker."""

from __future__ import annotations

import time

import pytest
import typer
from confluent_kafka import Consumer

from kproc.cli.commands import app
from kproc.wire.header import ApiKey
from tests.support.command_line import commands, described, refused, told
from tests.support.groups import find_coordinator
from tests.support.raw import RawClient
from tests.support.topics import fresh_name
from tests.support.wait import wait_until

pytestmark = [pytest.mark.long, pytest.mark.transports("process")]


def test_group_describe_shows_lag(kproc, filled, group):
    [row] = described(kproc(f"group describe {group} --format json"))
    assert (row["state"], row["members"], row["lag"]) == ("Empty", [], 10)
    assert [(each["committed"], each["end_offset"], each["lag"]) for each in row["partitions"]] == [
        (7, 10, 3),
        (3, 10, 7),
    ]
    table = told(kproc(f"group describe {group}"))
    assert table.splitlines()[0] == f"group {group}  type classic  state Empty  assignor -  members 0  lag 10"
    listed = {each["group"]: each for each in described(kproc("group list --format json"))}
    assert (listed[group]["state"], listed[group]["members"], listed[group]["lag"]) == ("Empty", 0, 10)
    assert 0 <= time.time() * 1000 - listed[group]["lag_since_ms"] < 60_000
    listed = described(kproc("group list --state stable --format json"))
    assert group not in [each["group"] for each in listed]


def test_group_with_members_cannot_be_moved_or_deleted(kproc, broker, filled):
    name = fresh_name()
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": name})
    try:
        consumer.subscribe([filled])
        wait_until(
            lambda: consumer.poll(0.1) is not None or len(consumer.assignment()) == 2,
            seconds=20,
            what="assigned",
        )
        answer = kproc(f"group describe {name} --format json")
        assert answer.stdout.count(f'"{filled}-0"') == 1, "a partition's row repeats its member's assignment"
        [row] = described(answer)
        [member] = row["members"]
        assert (row["state"], row["assignor"]) == ("Stable", "range")
        assert sorted(member["assignment"]) == [f"{filled}-0", f"{filled}-1"]
        assert {each["member"]["member_id"] for each in row["partitions"]} == {member["member_id"]}
        shown = told(kproc(f"group seek {name} --to end --topic {filled}")).splitlines()
        assert [line.split()[0] for line in shown[:3]] == ["TOPIC", filled, filled]
        assert shown[4:] == [
            f"nothing was changed: {name} still has 1 member(s): stop them first, then add --execute"
        ]
        assert "stop its consumers first" in refused(
            kproc(f"group seek {name} --to end --topic {filled} --execute")
        )
        assert "stop its consumers first" in refused(kproc(f"group delete {name} --yes"))
    finally:
        consumer.close()


def test_commands_show_and_protect_a_consumer_group(kproc, broker, filled):
    name = fresh_name()
    assert "changed" in told(kproc(f"config set --group {name} consumer.assignment.interval.ms=0"))
    fields = {"group_id": name, "rebalance_timeout": 60_000, "subscribed_topic_names": [filled]}
    with RawClient(broker.bootstrap) as client:
        find_coordinator(client, name)
        for member_id in ("a", "b"):
            joined = fields | {"member_id": member_id, "member_epoch": 0, "topic_partitions": []}
            wait_until(
                lambda joined=joined: (
                    not client.call(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, joined)["error_code"]
                ),
                seconds=20,
                what="joined",
            )
    # The second target follows at once, and member a does not know it yet.
    [row] = described(kproc(f"group describe {name} --format json"))
    assert (row["type"], row["state"], row["group_epoch"], row["assignment_epoch"]) == (
        *("consumer", "Reconciling"),
        *(3, 3),
    )
    a, b = sorted(row["members"], key=lambda each: each["member_id"])
    assert (a["member_epoch"], b["member_epoch"], b["assignment"]) == (2, 3, [])
    assert b["waits_for"] == [{"partition": b["target"][0], "members": ["a"]}]
    assert f"b waits for a to give up {b['target'][0]}\n" in told(kproc(f"group describe {name}"))
    listed = described(kproc("group list --state reconciling --format json"))
    assert (name, "consumer", 2) in [(each["group"], each["type"], each["members"]) for each in listed]
    assert f"{name} still has 2 member(s)" in told(kproc(f"group seek {name} --to end --topic {filled}"))
    assert "stop its consumers first" in refused(kproc(f"group delete {name} --yes"))


def test_group_delete_removes_the_group(kproc, group):
    assert told(kproc(f"group delete {group} --yes")) == f"deleted {group}\n"
    assert refused(kproc(f"group describe {group}")) == f"kproc: {group}: unknown group\n"
    assert refused(kproc(f"group delete {group} --yes")) == f"kproc: {group}: unknown group\n"


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [
        ("group seek {group}", 2, "either --to or --shift"),
        ("group seek {group} --to end --shift 1", 2, "either --to or --shift"),
        ("group seek {group} --to yesterday", 2, "--to 'yesterday'"),
        ("group seek {group} --to end --topic {topic}:x", 2, "expected TOPIC or TOPIC:0,1,2"),
        ("group seek {group} --to end --topic {topic}:7", 1, "no partition 7"),
        ("group seek nobody-{group} --to end", 1, "has committed nothing"),
        ("group list --state sleepy", 2, "--state 'sleepy'"),
        ("topic trim {topic} --before beginning", 2, "nothing stands before"),
        ("topic trim {topic} --before end --partition 9 --yes", 1, "no partition 9"),
        ("topic alter {topic}", 2, "nothing to change"),
        ("topic alter {topic} --partitions 2", 1, "already has 2 partition"),
        ("config set", 2, "nothing to change"),
        ("config set nonsense", 2, "expected name=value"),
        ("config set --topic {topic} no.such=1", 1, "no.such"),
        ("config set num.partitions=none", 1, "num.partitions"),
        ("config get no.such.setting", 1, "has no setting no.such.setting"),
        ("config get --topic {topic} --group {group}", 2, "give one of --topic, --group"),
        ("config get --topic no-{topic}", 1, "no-{topic}"),
    ],
)
def test_failed_group_commands_print_one_line(kproc, filled, group, command, code, words):
    names = {"topic": filled, "group": group}
    assert words.format(**names) in refused(kproc(command.format(**names)), code)


def test_trim_deletes_the_oldest_records(kproc, filled):
    assert (
        told(kproc(f"topic trim {filled} --before 4 --yes"))
        == f"{filled}-0 begins at offset 4\n{filled}-1 begins at offset 4\n"
    )
    assert (
        told(kproc(f"topic trim {filled} --before end --partition 1 --yes")) == f"{filled}-1 begins at offset 10\n"
    )
    [row] = described(kproc(f"topic describe {filled} --format json"))
    assert [each["start_offset"] for each in row["partitions"]] == [4, 10]


def test_trim_of_a_compacted_topic_names_the_setting(kproc):
    name = fresh_name("compacted")
    told(kproc(f"topic create {name} --config cleanup.policy=compact"))
    line = refused(kproc(f"topic trim {name} --before end --yes"), 1)
    assert f"{name}-0: the topic has cleanup.policy=compact" in line
    assert "(POLICY_VIOLATION)" in line


def test_alter_changes_partitions_and_settings(kproc, filled):
    command = (
        f"topic alter {filled} --partitions 3 --config retention.ms=60000 --config segment.ms=70000 --yes"
    )
    told(kproc(command))
    [row] = described(kproc(f"topic describe {filled} --format json"))
    assert len(row["partitions"]) == 3
    assert row["configs"] == {"retention.ms": "60000", "segment.ms": "70000"}
    told(kproc(f"topic alter {filled} --unset segment.ms --yes"))
    [row] = described(kproc(f"topic describe {filled} --format json"))
    assert row["configs"] == {"retention.ms": "60000"}


def test_settings_of_the_broker_are_set_shown_and_unset(kproc):
    name = "log.retention.bytes"
    assert "would change" in told(kproc(f"config set {name}=123456789 --dry-run"))
    assert [row["source"] for row in described(kproc(f"config get {name} --format json"))] == ["default"]
    told(kproc(f"config set {name}=123456789 --yes"))
    assert described(kproc(f"config get {name} --format json")) == [
        {"name": name, "value": "123456789", "source": "broker", "read_only": False, "no_effect": None}
    ]
    assert name in told(kproc("config get"))
    told(kproc(f"config set --unset {name} --yes"))
    assert name not in told(kproc("config get"))
    assert name in told(kproc("config get --all"))


def test_changing_commands_print_json(kproc, filled, group):
    name = fresh_name()
    assert described(kproc(f"topic create {name} --format json")) == [{"name": name, "result": "created"}]
    assert described(
        kproc(f"topic alter {name} -p 2 -c retention.ms=60000 --unset segment.ms --yes -f json")
    ) == [
        {"name": name, "result": "has 2 partitions"},
        {"name": name, "result": "changed retention.ms: 604800000 -> 60000"},
        {"name": name, "result": "changed segment.ms: 604800000 -> default"},
    ]
    assert described(kproc(f"config set --topic {name} segment.ms=70000 --format json")) == [
        {
            "result": "changed",
            "setting": "segment.ms",
            "resource": f"topic {name}",
            "from": "604800000",
            "to": "70000",
        }
    ]
    assert described(kproc(f"topic delete {name} --yes --format json")) == [
        {"name": name, "result": "deleted"}
    ]
    assert described(kproc(f"topic trim {filled} --before 4 --partition 1 --yes --format json")) == [
        {"topic": filled, "partition": 1, "start_offset": 4}
    ]
    assert described(kproc(f"group delete {group} --yes --format json")) == [
        {"group": group, "result": "deleted"}
    ]


def test_dry_run_shows_what_would_be_done_and_does_nothing(kproc, filled, group):
    for command, expected in (
        (f"topic delete {filled}", f"would delete {filled} (partitions: 2, records: 20)\n"),
        (
            f"topic trim {filled} --before -4",
            f"would delete {filled}-0 before offset 6 (records: 6)\n"
            f"would delete {filled}-1 before offset 6 (records: 6)\n",
        ),
        (f"group delete {group}", f"would delete {group} (partitions with offsets: 2)\n"),
        (
            f"topic alter {filled} -p 3 --config retention.ms=1",
            f"{filled} would have 3 partitions\n{filled} would change retention.ms: 604800000 -> 1\n",
        ),
    ):
        assert told(kproc(f"{command} --dry-run")) == expected
    [row] = described(kproc(f"topic describe {filled} --format json"))
    assert (row["records"], len(row["partitions"]), row["configs"]) == (20, 2, {})
    assert refused(kproc("topic delete no-such --dry-run")) == "kproc: no-such: unknown topic\n"
    assert told(kproc("topic delete no-such --dry-run --if-exists")) == ""


def test_risky_change_of_settings_needs_a_confirmation(kproc, filled):
    for command, name in (
        (f"topic alter {filled} -c retention.ms=1", "topic alter retention.ms"),
        (f"config set --topic {filled} cleanup.policy=compact", "config set cleanup.policy"),
    ):
        assert f"{name}: there is no terminal to ask" in refused(kproc(command), 2)
    told(kproc(f"config set --topic {filled} retention.ms=-1 segment.ms=70000"))
    assert "segment.ms: there is no terminal" in refused(kproc(f"topic alter {filled} --unset segment.ms"), 2)


def test_topic_alter_reports_first_change_if_second_fails(kproc, filled):
    ended = kproc(f"topic alter {filled} --partitions 4 --config no.such=1")
    assert ended.returncode == 1
    assert ended.stdout == f"{filled} has 4 partitions\n"
    assert "no.such" in ended.stderr


def test_every_printing_command_has_json_output():
    """`consume` has json among its own formats; `top` is a screen, and shows what `status` does.

    A running pipeline writes JSON lines, its other commands act or say what is wrong; benchmarks write files.
    """
    silent = {
        "serve",
        "dev",
        "stop",
        "doctor",
        "produce",
        "version",
        "pipeline check",
        "pipeline reset",
        "profile add",
        "profile use",
        "profile remove",
    }
    for path, command in commands(typer.main.get_command(app)):
        names = {name for option in command.params for name in option.opts}
        assert path in silent or path.startswith("bench ") or names & {"--format", "--json"}, path


def test_dry_run_of_changing_commands_changes_nothing(kproc, topic):
    name, there = fresh_name(), topic()
    for command, expected in (
        (f"topic create {name}", f"would create {name}\n"),
        (
            f"user add {name} -m SCRAM-SHA-256",
            f"would add {name} by SCRAM-SHA-256\n",
        ),
        (
            f"quota set --user {name} producer_byte_rate=7",
            f"would set producer_byte_rate of user {name} to 7\n",
        ),
        (
            f"config set --topic {there} retention.ms=1",
            f"would change retention.ms of topic {there}: 604800000 -> 1\n",
        ),
    ):
        assert told(kproc(f"{command} --dry-run")) == expected
    assert "processors: " in told(kproc("scale --processors 3 --dry-run"))
    assert "give either --dry-run" in refused(kproc("group seek g --to end --dry-run --execute"), 2)
    assert f"{there}: exists already" in refused(kproc(f"topic create {there} --dry-run"))
    assert "there is no connection" in refused(kproc("kill-client 1.2.3.4:5 --dry-run"))
    assert name not in told(kproc("topic list")) + told(kproc("user list")) + told(kproc("quota list"))
