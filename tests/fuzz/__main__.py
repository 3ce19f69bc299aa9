"""python -m tests.fuzz --requests 500000 --seed 1 [--api PRODUCE]: fuzz a broker; --replay FILE: send a finding again.

What is found is reduced to the fewest requests that show it on a new broker, mostly one, and printed in hexadecimal;
the file that is written replays it.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from kproc.wire import codec
from kproc.wire.header import ApiKey, parse_request_header
from tests.fuzz import encrypted
from tests.fuzz.attack import DENIED_SETTINGS, FULL_SETTINGS, SETTINGS, TOPICS, Attack, Found, replay
from tests.support.broker import ServedBroker
from tests.support.certificates import Certificates


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code: 0 nothing, 1 something was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--requests", type=int, default=50_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--api", type=lambda name: ApiKey[name.upper()], help="only this one, PRODUCE for instance"
    )
    parser.add_argument("--transport", default="process")
    parser.add_argument(
        "--denied", action="store_true", help="as somebody who may do nothing, and therefore changes nothing"
    )
    parser.add_argument("--tls", action="store_true", help="over a TLS listener")
    parser.add_argument("--findings", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--replay", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    if options.replay is not None:
        return _replay_file(options.replay, options.transport)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="fuzz-") as scratch:
        # With odd seeds every record is checked, and what was stored is read back.
        is_full = options.seed % 2 == 1 and not options.denied
        settings = DENIED_SETTINGS if options.denied else FULL_SETTINGS if is_full else SETTINGS
        tls = None
        if options.tls:
            certificates = Certificates(Path(scratch))
            settings = settings | encrypted.settings_of(certificates)
            tls = encrypted.context_of(certificates)
        broker = ServedBroker(Path(scratch) / "data", transport=options.transport, settings=settings).start()
        attack = Attack(broker, options.seed, only=options.api, is_denied=options.denied, is_full=is_full, tls=tls)
        try:
            attack.run(options.requests)
            found = None
        except Found as problem:
            found = problem
        finally:
            attack.close()
            code = broker.stop(seconds=60)
        seconds = time.monotonic() - began
        print(
            f"seed {options.seed}: {attack.sent:,} requests in {seconds:.0f} s, {attack.sent / seconds:,.0f}/s; "
            f"{sum(attack.answered.values()):,} answered, {attack.closed:,} connections closed by the broker; "
            f"{len(attack.answered)} APIs; {attack.read_back:,} batches read back"
        )
        if found is None and code == 0 and "Traceback" not in broker.last_log:
            print("nothing found")
            return 0
        print(f"FOUND: {found or f'a stop with exit code {code}: {broker.last_log[-3_000:]}'}")
    _reduce(attack, options.findings / f"fuzz-seed-{options.seed}.json", options.transport)
    return 1


def _reduce(attack: Attack, path: Path, transport: str) -> None:
    """Write the last bunch, then the fewest of its frames that show it alone."""
    frames = [frame for line in attack.bunch for frame in line]
    ids = [attack.topics[name] for name in TOPICS]
    _write(path, frames, ids)
    print(f"the bunch: {path}")
    if not _happens(frames, ids, transport):
        print("it does not happen again on a new broker: it needs what went before")
        return
    while len(frames) > 1:
        half = len(frames) // 2
        for part in (frames[:half], frames[half:]):
            if _happens(part, ids, transport):
                frames = part
                break
        else:
            break
    _write(path, frames, ids)
    print(f"reduced to {len(frames)}; again by: python -m tests.fuzz --replay {path}")
    for frame in frames[:5]:
        print(_described(frame))


def _happens(frames: list[bytes], ids: list[bytes], transport: str) -> str:
    """What is found when these are sent to a new broker; empty if nothing."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as scratch:
        broker = ServedBroker(Path(scratch) / "data", transport=transport, settings=SETTINGS).start()
        try:
            replay(broker, frames, ids)
            return ""
        except Found as problem:
            return str(problem)
        finally:
            broker.stop(seconds=60)


def _write(path: Path, frames: list[bytes], ids: list[bytes]) -> None:
    path.write_text(
        json.dumps({"frames": [each.hex() for each in frames], "ids": [each.hex() for each in ids]})
    )


def _replay_file(path: Path, transport: str) -> int:
    read = json.loads(path.read_text())
    found = _happens(
        [bytes.fromhex(each) for each in read["frames"]],
        [bytes.fromhex(each) for each in read["ids"]],
        transport,
    )
    print(f"FOUND: {found}" if found else "nothing found")
    return 1 if found else 0


def _described(frame: bytes) -> str:
    try:
        header, at = parse_request_header(memoryview(frame)[4:])
        fields = codec.decode_request(header.api_key, header.api_version, frame[4 + at :])
        return f"{header} {fields!r:.1500}\n{frame.hex()[:2_000]}"
    except Exception as problem:  # noqa: BLE001  # Whatever is wrong with it.
        return f"({problem})\n{frame.hex()[:2_000]}"


if __name__ == "__main__":
    sys.exit(main())
