"""Process counts for a machine: what was measured, what follows from it, and which settings of the host matter."""
