"""Advice: a request, the recommendation, its live form on screen, and its files."""

from smp_advisor.advice.value import Advice

__all__ = ["Advice"]
