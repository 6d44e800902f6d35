"""Rehearsals: a training script runs here, small and unchanged, before it runs on a cluster."""

from __future__ import annotations

from smp_advisor.rehearsal.rehearse import rehearse
from smp_advisor.rehearsal.report import KINDS, Observed, Rehearsal

__all__ = ["KINDS", "Observed", "Rehearsal", "rehearse"]
