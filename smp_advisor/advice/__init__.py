"""Advice as values: the request, the recommendation for it, and all sentences on its plan."""
