"""Fault rules as options, and their lines."""

from __future__ import annotations

from typing import Any

import pytest

from kproc.cli.failure import Failure
from kproc.cli.faults import Effect, Requests, _cells, _words
from tests.support.cases import in_one_test


def test_options_that_are_not_given_are_no_part_of_a_rule() -> None:
    assert Requests().fields() == {"apis": []}
    assert Effect().fields() == {}


def test_options_become_members_of_the_rule() -> None:
    requests = Requests(
        api=["produce"], versions="3-7", topic="orders", partition=0, times=2, probability=0.5
    )
    assert requests.fields() == {
        "apis": ["Produce"], "versions": (3, 7), "topic": "orders", "partition": 0, "times": 2, "probability": 0.5,
    }  # fmt: skip
    effect = Effect(error="not_coordinator", ms=5, close=True, size=0, ranges=["fetch=none", "Produce=4"])
    assert effect.fields() == {
        "error": "NOT_COORDINATOR", "ms": 5, "closes": True, "bytes_sent": 0,
        "ranges": {"Fetch": None, "Produce": (4, 4)},
    }  # fmt: skip


@in_one_test(
    ("options", "reason"),
    [
        (Requests(api=["Prodduce"]), "Prodduce"),
        (Requests(versions="new"), "--versions new: expected a version or a range, such as 3-7"),
        (Effect(ranges=["Produce"]), "--range Produce: expected API=N-N or API=none"),
        (Effect(ranges=["Produce=x"]), "--range x: expected a version or a range"),
    ],
)
def test_wrong_options_are_usage_errors(options: Requests | Effect, reason: str) -> None:
    with pytest.raises(Failure, match=reason) as found:
        options.fields()
    assert found.value.exit_code == 2


@in_one_test(
    ("rule", "words"),
    [
        ({"action": "close"}, "close all requests"),
        (
            {"action": "fail", "apis": ["Produce", "Fetch"], "error": "NOT_COORDINATOR", "topic": "t", "partition": 0,
             "times": 2, "after": 10},
            "fail NOT_COORDINATOR Produce,Fetch topic=t partition=0 times=2 after=10",
        ),
        (
            {"action": "advertise", "apis": ["ApiVersions"], "ranges": {"Produce": [3, 7], "Fetch": None}},
            "advertise Produce=3-7,Fetch=none ApiVersions",
        ),
        ({"action": "drop-answer", "closes": True, "versions": [3, 7]}, "drop-answer close all requests versions=3-7"),
        ({"action": "cut-answer", "bytes_sent": 0, "probability": 0.25}, "cut-answer 0B all requests probability=0.25"),
        ({"action": "close", "times": 1234567, "seed": 2**31 - 1}, "close all requests times=1234567 seed=2147483647"),
        ({"action": "delay", "ms": 5, "client": "\x1b[2J"}, "delay 5ms all requests client=\\x1b[2J"),
    ],
)  # fmt: skip
def test_line_of_a_rule_shows(rule: dict[str, Any], words: str) -> None:
    assert _words(rule) == words


def test_row_of_a_rule_has_its_counts() -> None:
    row = {"id": 3, "matches": 7, "hits": 2, "rule": {"action": "delay", "ms": 20, "every": 3}}
    assert _cells(row) == [3, "delay 20ms", "all", "all", "every=3", 7, 2]
