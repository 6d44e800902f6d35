"""Measured runs, read from tables and compared with what the cost model predicts."""
