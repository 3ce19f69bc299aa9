"""The power-loss search in small: images of every workload keep every promise, and what is taken out is found."""

from __future__ import annotations

import pytest

from tests.powerloss.run import MUTATIONS, WORKLOADS, search


def test_what_a_power_loss_leaves_keeps_every_promise() -> None:
    done, found = search(sorted(WORKLOADS), 1, 300)
    assert not found, "\n".join(map(str, found))
    assert done >= 300


@pytest.mark.parametrize(
    ("mutation", "images"), [("round-covers-what-came-later", 1000), ("log-is-not-synced", 100)]
)
def test_what_is_taken_out_is_found(mutation: str, images: int) -> None:
    with MUTATIONS[mutation]():
        _, found = search(["rolls"], 5, images)
    assert found
