"""The model is in a file next to the script."""

import pytest

from smp_advisor.scripts.adapt import adapt_script

MODEL = """
import torch.nn as nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)

class Writer(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.blocks = nn.ModuleList([Block() for _ in range(layers)])

def build(layers):
    return Writer(layers)
"""
SCRIPT = """
import torch
from torch.utils.data import DataLoader, TensorDataset
{imported}

model = {call}.cuda()
optimizer = torch.optim.AdamW(model.parameters())
for (x,) in DataLoader(TensorDataset(torch.randn(64, 8)), batch_size=4):
    optimizer.zero_grad()
    model(x.cuda()).sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("imported", "call", "line"),
    [
        ("from nets.model import Writer", "Writer(3)", "from nets.model import Writer, Block"),
        ("from nets.model import Block, build", "build(3)", "from nets.model import Block, build"),
        ("import nets.model as nets", "nets.Writer(3)", "from nets.model import Block"),
    ],
)
def test_layers_of_an_imported_model_are_wrapped(tmp_path, imported, call, line):
    (tmp_path / "nets").mkdir()
    (tmp_path / "nets" / "model.py").write_text(MODEL)
    (tmp_path / "train.py").write_text(SCRIPT.format(imported=imported, call=call))
    wrapped = {"fsdp": "auto_wrap_policy=ModuleWrapPolicy({Block})", "fsdp2": "isinstance(module, Block)"}
    for library, text in wrapped.items():
        adapted = adapt_script(tmp_path / "train.py", library=library)
        assert text in adapted.source
        assert line in adapted.source.splitlines()
        assert not any("repeated layers" in todo for todo in adapted.todo)


def test_another_meaning_of_the_name_stays_a_to_do(tmp_path):
    (tmp_path / "model.py").write_text(MODEL)
    script = SCRIPT.format(imported="from model import Writer\nfrom elsewhere import Block", call="Writer(3)")
    (tmp_path / "train.py").write_text(script)
    adapted = adapt_script(tmp_path / "train.py", library="fsdp")
    assert any("repeated layers" in todo for todo in adapted.todo)
    assert "ModuleWrapPolicy" not in adapted.source
