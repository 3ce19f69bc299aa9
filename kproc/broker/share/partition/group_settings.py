"""ShareSettings: the group configs that decide how a share partition delivers its records."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from kproc.broker.cluster.features import share_version
from kproc.broker.cluster.group_config import GROUP_CONFIGS, by_duration_ms
from kproc.broker.share.partition.in_flight import Rules
from kproc.common.reading import EARLIEST, LATEST

if TYPE_CHECKING:
    from kproc.broker.config import Config
    from kproc.broker.request.context import Services

# Limits of the cache. Clients choose the names of groups.
_GROUPS_MAX: Final = 10_000
_NAME_MAX: Final = 249  # The settings of groups with longer ids are not cached.
_DEAD_LETTERS_SINCE: Final = 2  # From this level of the feature share.version on.


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
        duration_ms = by_duration_ms(self.auto_offset_reset)
        return LATEST if duration_ms is None else max(0, wall_ms - duration_ms)


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


class SettingsCache:
    """The settings of the groups of one Handler.

    group_configs: returns the configs of a group by their names.
    """

    def __init__(self, services: Services, group_configs: Callable[[str], Mapping[str, str]]) -> None:
        self._services = services
        self._group_configs = group_configs
        self._known: dict[str, ShareSettings] = {}
        self._version = -1  # The version of the metadata of the settings in `_known`.

    def __len__(self) -> int:
        return len(self._known)

    def of_group(self, group_id: str) -> ShareSettings:
        """Return the present settings of a group.

        Computed once for each version of the metadata, as far as the table has room.
        """
        image = self._services.image
        if self._version != image.version:
            self._known.clear()
            self._version = image.version
        settings = self._known.get(group_id)
        if settings is None:
            allows_dead_letters = share_version(image) >= _DEAD_LETTERS_SINCE
            configs, config = self._group_configs(group_id), self._services.config
            settings = share_settings(configs, config, allows_dead_letters=allows_dead_letters)
            if len(group_id) <= _NAME_MAX:
                if len(self._known) >= _GROUPS_MAX:
                    self._known.clear()
                self._known[group_id] = settings
        return settings
