"""KeySet fetches signing keys: slow servers, redirections, and passwords in the URL."""

from __future__ import annotations

import base64
import contextlib
import http.server
import logging
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kproc.broker.config import Config
from kproc.broker.security.sasl.key_set import KeySet, fetch
from kproc.broker.security.sasl.listeners import Surroundings, _validator
from kproc.broker.security.sasl.mechanism import KeysAwaited
from kproc.broker.security.sasl.scram import FoundCredential, ScramKind
from kproc.broker.security.sasl.signed_tokens import SignedValidator
from kproc.common.clock import ManualClock
from tests.support.certificates import Certificates
from tests.support.shortages import no_thread
from tests.support.wait import wait_until

SECRET = "hunter2-s3cret"
Answer = Callable[[http.server.BaseHTTPRequestHandler], None]


class Server:
    """An HTTP server with one answer, and the requests that it has had."""

    def __init__(self, answer: Answer, certificate: Path | None) -> None:
        self.requests: list[tuple[str, str | None]] = []
        seen = self.requests

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                seen.append((self.path, self.headers.get("Authorization")))
                answer(self)

            def log_message(self, *_: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.address = f"127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@contextmanager
def serving(answer: Answer, certificate: Path | None = None) -> Iterator[Server]:
    server = Server(answer, certificate)
    try:
        yield server
    finally:
        server.close()


def redirect_to(url: str) -> Answer:
    def answer(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.send_response(302)
        handler.send_header("Location", url)
        handler.end_headers()

    return answer


def keys(handler: http.server.BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.end_headers()
    handler.wfile.write(b"keys")


@contextmanager
def dripping(first: bytes) -> Iterator[str]:
    """A server that sends `first`, then a byte at a time, for ever, without an end."""
    is_over = threading.Event()

    def run() -> None:
        try:
            connection, _ = listening.accept()
        except OSError:
            return
        with connection:
            connection.recv(65536)
            connection.sendall(first)
            try:
                while not is_over.wait(0.01):
                    connection.sendall(b"x")
            except OSError:
                return

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/keys"
        finally:
            is_over.set()
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()


@pytest.mark.parametrize(
    "first",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nx: ",
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\n",
    ],
    ids=["status line", "header", "body", "sized body"],
)
def test_fetch_from_server_that_drips_ends_in_time(first: bytes) -> None:
    """Every read brings a byte, so that no timeout of one read ends it."""
    with dripping(first) as url, pytest.raises(TimeoutError, match=r"no complete answer with the key set in 0\.3 s"):
        fetch(url, seconds_max=0.3)


def test_fetch_follows_redirection_of_same_scheme() -> None:
    with serving(keys) as target, serving(redirect_to(f"http://{target.address}/x")) as first:
        assert fetch(f"http://{first.address}/keys") == b"keys"


@pytest.fixture
def certificates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Certificates:
    made = Certificates(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(made.ca))
    return made


def test_fetch_follows_no_redirection_from_https_to_http(certificates: Certificates) -> None:
    """An attacker on the way could otherwise choose the keys."""
    with (
        serving(keys) as target,
        serving(redirect_to(f"http://{target.address}/x"), certificates.server) as first,
    ):
        with pytest.raises(ValueError, match="refusing a redirect from https to http"):
            fetch(f"https://{first.address}/keys")
        assert target.requests == []


def test_fetch_by_https_checks_certificate(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(keys, certificates.server) as server:
        assert fetch(f"https://{server.address}/keys") == b"keys"
        monkeypatch.setenv("SSL_CERT_FILE", str(certificates.stranger_ca))
        with pytest.raises(OSError, match="CERTIFICATE_VERIFY_FAILED"):
            fetch(f"https://{server.address}/keys")


@pytest.mark.parametrize("location", ["file:///etc/passwd", "ftp://127.0.0.1/x", "gopher://x"])
def test_fetch_follows_no_redirection_to_other_scheme(location: str) -> None:
    with serving(redirect_to(location)) as server, pytest.raises((ValueError, OSError)):
        fetch(f"http://{server.address}/keys")


def test_fetch_sends_password_of_url_to_its_host_only() -> None:
    with serving(keys) as target, serving(redirect_to(f"http://{target.address}/x")) as first:
        assert fetch(f"http://user:{SECRET}%40@{first.address}/keys") == b"keys"
        expected = base64.b64encode(f"user:{SECRET}@".encode()).decode()
        assert first.requests == [("/keys", f"Basic {expected}")]
        assert target.requests == [("/x", None)]


@pytest.mark.parametrize("path", ["", "/keys", "/keys?token=" + SECRET, ":port/keys"])
def test_failed_load_logs_no_secret_of_url(caplog: pytest.LogCaptureFixture, path: str) -> None:
    url = f"http://user:{SECRET}@127.0.0.1:1{path}"
    found = KeySet(url, 1_000, lambda: 10**12, run=lambda work: work())
    with caplog.at_level(logging.INFO), pytest.raises(KeysAwaited):
        found.find("x")
    (line,) = caplog.messages
    assert "tokens from http://127.0.0.1" in line
    assert SECRET not in line


def test_load_without_a_thread_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    """A control group limits the threads for a while. The next login after a pause loads the keys."""
    now_ms, runs = [10**12], [no_thread, lambda work: work()]
    loads: list[str] = []

    def load(url: str) -> bytes:
        loads.append(url)
        raise OSError("nobody answers")

    found = KeySet("file:///keys", 10**9, lambda: now_ms[0], load=load, run=lambda work: runs[0](work))
    with pytest.raises(KeysAwaited):
        found.find("x")
    assert caplog.messages == [
        "cannot load the keys of OAUTHBEARER tokens, trying again later: can't start new thread"
    ]
    runs.pop(0)
    now_ms[0] += 60_000
    with pytest.raises(KeysAwaited):
        found.find("x")
    assert loads == ["file:///keys"]


def _nobody(_kind: ScramKind, name: str, _is_token: bool) -> FoundCredential:
    raise AssertionError(name)


def test_keys_are_loaded_again_after_clock_was_set_back(tmp_path: Path) -> None:
    """A host can start with a clock that is a year ahead. No login would succeed until it has caught up."""
    config = Config.build(
        {
            "listeners": "A://127.0.0.1:1",
            "listener.security.protocol.map": "A:SASL_PLAINTEXT",
            "sasl.enabled.mechanisms": "OAUTHBEARER",
            "sasl.oauthbearer.jwks.endpoint.url": (tmp_path / "keys").as_uri(),
            "sasl.oauthbearer.expected.audience": "kafka",
            "sasl.oauthbearer.expected.issuer": "https://issuer",
        }
    )
    clock = ManualClock()
    validator = _validator("A", Surroundings(config, _nobody, clock))
    assert isinstance(validator, SignedValidator)
    keys = validator._keys
    with pytest.raises(KeysAwaited):
        keys.find("x")
    wait_until(lambda: not keys._is_loading)
    (tmp_path / "keys").write_text(
        '{"keys": [{"kty": "oct", "k": "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", "kid": "y"}]}'
    )
    clock.set_wall_ms(clock.wall_ms() - 365 * 86_400_000)
    clock.advance_ms(60_000)
    with contextlib.suppress(KeysAwaited):  # Not raised if the thread has loaded the keys already.
        keys.find("x")
    wait_until(lambda: not keys._is_loading)
    assert keys._keys
