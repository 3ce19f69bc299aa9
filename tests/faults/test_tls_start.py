"""Starts of brokers with TLS listeners: what cannot be served is said in one line, before any port is open."""

from __future__ import annotations

import signal
import socket
import ssl
from pathlib import Path

import pytest

from tests.support.broker import ServedBroker, run_kproc
from tests.support.certificates import Certificates

pytestmark = [pytest.mark.faults]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.mark.parametrize("kind", ["process", "thread"])
def test_a_key_that_cannot_be_used_ends_the_start_with_one_line(
    certificates: Certificates, tmp_path: Path, kind: str
) -> None:
    other = certificates.issue_server()
    wrong = certificates.write("wrong.pem", other.key_pem() + certificates.issue_server().chain_pem)
    settings = [f"ssl.keystore.location={wrong}", "listeners=SSL://127.0.0.1:0"]
    done = run_kproc(
        *("serve", "--data", str(tmp_path), "--transport", kind),
        *(part for each in settings for part in ("--set", each)),
    )
    assert done.returncode == 1
    said = [line for line in (done.stdout + done.stderr).splitlines() if "does not fit" in line]
    assert len(said) == 1
    assert (
        f"listener SSL: ssl.keystore.location={wrong}: the private key does not fit the certificate"
        in said[0]
    )


@pytest.mark.parametrize("kind", ["connection-threads", "asyncio"])
def test_transports_for_comparison_refuse_tls(certificates: Certificates, tmp_path: Path, kind: str) -> None:
    done = run_kproc(
        *("serve", "--data", str(tmp_path), "--transport", kind),
        *("--set", "listeners=SSL://127.0.0.1:0", "--set", f"ssl.keystore.location={certificates.server}"),
    )
    assert done.returncode == 2
    assert f"kproc.transport={kind} does not speak TLS" in done.stderr


def test_an_expired_certificate_and_a_key_for_all_to_read_are_warned_of_and_serve(
    certificates: Certificates, tmp_path: Path
) -> None:
    path = certificates.write("old.pem", certificates.expired.read_bytes())
    path.chmod(0o644)
    settings = {"listeners": "SSL://127.0.0.1:0", "ssl.keystore.location": path}
    with ServedBroker(tmp_path, settings=settings) as served:
        log = served.log()
        assert f"listener SSL: ssl.keystore.location={path}: the certificate of CN=localhost ended at" in log
        assert f"chmod 600 {path}" in log
        assert served.stop(signal.SIGTERM) == 0


def test_only_processors_that_have_had_a_tls_connection_have_the_key_in_memory(
    certificates: Certificates, tmp_path: Path
) -> None:
    issued = certificates.issue_server()
    path = certificates.write("searched.pem", issued.pem())
    number = issued.key.private_numbers().private_value.to_bytes(32, "big")
    forms = (number, number[::-1], b"".join(issued.key_pem().splitlines()[1:-1])[:64])
    settings = {"listeners": "SSL://127.0.0.1:0", "ssl.keystore.location": path}
    with ServedBroker(tmp_path, settings=settings) as served:
        assert who_has(forms, served) == set()
        host, _, port = served.bootstrap.rpartition(":")
        context = ssl.create_default_context(cafile=str(certificates.ca))
        with context.wrap_socket(socket.create_connection((host, int(port))), server_hostname="localhost"):
            assert who_has(forms, served) == {"processor"}


def who_has(forms: tuple[bytes, ...], served: ServedBroker) -> set[str]:
    """The roles in whose memory one of these bytes is found; the supervisor is one of them."""
    roles = {int(row["pid"]): str(row["role"]) for row in served.processes} | {served.pid: "supervisor"}
    return {role for pid, role in roles.items() if any(form in memory_of(pid) for form in forms)}


def memory_of(pid: int) -> bytes:
    """What a process may write to and shares with nobody: its heap, stacks, and what it has mapped."""
    found = []
    maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for line in maps:
            where, mode = line.split()[:2]
            if mode.startswith("rw") and mode.endswith("p"):
                start, end = (int(part, 16) for part in where.split("-"))
                memory.seek(start)
                found.append(memory.read(end - start))
    return b"".join(found)
