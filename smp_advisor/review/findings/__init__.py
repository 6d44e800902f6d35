"""Findings of both checkers: their texts, and the report as text, HTML, JSON and SARIF."""
