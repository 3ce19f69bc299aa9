"""Client quotas: which one is in force, what may be set, what is shown.

Codes and words are those that Apache Kafka 4.3.0 answered to the same requests.
"""

from __future__ import annotations

from typing import Any

import pytest

from kproc.broker.cluster import records as r
from kproc.broker.cluster.client_quotas import ClientQuotas, QuotaChanges
from kproc.broker.cluster.image import ClusterImage
from kproc.common.errors import ErrorCode, KafkaError
from tests.support.in_memory_controller import InMemoryController

PRODUCE = "producer_byte_rate"


def row(entity: dict[str, str | None], *ops: tuple[str, float | None]) -> dict[str, Any]:
    return {
        "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity.items()],
        "ops": [{"key": key, "value": value or 0.0, "remove": value is None} for key, value in ops],
    }


class Quotas:
    """A controller that may not ask the resolver."""

    def __init__(self) -> None:
        self.quotas = ClientQuotas()
        self.changes = QuotaChanges(lambda: self.quotas)

    def alter(self, *entries: dict[str, Any], validate_only: bool = False) -> list[tuple[int, str | None]]:
        reply, records = self.changes.alter({"entries": list(entries), "validate_only": validate_only})
        for record in records:
            assert isinstance(record, r.ClientQuotaSet)
            self.quotas.set(record.entity, record.key, record.value)
        return [(entry["error_code"], entry["error_message"]) for entry in reply["entries"]]

    def refuse(self, entity: dict[str, str | None], *ops: tuple[str, float | None]) -> str | None:
        ((code, message),) = self.alter(row(entity, *ops))
        assert code == ErrorCode.INVALID_REQUEST
        assert list(self.quotas.entities()) == []
        return message


@pytest.fixture
def quotas() -> Quotas:
    return Quotas()


PRECEDENCE: list[dict[str, str | None]] = [
    {"user": "u", "client-id": "c"},
    {"user": "u", "client-id": None},
    {"user": "u"},
    {"user": None, "client-id": "c"},
    {"user": None, "client-id": None},
    {"user": None},
    {"client-id": "c"},
    {"client-id": None},
]


@pytest.mark.parametrize("first", range(len(PRECEDENCE)))
def test_nearest_quota_is_in_force(quotas: Quotas, first: int) -> None:
    for rank, entity in enumerate(PRECEDENCE[first:], first):
        quotas.alter(row(entity, (PRODUCE, 100 + rank)))
    in_force = quotas.quotas.in_force("u", "c", PRODUCE)
    assert in_force is not None
    assert (dict(in_force[0]), in_force[1]) == (PRECEDENCE[first], 100 + first)
    assert quotas.quotas.in_force("u", "c", "consumer_byte_rate") is None


def test_no_quota_is_no_limit(quotas: Quotas) -> None:
    assert quotas.quotas.in_force("u", "c", PRODUCE) is None
    quotas.alter(row({"client-id": "other"}, (PRODUCE, 1)))
    assert quotas.quotas.in_force("u", "c", PRODUCE) is None


def test_quota_is_taken_away_and_the_entity_with_its_last(quotas: Quotas) -> None:
    entity = {"client-id": "c"}
    quotas.alter(row(entity, (PRODUCE, 5), ("request_percentage", 12.5)))
    version = quotas.quotas.version
    quotas.alter(row(entity, (PRODUCE, None)))
    assert quotas.quotas.version > version
    assert [dict(values) for _, values in quotas.quotas.entities()] == [{"request_percentage": 12.5}]
    quotas.alter(row(entity, ("request_percentage", None), (PRODUCE, None)))
    assert list(quotas.quotas.entities()) == []


def test_ip_rates_are_by_address_with_the_default_under_nothing(quotas: Quotas) -> None:
    quotas.alter(
        row({"ip": "10.0.0.1"}, ("connection_creation_rate", 7)),
        row({"ip": None}, ("connection_creation_rate", 3)),
        row({"user": None}, (PRODUCE, 1)),
    )
    assert quotas.quotas.ip_rates() == {"10.0.0.1": 7, "": 3}


def test_validation_changes_nothing(quotas: Quotas) -> None:
    assert quotas.alter(row({"user": "u"}, (PRODUCE, 5)), validate_only=True) == [(0, None)]
    assert list(quotas.quotas.entities()) == []


@pytest.mark.parametrize(
    ("entity", "ops", "words"),
    [
        ({}, [], "Invalid empty client quota entity"),
        ({"group": "g"}, [], "Unhandled client quota entity type: group"),
        ({"user": ""}, [], "Empty user not supported"),
        ({"ip": "10.0.0.1", "user": "u"}, [], "IP entity shouldnot be combined with User or ClientId"),
        ({"ip": "nowhere.example"}, [], "is not a valid IP or resolvable host"),
        ({"ip": "127.0.0.1%\0"}, [], "is not a valid IP or resolvable host"),
        ({"ip": "127.0.0.1%lo"}, [], "is not a valid IP or resolvable host"),
        ({"ip": "fe80::1%a\nb"}, [], "is not a valid IP or resolvable host"),
        ({"ip": "fe80::1%nosuch"}, [], "fe80::1%nosuch is not a valid IP or resolvable host"),
        ({"ip": "10.0.0.1"}, [(PRODUCE, 5.0)], "Invalid configuration key producer_byte_rate"),
        (
            {"user": "u"},
            [("connection_creation_rate", 5.0)],
            "Invalid configuration key connection_creation_rate",
        ),
        ({"user": "u"}, [("no_such_rate", 5.0)], "Invalid configuration key no_such_rate"),
        ({"user": "u"}, [(PRODUCE, 5.5)], "cannot be a fractional value"),
        ({"ip": None}, [("connection_creation_rate", 3e9)], "too large"),
        ({"user": "u"}, [(PRODUCE, 1e-9)], "must be greater than 0"),
        ({"ip": "127.0.0.1"}, [("connection_creation_rate", 5e-324)], "must be greater than 0"),
        ({"user": "u"}, [("request_percentage", -1.0)], "Quota request_percentage must be greater than 0"),
        ({"user": "u"}, [("request_percentage", 0.0)], "Quota request_percentage must be greater than 0"),
        ({"user": "u"}, [("request_percentage", float("nan"))], "must be a finite number"),
        ({"user": "u"}, [("request_percentage", float("inf"))], "must be a finite number"),
        (
            {"user": "u"},
            [(PRODUCE, 5.0), (PRODUCE, 6.0)],
            "Ignoring duplicate entity ClientQuotaEntity(entries={user=u})",
        ),
    ],
)
def test_invalid_client_quota_is_rejected_as_in_kafka(
    quotas: Quotas, entity: dict[str, str | None], ops: list[tuple[str, float]], words: str
) -> None:
    message = quotas.refuse(entity, *ops)
    assert message is not None
    assert words in message


def test_entity_type_given_twice_uses_last_value() -> None:
    wish = row({"user": "u"}, (PRODUCE, 5))
    wish["entity"] = [{"entity_type": "user", "entity_name": name} for name in ("", "v")]
    reply, records = QuotaChanges(ClientQuotas).alter({"entries": [wish], "validate_only": False})
    assert reply["entries"] == [
        {"error_code": 0, "error_message": None, "entity": [{"entity_type": "user", "entity_name": "v"}]}
    ]
    assert records == [r.ClientQuotaSet((("user", "v"),), PRODUCE, 5)]


def test_same_entity_twice_is_refused(quotas: Quotas) -> None:
    answers = quotas.alter(row({"user": "u"}, (PRODUCE, 5)), row({"user": "u"}, (PRODUCE, 6)))
    assert [code for code, _ in answers] == [ErrorCode.NONE, ErrorCode.INVALID_REQUEST]
    assert quotas.quotas.in_force("u", "", PRODUCE) == ((("user", "u"),), 5)


def component(kind: str, match_type: int, match: str | None = None) -> dict[str, Any]:
    return {"entity_type": kind, "match_type": match_type, "match": match}


EXACT, DEFAULT, ANY = range(3)


@pytest.fixture
def many(quotas: Quotas) -> Quotas:
    for entity in ({"user": "u"}, {"user": None}, {"user": "u", "client-id": "c"}, {"client-id": "c"}):
        quotas.alter(row(entity, (PRODUCE, 1)))
    quotas.alter(row({"ip": "10.0.0.1"}, ("connection_creation_rate", 1)))
    return quotas


@pytest.mark.parametrize(
    ("components", "strict", "count"),
    [
        ([], False, 5),
        ([], True, 0),
        ([component("user", EXACT, "u")], False, 2),
        ([component("user", EXACT, "u")], True, 1),
        ([component("user", DEFAULT)], False, 1),
        ([component("user", ANY)], False, 3),
        ([component("user", ANY), component("client-id", EXACT, "c")], True, 1),
        ([component("client-id", ANY)], False, 2),
        ([component("ip", ANY)], False, 1),
        ([component("ip", DEFAULT)], False, 0),
    ],
)
def test_filter(many: Quotas, components: list[dict[str, Any]], strict: bool, count: int) -> None:
    assert sum(each is not None for each in many.quotas.describe(components, strict=strict)) == count


@pytest.mark.parametrize(
    ("components", "code"),
    [
        ([component("", ANY)], ErrorCode.INVALID_REQUEST),
        ([component("user", ANY), component("user", EXACT, "u")], ErrorCode.INVALID_REQUEST),
        ([component("group", ANY)], ErrorCode.UNSUPPORTED_VERSION),
        ([component("user", EXACT)], ErrorCode.INVALID_REQUEST),
        ([component("user", DEFAULT, "u")], ErrorCode.INVALID_REQUEST),
        ([component("user", ANY, "u")], ErrorCode.INVALID_REQUEST),
        ([component("user", 9)], ErrorCode.INVALID_REQUEST),
        ([component("ip", ANY), component("user", ANY)], ErrorCode.INVALID_REQUEST),
    ],
)
def test_senseless_filter_is_refused(many: Quotas, components: list[dict[str, Any]], code: int) -> None:
    with pytest.raises(KafkaError) as caught:
        many.quotas.describe(components, strict=False)
    assert caught.value.code == code


def test_quotas_live_in_the_image_and_its_snapshot() -> None:
    cluster = InMemoryController({})
    cluster.do(
        "alter_client_quotas",
        entries=[row({"ip": None}, ("connection_creation_rate", 9))],
        validate_only=False,
    )
    assert cluster.image.client_quotas.ip_rates() == {"": 9}
    again = ClusterImage.from_snapshot(cluster.image.snapshot())
    assert again.client_quotas.ip_rates() == {"": 9}
