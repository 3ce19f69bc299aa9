"""The renewal of certificates: those in use change only after every Processor has read the new ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kproc.broker.config import Config
from kproc.broker.config.dynamic import DynamicSettings
from kproc.broker.supervisor.certificate_renewal import CertificateRenewal
from tests.support.certificates import Certificates
from tests.support.scale_rig import FakeChildren

Issue = Callable[[str], None]


@pytest.fixture
def issue(tmp_path: Path) -> Issue:
    """Write a keystore for a subject; an empty one writes damage."""
    certificates = Certificates(tmp_path)

    def write(subject: str) -> None:
        content = certificates.authority.issue(f"CN={subject}").pem() if subject else b"damaged"
        (tmp_path / "server.pem").write_bytes(content)

    return write


@pytest.fixture
def children(tmp_path: Path) -> FakeChildren:
    keystore = {"ssl.keystore.location": str(tmp_path / "server.pem"), "ssl.keystore.type": "PEM"}
    made = FakeChildren(Config.build({"listeners": "SSL://127.0.0.1:0", **keystore}))
    made.settings = DynamicSettings()  # type: ignore[attr-defined]
    return made


def renewal_of(children: FakeChildren) -> CertificateRenewal:
    return CertificateRenewal(children.plan.config, children, None, children.on_change)  # type: ignore[arg-type]


def subjects(renewal: CertificateRenewal) -> list[str]:
    return [row["subject"] for row in renewal.certificates.values()]


def test_certificates_change_when_all_processors_have_read_them(children: FakeChildren, issue: Issue) -> None:
    renewal = renewal_of(children)
    assert renewal.certificates == {}
    issue("first")
    renewal.renew()
    (_, what, _, on_first), (_, _, _, on_second) = children.asked
    assert what == "renew_certificates"
    on_first({"problems": []})
    assert (subjects(renewal), children.changes) == ([], 0)
    on_second({"problems": []})
    assert (subjects(renewal), children.changes) == (["CN=first"], 1)


def test_processor_that_rejects_a_key_keeps_the_status(
    children: FakeChildren, issue: Issue, caplog: pytest.LogCaptureFixture
) -> None:
    renewal = renewal_of(children)
    issue("first")
    renewal.recheck()
    issue("second")
    renewal.renew()
    for number, (_, _, _, on_reply) in enumerate(children.asked):
        on_reply({"problems": ["too many open files"] * number})
    assert subjects(renewal) == ["CN=first"]
    assert "reload: too many open files; the certificates in use stay" in caplog.text
    assert (renewal.problem, children.changes) == ("too many open files", 2), "the status shows it"


def test_damaged_key_reaches_no_processor(children: FakeChildren, issue: Issue) -> None:
    renewal = renewal_of(children)
    issue("first")
    renewal.recheck()
    issue("")
    renewal.renew()
    renewal.recheck()
    assert children.asked == []
    assert renewal.problem is not None
    assert renewal.problem.startswith("listener SSL: ")
    assert (subjects(renewal), children.changes) == (["CN=first"], 1)
    issue("second")
    renewal.renew()
    assert renewal.problem is None
