"""Starts of brokers with TLS listeners: what cannot be served is said in one line, before any port is open."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import subprocess
from pathlib import Path

import pytest

from kproc.broker.config import Config, ConfigError
from kproc.broker.config.dynamic import DynamicSettings
from kproc.broker.security.tls import make_context, settings_of
from kproc.broker.supervisor.tls_check import check_before_start
from tests.support.broker import ServedBroker, run_kproc
from tests.support.certificates import Certificates
from tests.support.raw import address_of
from tests.support.second_user import as_nobody
from tests.support.wait import wait_until

pytestmark = [pytest.mark.faults, pytest.mark.usefixtures("fork_server")]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


def serve(
    data: Path, *settings: str, kind: str = "process", protocol: str = "SSL"
) -> subprocess.CompletedProcess[str]:
    """A start that fails."""
    given = (f"listeners={protocol}://127.0.0.1:0", *settings)
    sets = [part for each in given for part in ("--set", each)]
    return run_kproc("serve", "--data", str(data), "--transport", kind, *sets)


def unusable(certificates: Certificates, tmp_path: Path) -> dict[str, tuple[list[str], str]]:
    """Settings of keys that cannot be used, and what is said of each."""
    issued = certificates.issue_server()
    locked = certificates.write("locked.pem", issued.pem("secret"))
    password = tmp_path / "password"
    password.write_text("another")
    locked_by = f"ssl.key.password=${{dir:{tmp_path}:password}}"
    return {
        "none": (
            [],
            "TLS needs a key and a certificate: set ssl.keystore.location or listener.name.ssl.ssl.keystore",
        ),
        "missing": (
            ["ssl.keystore.location=/no/such.pem"],
            "ssl.keystore.location=/no/such.pem: No such file",
        ),
        "encrypted": ([f"ssl.keystore.location={locked}"], "is encrypted, and ssl.key.password is not set"),
        "wrong password": ([f"ssl.keystore.location={locked}", locked_by], "ssl.key.password is wrong"),
    }


@pytest.mark.parametrize("which", ["none", "missing", "encrypted", "wrong password"])
def test_unusable_tls_key_fails_the_start_before_files_exist(
    certificates: Certificates, tmp_path: Path, which: str
) -> None:
    settings, words = unusable(certificates, tmp_path)[which]
    done = serve(tmp_path / "data", *settings)
    assert (done.returncode, done.stdout) == (2, "")
    said = [line for line in done.stderr.splitlines() if "warning" not in line]
    assert len(said) == 1
    assert said[0].startswith("kproc: listener SSL: ")
    assert words in said[0]
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("kind", ["process", "thread"])
def test_stored_mismatched_tls_key_fails_the_next_start(
    certificates: Certificates, tmp_path: Path, kind: str
) -> None:
    """There the metadata may hold other settings than the configuration: the controller is asked first."""
    settings = {"listeners": "SSL://127.0.0.1:0", "ssl.keystore.location": certificates.server}
    with ServedBroker(tmp_path, settings=settings) as served:
        assert served.stop(signal.SIGTERM) == 0
    other = certificates.issue_server()
    wrong = certificates.write("wrong.pem", other.key_pem() + certificates.issue_server().chain_pem)
    done = serve(tmp_path, f"ssl.keystore.location={wrong}", kind=kind)
    assert done.returncode == 2
    said = [line for line in (done.stdout + done.stderr).splitlines() if "does not fit" in line]
    assert len(said) == 1
    assert (
        f"listener SSL: ssl.keystore.location={wrong}: the private key does not fit the certificate"
        in said[0]
    )
    assert "the stop was not clean" not in done.stderr
    # No log was opened yet: what the last stop had said of them still holds.
    assert (tmp_path / ".kafka_cleanshutdown").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_unreadable_tls_key_fails_the_start(certificates: Certificates) -> None:
    certificates.server.chmod(0o600)
    config = Config.build(
        {
            "listeners": "SSL://127.0.0.1:0",
            "ssl.keystore.location": str(certificates.server),
            "log.dirs": "/no/such",
        }
    )

    def start() -> str:
        with pytest.raises(ConfigError) as refused:
            check_before_start(config)
        return str(refused.value)

    make_context(
        "SSL", settings_of(config, DynamicSettings(), "SSL"), ticket_secret=b""
    )  # Loads what it takes.
    assert f"ssl.keystore.location={certificates.server}: Permission denied" in as_nobody(start)


def test_sasl_listener_without_jaas_config_fails_the_start(certificates: Certificates, tmp_path: Path) -> None:
    settings = [f"ssl.keystore.location={certificates.server}", "sasl.enabled.mechanisms=PLAIN"]
    done = serve(tmp_path / "data", *settings, protocol="SASL_SSL")
    assert done.returncode == 2
    assert done.stderr.startswith("kproc: listener.name.sasl_ssl.plain.sasl.jaas.config: PLAIN has no users")
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "data").exists()


def test_expired_certificate_and_readable_key_only_warn(
    certificates: Certificates, tmp_path: Path
) -> None:
    path = certificates.write("old.pem", certificates.expired.read_bytes())
    path.chmod(0o644)
    settings = {"listeners": "SSL://127.0.0.1:0", "ssl.keystore.location": path}
    with ServedBroker(tmp_path, settings=settings) as served:
        log = served.log()
        line = "the certificate chain of listener SSL (CN=localhost) ended at"
        log = wait_until(lambda: line in served.log() and served.log(), what="the controller logs the end")
        assert f"chmod 600 {path}" in log
        assert served.stop(signal.SIGTERM) == 0


def test_tls_key_is_only_in_memory_of_processors_that_used_it(
    certificates: Certificates, tmp_path: Path
) -> None:
    issued = certificates.issue_server()
    path = certificates.write("searched.pem", issued.pem())
    number = issued.key.private_numbers().private_value.to_bytes(32, "big")
    forms = (number, number[::-1], b"".join(issued.key_pem().splitlines()[1:-1])[:64])
    settings = {"listeners": "SSL://127.0.0.1:0", "ssl.keystore.location": path}
    with ServedBroker(tmp_path, settings=settings) as served:
        assert who_has(forms, served) == set()
        context = ssl.create_default_context(cafile=str(certificates.ca))
        with context.wrap_socket(socket.create_connection(address_of(served.bootstrap)), server_hostname="localhost"):
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
