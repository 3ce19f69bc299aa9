"""Measuring tools: the load generator and the search for the best process counts."""
