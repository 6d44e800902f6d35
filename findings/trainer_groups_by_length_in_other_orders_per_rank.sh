#!/usr/bin/env bash
# transformers 5.23.0 with accelerate 1.15.0: batches grouped by length overlap between ranks from the second epoch on,
# where a collator draws random numbers.
#
# Why it matters: a masked language model is trained with DataCollatorForLanguageModeling, and rows of unlike length with
# train_sampling_strategy="group_by_length". Each rank draws the order of an epoch from PyTorch's own generator and takes
# every n-th batch of it: all ranks need the same order. The collator draws one number per token from the same generator,
# and batches of the ranks differ in length, so that the generators part within the first epoch. Later epochs give the
# ranks other orders: some rows are trained by several ranks, others by none, without a message. Random order without
# groups is right, because Accelerate gives it a generator of its own and sends its state to all ranks. With a seed
# (seed=...) the collator draws from a generator of its own, and the groups are right as well.
#
# Seen on 2026-12-01, Linux, Python 3.11, PyTorch 2.13.0, two processes, 32 rows. Rows of both ranks and of none in
# epochs 0, 1, 2: grouped 0, 6, 6; grouped with the collator's seed, and random order, 0, 0, 0.
# Needs pip and disk for PyTorch. Fails if the behavior changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet 'torch==2.13.0' 'transformers==5.23.0' 'accelerate==1.15.0' 'numpy<3'
cat >"$folder/groups.py" <<'PROGRAM'
import sys
import warnings
from pathlib import Path

import torch
import transformers
from transformers import (
    BertConfig, BertForMaskedLM, BertTokenizer, DataCollatorForLanguageModeling, Trainer, TrainingArguments,
)

warnings.simplefilter("ignore")
transformers.logging.set_verbosity_error()
folder, strategy, seed = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]) or None
words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{number}" for number in range(40))]
tokenizer = BertTokenizer(vocab={word: number for number, word in enumerate(words)})
rows = [{"input_ids": [5 + row] * (4 + 7 * row % 13)} for row in range(32)]
masks, read = DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.3, seed=seed), []


def collate(batch):
    read.extend(row["input_ids"][0] for row in batch)
    return masks(batch)


shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
no_dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
settings = TrainingArguments(
    folder, num_train_epochs=3, per_device_train_batch_size=2, use_cpu=True, report_to=[], save_strategy="no",
    disable_tqdm=True, train_sampling_strategy=strategy,
)
model = BertForMaskedLM(BertConfig(vocab_size=len(words), **shape, **no_dropout))
trainer = Trainer(model, settings, train_dataset=rows, data_collator=collate)
trainer.train()
counts = []
every = [None, None]
torch.distributed.all_gather_object(every, read)
for first in range(0, 48, 16):
    parts = [set(part[first : first + 16]) for part in every]
    counts.append(len(parts[0] & parts[1]))
    assert counts[-1] == 32 - len(parts[0] | parts[1])
if trainer.is_world_process_zero():
    title = f"transformers {transformers.__version__}, {strategy}, seed of the collator {seed}"
    print(f"{title}: rows of both ranks, as many of none, by epoch: {counts}", flush=True)
torch.distributed.destroy_process_group()
grouped = strategy == "group_by_length" and seed is None
assert counts[0] == 0 and all((count > 0) == grouped for count in counts[1:]), counts
PROGRAM
for case in "group_by_length 0" "group_by_length 7" "random 0"; do
    # shellcheck disable=SC2086
    OMP_NUM_THREADS=1 "$folder/venv/bin/python" -m torch.distributed.run --nproc-per-node 2 \
        "$folder/groups.py" "$folder/out" $case 2>"$folder/log" | grep -v "^{" || { cat "$folder/log"; exit 1; }
done
