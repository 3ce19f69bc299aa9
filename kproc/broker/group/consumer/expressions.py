"""Expressions: when a consumer group matches its regular expressions with the topics again (KIP-848)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kproc.broker.group.consumer.environment import ConsumerEnvironment
from kproc.broker.group.consumer.records import ExpressionTopics
from kproc.broker.group.consumer.state import ConsumerGroupState
from kproc.common.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kproc.broker.security.principal import Identity

# The least time between two resolutions of an expression (Kafka's REGEX_BATCH_REFRESH_MIN_INTERVAL_MS).
EXPRESSION_REFRESH_MIN_MS: Final = 10_000
# Limit of the different expressions of a group, each of which stores the names of its topics.
EXPRESSIONS_MAX: Final = 100


class Expressions:
    """The last matches of one group's expressions with the topics, made by this coordinator."""

    __slots__ = ("_environment", "_resolved", "_state")

    def __init__(self, state: ConsumerGroupState, environment: ConsumerEnvironment) -> None:
        self._state = state
        self._environment = environment
        # Expression -> (version of the metadata, monotonic ms) of its last resolution.
        self._resolved: dict[str, tuple[int, int]] = {}

    def resolve(self, expression: str, client: Identity, now_ms: int) -> ExpressionTopics | None:
        """Match an expression with the topics. Return the topics if they have changed, else None.

        Also return None without matching if the last match is recent, or if the Handler has used up its time for
        matching. A later heartbeat tries again. Until then the expression keeps its topics, and a new one has none. In
        Kafka a new expression has no topics at first, too, because Kafka always matches after the response.
        """
        version = self._environment.cluster.topics.version
        known = self._state.expressions.get(expression)
        if known is not None and expression in self._resolved:
            resolved_version, resolved_ms = self._resolved[expression]
            age_ms = now_ms - resolved_ms
            is_old = age_ms >= self._environment.config.group_consumer_regex_refresh_interval_ms
            if not is_old and (version == resolved_version or age_ms < EXPRESSION_REFRESH_MIN_MS):
                return None
        if known is None and len(self._state.expressions) >= EXPRESSIONS_MAX:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"The group has {EXPRESSIONS_MAX} different regular expressions, which is the limit. Use one of them.",
            )
        names = self._environment.cluster.match_topics(expression, client)
        # The Handler has used up its time for matching. A later heartbeat tries again.
        if names is None:
            return None
        if known is not None and names == known.topic_names:
            self._resolved[expression] = version, now_ms
            return None
        return ExpressionTopics(names, version, self._environment.wall_ms())

    def store(self, expression: str, resolved: ExpressionTopics, now_ms: int) -> None:
        """Store when an expression was matched, after its record was appended.

        Without this call, because the append failed, the next heartbeat matches the expression again.
        """
        self._resolved[expression] = resolved.version, now_ms

    def discard_unused(self) -> None:
        """Discard the matches of expressions that the group does not have any more."""
        for expression in self._resolved.keys() - self._state.expressions.keys():
            del self._resolved[expression]
