"""The note of applied settings that a reload leaves for the next start: kproc-reloaded.json."""

from __future__ import annotations

from pathlib import Path

import pytest

from kproc.broker.config import Config, ConfigError
from kproc.broker.config.dynamic import DynamicSettings
from kproc.broker.storage.fs import OsFs, StorageFailure
from kproc.broker.supervisor.reload import NOTE_FILE, Reloader


def reloader(directory: Path) -> Reloader:
    config = Config.build({"log.dirs": str(directory)})
    return Reloader(config, OsFs(), reread=None, ask=lambda *_: None, in_force=DynamicSettings)


@pytest.mark.parametrize("content", ["[]", "null", "3", '"x"', "[" + "1," * 500 + "1]"])
def test_note_that_is_no_object_is_rejected_in_one_line(tmp_path: Path, content: str) -> None:
    (tmp_path / NOTE_FILE).write_text(content)
    with pytest.raises(
        ConfigError, match=f"{NOTE_FILE}: expected a JSON object .*; remove the file"
    ) as caught:
        reloader(tmp_path).remove_former_settings()
    assert len(str(caught.value).splitlines()) == 1
    assert (tmp_path / NOTE_FILE).read_text() == content


def test_directory_in_place_of_note_is_rejected(tmp_path: Path) -> None:
    (tmp_path / NOTE_FILE).mkdir()
    with pytest.raises(StorageFailure, match=f"{NOTE_FILE}: Is a directory"):
        reloader(tmp_path).remove_former_settings()


@pytest.mark.parametrize("content", [None, "{", "{}"])
def test_start_without_former_settings_leaves_empty_note(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / NOTE_FILE).write_text(content)
    reloader(tmp_path).remove_former_settings()
