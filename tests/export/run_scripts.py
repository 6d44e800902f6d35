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
import shutil
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
    for channel in ("TRAIN", "VALIDATION", "MODEL", "TOKENIZER"):
        os.environ.pop(f"SM_CHANNEL_{channel}", None)
    os.environ |= spec.get("environment", {})
    # SageMaker passes hyperparameters sorted, dictionaries as a=1,b=2.
    options = {**spec["hyperparameters"], "mp_parameters": ",".join(f"{k}={v}" for k, v in spec["parameters"].items())}
    sys.argv = ["train_smp.py", *(text for key in sorted(options) for text in (f"--{key}", str(options[key])))]
    error, exported, names = None, None, {}
    printed, problems = io.StringIO(), io.StringIO()
    for path in spec.get("removed", ()):
        Path(path).unlink()
    with tempfile.TemporaryDirectory() as directory:
        os.environ["SM_MODEL_DIR"] = directory
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(problems):
            try:
                names = runpy.run_path(spec["script"], run_name="__main__")
            except SystemExit as stop:
                error = f"{stop} {problems.getvalue()}"
            except Exception:  # noqa: BLE001
                error = traceback.format_exc()
        summary = Path(directory, "summary.json")
        written = json.loads(summary.read_text()) if summary.exists() else None
        if Path(directory, "config.json").exists():
            exported = reloaded(names, directory)
        if "kept" in spec:
            shutil.copytree(directory, spec["kept"])
    return {
        "events": list(smp.events),
        "error": error,
        "printed": printed.getvalue(),
        "summary": written,
        "exported": exported,
    }


def reloaded(names, directory):
    """Files of the exported model, and whether transformers loads the trained weights from them."""
    (auto_model,) = (value for name, value in names.items() if name.startswith("AutoModelFor"))
    model = auto_model.from_pretrained(directory, torch_dtype=torch.float32)
    trained = smp.trained().state_dict()
    same = all(torch.allclose(value, trained[name].float(), atol=1e-2) for name, value in model.state_dict().items())
    return {"files": sorted(path.name for path in Path(directory).iterdir()), "same": same}


if __name__ == "__main__":
    # Each run puts its own command line in place.
    runs, answer = map(Path, sys.argv[1:3])
    answer.write_text(json.dumps({name: run(spec) for name, spec in json.loads(runs.read_text()).items()}))
