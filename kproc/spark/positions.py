"""Subscription and Position: what a query of the source reads, from where to where, and the options that say it.

No I/O, no Spark. Each error says what to do instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Literal

from kproc.broker.config.values import INT_MAX
from kproc.common.reading import EARLIEST, LATEST
from kproc.spark.offsets import Offsets, TopicPartition, from_json
from kproc.spark.option_values import (
    OptionError,
    read_json,
    read_long_or_zero,
    read_names,
    read_pattern,
)


class SubscriptionKind(Enum):
    """The option that a source subscribes with."""

    TOPICS = "subscribe"
    PATTERN = "subscribePattern"
    PARTITIONS = "assign"


@dataclass(frozen=True, slots=True)
class Subscription:
    """The topics, the pattern or the partitions that a source reads."""

    kind: SubscriptionKind
    topics: tuple[str, ...] = ()
    pattern: str = ""
    partitions: tuple[TopicPartition, ...] = ()

    def __str__(self) -> str:
        if self.kind is SubscriptionKind.PATTERN:
            return f"topics that match {self.pattern!r}"
        return ", ".join(self.topics or map(str, self.partitions))


@dataclass(frozen=True, slots=True)
class Position:
    """The start or end of a query: an offset or timestamp for each partition, or one for all of them."""

    option: str
    """Name of the option, for messages."""
    everywhere: int | None = None
    """EARLIEST or LATEST for all partitions. With `by_time`: ms since 1970."""
    each: tuple[tuple[TopicPartition, int], ...] = ()
    by_time: bool = False


def read_subscription(options: Mapping[str, str]) -> Subscription:
    """Parse the one option that says what the source reads. `options` has names in lower case."""
    given = [kind for kind in SubscriptionKind if kind.value.lower() in options]
    names = ", ".join(kind.value for kind in SubscriptionKind)
    if not given:
        raise OptionError(f"no topic to read: set one of the options {names}")
    if len(given) > 1:
        both = " and ".join(kind.value for kind in given)
        raise OptionError(f"set only one of the options {names}, not {both}")
    kind = given[0]
    value = options[kind.value.lower()]
    if kind is SubscriptionKind.TOPICS:
        return Subscription(kind, topics=read_names(kind.value, value))
    if kind is SubscriptionKind.PATTERN:
        return Subscription(kind, pattern=read_pattern(kind.value, value))
    return Subscription(kind, partitions=_assigned(kind.value, value))


def _assigned(name: str, value: str) -> tuple[TopicPartition, ...]:
    document = read_json(name, value)
    form = f'{name} must be like {{"clicks": [0, 1]}}, not {value!r}'
    if not isinstance(document, dict) or not document:
        raise OptionError(form)
    found = []
    for topic, indexes in document.items():
        if not isinstance(indexes, list) or not indexes:
            raise OptionError(form)
        for index in indexes:
            # Reject JSON's `true`, because in Python a bool is an int.
            if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index <= INT_MAX:
                raise OptionError(f"{name}: {index!r} is not a partition's number")
            found.append(TopicPartition(topic, index))
    return tuple(sorted(set(found)))


def _offsets_of(name: str, value: str) -> Offsets:
    try:
        found = from_json(read_json(name, value))
    except OptionError:
        raise
    except ValueError as error:
        raise OptionError(f"{name}: {error}") from None
    if not found:
        raise OptionError(f"{name} is empty: name at least one partition")
    return found


def read_position(options: Mapping[str, str], word: Literal["starting", "ending"], default: int) -> Position:
    """Parse the options for the start or the end of the query. `options` has names in lower case.

    As in Spark's connector, one timestamp for all partitions has precedence over timestamps by partition, and these
    have precedence over offsets.
    """
    for name in (f"{word}Timestamp", f"{word}OffsetsByTimestamp", f"{word}Offsets"):
        value = options.get(name.lower())
        if value is None:
            continue
        if name.endswith("Offsets"):
            words = {"earliest": EARLIEST, "latest": LATEST}
            if value.strip().lower() in words:
                return Position(name, everywhere=words[value.strip().lower()])
            if not value.strip().startswith("{"):
                raise OptionError(
                    f'{name} must be earliest, latest or like {{"clicks": {{"0": 23}}}}, not {value!r}'
                )
            offsets = _offsets_of(name, value)
            for partition, offset in offsets.items():
                if offset < EARLIEST:
                    raise OptionError(
                        f"{name} of {partition} must be an offset, -1 for latest or -2 for earliest, not {offset}"
                    )
            return Position(name, each=tuple(sorted(offsets.items())))
        if name.endswith("ByTimestamp"):
            times = _offsets_of(name, value)
            if min(times.values()) < 0:
                raise OptionError(f"{name}: times are in ms since 1970 and must be at least 0")
            return Position(name, each=tuple(sorted(times.items())), by_time=True)
        return Position(name, everywhere=read_long_or_zero(name, value), by_time=True)
    return Position(f"{word}Offsets", everywhere=default)


def reject_position(position: Position, bad: int, why: str) -> None:
    """Raise OptionError with the reason `why` if a partition's offset in `position` is `bad`."""
    if position.by_time:
        return
    if position.everywhere == bad:
        raise OptionError(f"{position.option}: {why}")
    for partition, offset in position.each:
        if offset == bad:
            raise OptionError(f"{position.option} of {partition}: {why}")
