"""Adaptation of a plain PyTorch training script to the SageMaker model parallel library."""

from __future__ import annotations

from smp_advisor.scripts.adapt.adapt import adapt_script
from smp_advisor.scripts.adapt.adaptation import Adaptation, AdaptError, Hunk

__all__ = ["AdaptError", "Adaptation", "Hunk", "adapt_script"]
