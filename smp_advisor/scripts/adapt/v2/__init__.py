"""The documented steps for SMP v2."""

from __future__ import annotations
