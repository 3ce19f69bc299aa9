"""Delegation tokens as the controller decides on them: Kafka's DelegationTokenControlManager, its checks in order."""

from __future__ import annotations

import hashlib
import hmac
from typing import Any

import pytest

from kproc.broker.cluster import records as r
from kproc.broker.cluster.delegation_tokens import LOG_ONLY, REMOVE_EXPIRED
from kproc.broker.cluster.image import ClusterImage
from kproc.broker.cluster.image_records import snapshot_records
from kproc.broker.config import Config
from kproc.broker.config.values import ConfigError
from kproc.common.errors import ErrorCode
from tests.support.in_memory_controller import InMemoryController

KEY = "the-key-of-the-tokens"
ALICE, BOB, CARL = ("User", "alice"), ("User", "bob"), ("User", "carl")
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


@pytest.fixture
def cluster() -> InMemoryController:
    return InMemoryController({"delegation.token.secret.key": KEY})


def create(cluster: InMemoryController, **more: Any) -> dict[str, Any]:
    body = {"requester": ALICE, "owner": ALICE, "renewers": [BOB], "max_lifetime": -1, **more}
    return cluster.do("create_delegation_token", **body)


def change(
    cluster: InMemoryController, op: str, token: dict[str, Any], period: int, requester: r.Name = ALICE
) -> tuple[int, int]:
    """The error code, and the time of expiry from now."""
    body = {"requester": requester, "hmac": token["hmac"], "period": period}
    reply = cluster.do(f"{op}_delegation_token", **body)
    now_ms = cluster.clock.wall_ms()
    return reply["error_code"], reply["expiry_timestamp"] - (0 if reply["error_code"] else now_ms)


def test_the_longest_lives_that_can_be_set_fit_into_answers() -> None:
    longest = 2**63 - 1
    cluster = InMemoryController(
        {
            "delegation.token.secret.key": KEY,
            "delegation.token.max.lifetime.ms": longest,
            "delegation.token.expiry.time.ms": longest,
        }
    )
    token = create(cluster)
    assert (token["error_code"], token["expiry_timestamp"], token["max_timestamp"]) == (0, longest, longest)
    body = {"requester": ALICE, "hmac": token["hmac"], "period": longest}
    assert cluster.do("renew_delegation_token", **body) == {
        "error_code": 0,
        "expiry_timestamp": longest,
        LOG_ONLY: token["token_id"],
    }


def test_new_token_has_kafkas_times_and_secret(cluster: InMemoryController) -> None:
    token, now_ms = create(cluster), cluster.clock.wall_ms()
    assert token["error_code"] == 0
    assert (token["issue_timestamp"], token["expiry_timestamp"], token["max_timestamp"]) == (
        now_ms,
        now_ms + DAY_MS,
        now_ms + 7 * DAY_MS,
    )
    assert token["hmac"] == hmac.new(KEY.encode(), token["token_id"].encode(), hashlib.sha512).digest()
    assert len(token["token_id"]) == 22


@pytest.mark.parametrize(("wanted_ms", "life_ms", "first_ms"), [
    (-1, 7 * DAY_MS, DAY_MS), (0, 7 * DAY_MS, DAY_MS), (HOUR_MS, HOUR_MS, HOUR_MS),
    (2 * DAY_MS, 2 * DAY_MS, DAY_MS), (2**63 - 1, 7 * DAY_MS, DAY_MS),
])  # fmt: skip
def test_life_is_as_long_as_wished_and_no_longer_than_set(
    cluster: InMemoryController, wanted_ms: int, life_ms: int, first_ms: int
) -> None:
    token = create(cluster, max_lifetime=wanted_ms)
    assert token["max_timestamp"] - token["issue_timestamp"] == life_ms
    assert token["expiry_timestamp"] - token["issue_timestamp"] == first_ms


def test_metadata_hold_no_hmac_or_key_of_a_token(cluster: InMemoryController) -> None:
    token = create(cluster)
    stored = b"".join(cluster.deltas) + cluster.image.snapshot()
    assert token["token_id"].encode() in stored
    for secret in (token["hmac"], KEY.encode()):
        assert secret not in stored


def test_tokens_outlive_the_controller(cluster: InMemoryController) -> None:
    token = create(cluster, owner=CARL)
    again = InMemoryController({"delegation.token.secret.key": KEY})
    again.image.apply_records(list(snapshot_records(cluster.image)), 100)
    assert (
        ClusterImage.from_snapshot(again.image.snapshot()).delegation_tokens
        == cluster.image.delegation_tokens
    )
    assert change(again, "renew", token, -1, CARL) == (0, DAY_MS)


def test_without_a_key_there_are_no_tokens() -> None:
    for settings in ({}, {"delegation.token.secret.key": ""}):
        cluster = InMemoryController(settings)
        disabled = ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
        assert create(cluster)["error_code"] == disabled
        for op in ("renew", "expire"):
            assert change(cluster, op, {"hmac": b"x"}, -1) == (disabled, 0)
        assert cluster.image.delegation_tokens == {}


def test_renewer_that_is_no_user_is_refused(cluster: InMemoryController) -> None:
    assert create(cluster, renewers=[BOB, ("Group", "g")])["error_code"] == ErrorCode.INVALID_PRINCIPAL_TYPE
    assert cluster.image.delegation_tokens == {}


@pytest.mark.parametrize("who", [ALICE, BOB])
def test_owner_and_renewers_renew_until_the_end_of_its_life(cluster: InMemoryController, who: r.Name) -> None:
    token = create(cluster, max_lifetime=DAY_MS + HOUR_MS)
    cluster.clock.advance_ms(HOUR_MS)
    assert change(cluster, "renew", token, 2 * HOUR_MS, who) == (0, 2 * HOUR_MS)
    assert change(cluster, "renew", token, -1, who) == (0, DAY_MS)
    cluster.clock.advance_ms(HOUR_MS)
    assert change(cluster, "renew", token, 2**63 - 1, who) == (0, DAY_MS - HOUR_MS)


@pytest.mark.parametrize("op", ["renew", "expire"])
def test_only_owner_or_renewer_changes_a_token(cluster: InMemoryController, op: str) -> None:
    token = create(cluster, requester=CARL)
    assert change(cluster, op, token, -1, CARL) == (ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH, 0)
    assert change(cluster, op, {"hmac": b"nobody's"}, -1) == (ErrorCode.DELEGATION_TOKEN_NOT_FOUND, 0)
    assert change(cluster, op, {"hmac": b""}, -1) == (ErrorCode.DELEGATION_TOKEN_NOT_FOUND, 0)


def test_expired_token_cannot_be_renewed(cluster: InMemoryController) -> None:
    token = create(cluster)
    cluster.clock.advance_ms(DAY_MS)
    assert change(cluster, "renew", token, -1)[0] == 0, "the last millisecond"
    cluster.clock.advance_ms(DAY_MS + 1)
    expired = (ErrorCode.DELEGATION_TOKEN_EXPIRED, 0)
    assert change(cluster, "renew", token, -1) == expired
    assert change(cluster, "renew", token, -1, CARL) == expired, "as Kafka, before it asks who"
    assert change(cluster, "expire", token, 5) == expired
    assert change(cluster, "expire", token, 5, CARL)[0] == ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
    assert change(cluster, "expire", token, -1) == (0, 0), "it can be removed"


def test_expire_request_sets_the_expiry_of_a_token(cluster: InMemoryController) -> None:
    token = create(cluster)
    assert change(cluster, "expire", token, HOUR_MS, BOB) == (0, HOUR_MS)
    assert change(cluster, "expire", token, 2**63 - 1) == (0, 7 * DAY_MS)
    assert change(cluster, "expire", token, -1) == (0, 0)
    assert cluster.image.delegation_tokens == {}
    assert change(cluster, "expire", token, -1)[0] == ErrorCode.DELEGATION_TOKEN_NOT_FOUND


def test_only_expired_tokens_are_removed(cluster: InMemoryController) -> None:
    short = create(cluster, max_lifetime=HOUR_MS)
    long = create(cluster)
    cluster.clock.advance_ms(HOUR_MS)
    assert cluster.do(REMOVE_EXPIRED) == {"removed": []}
    cluster.clock.advance_ms(1)
    assert cluster.do(REMOVE_EXPIRED) == {"removed": [short["token_id"]]}
    assert list(cluster.image.delegation_tokens) == [long["token_id"]]


def test_secrets_of_tokens_that_are_gone_are_forgotten(cluster: InMemoryController) -> None:
    tokens = cluster.state._operations["renew_delegation_token"].__self__  # type: ignore[attr-defined]
    gone, kept = create(cluster), create(cluster)
    assert change(cluster, "renew", gone, -1)[0] == 0
    change(cluster, "expire", gone, -1)
    assert change(cluster, "renew", kept, -1)[0] == 0
    assert list(tokens._ids_by_hmac.values()) == [kept["token_id"]]


@pytest.mark.parametrize("key", ["#", "change#it", "#" * 15])
def test_short_token_key_is_rejected_with_way_out(key: str) -> None:
    with pytest.raises(ConfigError) as rejected:
        Config.build({"delegation.token.secret.key": key})
    text = str(rejected.value)
    assert f"must have at least 16 characters, this one has {len(key)}" in text
    assert "openssl rand -hex 32" in text
    assert "#" not in text


def test_token_key_of_16_characters_is_accepted() -> None:
    assert Config.build({"delegation.token.secret.key": "0123456789abcdef"}).delegation_token_secret_key is not None


def test_tokens_are_bounded_in_number_and_bytes(
    cluster: InMemoryController, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """CreateDelegationToken has no field for a message, so the log names the limits."""
    monkeypatch.setattr("kproc.broker.cluster.delegation_tokens.TOKENS_MAX", 2)
    renewers = [["User", "n" * 30_000]]
    assert create(cluster, renewers=renewers)["error_code"] == ErrorCode.POLICY_VIOLATION
    codes = [create(cluster)["error_code"] for _ in range(3)]
    assert codes == [ErrorCode.NONE, ErrorCode.NONE, ErrorCode.POLICY_VIOLATION]
    first, second = (record.message for record in caplog.records)
    assert "0 tokens (limit 2)" in first
    assert "30000 characters (limit 16384)" in first
    assert "2 tokens (limit 2)" in second
    for _ in range(20):
        create(cluster)
    assert len(caplog.records) == 10, "a client may not fill the log"
