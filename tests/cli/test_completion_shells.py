"""TAB in real shells beside groups and transactional ids whose names are code: no shell runs a name."""

from __future__ import annotations

import os
import pty
import select
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.broker import BrokerUnderTest
from tests.support.command_server import kproc_on_path
from tests.support.groups import commit, find_coordinator
from tests.support.raw import RawClient
from tests.support.wait import wait_until

pytestmark = [pytest.mark.long, pytest.mark.transports("process"), pytest.mark.own_broker]
GOOD = "orders-v2.eu:1@x/y+z=1"
START = {
    "bash": ["bash", "--norc", "--noprofile", "-i"],
    "zsh": ["zsh", "-f", "-i"],
    "fish": ["fish", "--no-config", "-i"],
}
PREPARE = {
    "bash": "PS1='READY> '; source {script}",
    "zsh": "PS1='READY> '; autoload -Uz compinit; compinit -u -d {directory}/dump; source {script}",
    "fish": "function fish_prompt; echo 'READY> '; end; source {script}",
}


def hostile(mark: str) -> list[str]:
    """Names that create the file when some shell evaluates them."""
    made = f"touch {mark}"
    return [
        f"$({made})",
        f"\\$({made})",
        f"`{made}`",
        f"\\`{made}\\`",
        f"({made})",
        f"; {made} ;",
        f"x\n{made}\n",
        f"x\r{made}\r",
        f"';{made};'",
        f'";{made};"',
        f"))'; {made}; : '((",
        f"<({made})",
        f"x\t{made}",
        f"& {made}",
        f"| {made}",
        f"${{$({made})}}",
        "--format=json",
        "-h",
        "~root",
        "*",
        "=ls",
        "\x1b]0;owned\x07",
        "\u202egroup",
        "",
    ]


class Shell:
    """An interactive shell on a terminal of its own."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self.seen = b""
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            os.execvpe(command[0], command, environment)

    def enter(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def shows(self, text: str) -> bool:
        """Read what there is; True once the text has been shown since the last `clear`."""
        while select.select([self._fd], [], [], 0)[0]:
            try:
                data = os.read(self._fd, 65536)
            except OSError:
                break
            if not data:
                break
            self.seen += data
            if b"\x1b[c" in data:  # fish waits for what the terminal is.
                os.write(self._fd, b"\x1b[?62;c")
        return text.encode() in self.seen

    def wait(self, text: str) -> None:
        wait_until(lambda: self.shows(text), seconds=60, what=f"{text!r} is shown")

    def clear(self) -> None:
        self.seen = b""

    def end(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self._fd)


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with kproc_on_path(tmp_path_factory.mktemp("commands")) as directory:
        yield directory


@pytest.fixture
def start_shell(tmp_path: Path) -> Iterator[Callable[[str, dict[str, str]], Shell]]:
    shells: list[Shell] = []

    def start(name: str, environment: dict[str, str]) -> Shell:
        shells.append(Shell(START[name], environment))
        return shells[-1]

    yield start
    for shell in shells:
        shell.end()


@pytest.mark.parametrize("shell_name", ["bash", "zsh", "fish"])
def test_completion_with_hostile_groups_runs_nothing(
    start_broker: Callable[..., BrokerUnderTest],
    start_shell: Callable[[str, dict[str, str]], Shell],
    commands: Path,
    tmp_path: Path,
    shell_name: str,
) -> None:
    """The one harmless name is completed; TAB twice and Enter run no other."""
    if shutil.which(shell_name) is None:
        pytest.skip(f"no {shell_name} here")
    mark = tmp_path / "ran"
    broker = start_broker()
    with RawClient(broker.bootstrap) as client:
        client.create_topic("t")
        find_coordinator(client, GOOD)
        for name in (GOOD, *hostile(str(mark))):
            wait_until(lambda name=name: commit(client, name, "t", {0: 1})[0] in (0, 24), what=name)
    environment = {
        "PATH": f"{commands}:/usr/bin:/bin",
        "HOME": str(tmp_path),
        "TERM": "xterm",
        "LANG": "C.UTF-8",
        "KPROC_BOOTSTRAP": broker.bootstrap,
    }
    script = tmp_path / "script"
    script.write_text(completion_script(shell_name, environment))
    shell = start_shell(shell_name, environment)
    prepare = PREPARE[shell_name].format(script=script, directory=tmp_path)
    shell.enter(f"{prepare}; echo PREP''ARED\r")
    shell.wait("PREPARED")
    shell.wait("READY> ")
    shell.clear()
    shell.enter("kproc group describe \t")
    shell.wait("orders-v2.eu")
    shell.enter("\t\r")
    shell.clear()
    shell.enter("echo DO''NE\r")
    shell.wait("DONE")
    assert not mark.exists()


def completion_script(shell_name: str, environment: dict[str, str]) -> str:
    """The script that `kproc --install-completion` writes for the shell."""
    done = subprocess.run(
        ["kproc"],
        env=environment | {"_KPROC_COMPLETE": f"source_{shell_name}"},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout
