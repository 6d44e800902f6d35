"""Changes to full scripts that a check must notice, next to the examples of the catalog: other words and places."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.scripts import samples


@dataclass(frozen=True)
class Case:
    """`old` replaced by `new` in `base`: the finding `id` on the line that holds `at`."""

    id: str
    script: tuple[str, dict[str, Any]]
    """Text and plan."""
    old: str
    new: str
    at: str
    fixed: bool = False
    also: frozenset[str] = field(default=frozenset())
    """Other findings that the same change rightly causes."""
    changes: dict[str, Any] = field(default_factory=dict)
    """To the plan, for both scripts."""
    name: str = ""

    @property
    def firing(self) -> str:
        assert self.old in self.script[0], self.old
        return self.script[0].replace(self.old, self.new)

    @property
    def settings(self) -> dict[str, Any]:
        return self.script[1] | self.changes

    def __str__(self) -> str:
        return f"{self.id}-{self.name}" if self.name else self.id


PIPELINE = samples.PIPELINE, samples.PIPELINE_PLAN
TENSOR = samples.TENSOR, samples.TENSOR_PLAN
TENSORFLOW = samples.TENSORFLOW, samples.TENSORFLOW_PLAN
V2 = samples.V2, samples.V2_PLAN
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
    "    else:\n        model = nn.parallel.DistributedDataParallel(model)\n",
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
_LOADED = (
    samples.XLA.replace("def _mp_fn(index):\n    train()\n", "train()\n")
    .replace("        xm.mark_step()\n", "")
    .replace("num_replicas=xm.xrt_world_size(), rank=xm.get_ordinal()", "num_replicas=size, rank=rank")
    .replace(", drop_last=True)", ", drop_last=True)\n    loader = pl.MpDeviceLoader(loader, device)")
    .replace("import torch_xla", "import torch_xla.distributed.parallel_loader as pl\nimport torch_xla")
)
"""Data for several workers, without the entry function of a worker."""
_FULL = samples.TENSOR.replace(
    "    stage = smp.pp_rank()",
    "    if smp.rdp_rank() == 0:\n        weights = model.state_dict()\n    stage = smp.pp_rank()",
)

_AUTO = samples.TENSOR.replace("GPT2LMHeadModel(config)", "AutoModelForCausalLM.from_config(config)").replace(
    "import GPT2Config, GPT2LMHeadModel", "import AutoModelForCausalLM, GPT2Config, LlamaConfig"
)
_PLACED = (
    samples.V2.replace("tsm.init()\n", 'tsm.init()\ntorch.cuda.set_device(int(os.environ["LOCAL_RANK"]))\n')
    .replace("use_orig_params=True", "use_orig_params=True, device_id=torch.cuda.current_device()")
    .replace("import argparse\n", "import argparse\nimport os\n")
)
_SAVED = 'state = model.state_dict()\nif dist.get_rank() == 0:\n    torch.save(state, "model.pt")\n'

CASES = [
    Case(
        "SMP132",
        (_EITHER, samples.PIPELINE_PLAN),
        "        model = smp.DistributedModel(model)\n",
        "        model = smp.DistributedModel(nn.parallel.DistributedDataParallel(model))\n",
        "DistributedDataParallel(model))",
        name="with the library",
    ),
    Case(
        "SMP122",
        (_BRANCHES, samples.TENSOR_PLAN),
        "        with smp.model_creation(tensor_parallelism=True, dtype=torch.float16):\n"
        "            model = GPT2LMHeadModel(again)\n",
        "        model = GPT2LMHeadModel(again)\n",
        "model = GPT2LMHeadModel(again)",
        name="one branch",
    ),
    Case("SMP105", TENSORFLOW, "@smp.step\n", "", "predictions = model("),
    Case(
        "SMP107",
        TENSORFLOW,
        "[g.accumulate() for g in gradients]",
        "[g for g in gradients]",
        "optimizer.apply_gradients",
    ),
    Case("SMP126", TENSOR, "if smp.rdp_rank() == 0:", "if smp.rank() == 0:", "smp.save(state", name="part"),
    Case(
        "SMP101",
        PIPELINE,
        "    smp.init()\n    torch.cuda.set_device(smp.local_rank())\n",
        "    torch.cuda.set_device(smp.local_rank())\n    smp.init()\n",
        "set_device",
        name="later",
    ),
    Case(
        "SMP102",
        PIPELINE,
        "    model = smp.DistributedModel(model)\n",
        "    smp.DistributedModel(model)\n",
        "output = model(data)",
        name="unused",
    ),
    Case(
        "SMP105",
        (_EVALUATED, samples.PIPELINE_PLAN),
        "@smp.step\ndef test_step",
        "def test_step",
        "return F.cross_entropy(model(data), target)",
        name="evaluation",
    ),
    Case(
        "SMP106",
        PIPELINE,
        "    model.backward(loss)",
        "    scaler = smp.amp.GradScaler()\n    scaler.scale(loss).backward()",
        "scaler.scale(loss).backward()",
        fixed=True,
        name="scaler",
    ),
    Case("SMP106", PIPELINE, "model.backward(loss)", "torch.autograd.backward(loss)", "autograd", name="autograd"),
    Case(
        "SMP107",
        PIPELINE,
        "        mean = loss.reduce_mean()\n        optimizer.step()\n"
        "        if smp.rank() == 0:\n            print(mean.item())",
        "        optimizer.step()\n        print(loss / 2)",
        "print(loss / 2)",
        fixed=True,
        name="arithmetic",
    ),
    Case("SMP109", PIPELINE, "drop_last=True", "drop_last=False", "DataLoader(dataset", fixed=True, name="false"),
    Case(
        "SMP109",
        PIPELINE,
        "(dataset, batch_size=64, sampler=sampler, drop_last=True)",
        "(\n        dataset,\n        batch_size=64,  # a GPU's\n        sampler=sampler,\n    )",
        "DataLoader(",
        fixed=True,
        name="lines",
    ),
    Case("SMP111", TENSOR, "rank=smp.dp_rank()", "rank=smp.rdp_rank()", "rank=smp.rdp_rank()", fixed=True, name="rdp"),
    Case(
        "SMP111",
        (_PRESCALED, samples.TENSOR_PLAN),
        "rank=smp.rdp_rank()",
        "rank=smp.dp_rank()",
        "rank=smp.dp_rank()",
        changes={"prescaled_batch": True},
        name="prescaled",
    ),
    Case("SMP112", (_MASKED, samples.PIPELINE_PLAN), '["mask"]', "[]", "torch.tril", fixed=True, name="empty"),
    Case(
        "SMP115",
        (_LAYERS, samples.PIPELINE_PLAN),
        "smp.patches.checkpoint.checkpoint(self.embed, x)",
        "torch.utils.checkpoint.checkpoint(self.embed, x)",
        "torch.utils.checkpoint",
        fixed=True,
    ),
    Case("SMP122", TENSOR, "tensor_parallelism=True", "tensor_parallelism=False", "model_creation", name="false"),
    Case(
        "SMP126",
        (_FULL, samples.TENSOR_PLAN),
        "if smp.rdp_rank() == 0:\n        weights",
        "if smp.rank() == 0:\n        weights",
        "weights = model.state_dict()",
        name="one rank",
    ),
    Case(
        "SMP132",
        (_SCALED, samples.PIPELINE_PLAN),
        "smp.amp.GradScaler()",
        "torch.cuda.amp.GradScaler()",
        "GradScaler",
        fixed=True,
        name="scaler",
    ),
    Case(
        "SMP135",
        (_AUTO, samples.TENSOR_PLAN),
        "config = GPT2Config(",
        "config = LlamaConfig(",
        "AutoModelForCausalLM.from_config(config)",
        name="config",
    ),
    Case("SMP312", V2, ", auto_wrap_policy=policy", "", "FSDP(model", changes={"hybrid_shard_degree": 4}, name="v2"),
    Case(
        "DDP601",
        (_PLACED, samples.V2_PLAN),
        'torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))\n',
        "",
        "FSDP(model",
        name="v2",
    ),
    Case(
        "DDP606",
        (samples.V2 + _SAVED, samples.V2_PLAN),
        _SAVED,
        'if dist.get_rank() == 0:\n    torch.save(model.state_dict(), "model.pt")\n',
        "model.state_dict()",
        name="v2",
    ),
    Case(
        "SMP308",
        (_SHARDED_IN_PLACE, samples.FSDP_PLAN),
        "model.set_requires_all_reduce(last)",
        "model.set_requires_gradient_sync(last)",
        "set_requires_gradient_sync(last)",
        name="in place",
    ),
    Case(
        "STC406",
        (_LOADED, samples.XLA_PLAN),
        "xm.optimizer_step(optimizer)",
        "optimizer.step()",
        "optimizer.step()",
        fixed=True,
        name="without worker function",
    ),
]
