"""One change that each check must notice, made to a script in which it must find nothing."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from smp_advisor.findings.catalog import Check, catalog
from tests.scripts import samples


@dataclass(frozen=True)
class Case:
    """`old` replaced by `new` in `base`: the finding `id` on the line that holds `at`."""

    id: str
    base: str
    plan: dict[str, Any]
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
    def quiet(self) -> str:
        return self.base

    @property
    def firing(self) -> str:
        assert self.old in self.base, self.old
        return self.base.replace(self.old, self.new)

    @property
    def settings(self) -> dict[str, Any]:
        return self.plan | self.changes

    def __str__(self) -> str:
        return f"{self.id}-{self.name}" if self.name else self.id


def _pipeline(identifier: str, old: str, new: str, at: str, **more: Any) -> Case:
    return Case(identifier, samples.PIPELINE, samples.PIPELINE_PLAN, old, new, at, **more)


def _tensor(identifier: str, old: str, new: str, at: str, **more: Any) -> Case:
    return Case(identifier, samples.TENSOR, samples.TENSOR_PLAN, old, new, at, **more)


def _sharded(identifier: str, old: str, new: str, at: str, **more: Any) -> Case:
    return Case(identifier, samples.SHARDED, samples.SHARDED_PLAN, old, new, at, **more)


def _tensorflow(identifier: str, old: str, new: str, at: str, **more: Any) -> Case:
    return Case(identifier, samples.TENSORFLOW, samples.TENSORFLOW_PLAN, old, new, at, **more)


def _v2(identifier: str, old: str, new: str, at: str, **more: Any) -> Case:
    return Case(identifier, samples.V2, samples.V2_PLAN, old, new, at, **more)


def _fsdp(identifier: str, old: str, new: str, at: str, **more: Any) -> Case:
    return Case(identifier, samples.FSDP, samples.FSDP_PLAN, old, new, at, **more)


_SHARDED_IN_PLACE = (
    samples.FSDP.replace("FullyShardedDataParallel, MixedPrecision", "fully_shard")
    .replace(
        samples.FSDP[samples.FSDP.index("model = FullyShardedDataParallel(") : samples.FSDP.index("optimizer =")],
        "for layer in model.model.layers:\n    fully_shard(layer)\nfully_shard(model)\n",
    )
    .replace("    with nullcontext():\n", "    model.set_requires_all_reduce(last)\n    if True:\n")
)
_TWO_STAGES = """\
        with smp.partition(0):
            self.embed = nn.Linear(128, 128)
        with smp.partition(0):
            self.head = nn.Linear(128, 128)
        self.head.weight = self.embed.weight
"""
_PARTITIONED = samples.PIPELINE.replace(
    "        self.embed = nn.Linear(784, 128)\n        self.head = nn.Linear(128, 10)\n", _TWO_STAGES
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
_UNIQUE = samples.TENSOR.replace(
    "torch.optim.AdamW(model.parameters(), lr=1e-4)", "torch.optim.AdamW([p for p in model.parameters()], lr=1e-4)"
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

CASES = [
    Case(
        "SMP132",
        _EITHER,
        samples.PIPELINE_PLAN,
        "        model = smp.DistributedModel(model)\n",
        "        model = smp.DistributedModel(nn.parallel.DistributedDataParallel(model))\n",
        "DistributedDataParallel(model))",
        name="with the library",
    ),
    Case(
        "SMP122",
        _BRANCHES,
        samples.TENSOR_PLAN,
        "        with smp.model_creation(tensor_parallelism=True, dtype=torch.float16):\n"
        "            model = GPT2LMHeadModel(again)\n",
        "        model = GPT2LMHeadModel(again)\n",
        "model = GPT2LMHeadModel(again)",
        name="one branch",
    ),
    _tensorflow(
        "SMP102", "class MyModel(smp.DistributedModel)", "class MyModel(tf.keras.Model)", "predictions = model("
    ),
    _tensorflow("SMP107", "[g.accumulate() for g in gradients]", "[g for g in gradients]", "optimizer.apply_gradients"),
    Case(
        "SMP126",
        samples.TENSOR,
        samples.TENSOR_PLAN,
        "if smp.rdp_rank() == 0:",
        "if smp.rank() == 0:",
        "smp.save(state",
        name="part",
    ),
    _pipeline(
        "SMP101",
        "    smp.init()\n    torch.cuda.set_device(smp.local_rank())\n",
        "    torch.cuda.set_device(smp.local_rank())\n    smp.init()\n",
        "set_device",
        name="later",
    ),
    _pipeline("SMP102", "    model = smp.DistributedModel(model)\n", "", "output = model(data)"),
    _pipeline("SMP106", "model.backward(loss)", "torch.autograd.backward(loss)", "autograd", name="autograd"),
    _pipeline("SMP107", "print(mean.item())", "print(loss.item())", "print(loss.item())"),
    _pipeline("SMP109", "drop_last=True", "drop_last=False", "DataLoader(dataset", fixed=True, name="false"),
    _pipeline(
        "SMP109",
        "(dataset, batch_size=64, sampler=sampler, drop_last=True)",
        "(\n        dataset,\n        batch_size=64,  # a GPU's\n        sampler=sampler,\n    )",
        "DataLoader(",
        fixed=True,
        name="lines",
    ),
    _tensor("SMP111", "rank=smp.dp_rank()", "rank=smp.rdp_rank()", "rank=smp.rdp_rank()", fixed=True, name="rdp"),
    Case(
        "SMP111",
        _PRESCALED,
        samples.TENSOR_PLAN,
        "rank=smp.rdp_rank()",
        "rank=smp.dp_rank()",
        "rank=smp.dp_rank()",
        changes={"prescaled_batch": True},
        name="prescaled",
    ),
    Case("SMP112", _MASKED, samples.PIPELINE_PLAN, '["mask"]', "[]", "torch.tril", fixed=True, name="empty"),
    Case(
        "SMP114",
        _PARTITIONED,
        samples.PIPELINE_PLAN,
        "with smp.partition(0):\n            self.head",
        "with smp.partition(1):\n            self.head",
        "self.head.weight = self.embed.weight",
    ),
    Case(
        "SMP115",
        _LAYERS,
        samples.PIPELINE_PLAN,
        "smp.patches.checkpoint.checkpoint(self.embed, x)",
        "torch.utils.checkpoint.checkpoint(self.embed, x)",
        "torch.utils.checkpoint",
        fixed=True,
    ),
    _tensor(
        "SMP119",
        "optimizer.clip_master_grads(1.0)",
        "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
        "clip_grad_norm_",
        fixed=True,
        name="clip",
    ),
    _sharded(
        "SMP120",
        "        optimizer.step()\n",
        "        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n        optimizer.step()\n",
        "clip_grad_norm_",
    ),
    Case(
        "SMP126",
        _FULL,
        samples.TENSOR_PLAN,
        "if smp.rdp_rank() == 0:\n        weights",
        "if smp.rank() == 0:\n        weights",
        "weights = model.state_dict()",
        name="one rank",
    ),
    Case(
        "SMP128",
        _UNIQUE,
        samples.TENSOR_PLAN,
        "[p for p in model.parameters()]",
        "[p for m in model.modules() for p in m.parameters()]",
        "AdamW([p for m",
    ),
    Case(
        "SMP132",
        _SCALED,
        samples.PIPELINE_PLAN,
        "smp.amp.GradScaler()",
        "torch.cuda.amp.GradScaler()",
        "GradScaler",
        fixed=True,
        name="scaler",
    ),
    Case(
        "SMP135",
        samples.TENSOR.replace("GPT2LMHeadModel(config)", "AutoModelForCausalLM.from_config(config)").replace(
            "import GPT2Config, GPT2LMHeadModel", "import AutoModelForCausalLM, GPT2Config, LlamaConfig"
        ),
        samples.TENSOR_PLAN,
        "config = GPT2Config(",
        "config = LlamaConfig(",
        "AutoModelForCausalLM.from_config(config)",
        name="config",
    ),
    _tensorflow(
        "SMP204",
        'sorted(os.listdir("/opt/ml/input/data/train"))',
        'os.listdir("/opt/ml/input/data/train")',
        "os.listdir",
        fixed=True,
    ),
    _v2(
        "SMP303",
        "model = FSDP(model, use_orig_params=True, auto_wrap_policy=policy)\napply_activation_checkpointing(model)\n"
        "model = offload_wrapper(model)\n",
        "",
        "loss = model(**batch).loss",
        also=frozenset({"SMP306"}),
    ),
    Case(
        "DDP606",
        samples.V2 + 'state = model.state_dict()\nif dist.get_rank() == 0:\n    torch.save(state, "model.pt")\n',
        samples.V2_PLAN,
        'state = model.state_dict()\nif dist.get_rank() == 0:\n    torch.save(state, "model.pt")\n',
        'if dist.get_rank() == 0:\n    torch.save(model.state_dict(), "model.pt")\n',
        "model.state_dict()",
        name="v2",
    ),
    _fsdp("SMP308", "with nullcontext():", "with nullcontext() if last else model.no_sync():", "model.no_sync()"),
    Case(
        "SMP308",
        _SHARDED_IN_PLACE,
        samples.FSDP_PLAN,
        "model.set_requires_all_reduce(last)",
        "model.set_requires_gradient_sync(last)",
        "set_requires_gradient_sync(last)",
        name="in place",
    ),
    Case(
        "SMP308", samples.FABRIC, samples.FSDP_PLAN, "= DDPStrategy()", "= FSDPStrategy()", "no_backward", name="fabric"
    ),
    Case(
        "SMP308",
        samples.ACCELERATE,
        samples.FSDP_PLAN,
        ", sync_each_batch=True",
        "",
        "accelerator = Accelerator(",
        name="accelerate",
    ),
    Case(
        "STC406",
        _LOADED,
        samples.XLA_PLAN,
        "xm.optimizer_step(optimizer)",
        "optimizer.step()",
        "optimizer.step()",
        fixed=True,
        name="without worker function",
    ),
    Case(
        "STC401",
        samples.XLA,
        samples.XLA_PLAN,
        'padding="max_length"',
        'padding="longest"',
        'padding="longest"',
        fixed=True,
        name="text",
    ),
]


_BY_HAND = {
    "SMP108-never", "SMP111-default rank", "SMP111-shard", "SMP115", "SMP118-dtype", "SMP119-clipping",
    "SMP127-checkpoint", "SMP132", "SMP202-shard", "SMP202-seed", "TRN709-accelerate", "STC401",
    "STC406-unscaled first", "STC406-clipped first",
}  # fmt: skip
"""Examples whose defect a person mends, of checks that mend others."""


def _of_examples(check: Check) -> list[Case]:
    """The examples of the catalog, which show each check."""
    cases = [Case(check.id, e.good, e.plan, e.good, e.bad, "", name=e.variant) for e in check.examples]
    return [replace(case, fixed=bool(check.fix) and str(case) not in _BY_HAND) for case in cases]


CASES += [case for check in catalog().values() if not check.id.startswith("EST") for case in _of_examples(check)]
