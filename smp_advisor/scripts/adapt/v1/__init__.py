"""The documented steps for SMP v1."""

from __future__ import annotations
