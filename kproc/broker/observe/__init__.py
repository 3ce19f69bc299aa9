"""Status, health and metrics of a broker, for `kproc status`, service managers and Prometheus."""
