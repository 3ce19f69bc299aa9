"""UpdateFeatures, and the features in ApiVersions."""

from __future__ import annotations

from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.raw import RawClient


def test_api_versions_lists_features(client: RawClient) -> None:
    who = {"client_software_name": "t", "client_software_version": "1"}
    older, newer = (client.call(ApiKey.API_VERSIONS, version, who) for version in (3, 4))
    finalized = {row["name"]: row["max_version_level"] for row in newer["finalized_features"]}
    assert finalized["metadata.version"] == 33
    assert newer["finalized_features_epoch"] >= 0
    assert [row["name"] for row in older["supported_features"]] == ["metadata.version"]
    supported = {row["name"]: (row["min_version"], row["max_version"]) for row in newer["supported_features"]}
    assert supported["metadata.version"] == (7, 33)
    assert {"group.version", "transaction.version", "kraft.version"} <= set(supported)
    assert all(low <= finalized.get(name, 0) <= high for name, (low, high) in supported.items())


def test_update_features_validates_levels(client: RawClient) -> None:
    def update(name: str, level: int, kind: int, *, version: int = 2) -> tuple[int, str]:
        row = {"feature": name, "max_version_level": level, "upgrade_type": kind, "allow_downgrade": False}
        fields = {"timeout": 1_000, "feature_updates": [row], "validate_only": True}
        answer = client.call(ApiKey.UPDATE_FEATURES, version, fields)
        return answer["error_code"], answer["error_message"] or ""

    invalid = ErrorCode.INVALID_UPDATE_VERSION
    assert [update("metadata.version", 33, 1, version=version)[0] for version in range(3)] == [0, 0, 0]
    for name, level, kind, words in (
        ("metadata.version", 20, 1, "Can't downgrade the version of this feature without setting"),
        ("metadata.version", 20, 2, "Refusing to perform the requested downgrade"),
        ("metadata.version", 20, 3, "Unsafe metadata downgrade is not supported in this version."),
        ("metadata.version", 99, 1, "only supports versions 7-33"),
        ("no.such", 1, 1, "does not support this feature."),
        ("group.version", -1, 1, "A feature version cannot be less than 0."),
        ("group.version", 0, 9, "The controller does not support the given upgrade type."),
    ):
        code, message = update(name, level, kind)
        assert (code, words in message) == (invalid, True), message
