"""Kafka's delegation token tool, and a Java client that logs in with what it made."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.broker import BrokerUnderTest
from tests.support.java_tools import CONSOLE_PRODUCER, ToolResult, run_tool
from tests.support.kafka_jars import missing_reason
from tests.support.raw import RawClient
from tests.support.secured import SecuredBroker, log_in, secured

pytestmark = [
    pytest.mark.java,
    pytest.mark.usefixtures("java_tools"),
    pytest.mark.transports("process"),
    pytest.mark.skipif(missing_reason() is not None, reason=missing_reason() or ""),
]

KEY = "the-key-of-the-tokens"
TOOL = "org.apache.kafka.tools.DelegationTokenCommand"


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    settings = {"delegation.token.secret.key": KEY, "kproc.request.log": "all"}
    with secured(tmp_path_factory.mktemp("tokens"), settings=settings) as broker:
        yield broker


def properties(directory: Path, settings: dict[str, str]) -> str:
    path = directory / f"{len(list(directory.iterdir()))}.properties"
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return str(path)


def tool(bootstrap: str, config: str, *arguments: str, check: bool = True) -> ToolResult:
    given = ("--bootstrap-server", bootstrap, "--command-config", config)
    return run_tool(TOOL, *given, *arguments, check=check)


def test_delegation_tokens_tool_life_cycle(secure: SecuredBroker, tmp_path: Path) -> None:
    alice = properties(tmp_path, secure.java("SCRAM-SHA-512"))
    made = tool(
        secure.bootstrap, alice, "--create", "--max-life-time-period", "-1", "--renewer-principal", "User:bob"
    ).stdout
    found = re.search(r"^([\w-]{22})\s+(\S+)\s+User:alice\s+User:alice\s+\[User:bob\]", made, re.MULTILINE)
    assert found is not None, made
    token_id, secret = found.groups()
    assert token_id in tool(secure.bootstrap, alice, "--describe", "--owner-principal", "User:alice").stdout
    bob = properties(tmp_path, secure.java("PLAIN", "bob"))
    renewed = tool(secure.bootstrap, bob, "--renew", "--renew-time-period", "-1", "--hmac", secret).stdout
    assert "Completed renew operation. New expiry date" in renewed

    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
        with_token = properties(tmp_path, token_settings(mechanism, token_id, secret))
        run_tool(
            CONSOLE_PRODUCER, "--bootstrap-server", secure.bootstrap, "--topic", "by-token",
            "--command-config", with_token, stdin=f"by {mechanism}\n",
        )  # fmt: skip
    with RawClient(secure.bootstrap) as client:
        log_in(client)
        assert client.end_offset("by-token") == 2

    again = tool(secure.bootstrap, with_token, "--create", "--max-life-time-period", "-1", check=False)
    assert "Delegation Token requests are not allowed" in again.stdout + again.stderr
    assert nobody_shows(secure, KEY, secret, base64.b64decode(secret).hex())
    expire = ("--expire", "--expiry-time-period", "-1", "--hmac", secret)
    assert "Completed expire operation" in tool(secure.bootstrap, alice, *expire).stdout
    assert (
        token_id not in tool(secure.bootstrap, alice, "--describe", "--owner-principal", "User:alice").stdout
    )
    refused = tool(secure.bootstrap, with_token, "--describe", check=False)
    assert "Authentication failed" in refused.stdout + refused.stderr


def token_settings(mechanism: str, token_id: str, secret: str) -> dict[str, str]:
    login = "org.apache.kafka.common.security.scram.ScramLoginModule"
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": f'{login} required username="{token_id}" password="{secret}" tokenauth="true";',
    }


def nobody_shows(broker: SecuredBroker, *secrets: str) -> bool:
    """Return True if no file of the broker has a secret, in text or as bytes: neither logs nor what is stored."""
    wanted = [secret.encode() for secret in secrets] + [bytes.fromhex(secrets[-1])]
    files = [path for path in Path(broker.data).rglob("*") if path.is_file()]
    assert any("requests-handler" in path.name for path in files), "the request log is on"
    shown = [path.name for path in files for secret in wanted if secret in path.read_bytes()]
    return not shown and not any(secret in broker.log() for secret in secrets)


def test_delegation_tokens_need_an_authenticated_listener(broker: BrokerUnderTest, tmp_path: Path) -> None:
    plain = properties(tmp_path, {"security.protocol": "PLAINTEXT"})
    result = tool(broker.bootstrap, plain, "--create", "--max-life-time-period", "-1", check=False)
    assert "Delegation Token requests are not allowed" in result.stdout + result.stderr
