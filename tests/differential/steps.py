"""One request of a sequence, and a difference that it showed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.differential.compare import Path

# In place of an API: the client closes the step's connection, or waits for the milliseconds `ms` of the body.
DISCONNECT, PAUSE = "disconnect", "pause"
Pair = tuple[str, str]
"""The bootstraps of kproc and Kafka."""


@dataclass
class Step:
    """A request, by a script's names. `may_wait`: its answer may need later requests; `is_unanswered`: acks=0."""

    connection: int
    api: str
    version: int
    body: dict[str, Any]
    may_wait: bool = False
    is_unanswered: bool = False
    learning: dict[tuple[str, Any], str] = field(default_factory=dict)

    def __repr__(self) -> str:
        waits = " (may wait)" if self.may_wait else ""
        return f"c{self.connection} {self.api} v{self.version} {self.body!r}{waits}"


class Found(NamedTuple):
    """A difference, and in which request it was."""

    cause: str
    at: int
    path: Path
    kproc: Any
    kafka: Any
    answers: tuple[Any, Any]
