#!/usr/bin/env bash
# transformers 5.23.0 with peft 0.21.2: Trainer saves the adapter of model.add_adapter, and cannot read it again.
#
# Why it matters: add_adapter attaches LoRA to a transformers model without PEFT's wrapper. Checkpoints of Trainer then
# have the adapter alone, as they should, and look as those of get_peft_model. resume_from_checkpoint looks for the
# weights of a whole model and stops: a job on spot instances that is interrupted fails at each restart, and all steps
# before are lost to Trainer, optimizer included. load_best_model_at_end stops in the same way, after the last step of a
# job and before the code that saves its model. get_peft_model with the same configuration resumes and loads.
#
# Seen on 2026-12-01, Linux, Python 3.11, PyTorch 2.13.0, one process: with add_adapter adapter_model.safetensors in each
# checkpoint, ValueError "Can't find a checkpoint index" at the resume, FileNotFoundError for the best model at the end;
# with get_peft_model the resumed adapter is the saved one, and the run ends with the best.
# Needs pip and disk for PyTorch. Fails if the behavior changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet 'torch==2.13.0' 'transformers==5.23.0' 'accelerate==1.15.0' \
    'peft==0.21.2' 'numpy<3'
cat >"$folder/adapters.py" <<'PROGRAM'
import sys
import warnings
from pathlib import Path

import peft
import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

warnings.simplefilter("ignore")
transformers.logging.set_verbosity_error()
TOKENS = torch.randint(0, 64, (32, 8), generator=torch.Generator().manual_seed(0))
ROWS = [{"input_ids": row, "labels": row} for row in TOKENS]
SHAPE = {
    "vocab_size": 64, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 2,
}


def ends(own, out, best, resume=None):
    """Train, and return how that ends."""
    torch.manual_seed(0)
    model, adapter = LlamaForCausalLM(LlamaConfig(**SHAPE)), peft.LoraConfig(r=2, target_modules=["q_proj"])
    if own:
        model.add_adapter(adapter)
    else:
        model = peft.get_peft_model(model, adapter)
    settings = TrainingArguments(
        out, max_steps=8, save_steps=4, eval_steps=4, eval_strategy="steps", load_best_model_at_end=best, use_cpu=True,
        per_device_train_batch_size=4, report_to=[], disable_tqdm=True,
    )
    trainer = Trainer(model, settings, train_dataset=ROWS, eval_dataset=ROWS)
    try:
        trainer.train(resume_from_checkpoint=resume)
    except (OSError, ValueError) as error:
        return f"{type(error).__name__} after step {trainer.state.global_step}"
    return f"ends after step {trainer.state.global_step}"


seen = {}
for own in (False, True):
    out = f"{sys.argv[1]}/{own}"
    name = "add_adapter" if own else "get_peft_model"
    seen[name] = [ends(own, out, False)]
    assert (Path(out) / "checkpoint-4" / "adapter_model.safetensors").is_file()
    seen[name] += [ends(own, out, False, f"{out}/checkpoint-4"), ends(own, f"{out}-best", True)]
print(f"transformers {transformers.__version__}, peft {peft.__version__}: whole run, resumed, best model at the end")
for name, results in seen.items():
    print(f"{name}: {results}")
assert seen["get_peft_model"] == ["ends after step 8"] * 3
assert seen["add_adapter"] == ["ends after step 8", "ValueError after step 0", "FileNotFoundError after step 8"]
PROGRAM
"$folder/venv/bin/python" "$folder/adapters.py" "$folder/out" 2>"$folder/log" | grep -v "^{" || { cat "$folder/log"; exit 1; }
