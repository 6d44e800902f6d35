"""Child process: runs generated scripts on a CPU with a stand-in for the library, one rank after the other.

usage: run_scripts.py RUNS.json RESULTS.json

Each run names a script, its options, the library's parameters, the number of GPUs and the rank to be. The result of a
run is what the script called (see `fakes`), printed, wrote as summary, and the error that ended it.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import runpy
import sys
import tempfile
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "fakes"))
os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}

import smdistributed.modelparallel.torch as smp
import torch

torch.set_num_threads(1)
torch.cuda.set_device = lambda device: smp.record("set_device", device=device)
torch.manual_seed = lambda seed, original=torch.manual_seed: (smp.record("manual_seed", seed=seed), original(seed))[1]
_to = torch.Tensor.to


def to(tensor, *arguments, **keywords):
    """Keep tensors that go to a GPU where they are: there is none."""
    if arguments and isinstance(arguments[0], torch.device) and arguments[0].type == "cuda":
        return tensor
    return _to(tensor, *arguments, **keywords)


torch.Tensor.to = to


def run(spec):
    smp.reset(spec["world"], spec.get("rank", 0))
    os.environ["SM_HP_MP_PARAMETERS"] = json.dumps(spec["parameters"])
    for channel in ("TRAIN", "VALIDATION"):
        os.environ.pop(f"SM_CHANNEL_{channel}", None)
    os.environ |= spec.get("environment", {})
    # SageMaker passes hyperparameters sorted, dictionaries as a=1,b=2.
    options = {**spec["hyperparameters"], "mp_parameters": ",".join(f"{k}={v}" for k, v in spec["parameters"].items())}
    sys.argv = ["train_smp.py", *(text for key in sorted(options) for text in (f"--{key}", str(options[key])))]
    error = None
    printed = io.StringIO()
    with tempfile.TemporaryDirectory() as directory:
        os.environ["SM_MODEL_DIR"] = directory
        with contextlib.redirect_stdout(printed):
            try:
                runpy.run_path(spec["script"], run_name="__main__")
            except SystemExit as stop:
                error = str(stop)
            except Exception:  # noqa: BLE001
                error = traceback.format_exc()
        summary = Path(directory, "summary.json")
        written = json.loads(summary.read_text()) if summary.exists() else None
    return {"events": list(smp.events), "error": error, "printed": printed.getvalue(), "summary": written}


if __name__ == "__main__":
    # Each run puts its own command line in place.
    runs, answer = map(Path, sys.argv[1:3])
    answer.write_text(json.dumps({name: run(spec) for name, spec in json.loads(runs.read_text()).items()}))
