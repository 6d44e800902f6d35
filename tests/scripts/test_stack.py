"""The kind of training code that a script shows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from smp_advisor import Job, advise, read_stack, stacks
from smp_advisor.errors import AdvisorError
from smp_advisor.review.scripts.following import _stacks

if TYPE_CHECKING:
    from pathlib import Path

LOAD = "from transformers import AutoModelForCausalLM\nmodel = AutoModelForCausalLM.from_pretrained('m'{})\n"
ARGUMENTS = "from transformers import TrainingArguments\narguments = TrainingArguments('out', {})\n"


@pytest.mark.parametrize(
    ("text", "stack"),
    [
        ("import torch\n", "auto"),
        (LOAD.format(""), "hf-sdpa"),
        (LOAD.format(", attn_implementation='eager'"), "hf-eager"),
        (LOAD.format(", attn_implementation='flash_attention_3'"), "hf-flash-3"),
        (LOAD.format(", use_flash_attention_2=True"), "hf-flash-2"),
        (
            "import torch\n" + LOAD.format(", attn_implementation='sdpa'") + "model = torch.compile(model)\n",
            "torch-compile",
        ),
        (LOAD.format("") + "model.compile()\n", "torch-compile"),
        *(
            ("import torch\n" + LOAD.format("") + text, "hf-sdpa")
            for text in (
                *(f"f = torch.compile({what})\n" for what in ("optimizer.step", "lambda: optimizer.step()", "loss_fn")),
                "f = torch.compile(torch.nn.functional.cross_entropy)\n",
                "ce = torch.nn.CrossEntropyLoss()\nce = torch.compile(ce)\n",
                "criterion.compile()\n",
                "model.lm_head = torch.compile(model.lm_head)\n",
                "teacher = torch.compile(teacher)\n",
                "if torch.__version__ < '2.0':\n    model = torch.compile(model)\n",
                "@torch.compile(dynamic=True)\ndef gelu(x):\n    return x / 2\n",
                "class L(torch.nn.Module):\n    def forward(self, x):\n        return x\nf = torch.compile(L())\n",
            )
        ),
        *(
            ("import torch\n" + LOAD.format("") + text, "torch-compile")
            for text in (
                "f = torch.compile(train_step)\n",
                "if torch.__version__ >= '2.0':\n    model = torch.compile(model)\n",
                "f = torch.compile(lambda batch: model(batch).loss)\n",
                "@torch.compile\ndef train(batch):\n    return model(batch)\n",
                "for layer in model.model.layers:\n    layer.compile()\n",
            )
        ),
        (ARGUMENTS.format("torch_compile=True"), "torch-compile"),
        (ARGUMENTS.format("use_liger_kernel=True"), "liger"),
        (ARGUMENTS.format("torch_compile=False"), "hf-sdpa"),
        ("from transformer_engine import pytorch as te\nlayer = te.Linear(2, 2)\n", "transformer-engine"),
        ("import smdistributed.modelparallel.torch as smp\nsmp.init()\n", "smp-v1"),
        ("from apex.normalization import FusedLayerNorm\n", "apex"),
        ("try:\n    import flash_attn\nexcept ImportError:\n    flash_attn = None\n", "auto"),
        ("import tensorflow as tf\nmodel = tf.keras.Sequential()\nmodel.compile()\n", "tensorflow"),
    ],
)
def test_stacks(text: str, stack: str) -> None:
    evidence = read_stack(text)
    assert evidence.stack == stack
    assert bool(evidence.because) == (stack != "auto")


def test_optimizers_become_settings_of_the_job() -> None:
    fused = "import torch\noptimizer = torch.optim.AdamW([], fused=True)\n"
    assert read_stack(fused).settings == {"optimizer_step": "fused"}
    assert read_stack(fused.replace("fused=True", "foreach=False")).settings == {"optimizer_step": "loop"}
    for text, optimizer in (
        ("torch.optim.Muon([])", "muon"), ("torch.optim.Adafactor([])", "adafactor"),
        ("torch.optim.SGD([], momentum=0.9)", "sgd"), ("torch.optim.SGD([])", "plain-sgd"),
        ("torchao.optim.AdamW4bit([])", "adam-4bit"), ("torchao.optim.AdamWFp8([])", "adam-8bit"),
    ):  # fmt: skip
        assert read_stack(f"import torch, torchao\noptimizer = {text}\n").settings["optimizer"] == optimizer
    for name, optimizer in (("galore_adamw", "galore"), ("adamw_bnb_8bit", "trainer-adam-8bit")):
        assert read_stack(ARGUMENTS.format(f"optim='{name}'")).settings["optimizer"] == optimizer
    paged = read_stack(ARGUMENTS.format("optim='paged_adamw_8bit'")).settings
    assert paged == {"optimizer": "adam-8bit", "paged_optimizer": True, "stack": "hf-sdpa"}


def test_every_setting_is_one_of_the_job() -> None:
    data = _stacks()
    names = {entry["stack"] for entry in data["packages"]} | {*data["attention"].values(), *data["switches"].values()}
    assert names <= set(stacks())
    for settings in (*data["trainer"].values(), *data["optimizers"].values()):
        Job(**settings)


def test_offloaded_activations_are_seen() -> None:
    text = (
        "from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import offload_wrapper\n"
        "model = offload_wrapper(model)\n"
    )
    evidence = read_stack(text)
    assert evidence.offloads_activations
    assert evidence.because == ("line 2 copies saved activations to host memory",)


def test_what_depends_on_the_run_is_undecided() -> None:
    text = (
        "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--attention', default='eager')\n"
        "arguments = parser.parse_args()\n" + LOAD.format(", attn_implementation=arguments.attention")
    )
    evidence = read_stack(text)
    assert evidence.stack == "hf-eager"  # the default of the option
    assert evidence.undecided == ("line 6: attn_implementation depends on a value that the text does not show",)


def test_a_text_that_is_no_python_is_refused() -> None:
    with pytest.raises(AdvisorError):
        read_stack("def (:\n")


def test_advice_uses_the_code_of_the_script(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(LOAD.format(", attn_implementation='eager'"), "utf-8")
    cluster: dict[str, Any] = {"cluster": "ml.p4d.24xlarge", "library": "fsdp", "sequence_length": 512}
    advice = advise("1.5B", **cluster, script=str(script))
    assert (advice.job.stack, advice.job.attention) == ("hf-eager", "eager")
    assert "line 2 attn_implementation='eager'" in advice.because
    explicit = advise("1.5B", **cluster, script=str(script), stack="hf-flash-2")
    assert explicit.job.stack == "hf-flash-2"
    assert advise("1.5B", **cluster, script=str(script), attention="fused").job.attention == "fused"
