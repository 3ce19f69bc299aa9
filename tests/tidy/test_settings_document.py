"""SETTINGS.md is what scripts/settings-reference writes."""

from __future__ import annotations

import runpy

from tests.tidy.sources import ROOT


def test_settings_document_is_current() -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "settings-reference"))
    assert script["DOCUMENT"].read_text(encoding="utf-8") == script["document"](), "run scripts/settings-reference"
