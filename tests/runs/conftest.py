"""One advice for all tests of calibrations."""

import pytest

import smp_advisor as smpa


@pytest.fixture(scope="session")
def advice():
    """A 1.3 B model on two nodes, with few plans."""
    settings = {"sequence_length": 2048, "global_batch_size": 256, "library": "fsdp", "precision": "bf16"}
    return smpa.advise("1.3B", "ml.p4d.24xlarge", instance_count=2, **settings)
