"""ShareSettings: the group configs that decide how a share partition delivers its records."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from kproc.broker.cluster.group_config import GROUP_CONFIGS
from kproc.broker.share.partition.in_flight import Rules
from kproc.common.reading import EARLIEST, LATEST

if TYPE_CHECKING:
    from kproc.broker.config import Config

# The parts of an ISO 8601 duration, which group_config.py has validated.
_DURATION: Final = re.compile(
    r"by_duration:P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?", re.IGNORECASE
)
_PART_MS: Final = (86_400_000, 3_600_000, 60_000, 1_000)


class ShareSettings(NamedTuple):
    """The settings of one share group."""

    rules: Rules
    lock_ms: int
    is_committed: bool  # Deliver only records of committed transactions.
    auto_offset_reset: str  # Where a share partition without a state begins.
    dead_letter_topic: str = ""
    copies_dead_letters: bool = False

    def start_timestamp(self, wall_ms: int) -> int:
        """Return the ListOffsets timestamp that finds the start offset: EARLIEST, LATEST or ms since 1970."""
        if self.auto_offset_reset == "earliest":
            return EARLIEST
        found = _DURATION.fullmatch(self.auto_offset_reset)
        if found is None:
            return LATEST
        parts = zip(found.groups(), _PART_MS, strict=True)
        return max(0, wall_ms - int(sum(float(number) * part_ms for number, part_ms in parts if number)))


def share_settings(configs: Mapping[str, str], config: Config, *, allows_dead_letters: bool) -> ShareSettings:
    """Return the settings of a group with these configs. `allows_dead_letters`: share.version is at least 2."""

    def text(name: str) -> str:
        own = configs.get(name)
        return GROUP_CONFIGS[name].default(config) if own is None else own

    topic = text("errors.deadletterqueue.topic.name") if allows_dead_letters else ""
    return ShareSettings(
        Rules(
            delivery_count_max=int(text("share.delivery.count.limit")),
            size_max=int(text("share.partition.max.record.locks")),
            has_dead_letters=bool(topic),
            can_renew=text("share.renew.acknowledge.enable").lower() == "true",
        ),
        lock_ms=int(text("share.record.lock.duration.ms")),
        is_committed=text("share.isolation.level") == "read_committed",
        auto_offset_reset=text("share.auto.offset.reset"),
        dead_letter_topic=topic,
        copies_dead_letters=text("errors.deadletterqueue.copy.record.enable").lower() == "true",
    )
