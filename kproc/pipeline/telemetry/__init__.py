"""`kproc pipeline telemetry`: what a broker wrote of itself, as latencies, hot partitions and counts of processes."""
