"""Finds the best numbers of processes for a machine by measurements, and checks settings of the host."""
