#!/usr/bin/env bash
# transformers 5.23.0: Trainer resumes a mixture of experts with the experts and routers of the start.
#
# Why it matters: transformers 5 holds the experts of a layer as one parameter and saves them under the names of the
# published files, one weight per expert. Trainer's resume_from_checkpoint loads the file without the way back: step,
# optimizer and schedule continue, attention and embeddings are restored, and the experts, most of the parameters, are
# those of the start. Training from a pretrained model loses all updates of its experts at each interruption; the only
# trace is a warning about missing keys. SageMaker's managed spot training interrupts, so such jobs meet it.
# from_pretrained of the same folder loads every weight.
#
# Seen on 2026-11-29, Linux, Python 3.11, one process, Mixtral of one layer saved after 2 of 4 steps: at the first step
# after the resume, 9 parameters are those of the checkpoint; mlp.gate.weight, mlp.experts.gate_up_proj and
# mlp.experts.down_proj are those of the start. from_pretrained: all 12 are those of the checkpoint.
# Needs pip and disk for PyTorch. Fails if the behavior changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet 'torch==2.13.0' 'transformers==5.23.0' 'accelerate==1.15.0' 'numpy<3'
cat >"$folder/resumes.py" <<'PROGRAM'
import sys
import warnings

import torch
import transformers
from transformers import MixtralConfig, MixtralForCausalLM, Trainer, TrainerCallback, TrainingArguments

warnings.simplefilter("ignore")
transformers.logging.set_verbosity_error()
OUT = sys.argv[1]
SHAPE = {
    "vocab_size": 64, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 1, "num_local_experts": 4, "num_experts_per_tok": 2, "max_position_embeddings": 32,
}
TOKENS = [torch.randint(0, 64, (8,), generator=torch.Generator().manual_seed(row)) for row in range(8)]


def weights(model):
    return {name: value.detach().clone() for name, value in model.named_parameters()}


class Watch(TrainerCallback):
    """Keep the weights at the start of training and at the save."""

    def __init__(self):
        self.begin, self.saved = {}, {}

    def on_train_begin(self, args, state, control, model=None, **others):
        self.begin = weights(model)

    def on_save(self, args, state, control, model=None, **others):
        self.saved = self.saved or weights(model)


def train(resume=None):
    torch.manual_seed(0)
    watch = Watch()
    settings = TrainingArguments(
        OUT, max_steps=4, save_steps=2, per_device_train_batch_size=2, learning_rate=0.01, use_cpu=True,
        report_to=[], disable_tqdm=True,
    )
    rows = [{"input_ids": tokens, "labels": tokens} for tokens in TOKENS]
    trainer = Trainer(MixtralForCausalLM(MixtralConfig(**SHAPE)), settings, train_dataset=rows, callbacks=[watch])
    trainer.train(resume_from_checkpoint=resume)
    return watch


whole = train()
resumed = train(f"{OUT}/checkpoint-2").begin
loaded = weights(MixtralForCausalLM.from_pretrained(f"{OUT}/checkpoint-2"))
fresh = [name for name in resumed if torch.equal(resumed[name], whole.begin[name])]
print(f"transformers {transformers.__version__}: of {len(resumed)} parameters, those of the start after the resume: {fresh}")
assert all(torch.equal(loaded[name], whole.saved[name]) for name in loaded), "from_pretrained does not load all weights"
assert all(torch.equal(resumed[name], whole.saved[name]) for name in resumed if name not in fresh)
assert [name.rpartition("mlp.")[2] for name in fresh] == ["gate.weight", "experts.gate_up_proj", "experts.down_proj"]
PROGRAM
"$folder/venv/bin/python" "$folder/resumes.py" "$folder/out" 2>&1 | grep -v -e "^{" -e "shards"
