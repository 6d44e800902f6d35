"""Training scripts that follow the documentation, written for these tests: the checker must find nothing in them."""

PIPELINE_PLAN = {"pipeline_parallel_degree": 2, "tensor_parallel_degree": 1, "microbatches": 4, "fp16": False}

PIPELINE = """\
import argparse

import smdistributed.modelparallel.torch as smp
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from torchvision import datasets


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(784, 128)
        self.head = nn.Linear(128, 10)

    def forward(self, x):
        hidden = self.embed(x)
        return self.head(hidden)


@smp.step
def train_step(model, data, target):
    output = model(data)
    loss = F.cross_entropy(output, target)
    model.backward(loss)
    return loss


@smp.step
def test_step(model, data, target):
    return F.cross_entropy(model(data), target)


def train(model, loader, optimizer, device):
    model.train()
    for data, target in loader:
        data, target = data.to(device), target.to(device)
        optimizer.zero_grad()
        loss = train_step(model, data, target)
        mean = loss.reduce_mean()
        optimizer.step()
        if smp.rank() == 0:
            print(mean.item())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=0.1)
    args, _ = parser.parse_known_args()

    smp.init()
    torch.cuda.set_device(smp.local_rank())
    device = torch.device("cuda")
    torch.manual_seed(7)

    if smp.local_rank() == 0:
        datasets.MNIST("../data", train=True, download=True)
    smp.barrier()
    dataset = datasets.MNIST("../data", train=True, download=False)
    sampler = DistributedSampler(dataset, num_replicas=smp.dp_size(), rank=smp.dp_rank(), shuffle=True)
    loader = DataLoader(dataset, batch_size=64, sampler=sampler, drop_last=True)

    model = Net()
    model = smp.DistributedModel(model)
    optimizer = torch.optim.Adadelta(model.parameters(), lr=args.lr)
    optimizer = smp.DistributedOptimizer(optimizer)
    train(model, loader, optimizer, device)

    if smp.dp_rank() == 0:
        smp.save({"model": model.local_state_dict(), "optimizer": optimizer.local_state_dict()}, "/m.pt", partial=True)


if __name__ == "__main__":
    main()
"""

TENSOR_PLAN = {
    "pipeline_parallel_degree": 1,
    "tensor_parallel_degree": 4,
    "microbatches": 1,
    "fp16": True,
    "prescaled_batch": False,
    "activation_checkpointing": "each",
}

TENSOR = """\
import smdistributed.modelparallel.torch as smp
import torch
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, DistributedSampler
from transformers import GPT2Config, GPT2LMHeadModel

from corpus import TextFiles


@smp.step
def train_step(model, input_ids, attention_mask):
    loss = model(input_ids=input_ids, attention_mask=attention_mask, labels=input_ids)["loss"]
    model.backward(loss)
    return loss


def main():
    smp.init()
    torch.cuda.set_device(smp.local_rank())
    device = torch.device("cuda")
    torch.manual_seed(42 + smp.dp_rank())

    dataset = TextFiles("/opt/ml/input/data/train")
    sampler = DistributedSampler(dataset, num_replicas=smp.dp_size(), rank=smp.dp_rank(), seed=42)
    loader = DataLoader(dataset, batch_size=8, sampler=sampler, drop_last=True)

    config = GPT2Config(n_embd=1600, n_layer=48, n_head=25)
    with smp.model_creation(tensor_parallelism=True, dtype=torch.float16):
        model = GPT2LMHeadModel(config)
    model = smp.DistributedModel(model)
    smp.set_activation_checkpointing(model.get_module().transformer.seq_layers, strategy="each")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    optimizer = smp.DistributedOptimizer(optimizer, static_loss_scale=None, dynamic_loss_scale=True)
    scheduler = StepLR(optimizer.optimizer, step_size=1000)
    model.load_state_dict(torch.load("/opt/ml/input/data/model/weights.pt"))

    for step, (input_ids, attention_mask) in enumerate(loader):
        optimizer.zero_grad()
        loss = train_step(model, input_ids.to(device), attention_mask.to(device)).reduce_mean()
        optimizer.clip_master_grads(1.0)
        optimizer.step()
        scheduler.step()

    if smp.rdp_rank() == 0:
        state = {"model": model.local_state_dict(), "optimizer": optimizer.local_state_dict()}
        smp.save(state, "/opt/ml/checkpoints/last.pt", partial=True)
    stage = smp.pp_rank()


main()
"""

SHARDED_PLAN = {
    "pipeline_parallel_degree": 1,
    "tensor_parallel_degree": 1,
    "sharded_data_parallel_degree": 16,
    "microbatches": 1,
    "bf16": True,
    "activation_checkpointing": "each",
    "offload_activations": True,
}

SHARDED = """\
import smdistributed.modelparallel.torch as smp
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from corpus import make_loader

ACCUMULATE = 4


@smp.step
def train_step(model, input_ids):
    loss = model(input_ids=input_ids, labels=input_ids)["loss"]
    model.backward(loss)
    return loss


smp.init()
torch.cuda.set_device(smp.local_rank())
config = AutoConfig.from_pretrained("EleutherAI/gpt-neox-20b")
with smp.delay_param_initialization(enabled=True):
    model = AutoModelForCausalLM.from_config(config)
model = smp.DistributedModel(model, backward_passes_per_step=ACCUMULATE)
for layer in model.get_module().gpt_neox.layers:
    smp.set_activation_checkpointing(layer)
optimizer = smp.DistributedOptimizer(torch.optim.AdamW(model.parameters(), lr=1e-4))
for number, input_ids in enumerate(make_loader(rank=smp.dp_rank())):
    loss = train_step(model, input_ids)
    if number % ACCUMULATE == ACCUMULATE - 1:
        optimizer.step()
        optimizer.zero_grad()
"""

V2_PLAN = {
    "library": "smp-v2",
    "tensor_parallel_degree": 2,
    "hybrid_shard_degree": 1,
    "sm_activation_offloading": True,
}

V2 = """\
import argparse

import torch
import torch.distributed as dist
import torch.sagemaker as tsm
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing, offload_wrapper
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

from corpus import make_loader

parser = argparse.ArgumentParser()
parser.add_argument("--model", default="llama")
args = parser.parse_known_args()[0]
policy = ModuleWrapPolicy({LlamaDecoderLayer})

dist.init_process_group(backend="nccl")
tsm.init()
config = AutoConfig.from_pretrained(args.model)
model = AutoModelForCausalLM.from_config(config)
model = tsm.transform(model)
model = FSDP(model, use_orig_params=True, auto_wrap_policy=policy)
apply_activation_checkpointing(model)
model = offload_wrapper(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for batch in make_loader():
    loss = model(**batch).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""

FSDP_PLAN = {"library": "fsdp"}

FSDP = """\
import functools
from contextlib import nullcontext

import torch
from peft import LoraConfig, get_peft_model
from peft.utils.other import fsdp_auto_wrap_policy
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy
from transformers import AutoModelForCausalLM
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

from corpus import make_loader

BATCHES = 8

torch.distributed.init_process_group("nccl")
model = AutoModelForCausalLM.from_pretrained("meta-llama/Llama-2-13b-hf")
model = FullyShardedDataParallel(
    model,
    auto_wrap_policy=functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={LlamaDecoderLayer}),
    mixed_precision=MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16),
    use_orig_params=True,
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for number, batch in enumerate(make_loader()):
    last = number % BATCHES == BATCHES - 1
    with nullcontext():
        loss = model(**batch).loss / BATCHES
        loss.backward()
    if last:
        model.clip_grad_norm_(1.0)
        optimizer.step()
        optimizer.zero_grad()
"""

ADAPTER = FSDP.replace(
    "model = FullyShardedDataParallel(\n",
    "model = get_peft_model(model, LoraConfig(r=8))\nmodel = FullyShardedDataParallel(\n",
).replace(
    "functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={LlamaDecoderLayer})",
    "fsdp_auto_wrap_policy(model)",
)

FABRIC = """\
from lightning.fabric import Fabric
from lightning.fabric.strategies import DDPStrategy, FSDPStrategy

from corpus import make_loader, make_model, make_optimizer


def main(fabric, batches):
    model, optimizer = fabric.setup(make_model(), make_optimizer())
    for number, batch in enumerate(make_loader()):
        accumulates = (number + 1) % batches != 0
        with fabric.no_backward_sync(model, enabled=accumulates):
            loss = model(batch)
            fabric.backward(loss / batches)
        if not accumulates:
            optimizer.step()


strategy = DDPStrategy()
fabric = Fabric(devices=8, strategy=strategy)
fabric.launch(main, 8)
"""

ACCELERATE = """\
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from accelerate.utils import GradientAccumulationPlugin

from corpus import make_loader, make_model, make_optimizer

plugin = GradientAccumulationPlugin(num_steps=8, sync_each_batch=True)
accelerator = Accelerator(
    mixed_precision="bf16", fsdp_plugin=FullyShardedDataParallelPlugin(), gradient_accumulation_plugin=plugin
)
model, optimizer, loader = accelerator.prepare(make_model(), make_optimizer(), make_loader())
for batch in loader:
    with accelerator.accumulate(model):
        loss = model(**batch).loss
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
"""

SHARDED_TRAINER = """\
from transformers import Trainer, TrainingArguments

from corpus import make_dataset, make_model

arguments = TrainingArguments(
    "/opt/ml/model",
    bf16=True,
    fsdp="full_shard auto_wrap",
    gradient_accumulation_steps=8,
    accelerator_config={"gradient_accumulation_kwargs": {"sync_each_batch": True}},
)
trainer = Trainer(make_model(), arguments, train_dataset=make_dataset())
trainer.train()
"""
