"""Converters from msgspec's plain types that several threads may use at once.

msgspec computes the fields of a class at its first use, and stores the table at the class before the table is complete.
A second thread that uses the class at this moment reads the incomplete table. It gets a wrong ValidationError, or it
ends the process with a segmentation fault (msgspec 0.22, a broker with `transport=thread`). A module therefore makes
its converters and decoders when it is imported, by one thread. No function calls `msgspec.convert` or passes `type=`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")


def converter(kind: type[T]) -> Callable[[Any], T]:
    """Return a function that converts dicts, lists and scalars to `kind`. It raises msgspec.ValidationError."""
    # Creating a decoder computes msgspec's tables for `kind` and every class in its fields. msgspec keeps them in the
    # classes, so that no thread computes them later.
    msgspec.msgpack.Decoder(kind)

    def convert(value: Any) -> T:
        return msgspec.convert(value, kind)

    return convert
