"""Preload: the modules that the supervisor imports before the first fork, by the settings."""

from __future__ import annotations

import importlib

import pytest

from kproc.broker.config import Config
from kproc.broker.supervisor import preload


def test_settings_decide_about_preloaded_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    imported: list[str] = []
    monkeypatch.setattr(importlib, "import_module", imported.append)
    for settings, expected in (
        ({}, None),
        # Each restore of a snapshot forks a controller and a cleaner, which would import it again.
        ({"kproc.faults.enable": "true"}, "kproc.broker.faults.disk"),
        ({"listeners": "SSL://127.0.0.1:0"}, "kproc.broker.processor.tls_connections"),
    ):
        preload.load(Config.build({"log.dirs": "data", **settings}))
        assert imported[:1] == ([] if expected is None else [expected])
        imported.clear()
