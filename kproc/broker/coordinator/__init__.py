"""What the coordinators of internal topics have in common, whatever they coordinate. No I/O, no clock, no thread."""
