"""A proof accepts a correct adaptation, and names what a broken one does differently."""

from __future__ import annotations

import pytest

from smp_advisor.profiling.sandbox import share_interpreter
from smp_advisor.proving import prove
from smp_advisor.scripts.adapt import adapt_script

pytestmark = [pytest.mark.slow, pytest.mark.torch]

SCRIPT = """import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    data = TensorDataset(torch.randn(40, 3), torch.randint(0, 2, (40,)))
    loader = DataLoader(data, batch_size=8, shuffle=True)
    test_loader = DataLoader(data, batch_size=8)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Dropout(0.5), nn.Linear(4, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for epoch in range(2):
        model.train()
        for step, (input, target) in enumerate(loader):
            loss = nn.functional.cross_entropy(model(input), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        right = 0
        with torch.no_grad():
            for input, target in test_loader:
                output = model(input)
                right += (output.argmax(1) == target).sum().item()
        print(f"epoch {epoch} accuracy {right / len(test_loader.dataset):.4f}")
    torch.save({"net": model.state_dict(), "epoch": epoch}, "model.pt")


main()
"""


@pytest.mark.parametrize("library", ["fsdp2", "smp-v1"])
def test_a_correct_adaptation_is_proven(library):
    adapted = adapt_script(SCRIPT, library=library, prove=True)
    proof = adapted.proof
    assert proof.proven, str(proof)
    assert proof.compared == ("8 losses", "4 changes of mode", "1 saved file", "2 printed lines")
    assert "speed and memory" in proof.not_compared
    assert "updates after the first 10" not in proof.not_compared


def test_a_long_script_is_proven_for_its_first_updates():
    proof = adapt_script(SCRIPT.replace("range(2)", "range(3)"), library="fsdp", prove=True).proof
    assert proof.proven, str(proof)
    assert proof.compared == ("10 losses", "5 changes of mode", "0 saved files", "2 printed lines")
    assert "updates after the first 10" in proof.not_compared


BROKEN = {
    "the model inside": (
        "ddp",
        {"nn.functional.cross_entropy(model(input)": "nn.functional.cross_entropy(model.module(input)"},
        ["Loss 2"],
    ),
    "mode, keys, figures and saves": (
        "ddp",
        {
            "        model.eval()\n": "",
            '"net": model.module.state_dict()': '"net": model.state_dict()',
            "right / len(test_loader.dataset)": "right / 2 / len(test_loader.dataset)",
            "if dist.get_rank() == 0:": "if True:",
        },
        ["mode", "lacks", "is printed", "other than the first"],
    ),
    "a hang": (
        "fsdp2",
        {"    model_state = get_model": "    if dist.get_rank() == 0:\n        model_state = get_model"},
        ["waits for a process that has ended or that waits for it (line"],
    ),
    "the microbatches": ("smp-v1", {"model.backward(loss)": "model.backward(loss * 2)"}, ["Loss 1"]),
    "a missing step": (
        "smp-v1",
        {"evaluation_step(model, input).concat()": "model(input)"},
        ["outside of a function"],
    ),
}


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.usefixtures("fast_clocks")
def test_a_broken_adaptation_is_named(name):
    library, changes, sentences = BROKEN[name]
    source = adapt_script(SCRIPT, library=library).source
    for old, new in changes.items():
        assert old in source
        source = source.replace(old, new)
    proof = prove(SCRIPT, source, library=library, seconds=1e9)
    assert not proof.proven
    for sentence in sentences:
        assert any(sentence in str(difference) for difference in proof.differences), str(proof)


def test_a_script_that_does_not_run_is_not_proven():
    proof = prove("import nowhere\n", "import nowhere\n", library="ddp")
    assert not proof.proven
    assert "No module named 'nowhere'" in proof.failure


@pytest.fixture
def fresh_interpreter():
    """Proofs run as for a user, in an interpreter of their own."""
    share_interpreter(shared=False)
    yield
    share_interpreter()


@pytest.mark.usefixtures("fresh_interpreter")
def test_the_child_has_no_network():
    text = SCRIPT.replace(
        "    data = ", '    import socket\n    socket.create_connection(("192.0.2.1", 80), 2)\n    data = '
    )
    assert "Network is unreachable" in prove(text, text, library="ddp").failure
