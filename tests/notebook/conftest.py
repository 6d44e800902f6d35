import pytest

from smp_advisor.notebook import Advisor

from .advice import PIPELINE, make_advice


@pytest.fixture(scope="session")
def advice():
    """Tensor parallelism alone, the batch free."""
    return make_advice()


@pytest.fixture(scope="session")
def pipeline_advice():
    """With a pipeline and several microbatches."""
    return make_advice(PIPELINE)


@pytest.fixture
def sent(monkeypatch):
    """What the kernel sends to the views."""
    messages = []
    monkeypatch.setattr(Advisor, "send", lambda _, content: messages.append(content))
    return messages
