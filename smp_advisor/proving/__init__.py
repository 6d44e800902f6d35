"""Proof of an adaptation: both scripts run for a few steps on small data, and their behavior is compared."""

from __future__ import annotations

from smp_advisor.proving.proof import Proof, prove

__all__ = ["Proof", "prove"]
