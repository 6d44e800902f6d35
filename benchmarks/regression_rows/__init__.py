"""Recommendations and estimates of fixed requests, recorded and compared."""
