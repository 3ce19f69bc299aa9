"""Round trips to a running broker and load on it: `kproc latency` and `kproc perf`."""
