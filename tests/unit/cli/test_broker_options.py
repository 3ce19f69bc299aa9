"""Options of `kproc serve` and `kproc dev`."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from kproc.broker.config import Config, ConfigError
from kproc.cli.broker_options import _is_ready_file
from kproc.cli.main import run
from kproc.cli.serve import SERVE
from tests.support.kproc_command import ROOT
from tests.support.wait import PATIENCE_SECONDS


def test_serve_help_shows_every_default_like_other_help(capsys):
    with pytest.raises(SystemExit):
        run(["serve", "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "Usage: kproc serve [OPTIONS] Run a broker" in shown
    assert "Options: -h, --help Show this message and exit." in shown
    assert "[kproc.flush; default: group]" in shown
    assert "[listeners; default: PLAINTEXT://127.0.0.1:9092]" in shown


@pytest.mark.parametrize(
    ("typed", "found"), [("kproc serve --li", "--listeners"), ("kproc dev --po", "--port")]
)
@pytest.mark.long
def test_a_shell_completes_the_options_of_serve_and_dev(typed, found):
    environ = {**os.environ, "_KPROC_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": "2"}
    done = subprocess.run(
        [sys.executable, "-c", "import sys; sys.argv[0] = 'kproc'; from kproc.cli.main import main; main()"],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.stdout.split() == [found]


def test_serve_takes_a_port_as_dev_does_and_not_beside_listeners(capsys):
    assert run(["serve", "--port", "0", "--listeners", "PLAINTEXT://:1"]) == 2
    assert "give --port or --listeners, not both" in capsys.readouterr().err
    assert run(["serve", "--port", "70000"]) == 2
    assert "--port 70000: must be from 0 to 65535" in capsys.readouterr().err


def test_empty_data_directory_is_not_the_working_directory() -> None:
    given, _ = SERVE.parse_known_args(["--data", ""])
    (flag,) = SERVE._flags(given)
    with pytest.raises(ConfigError, match=r"^log\.dirs: must name a directory$"):
        Config.build({}, flags=[flag])


def test_ready_file_is_an_object_with_an_address() -> None:
    """A broker replaces and removes its ready file, so that any other file must be kept."""
    for content in (b"", b'{"bootstrap": "127.0.0.1:9092"}'):
        assert _is_ready_file(content), content
    for content in (b'"notes on bootstrap"', b'["bootstrap"]', b"{}", b"17", b"null", b"{", b"[" * 100_000):
        assert not _is_ready_file(content), content[:30]
