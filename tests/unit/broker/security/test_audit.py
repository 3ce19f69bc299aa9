"""The audit log: Kafka's lines at Kafka's levels, without waiting for their reader."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from kproc.broker.security.acl import Operation, ResourceType
from kproc.broker.security.acl_table import AclTable
from kproc.broker.security.audit import LINES_PER_SECOND, LOGGER_NAME
from kproc.broker.security.authorizer import StandardAuthorizer
from kproc.broker.security.principal import Identity, Principal
from kproc.common import log_levels
from kproc.wire.header import ApiKey, kafka_name
from tests.support.acl_tables import rule, table

ALICE = Identity("/10.0.0.7", Principal("User", "alice"))
TOPIC = ResourceType.TOPIC


class Lines(logging.Handler):
    """What the audit logger wrote at any level."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    @property
    def messages(self) -> list[str]:
        return [record.getMessage() for record in self.records]


SECOND_NS = 1_000_000_000


@pytest.fixture
def lines() -> Iterator[Lines]:
    handler = Lines()
    audit_logger = logging.getLogger(LOGGER_NAME)
    before = audit_logger.level
    audit_logger.addHandler(handler)
    audit_logger.setLevel("TRACE")
    yield handler
    audit_logger.setLevel(before)
    audit_logger.removeHandler(handler)


def authorizer(acls: AclTable, **options: object) -> StandardAuthorizer:
    return StandardAuthorizer(lambda: acls, api_name=kafka_name, **options)  # type: ignore[arg-type]


def ask(
    what: StandardAuthorizer, operation: Operation = Operation.READ, name: str = "t", **how: object
) -> bool:
    return what.is_allowed((ALICE, operation, TOPIC, name), api_key=int(ApiKey.FETCH), **how)  # type: ignore[arg-type]


def test_lines_are_kafkas(lines: Lines) -> None:
    """As Apache Kafka 4.3.0 writes them."""
    asked = authorizer(table(rule(), rule("deny User:* WRITE a", prefixed=True)))
    ask(asked)
    ask(asked, Operation.WRITE, "abc", count=3)
    ask(asked, Operation.DESCRIBE_CONFIGS, "nothing")
    ask(authorizer(table(), super_users=["User:alice"]))
    ask(authorizer(table(), allow_everyone=True))
    begin = "Principal = User:alice is"
    assert [(record.levelname, record.getMessage()) for record in lines.records] == [
        (
            "DEBUG",
            f"{begin} Allowed operation = READ from host = 10.0.0.7 on resource = Topic:LITERAL:t for request = Fetch "
            "with resourceRefCount = 1 based on rule MatchingAcl(acl=StandardAcl[resourceType=TOPIC, resourceName=t, "
            "patternType=LITERAL, principal=User:alice, host=*, operation=READ, permissionType=ALLOW])",
        ),
        (
            "INFO",
            f"{begin} Denied operation = WRITE from host = 10.0.0.7 on resource = Topic:LITERAL:abc for request = "
            "Fetch with resourceRefCount = 3 based on rule MatchingAcl(acl=StandardAcl[resourceType=TOPIC, "
            "resourceName=a, patternType=PREFIXED, principal=User:*, host=*, operation=WRITE, permissionType=DENY])",
        ),
        (
            "INFO",
            f"{begin} Denied operation = DESCRIBE_CONFIGS from host = 10.0.0.7 on resource = Topic:LITERAL:nothing "
            "for request = Fetch with resourceRefCount = 1 based on rule DefaultDeny",
        ),
        (
            "DEBUG",
            f"{begin} Allowed operation = READ from host = 10.0.0.7 on resource = Topic:LITERAL:t for request = Fetch "
            "with resourceRefCount = 1 based on rule SuperUser",
        ),
        (
            "DEBUG",
            f"{begin} Allowed operation = READ from host = 10.0.0.7 on resource = Topic:LITERAL:t for request = Fetch "
            "with resourceRefCount = 1 based on rule DefaultAllow",
        ),
    ]


def test_names_of_types_and_apis_are_kafkas(lines: Lines) -> None:
    authorizer(table()).is_allowed(
        (ALICE, Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, "x"),
        api_key=int(ApiKey.OFFSET_FOR_LEADER_EPOCH),
    )
    (line,) = lines.messages
    assert " on resource = TransactionalId:LITERAL:x for request = OffsetForLeaderEpoch with " in line
    assert kafka_name(30_000) == "30000"


def test_every_denial_is_logged_also_if_it_was_decided_before(lines: Lines) -> None:
    asked = authorizer(table())
    for _ in range(3):
        assert not ask(asked)
    assert len(lines.records) == 3


def test_questions_are_logged_at_trace(lines: Lines) -> None:
    asked = authorizer(table(rule()))
    ask(asked, is_question=True)
    ask(asked, Operation.WRITE, is_question=True)
    assert [record.levelname for record in lines.records] == ["TRACE", "TRACE"]


def test_question_about_a_whole_type_is_logged_as_kafka_does(lines: Lines) -> None:
    """Kafka asks about a name of its own first, and says nothing of what it finds then."""
    for acls in (table(rule("allow User:alice WRITE t")), table(rule("allow User:alice WRITE *"))):
        assert authorizer(acls).is_allowed_for_any(ALICE, Operation.WRITE, TOPIC, api_key=22)
    assert [
        (record.levelname, "Topic:LITERAL:hardcode" in record.getMessage()) for record in lines.records
    ] == [
        ("TRACE", True),
        ("DEBUG", True),
    ]
    assert all("resourceRefCount = 0" in line for line in lines.messages)


def test_nothing_is_built_while_its_level_is_off(lines: Lines, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[int] = []
    monkeypatch.setattr("kproc.broker.security.audit.message", lambda *_what, **_how: built.append(1) or "")
    asked = authorizer(table(rule()))
    logging.getLogger(LOGGER_NAME).setLevel("INFO")
    ask(asked)
    ask(asked, Operation.WRITE, is_question=True)
    assert not built
    ask(asked, Operation.WRITE)
    assert len(built) == 1
    logging.getLogger(LOGGER_NAME).setLevel("WARNING")
    ask(asked, Operation.WRITE)
    assert len(built) == len(lines.records) == 1


def test_level_of_audit_log_can_be_changed() -> None:
    assert LOGGER_NAME in log_levels.effective()
    before = logging.getLogger(LOGGER_NAME).level
    try:
        log_levels.apply({LOGGER_NAME: "TRACE"})
        assert log_levels.effective()[LOGGER_NAME] == "TRACE"
    finally:
        logging.getLogger(LOGGER_NAME).setLevel(before)


def test_names_that_clients_choose_stay_in_their_line(lines: Lines) -> None:
    forged = "g\nPrincipal = User:root is Allowed"
    asked = authorizer(table(rule(f"deny User:alice READ {forged}")))
    ask(asked, name=forged)
    ask(asked, name="x" * 32_000)
    ask(authorizer(table(rule("deny User:alice READ " + "ü" * 2000, prefixed=True))), name="ü" * 2001)
    for line in lines.messages:
        assert "\n" not in line
        assert len(line.encode()) <= 2000
    assert r"g\nPrincipal" in lines.messages[0]


# -- how many lines


def test_denials_of_a_flood_are_counted_in_one_line(lines: Lines) -> None:
    """A request without any right that names millions of topics once wrote 300 MB of audit log."""
    now_ns = 5 * SECOND_NS
    asked = authorizer(table(rule("deny User:alice READ g")), now_ns=lambda: now_ns)
    for at in range(1_000):
        ask(asked, name=f"g{at}")
    assert len(lines.messages) == LINES_PER_SECOND
    now_ns += SECOND_NS
    asked.report_suppressed(now_ns)
    asked.report_suppressed(now_ns)
    assert lines.messages[LINES_PER_SECOND:] == [
        f"and {1_000 - LINES_PER_SECOND} more decisions at level INFO"
    ]
    ask(asked, name="g")
    assert len(lines.messages) == LINES_PER_SECOND + 2


def test_flood_of_permissions_leaves_room_for_denials(lines: Lines) -> None:
    asked = authorizer(table(rule("allow User:alice READ g")), now_ns=lambda: SECOND_NS)
    for _ in range(2 * LINES_PER_SECOND):
        ask(asked, name="g")
    ask(asked, name="denied")
    assert "Denied" in lines.messages[-1]
