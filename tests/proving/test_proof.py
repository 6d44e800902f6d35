"""A proof accepts a correct adaptation, and names what a broken one does differently."""

from __future__ import annotations

import socket

import pytest

from smp_advisor.errors import AdvisorError
from smp_advisor.proving import Proof, prove
from smp_advisor.sandbox import share_interpreter
from smp_advisor.scripts.adapt import adapt_script, propose

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


@pytest.mark.parametrize("library", ["fsdp", "smp-v1"])
def test_a_correct_adaptation_is_proven(library):
    adapted = adapt_script(SCRIPT, library=library)
    proof = adapted.proof
    assert proof.proven, str(proof)
    assert adapted.diff
    assert not adapted.proposals
    assert proof.compared[:5] == (
        "8 losses", "gradients and parameters of 8 updates", "4 changes of mode", "1 saved file", "2 printed lines",
    )  # fmt: skip
    assert "speed and memory" in proof.not_compared


def test_without_a_proof_the_changes_are_a_list():
    adapted = adapt_script(SCRIPT, library="fsdp", prove=False)
    assert adapted.source == SCRIPT
    assert adapted.diff == ""
    assert any("fully_shard(module)" in proposal.code for proposal in adapted.proposals)
    assert all(proposal.reason and proposal.url for proposal in adapted.proposals)
    lines = SCRIPT.splitlines()
    for proposal in adapted.proposals:
        assert "\n".join(lines[proposal.line - 1 :]).startswith(proposal.old)
    assert "1. <source>:" in str(adapted)


BROKEN = {
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
    "the microbatches": ("smp-v1", {"model.backward(loss)": "model.backward(loss * 2)"}, ["update 1"]),
    "a missing step": ("smp-v1", {"evaluation_step(model, input).concat()": "model(input)"}, ["outside of a function"]),
}


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.usefixtures("fast_clocks")
def test_a_broken_adaptation_is_named(name):
    library, changes, sentences = BROKEN[name]
    source = propose(SCRIPT, library=library).source
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


RESUMED = """import os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("nccl")
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
model = DDP(model)
raw_model = model.module if dist.is_initialized() else model
first = 0
state = None
if os.path.exists("state.pt"):
    state = torch.load("state.pt")
    raw_model.load_state_dict(state["model"])
    first = state["step"]
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
if state is not None:
    optimizer.load_state_dict(state["optimizer"])
state = None
x = torch.randn(8, 4)
for step in range(first, 4):
    if dist.get_rank() == 0:
        print(torch.randn(1).shape)
    loss = model(x).square().mean()
    x = torch.randn(8, 4)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == 1:
        state = {"model": raw_model.state_dict(), "optimizer": optimizer.state_dict(), "step": 2}
        torch.save(state, "state.pt")
"""


def test_what_resumes_runs_again_where_the_first_run_saved():
    adapted = propose(RESUMED, library="fsdp").source
    loaded = 'load_state_dict(state["model"]'
    assert adapted.count(loaded) == 1
    proof = prove(RESUMED, adapted.replace(loaded, f"{loaded}, strict=True"), library="fsdp")
    assert "a second run with the files of the first" in proof.compared, str(proof)
    assert proof.proven, str(proof)
    wrong = adapted.replace(loaded, 'load_state_dict({name: 2 * value for name, value in state["model"].items()}')
    assert "of update 1" in str(prove(RESUMED, wrong, library="fsdp"))


@pytest.fixture
def fresh_interpreter():
    """Proofs run as for a user, in an interpreter of their own."""
    share_interpreter(shared=False)
    yield
    share_interpreter()


PROBE = """
import os, socket, torch
seen = [name for name in os.environ if "SECRET" in name] + [p for p in os.listdir("/proc") if p.isdigit()][3:]
for process in (p for p in os.listdir("/proc") if p.isdigit()):
    seen += ["environ"] if "SECRET" in open(f"/proc/{process}/environ").read() else []
for path in ("{home}", "{socket}"):
    seen += [path] if os.path.exists(path) else []
try:
    socket.create_connection(("192.0.2.1", 80), 2)
except OSError as error:
    seen += [] if "unreachable" in str(error) else [str(error)]
model = torch.nn.Linear(1, 1)
model(torch.ones(1, 1)).sum().backward()
raise SystemExit(f"seen {seen}")
"""


@pytest.mark.usefixtures("fresh_interpreter")
def test_the_code_sees_no_secret_home_socket_process_or_network(tmp_path, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hidden")
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        (tmp_path / "private").write_text("x")
        text = PROBE.replace("{home}", str(tmp_path / "private")).replace("{socket}", str(path))
        proof = prove(text, text, library="ddp")
    assert "SystemExit: seen []" in proof.failure, proof.failure
    assert proof.reachable == ()


def test_what_the_code_can_reach_is_the_first_line():
    proof = Proof(
        proven=True, differences=(), failure="", compared=(), not_compared=(), stand_ins=(), reachable=("all files",)
    )
    assert str(proof).startswith("The code could reach all files.")


def test_a_plan_of_the_wrong_type_is_a_sentence():
    for call in (adapt_script, lambda text, plan: prove(text, text, plan)):
        with pytest.raises(AdvisorError, match="requires for plan"):
            call(SCRIPT, {"batch_size": 4})


WIDE = """import torch.distributed.optim
import peft
import torch
from transformers import GPT2Config, GPT2LMHeadModel
model = GPT2LMHeadModel(GPT2Config(n_layer=48, n_embd=1600, n_head=25))
d_model, n_layers = 8192, 96
own = torch.nn.Sequential(*[torch.nn.Linear(d_model, d_model) for _ in range(n_layers)])
optimizer = torch.optim.AdamW([*model.parameters(), *own.parameters()], lr=1e-3)
for step in range(4):
    ids = torch.ones(2, 16, dtype=torch.long)
    loss = model(input_ids=ids, labels=ids).loss + own(torch.ones(1, d_model)).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_models_of_real_width_run_small():
    proof = prove(WIDE, WIDE, library="smp-v1")
    assert proof.proven, str(proof)


LEFT_OUT = """import torch
from torch.utils.data import DataLoader, TensorDataset
labels = torch.arange(32) % 3
labels[::5] = -1
model = torch.nn.Linear(3, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in DataLoader(TensorDataset(torch.randn(32, 3), labels), batch_size=8):
    loss = torch.nn.functional.cross_entropy(model(x), y, ignore_index=-1)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def test_a_mean_over_the_labels_that_count_is_not_that_of_its_parts():
    proof = adapt_script(LEFT_OUT, library="smp-v1").proof
    assert proof.proven, str(proof)
    assert any("leaves out" in reason for reason in proof.not_compared)


TEXT = """import torch
from datasets import load_dataset
from torch.utils.data import DataLoader
from transformers import AutoModelForSequenceClassification, AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained("bert-base-cased")
data = load_dataset("glue", "mrpc")["train"]
size = {"padding": "max_length", "truncation": True, "max_length": 16}
data = data.map(lambda row: tokenizer(row["sentence1"], row["sentence2"], **size))
data = data.rename_column("label", "labels").with_format("torch", columns=["input_ids", "attention_mask", "labels"])
model = AutoModelForSequenceClassification.from_pretrained("bert-base-cased")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for batch in DataLoader(data, batch_size=8, shuffle=True):
    loss = model(**batch).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def test_a_script_of_hugging_face_runs_on_local_rows_in_the_library_itself():
    proof = adapt_script(TEXT, library="ddp").proof
    assert proof.proven, str(proof)
    assert {"data set glue", "tokenizer", "weights of bert-base-cased"} <= set(proof.stand_ins)
    driven = TEXT.replace("import torch\n", "import torch\nfrom accelerate import Accelerator\n", 1)
    assert "on GPUs only" in prove(driven, driven, library="ddp").failure


IMAGES = """import torch
from torchvision import datasets, models, transforms
from torch.utils.data import DataLoader
steps = transforms.Compose([transforms.Resize(16), transforms.ToTensor(), transforms.Normalize((0.5,), (0.5,))])
digits = datasets.MNIST("data", train=True, download=True, transform=steps)
image, label = digits[0]
assert image.shape == (1, 16, 16) and 0 <= label < 10 and len(digits.classes) == 10
assert datasets.CIFAR100("data")[0][0].shape == (3, 32, 32) and len(datasets.CIFAR100("data").classes) == 100
assert "resnet18" in models.__dict__
model = models.resnet18(num_classes=10)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for images, labels in DataLoader(datasets.CIFAR10("data", transform=transforms.RandomHorizontalFlip()), batch_size=8):
    loss = torch.nn.functional.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def test_a_script_of_images_runs_without_torchvision():
    proof = adapt_script(IMAGES, library="fsdp").proof
    assert proof.proven, str(proof)
    assert proof.stand_ins == ("torchvision",)
