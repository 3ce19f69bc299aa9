"""Produce: from the decoded request to the appended batch and its response."""
