"""Fault rules and their counters as files, which several Handlers use at once."""

from __future__ import annotations

import os
from itertools import chain
from pathlib import Path
from threading import Thread

import pytest

from kproc.broker.calls.own_operations import FaultRule
from kproc.broker.faults.rule_files import RuleFiles

RULE = FaultRule(action="fail", apis=["Produce"], topic="orders", error="NOT_LEADER_OR_FOLLOWER", times=2)
CONNECTION = 7


@pytest.fixture
def files(tmp_path: Path) -> RuleFiles:
    return RuleFiles(str(tmp_path))


def test_rules_are_read_in_the_order_of_their_addition(files: RuleFiles) -> None:
    assert files.read() == {}
    rules = [FaultRule(action="delay", ms=each) for each in range(1, 13)]
    ids = [files.add(rule, CONNECTION) for rule in rules]
    assert list(files.read().items()) == list(zip(ids, rules, strict=True))


def test_id_of_removed_rule_is_not_used_again(files: RuleFiles) -> None:
    """Somebody who removes a rule twice must not remove another one."""
    first = files.add(RULE, CONNECTION)
    assert files.remove(first)
    assert not files.remove(first)
    assert files.add(RULE, CONNECTION) != first


def test_numbers_are_given_once_over_processes_and_threads(files: RuleFiles) -> None:
    rule_id = files.add(RULE, CONNECTION)
    numbers: list[list[int]] = [[], [], []]

    def count(into: list[int]) -> None:
        counter = files.counter(rule_id)
        into += (counter.next() for _ in range(2000))
        counter.close()

    read, write = os.pipe()
    child = os.fork()
    if not child:
        count(numbers[2])
        os.write(write, b"".join(each.to_bytes(4, "big") for each in numbers[2]))
        os._exit(0)
    threads = [Thread(target=count, args=(numbers[each],)) for each in (0, 1)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    data = b""
    while len(data) < 8000:
        data += os.read(read, 8000)
    assert os.waitpid(child, 0)[1] == 0
    os.close(read)
    os.close(write)
    numbers[2] = [int.from_bytes(data[at : at + 4], "big") for at in range(0, 8000, 4)]
    assert sorted(chain.from_iterable(numbers)) == list(range(1, 6001))
    assert files.matches(rule_id) == 6000


def test_counter_of_removed_rule_cannot_be_opened(files: RuleFiles) -> None:
    rule_id = files.add(RULE, CONNECTION)
    files.remove(rule_id)
    assert files.matches(rule_id) == 0
    with pytest.raises(FileNotFoundError):
        files.counter(rule_id)


def test_damaged_rule_is_no_rule(files: RuleFiles, tmp_path: Path) -> None:
    good = files.add(RULE, CONNECTION)
    for content in (b'{"action":"clo', b'{"action":"\xff"}'):
        damaged = files.add(RULE, CONNECTION)
        (tmp_path / ".faults" / f"{damaged}.rule").write_bytes(content)
    (tmp_path / ".faults" / "x.rule").write_bytes(b"")
    assert list(files.read()) == [good]


def test_lease_ends_with_its_connection_unless_kept(files: RuleFiles) -> None:
    first, kept, other = (files.add(RULE, each) for each in (CONNECTION, CONNECTION, CONNECTION + 1))
    files.keep(kept)
    assert files.leased_by((CONNECTION,)) == [first]
    assert files.leased_by((CONNECTION, CONNECTION + 1)) == [first, other]
    files.remove(first)
    assert files.leased_by((CONNECTION,)) == []


def test_damaged_lease_is_no_lease(files: RuleFiles, tmp_path: Path) -> None:
    good = files.add(RULE, CONNECTION)
    for content in (b"", b"x", b"\xff"):
        damaged = files.add(RULE, CONNECTION)
        (tmp_path / ".faults" / f"{damaged}.lease").write_bytes(content)
    assert files.leases() == {good: CONNECTION}
