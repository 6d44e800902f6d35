"""Loops that Accelerate, the Trainer of transformers or Lightning runs: what a person passes to shard the model."""

from __future__ import annotations

import json
import shlex

import pytest
import yaml

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
        ("accelerate", "fsdp", "**options", ["fsdp_version=2", "auto_wrap_policy='TRANSFORMER", "['GPT2Block']"]),
        ("accelerate", "fsdp", "deepspeed_plugin=plugin", ["`deepspeed_plugin=plugin` already chooses"]),
        ("accelerate", "ddp", "", ["nothing has to change", "accelerate launch --config_file train_plan.yaml"]),
        ("accelerate", "ddp", "fsdp_plugin=plugin", ["remove the argument to replicate"]),
        ("accelerate", "smp-v2", "", ["has no steps for it"]),
        (
            "trainer",
            "fsdp",
            'fsdp=""',
            ["fsdp and fsdp_config", 'TrainingArguments(..., **json.load(open("train_plan.json")))'],
        ),
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
    assert all(word in " ".join(result.todo) for word in words), result.todo


def test_the_strategy_of_the_plan_is_in_the_arguments():
    result = propose(SCRIPTS["parsed"].format(arguments="", loaded=""), SHARD_GRAD_OP)
    words = shlex.split(result.todo[-2].partition("start the script with: ")[2])
    assert words[words.index("--fsdp") + 1] == "shard_grad_op auto_wrap"
    assert json.loads(words[words.index("--fsdp_config") + 1])["reshard_after_forward"] is False
    assert words[words.index("--gradient_accumulation_steps") + 1] == "1"
    plugin = propose(ACCELERATE.format(arguments="", loaded=""), SHARD_GRAD_OP).todo
    assert "reshard_after_forward=False" in " ".join(plugin)
    hybrid = propose(
        SCRIPTS["trainer"].format(arguments="", loaded=""), Plan(library="fsdp", sharding_strategy="hybrid_shard")
    )
    assert "ParallelismConfig" in " ".join(hybrid.todo)


PLANNED = {"batch_size": 3, "gradient_accumulation_steps": 4, "activation_checkpointing": "each"}


@pytest.mark.parametrize("library", ["fsdp", "ddp"])
def test_the_configuration_is_complete_and_under_the_name_of_the_script(library, tmp_path):
    script = tmp_path / "fine tune.py"
    script.write_text(TRAINER.format(arguments="", loaded=""))
    result = propose(script, Plan(library=library, **PLANNED))
    assert "torchrun --nproc-per-node=8 'fine tune.py'" in " ".join(result.todo)
    assert f"Configuration:\n{result.configuration.rstrip()}" in str(result)
    settings = json.loads(result.configuration)
    shards = library == "fsdp"
    checkpoints = settings.pop("fsdp_config")["activation_checkpointing"] if shards else False
    assert (settings.pop("gradient_checkpointing"), checkpoints) == (not shards, shards)
    assert settings == {
        "per_device_train_batch_size": 3,
        "gradient_accumulation_steps": 4,
        "bf16": True,
        "fp16": False,
        **({"fsdp": "full_shard auto_wrap"} if shards else {}),
    }
    script.write_text(ACCELERATE.format(arguments="", loaded=""))
    result = propose(script, Plan(library=library, **PLANNED))
    started = "=4 accelerate launch --config_file 'fine tune_plan.yaml' --num_processes 8 'fine tune.py'"
    assert any(text.endswith(started) for text in result.todo), result.todo
    assert "3 samples per GPU" in " ".join(result.todo)
    settings = yaml.safe_load(result.configuration)
    assert (settings["distributed_type"], settings["mixed_precision"]) == ("FSDP" if shards else "MULTI_GPU", "bf16")
    assert not shards or settings["fsdp_config"]["fsdp_transformer_layer_cls_to_wrap"] == "GPT2Block"


def test_a_model_divided_by_layers_is_refused():
    divided = TRAINER.format(arguments="", loaded=', device_map="auto"')
    assert 'device_map="auto"' in propose(divided, library="ddp").todo[0]
    assert "check_script" in propose(SCRIPTS["trainer"].format(arguments="", loaded=""), library="fsdp").todo[-1]


@pytest.mark.torch
@pytest.mark.parametrize("library", ["fsdp", "ddp"])
def test_the_installed_libraries_take_the_configuration(library, tmp_path):
    from accelerate import FullyShardedDataParallelPlugin
    from accelerate.commands.config.config_args import ClusterConfig
    from accelerate.commands.launch import launch_command_parser
    from transformers import TrainingArguments

    plan = Plan(library=library, precision="fp32", **PLANNED)
    result = propose(TRAINER.format(arguments="", loaded=""), plan)
    arguments = TrainingArguments(str(tmp_path), use_cpu=True, **json.loads(result.configuration))
    assert arguments.per_device_train_batch_size == 3
    result = propose(ACCELERATE.format(arguments="", loaded=""), plan)
    file = tmp_path / "plan.yaml"
    file.write_text(result.configuration)
    options = ClusterConfig.from_yaml_file(file).fsdp_config
    assert options.keys() <= vars(launch_command_parser().parse_args(["train.py"])).keys()
    if library == "fsdp":
        text = result.todo[3].partition("fsdp_plugin=")[2].partition(" to `")[0]
        plugin = eval(text, {"FullyShardedDataParallelPlugin": FullyShardedDataParallelPlugin})
        assert (plugin.fsdp_version, plugin.activation_checkpointing) == (2, True)
