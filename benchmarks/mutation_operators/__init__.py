"""Mutation operators, one for each rule of the documentation; written from its pages, not from the checker."""

from mutation_operators import (  # noqa: F401 - they register themselves
    compiler,
    data_parallel,
    pytorch,
    pytorch_model,
    pytorch_rewritten,
    pytorch_rewritten_model,
    tensorflow,
    version_2,
)
from mutation_operators.operator import OPERATORS, Operator, Script

__all__ = ["OPERATORS", "Operator", "Script"]
