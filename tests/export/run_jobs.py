"""Fork of the process of the tests: runs generated scripts as jobs of several processes over gloo, one after the other.

usage: run_jobs.py JOBS.json RESULTS.json

Each job names a script, its folder, its options, its environment variables, the number of processes, and optionally a
`stand_in` program that each process runs first, `removed` files and `merged` folders of earlier jobs, a `batch` on
which the model that the job leaves is loaded, generates and is trained further, and the `answered` folders: a model and
its adapters, whose losses on an answer are compared. The launcher is the one of torchrun. Its processes are forks of
this one, because importing PyTorch and transformers takes longer than a job. The result of a job is its output, its
summary, its checkpoints at that time, the losses of its model, and the error that ended it.
"""

import gc
import json
import multiprocessing
import os
import runpy
import shutil
import sys
import tempfile
import traceback
import uuid
from pathlib import Path

os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}

import torch
import transformers
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import dynamic_rendezvous
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

# The launcher's log has the calling function, for which the whole stack is read with its files.
dynamic_rendezvous.get_method_name = lambda **_: "rendezvous"


FOUR = {"min_new_tokens": 4, "max_new_tokens": 4, "return_dict_in_generate": True}
NO_CACHE = "The model generates without its cache of keys and values."


def rank(job):
    """Run the job's script in this fork, with its output in files of the job's folder."""
    folder = Path(job["folder"])
    for stream, name in ((1, "output.txt"), (2, "errors.txt")):
        target = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(target, stream)
    os.chdir(folder)
    os.environ |= job["environment"]
    tempfile.tempdir = None  # that of the environment
    if job["stand_in"]:
        runpy.run_path(job["stand_in"])
    sys.argv = [job["script"], *job["options"]]
    sys.path.insert(0, str(Path(job["script"]).parent))
    try:
        runpy.run_path(job["script"], run_name="__main__")
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def run(job):
    """Run a job as ``torchrun --standalone`` does."""
    folder = Path(job["folder"])
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("output.txt", "errors.txt", "summary.json", *job.get("removed", ())):
        (folder / name).unlink(missing_ok=True)
    for disk in job.get("merged", ()):
        shutil.copytree(folder / disk, folder, dirs_exist_ok=True)
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=job["processes"],
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        start_method="fork",
    )
    failed = False
    try:
        elastic_launch(config, rank)(job)
    except ChildFailedError:
        failed = True
    text = {name: (folder / name).read_text() for name in ("output.txt", "errors.txt")}
    summary, checkpoints = folder / "summary.json", folder / "checkpoints"
    for field, target in (("batch", load_and_continue), ("answered", load_adapters)):
        if field in job and not failed:
            loading = multiprocessing.get_context("fork").Process(target=target, args=(job,))
            loading.start()
            loading.join()
    losses = folder / "losses.json"
    return {
        "losses": json.loads(losses.read_text()) if losses.exists() else None,
        "printed": text["output.txt"],
        "error": text["errors.txt"] if failed else None,
        "summary": json.loads(summary.read_text()) if summary.exists() else None,
        "checkpoints": sorted(path.name for path in checkpoints.iterdir()) if checkpoints.exists() else [],
    }


def load_and_continue(job):
    """Load the model that a job left with `from_pretrained`, and train it for three steps on a batch."""
    folder = Path(job["folder"])
    with (folder / "config.json").open() as file:
        (architecture,) = json.load(file)["architectures"]
    model, report = getattr(transformers, architecture).from_pretrained(
        folder, local_files_only=True, output_loading_info=True
    )
    batch = {name: torch.tensor(values) for name, values in job["batch"].items()}
    losses, generated = [], None
    if model.can_generate():
        prompt = batch["input_ids"][:1]
        answer = model.generate(prompt, **FOUR)
        assert answer.past_key_values is not None, NO_CACHE
        before = 1 if model.config.is_encoder_decoder else prompt.shape[1]
        generated = answer.sequences.shape[1] - before
    for _ in range(3):
        loss = model.float()(**batch)["loss"]
        losses.append(loss.item())
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.sub_(0.01 * parameter.grad)
    missing = sorted(report["missing_keys"])
    (folder / "losses.json").write_text(json.dumps({"losses": losses, "missing": missing, "generated": generated}))


def load_adapters(job):
    """Load a model alone and with adapters of it, and note the loss of each on an answer, and tokens that it adds."""
    from peft import PeftModel

    tokens = torch.tensor([[5, 4, 6, 6, 6, 1]])  # a row of the data: w1 w0, then w2 three times
    labels = tokens.clone()
    labels[:, :2] = -100
    base, results = job["answered"][0], {}
    with torch.no_grad():
        for place in job["answered"]:
            model = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
            if place != base:
                model = PeftModel.from_pretrained(model, place)
            loss, answer = (
                model(input_ids=tokens, labels=labels)["loss"].item(),
                model.generate(input_ids=tokens, **FOUR),
            )
            results[Path(place).name] = loss, answer.sequences.shape[1] - tokens.shape[1]
            assert answer.past_key_values is not None, NO_CACHE
    (Path(job["folder"]) / "losses.json").write_text(json.dumps(results))


if __name__ == "__main__":
    jobs, answer = map(Path, sys.argv[1:3])
    if any("import LoraConfig" in Path(job["script"]).read_text() for job in json.loads(jobs.read_text()).values()):
        import peft  # noqa: F401
    if any("from trl" in Path(job["script"]).read_text() for job in json.loads(jobs.read_text()).values()):
        import trl.scripts.utils
        import trl.trainer.dpo_trainer
        import trl.trainer.sft_trainer  # noqa: F401
    gc.freeze()  # a collection in a fork would copy the pages of all that was imported
    answer.write_text(json.dumps({name: run(job) for name, job in json.loads(jobs.read_text()).items()}))
