"""Calls to the coordinators of consumer groups. Each of the groups' APIs adds its operation."""

from __future__ import annotations

from typing import Final

from kproc.broker.cluster.internal_topics import GROUP_METADATA_TOPIC
from kproc.broker.group.coordinator import GroupCoordinator
from kproc.broker.peers.coordinator_call import CoordinatorCalls

GROUPS: Final[CoordinatorCalls[GroupCoordinator]] = CoordinatorCalls("group", GROUP_METADATA_TOPIC)
