"""Reasons for a plan: the ordered best practices, AWS's reference configurations, pitfalls."""
