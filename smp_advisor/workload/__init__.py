"""The model, as blocks with counts, and the settings of a training run."""

from smp_advisor.workload.adapter import Adapter
from smp_advisor.workload.block import Attention, Block, Matmul, SavedActivations
from smp_advisor.workload.counts import format_count, parse_count
from smp_advisor.workload.job import Job
from smp_advisor.workload.model import BlockGroup, Head, Model, Shape
from smp_advisor.workload.stack import Stack, stacks

__all__ = [
    "Adapter",
    "Attention",
    "Block",
    "BlockGroup",
    "Head",
    "Job",
    "Matmul",
    "Model",
    "SavedActivations",
    "Shape",
    "Stack",
    "format_count",
    "parse_count",
    "stacks",
]
