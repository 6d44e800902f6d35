"""Checks notice defects in full scripts, in other words and places than the catalog's examples, and fix them safely.

They are silent on correct and exported scripts.
"""

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from smp_advisor.review.findings.catalog import sections
from smp_advisor.review.scripts import check_script
from smp_advisor.review.scripts.context import CHECKS
from tests.export import examples
from tests.export.examples import training_script
from tests.scripts import samples


class Case(NamedTuple):
    """`old` replaced by `new` in a script: the finding `id`, and no other, on the line with `at`, or with `new`."""

    id: str
    script: tuple[str, dict[str, Any]]
    """Text and plan."""
    old: str
    new: str
    at: str = ""


PIPELINE = samples.PIPELINE, samples.PIPELINE_PLAN
TENSOR = samples.TENSOR, samples.TENSOR_PLAN
BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "scripts"
TENSORFLOW = (BENCHMARK / "tf_images.py").read_text("utf-8"), {"pipeline_parallel_degree": 2, "microbatches": 4}
_DDP, _DEVICE = "nn.parallel.DistributedDataParallel", "    torch.cuda.set_device(smp.local_rank())\n"
_PLACE = 'torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))\n'
_SHARDED_IN_PLACE = (
    samples.FSDP.replace("FullyShardedDataParallel, MixedPrecision", "fully_shard")
    .replace(
        samples.FSDP[samples.FSDP.index("model = FullyShardedDataParallel(") : samples.FSDP.index("optimizer =")],
        "for layer in model.model.layers:\n    fully_shard(layer)\nfully_shard(model)\n",
    )
    .replace("    with nullcontext():\n", "    model.set_requires_all_reduce(last)\n    if True:\n")
)
_LAYERS = samples.PIPELINE.replace(
    "hidden = self.embed(x)", "hidden = smp.patches.checkpoint.checkpoint(self.embed, x)"
)
_SCALED = samples.PIPELINE.replace(
    "    train(model, loader", "    scaler = smp.amp.GradScaler()\n    train(model, loader"
)
_MASKED = samples.PIPELINE.replace(
    "@smp.step\ndef train_step(model, data, target):",
    '@smp.step(non_split_inputs=["mask"])\ndef train_step(model, data, target, mask):',
).replace(
    "loss = train_step(model, data, target)", "loss = train_step(model, data, target, torch.tril(torch.ones(8, 8)))"
)
_EITHER = samples.PIPELINE.replace(
    "    model = smp.DistributedModel(model)\n",
    "    if args.lr > 1 or args.use_smp:\n        model = smp.DistributedModel(model)\n"
    f"    else:\n        model = {_DDP}(model)\n",
)
_BRANCHES = samples.TENSOR.replace(
    "    model = smp.DistributedModel(model)\n",
    "    if config.again:\n        again = GPT2Config()\n"
    "        with smp.model_creation(tensor_parallelism=True, dtype=torch.float16):\n"
    "            model = GPT2LMHeadModel(again)\n"
    "    model = smp.DistributedModel(model)\n",
)
_PRESCALED = samples.TENSOR.replace("smp.dp_size(), rank=smp.dp_rank()", "smp.rdp_size(), rank=smp.rdp_rank()")
_EVALUATED = samples.PIPELINE.replace(
    "    if smp.dp_rank() == 0:\n        smp.save(",
    "    for data, target in loader:\n        test_step(model, data, target)\n"
    "    if smp.dp_rank() == 0:\n        smp.save(",
)
COMPILED = (BENCHMARK / "compiler_native_workers.py").read_text("utf-8"), {"library": "training-compiler"}
_LOADED = re.sub(
    r"xm.reduce_gradients.*?optimizer.step\(\)", "xm.optimizer_step(optimizer)", COMPILED[0], flags=re.DOTALL
)
_LOADED = _LOADED.replace("def _mp_fn(index):\n    train(arguments())\n", "").replace("xm.get_ordinal()", "rank")
"""Data for several workers, without the entry function of a worker."""
_FULL = samples.TENSOR.replace(
    "    stage = smp.pp_rank()",
    "    if smp.rdp_rank() == 0:\n        weights = model.state_dict()\n    stage = smp.pp_rank()",
)

_AUTO = samples.TENSOR.replace("GPT2LMHeadModel(config)", "AutoModelForCausalLM.from_config(config)").replace(
    "import GPT2Config, GPT2LMHeadModel", "import AutoModelForCausalLM, GPT2Config, LlamaConfig"
)
_PLACED = (
    samples.V2.replace("tsm.init()\n", f"tsm.init()\n{_PLACE}")
    .replace("use_orig_params=True", "use_orig_params=True, device_id=torch.cuda.current_device()")
    .replace("import argparse\n", "import argparse\nimport os\n")
)
_SAVED = 'state = model.state_dict()\nif dist.get_rank() == 0:\n    torch.save(state, "model.pt")\n'
CASES = [
    Case("SMP132", (_EITHER, samples.PIPELINE_PLAN), "Model(model)", f"Model({_DDP}(model))"),
    Case(
        "SMP122", (_BRANCHES, samples.TENSOR_PLAN),
        "        with smp.model_creation(tensor_parallelism=True, dtype=torch.float16):\n"
        "            model = GPT2LMHeadModel(again)\n",
        "        model = GPT2LMHeadModel(again)\n", "model = GPT2LMHeadModel(again)",
    ),
    Case("SMP105", TENSORFLOW, '@smp.step(non_split_inputs=["class_weights"])\n', "", "predictions = model("),
    Case("SMP107", TENSORFLOW, ".accumulate() for", " for", "optimizer.apply_gradients"),
    Case("SMP126", TENSOR, "if smp.rdp_rank() == 0:", "if smp.rank() == 0:", "smp.save(state"),
    Case("SMP101", PIPELINE, f"    smp.init()\n{_DEVICE}", f"{_DEVICE}    smp.init()\n", "set_device"),
    Case("SMP102", PIPELINE, "model = smp.Dist", "smp.Dist", "output = model(data)"),
    Case(
        "SMP105", (_EVALUATED, samples.PIPELINE_PLAN), "@smp.step\ndef test_step", "def test_step",
        "return F.cross_entropy(model(data), target)",
    ),
    Case("SMP106", PIPELINE, "model.backward(loss)", "smp.amp.GradScaler().scale(loss).backward()"),
    Case("SMP106", PIPELINE, "model.backward(loss)", "torch.autograd.backward(loss)"),
    Case(
        "SMP107", PIPELINE,
        "        mean = loss.reduce_mean()\n        optimizer.step()\n"
        "        if smp.rank() == 0:\n            print(mean.item())",
        "        optimizer.step()\n        print(loss / 2)", "print(loss / 2)",
    ),
    Case("SMP109", PIPELINE, "drop_last=True", "drop_last=False", "DataLoader(dataset"),
    Case(
        "SMP109", PIPELINE, "(dataset, batch_size=64, sampler=sampler, drop_last=True)",
        "(\n        dataset,\n        batch_size=64,  # a GPU's\n        sampler=sampler,\n    )", "DataLoader(",
    ),
    Case("SMP111", TENSOR, "rank=smp.dp_rank()", "rank=smp.rdp_rank()"),
    Case("SMP111", (_PRESCALED, samples.TENSOR_PLAN | {"prescaled_batch": True}), "rank=smp.rdp", "rank=smp.dp"),
    Case("SMP112", (_MASKED, samples.PIPELINE_PLAN), '["mask"]', "[]", "torch.tril"),
    Case("SMP115", (_LAYERS, samples.PIPELINE_PLAN), "smp.patches.checkpoint", "torch.utils.checkpoint"),
    Case("SMP122", TENSOR, "tensor_parallelism=True", "tensor_parallelism=False"),
    Case(
        "SMP126", (_FULL, samples.TENSOR_PLAN), "if smp.rdp_rank() == 0:\n        weights",
        "if smp.rank() == 0:\n        weights", "weights = model.state_dict()",
    ),
    Case("SMP132", (_SCALED, samples.PIPELINE_PLAN), "smp.amp.GradScaler", "torch.cuda.amp.GradScaler"),
    Case("SMP135", (_AUTO, samples.TENSOR_PLAN), "= GPT2Config(", "= LlamaConfig(", "AutoModelForCausalLM.from_config"),
    Case("SMP312", (samples.V2, samples.V2_PLAN | {"hybrid_shard_degree": 4}), ", auto_wrap_policy=policy", "", "FSDP"),
    Case("DDP601", (_PLACED, samples.V2_PLAN), _PLACE, "", "FSDP(model"),
    Case(
        "DDP606", (samples.V2 + _SAVED, samples.V2_PLAN), _SAVED,
        'if dist.get_rank() == 0:\n    torch.save(model.state_dict(), "model.pt")\n', "model.state_dict()",
    ),
    Case("SMP308", (_SHARDED_IN_PLACE, samples.FSDP_PLAN), "requires_all_reduce(last)", "requires_gradient_sync(last)"),
    Case("STC406", (_LOADED, COMPILED[1]), "xm.optimizer_step(optimizer)", "optimizer.step()"),
]  # fmt: skip


def test_every_check_has_texts():
    check_script("")
    texts = {check.id for section in sections() for check in section.checks if not check.id.startswith("EST")}
    assert set(CHECKS) == texts


@pytest.mark.parametrize("case", CASES, ids=[f"{case.id}-{number}" for number, case in enumerate(CASES)])
def test_the_defect_is_found_at_its_line_and_nothing_else(case: Case):
    text, plan = case.script
    assert case.old in text
    assert case.id not in {finding.id for finding in check_script(text, plan)}
    report = check_script(text.replace(case.old, case.new), plan)
    assert {finding.id for finding in report} == {case.id}, str(report)
    assert any((case.at or case.new) in finding.text for finding in report), str(report)


PLANS = {name.removesuffix("_PLAN"): plan for name, plan in vars(samples).items() if name.endswith("_PLAN")}
PLANS |= dict.fromkeys(("ADAPTER", "FABRIC", "ACCELERATE", "SHARDED_TRAINER"), samples.FSDP_PLAN)


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("known", [True, False], ids=["plan", "no plan"])
def test_correct_scripts_have_no_findings(name, known):
    assert not check_script(getattr(samples, name), PLANS[name] if known else None)


TRAINER = "import os\nfrom transformers import Trainer, TrainingArguments\nplace = os.environ['SM_CHANNEL_TRAIN']\n"
RESUMES = (
    "trainer = Trainer(model=model, args=args, train_dataset=rows, eval_dataset=more)\n"
    "trainer.train(resume_from_checkpoint=True)\n"
)
BEST = "args = TrainingArguments('/opt/ml/checkpoints', load_best_model_at_end=True, "
DIVIDED = "from transformers import AutoModelForCausalLM\nmodel = AutoModelForCausalLM.from_pretrained('m', "
LIGHTNING = """
import torch
import lightning
from lightning.pytorch.callbacks import ModelCheckpoint

class Model(lightning.LightningModule):
    def validation_step(self, batch, number):
        self.log("val_loss", self(batch).mean(){sync})

trainer = lightning.Trainer({devices}, callbacks=[ModelCheckpoint(monitor="val_loss")])
trainer.fit(Model(), loader, valid)
"""


@pytest.mark.parametrize(
    "text",
    [
        TRAINER + BEST + "eval_strategy='epoch', save_strategy='epoch', save_steps=500, eval_steps=300)\n" + RESUMES,
        TRAINER + BEST + "eval_strategy='steps', save_strategy='best', save_steps=500, eval_steps=300)\n" + RESUMES,
        TRAINER + "args = TrainingArguments('/lustre/run', save_steps=200)\n" + RESUMES,
        DIVIDED + "tp_plan='auto', device_map=None)\n",
        DIVIDED + "tp_plan='auto', device_mesh=mesh['tp'])\nfully_shard(model, mesh=mesh['dp'])\n",
        LIGHTNING.format(sync=", sync_dist=self.trainer.world_size > 1", devices="devices=8, strategy='ddp'"),
        LIGHTNING.format(sync="", devices="devices=[0], strategy='auto'"),
    ],
)
def test_settings_that_look_like_a_defect_are_none(text):
    assert not {finding.id for finding in check_script(text)} & {"TRN736", "TRN738", "TRN739", "SMP005"}


def plans(path: Path) -> list[dict[str, object] | None]:
    """No plan, and that of the first line."""
    first = path.read_text("utf-8").partition("\n")[0]
    return [None, *([json.loads(first.removeprefix("# plan: "))] if first.startswith("# plan: ") else [])]


@pytest.mark.parametrize(
    ("path", "plan"),
    [
        pytest.param(path, plan, id=path.stem + "-plan" * bool(plan))
        for path in sorted(BENCHMARK.glob("*.py"))
        for plan in plans(path)
    ],
)
def test_what_the_benchmark_breaks_is_whole_before(path, plan):
    report = check_script(path, plan)
    assert not report, str(report)


CELLS = examples.CASES | examples.TASK_CASES


@pytest.mark.slow
@pytest.mark.parametrize("name", CELLS)
def test_an_exported_script_has_no_findings(name):
    script = training_script(*CELLS[name].parts)
    for plan in (CELLS[name].plan, None):
        assert not (report := check_script(script, plan)), str(report)
