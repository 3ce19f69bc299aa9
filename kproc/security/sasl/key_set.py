"""KeySet: the keys that OAUTHBEARER tokens are signed with, loaded from a file or a URL by a thread.

They are loaded when the first token comes, again when they are old, and when a token names a key that is not among
them: a new key is used as soon as it is published. Who asks for a key meanwhile is told to come again.
"""

from __future__ import annotations

import json
import logging
import threading
import urllib.request
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from kproc.security.sasl.mechanism import KeysAwaited

if TYPE_CHECKING:
    from joserfc.jwk import Key

logger = logging.getLogger(__name__)

_TIMEOUT_S: Final = 10.0
_BYTES_MAX: Final = 1 << 20
# Between two loads that were not due: whoever invents names of keys must not make us load without end.
_PAUSE_MS: Final = 10_000
_RETRY_MS: Final = 1_000


def fetch(url: str) -> bytes:
    """What a URL holds, up to a limit. Raises OSError, ValueError."""
    with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer:  # noqa: S310 - the settings allow three schemes
        data: bytes = answer.read(_BYTES_MAX + 1)
    if len(data) > _BYTES_MAX:
        raise ValueError(f"it is larger than {_BYTES_MAX} bytes")
    return data


def in_thread(work: Callable[[], None]) -> None:
    """Run it beside the loop. It must not keep a process from its end."""
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
        self._keys: list[Key] | None = None  # Replaced as a whole, by the thread.
        self._is_loading = False
        self._due_ms = 0
        self._next_unasked_ms = 0

    def find(self, key_id: str | None) -> Key | None:
        """The key with that id, or the only one; None if there is none. Raises KeysAwaited."""
        now_ms = self._now_ms()
        if now_ms >= self._due_ms:
            self._begin(now_ms, self._refresh_ms)
        if self._keys is None:
            raise KeysAwaited
        found = self._find(key_id)
        if found is None and not self._is_loading and now_ms >= self._next_unasked_ms:
            self._next_unasked_ms = now_ms + _PAUSE_MS
            self._begin(now_ms, self._refresh_ms)
            found = self._find(key_id)
        if found is None and self._is_loading:
            raise KeysAwaited
        return found

    def _find(self, key_id: str | None) -> Key | None:
        keys = self._keys or []
        if key_id is None:
            return keys[0] if len(keys) == 1 else None
        return next((key for key in keys if key.kid == key_id), None)

    def _begin(self, now_ms: int, refresh_ms: int) -> None:
        if not self._is_loading:
            self._is_loading = True
            self._due_ms = now_ms + refresh_ms
            self._run(self._load)

    def _load(self) -> None:
        """In the thread."""
        try:
            keys = _keys_in(self._load_url(self._url))
        except Exception as error:  # noqa: BLE001 - whatever an address may answer; the old keys stay
            self._due_ms = self._now_ms() + _RETRY_MS
            logger.error("the keys of OAUTHBEARER tokens cannot be loaded from %s: %s", self._shown(), error)
        else:
            self._keys = keys
            logger.info("%d keys of OAUTHBEARER tokens loaded from %s", len(keys), self._shown())
        finally:
            self._is_loading = False

    def _shown(self) -> str:
        """The URL without what may be secret in it."""
        parts = urlsplit(self._url)
        return f"{parts.scheme}://{parts.hostname or ''}{parts.path}"


def _keys_in(data: bytes) -> list[Key]:
    """The keys of a JSON Web Key Set; those of unknown kinds are left out. Raises ValueError."""
    from joserfc.errors import JoseError  # Here, because it takes time that only tokens are worth.
    from joserfc.jwk import KeySet as Imported

    document: Any = json.loads(data)
    if not isinstance(document, dict) or not isinstance(document.get("keys"), list):
        raise ValueError("it is no JSON Web Key Set")
    try:
        return list(Imported.import_key_set({"keys": document["keys"]}).keys)
    except JoseError as error:
        raise ValueError(str(error)) from error
