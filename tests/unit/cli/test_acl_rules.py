"""Tables and sentences of `kproc acl`."""

from __future__ import annotations

from typing import Any

import pytest

from kproc.broker.security.acl import Acl, Operation, PatternType, Permission, ResourceType
from kproc.cli.acl_rules import print_rules, row_of
from kproc.cli.common import Format, print_done


def test_print_done_escapes_control_characters(capsys) -> None:
    print_done([{"rule": "a\nforged\x1b[2J"}], "deleted {rule}", Format.TABLE)
    assert capsys.readouterr().out == r"deleted a\nforged\x1b[2J" + "\n"


def rule(resource: ResourceType, name: str, principal: str, *, is_prefix: bool = False) -> dict[str, Any]:
    pattern = PatternType.PREFIXED if is_prefix else PatternType.LITERAL
    return row_of(Acl(resource, name, pattern, principal, "*", Operation.DESCRIBE_CONFIGS, Permission.ALLOW))


RULES = [
    rule(ResourceType.TRANSACTIONAL_ID, "tx-1", "User:billing-service"),
    rule(
        ResourceType.TOPIC,
        "t" * 249,
        "User:CN=billing-service.eu-west-1.example.org,OU=Payments,O=Example Ltd",
    ),
    rule(ResourceType.TOPIC, "orders.eu-", "User:billing-service", is_prefix=True),
    rule(ResourceType.TOPIC, "orders.eu-", "User:alice", is_prefix=True),
]


def test_rules_come_by_resource_and_principal(capsys) -> None:
    print_rules(RULES)
    header, *rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert header == ["RESOURCE", "NAME", "PATTERN", "PRINCIPAL", "HOST", "OPERATION", "PERMISSION"]
    assert [row[1][:10] for row in rows] == ["orders.eu-", "orders.eu-", "tttttttttt", "tx-1"]
    assert [row[3] for row in rows[:2]] == ["User:alice", "User:billing-service"]


@pytest.mark.parametrize("columns", [80, 120, 140])
def test_rules_of_long_names_stay_readable_on_a_terminal(capsys, monkeypatch, columns: int) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(columns))
    print_rules(RULES)
    header, *rows, count = capsys.readouterr().out.splitlines()
    assert max(map(len, (header, *rows))) <= columns
    assert ("PATTERN" in header) == (columns > 80)
    assert any("orders.eu-" in row and "User:billing-service" in row for row in rows)
    assert any("ttttt...tttt" in row and "User:CN=" in row for row in rows)
    if columns == 80:
        assert rows[1].split() == [
            *("topic", "orders.eu-*", "User:billing-service", "*", "ALLOW", "DESCRIBE_CONFIGS")
        ]
    assert count == "(4 rules)"
