"""Live advice: the plan on screen, moves of its settings, history, snapshots and comparisons."""

from smp_advisor.advice.live.live_advice import Change, LiveAdvice

__all__ = ["Change", "LiveAdvice"]
