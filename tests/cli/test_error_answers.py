"""Commands whose requests are answered with an error print its meaning, never a bare constant of Kafka."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kproc.cli import perf, transaction_requests
from kproc.client import Client
from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.command_line import Kproc
from tests.support.topics import fresh_name

pytestmark = [
    pytest.mark.long,
    pytest.mark.transports("process"),
    # A command that fails leaves its sockets to the end of its process.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

# Codes that no command has words of its own for, one that is retried, and one that this version does not know.
CODES = (ErrorCode.NOT_COORDINATOR, ErrorCode.STALE_BROKER_EPOCH, ErrorCode.KAFKA_STORAGE_ERROR, 31_000)
# A constant is explained if it stands in parentheses behind words.
BARE = re.compile(rf"(?<!\()\b({'|'.join(sorted(ErrorCode.__members__.keys() - {'NONE'}, key=len, reverse=True))})\b")
COMMANDS = (
    "topic create {new}", "topic create {topic} --dry-run", "topic list --interval 0", "topic describe {topic}",
    "topic alter {topic} --partitions 9", "topic alter {topic} --config retention.ms=5 --yes",
    "topic trim {topic} --before 1 --yes", "topic trim {topic} --before 1 --dry-run", "topic verify {topic}",
    "topic delete {new} --yes", "topic delete {topic} --dry-run",
    "group list", "group describe {group}", "group seek {group} --to end", "group seek {group} --to 3 --execute",
    "group delete {group} --dry-run", "group delete no-{group} --yes",
    "txn list", "txn describe {new}", "txn abort {new} --yes", "txn find-hanging",
    "txn abort --topic {topic} --start-offset 0 --yes",
    "config get", "config get --topic {topic}", "config set --topic {topic} retention.ms=6 --yes",
    "acl list", "acl add alice read --topic {topic}", "acl delete alice --yes", "acl check alice read --topic {topic}",
    "user list", "user delete no-{new} --yes",
    "quota list", "quota set --user {new} producer_byte_rate=1", "quota delete --user {new} producer_byte_rate --yes",
    "latency --count 1", "latency --produce {topic} --count 1", "latency --end-to-end {topic} --count 1",
    "perf produce {topic} --records 1", "perf produce {new} --create --records 1", "perf consume {topic} --once",
    "scale --processors 1 --dry-run",
)  # fmt: skip


class FailingAnswers:
    """Replaces the error codes in the answers to one API. `seen`: the APIs that the commands have used."""

    def __init__(self) -> None:
        self.api_key: int | None = None
        self.code = 0
        self.seen: dict[int, None] = {}

    def changed(self, receive: Callable[[Client], Any], client: Client) -> Any:
        api_key = client._pending[0].api_key if client._pending else -1
        self.seen[api_key] = None
        correlation_id, fields = receive(client)
        return correlation_id, self._failed(fields) if api_key == self.api_key else fields

    def _failed(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._failed(each) for each in value]
        if not isinstance(value, dict):
            return value
        return {
            name: self.code if name.endswith("error_code") else None if name == "error_message" else self._failed(each)
            for name, each in value.items()
        }


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Iterator[FailingAnswers]:
    failing = FailingAnswers()
    receive = Client.receive
    monkeypatch.setattr(Client, "receive", lambda client: failing.changed(receive, client))
    monkeypatch.setattr(transaction_requests, "_WAIT_SECONDS", 0.1)
    monkeypatch.setattr(perf, "_LEADER_S", 0.1)
    return failing


def test_no_command_prints_a_bare_error_constant(
    kproc: Kproc, filled: str, group: str, answers: FailingAnswers
) -> None:
    problems: dict[str, str] = {}
    tried: set[int] = set()
    for number, command in enumerate(COMMANDS):
        words = command.format(topic=filled, group=group, new=fresh_name())
        answers.api_key, answers.seen = None, {}
        kproc(words)
        for step, api_key in enumerate([each for each in answers.seen if each >= 0]):
            answers.api_key, answers.code = api_key, int(CODES[(number + step) % len(CODES)])
            done = kproc(words)
            shown = done.stdout + done.stderr
            if found := BARE.search(shown):
                problems[f"{words}: {ApiKey(api_key).name}"] = f"{found[0]} in {shown[:300]!r}"
            tried.add(api_key)
    assert problems == {}
    assert len(tried) > 20, "a request that no command sends proves nothing"


def test_group_commands_on_a_broker_without_groups(
    kproc: Kproc, filled: str, answers: FailingAnswers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without __consumer_offsets a broker answers NOT_COORDINATOR. No group exists then."""
    monkeypatch.setattr("kproc.cli.groups.lacks_coordinators", lambda _client, _topic: True)
    name = fresh_name()
    answers.code = ErrorCode.NOT_COORDINATOR
    for command, api_key in (("describe", ApiKey.DESCRIBE_GROUPS), ("delete --yes", ApiKey.DELETE_GROUPS)):
        answers.api_key = api_key
        assert kproc(f"group {command} {name}").stderr == f"kproc: {name}: unknown group\n"
    answers.api_key = ApiKey.OFFSET_FETCH
    assert "has committed nothing" in kproc(f"group seek {name} --to end").stderr
    moved = kproc(f"group seek {name} --to end --topic {filled} --execute")
    assert (moved.returncode, moved.stderr) == (0, "")


def test_transaction_commands_on_a_broker_without_transactions(
    kproc: Kproc, answers: FailingAnswers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction_requests, "lacks_coordinators", lambda _client, _topic: True)
    answers.api_key, answers.code = ApiKey.DESCRIBE_TRANSACTIONS, ErrorCode.NOT_COORDINATOR
    assert kproc("txn describe nothing").stderr == "kproc: nothing: unknown transactional id\n"
