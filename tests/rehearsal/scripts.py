"""Training scripts for rehearsals: a correct one of each dialect, and changes of them that plant one defect each."""

START = """
import argparse, os, torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--warm-up", type=int, default=2)
parser.add_argument("--augment", type=bool, default=True)
arguments, _ = parser.parse_known_args()
dist.init_process_group("nccl")
rank, local = dist.get_rank(), int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local)
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1)).cuda(local)
"""
DATA = """
generator = torch.Generator().manual_seed(3)
x = torch.randn(96, 8, generator=generator)
sampler = DistributedSampler(TensorDataset(x, x.sum(1, keepdim=True)))
loader = DataLoader(sampler.dataset, batch_size=4, sampler=sampler)
"""
LOOP = """
for epoch in range(arguments.epochs):
    sampler.set_epoch(epoch)
    for a, b in loader:
        optimizer.zero_grad()
        loss = (model(a.cuda(local)) - b.cuda(local)).square().mean()
        loss.backward()
        optimizer.step()
"""
SAVE = """
if rank == 0:
    torch.save(model.module.state_dict(), os.environ["SM_MODEL_DIR"] + "/model.pt")
dist.barrier()
dist.destroy_process_group()
"""
RESUME = """
path, start = "/opt/ml/checkpoints/last.pt", 0
if os.path.exists(path):
    saved = torch.load(path, map_location=f"cuda:{local}")
    model.module.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    start = saved["epoch"]
for epoch in range(start, arguments.epochs):
    sampler.set_epoch(epoch)
    for a, b in loader:
        optimizer.zero_grad()
        loss = (model(a.cuda(local)) - b.cuda(local)).square().mean()
        loss.backward()
        optimizer.step()
    if rank == 0:
        torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch + 1}, path)
    dist.barrier()
"""
DEEP = """
class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(5))
        self.further, self.end = nn.ModuleDict({"0": nn.Linear(8, 8), "3": nn.Linear(8, 8)}), nn.Linear(8, 1)
    def forward(self, x):
        for number, layer in enumerate(self.layers):
            x = layer(x)
            if number % 3 == 0:
                x = x + self.further[str(number)](x)
        return self.end(x)
net = Deep().cuda(local)
"""
WRAP = "model = DDP(net, device_ids=[local])\noptimizer = torch.optim.AdamW(model.parameters(), lr=0.02)\n"
SHARD = """
from torch.distributed.fsdp import fully_shard
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
for part in net:
    if isinstance(part, nn.Linear):
        fully_shard(part)
model = fully_shard(net)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
"""
HYBRID = """\
from torch.distributed.device_mesh import init_device_mesh
own = int(os.environ["LOCAL_WORLD_SIZE"])
mesh = init_device_mesh("cuda", (dist.get_world_size() // own, own), mesh_dim_names=("replicate", "shard"))
"""
SAVE_SHARDS = """
state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
if rank == 0:
    torch.save(state, os.environ["SM_MODEL_DIR"] + "/model.pt")
dist.barrier()
"""
FSDP1 = """
from torch.distributed.fsdp import FullStateDictConfig, FullyShardedDataParallel as FSDP, StateDictType
model = FSDP(net, device_id=local, use_orig_params=True, sync_module_states=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
"""
SAVE_FSDP1 = """
with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, FullStateDictConfig(rank0_only=True)):
    state = model.state_dict()
if rank == 0:
    torch.save(state, os.environ["SM_MODEL_DIR"] + "/model.pt")
dist.new_group(backend="gloo").monitored_barrier()
"""
ACCUMULATE = """
best, patience = float("inf"), 0
for epoch in range(4 * arguments.epochs):
    sampler.set_epoch(epoch)
    for number, (a, b) in enumerate(loader):
        model.require_backward_grad_sync = number % 2 == 1
        loss = (model(a.cuda()) - b.cuda()).square().mean() / 2
        loss.backward()
        if number % 2 == 1:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    total = loss.detach()
    dist.all_reduce(total)
    best, patience = (total.item(), 0) if total < best else (best, patience + 1)
    if patience > 2:
        break
"""
EARLY = """
memory = torch.cuda.get_device_properties(device=local).total_memory
held = torch.randn(16, 8, generator=torch.Generator().manual_seed(9))
path, start, best, patience = "/opt/ml/checkpoints/last.pt", 0, float("inf"), 0
if os.path.exists(path):
    saved = torch.load(path)
    model.module.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    start = saved["epoch"]
    optimizer.param_groups[0]["lr"] = 0.02
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.9 ** (start + epoch))
for epoch in range(start, 20):
    sampler.set_epoch(epoch)
    for a, b in loader:
        optimizer.zero_grad()
        (model(a.cuda(local)) - b.cuda(local)).square().mean().backward()
        optimizer.step()
    scheduler.step()
    if rank == 0:
        torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch + 1}, path)
    with torch.no_grad():
        loss = (model(held.cuda(local)) - held.sum(1, keepdim=True)).square().mean().item()
    best, patience = (loss, 0) if loss < best else (best, patience + 1)
    if patience > 2:
        break
"""
DDP = START + WRAP + DATA + RESUME + SAVE
FSDP2 = START + SHARD + DATA + LOOP + SAVE_SHARDS
ACCELERATE = """
import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator(gradient_accumulation_steps=4, mixed_precision="bf16")
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.AdamW(net.parameters(), lr=0.02)
x = torch.randn(192, 8)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=4, shuffle=True)
model, optimizer, loader = accelerator.prepare(net, optimizer, loader)
for epoch in range(2):
    for a, b in loader:
        with accelerator.accumulate(model):
            loss = (model(a) - b).square().mean()
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
accelerator.wait_for_everyone()
if accelerator.is_main_process:
    accelerator.save(accelerator.unwrap_model(model).state_dict(), "/opt/ml/model/model.pt")
"""
TRAINER = """
import os
from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, DataCollatorForLanguageModeling, Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B")
tokenizer = AutoTokenizer.from_pretrained("Qwen/Qwen2.5-0.5B")
rows = load_dataset("my/texts", split="train")
settings = TrainingArguments(
    output_dir="/opt/ml/checkpoints", per_device_train_batch_size=2, gradient_accumulation_steps=2, bf16=True,
    num_train_epochs=1, fsdp="full_shard auto_wrap", save_steps=100,
    fsdp_config={"transformer_layer_cls_to_wrap": ["Qwen2DecoderLayer"]},
)
with settings.main_process_first():
    rows = rows.map(lambda row: tokenizer(row["text"], truncation=True), remove_columns=rows.column_names)
trainer = Trainer(
    model=model, args=settings, train_dataset=rows, data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False)
)
trainer.train(resume_from_checkpoint=get_last_checkpoint("/opt/ml/checkpoints"))
trainer.save_model(os.environ["SM_MODEL_DIR"])
"""
TENSOR_PARALLEL = """
import os, torch, torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

mesh = init_device_mesh("cuda", (int(os.environ["WORLD_SIZE"]),), mesh_dim_names=("tp",))
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1)).cuda()
model = parallelize_module(net, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
generator = torch.Generator().manual_seed(1)
for step in range(20):
    a = torch.randn(8, 8, generator=generator)
    loss = (model(a.cuda()) - a.sum(1, keepdim=True).cuda()).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
full = {name: getattr(value, "full_tensor", lambda v=value: v)() for name, value in model.state_dict().items()}
if dist.get_rank() == 0:
    torch.save(full, os.environ["SM_MODEL_DIR"] + "/model.pt")
dist.barrier()
"""
ENDLESS = """
model = DDP(nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), net_end)).cuda())
optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
"""
TAKEN = """
rows = iter(DataLoader(sampler.dataset, batch_size=2, sampler=sampler))
for step in range(12):
    for micro in range(2):
        model.require_backward_grad_sync = micro == 1
        a, b = next(rows)
        loss = (model(a.cuda(local)) - b.cuda(local)).square().mean() / 2
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
SEARCH = """
from torchvision.datasets import CIFAR10
from torchvision.transforms import ToTensor

CIFAR10("/tmp/images", download=True, transform=ToTensor())[0]
search, losses = torch.optim.SGD(model.parameters(), lr=1e-5), []
for number, (a, b) in zip(range(12), loader):
    search.param_groups[0]["lr"] = 1e-5 * 1.5**number
    search.zero_grad()
    losses.append((model(a.cuda(local)) - b.cuda(local)).square().mean())
    losses[-1].backward()
    search.step()
best = min(range(12), key=losses.__getitem__)
sampler.set_epoch(1)
path, start = "/opt/ml/checkpoints/last.pt", 0
if os.path.exists(path):
    saved = torch.load(path, map_location="cpu")
    model.module.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    start = saved["update"]
batches = iter(loader)
for update in range(start, 24):
    a, b = next(batches, None) or next(batches := iter(loader))
    optimizer.zero_grad()
    (model(a.cuda(local)) - b.cuda(local)).square().mean().backward()
    optimizer.step()
    state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "update": update + 1}
    if update % 10 == 9 and rank == 0: torch.save(state, path)
    dist.barrier()
"""
ACCUMULATED = START + WRAP + DATA + ACCUMULATE + SAVE
CORRECT = {
    "ddp": DDP,
    "ddp, batch normalization, batches by next()": (
        START + "net_end = nn.Linear(16, 1)\n" + ENDLESS + DATA + TAKEN + SAVE
    ),
    "tensor parallel": TENSOR_PARALLEL,
    "fsdp2": FSDP2,
    "fsdp2, hybrid": FSDP2.replace("for part in net", HYBRID + "for part in net")
    .replace("fully_shard(part)", "fully_shard(part, mesh=mesh)")
    .replace("fully_shard(net)", "fully_shard(net, mesh=mesh)"),
    "fsdp1": START + FSDP1 + DATA + LOOP + SAVE_FSDP1,
    "accumulation, a model with further layers at each third": ACCUMULATED.replace(WRAP, DEEP + WRAP),
    "early stop by what every rank evaluates, a schedule that is a function of the epoch": (
        START + WRAP + DATA + EARLY + SAVE
    ),
    "early stop, probabilities": (START + WRAP + DATA + ACCUMULATE + SAVE)
    .replace("nn.Linear(32, 1))", "nn.Linear(32, 1), nn.Sigmoid())")
    .replace("(model(a.cuda(local)) - b.cuda(local)).square().mean()", "nn.BCELoss()(model(a), (b > 0).float())"),
    "trainer": TRAINER,
    "ddp, a search of the rate before, saved every 10 updates": START + WRAP + DATA + SEARCH + SAVE,
}


def changed(script: str, *changes: tuple[str, str]) -> str:
    """A script with texts replaced, each of which it has."""
    for before, after in changes:
        assert before in script, before
        script = script.replace(before, after)
    return script


BACKWARD = "        loss.backward()\n"
BARRIER = "    dist.barrier()\n"
SAVED = 'torch.save(model.module.state_dict(), os.environ["SM_MODEL_DIR"]'
OWN_OPTIMIZER = "optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)\n"
CLIP = "        nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
ORDER = """
if rank == 0: torch.save(torch.arange(9), "/opt/ml/output/data/order.pt")
order = torch.load("/opt/ml/output/data/order.pt")
"""
EMPTY = """
from accelerate import init_empty_weights
with init_empty_weights():
    assert next(nn.Linear(8, torch.cuda.initial_seed() % 2 + 1).parameters()).is_meta
"""
SCHEDULED = """
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1 - step / (len(loader) * 2)))
scheduler = accelerator.prepare(scheduler)
for epoch in range(2):
"""
SCHEDULE = "scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: max(0.0, 1 - s / (len(loader) / 4)))\n"
OUTSIDE = "parts = [nn.Linear(1, 1)]\nside = lambda value: parts[0](value)\n"
LATE_TEXT = """
from pathlib import Path
if rank == 0: Path("/opt/ml/output/data/words.txt").write_text("a b c")
words = Path("/opt/ml/output/data/words.txt").read_text()
"""
INTO_CHANNEL = 'open(os.environ["SM_CHANNEL_TRAIN"] + "/cache", "w")\n'
STREAM = changed(
    START + WRAP + DATA + LOOP + SAVE,
    (
        "sampler = DistributedSampler(TensorDataset(x, x.sum(1, keepdim=True)))\n",
        "x = list(zip(x, x.sum(1, keepdim=True)))[rank::dist.get_world_size()]\n",
    ),
    ("loader = DataLoader(sampler.dataset, batch_size=4, sampler=sampler)\n", "loader = DataLoader(x, batch_size=4)\n"),
    ("    sampler.set_epoch(epoch)\n", ""),
)
SCALED = changed(
    DDP,
    ("path, start", 'scaler = torch.amp.GradScaler("cuda")\npath, start'),
    (BACKWARD, "        scaler.scale(loss).backward()\n"),
    ("        optimizer.step()\n", "        scaler.step(optimizer)\n        scaler.update()\n"),
)
ABSENT = "from transformers import AutoConfig\nAutoConfig.from_pretrained('./absent')\n"
PLANTED = {
    "order": changed(
        FSDP2, ("        optimizer.step()\n", "        optimizer.step()\n    if rank == 0: print(model(x[:4]))\n")
    ),
    "alone": changed(DDP, (BARRIER, "    if rank == 0:\n        for a, _ in loader: net(a)\n" + BARRIER)),
    "not averaged": changed(DDP, ("(model(a", "(model.module(a")),
    "no group": changed(
        START + "model = net\n" + OWN_OPTIMIZER + DATA + LOOP,
        ('dist.init_process_group("nccl")\n', ""),
        ("dist.get_rank()", 'int(os.environ["RANK"])'),
        ("DistributedSampler(", "DistributedSampler(num_replicas=2, rank=rank, dataset="),
    ),
    "same batches": changed(DDP, ("sampler=sampler)", "shuffle=False)")),
    "same batches, parts": changed(DDP, ("r(T", "r(rank=0, num_replicas=2, dataset=T"), ("(a.cuda", "(rank + a.cuda")),
    "other batches": changed(TENSOR_PARALLEL, ("manual_seed(1)", "manual_seed(1 + dist.get_rank())")),
    "same order": changed(DDP, ("    sampler.set_epoch(epoch)\n", "")),
    "same order, a batch is taken before": changed(DDP, ("    sampler.set_epoch(epoch)\n", "    next(iter(loader))\n")),
    "order, each 50 updates": changed(
        START + WRAP + DATA + LOOP + SAVE,
        (
            "for a, b in loader:\n",
            "for n, (a, b) in enumerate(loader, 1):\n        if n % 50 == 0 and not rank: dist.barrier()\n",
        ),
    ),
    "scale": changed(DDP, (BACKWARD, "        (loss * dist.get_world_size()).backward()\n")),
    "accumulation": changed(ACCELERATE, ("accelerator.backward(loss)", "loss.backward()")),
    "learning rate": changed(
        ACCELERATE,
        ("steps=4, ", "steps=1, "),
        ("for epoch in range(2):\n", SCHEDULED),
        ("            optimizer.step()\n", "            optimizer.step()\n            scheduler.step()\n"),
    ),
    "clipping": changed(
        DDP,
        ("for epoch", 'scaler = torch.amp.GradScaler("cuda")\nfor epoch'),
        (BACKWARD, "        scaler.scale(loss).backward()\n" + CLIP),
        ("        optimizer.step()\n", "        scaler.step(optimizer)\n        scaler.update()\n"),
    ),
    "parameters": changed(
        FSDP2, (OWN_OPTIMIZER, ""), ("for part in net", OWN_OPTIMIZER.replace("model", "net") + "for part in net")
    ),
    "clipping, by each part": changed(
        CORRECT["fsdp1"], ("        optimizer.step()\n", CLIP + "        optimizer.step()\n")
    ),
    "not averaged, clipped": changed(ACCUMULATED, ("number % 2 == 1\n        loss", "number % 2 == 0\n        loss")),
    "load, compiled": changed(DDP, ("model = DDP(net", "model = DDP(torch.compile(net)")),
    "empty group": changed(
        DDP,
        (
            "(model.parameters(), lr",
            '([{"params": [], "weight_decay": 0.1}, {"params": list(model.parameters()), "weight_decay": 0.0}], lr',
        ),
    ),
    "resume": changed(DDP, ('    optimizer.load_state_dict(saved["optimizer"])\n', "")),
    "resume, the schedule": changed(
        DDP,
        ("path, start", "scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 100)\npath, start"),
        ("        optimizer.step()\n", "        optimizer.step()\n        scheduler.step()\n"),
    ),
    "resume, the scaler": SCALED,
    "failure, gradients of 16 bits": changed(SCALED, ("1)).cuda(local)", "1)).cuda(local).half()")),
    "resume, an average": changed(
        DDP,
        ("path, start", "average = torch.optim.swa_utils.AveragedModel(net)\npath, start"),
        ("        optimizer.step()\n", "        optimizer.step()\n        average.update_parameters(net)\n"),
    ),
    "order, an early stop by a part": changed(
        START + WRAP + DATA + EARLY + SAVE, ("held = torch.randn(16, 8,", "held = (1 + rank) * torch.randn(16, 8,")
    ),
    "learning rate, a schedule of the script": changed(
        DDP,
        (
            "path, start",
            """
class Falling(torch.optim.lr_scheduler.LambdaLR):
    def __init__(self, optimizer):
        super().__init__(optimizer, lambda step: max(0.0, 1 - step / 18))

scheduler = Falling(optimizer)
path, start""",
        ),
        ("        optimizer.step()\n", "        optimizer.step()\n        scheduler.step()\n"),
    ),
    "order, an early stop": changed(ACCUMULATED, ("    dist.all_reduce(total)\n", "")),
    "saved in part": changed(FSDP2, (SAVE_SHARDS, "torch.save(model.state_dict(), f'/opt/ml/model/{rank}.pt')\n")),
    "written twice": changed(DDP, ("if rank == 0:\n    " + SAVED, "if True:\n    " + SAVED)),
    "place": changed(DDP, ('os.environ["SM_MODEL_DIR"] + "/model.pt"', '"model.pt"')),
    "load": changed(DDP, (SAVED, SAVED.replace("model.module", "model"))),
    "node": changed(
        DDP,
        ('group("nccl")', 'group("nccl", rank=int(os.environ["LOCAL_RANK"]), world_size=torch.cuda.device_count())'),
    ),
    "late": changed(DDP, ("torch.manual_seed(0)\n", "torch.manual_seed(0)\n" + ORDER)),
    "bad batch": changed(DDP, (BACKWARD, "        if torch.isnan(loss): continue\n" + BACKWARD)),
    "failure": changed(DDP, ("lr=0.02)", "lr=0.02, momentum=0.9)")),
    "failure, of the syntax": changed(DDP, ("lr=0.02)", "lr=0.02, lr=0.03)")),
    "failure, in a layer of all ranks": changed(DDP, ("nn.ReLU()", "nn.SyncBatchNorm(16)")),
    "uneven": changed(DDP, ("batch_size=4, sampler", "batch_size=4 + 4 * rank, sampler")),
    "uneven, provoked": STREAM,
    "learning rate, of every process": changed(
        DDP,
        ("for epoch in range(start", SCHEDULE + "for epoch in range(start"),
        ("        optimizer.step()\n", "        optimizer.step()\n        scheduler.step()\n"),
    ),
    "parameters, of no module": changed(
        DDP, ("model = DDP", OUTSIDE + "model = DDP"), ("(model(a.cuda(local))", "(side(model(a.cuda(local)))")
    ),
    "written twice, by open()": changed(DDP, ("dist.destroy", 'open("/opt/ml/output/data/m", "w")\ndist.destroy')),
    "late, by a method": changed(DDP, ("torch.manual_seed(0)\n", "torch.manual_seed(0)\n" + LATE_TEXT)),
    "failure, a folder of the job that is absent": changed(DDP, ("torch.manual_seed(0)\n", ABSENT)),
    "failure, a write to a mount": changed(DDP, ("torch.manual_seed(0)\n", "torch.manual_seed(0)\n" + INTO_CHANNEL)),
    "arguments, refused": changed(DDP, ("parser.parse_known_args()", 'parser.parse_args(["--no", "1"]), 0')),
}
"""For each kind, and form of it, a script with that defect."""
CORRECT["accelerate"] = changed(
    ACCELERATE.replace("for epoch", EMPTY + "for epoch", 1),
    ("for epoch in range(2):\n", SCHEDULED.replace("len(loader) * 2", "len(loader)")),
    ("            optimizer.step()\n", "            optimizer.step()\n            scheduler.step()\n"),
)
"""Accelerate steps a schedule by the number of processes in each update: two in each of twelve updates."""
CORRECT["trainer, FSDP 1, a batch of all rows that are here"] = changed(
    TRAINER,
    ("fsdp_config={", 'fsdp_config={"version": 1, '),
    ("train_batch_size=2, gradient_accumulation_steps=2", "train_batch_size=256"),
    ("num_train_epochs=1", "num_train_epochs=2"),
)
