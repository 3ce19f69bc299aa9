"""Errors of a settings file have the line of their setting."""

from __future__ import annotations

import pytest

from kproc.broker.config import Config, ConfigError, read_settings_file


@pytest.mark.parametrize(
    "content",
    [
        b"a = ",
        b"a = '\xff'",
        b"max.connections = 1\nmax.connections.per.ip = 2\n",
        b"a = " + b"[" * 10_000,
        b".".join([b"a"] * 3_000) + b" = 1\n",
    ],
    ids=["no value", "not UTF-8", "a table and a value", "brackets", "dotted name"],
)
def test_a_broken_toml_file_is_one_line(tmp_path, content):
    file = tmp_path / "k.toml"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=r"k\.toml is not TOML"):
        read_settings_file(file)


def test_all_errors_of_file_are_reported_with_lines(tmp_path):
    file = tmp_path / "server.properties"
    file.write_text(
        "# a comment\nnum.io.threads=x\n\nlog.segment.bytes=\\\n  -5\nno.such=1\nnum.partitions=2\n"
    )
    with pytest.raises(ConfigError) as raised:
        Config.build({"kproc.flush": "always"}, file=file)
    lines = str(raised.value).splitlines()
    assert [line.partition(": ")[0] for line in lines[:3]] == [f"{file}:{number}" for number in (2, 4, 6)]
    assert "num.io.threads" in lines[0]
    assert "log.segment.bytes" in lines[1]
    assert "unknown setting no.such" in lines[2]
    assert lines[3].startswith("kproc.flush=always")

    toml = tmp_path / "kproc.toml"
    toml.write_text('"num.io.threads" = "x"\n\n[log]\nretention.ms = "y"\n')
    with pytest.raises(ConfigError) as raised:
        Config.build(file=toml)
    assert [line.partition(": ")[0] for line in str(raised.value).splitlines()] == [f"{toml}:1", f"{toml}:4"]


@pytest.mark.parametrize("value", ["9" * 5000, "0x" + "f" * 5000, "nan", "inf", "1e999"])
@pytest.mark.parametrize("name", ["log.retention.ms", "log.cleaner.io.max.bytes.per.second"])
def test_toml_file_with_unusable_number_is_rejected_in_one_line(tmp_path, name, value):
    file = tmp_path / "kproc.toml"
    file.write_text(f'"{name}" = {value}\n')
    with pytest.raises(ConfigError) as caught:
        Config.build({}, file=file)
    assert len(str(caught.value).splitlines()) == 1
    assert len(str(caught.value).replace(str(file), "")) < 250
