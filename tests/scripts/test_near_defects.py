"""Correct scripts that look like a defect of one rule, which must not name it."""

import tomllib
from pathlib import Path

from smp_advisor.core.files import data_file
from smp_advisor.review.findings.catalog import catalog
from smp_advisor.review.scripts import check_script

BASES = data_file("review.findings", "bases")
DDP, ACCELERATE, LIGHTNING, FSDP = (BASES[name] for name in ("ddp", "accelerate", "lightning", "fsdp1"))
LOADER = "DataLoader(dataset, batch_size=4, sampler=sampler)"
MODEL = "DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)).cuda())"
START = 'dist.init_process_group("nccl")\n'
LOOP = "for epoch in range(3):\n"
DIVIDED = LOOP + "    sampler.set_epoch(epoch)\n"
SCHEDULE = (
    "from transformers import get_scheduler\n"
    + ACCELERATE.replace(
        LOOP,
        "schedule = accelerator.prepare(get_scheduler({name}, optimizer, num_warmup_steps=5, num_training_steps=600))\n"
        + LOOP,
    )
    + "        schedule.step()\n"
)
PARSED = DDP.replace(
    START,
    'import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument("--lr", default=0.1)\n'
    "args = parser.parse_args()\n" + START,
)
DEVICE = 'torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))\n'
FILES = "import random\nfiles = [str(number) for number in range(64)]\n"
PART = "files = files[rank :: dist.get_world_size()]\n"
LOADED = "state = torch.load('/opt/ml/checkpoints/last.pt')\n"


def of_lightning(step: str) -> str:
    return LIGHTNING.replace("        return self.net(batch[0]).mean()\n", step)


def bad(rule: str, variant: str, *replaced: str) -> str:
    """Return the example of a variant with something replaced: by turns a text, and what takes its place."""
    text = next(example.bad for example in catalog()[rule].examples if example.variant == variant)
    for old, new in zip(replaced[::2], replaced[1::2], strict=True):
        assert old in text, old
        text = text.replace(old, new)
    return text


CORRECT = (
    ("DDP634", DDP.replace(LOADER, "DataLoader(dataset, batch_size=1, batch_sampler=Batches(dataset))")),
    ("DDP634", DDP.replace(LOADER, "DataLoader(dataset, batch_sampler=Batches(dataset), drop_last=False)")),
    ("DDP634", DDP.replace(LOADER, "DataLoader(dataset, sampler=sampler, shuffle=None, num_workers=0)")),
    ("DDP634", DDP.replace(LOADER, "DataLoader(dataset, sampler=sampler, prefetch_factor=2, num_workers=2)")),
    ("SMP003", PARSED.replace("parameters())", "parameters(), lr=float(args.lr))")),
    ("SMP003", PARSED.replace("parameters())", "parameters(), lr=args.lr)").replace(
        START, "for name, value in vars(args).items():\n    setattr(args, name, float(value))\n" + START)),
    ("SMP003", PARSED.replace("args = parser", "rate = float(parser").replace("_args()", "_args().lr)")),
    ("SMP003", PARSED.replace("parameters())", "parameters(), lr=lr)").replace(
        START, "lr = float(args.lr) if isinstance(args.lr, str) else args.lr\n" + START)),
    ("TRN742", of_lightning(
        "        def number(value):\n            return value.item()\n\n        loss = self.net(batch[0]).mean()\n"
        "        self.log('loss', number(loss))\n        return loss\n")),
    ("TRN742", of_lightning(
        "        class Result:\n            def get(self, value):\n                return value.detach()\n\n"
        "        number = lambda value: value.item()\n        return self.net(batch[0]).mean()\n")),
    ("DDP633", DDP.replace("model = " + MODEL, (
        "net = torch.nn.Linear(8, 8)\nif dist.get_world_size() == 1:\n"
        "    model = DistributedDataParallel(net.to('cuda:0'))\nelse:\n"
        "    model = DistributedDataParallel(net.cuda())"))),
    ("DDP633", DDP.replace("model = " + MODEL, (
        "net = torch.nn.Linear(8, 8)\nmodel = torch.nn.DataParallel(net.cuda()) if dist.get_world_size() == 1 else net")
    )),
    ("DDP633", DDP.replace("model = " + MODEL, (
        "world_size = int(os.environ['WORLD_SIZE'])\nnet = torch.nn.Linear(8, 8)\n"
        "model = DistributedDataParallel(net.cuda(), device_ids=[0] if world_size < 2 else [rank])"))),
    ("DDP636", DDP.replace(START, "").replace("model = " + MODEL, (
        "net = torch.nn.Linear(8, 8).cuda()\n"
        "model = DistributedDataParallel(net) if dist.is_initialized() else net"))),
    ("DDP636", DDP.replace(START, "from torch.distributed.device_mesh import DeviceMesh\n"
                                  "mesh = DeviceMesh('cuda', list(range(8)))\n")),
    ("DDP636", DDP.replace(START, "torch.distributed.distributed_c10d.init_process_group('nccl')\n")),
    ("DDP624", DDP.replace("model = D", (
        "net = torch.nn.Linear(8, 8)\nweights = torch.load('/opt/ml/input/data/pretrained.pt')\n"
        "net.load_state_dict(weights['model'])\nema = torch.nn.Linear(8, 8)\n"
        "ema.load_state_dict(weights['ema'])\nmodel = D"
    )).replace(MODEL, "DistributedDataParallel(net.cuda())") + (
        "torch.save({'model': model.state_dict(), 'ema': ema.state_dict()}, '/opt/ml/checkpoints/last.pt')\n")),
    ("DDP623", DDP.replace(LOOP, FILES + PART + "random.shuffle(files)\n" + LOOP)),
    ("DDP623", DDP.replace(LOOP, FILES + (
        "if rank == 0:\n    random.shuffle(files)\ndist.broadcast_object_list(files, src=0)\n") + PART + LOOP)),
    ("DDP623", DDP.replace(LOOP, FILES + (
        "random.shuffle(files)\ndist.broadcast_object_list(files, src=0)\n") + PART + LOOP)),
    ("DDP604", DDP.replace("sampler.set_epoch", "getattr(loader.sampler, 'set_epoch')")),
    ("DDP604", DDP.replace(DIVIDED, "for epoch in range(1):\n")),
    ("DDP604", DDP.replace(DIVIDED, "from mylib import Callbacks\ncallbacks = Callbacks(sampler)\n" + LOOP
                                    + "    callbacks.epoch_starts(epoch)\n")),
    ("DDP604", DDP.replace(DIVIDED, "from mylib import start\n" + LOOP + "    start(loader, epoch)\n")),
    ("SMP324", FSDP + (
        "from torch.distributed.fsdp import StateDictType\n"
        "with FullyShardedDataParallel.state_dict_type(model, StateDictType.FULL_STATE_DICT):\n"
        "    model.load_state_dict(torch.load('/opt/ml/checkpoints/last.pt', map_location='cpu'))\n")),
    ("TRN718", SCHEDULE.format(name="'constant'")),
    ("TRN718", SCHEDULE.format(name="'constant_with_warmup'")),
    ("TRN718", SCHEDULE.format(name="'inverse_sqrt'")),
    ("TRN713", ACCELERATE + (
        "from transformers import AutoModelForCausalLM\nif accelerator.is_main_process:\n"
        "    merged = AutoModelForCausalLM.from_pretrained('gpt2', device_map='auto')\n")),
    ("TRN713", ACCELERATE + (
        "from transformers import AutoModelForCausalLM\nif accelerator.num_processes == 1:\n"
        "    alone = AutoModelForCausalLM.from_pretrained('gpt2', device_map='auto')\n")),
    ("TRN713", ACCELERATE + (
        "from transformers import AutoModelForCausalLM\nif not accelerator.is_local_main_process:\n    exit()\n"
        "merged = AutoModelForCausalLM.from_pretrained('gpt2', device_map='auto')\n")),
    ("DDP617", DDP.replace(START, (
        "try:\n    size = int(os.environ['WORLD_SIZE'])\n    os.environ['MASTER_ADDR']\nexcept KeyError:\n"
        "    os.environ['MASTER_ADDR'] = 'localhost'\n") + START)),
    ("DDP617", DDP.replace(START, (
        "if int(os.environ['WORLD_SIZE']) == 1:\n    with open('log') as file:\n"
        "        os.environ['MASTER_ADDR'] = 'localhost'\n") + START)),
    ("DDP617", DDP.replace(START, (
        "def alone():\n    os.environ['MASTER_ADDR'] = 'localhost'\n\n\n"
        "if int(os.environ.get('WORLD_SIZE', 1)) == 1:\n    alone()\n") + START)),
    ("DDP625", DDP.replace("nccl", "gloo").replace(".cuda()", "").replace(DIVIDED, LOADED + DIVIDED)),
    ("DDP625", DDP.replace(DIVIDED, "words = torch.load('/opt/ml/input/data/checkpoint_words.pt', 'cpu')\n" + DIVIDED)),
    ("SMP007", DDP.replace(DIVIDED, "words = torch.load('/opt/ml/input/data/vocab.pt')\n" + DIVIDED) + (
        "import argparse\nargs = argparse.ArgumentParser().parse_args()\n"
        "torch.save({'args': args}, '/opt/ml/checkpoints/last.pt')\n")),
    ("DDP603", DDP.replace("loader = " + LOADER, (
        "from mesh import size\nif size() > 1:\n    loader = " + LOADER + "\n"
        "else:\n    loader = DataLoader(dataset, shuffle=True)"))),
    ("DDP603", DDP.replace("loader = " + LOADER, (
        "if dist.get_world_size() > 1:\n    loader = " + LOADER + "\nelse:\n    loader = DataLoader(dataset)"))),
    ("DDP601", DDP.replace('torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))\n', (
        "from options import args\ndevice = torch.device('cuda')\n"
        "if args.local_rank != -1:\n    device = torch.device('cuda', args.local_rank)\n"
    )).replace(".cuda()", ".to(device)")),
    ("DDP604", DDP.replace(DIVIDED, "for epoch in range(0, 1):\n")),
    ("DDP606", DDP + "from options import args\nif args.all_ranks or rank == 0:\n    dist.barrier()\n"),
    *(("DDP606", "import json\nconfig = json.load(open('a.json'))\nfrom options import args, everywhere\n" + DDP + (
        f"if {test}:\n    dist.barrier()\n")) for test in ("config['all'] or rank == 0", "rank == 0 or everywhere()",
        "not (rank != 0 and not args.all)", "rank == 0 or not args.main_only")),
    ("DDP612", DDP.replace("        optimizer.step()\n", (
        "        if rank == 0:\n            optimizer.step()\n        else:\n            optimizer.step()\n"))),
    ("DDP612", DDP.replace(LOOP, "second = torch.optim.SGD(torch.nn.Linear(8, 8).parameters())\n" + LOOP)
        + "        if rank == 0:\n            second.step()\n"),
    ("DDP625", DDP.replace(LOOP, "from options import args\nif not args.distributed:\n"
        "    state = torch.load('last.pt', map_location='cuda:0')\n" + LOOP)),
    ("DDP633", DDP.replace(DEVICE, f"if 'RANK' in os.environ:\n    {DEVICE}else:\n    torch.cuda.set_device(0)\n")),
    ("DDP606", "def evaluate(): ...\n" + DDP + "if rank == 0 and not evaluate:\n    dist.barrier()\n"),
    ("DDP610", DDP + (
        "        if epoch % 4 == 0:\n            model(batch.cuda()).square().mean().backward()\n"
        "            optimizer.step()\n")),
    ("DDP621", DDP.replace("        optimizer.zero_grad()\n", (
        "        if STEPS == 1:\n            optimizer.zero_grad()\n")).replace("        optimizer.step()\n", (
        "        if STEPS > 1 and epoch % STEPS == 0:\n            optimizer.step()\n"
        "            optimizer.zero_grad()\n")).replace(START, "from options import STEPS\n" + START)),
    ("DDP626", DDP.replace("loss.backward()\n        optimizer.step()", (
        "scaler.scale(loss).backward()\n        scaler.step(optimizer)\n        update()"
    )).replace(LOOP, "scaler = torch.amp.GradScaler('cuda')\nupdate = scaler.update\n" + LOOP)),
    ("DDP633", DDP.replace('int(os.environ["LOCAL_RANK"])', "0 if rank < 0 else rank % 8")),
    ("SMP327", BASES["fsdp2"] + (
        "def whole(optimizer):\n    state = optimizer.state_dict()\n    parts = {}\n"
        "    for name, part in state['state'].items():\n        parts[name] = part['exp_avg'].full_tensor()\n"
        "    return {'param_groups': state['param_groups'], 'state': parts}\n\n\n"
        "state = whole(optimizer)\nif rank == 0:\n    torch.save(state, 'optimizer.pt')\n")),
    ("DDP615", DDP.replace("dataset = Tensor", "model.teacher = torch.nn.Linear(8, 8)\n"
        "model.teacher.requires_grad_(False)\ndataset = Tensor")),
    ("TRN722", bad("TRN722", "copies", "import peft", (
        "import peft\nmodel = peft.prepare_model_for_kbit_training(model)"))),
    ("TRN722", bad("TRN722", "copies", "import peft", "import peft\nmodel = model.float()")),
    ("TRN742", bad("TRN742", "never", "self.automatic", "pass  # self.automatic")),
    ("TRN742", bad("TRN742", "never", "return self.net(batch[0]).mean()", "self.agent.learn(batch)")),
    ("TRN745", bad("TRN745", "", "LoraConfig()", "LoraConfig(target_modules=['wte', 'c_attn'])")),
    ("TRN746", bad("TRN746", "", "yield from open(", "yield from share(open(").replace('txt")', 'txt"))')),
    ("TRN746", bad("TRN746", "", 'yield from open("/opt/ml/input/data/train/rows.txt")', (
        "while True:\n            yield self.queue.get()\n\n    def __init__(self):\n        json.load(open('x'))"))),
    ("DDP617", bad("DDP617", "port", "str(find", "os.environ.get('MASTER_PORT') or str(find")),
    ("DDP617", bad("DDP617", "port", "; dist.init", "; os.environ['WORLD_SIZE'] = '1'; dist.init")),
    ("DDP617", bad("DDP617", "port", "str(find_free_port())", "open('port').read()")),
    ("DDP619", DDP + "class Held(torch.utils.data.IterableDataset):\n    def __iter__(self):\n"
        "        yield from open('x')\nfor batch in DataLoader(Held(), batch_size=4):\n    model.module(batch)\n"),
    ("DDP619", bad("DDP619", "undivided", "            yield line", "            if len(line) % PARTS == MINE:\n"
        "                yield line")),
    ("DDP621", bad("DDP621", "offloaded", "    (model(batch).mean() / 4).backward()\n    if number % 4 == 3:\n", (
        "    if number % 4 == 3:\n        (model(batch).mean() / 4).backward()\n"))),
    ("TRN702", "from sequences import prepare\n" + ACCELERATE.replace(
        "optimizer, loader = accelerator.prepare(model, optimizer, loader)",
        "optimizer = accelerator.prepare(model, optimizer)\nloader = prepare(loader, accelerator)")),
    ("TRN702", ("import torch\nfrom accelerate import Accelerator\n\n\nclass Plain:\n    def train(self):\n"
        "        for row in torch.utils.data.DataLoader(rows):\n            model(row).backward()\n\n\nclass Fast:\n"
        "    def __init__(self):\n        self.a = Accelerator()\n\n    def train(self):\n"
        "        for row in self.a.prepare(torch.utils.data.DataLoader(rows)):\n            self.a.backward(model(row))"
        "\n\n\nif kind:\n    trainer = Fast()\nelse:\n    trainer = Plain()\ntrainer.train()\n")),
    ("SMP309", bad("SMP309", "flat", "model = get_peft_model", "net.requires_grad_(True)\nmodel = get_peft_model")),
    ("TRN727", bad("TRN727", "trainer", "rank, size", "0, 1")),
    ("DDP619", bad("DDP619", "undivided", 'open("/opt/ml/input/data/train/rows.txt")', "my_lines()").replace(
        "import torch", "from own.lines import my_lines\nimport torch", 1)),
    ("DDP619", "import own\n" + bad("DDP619", "undivided", 'open("/opt/ml/input/data/train/rows.txt")', "own.rows()")),
    ("DDP608", DDP.replace("model(batch.cuda()).mean()", "run(net=model, x=batch) + l2(model.module)")),
    ("DDP614", "for fold in folds:\n " + (bad("DDP614", "moved", "        model.cpu()\n        model.cuda()\n", "") + (
        "model.cpu()\nmodel.cuda()")).replace("\n", "\n ")),
    ("DDP606", "import torch.distributed as d\ndef f(loss, rank=8):\n loss.backward()\n if rank > 4:\n  d.barrier()\n"),
)  # fmt: skip


def test_correct_code_near_a_defect_is_not_named() -> None:
    job = {"lr": 0.3}
    named = [
        (rule, text)
        for rule, text in CORRECT
        if any(
            finding.id == rule for finding in check_script(text, hyperparameters=job if text.count("--lr") else None)
        )
    ]
    assert not named, "\n\n".join(f"{rule}:\n{text}" for rule, text in named)


def test_scripts_one_twist_away_from_a_defect_have_no_finding() -> None:
    scripts = tomllib.loads((Path(__file__).parent / "correct.toml").read_text("utf-8"))["script"]
    found = {text["text"]: [f for f in check_script(text["text"]) if f.severity != "info"] for text in scripts}
    assert not {text: findings for text, findings in found.items() if findings}


def test_a_number_without_a_type_is_a_text_for_the_optimizer() -> None:
    text = PARSED.replace("parameters())", "parameters(), lr=args.lr)")
    assert [finding.id for finding in check_script(text, hyperparameters={"lr": 0.3})] == ["SMP003"]


DEFECTS = (
    *(("DDP601", DDP.replace(DEVICE, f"device = {device}\n").replace(".cuda()", ".to(device)")) for device in (
        "'cuda' if torch.cuda.is_available() else 'cpu'",
        "torch.device('cuda') if torch.cuda.is_available() else torch.device('cpu')")),
    ("DDP603", "from options import args\n" + DDP.replace("loader = " + LOADER, (
        "if args.evaluate:\n    other = DataLoader(Held(), sampler=SequentialSampler(held))\n"
        "else:\n    loader = DataLoader(dataset, shuffle=True)"))),
    ("DDP604", DDP.replace(DIVIDED, "for epoch in range(0, 3, 1):\n")),
    ("DDP606", DDP + "from options import args\nif not args.distributed or rank == 0:\n    dist.barrier()\n"),
    ("DDP608", DDP.replace(LOOP, (
        "class Loss:\n    def of(self, net, batch):\n        return net(batch).mean()\n\n\n"
        "class Spaced(Loss):\n    def of(self, net, batch):\n        return super().of(net, batch)\n\n\n" + LOOP
    )).replace("model(batch.cuda()).mean()", "Spaced().of(model.module, batch.cuda())")),
    ("DDP605", ACCELERATE.replace("optimizer.zero_grad()", "pass")),
    ("SMP309", bad("SMP309", "flat", "model = get_peft_model", "def adapt(model):\n    return get_peft_model", (
        "model = FullyShardedDataParallel(model)"), (
        "def wrap(model):\n    return FullyShardedDataParallel(model)\n\n\nmodel = wrap(adapt(net))"))),
    ("DDP612", ACCELERATE.replace("        accelerator.backward(loss)", (
        "        if loss.item() < 0.1:\n            break\n        accelerator.backward(loss)"
    )) + "rows = accelerator.gather_for_metrics((model(batch), batch))\n"),
    ("DDP606", ACCELERATE.replace(LOOP, (
        f"from tqdm import tqdm\n\nbar = tqdm(range(9), disable=not accelerator.is_main_process)\n{LOOP}")) + (
        "        bar.update(1)\n        if bar.n % 5 == 0 and bar.n:\n            accelerator.wait_for_everyone()\n")),
    ("DDP606", DDP + (
        "if int(os.environ['SLURM_PROCID']) * 8 + int(os.environ['LOCAL_RANK']) == 0:\n    dist.barrier()\n")),
    ("DDP608", "from diffusion import losses\nfrom accelerate import init_empty_weights\n" + DDP.replace(
        "model(batch.cuda()).mean()", "losses(model.module, batch)")),
    ("DDP630", bad("DDP630", "", "super().__init__()", "super(Net, self).__init__()")),
)  # fmt: skip


def test_defects_are_named_through_what_real_scripts_put_between() -> None:
    silent = [(rule, text) for rule, text in DEFECTS if rule not in {each.id for each in check_script(text).findings}]
    assert not silent, "\n\n".join(f"{rule}:\n{text}" for rule, text in silent)
