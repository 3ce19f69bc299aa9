"""The power-loss search in small: images of every workload keep every promise, and each mutation is found."""

from __future__ import annotations

import pytest

from tests.powerloss.run import MUTATIONS, run, search
from tests.powerloss.workloads import WORKLOADS

pytestmark = pytest.mark.long

# Most mutations are found by one of 5 to 200 images, wherever the search begins.
_MUTATION_IMAGES = 3_000


def test_powerloss_images_keep_every_promise() -> None:
    done, found = search(sorted(WORKLOADS), 1, 150)
    assert not found, "\n".join(map(str, found))
    assert done >= 150


@pytest.mark.parametrize(
    ("workload", "seed"),
    [
        pytest.param("failed-syncs", 3000078, id="in the middle of writing again what a failed sync left"),
        pytest.param("stops-failed-syncs", 20261310, id="after a stop whose last round failed"),
        pytest.param("stops-failed-syncs", 20261538, id="after a stop, its log between two owners"),
        pytest.param("stops-failed-syncs", 40042, id="after a round behind a failed one"),
    ],
)
def test_powerloss_images_of_past_defects_pass(workload: str, seed: int) -> None:
    _, problem = run(workload, seed)
    assert problem is None, problem


@pytest.mark.parametrize(
    ("mutation", "workload", "seed"),
    [
        ("round-covers-what-came-later", "rolls", 1),
        ("log-is-not-synced", "rolls", 5),
        ("namesake-rename-unchecked", "deletion", 28),
        ("successor-syncs-no-names", "producers", 6),
        ("visible-before-its-sync", "rolls", 2),
        ("visible-after-a-crash-before-its-sync", "deaths", 2),
        ("lost-deletion-refused", "deaths", 2),
        ("failed-sync-is-forgotten", "failed-syncs", 3),
        ("any-name-confirms-a-log-start", "namesakes", 11),
        ("checkpoint-drops-untouched-logs", "namesakes", 6),
        ("clean-marker-comes-back", "stops", 1),
        ("round-behind-a-failed-one-confirms", "stops-failed-syncs", 10),
        ("round-behind-a-failed-one-marks", "stops-failed-syncs", 12),
        ("newest-mark-before-its-sync", "rolls", 5),
        ("sealed-mark-before-its-sync", "rolls", 10),
        ("active-mark-before-its-sync", "stops", 2),
        ("start-mark-before-its-checkpoint", "deaths", 1),
        ("marker-before-decision-durable", "transactions", 21),
        ("complete-before-markers-durable", "transactions", 4),
        ("joined-before-durable", "transactions", 8),
        ("heartbeat-answered-before-its-sync", "consumers", 2),
        ("heartbeat-answered-before-its-sync", "streams", 2),
        ("markers-not-sent-after-loading", "transactions", 1),
        ("share-write-answered-before-its-sync", "share-states", 2),
        ("only-the-last-update-is-loaded", "share-states", 2),
        ("pending-offsets-lost-with-handler", "transactions", 3),
        ("new-epoch-before-durable", "transactions", 7),
        ("coordinator-epoch-not-raised", "transactions", 49),
    ],
)
def test_mutation_is_found_by_crash_images(mutation: str, workload: str, seed: int) -> None:
    """The search begins with a seed that finds the mutation early. If the seed does not any more, others do."""
    with MUTATIONS[mutation]():
        _, found = search([workload], seed, _MUTATION_IMAGES, failures=1)
    assert found
