"""Child process: runs adapted scripts on a CPU with the stand-in for the library that the exporter's tests have.

usage: run_adapted.py RUNS.json RESULTS.json

What the stand-in refuses but adapted scripts may do (steps with several outputs, dictionaries of tensors) is added here
from the library's documentation.
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
import types
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "export" / "fakes"))
os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}

import smdistributed.modelparallel.torch as smp
import torch

torch.set_num_threads(1)
torch.cuda.set_device = lambda device: smp.record("set_device", device=device)
torch.Tensor.cuda = lambda tensor, *_, **__: tensor


def cut(value, parts, part):
    """One microbatch of an argument: tensors in lists, tuples and dictionaries are split, all else goes along."""
    if isinstance(value, torch.Tensor):
        if value.shape[0] % parts:
            raise RuntimeError("TensorSplitError: batch size must be divisible by the number of microbatches")
        return value.chunk(parts)[part]
    if isinstance(value, dict):
        return {key: cut(item, parts, part) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(cut(item, parts, part) for item in value)
    return value


def pack(outputs):
    """What a step gives back: one StepOutput a tensor."""
    first = outputs[0]
    if isinstance(first, torch.Tensor):
        return smp.StepOutput([output.detach() for output in outputs])
    if isinstance(first, tuple):
        return tuple(pack([output[place] for output in outputs]) for place in range(len(first)))
    raise TypeError(f"a step returned {type(first).__name__}, which is no tensor")


def step(function=None, *, non_split_inputs=(), **options):
    if function is None:
        return lambda decorated: step(decorated, non_split_inputs=non_split_inputs, **options)
    names = function.__code__.co_varnames[: function.__code__.co_argcount]

    def stepped(*arguments):
        parts = smp._parameter("microbatches", 1)
        outputs = []
        for part in range(parts):
            batch = [a if n in non_split_inputs else cut(a, parts, part) for n, a in zip(names, arguments, strict=True)]
            smp._job.in_step = True
            try:
                outputs.append(function(*batch))
            finally:
                smp._job.in_step = False
        smallest = [o.float().mean().item() for o in torch.utils._pytree.tree_leaves(outputs)]
        smp.record("step", function=function.__name__, gradients=torch.is_grad_enabled(), outputs=smallest)
        return pack(outputs)

    return stepped


def save_checkpoint(path, tag, partial=True, model=None, optimizer=None, user_content=None, **options):
    if not isinstance(model, smp.DistributedModel):
        raise TypeError("save_checkpoint takes the distributed model")
    smp.record("save_checkpoint", tag=tag, partial=partial, content=user_content)


smp.step, smp.save_checkpoint = step, save_checkpoint
smp.StepOutput.concat = lambda output: torch.cat(output.outputs)
smp.amp = types.SimpleNamespace(GradScaler=torch.amp.GradScaler)
smp.tensor_parallelism = lambda **_: contextlib.nullcontext()
patches = types.ModuleType("smdistributed.modelparallel.torch.patches")
patches.checkpoint = types.ModuleType("smdistributed.modelparallel.torch.patches.checkpoint")
patches.checkpoint.checkpoint = lambda function, *arguments: function(*arguments)
sys.modules |= {patches.__name__: patches, patches.checkpoint.__name__: patches.checkpoint}


def run(spec):
    smp.reset(spec["world"], spec["rank"])
    os.environ["SM_HP_MP_PARAMETERS"] = json.dumps(spec["parameters"])
    sys.argv = ["train.py", "--mp_parameters", "a=1"]
    error, printed = None, io.StringIO()
    with tempfile.TemporaryDirectory() as directory, contextlib.chdir(directory):
        Path("train.py").write_text(spec["source"])
        with contextlib.redirect_stdout(printed):
            try:
                runpy.run_path("train.py", run_name="__main__")
            except (Exception, SystemExit):  # noqa: BLE001
                error = traceback.format_exc()
    return {"events": list(smp.events), "error": error, "printed": printed.getvalue()}


if __name__ == "__main__":
    runs, answer = map(Path, sys.argv[1:3])
    answer.write_text(json.dumps({name: run(spec) for name, spec in json.loads(runs.read_text()).items()}, default=str))
