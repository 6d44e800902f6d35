"""Advice as values: the request, the recommendation for it, and everything that is said about its plan."""
