"""What a broker shows about itself: status, network figures, Prometheus."""
