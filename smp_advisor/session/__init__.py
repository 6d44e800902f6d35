"""A session: an advice with the plan on screen, its history, its files, and what its user does with it."""

from smp_advisor.session.advice import Advice, Change

__all__ = ["Advice", "Change"]
