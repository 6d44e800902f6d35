"""Loops that Accelerate or the Trainer of transformers runs: an argument shards the model."""

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
LIGHTNING = """import lightning as L
from corpus import Net

trainer = L.{name}()
trainer.fit(Net())
"""
SCRIPTS = {"accelerate": ACCELERATE, "trainer": TRAINER}
PARSED = """from transformers import HfArgumentParser, Trainer, TrainingArguments

(args,) = HfArgumentParser((TrainingArguments,)).parse_args_into_dataclasses()
Trainer(model=None, args=args).train()
"""


def adapted(runner, arguments="", *, kind="fsdp", loaded="", plan=None):
    text = SCRIPTS[runner].replace("{arguments}", arguments).replace("{loaded}", loaded)
    result = propose(text, plan, library=kind)
    compile(result.source, "train.py", "exec")
    return result


@pytest.mark.parametrize(
    ("runner", "kind", "lines"),
    [
        ("accelerate", "fsdp", ["fsdp_version=1", "use_orig_params=True", "Accelerator(fsdp_plugin=fsdp_plugin)"]),
        ("accelerate", "fsdp2", ["fsdp_version=2", 'auto_wrap_policy="transformer_based_wrap"']),
        ("trainer", "fsdp", ['fsdp="full_shard auto_wrap", fsdp_config={"version": 1}']),
        ("trainer", "fsdp2", ['fsdp_config={"version": 2, "reshard_after_forward": True}']),
    ],
)
def test_an_argument_shards_the_model_and_the_rest_of_the_script_is_unchanged(runner, kind, lines):
    result = adapted(runner, kind=kind)
    assert all(line in result.source for line in lines)
    (hunk,) = result.hunks
    assert hunk.url.startswith("https://")
    # Only the call and the imports change.
    assert sum(line.startswith("-") for line in result.diff.splitlines()) <= 3
    again = propose(result.source, library=kind)
    assert again.diff == ""
    assert "already" in again.todo[0]


def test_a_call_on_several_lines_gets_one_more_line():
    source = adapted("trainer", '\n    output_dir="out",\n    bf16=True,\n').source
    assert '    bf16=True,\n    fsdp="full_shard auto_wrap",\n    fsdp_config={"version": 1},\n)\n' in source


def test_the_strategy_of_the_plan_is_used():
    plan = Plan(library="fsdp", sharding_strategy="shard_grad_op")
    assert 'fsdp="shard_grad_op auto_wrap"' in adapted("trainer", plan=plan).source
    assert 'reshard_after_forward="SHARD_GRAD_OP"' in adapted("accelerate", plan=plan).source
    assert "reshard_after_forward=False" in adapted("accelerate", kind="fsdp2", plan=plan).source


@pytest.mark.parametrize("runner", SCRIPTS)
def test_replicas_need_no_change(runner):
    result = adapted(runner, kind="ddp")
    assert result.diff == ""
    assert "nothing has to change" in result.todo[0]


@pytest.mark.parametrize(
    ("runner", "arguments", "reason"),
    [
        ("accelerate", "deepspeed_plugin=plugin", "deepspeed_plugin=plugin"),
        ("trainer", "**options", "unless the variable"),
    ],
)
def test_what_keeps_a_library_from_replicating_is_named(runner, arguments, reason):
    assert reason in adapted(runner, arguments, kind="ddp").todo[0]


@pytest.mark.parametrize(
    ("runner", "arguments", "kind", "reason"),
    [
        ("accelerate", "**options", "fsdp2", "accelerate launch --use_fsdp --fsdp_version 2"),
        ("accelerate", "deepspeed_plugin=plugin", "fsdp", "remove it"),
        ("accelerate", "cpu=True", "fsdp", "selects the CPU"),
        ("accelerate", "fsdp_plugin=plugin", "fsdp", "already shards its model through fsdp_plugin"),
        ("trainer", "**options", "fsdp", 'fsdp="full_shard auto_wrap"'),
        ("trainer", 'fsdp_config="fsdp.json"', "fsdp", "fsdp_config without fsdp"),
        ("trainer", 'fsdp="full_shard"', "fsdp", "already"),
        ("trainer", "", "smp-v1", "transformers 4.29"),
    ],
)
def test_an_argument_that_cannot_be_set_is_a_refusal_with_what_to_pass(runner, arguments, kind, reason):
    result = adapted(runner, arguments, kind=kind)
    assert result.diff == ""
    assert reason in result.todo[0]


@pytest.mark.parametrize("name", ["Trainer", "Fabric"])
@pytest.mark.parametrize("kind", ["ddp", "fsdp", "fsdp2", "smp-v1"])
def test_lightning_is_told_what_to_pass(name, kind):
    result = propose(LIGHTNING.format(name=name), library=kind)
    assert result.diff == ""
    assert f'strategy="fsdp" to `L.{name}`' in result.todo[0]


@pytest.mark.parametrize("version", [1, 2])
def test_arguments_from_the_command_line_are_passed_there(version):
    result = propose(PARSED, library="fsdp2" if version == 2 else "fsdp")
    assert result.diff == ""
    words = shlex.split(result.todo[0].partition("Start it with: ")[2])
    assert words[words.index("--fsdp") + 1] == "full_shard auto_wrap"
    assert json.loads(words[words.index("--fsdp_config") + 1])["version"] == version


def test_a_model_divided_by_layers_is_refused():
    for kind in ("ddp", "fsdp"):
        assert 'device_map="auto"' in adapted("trainer", kind=kind, loaded=', device_map="auto"').todo[0]
    assert adapted("trainer", loaded=", device_map=None").diff


def test_what_the_argument_does_not_change_is_a_todo():
    more = (
        "import torch\n"
        'unwrapped = accelerator.unwrap_model(model)\ntorch.save(unwrapped_model.state_dict(), "a.pt")\n'
        'accelerator.unwrap_model(model).save_pretrained("out")\n'
        "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
        'torch.save(accelerator.get_state_dict(model), "b.pt")\n'
    )
    todo = "\n".join(propose(ACCELERATE.format(arguments="", loaded="") + more, library="fsdp2").todo)
    assert todo.count("would save the shards of one rank") == 2
    assert "accelerator.clip_grad_norm_" in todo
    for name in ("gradient_checkpointing", "activation_checkpointing"):
        assert f"{name}=True" in "\n".join(adapted("trainer", f"{name}=True").todo)


@pytest.mark.torch
def test_the_arguments_are_those_of_the_installed_trainer():
    from transformers import TrainingArguments

    fields = TrainingArguments.__dataclass_fields__
    assert {"fsdp", "fsdp_config"} <= set(fields)
