"""What may be asked of the coordinators of consumer groups: each of the groups' APIs adds its operation."""

from __future__ import annotations

from typing import Final

from kproc.api.coordinator_call import CoordinatorCalls
from kproc.cluster.internal_topics import GROUP_METADATA_TOPIC
from kproc.group.coordinator import GroupCoordinator

GROUPS: Final[CoordinatorCalls[GroupCoordinator]] = CoordinatorCalls("group", GROUP_METADATA_TOPIC)
