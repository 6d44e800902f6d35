"""Loops that Accelerate, the Trainer of transformers or Lightning runs: what a person passes to shard the model."""

from __future__ import annotations

import json
import shlex

import pytest

from smp_advisor import Plan
from smp_advisor.scripts.adapt import propose

ACCELERATE = """import torch
from accelerate import Accelerator
from transformers import AutoModelForCausalLM, set_seed


def main(args):
    accelerator = Accelerator({arguments})
    set_seed(1)
    model = AutoModelForCausalLM.from_pretrained("gpt2"{loaded})
    optimizer = torch.optim.AdamW(model.parameters())
    model, optimizer = accelerator.prepare(model, optimizer)
    accelerator.backward(model(torch.ones(1, 2)).loss)
    optimizer.step()


main(None)
"""
TRAINER = """from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

model = AutoModelForCausalLM.from_pretrained("gpt2"{loaded})
args = TrainingArguments({arguments})
Trainer(model=model, args=args, train_dataset=[]).train()
"""
SCRIPTS = {
    "accelerate": ACCELERATE,
    "trainer": TRAINER,
    "parsed": TRAINER.replace("TrainingArguments({arguments})", "parser.parse_args_into_dataclasses({arguments})"),
    "lightning": "import lightning as L\nfrom corpus import Net\nL.Fabric({arguments}).fit(Net({loaded}))\n",
}
SHARD_GRAD_OP = Plan(library="fsdp", sharding_strategy="shard_grad_op")


@pytest.mark.parametrize(
    ("runner", "kind", "arguments", "words"),
    [
        ("accelerate", "fsdp", "", ["pass fsdp_plugin=FullySharded", "fsdp_version=2", "reshard_after_forward=True"]),
        ("accelerate", "fsdp", "**options", ["fsdp_version=2", 'auto_wrap_policy="transformer', "launch --use_fsdp"]),
        ("accelerate", "fsdp", "deepspeed_plugin=plugin", ["`deepspeed_plugin=plugin` already chooses"]),
        ("accelerate", "ddp", "", ["nothing has to change", "accelerate launch --multi_gpu"]),
        ("accelerate", "ddp", "fsdp_plugin=plugin", ["remove the argument to replicate"]),
        ("accelerate", "smp-v2", "", ["has no steps for it"]),
        ("trainer", "fsdp", 'fsdp=""', ["fsdp and fsdp_config to `TrainingArguments`", "full_shard auto_wrap"]),
        ("trainer", "fsdp", 'fsdp="full_shard"', ["already"]),
        ("trainer", "ddp", "", ["nothing has to change"]),
        ("trainer", "smp-v1", "", ["transformers 4.29"]),
        ("lightning", "ddp", "", ['strategy="fsdp" to `L.Fabric`']),
        ("lightning", "fsdp", "", ['strategy="fsdp" to `L.Fabric`']),
    ],
)
def test_the_script_is_unchanged_and_a_person_reads_what_to_pass(runner, kind, arguments, words):
    text = SCRIPTS[runner].format(arguments=arguments, loaded="")
    result = propose(text, library=kind)
    assert result.diff == ""
    assert all(word in result.todo[0] for word in words), result.todo


def test_the_strategy_of_the_plan_is_in_the_arguments():
    result = propose(SCRIPTS["parsed"].format(arguments="", loaded=""), SHARD_GRAD_OP)
    words = shlex.split(result.todo[0].partition("Start it with: ")[2])
    assert words[words.index("--fsdp") + 1] == "shard_grad_op auto_wrap"
    assert json.loads(words[words.index("--fsdp_config") + 1]) == {"version": 2, "reshard_after_forward": False}
    plugin = propose(ACCELERATE.format(arguments="", loaded=""), SHARD_GRAD_OP).todo[0]
    assert "reshard_after_forward=False" in plugin


def test_a_model_divided_by_layers_is_refused():
    divided = TRAINER.format(arguments="", loaded=', device_map="auto"')
    assert 'device_map="auto"' in propose(divided, library="ddp").todo[0]
    assert "check_script" in propose(SCRIPTS["trainer"].format(arguments="", loaded=""), library="fsdp").todo[1]


@pytest.mark.torch
def test_the_arguments_are_those_of_the_installed_libraries():
    from accelerate import FullyShardedDataParallelPlugin
    from transformers import TrainingArguments

    assert {"fsdp", "fsdp_config"} <= set(TrainingArguments.__dataclass_fields__)
    names = {"fsdp_version", "auto_wrap_policy", "transformer_cls_names_to_wrap", "reshard_after_forward"}
    assert names <= set(FullyShardedDataParallelPlugin.__dataclass_fields__)
