"""Settings are put into a configuration file without touching anything else in it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from kproc.broker.config.sources import read_settings_file
from kproc.broker.config.values import ConfigError
from kproc.common.regular_file import FILE_BYTES_MAX
from kproc.tools.tune.config_file import diff, edited, read, write

WANTED = {"num.network.threads": "3", "num.io.threads": "5"}


def after(tmp_path, name: str, text: str) -> dict:
    """What serve --config would read from the edited text."""
    path = tmp_path / name
    path.write_text(edited(text, WANTED, is_toml=name.endswith(".toml")))
    return {key: str(written.value) for key, written in read_settings_file(path).items()}


PROPERTIES = """# our broker
num.network.threads=2
log.dirs : /srv/kproc
! also a comment: num.io.threads=9
   num.io.threads   8
compression.type=a\\
num.io.threads=77
"""


def test_properties_keep_their_comments_and_order():
    new = edited(PROPERTIES, WANTED, is_toml=False)
    assert new.splitlines() == [
        "# our broker",
        "num.network.threads=3",
        "log.dirs : /srv/kproc",
        "! also a comment: num.io.threads=9",
        "   num.io.threads   5",
        "compression.type=a\\",
        "num.io.threads=77",  # the continued line above: not a setting
    ]


def test_missing_property_is_appended(tmp_path):
    new = edited("log.dirs=/x", WANTED, is_toml=False)
    assert new == "log.dirs=/x\n# by kproc tune\nnum.network.threads=3\nnum.io.threads=5\n"
    assert after(tmp_path, "a.properties", "") == WANTED


@pytest.mark.parametrize(
    "text",
    [
        "num.network.threads = 1  # few\nnum.io.threads=2\n[log]\nretention.hours = 3\n",
        '"num.network.threads" = 1\n"num.io.threads" = 2\nlog.retention.hours = 3\n',
        "[num.network]\nthreads = 1\n[num.io]\nthreads = 2\n[log.retention]\nhours = 3\n",
        "log.retention.hours = 3\n[num]\nio.threads = 4\n",
        "# only a comment\n\n# about log\n[log]\nretention.hours = 3\n",
    ],
)
def test_toml_of_every_shape_reads_as_wanted(tmp_path, text):
    assert after(tmp_path, "a.toml", text) == {**WANTED, "log.retention.hours": "3"}


def test_toml_edit_keeps_comments_and_blank_lines():
    text = "# top\nnum.io.threads = 2   # two\n\n# about log\n[log]\nretention.hours = 3\n"
    assert edited(text, WANTED, is_toml=True) == (
        "# top\nnum.io.threads = 5   # two\n\n"
        '# by kproc tune\n"num.network.threads" = 3\n# about log\n[log]\nretention.hours = 3\n'
    )


def test_key_inside_long_string_is_kept_or_edit_rejected():
    text = 'note = """\nnum.io.threads = 2\n"""\n'
    with pytest.raises(ConfigError, match=r"change it by hand: num\.network\.threads=3"):
        edited(text, WANTED, is_toml=True)


def test_invalid_toml_is_rejected():
    nested, digits = "[" * 10_000, "9" * 5_000
    for text in ("num.io.threads = = 2\n", f"a = {nested}\n", f"a = {digits}\n"):
        with pytest.raises(ConfigError, match="not TOML"):
            edited(text, WANTED, is_toml=True)


def test_line_ends_stay_as_they_are():
    new = edited("num.io.threads=2\r\nlog.dirs=/x\r\n", WANTED, is_toml=False)
    assert new == "num.io.threads=5\r\nlog.dirs=/x\r\n# by kproc tune\r\nnum.network.threads=3\r\n"


def test_editing_twice_changes_nothing(tmp_path):
    once = edited(PROPERTIES, WANTED, is_toml=False)
    again = edited(once, WANTED, is_toml=False)
    assert again == once
    assert diff(once, again, tmp_path) == ""


def test_write_keeps_mode_and_link_and_leaves_no_other_file(tmp_path):
    target = tmp_path / "server.properties"
    target.write_text("a=1\n")
    target.chmod(0o640)
    link = tmp_path / "link.properties"
    link.symlink_to(target)
    write(link, "a=2\n")
    assert link.is_symlink()
    assert target.read_text() == "a=2\n"
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    assert sorted(os.listdir(tmp_path)) == ["link.properties", "server.properties"]


def test_only_regular_file_is_read_for_an_edit(tmp_path):
    """A FIFO blocked the command, and /dev/zero filled the memory."""
    fifo, large = tmp_path / "fifo", tmp_path / "large"
    os.mkfifo(fifo)
    large.touch()
    os.truncate(large, FILE_BYTES_MAX + 1)
    for path, problem in (
        (Path("/dev/zero"), "Not a regular file"),
        (fifo, "Not a regular file"),
        (large, f"Larger than {FILE_BYTES_MAX} bytes"),
    ):
        with pytest.raises(ConfigError, match=f"^cannot read {path}: {problem}$"):
            read(path)


def test_write_refuses_to_replace_what_is_no_file(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(ConfigError, match="is not a regular file"):
        write(path, "a=1")
    assert path.is_fifo()


def test_a_failed_write_leaves_the_file_and_nothing_else(tmp_path, monkeypatch):
    target = tmp_path / "a.toml"
    target.write_text("a = 1\n")

    def fails(_fd):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(OSError, match="No space"):
        write(target, "a = 2\n")
    assert target.read_text() == "a = 1\n"
    assert os.listdir(tmp_path) == ["a.toml"]


def test_a_file_that_is_not_there_reads_as_empty(tmp_path):
    assert read(tmp_path / "none.toml") == ""
    (tmp_path / "latin.properties").write_bytes(b"a=\xe4\n")
    with pytest.raises(ConfigError, match="not UTF-8 at byte 2"):
        read(tmp_path / "latin.properties")
