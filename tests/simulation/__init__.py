"""Deterministic simulation: the whole broker in one process, one seed deciding everything that is not code.

The roles, the supervisor and its decisions are the real ones, unchanged; what they run on is a double: descriptors,
sockets and epolls (kernel.py), a disk that forgets what was not synced (tests/support/memory_disk.py), processes that
get turns instead of CPUs (processes.py), a clock that moves when nobody has anything to do (world.py). Clients speak
the protocol's bytes through the Acceptors and Processors (client.py, workloads.py, group_workload.py, operator.py;
transaction_workload.py and committed_readers.py in every fourth seed). In every seventh they speak TLS (tls_end.py),
some of them wrongly (tls_workload.py), with keys and random numbers that are the same each time (tls_doubles.py).
Faults come by a plan that can be shrunk (plan.py, run.py), and a history is kept and judged (history.py,
transaction_history.py).

    python -m tests.simulation --seeds 1000            many
    python -m tests.simulation --transactions --seeds 1000   each with transactional clients
    python -m tests.simulation --tls --seeds 1000            each over TLS
    python -m tests.simulation --seed 17 --trace       one, told step by step
    python -m tests.simulation --seed 17 --shrink      the least that still fails
    python -m tests.simulation --mutation NAME         how many seeds it takes to notice a mutation of the code
    python -m tests.simulation --mutation NAME --count --seeds 200   how many of 200 seeds notice it
"""
