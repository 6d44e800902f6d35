"""Adaptation of a plain PyTorch training script to the SageMaker model parallel library."""

from __future__ import annotations

from smp_advisor.scripts.adapt.adapt import adapt_script, propose
from smp_advisor.scripts.adapt.adaptation import Adaptation, AdaptError, Hunk, Proposal

__all__ = ["AdaptError", "Adaptation", "Hunk", "Proposal", "adapt_script", "propose"]
