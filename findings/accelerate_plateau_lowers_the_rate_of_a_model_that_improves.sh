#!/usr/bin/env bash
# accelerate 1.15.0: a prepared ReduceLROnPlateau lowers the rate at each evaluation, although each is the best so far.
#
# Why it matters: Accelerate steps a prepared schedule once for each process, because the loaders of n processes have a
# n-th of the batches. A plateau schedule does not count batches: its patience is a number of evaluations without an
# improvement. Passed to prepare() like every other schedule, it gets each metric n times, and all but the first are no
# improvement. With four processes, one good evaluation uses up a patience of 2, and the rate is divided each time,
# without a message. A test on one process shows nothing. The schedule that is not prepared waits as it was told to.
#
# Seen on 2026-12-01, Linux, Python 3.11, PyTorch 2.13.0, patience=2, factor=0.5, six metrics, each half of the one
# before: the rate stays 1 on one process, and is 0.5 to 0.015625 on four. Not prepared, it stays 1 on both.
# Needs pip and disk for PyTorch. Fails if the behavior changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet 'torch==2.13.0' 'accelerate==1.15.0' 'numpy<3'
cat >"$folder/plateau.py" <<'PROGRAM'
import accelerate
import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau

accelerator = accelerate.Accelerator(cpu=True)
rates = {}
for prepared in (True, False):
    layer = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(layer.parameters(), 1.0)
    schedule = ReduceLROnPlateau(optimizer, factor=0.5, patience=2)
    layer, optimizer = accelerator.prepare(layer, optimizer)
    schedule = accelerator.prepare(schedule) if prepared else schedule
    rates[prepared] = []
    for evaluation in range(6):
        accelerator.backward(layer(torch.ones(1, 2)).sum())
        optimizer.step()
        optimizer.zero_grad()
        schedule.step(0.5**evaluation)
        rates[prepared].append(optimizer.param_groups[0]["lr"])
many = accelerator.num_processes > 1
accelerator.print(f"accelerate {accelerate.__version__}, processes {accelerator.num_processes}, prepared: {rates}")
accelerator.end_training()
assert rates[False] == [1.0] * 6, "the schedule alone lowers the rate"
assert rates[True] == ([0.5 ** (evaluation + 1) for evaluation in range(6)] if many else [1.0] * 6)
PROGRAM
for processes in 1 4; do
    OMP_NUM_THREADS=1 "$folder/venv/bin/python" -m torch.distributed.run --nproc-per-node "$processes" "$folder/plateau.py"
done
