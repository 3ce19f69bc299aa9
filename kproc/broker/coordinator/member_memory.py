"""MemberMemory: the memory that the members of all groups of a Handler take, and its limit.

A client can create any number of groups and members, with topic names, protocols or topologies of up to 1 MB in each.
Members with equal subscriptions share one object, so that a large group of one application counts once. The memory of a
member counts as long as the member refers to its HeldMemory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sized
from typing import Any, Final, Generic, NamedTuple, TypeVar
from weakref import WeakValueDictionary

from kproc.broker.config.group_settings import MEMBERS_BYTES_MAX
from kproc.broker.coordinator.memory_limit import CountedMemory, MemoryLimit, bytes_of_texts
from kproc.common.errors import ErrorCode, KafkaError

# A content or an assignment of at most this size is part of MEMBER_BYTES.
SMALL_BYTES: Final = 1 << 10
# The memory of a member beside its texts and a larger content, and of a group without its members and offsets: objects
# and table rows. Measured with 12,000 classic groups of one member.
MEMBER_BYTES: Final = 3 << 10
GROUP_BYTES: Final = 2 << 10
# The memory of an assigned partition in the target and the state of its member, and in the tables of its group.
PARTITION_BYTES: Final = 380
# The memory of a name or protocol beside the string: its place in the tuple, and its row in the counts of its group.
_ROW_BYTES: Final = 80


class SubscriptionContent(NamedTuple):
    """The topic names of a member. For the classic protocol also the name and metadata of each of its protocols."""

    topic_names: tuple[str, ...] = ()
    protocols: tuple[tuple[str, bytes], ...] = ()

    @property
    def size(self) -> int:
        """The bytes of memory that this content takes."""
        names = bytes_of_texts(*self.topic_names)
        protocols = sum(bytes_of_texts(name) + len(metadata) for name, metadata in self.protocols)
        return names + protocols + _ROW_BYTES * (len(self.topic_names) + len(self.protocols))


class GroupContent(NamedTuple):
    """Content that one group, or one member of it, does not share with others. This object has only its size."""

    group_id: str
    member_id: str  # Empty for contents of the group.
    size: int


Content = SubscriptionContent | GroupContent
C = TypeVar("C", bound=Content)


def counted_bytes(size: int) -> int:
    """Return the bytes that count for a content or an assignment of this size. A small one counts as none."""
    return size if size > SMALL_BYTES else 0


def member_bytes(*texts: str | None) -> int:
    """Return the memory of a member without its content.

    `texts`: its ids, rack and host, and the id of its group, because each group can have an id of 32 kB.
    """
    return MEMBER_BYTES + bytes_of_texts(*texts)


class _SharedContent(Generic[C]):
    """A content that members with an equal one share. It counts once, as long as one of them exists."""

    __slots__ = ("__weakref__", "_counted", "content", "member_count")

    def __init__(self, content: C, counted: CountedMemory) -> None:
        self.content = content
        self.member_count = 0
        self._counted = counted

    @property
    def size(self) -> int:
        return self._counted.size


class HeldMemory(Generic[C]):
    """The memory of one member, or of contents of one group. It counts as long as its owner refers to this object."""

    __slots__ = ("_base_bytes", "_counted", "_shared", "content")

    def __init__(self, content: C, counted: CountedMemory, shared: _SharedContent[C] | None) -> None:
        self.content = content
        self._counted = counted
        self._base_bytes = counted.size
        self._shared = shared
        if shared is not None:
            shared.member_count += 1

    @property
    def replaceable_bytes(self) -> int:
        """The bytes that no longer count after this object is replaced.

        The assignment is not among them, because the member keeps it, nor is a content that other members share.
        """
        shared = self._shared
        return self._base_bytes + (shared.size if shared is not None and shared.member_count == 1 else 0)

    def count_assignment(self, size: int) -> None:
        """Count the member's assignment in bytes, in place of its former one."""
        self._counted.resize(self._base_bytes + counted_bytes(size))

    def count_target(self, target: Mapping[bytes, Sized]) -> None:
        """Count the member's target assignment, topic id -> partitions, in place of its former one.

        It is never rejected, because the broker computes it.
        """
        self.count_assignment(PARTITION_BYTES * sum(map(len, target.values())))

    def __del__(self) -> None:
        if self._shared is not None:
            self._shared.member_count -= 1


class MemberMemory:
    """The memory of all members and groups that the coordinators of a Handler have now."""

    __slots__ = ("_shared", "limit")

    def __init__(self, bytes_max: int | None = None) -> None:
        self.limit = MemoryLimit(
            "kproc.group.members.max.bytes", MEMBERS_BYTES_MAX if bytes_max is None else bytes_max
        )
        self._shared: WeakValueDictionary[Content, _SharedContent[Any]] = WeakValueDictionary()

    def has_room(
        self, *contents: Content, own_bytes: int = 0, replaced: HeldMemory[Any] | None = None
    ) -> bool:
        """Return True if there is room for these contents.

        own_bytes: the memory of the members without their contents. `replaced`: the memory that is released when the
        contents are stored. A member that does not grow always has room, and one that grows may use the limit's
        reserve, so that members that work are not rejected.
        """
        sizes = {content: content.size for content in contents}
        # Equal contents count once, and those of present members count already.
        added = own_bytes + sum(
            counted_bytes(size) for content, size in sizes.items() if content not in self._shared
        )
        if replaced is None:
            return self.limit.has_room(added)
        return self.limit.has_room(added - replaced.replaceable_bytes, with_reserve=True)

    def check_room(
        self, *contents: Content, own_bytes: int = 0, replaced: HeldMemory[Any] | None = None
    ) -> None:
        """Raise GROUP_MAX_SIZE_REACHED if `has_room` returns False for these arguments."""
        if not self.has_room(*contents, own_bytes=own_bytes, replaced=replaced):
            raise KafkaError(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                "The members of all groups have reached their limit of memory, "
                f"{self.limit.setting}={self.limit.bytes_max}. Subscribe to fewer topics, or stop other members.",
            )

    def hold_group(self, group_id: str) -> CountedMemory:
        """Count a group until it releases the returned object. It stays for minutes after its members have left."""
        return CountedMemory(self.limit, GROUP_BYTES + bytes_of_texts(group_id))

    def hold(self, content: C, own_bytes: int = 0) -> HeldMemory[C]:
        """Count a content and the other memory of its member. Return the object by which the member holds it.

        The object has the content that the member must store: one that members with an equal content share.
        """
        size = content.size
        if size <= SMALL_BYTES:
            return HeldMemory(content, CountedMemory(self.limit, own_bytes), None)
        shared = self._shared.get(content)
        if shared is None:
            shared = self._shared[content] = _SharedContent(content, CountedMemory(self.limit, size))
        return HeldMemory(shared.content, CountedMemory(self.limit, own_bytes), shared)
