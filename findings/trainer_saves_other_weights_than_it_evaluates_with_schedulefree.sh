#!/usr/bin/env bash
# transformers 5.23.0 with schedulefree 1.4.1: Trainer saves other weights than those that it evaluates.
#
# Why it matters: a schedule-free optimizer holds two points. Gradients are taken at one, and the other, an average, is
# the model that has been trained; optimizer.eval() puts the average into the parameters. Trainer calls it for
# evaluations. It does not for saving: a run without evaluation, or whose last steps came after the last one, leaves the
# training point in every checkpoint and in save_model. Such a model loads without a message and is not the one whose loss
# an evaluation of the same trainer gives. An evaluation after training and before save_model avoids it for the model that
# is saved last.
#
# Seen on 2026-12-01, Linux, Python 3.11, PyTorch 2.13.0, one process, 10 steps of optim="schedule_free_adamw": the file
# of checkpoint-10 and that of save_model have the training point, and trainer.evaluate() has the average; save_model
# after trainer.evaluate() has the average. With an evaluation at step 10, all have the average.
# Needs pip and disk for PyTorch. Fails if the behavior changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet 'torch==2.13.0' 'transformers==5.23.0' 'accelerate==1.15.0' \
    'schedulefree==1.4.1' 'numpy<3'
cat >"$folder/points.py" <<'PROGRAM'
import sys
import warnings
from importlib.metadata import version

import torch
import transformers
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

warnings.simplefilter("ignore")
transformers.logging.set_verbosity_error()
NAME = "model.layers.0.mlp.up_proj.weight"
TOKENS = torch.randint(0, 64, (32, 8), generator=torch.Generator().manual_seed(0))
ROWS = [{"input_ids": row, "labels": row} for row in TOKENS]
SHAPE = {
    "vocab_size": 64, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 2,
}


def saved(out, evaluates):
    """Train, and return which point each file holds."""
    torch.manual_seed(0)
    settings = TrainingArguments(
        out, max_steps=10, save_steps=10, per_device_train_batch_size=4, learning_rate=0.05, use_cpu=True, report_to=[],
        disable_tqdm=True, optim="schedule_free_adamw", lr_scheduler_type="constant", eval_steps=10,
        eval_strategy="steps" if evaluates else "no",
    )
    trainer = Trainer(LlamaForCausalLM(LlamaConfig(**SHAPE)), settings, train_dataset=ROWS, eval_dataset=ROWS)
    trainer.train()
    trainer.save_model(f"{out}/final")
    trainer.evaluate()
    trainer.save_model(f"{out}/evaluated")
    files = {name: load_file(f"{out}/{name}/model.safetensors")[NAME] for name in ("checkpoint-10", "final", "evaluated")}
    optimizer, points = getattr(trainer.optimizer, "optimizer", trainer.optimizer), {}
    for point, change in (("average", optimizer.eval), ("training point", optimizer.train)):
        change()
        points[point] = trainer.model.state_dict()[NAME].clone()
    return {name: [p for p in points if torch.allclose(weight, points[p], atol=1e-6)] for name, weight in files.items()}


without, evaluated = saved(f"{sys.argv[1]}/a", False), saved(f"{sys.argv[1]}/b", True)
print(f"transformers {transformers.__version__}, schedulefree {version('schedulefree')}")
print(f"no evaluation in training: {without}")
print(f"evaluation at the last step: {evaluated}")
assert without == {"checkpoint-10": ["training point"], "final": ["training point"], "evaluated": ["average"]}
assert evaluated == dict.fromkeys(without, ["average"])
PROGRAM
"$folder/venv/bin/python" "$folder/points.py" "$folder/out" 2>"$folder/log" | grep -v "^{" || { cat "$folder/log"; exit 1; }
