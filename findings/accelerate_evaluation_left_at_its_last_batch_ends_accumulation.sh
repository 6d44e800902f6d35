#!/usr/bin/env bash
# accelerate 1.15.0: an evaluation loop that is left at its last batch turns gradient accumulation off.
#
# Why it matters: a loop evaluates in the middle of an epoch and stops itself: "if number + 1 == limit: break", or takes
# next(iter(loader)) of a loader with one batch of fixed samples. A prepared loader knows that its last batch is the last
# one, and tells accumulate() so, that the last update of an epoch is made. It takes this back after the batch: a loop
# that is left there never gets so far, and the loader of the evaluation stays the active one, at its end. Each later
# batch of training then makes an update of its own, until the loader of training begins its next epoch: many small
# updates in place of few large ones, without a message. Left one batch earlier, or ended by itself, the loop does no
# harm.
#
# Seen on 2026-12-01, Linux, Python 3.11, PyTorch 2.13.0, 4 accumulated batches, 16 batches in an epoch, evaluation of 4
# batches after batch 4. Updates in the epoch: 4 if it ends by itself or stops after 3, 13 if it stops after 4.
# Needs pip and disk for PyTorch. Fails if the behavior changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet 'torch==2.13.0' 'accelerate==1.15.0' 'numpy<3'
cat >"$folder/updates.py" <<'PROGRAM'
import accelerate
import torch


def updates(limit, rows):
    """Train one epoch with an evaluation in it, and return how many updates were made."""
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerate.state.GradientState._reset_state()
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=4)
    layer = torch.nn.Linear(2, 1)
    loaders = [torch.utils.data.DataLoader(torch.ones(count, 2), batch_size=2) for count in (32, rows)]
    layer, optimizer, train, evaluation = accelerator.prepare(
        layer, torch.optim.SGD(layer.parameters(), 0.1), *loaders
    )
    made = 0
    for step, batch in enumerate(train, start=1):
        with accelerator.accumulate(layer):
            accelerator.backward(layer(batch).square().mean())
            optimizer.step()
            optimizer.zero_grad()
            made += accelerator.sync_gradients
        if step == 4:
            for number, _ in enumerate(evaluation, start=1):
                if number == limit:
                    break
    return made


cases = {"ends by itself": (9, 8), "left after 3 of 4": (3, 8), "left after 4 of 4": (4, 8), "one batch, left": (1, 2)}
seen = {name: updates(*case) for name, case in cases.items()}
print(f"accelerate {accelerate.__version__}: updates in 16 batches, 4 accumulated: {seen}")
assert [*seen.values()] == [4, 4, 13, 13]
PROGRAM
"$folder/venv/bin/python" "$folder/updates.py"
