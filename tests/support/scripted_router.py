"""A router of a Processor that the test scripts, and clients whose home is a given Handler."""

from __future__ import annotations

from tests.support.processor_rig import Client, ProcessorRig, framed


class ScriptedRouter:
    """Sends a frame that begins with a known word to the Handler it was told, every other one home."""

    def __init__(self, **owners: int) -> None:
        self.owners = {word.encode(): owner for word, owner in owners.items()}
        self.seen: list[bytes] = []

    def route(self, frame: memoryview) -> int:
        word = bytes(frame[:6])
        self.seen.append(word)
        return self.owners.get(word.rstrip(b"."), -1)

    def learn(self, hint: memoryview) -> None:
        self.owners[bytes(hint[1:])] = hint[0]


FIRST, SECOND, HOME = framed(b"first."), framed(b"second"), framed(b"homely")


def home_of(rig: ProcessorRig, client: Client) -> int:
    """The index of the Handler that gets what no router knows; its answer is sent."""
    client.send(HOME)
    for index, handler in enumerate(rig.handlers):
        for request in handler.take():
            handler.answer(request, framed(b"here"))
            rig.step()
            assert client.received() == framed(b"here")
            return index
    raise AssertionError("nobody got it")


def client_at(rig: ProcessorRig, index: int) -> Client:
    """A client whose home is that Handler."""
    while True:
        client = rig.connect()
        if home_of(rig, client) == index:
            return client
