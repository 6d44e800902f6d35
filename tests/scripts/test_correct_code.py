"""Correct scripts near the defects that rules report: none of the rules may name them."""

from smp_advisor.core.files import data_file
from smp_advisor.review.scripts import check_script

BASES = data_file("review.findings", "bases")
DDP, FSDP1, LIGHTNING = BASES["ddp"], BASES["fsdp1"], BASES["lightning"]
FORWARD = "        loss = model(batch.cuda()).mean()\n"
BACKWARD = f"{FORWARD}        loss.backward()\n"
UPDATE = f"        optimizer.zero_grad()\n{BACKWARD}        optimizer.step()\n"
WRAP = "DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)).cuda())"
PASSIVE = "        with torch.no_grad():\n            old = model(batch.cuda())\n        loss = "
NET = """class Net(torch.nn.Module):
    def __init__(self, norm=False):
        super().__init__()
        self.body = torch.nn.Linear(8, 8)
        {layer}

    def forward(self, x):
        {line}return self.body(x)


model = """
DEEPSPEED = """import deepspeed
import torch
import torch.distributed as dist

net = torch.nn.Linear(8, 8)
config = {{"train_batch_size": 8, "zero_optimization": {{"stage": 3}}}}
engine, optimizer, loader, schedule = deepspeed.initialize(model=net, model_parameters=net.parameters(), config=config)
for batch in loader:
    engine.backward(engine(batch).mean())
    engine.step()
{save}
"""
KEPT = """        kept = [p.grad.clone() for p in model.parameters()]
        optimizer.zero_grad()
        for p, g in zip(model.parameters(), kept):
            p.grad = g
        optimizer.step()
"""
SCALED = """        scaler.scale(loss).backward()
        scaler.step(optimizer)
{update}"""


def ddp(*changes: tuple[str, str]) -> str:
    text = DDP
    for old, new in changes:
        text = text.replace(old, new, 1)
    return text


def net(layer: str, after: str = "", line: str = "", before: str = "") -> str:
    made = before + NET.format(layer=layer, line=line)
    return ddp((f"model = {WRAP}", f"{made}DistributedDataParallel(Net().cuda())\n{after}"))


def scaled(scaler: str, update: str = "", model: str = "") -> str:
    return ddp(
        ("optimizer = ", f"{model}scaler = {scaler}\noptimizer = "),
        ("        loss.backward()\n        optimizer.step()\n", SCALED.format(update=update)),
    )


def leaves(before: str, test: str) -> str:
    return DDP + f"        {before}\n        if {test}:\n            break\n"


def reentrant(switch: str, more: str = "") -> str:
    made = (
        "net = AutoModel.from_pretrained('a').cuda()\nteacher = AutoModel.from_pretrained('b').cuda()\n"
        f"{switch}.gradient_checkpointing_enable(gradient_checkpointing_kwargs={{'use_reentrant': True}})\n"
    )
    wrap = f"DistributedDataParallel(net, find_unused_parameters=True{more})"
    return "from transformers import AutoModel\n" + ddp((f"model = {WRAP}", f"{made}model = {wrap}"))


def monitored(step: str, base: str = "lightning.LightningModule", more: str = "", name: str = "val_loss") -> str:
    callback = f"callbacks = [lightning.pytorch.callbacks.EarlyStopping({name!r})]\n"
    text = LIGHTNING.replace("lightning.LightningModule", base)
    return more + text.replace("    def configure", f"    def validation_step{step}\n\n    def configure") + callback


LOGGED = "(self, batch, number, dataloader_idx=0):\n        self.log('val_loss', self.net(batch[0]).mean())"
CORRECT = {
    "DDP635": [
        ddp((FORWARD, f"{PASSIVE}ppo_loss(model, batch, old)\n")),
        ddp((FORWARD, f"{PASSIVE}(torch.utils.checkpoint.checkpoint(model, batch) - old).mean()\n")),
        ddp((FORWARD, f"{PASSIVE}old.requires_grad_().mean()\n")),
        ddp((FORWARD, "        with torch.no_grad(), torch.enable_grad():\n            loss = model(batch).mean()\n")),
        ddp((FORWARD, f"{PASSIVE}(scale * old).mean()\n"), ("optim", "scale = torch.nn.Parameter(rows)\noptim")),
    ],
    "DDP612": [
        leaves("flag = [rank == 0 and epoch > 1]\n        dist.broadcast_object_list(flag, src=0)", "flag[0]"),
        leaves("pass", "rank == -1"),
        leaves("pass", "os.environ.get('RANK') is None"),
    ],
    "DDP628": [
        ddp(("for epoch", f"model.part = torch.nn.{layer}\nfor epoch"))
        for layer in (
            *("CrossEntropyLoss()", "Dropout(0.1)", "GELU()", "Identity()", "LayerNorm(8, elementwise_affine=False)"),
            "Linear(8, 8)\nmodel.part.requires_grad_(False)",
        )
    ],
    "TRN744": [
        monitored(LOGGED, name="val_loss/dataloader_idx_0"),
        monitored(LOGGED, "Base, lightning.LightningModule", "from mylib import Base\n", "val_acc"),
        monitored(f"{LOGGED}\n        self.trainer.callback_metrics['acc'] = 1.0", name="acc"),
    ],
    "SMP327": [
        DEEPSPEED.format(save="if dist.get_rank() == 0:\n    torch.save({'s': schedule.state_dict()}, 's.pt')"),
        DEEPSPEED.format(
            save="with deepspeed.zero.GatheredParameters(list(net.parameters())):\n"
            "    if dist.get_rank() == 0:\n        torch.save(engine.module.state_dict(), 's.pt')"
        ),
        FSDP1.replace("device_id=rank", "sharding_strategy=ShardingStrategy.NO_SHARD").replace(
            "import FullySh", "import ShardingStrategy, FullySh"
        )
        + "if rank == 0:\n    torch.save(optimizer.state_dict(), 's.pt')\n",
    ],
    "TRN721": [reentrant("net", ", static_graph=True"), reentrant("teacher")],
    "DDP630": [
        net("self.norm = torch.nn.BatchNorm1d(8, affine=False)"),
        net("self.head = torch.nn.Linear(8, 8)", "compute(model, 1)\n", before="from mylib import compute\n"),
        net("if norm: self.norm = torch.nn.LayerNorm(8)"),
        net("self.norm = torch.nn.LayerNorm(8)", line="x = forward_features(self, x)\n        ",
            before="from mylib import forward_features\n"),
        net("self.norm = torch.nn.LayerNorm(8)", line="x = self._modules['norm'](x)\n        "),
        net("self.head = torch.nn.Linear(8, 8)", "for name, part in model.named_parameters():\n"
            "    part.requires_grad_('head' not in name)\n"),
    ],
    "DDP621": [
        ddp((UPDATE, f"        optimizer.step()\n        optimizer.zero_grad()\n{BACKWARD}")),
        ddp((UPDATE, BACKWARD + KEPT)),
    ],
    "DDP637": [
        scaled("torch.amp.GradScaler('cuda', enabled=False)", model="model.half()\n"),
        scaled("torch.amp.GradScaler('cuda')", model="model = Net().half().float()\n"),
    ],
    "DDP626": [
        scaled("torch.amp.GradScaler('cuda', enabled=False)"),
        scaled("torch.amp.GradScaler('cuda', enabled=options.scale)"),
        scaled("torch.amp.GradScaler('cuda')", "        scaler.update(scale)\n"),
        scaled("torch.amp.GradScaler('cuda')", "        finish(scaler)\n"),
    ],
}  # fmt: skip


def test_no_rule_names_correct_code_near_its_defect() -> None:
    named = {
        (rule, place): finding.message
        for rule, texts in CORRECT.items()
        for place, text in enumerate(texts)
        for finding in check_script(text)
        if finding.id == rule
    }
    assert not named
