"""A start that fails prints its reason in one line: exit code 2 for a wrong command line, 1 for anything else."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.broker import ServedBroker, run_kproc
from tests.support.command_line import run_here
from tests.support.proc import shared_memory_names, temporary_names

pytestmark = [pytest.mark.faults, pytest.mark.own_broker, pytest.mark.usefixtures("fork_server")]

USAGE, REFUSED = 2, 1


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield int(server.getsockname()[1])


def serve(*arguments: str, data: Path, listeners: str = "PLAINTEXT://127.0.0.1:0") -> tuple[int, str]:
    done = run_kproc("serve", "--data", str(data), "--listeners", listeners, *arguments)
    return done.returncode, done.stderr


def serve_here(
    *arguments: str, data: Path, listeners: str = "PLAINTEXT://127.0.0.1:0"
) -> tuple[int, str]:
    """Run `kproc serve` in this process: it refuses these settings before anything starts."""
    done = run_here("serve", "--data", str(data), "--listeners", listeners, *arguments)
    return done.returncode, done.stderr


def assert_one_clear_line(stderr: str, *words: str) -> None:
    lines = [line for line in stderr.splitlines() if line.strip()]
    assert len(lines) == 1, stderr
    assert "Traceback" not in stderr
    for word in words:
        assert word in lines[0], lines[0]


@pytest.mark.usefixtures("real_start")
def test_port_in_use(tmp_path: Path, taken_port: int) -> None:
    code, stderr = serve(data=tmp_path / "d", listeners=f"PLAINTEXT://127.0.0.1:{taken_port}")
    assert code == REFUSED
    assert_one_clear_line(stderr, str(taken_port), "in use")


@pytest.mark.parametrize("kind", ["process", "thread"])
def test_failed_start_keeps_the_clean_shutdown_marker(
    tmp_path: Path, taken_port: int, kind: str
) -> None:
    """It has changed no log: the next start need not recover what it finds."""
    marker = tmp_path / ".kafka_cleanshutdown"
    with ServedBroker(tmp_path):
        pass
    assert marker.exists()
    code, stderr = serve("--transport", kind, data=tmp_path, listeners=f"PLAINTEXT://127.0.0.1:{taken_port}")
    assert code == REFUSED
    assert_one_clear_line(stderr, "in use")
    assert marker.exists()
    with ServedBroker(tmp_path):
        assert not marker.exists()


def test_second_broker_on_one_data_directory(tmp_path: Path) -> None:
    with ServedBroker(tmp_path / "d") as first:
        code, stderr = serve(data=tmp_path / "d")
        assert code == REFUSED
        assert_one_clear_line(stderr, str(tmp_path / "d"), "use")
        assert first.is_running()
    with ServedBroker(tmp_path / "d"):
        pass  # The lock went with its holder.


@pytest.mark.parametrize("kind", ["process", "thread"])
def test_damaged_metadata_log(tmp_path: Path, kind: str) -> None:
    """The controller's process finds it, and the supervisor says it in one line."""
    with ServedBroker(tmp_path):
        pass
    (path,) = (tmp_path / "__cluster_metadata-0").glob("*.log")
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)
    code, stderr = serve("--transport", kind, data=tmp_path)
    assert code == REFUSED
    assert_one_clear_line(stderr, str(path), "damaged or truncated at byte 0", "kproc.start.without.metadata")
    assert path.read_bytes() == content


def test_metadata_of_another_cluster(tmp_path: Path) -> None:
    with ServedBroker(tmp_path):
        pass
    path = tmp_path / "meta.properties"
    path.write_text(path.read_text().replace("cluster.id=", "cluster.id=x"))
    code, stderr = serve(data=tmp_path)
    assert code == REFUSED
    assert_one_clear_line(stderr, "the metadata log is of cluster")


@pytest.mark.parametrize("where", ["/proc/kproc-data", "/dev/null/data"])
def test_unwritable_data_directory(where: str) -> None:
    code, stderr = serve(data=Path(where))
    assert code == REFUSED
    assert_one_clear_line(stderr, where)


def test_data_directory_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    code, stderr = serve(data=tmp_path / "file")
    assert code == REFUSED
    assert_one_clear_line(stderr, str(tmp_path / "file"))


@pytest.mark.parametrize(
    "listeners",
    [
        "nonsense",
        "PLAINTEXT://127.0.0.1",
        "PLAINTEXT://127.0.0.1:notaport",
        "PLAINTEXT://127.0.0.1:99999",
        "WHAT://:1",
        "",
    ],
)
def test_bad_listener(tmp_path: Path, listeners: str) -> None:
    code, stderr = serve_here(data=tmp_path / "d", listeners=listeners)
    assert code == USAGE
    assert_one_clear_line(stderr, "listeners")


def test_listener_on_a_host_that_is_no_name(tmp_path: Path) -> None:
    code, stderr = serve(data=tmp_path / "d", listeners="PLAINTEXT://a..b:0")
    assert code == REFUSED
    assert_one_clear_line(stderr, "cannot resolve the host of PLAINTEXT://a..b:0")


def test_more_listeners_than_slots(tmp_path: Path) -> None:
    names = [f"L{number}" for number in range(112)]
    code, stderr = serve_here(
        "--set",
        "listener.security.protocol.map=" + ",".join(f"{name}:PLAINTEXT" for name in names),
        data=tmp_path / "d",
        listeners=",".join(f"{name}://127.0.0.1:0" for name in names),
    )
    assert code == USAGE
    assert_one_clear_line(stderr, "listeners", "112", "111")


def test_listener_on_an_address_of_another_host(tmp_path: Path) -> None:
    allowed = ("--set", "kproc.allow.unauthenticated.network=PLAINTEXT")
    code, stderr = serve(*allowed, data=tmp_path / "d", listeners="PLAINTEXT://192.0.2.1:0")
    assert code == REFUSED
    assert_one_clear_line(stderr, "cannot bind PLAINTEXT://192.0.2.1:0")


def test_public_listener_without_login_is_rejected(tmp_path: Path) -> None:
    code, stderr = serve(data=tmp_path / "d", listeners="PLAINTEXT://:0")
    assert code == USAGE
    assert_one_clear_line(
        stderr, "open to other hosts", "kproc.allow.unauthenticated.network=PLAINTEXT", "SASL_SSL"
    )


@pytest.mark.parametrize(
    ("assignment", "word"),
    [
        ("no.such.setting=1", "no.such.setting"),
        ("log.segment.bytez=1", "log.segment.bytes"),  # and says what was meant
        ("num.io.threads=0", "num.io.threads"),
        ("num.io.threads=many", "num.io.threads"),
        ("num.io.threads=449", "num.io.threads"),  # Each has a row of its own in shared memory.
        ("num.network.threads=448", "num.network.threads"),
        ("without-a-value", "without-a-value"),
        ("kproc.flush=sometimes", "kproc.flush"),
    ],
)
def test_bad_setting(tmp_path: Path, assignment: str, word: str) -> None:
    code, stderr = serve_here("--set", assignment, data=tmp_path / "d")
    assert code == USAGE
    assert_one_clear_line(stderr, word)


def test_flag_against_its_setting_is_a_conflict(tmp_path: Path) -> None:
    code, stderr = serve_here("--handlers", "2", "--set", "num.io.threads=3", data=tmp_path / "d")
    assert code == USAGE
    assert_one_clear_line(stderr, "--handlers", "num.io.threads")


def test_missing_config_file(tmp_path: Path) -> None:
    code, stderr = serve_here("--config", str(tmp_path / "absent.toml"), data=tmp_path / "d")
    assert code == USAGE
    assert_one_clear_line(stderr, "absent.toml")


@pytest.mark.usefixtures("real_start")
def test_failed_start_leaves_nothing(tmp_path: Path, taken_port: int) -> None:
    shared, temporary = shared_memory_names(), temporary_names()
    serve(data=tmp_path / "d", listeners=f"PLAINTEXT://127.0.0.1:{taken_port}")
    run_kproc("dev", "--port", str(taken_port))
    assert shared_memory_names() == shared
    assert temporary_names() == temporary


@pytest.mark.parametrize(
    "command", [("topic", "list"), ("status",), ("consume", "t", "--count", "1"), ("produce", "t")]
)
def test_client_command_without_a_broker(command: tuple[str, ...], unused_port: int) -> None:
    done = run_kproc(*command, "--bootstrap", f"127.0.0.1:{unused_port}")
    assert done.returncode == REFUSED
    assert_one_clear_line(done.stderr, str(unused_port))


@pytest.fixture
def unused_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
