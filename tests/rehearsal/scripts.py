"""Training scripts for rehearsals: a correct one of each dialect, and changes of them that plant one defect each."""

import tomllib
from pathlib import Path

_TEXTS: dict[str, str] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
(
    START, DATA, LOOP, SAVE, RESUME, DEEP, SHARD, HYBRID, SAVE_SHARDS, FSDP1, SAVE_FSDP1, ACCUMULATE, EARLY,
    ACCELERATE, TRAINER, TENSOR_PARALLEL, ENDLESS, TAKEN, SEARCH, ORDER, EMPTY, SCHEDULED, LATE_TEXT,
) = _TEXTS.values()  # fmt: skip
WRAP = "model = DDP(net, device_ids=[local])\noptimizer = torch.optim.AdamW(model.parameters(), lr=0.02)\n"
DDP = START + WRAP + DATA + RESUME + SAVE
FSDP2 = START + SHARD + DATA + LOOP + SAVE_SHARDS
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
SCHEDULE = "scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: max(0.0, 1 - s / (len(loader) / 4)))\n"
OUTSIDE = "parts = [nn.Linear(1, 1)]\nside = lambda value: parts[0](value)\n"
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
    "order, a state gathered on one rank": changed(
        CORRECT["fsdp1"],
        (
            "        optimizer.step()\n",
            """        optimizer.step()
    if rank == 0:
        with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, FullStateDictConfig(rank0_only=True)):
            model.state_dict()
""",
        ),
    ),
    "not averaged, the last pass": changed(
        FSDP2,
        (
            "for a, b in loader:\n",
            "for n, (a, b) in enumerate(loader):\n        model.set_requires_gradient_sync(n % 2 < 1)\n",
        ),
        ("        optimizer.zero_grad()\n", ""),
        ("        optimizer.step()\n", "        if n % 2: optimizer.step(), optimizer.zero_grad()\n"),
    ),
    "accumulation, a number of the text": changed(
        ACCUMULATED,
        ("best, patience = float", "class Settings: accumulation = 4\nbest, patience = float"),
        ("number % 2 == 1", "number % Settings.accumulation == Settings.accumulation - 1"),
        (".mean() / 2\n", ".mean()\n"),
        (", 1.0)\n", ", 1e9)\n"),
    ),
    "clipping, by value": changed(
        SCALED,
        ("        scaler.step", "        nn.utils.clip_grad_value_(model.parameters(), 1.0)\n        scaler.step"),
    ),
    "saved in part, by the first rank": changed(
        FSDP2, ("    torch.save(state,", "    torch.save({n: v.to_local() for n, v in model.state_dict().items()},")
    ),
    "resume, an entry that is not read": changed(
        DDP, ('"epoch": epoch + 1}', '"epoch": epoch + 1, "average": dict(net.state_dict())}')
    ),
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
