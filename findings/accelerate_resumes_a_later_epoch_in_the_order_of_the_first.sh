#!/usr/bin/env bash
# accelerate 1.15.0: load_state and skip_first_batches resume a later epoch in the order of the first one.
#
# Why it matters: the recipe of a resume is load_state, then skip_first_batches of the interrupted epoch. Even with
# use_seedable_sampler=True, whose state load_state restores, the loader of the new process counts its epochs from 0 and
# sets this number at its first iteration: the order that is skipped and read on is that of epoch 0. Rows that the
# interrupted epoch had read come again, others never in this epoch, and the next one is in the order of epoch 0, too.
# A test that stops in the first epoch resumes rightly. set_epoch of the loader before each epoch avoids it, with
# set_epoch of what skip_first_batches returns; it has no effect without the seedable sampler.
#
# Seen on 2026-12-01, Linux, Python 3.11, PyTorch 2.13.0, two processes, 32 rows, stopped half way through an epoch.
# Epoch 0: no row twice. Epoch 1: 8 rows twice and 8 never; with set_epoch none and none.
# Needs pip and disk for PyTorch. Fails if the behavior changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet 'torch==2.13.0' 'accelerate==1.15.0' 'numpy<3'
cat >"$folder/resumes.py" <<'PROGRAM'
import json
import sys
from pathlib import Path

import accelerate
import torch

folder, kind, stop, sets_epoch = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4] == "set_epoch"
settings = accelerate.DataLoaderConfiguration(use_seedable_sampler=True)
accelerator = accelerate.Accelerator(cpu=True, dataloader_config=settings)
accelerate.utils.set_seed(1)
loader = torch.utils.data.DataLoader(torch.arange(32), batch_size=2, shuffle=True)
layer, loader = accelerator.prepare(torch.nn.Linear(1, 1), loader)
half = len(loader) // 2
if kind == "resumed":
    accelerator.load_state(folder / "state")
read = []
for epoch in range(stop if kind == "resumed" else 0, stop + 1):
    batches = accelerator.skip_first_batches(loader, half) if kind == "resumed" else loader
    for chosen in {id(loader): loader, id(batches): batches}.values() if sets_epoch else ():
        chosen.set_epoch(epoch)
    for number, rows in enumerate(batches, start=1):
        rows = accelerator.gather(rows).tolist()
        read += rows if epoch == stop else []
        if (kind, epoch, number) == ("first", stop, half):
            accelerator.save_state(folder / "state")
            break
if accelerator.is_main_process:
    (folder / f"{kind}.json").write_text(json.dumps(read))
    if kind == "resumed":
        read += json.loads((folder / "first.json").read_text())
        again, never = len(read) - len(set(read)), 32 - len(set(read))
        print(f"accelerate {accelerate.__version__}, stopped in epoch {stop}, {sys.argv[4]}: {again} twice, {never} never")
        assert len(read) == 32 and again == never
        assert (again > 4) == (stop > 0 and not sets_epoch), "the resumed epoch has another order"
accelerator.end_training()
PROGRAM
for case in "0 no" "1 no" "2 no" "1 set_epoch"; do
    for kind in first resumed; do
        # shellcheck disable=SC2086
        OMP_NUM_THREADS=1 "$folder/venv/bin/python" -m torch.distributed.run --nproc-per-node 2 \
            "$folder/resumes.py" "$folder" "$kind" $case 2>"$folder/log" || { cat "$folder/log"; exit 1; }
    done
done
