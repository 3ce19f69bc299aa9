"""The command line without a broker: help, and for each mistake one clear line and the right exit code."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from kproc import __version__
from kproc.cli import main
from kproc.cli.main import run
from tests.support.cases import in_one_test
from tests.support.command_line import call_kproc
from tests.support.kproc_command import ROOT, kproc
from tests.support.wait import PATIENCE_SECONDS


@pytest.fixture
def called(capsys, monkeypatch):
    """`called("topic list")`: the same in this process. None of these commands comes so far as to start a broker."""
    for name in [name for name in os.environ if name.startswith("KPROC_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", "100")

    return lambda command: call_kproc(capsys, *command.split())


MISTAKES = [
    ("no-such-command", "No such command 'no-such-command'"),
    ("topic crate", "No such command 'crate'"),
    ("produce", "Missing argument 'TOPIC'"),
    ("consume", "Missing argument 'TOPIC'"),
    ("topic create", "Missing argument"),
    ("serve --no-such-option", "No such option"),
    ("serve --processors many", "--processors"),
    ("serve --processors 0", "num.network.threads=0: must be at least 1"),
    ("serve --transport fibre", "kproc.transport=fibre: must be one of process, thread, inline"),
    ("serve --set num.io.threads", "--set num.io.threads: expected name=value"),
    (
        "serve --set num.io.thread=2",
        "unknown setting num.io.thread in --set num.io.thread; did you mean num.io.threads?",
    ),
    ("serve --handlers 2 --set num.io.threads=3", "--handlers 2 conflicts with --set num.io.threads=3"),
    ("serve --data /a --set log.dirs=/b", "--data /a conflicts with --set log.dirs=/b"),
    ("serve --listeners nonsense", "listeners: nonsense is not a listener"),
    ("serve --listeners TLS://127.0.0.1:0", "listener.security.protocol.map has no protocol for TLS"),
    ("serve --config /no/such/file", "cannot read /no/such/file: No such file or directory"),
    ("dev --port 70000", "--port 70000"),
    ("topic list --bootstrap nowhere:port", "--bootstrap: nowhere:port is not an address"),
    ("topic list --format xml", "--format"),
    ("topic create t --config a", "--config 'a': expected name=value"),
    ("produce t --key a --key-separator :", "exclude each other"),
    ("produce t --acks 2", "--acks"),
    ("produce t --compression brotli", "--compression"),
    ("produce t --header novalue", "--header 'novalue': expected name=value"),
    ("produce t --idempotent --acks 1", "--idempotent needs --acks all"),
    ("produce t --json --key a", "--json: each line has its own key"),
    ("produce t --json --null", "--json: each line has its own key"),
    ("consume t --group g --partition 0", "--group and --partition exclude each other"),
    ("consume t --group=", "--group: must not be empty"),
    ("consume t --from yesterday", "--from 'yesterday': expected beginning, end"),
    ("consume t --format %z", "--format: %z is not known"),
    ("consume t --count 0", "--count"),
]


@in_one_test(("command", "message"), MISTAKES)
def test_a_wrong_command_is_one_line_and_exit_code_2(command, message, called):
    answer = called(command)
    assert answer.returncode == 2
    assert answer.stdout == ""
    assert answer.stderr.count("\n") == 1
    assert answer.stderr.startswith("kproc: ")
    assert message in answer.stderr


def closed_port() -> int:
    with socket.socket() as ours:
        ours.bind(("127.0.0.1", 0))
        return int(ours.getsockname()[1])


@in_one_test("command", ["topic list", "topic describe t", "status", "produce t", "consume t"])
def test_a_refused_connection_is_one_line_and_exit_code_1(command, called):
    port = closed_port()
    answer = called(f"{command} --bootstrap 127.0.0.1:{port}")
    assert answer.returncode == 1
    assert answer.stderr == f"kproc: cannot connect to 127.0.0.1:{port}: connection refused\n"
    assert answer.stdout == ""


@pytest.mark.long
def test_the_environment_names_the_broker():
    port = closed_port()
    answer = kproc("topic", "list", KPROC_BOOTSTRAP=f"127.0.0.1:{port}")
    assert f"127.0.0.1:{port}" in answer.stderr


def test_something_else_on_the_port_is_told_apart(called):
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:

        def answer_as_a_web_server() -> None:
            with suppress(OSError):  # It ends when the server is shut down.
                while True:
                    connection, _ = server.accept()
                    with connection:
                        connection.recv(100)
                        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        pool.submit(answer_as_a_web_server)
        answer = called(f"topic list -b 127.0.0.1:{server.getsockname()[1]}")
        server.shutdown(socket.SHUT_RDWR)
    assert answer.returncode == 1
    assert re.fullmatch(r"kproc: 127\.0\.0\.1:\d+ does not speak Kafka's protocol: .*b'HTTP'\n", answer.stderr)


@pytest.mark.long
def test_closed_pipe_ends_command_silently():
    reading, writing = os.pipe()
    os.close(reading)
    try:
        answer = subprocess.run(
            [sys.executable, "-m", "kproc", "version"],
            cwd=ROOT,
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
    finally:
        os.close(writing)
    assert (answer.returncode, answer.stderr) == (128 + signal.SIGPIPE, "")


HEAVY = {"confluent_kafka", "kio", "psutil", "cramjam", "kproc.broker.config", "kproc.wire", "rich"}


def test_version_is_the_packages_and_loads_nothing_heavy():
    """PYTHONPROFILEIMPORTTIME writes a line for each module."""
    answer = kproc("version", PYTHONPROFILEIMPORTTIME="1")
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.startswith(f"kproc {__version__} on Python 3.")
    loaded = {line.rpartition("|")[2].strip() for line in answer.stderr.splitlines()}
    assert "kproc.cli.main" in loaded
    assert not loaded & HEAVY


def test_the_broker_loads_no_client_library():
    code = "import sys; import kproc.cli.main, kproc.broker.config; sys.exit('confluent_kafka' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=PATIENCE_SECONDS, check=False).returncode == 0


def test_the_version_is_an_option_too(capsys):
    assert (run(["--version"]), capsys.readouterr().out) == (run(["version"]), capsys.readouterr().out)


@pytest.mark.long
@pytest.mark.parametrize(("words", "code"), [(["version"], 0), (["no-such-command"], 2)])
def test_exit_code_with_pythoninspect(words: list[str], code: int) -> None:
    """With PYTHONINSPECT=1 the interpreter printed SystemExit as an error, and a good stop ended with 1."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "kproc", *words],
        env={**os.environ, "PYTHONINSPECT": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, "SystemExit" in done.stderr) == (code, False)


@pytest.mark.long
def test_closed_standard_streams_are_opened_at_dev_null(tmp_path):
    """Otherwise files and sockets got the descriptors 0 to 2, and `kproc topic list >&-` showed a traceback."""
    code = (
        "import os, sys; from kproc.cli import main; main._open_standard_streams(); "
        f"os.symlink(' '.join(os.readlink(f'/proc/self/fd/{{at}}') for at in range(3)), {str(tmp_path / 'found')!r}); "
        "print('x', file=sys.stderr); sys.exit(main.run(['version']))"
    )
    shell = 'exec 0<&- 1>&- 2>&-; exec "$@"'
    done = subprocess.run(["sh", "-c", shell, "-", sys.executable, "-P", "-c", code], cwd=ROOT, check=False)
    assert done.returncode == 0
    assert os.readlink(tmp_path / "found") == "/dev/null /dev/null /dev/null"


@pytest.mark.long
def test_output_in_a_locale_without_the_characters_is_escaped(tmp_path):
    """`group list` ended with exit code 2 and called a Greek name no UTF-8. JSON is UTF-8 in every locale."""
    (tmp_path / "λ é").touch()
    code = (
        "import sys; from kproc.cli import main; main._open_standard_streams(); "
        "add = ['add', 'a', '-b', 'b:1', '--command-config', sys.argv[1]]; "
        "sys.exit(max(main.run(['profile', *each]) for each in (add, ['list'], ['list', '--format', 'json'])))"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, str(tmp_path / "λ é")],
        cwd=ROOT,
        env=os.environ | {"XDG_CONFIG_HOME": str(tmp_path / "config"), "PYTHONIOENCODING": "latin-1"},
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    table, _, document = done.stdout.partition(b"[\n")
    assert table.split(b"\n")[2].endswith("\\u03bb é".encode("latin-1"))
    assert document.decode().count("λ é") == 1


def test_errors_of_text_and_memory_are_one_line(capsys):
    def encode():
        "orders\udcff".encode()

    assert main.exit_code_of(encode) == 2
    assert capsys.readouterr().err == "kproc: 'orders\\udcff' is not valid UTF-8\n"

    def fill():
        raise MemoryError

    assert main.exit_code_of(fill) == 1
    assert capsys.readouterr().err == "kproc: not enough memory\n"
