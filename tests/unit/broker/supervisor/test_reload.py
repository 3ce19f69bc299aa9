"""The note of applied settings that a reload leaves for the next start: kproc-reloaded.json."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kproc.broker.config import Config, ConfigError
from kproc.broker.config.dynamic import DynamicSettings
from kproc.broker.storage.fs import StorageFailure
from kproc.broker.storage.os_fs import OsFs
from kproc.broker.supervisor.reload import NOTE_FILE, Reloader, Reread


def reloader(
    directory: Path, reread: Reread | None = None, ask: Callable[..., None] = lambda *_: None
) -> Reloader:
    config = Config.build({"log.dirs": str(directory)})
    return Reloader(config, OsFs(), reread=reread, ask=ask, in_force=DynamicSettings, wall_ms=lambda: 7)


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


@pytest.mark.parametrize("content", [None, "{", "{}", "[" * 100_000])
def test_start_without_former_settings_leaves_empty_note(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / NOTE_FILE).write_text(content)
    reloader(tmp_path).remove_former_settings()


def test_last_reload_keeps_its_problems_until_one_succeeds(tmp_path: Path) -> None:
    files: list[dict[str, str]] = [{"a.b": "1", "c.d": "2"}]
    replies: list[Callable[[dict[str, Any]], None]] = []
    reload = reloader(
        tmp_path,
        reread=lambda: Config.build({"log.dirs": str(tmp_path), **files[-1]}),
        ask=lambda _what, _body, on_reply: replies.append(on_reply),
    )
    assert reload.describe("a problem of the start") is None, "there was no reload yet"
    reload.reload()
    shown = reload.describe(None)
    assert shown is not None
    assert (shown["at_ms"], "a.b" in shown["problem"], "\n" in shown["problem"]) == (7, True, False)
    files.append({"message.max.bytes": "2000", "log.segment.bytes": "3000000"})
    reload.reload()
    for on_reply in replies:
        on_reply({"responses": [{"error_message": "x" * 600}]})
    shown = reload.describe("the key is damaged")
    assert shown is not None
    assert shown["problem"].count(" is refused: ") == 2
    assert len(shown["problem"]) == 1000
    files.append({})
    reload.reload()
    assert reload.describe("the key is damaged") == {"at_ms": 7, "problem": "the key is damaged"}
    assert reload.describe(None) == {"at_ms": 7, "problem": None}
