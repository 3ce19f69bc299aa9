"""The table of what this broker serves: API key, handler and version range, declared once in each api file.

`@api(ApiKey.X, versions=(lo, hi))` puts a handler into the table; dispatch and the answer to ApiVersions are
both read from it, so the broker cannot advertise what it has no code for. `kproc.api.load_all()` fills it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final, TypeVar

from kproc.api.rights import Need
from kproc.wire.header import ApiKey

# The first argument is the RequestContext, the second the decoded request: a dict, or for Produce and Fetch
# the structs of wire/hot.py. The answer is the response's fields, or None when the handler replies later.
HandlerFunction = Callable[[Any, Any], dict[str, Any] | None]
# (request, error code, message) -> response fields that carry the code wherever this API has room for it.
ErrorResponse = Callable[[Any, int, str | None], dict[str, Any]]
_F = TypeVar("_F", bound=Callable[..., Any])


class Api:
    """One served API. Made by the decorator at import, never changed."""

    __slots__ = ("advertised_lo", "handler", "hi", "key", "lo", "needs")

    def __init__(
        self,
        key: ApiKey,
        handler: HandlerFunction,
        lo: int,
        hi: int,
        advertised_lo: int,
        needs: tuple[Need, ...],
    ) -> None:
        self.key = key
        self.handler = handler
        self.lo = lo
        self.hi = hi
        self.advertised_lo = advertised_lo
        self.needs = needs  # The rights without which a request is refused as a whole.

    def serves(self, version: int) -> bool:
        """Whether a request of `version` reaches the handler."""
        return self.lo <= version <= self.hi

    @property
    def error_response(self) -> ErrorResponse | None:
        """The api file's `error_response`, or None when it never raises KafkaError."""
        # Looked up late: the function usually stands below the handler in its file.
        module = sys.modules[self.handler.__module__]
        found: ErrorResponse | None = getattr(module, "error_response", None)
        return found

    @property
    def differences(self) -> str | None:
        """In which ways Apache Kafka answers otherwise: what the api file's docstring says of it."""
        words = " ".join((sys.modules[self.handler.__module__].__doc__ or "").split())
        _, found, rest = words.partition("Differs from Kafka: ")
        return rest.partition(" Versions:")[0] if found else None

    def __repr__(self) -> str:
        return f"Api({self.key.name}, {self.lo}-{self.hi})"


APIS: Final[dict[int, Api]] = {}


def api(
    key: ApiKey,
    versions: tuple[int, int],
    *,
    advertised_from: int | None = None,
    needs: tuple[Need, ...] = (),
) -> Callable[[_F], _F]:
    """Serve `key` in `versions` (both ends included) with the decorated function, to who has the rights `needs`.

    `advertised_from` shows clients a lower minimum than is served. Only Produce needs it: librdkafka takes
    compression away from a broker that does not show version 0 (KAFKA-18659).
    """
    lo, hi = versions
    assert 0 <= lo <= hi, f"{key.name}: versions {lo}-{hi}"
    shown = lo if advertised_from is None else advertised_from
    assert 0 <= shown <= lo, f"{key.name}: advertised from {shown}, served from {lo}"

    def register(handler: _F) -> _F:
        assert key not in APIS or APIS[key].handler.__module__ == handler.__module__, f"{key.name} twice"
        APIS[key] = Api(key, handler, lo, hi, shown, needs)
        return handler

    return register


def lookup(key: int) -> Api | None:
    """The API with that number, or None when it is not served."""
    return APIS.get(key)


def advertised() -> list[tuple[int, int, int]]:
    """(key, lowest, highest version) of everything served, by key: the body of an ApiVersions answer."""
    return [(int(key), entry.advertised_lo, entry.hi) for key, entry in sorted(APIS.items())]
