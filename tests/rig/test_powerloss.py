"""The power-loss search in small: images of every workload keep every promise, and what is taken out is found."""

from __future__ import annotations

import pytest

from tests.powerloss.run import MUTATIONS, run, search
from tests.powerloss.workloads import WORKLOADS

pytestmark = pytest.mark.long


def test_what_a_power_loss_leaves_keeps_every_promise() -> None:
    done, found = search(sorted(WORKLOADS), 1, 150)
    assert not found, "\n".join(map(str, found))
    assert done >= 150


@pytest.mark.parametrize(
    ("workload", "seed"),
    [
        pytest.param("failed-syncs", 3000078, id="in the middle of writing again what a failed sync left"),
        pytest.param("stops-failed-syncs", 20261310, id="after a stop whose last round failed"),
        pytest.param("stops-failed-syncs", 20261538, id="after a stop, its log between two owners"),
    ],
)
def test_what_was_found_once_is_not_found_again(workload: str, seed: int) -> None:
    _, problem = run(workload, seed)
    assert problem is None, problem


@pytest.mark.parametrize(
    ("mutation", "workload", "seed", "images"),
    [
        ("round-covers-what-came-later", "rolls", 1, 100),
        ("log-is-not-synced", "rolls", 5, 100),
        ("namesake-rename-unchecked", "deletion", 28, 20),
        ("successor-syncs-no-names", "producers", 6, 100),
        ("visible-before-its-sync", "rolls", 2, 12),
        ("visible-after-a-crash-before-its-sync", "deaths", 2, 12),
        ("lost-deletion-refused", "deaths", 2, 20),
        ("failed-sync-is-forgotten", "failed-syncs", 3, 20),
        ("any-name-confirms-a-log-start", "namesakes", 11, 60),
        ("checkpoint-drops-untouched-logs", "namesakes", 6, 60),
        ("clean-marker-comes-back", "stops", 1, 25),
        ("round-behind-a-failed-one-confirms", "stops-failed-syncs", 10, 25),
        ("marker-before-decision-durable", "transactions", 21, 5),
        ("complete-before-markers-durable", "transactions", 4, 5),
        ("joined-before-durable", "transactions", 8, 5),
        ("markers-not-sent-after-loading", "transactions", 1, 12),
        ("pending-offsets-lost-with-handler", "transactions", 3, 5),
        ("new-epoch-before-durable", "transactions", 7, 5),
        ("coordinator-epoch-not-raised", "transactions", 49, 12),
    ],
)
def test_what_is_taken_out_is_found(mutation: str, workload: str, seed: int, images: int) -> None:
    with MUTATIONS[mutation]():
        _, found = search([workload], seed, images, failures=1)
    assert found
