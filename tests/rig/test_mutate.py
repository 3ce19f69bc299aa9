"""The malformed frames are made as promised: of every API, repeatable by their seed, and mostly not valid."""

from __future__ import annotations

import random

from kproc.wire.header import ApiKey
from tests.support.minimal import MINIMAL
from tests.support.mutate import DAMAGES, malformed_frames, valid_frames

SERVED = [
    (int(key), 4 if key == ApiKey.FETCH else 0, 0 if key != ApiKey.FETCH else 4)
    for key in (ApiKey.METADATA, ApiKey.FETCH)
]


def test_seeds_cover_every_served_version() -> None:
    served = [(int(ApiKey.METADATA), 0, 13), (int(ApiKey.PRODUCE), 0, 13), (int(ApiKey.FETCH), 4, 18)]
    assert len(valid_frames("t", bytes(16), served)) == 14 + 11 + 15


def test_malformed_frames_are_reproducible_by_seed() -> None:
    seeds = valid_frames("t", bytes(16), SERVED)
    first = list(malformed_frames(seeds, 500, random.Random(1)))
    assert first == list(malformed_frames(seeds, 500, random.Random(1)))
    assert sum(frame not in seeds for frame in first) > 450


def test_every_damage_applies_to_shortest_and_longest_frame() -> None:
    served = [
        (int(key), 0 if key != ApiKey.FETCH else 4, 1 if key != ApiKey.FETCH else 4)
        for key in (ApiKey.METADATA, ApiKey.FETCH)
    ]
    seeds = sorted(valid_frames("t", bytes(16), served), key=len)
    for damage in DAMAGES:
        for seed in range(50):
            for frame in (seeds[0], seeds[-1]):
                assert isinstance(damage(frame, random.Random(seed)), bytes)
    assert MINIMAL
