"""Features (KIP-584): what this broker supports, what is finalised, and the rules of UpdateFeatures.

The rows are Kafka 4.4's, so that `kafka-features.sh upgrade --release-version` can raise all of them. Errors have
Kafka's codes and messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from kproc.broker.cluster import records as r
from kproc.broker.cluster.image import ClusterImage
from kproc.common.errors import ErrorCode, KafkaError

METADATA_VERSION: Final = "metadata.version"
KRAFT_VERSION: Final = "kraft.version"
TRANSACTION_VERSION: Final = "transaction.version"
GROUP_VERSION: Final = "group.version"
STREAMS_VERSION: Final = "streams.version"
SHARE_VERSION: Final = "share.version"
UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3


class Feature(NamedTuple):
    """A feature: the levels that can be set, and `initial`, its level in a cluster that has no record of it."""

    name: str
    lowest: int
    highest: int
    initial: int


# metadata.version: 33 is 4.4-IV2. 30 is 4.3-IV0, the level of an older cluster until somebody raises it. 7 is 3.3-IV3,
# the oldest that Kafka 4 still reads. The level promises formats of Kafka's metadata log, which no client reads. Ours
# has a version of its own, see records.py.
FEATURES: tuple[Feature, ...] = (
    # Level 1: leaders are elected among the eligible replicas (KIP-966). With one replica, no election has a choice.
    Feature("eligible.leader.replicas.version", 0, 1, 0),
    # Level 1: consumer groups of KIP-848.
    Feature(GROUP_VERSION, 0, 1, 0),
    # Level 1: voters of the controllers' quorum can change (KIP-853). There is one voter, and no API that adds another.
    Feature(KRAFT_VERSION, 0, 1, 0),
    Feature(METADATA_VERSION, 7, 33, 30),
    # Level 1: share groups (KIP-932). Level 2: dead letter topics (KIP-1191).
    Feature(SHARE_VERSION, 0, 2, 0),
    # Level 1: streams groups (KIP-1071).
    Feature(STREAMS_VERSION, 0, 1, 0),
    # Level 1: flexible records. Level 2: an epoch for each transaction, and Produce adds its partitions (KIP-890). An
    # existing cluster keeps its level until somebody raises it.
    Feature(TRANSACTION_VERSION, 0, 2, 0),
)
_BY_NAME = {feature.name: feature for feature in FEATURES}
# ApiVersions before v4 cannot say that a minimum is 0: such features are left out there (KIP-1022).
_ZERO_MINIMUM_SINCE: Final = 4

# The metadata.version 4.1-IV0. From this version on, a new cluster of Kafka elects eligible leaders (KIP-966).
_ELIGIBLE_LEADERS_SINCE: Final = 26

_OF_NEW_CLUSTERS: Final = (
    TRANSACTION_VERSION,
    GROUP_VERSION,
    SHARE_VERSION,
    STREAMS_VERSION,
    METADATA_VERSION,
)

Reply = dict[str, Any]


def restrict(ranges: Mapping[str, tuple[int, int]]) -> None:
    """Advertise only these features, with these (lowest, highest) levels, in the whole process.

    They are those of the Kafka release that kproc.emulate.release names.
    """
    global FEATURES, _BY_NAME
    limits = {name: ranges.get(name, (0, 0)) for name in _BY_NAME}
    _BY_NAME = {
        name: Feature(name, limits[name][0], min(each.highest, high), min(each.initial, high))
        for name, each in _BY_NAME.items()
        for high in (limits[name][1],)
    }
    FEATURES = tuple(_BY_NAME[each.name] for each in FEATURES if each.name in ranges)


def levels_of_new_cluster() -> list[r.FeatureLevelSet]:
    """Return the feature records of a new cluster.

    A cluster of an older kproc has no such records, and each feature keeps its initial level until it is raised.
    """
    found = (_BY_NAME[name] for name in _OF_NEW_CLUSTERS)
    return [r.FeatureLevelSet(feature.name, feature.highest) for feature in found if feature.highest > 0]


def has_default_of_in_sync_replicas() -> bool:
    """Return True if a new cluster stores min.insync.replicas as a dynamic default.

    Kafka does so since its new clusters elect eligible leaders (KIP-966).
    """
    return _BY_NAME[METADATA_VERSION].highest >= _ELIGIBLE_LEADERS_SINCE


def unsupported_level(image: ClusterImage) -> str | None:
    """Return an error for a feature whose level in the metadata is too high for this broker.

    None: all are supported.
    """
    for name, level in image.feature_levels.items():
        # This release cannot know what a feature of a newer release changes in the data, so any level of it
        # is too high.
        highest = _BY_NAME[name].highest if name in _BY_NAME else 0
        if level > highest:
            return f"the metadata have {name} at level {level}, and this broker supports at most {highest}"
    return None


def transaction_version(image: ClusterImage) -> int:
    """Return the finalised level of transaction.version."""
    return level_of(image, _BY_NAME[TRANSACTION_VERSION])


def group_version(image: ClusterImage) -> int:
    """Return the finalised level of group.version."""
    return level_of(image, _BY_NAME[GROUP_VERSION])


def share_version(image: ClusterImage) -> int:
    """Return the finalised level of share.version."""
    return level_of(image, _BY_NAME[SHARE_VERSION])


def streams_version(image: ClusterImage) -> int:
    """Return the finalised level of streams.version."""
    return level_of(image, _BY_NAME[STREAMS_VERSION])


def level_of(image: ClusterImage, feature: Feature) -> int:
    """Return the finalised level of a feature."""
    return image.feature_levels.get(feature.name, feature.initial)


def advertised(image: ClusterImage, api_version: int) -> dict[str, Any]:
    """Return the tagged fields of an ApiVersions response (v3+).

    As in Kafka, the epoch is the number of the last change of the metadata, not the level of metadata.version.
    """
    if not FEATURES:
        return {}  # A release without features, which is emulated.
    shown = [
        {"name": feature.name, "min_version": feature.lowest, "max_version": feature.highest}
        for feature in FEATURES
        if feature.lowest > 0 or api_version >= _ZERO_MINIMUM_SINCE
    ]
    levels = [(feature.name, level_of(image, feature)) for feature in FEATURES]
    return {
        "supported_features": shown,
        "finalized_features_epoch": image.version,
        "finalized_features": [
            # With one node the finalised range is a single level.
            {"name": name, "max_version_level": level, "min_version_level": level}
            for name, level in levels
            # KIP-1022: level 0 means that a feature is off, so it has no finalised level to show.
            if level > 0
        ],
    }


def update(image: ClusterImage, node_id: int, body: dict[str, Any]) -> tuple[Reply, list[r.Record]]:
    """Handle UpdateFeatures: all entries or none. The reply has v1's rows in `results`, and the fields of v2."""
    levels: dict[str, int] = {}
    for wish in body["feature_updates"]:
        try:
            # Validate all entries before the first record, because the request succeeds or fails as a whole.
            levels[wish["feature"]] = _new_level(image, node_id, wish)
        except KafkaError as error:
            why = f"The update failed for all features since the following feature had an error: {error.message}"
            raise KafkaError(error.code, why) from error
    results = [
        {"feature": wish["feature"], "error_code": int(ErrorCode.NONE), "error_message": "NONE"}
        for wish in body["feature_updates"]
    ]
    reply: Reply = {"error_code": int(ErrorCode.NONE), "error_message": None, "results": results}
    if body["validate_only"]:
        return reply, []
    return reply, [
        r.FeatureLevelSet(name, level)
        for name, level in levels.items()
        if level != level_of(image, _BY_NAME[name])
    ]


def _new_level(image: ClusterImage, node_id: int, wish: dict[str, Any]) -> int:
    """Return the level that an entry of UpdateFeatures, `wish`, requests.

    Raise KafkaError(INVALID_UPDATE_VERSION) with the reason if the entry is invalid.
    """
    name, level, kind = wish["feature"], int(wish["max_version_level"]), wish["upgrade_type"]
    problem = _find_problem(image, node_id, name, level, kind)
    if problem is not None:
        raise KafkaError(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"Invalid update version {level} for feature {name}. {problem}",
        )
    # KIP-584: a lower metadata.version would drop records that the older version does not know.
    present = level_of(image, _BY_NAME[name])
    if name == METADATA_VERSION and level < present:
        why = (
            "Unsafe metadata downgrade is not supported in this version."
            if kind == UNSAFE_DOWNGRADE
            else "Refusing to perform the requested downgrade because it might delete metadata information."
        )
        raise KafkaError(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"Unsupported metadata.version downgrade from {present} to {level}. {why}",
        )
    return level


def _find_problem(image: ClusterImage, node_id: int, name: str, level: int, kind: int) -> str | None:
    """Return Kafka's message for an invalid entry of UpdateFeatures, or None if the entry is valid.

    kind: the upgrade type, such as SAFE_DOWNGRADE.
    """
    feature = next((each for each in FEATURES if each.name == name), None)
    if kind not in (UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE):
        return "The controller does not support the given upgrade type."
    if feature is None:
        return f"Local controller {node_id} does not support this feature."
    if level < 0:
        return "A feature version cannot be less than 0."
    if not feature.lowest <= level <= feature.highest:
        return f"Local controller {node_id} only supports versions {feature.lowest}-{feature.highest}"
    present = level_of(image, feature)
    # KIP-584: a downgrade must be requested as one, because it can lose information.
    if level < present and kind == UPGRADE:
        return (
            "Can't downgrade the version of this feature without setting the upgrade type to either safe or "
            "unsafe downgrade."
        )
    if level > present and kind != UPGRADE:
        return "Can't downgrade to a newer version."
    if name == KRAFT_VERSION and level < present:
        return "Can't downgrade the version of this feature."
    return None
