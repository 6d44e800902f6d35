#!/usr/bin/env bash
# Lightning 2.6.6: a job that trains to its end fails after an interruption, in EarlyStopping, at its last step.
#
# Why it matters: with max_steps, the last epoch of a job is rarely complete. The whole job ends well, because the
# monitored metric of an earlier epoch's validation is still known. The same job, interrupted in its last epoch and
# resumed from last.ckpt, has had no validation since its start: metrics of the earlier process are not in the
# checkpoint. At max_steps, EarlyStopping does not find its metric and raises RuntimeError, after all steps were
# trained: the code behind trainer.fit, which saves or exports the model, does not run, and the job fails. A resume
# whose last epoch is complete ends well. Managed spot training and HyperPod resume jobs by themselves. A job with
# fewer steps than one epoch fails so without any interruption. check_on_train_epoch_end=False avoids it.
#
# Seen on 2026-11-30, Linux, Python 3.11, PyTorch 2.13.0, epochs of 8 steps: 14 steps in one run end; 12 steps and a
# resume to 14 end in RuntimeError, with step 14 saved; 12 steps and a resume to 16 end; with
# check_on_train_epoch_end=False, the resume to 14 ends.
# Needs pip and disk for PyTorch. Fails if the behavior changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet 'torch==2.13.0' 'pytorch-lightning==2.6.6' 'numpy<3'
cat >"$folder/resumes.py" <<'PROGRAM'
import logging
import sys
import warnings
from pathlib import Path

import pytorch_lightning as lightning
import torch
from pytorch_lightning.callbacks import EarlyStopping, ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset

warnings.simplefilter("ignore")
logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
FOLDER = Path(sys.argv[1])


class Line(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, number):
        return self.layer(batch[0]).square().mean()

    def validation_step(self, batch, number):
        self.log("val_loss", self.layer(batch[0]).square().mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)


def fit(name, steps, resume=None, after_epochs=None):
    """Train to a step, and return how that ends."""
    rows = DataLoader(TensorDataset(torch.randn(32, 4)), batch_size=4)
    callbacks = [
        EarlyStopping("val_loss", check_on_train_epoch_end=after_epochs),
        ModelCheckpoint(FOLDER / name, save_last=True, every_n_train_steps=2),
    ]
    trainer = lightning.Trainer(
        max_steps=steps, accelerator="cpu", logger=False, callbacks=callbacks,
        enable_progress_bar=False, enable_model_summary=False,
    )
    try:
        trainer.fit(Line(), rows, rows, ckpt_path=resume)
    except RuntimeError as error:
        assert "`val_loss` which is not available" in str(error), error
        return f"RuntimeError after step {trainer.global_step}"
    return f"ends after step {trainer.global_step}"


seen = {"one run": fit("whole", 14), "first run": fit("first", 12)}
last = str(FOLDER / "first" / "last.ckpt")
seen["resumed"] = fit("a", 14, last)
seen["resumed, epoch complete"] = fit("b", 16, last)
seen["resumed, no check after epochs"] = fit("c", 14, last, after_epochs=False)
print(f"pytorch-lightning {lightning.__version__}: {seen}")
assert [*seen.values()] == [
    "ends after step 14", "ends after step 12", "RuntimeError after step 14", "ends after step 16", "ends after step 14",
]
PROGRAM
"$folder/venv/bin/python" "$folder/resumes.py" "$folder/out"
