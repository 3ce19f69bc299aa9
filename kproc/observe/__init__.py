"""What a broker shows of itself: status, figures of its network, Prometheus, telemetry."""
