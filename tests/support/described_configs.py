"""The configs of one resource, as DescribeConfigs shows them."""

from __future__ import annotations

from typing import Any

from kproc.wire.header import ApiKey
from tests.support.raw import RawClient


def describe(
    client: RawClient, kind: int, name: str, keys: list[str] | None = None, *, version: int = 4, **more: Any
) -> dict[str, Any]:
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": keys}
    return dict(
        client.call(ApiKey.DESCRIBE_CONFIGS, version, {"resources": [resource], **more})["results"][0]
    )
