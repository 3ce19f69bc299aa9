"""KeySet: the keys that OAUTHBEARER tokens are signed with, loaded from a file or a URL by a thread.

The keys are loaded when the first token comes, when they are older than the refresh interval, and when a token names a
key that is not among them. So a new key is used as soon as the issuer publishes it. A login that needs a key during a
load is parked (KeysAwaited).
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import logging
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit, urlunsplit

from kproc.broker.config.values import without_url_secrets
from kproc.broker.security.sasl.mechanism import KeysAwaited
from kproc.common.regular_file import read_regular

if TYPE_CHECKING:
    from joserfc.jwk import Key

logger = logging.getLogger(__name__)

# Limits of a fetch: seconds of one connect or read, seconds of the whole fetch, and bytes. A server that sends single
# bytes exceeds only the second limit.
_TIMEOUT_S: Final = 10.0
_TOTAL_S: Final = 30.0
_BYTES_MAX: Final = 1 << 20
# Pause (ms) between loads that an unknown key id causes, so that clients with invented key ids cannot make the broker
# load without end.
_PAUSE_MS: Final = 10_000
# Pause (ms) after a failed load. It is short, because logins wait until the first load has succeeded.
_RETRY_MS: Final = 1_000


def fetch(url: str, *, seconds_max: float = _TOTAL_S) -> bytes:
    """Fetch a URL, up to a limit of bytes, within `seconds_max` in all. Raises OSError and ValueError.

    A server that sends a byte from time to time never exceeds the timeout of a single read, so a timer shuts the
    connections down. A redirect from https to http is not followed: an attacker on the network could choose the keys.
    """
    parts = urlsplit(url)
    if parts.scheme == "file":
        # Do not use urllib for files: its open of a FIFO would block this thread for ever, so that no keys would be
        # loaded any more.
        return read_regular(unquote(parts.path), _BYTES_MAX)
    connections = _Connections()
    # The timeout of a socket counts from its last byte, so it does not limit the whole transfer.
    timer = threading.Timer(seconds_max, connections.shut_down)
    timer.daemon = True
    timer.start()
    opener = urllib.request.build_opener(_Http(connections), _Https(connections), _Redirects())
    try:
        with opener.open(_request(url), timeout=_TIMEOUT_S) as answer:
            data: bytes = answer.read(_BYTES_MAX + 1)
    except (OSError, http.client.HTTPException) as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()  # It holds the response.
        if connections.is_late:
            raise TimeoutError(f"no complete answer with the key set in {seconds_max:g} s") from error
        raise
    finally:
        timer.cancel()
        connections.close()
    if connections.is_late:  # Late: the read was cut off, so the data is incomplete.
        raise TimeoutError(f"no complete answer with the key set in {seconds_max:g} s")
    # The read asked for one byte more than the limit, because otherwise a larger document would look complete.
    if len(data) > _BYTES_MAX:
        raise ValueError(f"the key set is larger than {_BYTES_MAX} bytes")
    return data


def _request(url: str) -> urllib.request.Request:
    """Create a request for a URL. The URL's user and password become a header that is not sent after a redirect.

    http.client would parse user and password as a port and repeat the password in its error.
    """
    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    request = urllib.request.Request(urlunsplit(parts._replace(netloc=host)))  # noqa: S310 - the settings check the scheme
    if at:
        credentials = base64.b64encode(unquote(user).encode()).decode()
        request.add_unredirected_header("Authorization", f"Basic {credentials}")
    return request


class _Connections:
    """The sockets of one fetch, with duplicated descriptors, because TLS takes over the original ones."""

    def __init__(self) -> None:
        self._sockets: list[socket.socket] = []
        self._lock = threading.Lock()
        self.is_late = False

    def create(self, *arguments: Any, **options: Any) -> socket.socket:
        """Connect as http.client does, and store the socket."""
        made = socket.create_connection(*arguments, **options)
        with self._lock:
            if self.is_late:
                made.close()
                raise TimeoutError("timed out")
            self._sockets.append(made.dup())
        return made

    def shut_down(self) -> None:
        """Shut every connection down, so that blocked reads return at once."""
        with self._lock:
            self.is_late = True
            for each in self._sockets:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the duplicated descriptors of the fetch's sockets."""
        with self._lock:
            for each in self._sockets:
                each.close()


class _Http(urllib.request.HTTPHandler):
    def __init__(self, connections: _Connections) -> None:
        super().__init__()
        self._connections = connections

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        def connect(host: str, **options: Any) -> http.client.HTTPConnection:
            connection = http.client.HTTPConnection(host, **options)
            connection._create_connection = self._connections.create  # type: ignore[attr-defined]
            return connection

        return self.do_open(connect, req)


class _Https(urllib.request.HTTPSHandler):
    def __init__(self, connections: _Connections) -> None:
        super().__init__()
        self._connections = connections

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        def connect(host: str, **options: Any) -> http.client.HTTPSConnection:
            connection = http.client.HTTPSConnection(host, **options)
            connection._create_connection = self._connections.create  # type: ignore[attr-defined]
            return connection

        return self.do_open(connect, req)


class _Redirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        if urlsplit(newurl).scheme not in ("https", req.type):
            raise ValueError(f"refusing a redirect from {req.type} to {urlsplit(newurl).scheme}")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def in_thread(work: Callable[[], None]) -> None:
    """Run `work` in a daemon thread, so that it does not keep the process from ending."""
    threading.Thread(target=work, name="jwks", daemon=True).start()


class KeySet:
    """The keys of one URL. One per Handler, listener and mechanism."""

    def __init__(
        self,
        url: str,
        refresh_ms: int,
        now_ms: Callable[[], int],
        *,
        load: Callable[[str], bytes] = fetch,
        run: Callable[[Callable[[], None]], None] = in_thread,
    ) -> None:
        self._url = url
        self._refresh_ms = refresh_ms
        self._now_ms = now_ms
        self._load_url = load
        self._run = run
        self._keys: list[Key] | None = None  # The loading thread replaces the whole list.
        self._is_loading = False
        self._due_ms = 0
        self._next_unasked_ms = 0

    def find(self, key_id: str | None) -> Key | None:
        """Return the key with that id, or None. Without an id return the only key, or None if there are several.

        An unknown id starts a load, at most every _PAUSE_MS, because the issuer may have published a new key. Raises
        KeysAwaited while a load may still bring the key.
        """
        now_ms = self._now_ms()
        if now_ms >= self._due_ms:
            self._start_load(now_ms, self._refresh_ms)
        if self._keys is None:
            raise KeysAwaited
        found = self._find(key_id)
        # The issuer may have published a new key since the last load. The pause limits the loads that invented key ids
        # cause.
        if found is None and not self._is_loading and now_ms >= self._next_unasked_ms:
            self._next_unasked_ms = now_ms + _PAUSE_MS
            self._start_load(now_ms, self._refresh_ms)
            # In tests `run` loads the keys at once, so look again before the login is parked.
            found = self._find(key_id)
        if found is None and self._is_loading:
            raise KeysAwaited
        return found

    def _find(self, key_id: str | None) -> Key | None:
        keys = self._keys or []
        if key_id is None:
            return keys[0] if len(keys) == 1 else None
        return next((key for key in keys if key.kid == key_id), None)

    def _start_load(self, now_ms: int, refresh_ms: int) -> None:
        if not self._is_loading:
            self._is_loading = True
            self._due_ms = now_ms + refresh_ms
            # Load in a thread, because a Handler must not wait for another host.
            try:
                self._run(self._load)
            except RuntimeError as error:  # The user or the cgroup has reached its limit of threads.
                self._is_loading = False
                self._due_ms = now_ms + _RETRY_MS
                logger.error("cannot load the keys of OAUTHBEARER tokens, trying again later: %s", error)

    def _load(self) -> None:
        """Load the keys. If that fails, keep the old ones. This runs in a thread of its own."""
        try:
            keys = _keys_in(self._load_url(self._url))
        except Exception as error:  # noqa: BLE001 - whatever the load raises, keep the old keys
            self._due_ms = self._now_ms() + _RETRY_MS
            why = without_url_secrets(str(error))
            logger.error(
                "cannot load the keys of OAUTHBEARER tokens from %s, keeping the old ones: %s",
                self._shown(),
                why,
            )
        else:
            self._keys = keys
            logger.info("%d keys of OAUTHBEARER tokens loaded from %s", len(keys), self._shown())
        finally:
            # Clear this flag last. Until then a login whose key is missing is parked instead of failing, because the
            # load may bring the key.
            self._is_loading = False

    def _shown(self) -> str:
        """Return the URL without the parts that may be secret."""
        parts = urlsplit(self._url)
        return f"{parts.scheme}://{parts.hostname or ''}{parts.path}"


def _keys_in(data: bytes) -> list[Key]:
    """Return the keys of a JSON Web Key Set, without keys of unknown types. Raises ValueError."""
    # Imported here, because only listeners with signed tokens need the library, and its import takes time.
    from joserfc.errors import JoseError
    from joserfc.jwk import KeySet as Imported

    document: Any = json.loads(data)
    if not isinstance(document, dict) or not isinstance(document.get("keys"), list):
        raise ValueError("the document is not a JSON Web Key Set")
    try:
        return list(Imported.import_key_set({"keys": document["keys"]}).keys)
    except JoseError as error:
        raise ValueError(str(error)) from error
