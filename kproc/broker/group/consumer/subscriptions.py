"""Subscriptions: how many members of a consumer group subscribe to what, so that no request visits all members."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from kproc.broker.group.consumer.records import ExpressionTopics, MemberMetadata


class Subscriptions:
    """The numbers of members that subscribe to a topic name, use an expression, or prefer an assignor."""

    __slots__ = ("_assignors", "_expressions", "_names")

    def __init__(self) -> None:
        self._names: Counter[str] = Counter()
        self._expressions: Counter[str] = Counter()
        self._assignors: Counter[str] = Counter()

    def after(self, removed: Sequence[MemberMetadata], added: Sequence[MemberMetadata] = ()) -> Subscriptions:
        """Return a copy without the subscriptions `removed` and with those of `added`. This object stays as it is."""
        after = Subscriptions()
        after._names, after._expressions = self._names.copy(), self._expressions.copy()
        after._assignors = self._assignors.copy()
        for metadata in removed:
            after.remove(metadata)
        for metadata in added:
            after.add(metadata)
        return after

    def add(self, metadata: MemberMetadata) -> None:
        """Count the subscription of a member."""
        self._names.update(metadata.topic_names)
        self._expressions[metadata.topic_regex or ""] += 1
        self._assignors[metadata.assignor or ""] += 1

    def remove(self, metadata: MemberMetadata) -> None:
        """Subtract the subscription of a member from the counts."""
        _subtract(self._names, *metadata.topic_names)
        _subtract(self._expressions, metadata.topic_regex or "")
        _subtract(self._assignors, metadata.assignor or "")

    def names(self, expressions: Mapping[str, ExpressionTopics]) -> frozenset[str]:
        """Return the names of all topics to which members subscribe. Some of them may not exist."""
        used = (
            topics.topic_names
            for expression, topics in expressions.items()
            if self.has_expression(expression)
        )
        return frozenset(self._names).union(*used)

    def has_topic(self, name: str, expressions: Mapping[str, ExpressionTopics]) -> bool:
        """Return True if a member subscribes to a topic, by its name or by an expression."""
        return name in self._names or any(
            name in topics.topic_names and self.has_expression(expression)
            for expression, topics in expressions.items()
        )

    def has_expression(self, expression: str) -> bool:
        """Return True if a member subscribes by this expression."""
        return self._expressions[expression] > 0

    def preferred_assignor(self, supported: Sequence[str]) -> str:
        """Return the assignor that most members prefer. With equal votes it is the first one of `supported`."""
        return max(supported, key=lambda name: self._assignors[name])


def _subtract(counter: Counter[str], *names: str) -> None:
    """Subtract one from the count of each name. Remove names without users, so that the Counter stays small."""
    for name in names:
        counter[name] -= 1
        if counter[name] <= 0:
            del counter[name]
