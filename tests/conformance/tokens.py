"""A server of signed tokens on the loopback, as librdkafka's `sasl.oauthbearer.method=OIDC` asks one for them."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Final

from joserfc import jwt
from joserfc.jwk import ECKey

AUDIENCE: Final = "kafka"
ISSUER: Final = "https://issuer"
_KEY: Final = "the-key"
_ALGORITHM: Final = "ES256"
_LIFETIME_S: Final = 300


class TokenServer:
    """Hands out alice's tokens: good ones, expired ones, and ones that a stranger has signed. For a `with`."""

    def __init__(self) -> None:
        own, stranger = (ECKey.generate_key("P-256", {"kid": _KEY}) for _ in range(2))
        self._keys = {"keys": [own.as_dict(private=False)]}
        self._issue: Mapping[str, tuple[ECKey, int]] = {
            "/valid": (own, _LIFETIME_S),
            "/expired": (own, -_LIFETIME_S),
            "/stranger": (stranger, _LIFETIME_S),
        }
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, name="tokens", daemon=True)

    def __enter__(self) -> TokenServer:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def url(self, what: str) -> str:
        """Of `keys` (what a broker checks tokens by), or of `valid`, `expired` and `stranger` tokens."""
        return f"http://127.0.0.1:{self._server.server_port}/{what}"

    def answer(self, path: str) -> dict[str, Any] | None:
        """What is served at a path; None where nothing is."""
        if path == "/keys":
            return self._keys
        if path not in self._issue:
            return None
        key, lifetime = self._issue[path]
        now = int(time.time())
        claims = {"sub": "alice", "aud": AUDIENCE, "iss": ISSUER, "iat": now - 1, "exp": now + lifetime}
        token = jwt.encode({"alg": _ALGORITHM, "kid": _KEY}, claims, key, [_ALGORITHM])
        return {"access_token": token, "token_type": "Bearer", "expires_in": lifetime}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._send(server.answer(self.path))

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length", "0")))
                self._send(server.answer(self.path))

            def _send(self, answer: dict[str, Any] | None) -> None:
                body = json.dumps(answer).encode()
                self.send_response(404 if answer is None else 200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                """Nobody reads it."""

        return Handler
