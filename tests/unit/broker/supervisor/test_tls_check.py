"""The check of TLS listeners: errors, warnings and the ends of certificates come through a pipe from a child."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest

from kproc.broker.config import Config
from kproc.broker.config.dynamic import DynamicSettings
from kproc.broker.supervisor.tls_check import CheckedListeners, check_listeners
from tests.support.certificates import Certificates


def checked(keystore: Path, *, in_child: bool = True) -> CheckedListeners:
    """The check of a listener with this key."""
    config = Config.build({"listeners": "SSL://127.0.0.1:0", "ssl.keystore.location": str(keystore)})
    return check_listeners(config, DynamicSettings(), config.listeners, in_child=in_child)


@pytest.mark.parametrize("in_child", [True, False])
def test_check_returns_subject_and_end_of_certificate(tmp_path: Path, in_child: bool) -> None:
    certificates = Certificates(tmp_path)
    issued = certificates.issue_server()
    path = certificates.write("server.pem", issued.pem())
    ends = min(issued.certificate.not_valid_after_utc, issued.authority.not_valid_after_utc)
    found = {"subject": "CN=localhost", "expires_ms": int(ends.timestamp() * 1000)}
    assert checked(path, in_child=in_child) == CheckedListeners(None, {"SSL": found})


def test_issuer_that_ends_earlier_decides(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    issuer = certificates.authority.issue("CN=issuer", days=7)
    issued = certificates.authority.issue("CN=a\nb", days=90)
    path = certificates.write("server.pem", issued.pem() + issuer.chain_pem)
    found = checked(path)
    assert found.problem is None
    left = datetime.datetime.fromtimestamp(found.certificates["SSL"]["expires_ms"] / 1000, datetime.UTC)
    assert (left - datetime.datetime.now(datetime.UTC)).days in (6, 7)
    assert found.certificates["SSL"]["subject"] == "CN=a\\nb"


def test_missing_key_is_a_problem_without_a_certificate(tmp_path: Path) -> None:
    found = checked(tmp_path / "missing.pem")
    assert found.problem is not None
    assert found.problem.startswith("listener SSL: ssl.keystore.location=")
    assert found.certificates == {}
