"""LargeContents: the large contents of requests that a Handler's groups keep, and the limit of their memory.

A client can join any number of groups, with topic names, protocols or topologies of 1 MB in each. Members with equal
subscriptions share one object, so that a large group of one application counts once. An entry is weak: it disappears
when its last member or its group releases it, or when the group or coordinator is removed.
"""

from __future__ import annotations

from sys import getsizeof
from typing import Any, Final, Generic, NamedTuple, TypeVar
from weakref import WeakValueDictionary

from kproc.common.errors import ErrorCode, KafkaError

# Only contents with more than LARGE_BYTES bytes are counted. All counted contents of a Handler together may have
# LARGE_BYTES_MAX bytes. Kafka's clients send some hundred bytes.
LARGE_BYTES: Final = 16 << 10
LARGE_BYTES_MAX: Final = 64 << 20
# The memory of a name or protocol beside the string: its place in the tuple, and its row in the counts of its group.
_ROW_BYTES: Final = 80


class SubscriptionContent(NamedTuple):
    """The topic names of a member. For the classic protocol also the name and metadata of each of its protocols."""

    topic_names: tuple[str, ...] = ()
    protocols: tuple[tuple[str, bytes], ...] = ()

    @property
    def size(self) -> int:
        """The bytes of memory that this content takes, which count towards LARGE_BYTES_MAX."""
        # Python's size of a string, because one unusual character makes each character of a name take 4 bytes.
        names = sum(map(getsizeof, self.topic_names))
        protocols = sum(getsizeof(name) + len(metadata) for name, metadata in self.protocols)
        return names + protocols + _ROW_BYTES * (len(self.topic_names) + len(self.protocols))


class GroupContent(NamedTuple):
    """Content that one group, or one member of it, does not share with others. Only its size is known here."""

    group_id: str
    member_id: str  # Empty for contents of the group.
    size: int


Content = SubscriptionContent | GroupContent
C = TypeVar("C", bound=Content)


class LargeContent(Generic[C]):
    """Content of more than LARGE_BYTES. The group or the members that have it refer to this object."""

    __slots__ = ("__weakref__", "content", "size")

    def __init__(self, content: C, size: int) -> None:
        self.content = content
        self.size = size


class LargeContents:
    """The large contents that members and groups have now."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: WeakValueDictionary[Content, LargeContent[Any]] = WeakValueDictionary()

    def has_room(self, *contents: Content, replaced: LargeContent[Any] | None = None) -> bool:
        """Return True if these contents may be stored. `replaced`: the content that they replace.

        `replaced` does not count, although other members can share it. So the bytes can be above the limit by those of
        one content.
        """
        sizes = ((each, each.size) for each in contents)
        added = {each: size for each, size in sizes if size > LARGE_BYTES and each not in self._known}
        # Small contents do not count, and a content that is known already costs nothing, because members
        # share it.
        if not added:
            return True
        held = sum(each.size for each in self._known.values() if each is not replaced)
        return held + sum(added.values()) <= LARGE_BYTES_MAX

    def check_room(self, *contents: Content, replaced: LargeContent[Any] | None = None) -> None:
        """Raise GROUP_MAX_SIZE_REACHED unless `has_room`."""
        if not self.has_room(*contents, replaced=replaced):
            raise KafkaError(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"Subscriptions and topologies longer than {LARGE_BYTES >> 10} KiB have reached their limit of "
                f"{LARGE_BYTES_MAX >> 20} MiB for all groups. Subscribe to fewer topics, or stop other groups.",
            )

    def share(self, content: C) -> LargeContent[C] | None:
        """Return the object that members with this content share, and count it. None for a small content."""
        size = content.size
        if size <= LARGE_BYTES:
            return None
        known = self._known.get(content)
        if known is None:
            known = self._known[content] = LargeContent(content, size)
        return known
