"""kill -9 of the controller with delegation tokens and quotas: answered changes survive, and the clients continue."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.proc import is_alive
from tests.support.quotas import alter_quotas
from tests.support.raw import Closed, RawClient, RawConnection, create_topics_fields
from tests.support.secured import SecuredBroker, log_in, secured
from tests.support.token_logins import log_in_by
from tests.support.wait import stretched, wait_until

pytestmark = [pytest.mark.faults, pytest.mark.own_broker, pytest.mark.transports("process")]

SETTINGS = {
    "delegation.token.secret.key": "the key of the tokens",
    "delegation.token.expiry.check.interval.ms": 500,
    "num.io.threads": 2,
    "controller.quota.window.num": 2,
}
EXCEEDED = ErrorCode.THROTTLING_QUOTA_EXCEEDED


def create_token(connection: RawConnection, max_ms: int = -1) -> dict[str, Any]:
    token = connection.call(ApiKey.CREATE_DELEGATION_TOKEN, 3, {"renewers": [], "max_lifetime": max_ms})
    assert token["error_code"] == 0
    return token


def token_ids(broker: SecuredBroker) -> set[str]:
    with broker.logged_in() as connection:
        answer = connection.call(ApiKey.DESCRIBE_DELEGATION_TOKEN, 3, {"owners": None})
        return {token["token_id"] for token in answer["tokens"]}


def set_mutation_rate(connection: RawConnection, user: str, rate: float) -> None:
    assert alter_quotas(connection, {"user": user}, controller_mutation_rate=rate) == 0


def create_topic(broker: SecuredBroker, user: str, name: str, partitions: int) -> int:
    """The error code; a controller that is being restarted answers a retriable one."""
    with broker.logged_in(user) as connection:
        fields = create_topics_fields(name, partitions=partitions)
        return int(connection.call(ApiKey.CREATE_TOPICS, 7, fields)["topics"][0]["error_code"])


def kill_controller(broker: SecuredBroker) -> None:
    (pid,) = (int(row["pid"]) for row in broker.processes if row["role"] == "controller")
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not is_alive(pid), what="the controller is dead")


def test_tokens_and_quotas_survive_controller_kill(tmp_path: Path) -> None:
    with secured(tmp_path / "data", settings=SETTINGS) as broker:
        with broker.logged_in() as connection:
            token = create_token(connection)
            set_mutation_rate(connection, "bob", 0.001)
        assert create_topic(broker, "bob", "first", 1) == 0
        assert create_topic(broker, "bob", "second", 1) == EXCEEDED
        kill_controller(broker)
        # A new controller's buckets are full: bob may make one more topic, and then no further one.
        wait_until(lambda: create_topic(broker, "bob", "second", 1) == 0, what="a controller that serves")
        assert create_topic(broker, "bob", "third", 1) == EXCEEDED
        assert create_topic(broker, "alice", "fourth", 50) == 0
        assert token_ids(broker) == {token["token_id"]}
        with RawConnection(broker.bootstrap) as connection:
            assert log_in_by(connection, token)["error_code"] == 0


def test_sasl_session_ends_when_its_token_expires(tmp_path: Path) -> None:
    life_ms = stretched(2_000)
    with secured(tmp_path / "data", settings=SETTINGS) as broker:
        with broker.logged_in() as connection:
            lasting, short = create_token(connection), create_token(connection, life_ms)
        with RawClient(broker.bootstrap) as by_token, RawClient(broker.bootstrap) as other:
            lifetime_ms = log_in_by(by_token, short)["session_lifetime"]
            assert 0 < lifetime_ms <= life_ms
            log_in(other)
            assert by_token.describe_topic("none")["error_code"] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

            def is_over() -> bool:
                try:
                    by_token.describe_topic("none")
                except Closed:
                    return True
                return False

            wait_until(is_over, what="the end of the session")
            assert other.describe_topic("none")["error_code"] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        wait_until(lambda: token_ids(broker) == {lasting["token_id"]}, what="the token is removed")
        with RawConnection(broker.bootstrap) as connection:
            assert log_in_by(connection, short)["error_code"] == ErrorCode.SASL_AUTHENTICATION_FAILED
