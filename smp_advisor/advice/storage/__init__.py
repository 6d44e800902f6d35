"""Values as JSON: models, jobs, clusters, plans, estimates and advice."""

from smp_advisor.advice.storage.file import as_text, from_text, read_text, write_text

__all__ = ["as_text", "from_text", "read_text", "write_text"]
