"""Measuring tools: load generators, round trips, and the search for the best process counts. Also a health check."""
