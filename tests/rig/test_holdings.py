"""The leak guard's own eyes: a child that runs is a leak, one that has ended and is not waited for is none."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from tests.support import proc
from tests.support.proc import Holdings, child_pids, is_alive
from tests.support.wait import wait_until

SLEEPER = [sys.executable, "-S", "-c", "import signal; signal.pause()"]


def test_running_child_is_a_leak_and_zombie_is_not():
    before = Holdings.now()
    with subprocess.Popen(SLEEPER) as child:
        try:
            [problem] = Holdings.now().leaked_since(before)
            assert problem.startswith(f"child {child.pid}: ")
            child.send_signal(signal.SIGKILL)
            wait_until(lambda: not is_alive(child.pid), what="the child has ended")
            assert child.pid in Holdings.now().children, "a zombie: nobody has waited for it"
            assert Holdings.now().leaked_since(before) == []
        finally:
            child.kill()


def test_grandchildren_are_looked_for_too():
    before = Holdings.now()
    parent = f"import subprocess, sys; subprocess.run({SLEEPER!r})"
    with subprocess.Popen([sys.executable, "-S", "-c", parent]) as child:
        try:
            [grandchild] = wait_until(lambda: child_pids(child.pid), what="the grandchild runs")
            problems = Holdings.now().leaked_since(before)
            assert {problem.split(":")[0] for problem in problems} == {
                f"child {child.pid}",
                f"child {grandchild}",
            }
            subprocess.run(["kill", str(grandchild)], check=True)
        finally:
            child.kill()


def test_children_are_found_when_a_thread_ends_meanwhile(monkeypatch):
    """The threads of Spark's JVM come and go; its Python daemon once counted as a child of a later test."""
    listings = []

    def list_with_ended_thread(path):
        listings.append(path)
        return [*(["0"] if len(listings) == 1 else []), *os_listdir(path)]

    os_listdir = proc.os.listdir
    with subprocess.Popen(SLEEPER) as child:
        monkeypatch.setattr(proc.os, "listdir", list_with_ended_thread)
        found = child_pids(os.getpid())
        child.kill()
    assert found.count(child.pid) == 1
