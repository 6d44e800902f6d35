#!/usr/bin/env bash
# transformers 5.23.0 with bitsandbytes 0.50.2: optim="adamw_bnb_8bit" keeps the states of embeddings in fp32, and an
# 8-bit optimizer that the same process makes later has fp32 states at the embedding's position, too.
#
# Why it matters: memory of an 8-bit Adam is planned with 2 bytes per parameter. Trainer leaves nn.Embedding at 8 bytes:
# 3 GiB more on every GPU for the embedding of Llama 3 8B without sharding, the full vocabulary of a model with a tied
# head. The exception is stored in one manager per process under the position of the parameter (group and index), not
# under the parameter: a notebook that ran a Trainer once gives another model's AdamW8bit an fp32 state there, and the
# same code in a new process does not.
#
# Seen on 2026-11-30, Linux, Python 3.11, no GPU, a Llama of one layer: after Trainer the states of embed_tokens are
# fp32, those of the head and of the layers uint8. AdamW8bit on a new model: uint8 in a new process, fp32 after Trainer.
# Norms have fp32 states in each case (fewer than 4,096 values, documented). Needs pip and disk for PyTorch.
# Fails if the behavior changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet 'torch==2.13.0' 'transformers==5.23.0' 'accelerate==1.15.0' \
    'bitsandbytes==0.50.2' 'numpy<3'
cat >"$folder/states.py" <<'PROGRAM'
import sys
import warnings

import bitsandbytes
import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

warnings.simplefilter("ignore")
transformers.logging.set_verbosity_error()
TOKENS = torch.randint(0, 512, (8, 16), generator=torch.Generator().manual_seed(0))
NAMES = ("embedding", "head", "layer")


def small():
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=512, hidden_size=128, intermediate_size=256, num_hidden_layers=1, num_attention_heads=2,
            num_key_value_heads=2, tie_word_embeddings=False,
        )
    )


def kinds(model, optimizer):
    weights = model.model.embed_tokens.weight, model.lm_head.weight, model.model.layers[0].mlp.up_proj.weight
    return {name: str(optimizer.state[weight]["state1"].dtype) for name, weight in zip(NAMES, weights)}


def own():
    """A loop without Trainer."""
    model = small()
    optimizer = bitsandbytes.optim.AdamW8bit(model.parameters())
    model(input_ids=TOKENS[:2], labels=TOKENS[:2]).loss.backward()
    optimizer.step()
    return kinds(model, optimizer)


eight = dict.fromkeys(NAMES, "torch.uint8")
before = own()
arguments = TrainingArguments(
    sys.argv[1], max_steps=1, per_device_train_batch_size=2, optim="adamw_bnb_8bit", use_cpu=True, report_to=[],
    save_strategy="no", disable_tqdm=True,
)
trainer = Trainer(small(), arguments, train_dataset=[{"input_ids": row, "labels": row} for row in TOKENS])
trainer.train()
trained = kinds(trainer.model, getattr(trainer.optimizer, "optimizer", trainer.optimizer))
after = own()
print("transformers", transformers.__version__, "bitsandbytes", bitsandbytes.__version__, "torch", torch.__version__)
for title, states in (("AdamW8bit", before), ("Trainer", trained), ("AdamW8bit after Trainer", after)):
    print(f"{title}: {states}")
wide = eight | {"embedding": "torch.float32"}
sys.exit((before, trained, after) != (eight, wide, wide))
PROGRAM
if "$folder/venv/bin/python" "$folder/states.py" "$folder/out" 2>"$folder/log"; then
    echo "As stated: Trainer's embeddings have fp32 states, and so has a later optimizer of the process."
else
    cat "$folder/log"
    echo "The behavior changed: bring the statement above and the estimate of 8-bit Adam up to date."
    exit 1
fi
