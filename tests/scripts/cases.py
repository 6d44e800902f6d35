"""One change that each check must notice, made to a script in which it must find nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
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


def _xla(identifier: str, old: str, new: str, at: str, **more: Any) -> Case:
    return Case(identifier, samples.XLA, samples.XLA_PLAN, old, new, at, **more)


def _estimator(identifier: str, old: str, new: str, at: str, **more: Any) -> Case:
    return Case(identifier, samples.ESTIMATOR, {}, old, new, at, **more)


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
_BLOCKS = "functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={LlamaDecoderLayer})"
_BUILD = "    model = Net()\n"
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
_PLACED = samples.PIPELINE.replace(
    _BUILD,
    _BUILD + "    smp.set_partition(model.embed, 1)\n    smp.set_partition(model.head, 1)\n"
    "    model.head.weight = model.embed.weight\n",
)
_LAYERS = samples.PIPELINE.replace(
    "hidden = self.embed(x)", "hidden = smp.patches.checkpoint.checkpoint(self.embed, x)"
)
_SCALED = samples.PIPELINE.replace(
    "    train(model, loader", "    scaler = smp.amp.GradScaler()\n    train(model, loader"
)
_CLIPPED = samples.PIPELINE.replace(
    "        optimizer.step()\n", "        loss_value = mean\n        optimizer.step()\n"
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
_PRETRAINED = samples.TENSOR.replace("GPT2LMHeadModel(config)", 'GPT2LMHeadModel.from_pretrained("gpt2-xl")')
_SUPER = (
    samples.PIPELINE.replace("class Net(nn.Module):", "class Net(Base):")
    .replace("        return self.head(hidden)", "        return super()._orig_forward(hidden)")
    .replace("class Net", "class Base(nn.Module):\n    pass\n\n\nclass Net")
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
_PASSED = samples.PIPELINE.replace("def train_step(model,", "def train_step(model, optimizer,").replace(
    "= train_step(model,", "= train_step(model, optimizer,"
)
_PRESCALED = samples.TENSOR.replace("smp.dp_size(), rank=smp.dp_rank()", "smp.rdp_size(), rank=smp.rdp_rank()")
_HUGE = samples.SHARDED.replace(
    'AutoConfig.from_pretrained("EleutherAI/gpt-neox-20b")', "GPTNeoXConfig(hidden_size=12288, num_hidden_layers=96)"
).replace("import AutoConfig,", "import GPTNeoXConfig,")
_FILE_MASK = samples.TENSORFLOW.replace(
    "@smp.step\ndef get_grads(images, labels):",
    '@smp.step(non_split_inputs=["positions"])\ndef get_grads(images, labels, positions):',
).replace("get_grads(images, labels)\n    gradients = [", "get_grads(images, labels, tf.range(10))\n    gradients = [")
_EVALUATED = samples.PIPELINE.replace(
    "    if smp.dp_rank() == 0:\n        smp.save(",
    "    for data, target in loader:\n        test_step(model, data, target)\n"
    "    if smp.dp_rank() == 0:\n        smp.save(",
)
_HIDDEN = samples.TENSOR.replace("labels=input_ids)", "labels=input_ids, output_hidden_states=False)")
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
    _pipeline(
        "SMP111",
        "num_replicas=smp.dp_size()",
        "num_replicas=smp.size()",
        "num_replicas=smp.size()",
        fixed=True,
        name="replicas",
    ),
    Case(
        "SMP105",
        _PASSED,
        samples.PIPELINE_PLAN,
        "    model.backward(loss)\n",
        "    model.backward(loss)\n    optimizer.step()\n",
        "    optimizer.step()",
        name="update",
    ),
    _tensorflow(
        "SMP102", "class MyModel(smp.DistributedModel)", "class MyModel(tf.keras.Model)", "predictions = model("
    ),
    _tensorflow("SMP105", "@smp.step\n", "", "predictions = model("),
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
    Case(
        "SMP100",
        samples.PIPELINE,
        samples.PIPELINE_PLAN,
        "drop_last=True)",
        "drop_last=True)  # smp: ignore[SMP109]",
        "ignore[",
    ),
    _pipeline("SMP001", "import smdistributed.modelparallel.torch as smp\n", "", "import argparse"),
    _pipeline(
        "SMP002",
        "    smp.init()\n    torch.cuda.set_device(smp.local_rank())\n",
        "",
        "import smdistributed",
        also=frozenset({"SMP101"}),
    ),
    _pipeline("SMP101", "    smp.init()\n", "", "torch.cuda.set_device(smp.local_rank())", fixed=True),
    _pipeline(
        "SMP101",
        "    smp.init()\n    torch.cuda.set_device(smp.local_rank())\n",
        "    torch.cuda.set_device(smp.local_rank())\n    smp.init()\n",
        "set_device",
        name="later",
    ),
    _pipeline("SMP102", "    model = smp.DistributedModel(model)\n", "", "output = model(data)"),
    _pipeline(
        "SMP102",
        "    model = smp.DistributedModel(model)\n",
        "    smp.DistributedModel(model)\n",
        "output = model(data)",
        name="unused",
    ),
    _pipeline(
        "SMP102",
        "    model = smp.DistributedModel(model)\n",
        "    model = smp.DistributedModel(smp.DistributedModel(model))\n",
        "smp.DistributedModel(smp",
        name="twice",
    ),
    _pipeline("SMP103", "    optimizer = smp.DistributedOptimizer(optimizer)\n", "", "torch.optim.Adadelta"),
    _tensor(
        "SMP104",
        "    model = smp.DistributedModel(model)\n",
        "    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)\n    model = smp.DistributedModel(model)\n",
        "optimizer = torch.optim.AdamW",
    ),
    _pipeline("SMP105", "@smp.step\ndef train_step", "def train_step", "output = model(data)"),
    Case(
        "SMP105",
        _EVALUATED,
        samples.PIPELINE_PLAN,
        "@smp.step\ndef test_step",
        "def test_step",
        "return F.cross_entropy(model(data), target)",
        name="evaluation",
    ),
    _pipeline("SMP106", "model.backward(loss)", "loss.backward()", "loss.backward()", fixed=True),
    _pipeline(
        "SMP106",
        "    model.backward(loss)",
        "    scaler = smp.amp.GradScaler()\n    scaler.scale(loss).backward()",
        "scaler.scale(loss).backward()",
        fixed=True,
        name="scaler",
    ),
    _pipeline("SMP106", "model.backward(loss)", "torch.autograd.backward(loss)", "autograd", name="autograd"),
    _pipeline("SMP107", "print(mean.item())", "print(loss.item())", "print(loss.item())"),
    _pipeline(
        "SMP107",
        "        mean = loss.reduce_mean()\n        optimizer.step()\n"
        "        if smp.rank() == 0:\n            print(mean.item())",
        "        optimizer.step()\n        print(loss / 2)",
        "print(loss / 2)",
        fixed=True,
        name="arithmetic",
    ),
    _pipeline("SMP107", "mean = loss.reduce_mean()", "mean = float(loss)", "float(loss)", fixed=True, name="float"),
    _pipeline("SMP108", "    torch.cuda.set_device(smp.local_rank())\n", "", "smp.init()", fixed=True),
    _pipeline("SMP108", "set_device(smp.local_rank())", "set_device(0)", "set_device(0)", fixed=True, name="constant"),
    _pipeline("SMP109", ", drop_last=True)", ")", "DataLoader(dataset", fixed=True),
    _pipeline("SMP109", "drop_last=True", "drop_last=False", "DataLoader(dataset", fixed=True, name="false"),
    _pipeline(
        "SMP109",
        "(dataset, batch_size=64, sampler=sampler, drop_last=True)",
        "(\n        dataset,\n        batch_size=64,  # a GPU's\n        sampler=sampler,\n    )",
        "DataLoader(",
        fixed=True,
        name="lines",
    ),
    _pipeline("SMP110", "batch_size=64", "batch_size=30", "DataLoader(dataset"),
    _pipeline("SMP111", "rank=smp.dp_rank()", "rank=smp.rank()", "rank=smp.rank()", fixed=True),
    _pipeline(
        "SMP111", "num_replicas=smp.dp_size(), rank=smp.dp_rank(), ", "", "DistributedSampler(dataset", name="default"
    ),
    _pipeline(
        "SMP111", "torch.manual_seed(7)", "torch.manual_seed(7 + smp.rank())", "manual_seed", fixed=True, name="seed"
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
    Case(
        "SMP112",
        _MASKED,
        samples.PIPELINE_PLAN,
        '@smp.step(non_split_inputs=["mask"])',
        "@smp.step",
        "torch.tril",
        fixed=True,
    ),
    Case("SMP112", _MASKED, samples.PIPELINE_PLAN, '["mask"]', "[]", "torch.tril", fixed=True, name="empty"),
    Case(
        "SMP113",
        _HIDDEN,
        samples.TENSOR_PLAN,
        "output_hidden_states=False",
        "output_hidden_states=True",
        "output_hidden_states",
    ),
    Case(
        "SMP113",
        samples.PIPELINE.replace("return self.head(hidden)", "return self.head(hidden), x").replace(
            "output = model(data)", "output, again = model(data)"
        ),
        samples.PIPELINE_PLAN,
        "output, again = model(data)",
        "output, _ = model(data)",
        "output, _ = model(data)",
        name="tuple",
    ),
    Case(
        "SMP114",
        _PARTITIONED,
        samples.PIPELINE_PLAN,
        "with smp.partition(0):\n            self.head",
        "with smp.partition(1):\n            self.head",
        "self.head.weight = self.embed.weight",
    ),
    Case(
        "SMP114",
        _PLACED,
        samples.PIPELINE_PLAN,
        "model.embed, 1",
        "model.embed, 0",
        "model.head.weight = model.embed.weight",
        name="set_partition",
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
        "SMP116",
        '    smp.set_activation_checkpointing(model.get_module().transformer.seq_layers, strategy="each")\n',
        "",
        "smp.DistributedModel(model)",
    ),
    _tensor(
        "SMP116",
        "    model = smp.DistributedModel(model)\n",
        "    smp.set_activation_checkpointing(model.transformer)\n    model = smp.DistributedModel(model)\n",
        "smp.set_activation_checkpointing(model.transformer)",
        name="before",
    ),
    _sharded(
        "SMP117",
        "    smp.set_activation_checkpointing(layer)\n",
        "    print(layer)\n",
        "smp.DistributedModel",
        changes={"activation_checkpointing": False},
    ),
    _tensor("SMP118", ", dtype=torch.float16", "", "model_creation"),
    _tensor(
        "SMP118",
        ", static_loss_scale=None, dynamic_loss_scale=True",
        "",
        "smp.DistributedOptimizer(optimizer)",
        fixed=True,
        name="scale",
    ),
    _tensor("SMP119", "StepLR(optimizer.optimizer,", "StepLR(optimizer,", "StepLR(optimizer,", fixed=True),
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
    _sharded("SMP121", ", backward_passes_per_step=ACCUMULATE", "", "smp.DistributedModel(model)"),
    _tensor("SMP122", "tensor_parallelism=True, ", "", "model_creation"),
    _tensor("SMP122", "tensor_parallelism=True", "tensor_parallelism=False", "model_creation", name="false"),
    _tensor(
        "SMP123",
        "    model = smp.DistributedModel(model)\n",
        '    model.load_state_dict(torch.load("w.pt"))\n    model = smp.DistributedModel(model)\n',
        'model.load_state_dict(torch.load("w.pt"))',
    ),
    Case(
        "SMP123",
        _PRETRAINED,
        samples.TENSOR_PLAN,
        '    model.load_state_dict(torch.load("/opt/ml/input/data/model/weights.pt"))\n',
        "",
        "from_pretrained",
        name="pretrained",
    ),
    _tensor(
        "SMP124", "torch.manual_seed(42 + smp.dp_rank())", "torch.manual_seed(42)", "torch.manual_seed(42)", fixed=True
    ),
    _tensor("SMP125", ", sampler=sampler", "", "DataLoader(dataset"),
    _tensor("SMP126", "if smp.rdp_rank() == 0:", "if smp.dp_rank() == 0:", "if smp.dp_rank() == 0:", fixed=True),
    Case(
        "SMP126",
        _FULL,
        samples.TENSOR_PLAN,
        "if smp.rdp_rank() == 0:\n        weights",
        "if smp.rank() == 0:\n        weights",
        "weights = model.state_dict()",
        name="one rank",
    ),
    _tensor("SMP127", "optimizer.local_state_dict()", "optimizer.state_dict()", "optimizer.state_dict()", fixed=True),
    Case(
        "SMP128",
        _UNIQUE,
        samples.TENSOR_PLAN,
        "[p for p in model.parameters()]",
        "[p for m in model.modules() for p in m.parameters()]",
        "AdamW([p for m",
    ),
    Case(
        "SMP129",
        _SUPER,
        samples.PIPELINE_PLAN,
        "super()._orig_forward(hidden)",
        "super().forward(hidden)",
        "super().forward",
        fixed=True,
    ),
    Case(
        "SMP130",
        _HUGE,
        samples.SHARDED_PLAN,
        "with smp.delay_param_initialization(enabled=True):",
        "if True:",
        "GPTNeoXConfig(hidden_size",
    ),
    _tensor("SMP131", "stage = smp.pp_rank()", "stage = smp.mp_rank()", "stage = smp.mp_rank()", fixed=True),
    _pipeline(
        "SMP132",
        "model = smp.DistributedModel(model)",
        "model = smp.DistributedModel(model)\n    model = nn.parallel.DistributedDataParallel(model)",
        "DistributedDataParallel",
        also=frozenset({"SMP102"}),
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
    _pipeline(
        "SMP133", "args, _ = parser.parse_known_args()", "args = parser.parse_args()", "parser.parse_args()", fixed=True
    ),
    _pipeline("SMP134", "download=False", "download=True", "dataset = datasets.MNIST"),
    _tensor("SMP135", "GPT2LMHeadModel", "T5ForConditionalGeneration", "T5ForConditionalGeneration(config)"),
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
    _tensorflow("SMP201", "(256, drop_remainder=True)", "(256)", "tf.data.TFRecordDataset(files)", fixed=True),
    _tensorflow("SMP202", "seed=smp.dp_rank()", "seed=smp.rank()", "tf.data.TFRecordDataset(files)", fixed=True),
    _tensorflow("SMP202", ", seed=smp.dp_rank()", "", "tf.data.TFRecordDataset(files)", fixed=True, name="unseeded"),
    Case(
        "SMP203",
        samples.TENSORFLOW.replace("return self.last(self.first(x))", "return self.last(self.first(x)), x").replace(
            "predictions = model(", "predictions, again = model("
        ),
        samples.TENSORFLOW_PLAN,
        "predictions, again = model(",
        "predictions, _ = model(",
        "predictions, _ = model(",
    ),
    _tensorflow(
        "SMP204",
        'sorted(os.listdir("/opt/ml/input/data/train"))',
        'os.listdir("/opt/ml/input/data/train")',
        "os.listdir",
        fixed=True,
    ),
    Case(
        "SMP205",
        _FILE_MASK,
        samples.TENSORFLOW_PLAN,
        '@smp.step(non_split_inputs=["positions"])',
        "@smp.step",
        "tf.range(10)",
        fixed=True,
    ),
    _v2("SMP301", "tsm.init()\n", "", "tsm.transform(model)", fixed=True),
    _v2("SMP302", "model = tsm.transform(model)\n", "", "FSDP(model"),
    _v2(
        "SMP302",
        "model = tsm.transform(model)\nmodel = FSDP(model, use_orig_params=True, auto_wrap_policy=policy)\n",
        "model = FSDP(model, use_orig_params=True, auto_wrap_policy=policy)\nmodel = tsm.transform(model)\n",
        "tsm.transform(model)",
        name="order",
    ),
    _v2(
        "SMP303",
        "model = FSDP(model, use_orig_params=True, auto_wrap_policy=policy)\napply_activation_checkpointing(model)\n"
        "model = offload_wrapper(model)\n",
        "",
        "loss = model(**batch).loss",
        also=frozenset({"SMP306"}),
    ),
    _v2(
        "SMP303",
        "model = FSDP(model",
        "optimizer = torch.optim.AdamW(model.parameters())\nmodel = FSDP(model",
        "optimizer = torch.optim.AdamW(model.parameters())",
        name="order",
    ),
    _v2("SMP304", 'backend="nccl"', 'backend="smddp"', "smddp", fixed=True),
    _v2(
        "SMP305",
        "import torch.sagemaker as tsm",
        "import torch.sagemaker as tsm\nimport smdistributed.modelparallel.torch as smp",
        "smdistributed",
    ),
    _v2("SMP306", "model = offload_wrapper(model)\n", "", "FSDP(model", also=frozenset()),
    _v2(
        "SMP307",
        "model = tsm.transform(model)",
        "model = tsm.transform(model)\nimport deepspeed\nmodel = deepspeed.initialize(model=model)[0]",
        "deepspeed.initialize",
        also=frozenset(),
    ),
    _v2(
        "SMP312",
        ", auto_wrap_policy=policy",
        "",
        "FSDP(model",
        changes={"hybrid_shard_degree": 4},
        name="v2",
    ),
    Case(
        "DDP601",
        samples.V2.replace(
            "tsm.init()\n",
            'tsm.init()\ntorch.cuda.set_device(int(os.environ["LOCAL_RANK"]))\n',
        )
        .replace("use_orig_params=True", "use_orig_params=True, device_id=torch.cuda.current_device()")
        .replace("import argparse\n", "import argparse\nimport os\n"),
        samples.V2_PLAN,
        'torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))\n',
        "",
        "FSDP(model",
        name="v2",
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
    _v2(
        "SMP308",
        "    loss = model(**batch).loss\n    loss.backward()\n",
        "    with model.no_sync():\n        loss = model(**batch).loss\n        loss.backward()\n",
        "model.no_sync()",
        changes={"hybrid_shard_degree": 4},
        name="v2",
    ),
    _fsdp(
        "SMP308",
        "    with nullcontext():\n",
        "    context = nullcontext if last else model.no_sync\n    with context():\n",
        "with context()",
        name="variable",
    ),
    Case(
        "SMP317",
        _SHARDED_IN_PLACE,
        samples.FSDP_PLAN,
        "fully_shard(model)\n",
        'fully_shard(model)\nmodel.to_empty(device="cuda")\n',
        "to_empty",
    ),
    Case(
        "SMP318",
        _SHARDED_IN_PLACE,
        samples.FSDP_PLAN,
        "for layer in model.model.layers:\n    fully_shard(layer)\nfully_shard(model)\n",
        "fully_shard(model)\nfor layer in model.model.layers:\n    fully_shard(layer)\n",
        "fully_shard(model)",
    ),
    Case("SMP319", _SHARDED_IN_PLACE, samples.FSDP_PLAN, "model(**batch)", "model.forward(**batch)", "model.forward"),
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
        "SMP308",
        samples.SHARDED_TRAINER,
        samples.FSDP_PLAN,
        '    accelerator_config={"gradient_accumulation_kwargs": {"sync_each_batch": True}},\n',
        "",
        "TrainingArguments(",
        name="trainer",
    ),
    Case(
        "SMP309",
        samples.ADAPTER,
        samples.FSDP_PLAN,
        "fsdp_auto_wrap_policy(model)",
        _BLOCKS,
        "model = FullyShardedDataParallel(",
    ),
    _xla("STC401", 'padding="max_length"', 'padding="longest"', 'padding="longest"', fixed=True),
    _xla("STC401", 'padding="max_length"', "padding=True", "padding=True", fixed=True, name="true"),
    _xla(
        "STC402",
        "        if step % LOG_EVERY == 0:\n            print(step, loss.item())",
        "        print(step, loss.item())",
        "loss.item()",
    ),
    _xla("STC403", "xm.xla_device()", 'torch.device("cuda")', 'torch.device("cuda")', fixed=True),
    _xla("STC404", "        xm.mark_step()\n", "", "xm.optimizer_step(optimizer)", fixed=True),
    _xla("STC405", "xm.save(", "torch.save(", "torch.save(", fixed=True),
    _xla("STC406", "xm.optimizer_step(optimizer)", "optimizer.step()", "optimizer.step()", fixed=True),
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
        "STC406",
        samples.SCALER,
        samples.XLA_PLAN,
        "        scaler.unscale_(optimizer)\n        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n",
        "        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n        scaler.unscale_(optimizer)\n",
        "clip_grad_norm_",
        name="clip",
    ),
    _xla(
        "STC407",
        "def _mp_fn(index):\n    train()\n",
        'if __name__ == "__main__":\n    train()\n',
        "sampler = DistributedSampler",
    ),
    _estimator(
        "STC407",
        '    distribution={"pytorchxla": {"enabled": True}},\n',
        "",
        "compiled = HuggingFace(",
        name="estimator",
    ),
    _estimator("STC408", '"learning_rate": 1e-4', '"learning_rate": 5e-5', "compiled = HuggingFace("),
    Case("STC409", samples.TRAINER, samples.XLA_PLAN, "logging_steps=100", "logging_steps=1", "logging_steps=1"),
    _xla(
        "STC409",
        "        xm.mark_step()\n",
        '        xm.mark_step()\n        xm.save(model.state_dict(), "/opt/ml/model/model.pt")\n',
        "        xm.save(model.state_dict()",
        name="checkpoint",
    ),
    _xla("STC410", ", num_proc=8", "", "raw.map("),
    _estimator(
        "STC411",
        '{"pytorchxla": {"enabled": True}}',
        '{"smdistributed": {"dataparallel": {"enabled": True}}}',
        "compiled = HuggingFace(",
    ),
    _estimator("STC411", "ml.p3.16xlarge", "ml.g6.48xlarge", "compiled = HuggingFace(", name="instance"),
    _estimator("STC412", "debug=False", "debug=True", "debug=True", fixed=True),
    _xla("STC413", ", drop_last=True", "", "DataLoader(dataset", fixed=True),
]


def _of_examples(check: Check) -> list[Case]:
    """The examples of the catalog, which show each check of scripts for PyTorch's own libraries."""
    return [
        Case(check.id, example.good, example.plan, example.good, example.bad, "", name=example.variant)
        for example in check.examples
    ]


CASES += [case for check in catalog().values() if check.id.startswith(("DDP", "TRN")) for case in _of_examples(check)]
CASES += _of_examples(catalog()["SMP136"])
CASES += [case for number in range(310, 317) for case in _of_examples(catalog()[f"SMP{number}"])]
