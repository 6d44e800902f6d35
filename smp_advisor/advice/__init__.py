"""Advice: a request, the recommendation for it, what is on screen, and its files."""

from smp_advisor.advice.live.advice import Advice, Change

__all__ = ["Advice", "Change"]
