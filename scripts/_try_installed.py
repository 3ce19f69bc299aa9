"""Run by scripts/release with the Python of an environment that has only kproc: it is that version, and serves."""

import subprocess
import sys
from pathlib import Path

import kproc


def run(*arguments: str, stdin: str = "") -> str:
    """Standard output of a command of the installed kproc."""
    command = [Path(sys.executable).with_name("kproc"), *arguments]
    return subprocess.run(command, input=stdin, stdout=subprocess.PIPE, text=True, check=True, timeout=60).stdout


(version,) = sys.argv[1:]
if not Path(kproc.__file__).is_relative_to(sys.prefix):
    sys.exit(f"this is not the installed kproc: {kproc.__file__}")
if version not in run("--version").split():
    sys.exit(f"kproc --version does not say {version}: {run('--version')}")
with kproc.Broker() as broker:
    run("produce", "tried", "--bootstrap", broker.bootstrap, stdin="one\ntwo\n")
    found = run("consume", "tried", "--bootstrap", broker.bootstrap)
if found != "one\ntwo\n":
    sys.exit(f"what was produced did not come back: {found!r}")
print(f"kproc {version} serves")
