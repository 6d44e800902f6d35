"""Every family that the exporter writes, small, in every kind of training: run as exported, with the estimate.

usage: python -m benchmarks.exported_jobs [PATTERN ...]

Runs the jobs of `exported_jobs.toml` whose names match a pattern (all without one) on two processes over gloo, with the
packages that the cells pin. Their rows replace those of benchmarks/results/exported_jobs.csv, from which it writes
benchmarks/results/exported_jobs.md.
"""

from __future__ import annotations

import csv
import json
import re
import shutil
import sys
import tempfile
import tomllib
import traceback
from dataclasses import dataclass
from fnmatch import fnmatch
from importlib.metadata import version
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from smp_advisor.cluster import Cluster
from smp_advisor.costs.evaluate import estimate
from smp_advisor.errors import AdvisorError, UnknownFamilyError
from smp_advisor.export.script import companions, writable, written
from smp_advisor.libraries import Plan
from smp_advisor.profiling import profile
from smp_advisor.workload import Adapter, Job, Model

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smp_advisor.export.script_parts import Training

_ROOT = Path(__file__).parents[1]
_TABLE = _ROOT / "benchmarks" / "results" / "exported_jobs.csv"
_TESTS = _ROOT / "tests" / "export"
_LATER = """
import pathlib, shutil
for path in pathlib.Path("/opt/ml/checkpoints").glob("*-4"):
    shutil.rmtree(path, ignore_errors=True)
"""
"""In the later job, the checkpoint of the last step is not there."""
_LENGTH, _BATCH, _STEPS = 16, 4, 4
_KINDS: dict[str, dict[str, Any]] = {
    "pre-training": {},
    "fine-tuning": {"training": "fine-tuning"},
    "LoRA": {"adapter": Adapter(rank=8)},
    "QLoRA": {"adapter": Adapter(rank=8, base_bits=4)},
    "DPO": {"training": "fine-tuning"},
}
_COLUMNS = ("job", "starts", "names", "loss", "trained", "bytes", "adapters", "reduces", "resumes", "loads", "note")
_HEAD = """# Exported jobs

Written by `python -m benchmarks.exported_jobs`, which exports each job of `exported_jobs.toml` for a small model, runs
its script in a rehearsal on two processes in its own types (FSDP2 with the code of accelerate and of PyTorch), ends it
after {steps} steps, runs it again from the checkpoint of step 2, loads the model that it leaves, and generates.

Packages: {packages}; torchao 0.18.0 for Adam in 8 and 4 bits.

With torch 2.14.1 and transformers 5.24.0, 14 rows were run, and are right: all of "llama, tied" and "llama, compiled",
LoRA of qwen3_moe with FSDP, QLoRA of gpt_oss with DDP. With torch 2.14.0 and the other packages above, 12 rows ran, and
are right: fine-tuning, QLoRA and DPO of llama, its compiled blocks, gpt2 with dropout, QLoRA of mixtral, LoRA of
qwen3_moe, DPO of gpt_oss, fine-tuning of deepseek_v3 and t5, pre-training of mamba2 and vit. torch 2.15 was not
run.

- starts: the script ends without an error; names: all processes have the same parameters;
- loss: that of the last step is below that of the first, on data with something to learn; resumes: the losses of steps
  3 and 4 are the same after a start from step 2;
- trained, bytes, adapters, reduces: parameters trained, with those that the model itself freezes (biases of ERNIE's
  routers); bytes of the frozen parameters under an adapter (with the scales of a quantized base), or of all; modules
  with an adapter; type of the reduced gradients (`-`: a row of an earlier run, whose loss counted as falling where any
  step was below the first). One value: the estimate has the same. Two: the job's, and the estimate's in parentheses;
- loads: no key is missing, and a language model generates.

{right} of {total} rows are as they should be; {refused} jobs are refused before they are exported, with a sentence.

"""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One job of the table."""

    family: str
    kind: str
    library: str
    settings: dict[str, Any]
    job: dict[str, Any]
    """Settings of the job besides those of its kind."""
    rate: float
    """Learning rate with which a small model of the family learns in four steps."""

    @property
    def name(self) -> str:
        return f"{self.family}, {self.kind}, {self.library}"


def cases() -> Iterator[Case]:
    """The jobs of all families."""
    content = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
    for name, family in (content["family"] | content["further"]).items():
        settings = content["sizes"] | family.get("settings", {})
        settings = {key: value for key, value in settings.items() if key not in family.get("without", ())}
        for kind, library in product(family.get("kinds", _KINDS), ("ddp", "fsdp")):
            yield Case(
                family=name,
                kind=kind,
                library=library,
                settings=settings,
                job=family.get("job", {}),
                rate=family.get("rate", 0.01),
            )


def _save_images(folder: Path) -> None:
    """Dark and bright images with their classes."""
    folder.mkdir()
    labels = np.arange(64) % 2
    np.save(folder / "labels.npy", labels)
    np.save(folder / "images.npy", (labels[:, None, None, None] * np.ones((3, 16, 16))).astype(np.float32))


def _model_of(case: Case) -> Model:
    """The model as `advise` reads it: by formula, or traced."""
    try:
        return Model.from_config(case.settings)
    except UnknownFamilyError:
        return Model.from_profile(profile(case.settings))


def _estimated(model: Model, job: Job, plan: Plan) -> dict[str, Any]:
    """The product's figures of a job: trained parameters, bytes of parameters on one GPU of DDP, adapted modules."""
    adapter = job.adapter
    if adapter is None:
        return {"trained": model.parameter_count, "bytes": 4 * model.parameter_count, "adapters": 0}
    applied = adapter.applied_to(model)
    alone = Plan(library="ddp", batch_size=plan.batch_size, precision="bf16")
    (stage,) = estimate(model, Cluster("ml.p4d.24xlarge", 1), job, alone).memory.stages
    modules = sum(group.count * group.block.adapter_products // 2 for group in applied.groups)
    # Without the adapter, in fp32 and as the passes read it.
    frozen = round(stage.parameters_gib * 2**30) - 6 * adapter.parameter_count(model)
    return {"trained": adapter.parameter_count(model), "bytes": frozen, "adapters": modules}


def _stages(case: Case, training: Training, folder: Path) -> dict[str, dict[str, Any]]:
    """Records of the exported job, and of a later one that starts from its checkpoint of step 2."""
    from tests.export.rehearsed import run_stages

    texts = {"train.py": written(training), **companions(training)}
    texts["train.py"] = f"{(_TESTS / 'probe.py').read_text('utf-8')}\n{_LATER}\n{texts['train.py']}"
    data = {"pre-training": "text", "DPO": "answers"}.get(case.kind, "pairs")
    data = data if training.architecture.reads_text else "images"
    channels = {"train": folder / data, "tokenizer": folder / "tokenizer"}
    channels |= {} if case.kind == "pre-training" else {"model": folder / "weights"}
    options = {"max_steps": _STEPS, "checkpoint_every": 2, "learning_rate": case.rate}
    stages: dict[str, dict[str, Any]] = {"first": {}, "later": {"keeps": True}}
    return run_stages(texts, stages, options=options, channels=channels)


def _row(case: Case, folder: Path) -> dict[str, str]:
    """Export and run a job, and compare it with the estimate."""
    from tests.export.rehearsed import losses_of

    row = dict.fromkeys(_COLUMNS, "-") | {"job": case.name, "note": ""}
    model = _model_of(case)
    plan = Plan(library=case.library, batch_size=_BATCH, precision="bf16")
    job = Job(sequence_length=_LENGTH, precision="bf16", **_KINDS[case.kind], **case.job)
    objective = "dpo" if case.kind == "DPO" else None
    try:
        training = writable(model, Cluster("ml.p4d.24xlarge", 1), job, plan, objective=objective)
    except AdvisorError as error:
        return row | {"starts": "refused", "note": str(error)}
    stages = _stages(case, training, folder)
    first, later = stages["first"], stages["later"]
    if first["failed"]:
        # Processes that lost the connection to one that failed report it, too.
        lines = [line for rank in first["ranks"] for line in rank["log"] if re.match(r"\w*(Error|Exit)\b", line)]
        cause = next((line for line in lines if "gloo" not in line), "") or str(first["ranks"][0]["log"][-3:])
        return row | {"starts": "NO", "note": cause[:300]}
    logs = ["\n".join(rank["log"]) for rank in first["ranks"]]
    ranks = [json.loads(re.search(r"^probe (.*)", log, re.MULTILINE)[1]) for log in logs]  # type: ignore[index]
    losses, sizes = losses_of(first), ranks[0]["bytes"]
    frozen = sum(count for kind, count in sizes.items() if "frozen" in kind)
    measured = ranks[0] | {"bytes": frozen}
    if job.adapter is None:  # a few models freeze a bias themselves
        measured |= {"trained": ranks[0]["trained"] + frozen // 4, "bytes": sum(sizes.values())}
    for name, value in _estimated(model, job, plan).items():
        row[name] = f"{measured[name]:,}" + (f" ({value:,})" if measured[name] != value else "")
    operation = "reduce_scatter" if plan.shards_parameters else "allreduce"
    events = [event for event in first["ranks"][0]["events"] if event["kind"] == "collective" and event["update"] == 0]
    types = {event["type"] for event in events if operation in event["operation"] and event["elements"] > 1}
    reduced = "+".join(sorted(types))
    counted = training.reduced_dtype.removeprefix("torch.") if plan.shards_parameters else "float32"
    row["reduces"] = reduced + (f" ({counted})" if reduced != counted else "")
    models = [entry for entry in first["loaded"] if entry.get("pretrained")]
    problem = "" if models else "nothing that loads"
    problem = next(
        (entry["error"] or f"missing {entry['missing']}" for entry in models if entry["error"] or entry["missing"]),
        problem,
    )
    again = losses_of(later) if not later["failed"] else {}
    return row | {
        "starts": "yes",
        "names": "same" if all(rank["names"] == ranks[0]["names"] for rank in ranks) else "DIFFER",
        "loss": "falls" if losses[_STEPS] < losses[1] else f"NO: {losses}",
        "loads": f"NO: {problem}" if problem else "yes",
        "resumes": "same" if again == {step: losses[step] for step in (3, 4)} else f"NO: {losses}, then {again}",
        "note": ", ".join(f"{kind} {count:,}" for kind, count in ranks[0]["bytes"].items()),
    }


def _is_right(row: dict[str, str]) -> bool:
    wrong = any(text.startswith(("NO", "DIFFER")) for text in row.values())
    return not wrong and not any("(" in row[name] for name in ("trained", "bytes", "adapters", "reduces"))


def _page(rows: list[dict[str, str]]) -> str:
    names = ("torch", "transformers", "trl", "accelerate", "datasets", "peft", "bitsandbytes")
    right = sum(_is_right(row) for row in rows if row["starts"] != "refused")
    refused = sum(row["starts"] == "refused" for row in rows)
    packages = ", ".join(f"{name} {version(name)}" for name in names)
    head = _HEAD.format(packages=packages, steps=_STEPS, right=right, total=len(rows) - refused, refused=refused)
    lines = [_COLUMNS, ["---"] * len(_COLUMNS)]
    lines += [[row[name].replace("|", "\\|").replace("\n", " ") for name in _COLUMNS] for row in rows]
    return head + "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + "\n"


def main(patterns: list[str]) -> None:
    """Run the jobs that match, and write the table and its page."""
    # Other distributions install a package of this name, too.
    sys.modules["tests"] = ModuleType("tests")
    sys.modules["tests"].__path__ = [str(_ROOT / "tests")]
    from tests.export.rehearsed import save_weights
    from tests.export.test_script_trl import make_channels

    chosen = [case for case in cases() if not patterns or any(fnmatch(case.name, pattern) for pattern in patterns)]
    known = list(csv.DictReader(_TABLE.open())) if _TABLE.exists() else []
    rows = {row["job"]: dict.fromkeys(_COLUMNS, "-") | row for row in known}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_channels(folder)
        _save_images(folder / "images")
        family = ""
        for case in chosen:
            if case.family != family:
                family = case.family
                shutil.rmtree(folder / "weights", ignore_errors=True)
                save_weights(case.settings, folder / "weights")
            try:
                row = _row(case, folder)
            except Exception as error:  # noqa: BLE001 (a row of the table)
                traceback.print_exc()
                row = dict.fromkeys(_COLUMNS, "-") | {"job": case.name, "starts": "NO", "note": f"{error!r}"[:300]}
            rows[case.name] = row
            _write(rows)
            print(*("  " if _is_right(row) else "!!", *row.values()), sep=" | ", flush=True)


def _write(rows: dict[str, dict[str, str]]) -> None:
    """Write the table and its page after every job: a run that ends early keeps its rows."""
    kept = [rows[case.name] for case in cases() if case.name in rows]
    with _TABLE.open("w", newline="") as file:
        writer = csv.DictWriter(file, _COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(kept)
    _TABLE.with_suffix(".md").write_text(_page(kept), "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
