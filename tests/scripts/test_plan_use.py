"""The cell of a script of the user states what differs between script and plan."""

import ast

import pytest

from smp_advisor import Plan, advise
from smp_advisor.review.scripts.changes import warnings_of_script
from smp_advisor.review.scripts.check import check_script

PLAN = Plan(library="fsdp", batch_size=2, gradient_accumulation_steps=4)
LOOP = """
model = torch.nn.Linear(8, 8).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(4):
    optimizer.zero_grad()
    model(torch.randn(4, 8).cuda()).sum().backward()
    optimizer.step()
"""
PARSER = """
import argparse
import torch
parser = argparse.ArgumentParser()
parser.add_argument("--batch_size", type=int)
parser.add_argument("--max_steps_total", type=int)
"""
PASSED = {"batch_size": 2, "precision": "bf16", "max_steps": 5}


@pytest.fixture
def warned(tmp_path):
    def check(text, plan=PLAN):
        (tmp_path / "train.py").write_text(text)
        return " ".join(warnings_of_script(str(tmp_path / "train.py"), plan, PASSED))

    return check


def test_a_plain_script_does_not_use_the_plan(warned):
    text = warned(f"import torch\n{LOOP}")
    assert "train.py, line 1 (SMP001): The job is planned for FSDP" in text
    assert "train.py reads no arguments: --batch_size, --precision, --max_steps" in text
    assert ": In its place, with the update below: the plan accumulates 4 batches." in text
    sharded = LOOP.replace(
        "optimizer = ", "from torch.distributed.fsdp import fully_shard\nfully_shard(model)\noptimizer = "
    )
    assert "Where the model is sharded: the plan computes in bf16." in warned(f"import torch\n{sharded}")
    half = sharded.replace("fully_shard(model)", "fully_shard(model, mp_policy=MixedPrecisionPolicy())")
    assert "the plan computes" not in warned(f"import torch\n{half}")


def test_arguments_are_rejected_or_ignored_as_argparse_does(warned):
    assert "The parser has no --precision, which the job passes" in warned(f"{PARSER}parser.parse_args()\n{LOOP}")
    assert "The script ignores the hyperparameter precision" in warned(f"{PARSER}parser.parse_known_args()\n{LOOP}")
    unknown = PARSER.replace('"--batch_size"', "sys.argv[0]")
    assert "not determined which arguments" in warned(f"{unknown}parser.parse_args()\n{LOOP}")


def test_settings_of_a_framework_are_its_arguments(warned):
    text = warned(f"import torch\nfrom accelerate import Accelerator\naccelerator = Accelerator()\n{LOOP}")
    assert "line 3: Arguments of Accelerator() that the plan has and the script does not." in text


def test_a_script_that_was_not_read_is_not_called_checked(warned, tmp_path):
    assert "was not checked" in warned("def broken(:")
    (text,) = warnings_of_script("nowhere.py", PLAN, PASSED)
    assert "smp_advisor.check_script('nowhere.py', advice.plan)" in text
    (text,) = warnings_of_script("a" * 5000 + "\0.py", PLAN, PASSED)
    assert "was not checked" in text


def test_the_header_has_the_warnings_of_a_script_of_the_user_only(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(f"import torch\n{LOOP}")
    advice = advise("125M", "ml.p4d.24xlarge", library="fsdp")
    cell = advice.cell(sdk="v2", script="train.py")
    ast.parse(cell)
    assert "# Warning: train.py, line 1 (SMP001)" in cell
    assert "# Warning: train.py, line 1 (SMP001)" in advice.export("slurm", script="train.py")
    assert "# Warning: other.py was not checked" in advice.cell(sdk="v2", script="other.py")
    assert "Warning" not in advice.cell(sdk="v2")


def test_a_configuration_file_that_is_named_is_read_or_missed(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "from transformers import Trainer, TrainingArguments\n"
        'arguments = TrainingArguments("out", bf16=True, gradient_accumulation_steps=4, deepspeed="ds.json")\n'
        "Trainer(model=model, args=arguments, train_dataset=dataset).train()\n"
    )

    def found():
        return [finding.message for finding in check_script(script, PLAN) if finding.id == "TRN717"]

    assert found()[0].startswith("deepspeed names ds.json, which is not next to the script: ")
    settings = tmp_path / "ds.json"
    settings.write_text('{"bf16": {"enabled": false}, "train_micro_batch_size_per_gpu": 8, "zero_optimization": {}}')
    planned = "train_micro_batch_size_per_gpu=2, bf16=True"
    assert found() == [f"ds.json has train_micro_batch_size_per_gpu=8, bf16=False, and the plan {planned}."]
    settings.write_text('{"bf16": {"enabled": true}, "train_micro_batch_size_per_gpu": 2}')
    assert not found()
    settings.write_text("[1")
    assert not found()
    notes = [note.what for note in check_script(script, PLAN).unresolved]
    assert "ds.json, whose settings the job uses, is not a table of names and values" in notes


@pytest.mark.parametrize("name", ["gradient_checkpointing", "activation_checkpointing"])
def test_the_trainer_checkpoints_by_both_names(name):
    """transformers 5.23 renamed the argument."""

    def found(plan=PLAN, more=""):
        text = f'TrainingArguments("out", bf16=True, per_device_train_batch_size=2, {name}=True{more})'
        text = f"from transformers import Trainer, TrainingArguments\nTrainer(model, {text}).train()\n"
        return {f"{finding.id} {finding.message}" for finding in check_script(text, plan)}

    named = f"{name} is True here, and False in the plan."
    assert f"TRN710 {named}" in found()
    assert not any(name in message for message in found(Plan(library="fsdp", activation_checkpointing="each")))
    twice = ', fsdp="full_shard", fsdp_config={"activation_checkpointing": True}'
    assert any(message.startswith("TRN711") for message in found(more=twice))
