"""The limit of descriptors decides how many cold segments stay open."""

from __future__ import annotations

import resource

import pytest

from kproc.broker.config.descriptor_limit import share_of_descriptors


def test_budget_follows_the_limit_of_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit, share in ((1024, 85), (12, 2), (1 << 20, 1000), (resource.RLIM_INFINITY, 1000)):
        monkeypatch.setattr(resource, "getrlimit", lambda _which, limit=limit: (limit, limit))
        assert share_of_descriptors(12, most=1000) == share
