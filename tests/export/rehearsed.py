"""Exported scripts as jobs: their stages are those that a test names, on the machinery of a rehearsal."""

import json
import re
from pathlib import Path
from tempfile import TemporaryDirectory

from smp_advisor.rehearsal.jobs import job_of
from smp_advisor.rehearsal.request import channels_of, copied, request_of
from smp_advisor.rehearsal.run import _recorded
from tests.forked import import_libraries

QUICK = {"learning_rate": 0.01, "warmup_steps": 1, "log_every": 1, "max_steps": 6}
"""Options of a job of a tiny model, whose loss falls in a few steps."""
MANY = 1 << 30
QUIET = "import logging, warnings\nwarnings.simplefilter('ignore')\nlogging.disable(logging.INFO)\n"
"""Before a script: what pytest shows would be the last lines of its log."""


def run_stages(texts, stages, *, options=None, channels=None, environment=None, keep_half=True):
    """Records of the stages by name: options of each are ``world``, ``keeps`` (checkpoints), ``arguments``, ...

    `texts` are the files of the job by name, `train.py` or `train_smp.py` its script.
    """
    import_libraries()  # the processes are forks of this one
    settings = {"hyperparameters": QUICK | (options or {}), "environment": environment or {}, "checkpoints": True}
    job, extra = job_of(settings)
    with TemporaryDirectory() as name:
        script = Path(name, next(file for file in texts if file.startswith("train") and file.endswith(".py")))
        for file, text in texts.items():
            Path(name, file).write_text(QUIET * (file == script.name) + text, encoding="utf-8")
        code = copied(script, extra, Path(name, "code"), job)
        request = request_of(code, job, 2, channels_of(channels), False, keep_half)
        request |= {"stages": [{"name": key, "live": True, **own} for key, own in stages.items()]}
        recorded = _recorded(request | {"steps": MANY, "batches": MANY, "most": MANY}, None, None, None)
    return {stage["name"]: stage for stage in recorded["stages"]}


def printed(stage):
    """Text that the first rank printed."""
    return "\n".join(stage["ranks"][0]["log"])


def losses_of(stage):
    """Losses by step of a job that ended without an error."""
    assert not stage["failed"], [rank["log"][-12:] for rank in stage["ranks"]]
    lines = re.findall(r"^step (\d+)/\d+ loss (\S+)", printed(stage), re.MULTILINE)
    return {int(step): float(loss) for step, loss in lines}


def loaded_of(stage):
    """Losses, and generated tokens, of what the job left (`loaded.py`)."""
    return json.loads(re.findall(r"^loaded (.*)$", printed(stage), re.MULTILINE)[-1])


def summary_of(stage):
    """The figures that a job prints and writes at its end; none if it stopped before."""
    lines = [line for line in stage["ranks"][0]["log"] if line.startswith("{")]
    return json.loads(lines[-1]) if lines else None


def save_weights(settings, folder, tokenizer=None):
    """A folder with random weights of a configuration, and its tokenizer."""
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(**settings)
    pairs = config.is_encoder_decoder
    kind = transformers.AutoModelForSeq2SeqLM if pairs else transformers.AutoModelForCausalLM
    kind.from_config(config).save_pretrained(folder)
    for path in tokenizer.iterdir() if tokenizer else ():
        (folder / path.name).write_bytes(path.read_bytes())


def types_of(stage, operation="reduce_scatter"):
    """Types of the elements of the collectives of an operation."""
    events = stage["ranks"][0]["events"]
    return {event["type"] for event in events if event["kind"] == "collective" and operation in event["operation"]}
