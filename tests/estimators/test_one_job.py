"""Cell, command, script and manifest are one job: what is set, what arrives, what is left behind."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from smp_advisor import check_estimator
from smp_advisor.core.files import data_file

BASES = data_file("review.findings", "bases")
ALONE = BASES["estimator"].replace('    distribution={"torch_distributed": {"enabled": True}},\n', "")
ALONE = ALONE.replace("instance_count=2", "instance_count=1")
CELL = BASES["estimator"].replace('"epochs": 3', '"train_batch_size": 4, "packed": False')
SCRIPT = """
import argparse
import os

from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

parser = argparse.ArgumentParser()
parser.add_argument("--train-batch-size", type=int, default=32)
parser.add_argument("--packed", type=bool, default=True)
args, _ = parser.parse_known_args()
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B", dtype="float32")
arguments = TrainingArguments(
    os.environ["SM_MODEL_DIR"], save_steps=200, bf16=True, per_device_train_batch_size=args.train_batch_size
)
Trainer(model=model, args=arguments, train_dataset=rows).train()
"""


def checked(folder: Path, cell: str, script: str = SCRIPT):
    (folder / "train.py").write_text(script)
    (folder / "cell.py").write_text(cell)
    return check_estimator(folder / "cell.py")


def test_a_setting_counts_only_where_it_arrives(tmp_path: Path) -> None:
    report = checked(tmp_path, CELL)
    messages = " ".join(finding.message for finding in report)
    assert "ignores the hyperparameter train_batch_size" in messages
    assert 'packed=False, and type=bool reads the text "False" as True' in messages
    assert report.plan is not None
    assert report.plan.batch_size == 32
    assert any("by the name 'Qwen/Qwen2.5-0.5B' in the script" in line for line in report.readings[0].inferred)
    received = checked(tmp_path, CELL.replace("train_batch_size", "train-batch-size"))
    assert received.plan is not None
    assert received.plan.batch_size == 4


_PARSED = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--per_device_train_batch_size", type=int, default=32)
args = parser.parse_args()
print(args, f"{args.per_device_train_batch_size} per GPU")
"""
_OF_DATACLASS = """
from transformers import HfArgumentParser
@dataclass
class Options:
    per_device_train_batch_size: int = 32
(options,) = HfArgumentParser((Options,)).parse_args_into_dataclasses()
logger.info(options.per_device_train_batch_size)
"""
_OF_CLICK = """
import click
@click.command()
@click.option("--per_device_train_batch_size", type=int, default=32)
def main(per_device_train_batch_size):
    assert per_device_train_batch_size > 0
"""


@pytest.mark.parametrize("parsed", [_PARSED, _OF_DATACLASS, _OF_CLICK])
@pytest.mark.parametrize("by_command", [False, True])
def test_an_option_that_no_call_receives_is_no_setting(tmp_path: Path, parsed: str, by_command: bool) -> None:
    name = "per_device_train_batch_size"
    cell = BASES["estimator"].replace('"epochs": 3', f'"{name}": 4')
    if by_command:
        cell = COMMAND.replace("--train-batch-size 2", f"--{name} 4")
        (tmp_path / "src").mkdir()
    body = f"TrainingArguments('o', bf16=True, {name}=16)"
    script = f"from transformers import Trainer, TrainingArguments\n{parsed}\n" + (
        f"    Trainer(model=m, args={body}).train()\nmain()\n"
        if parsed == _OF_CLICK
        else f"Trainer(model=m, args={body}).train()\n"
    )
    (tmp_path / "src" / "train.py" if by_command else tmp_path / "train.py").write_text(script)
    (tmp_path / "cell.py").write_text(cell)
    report = check_estimator(tmp_path / "cell.py")
    assert report.plan is not None
    assert report.plan.batch_size == 16
    assert [line for line in report.readings[0].open if name in line] == [
        f"{name} is set in the text, and train.py reads it, but no call receives it."
    ]


def test_checkpoints_are_where_the_job_copies_them(tmp_path: Path) -> None:
    kept = CELL.replace(
        "    max_run=3600,\n", '    max_run=3600,\n    checkpoint_s3_uri="s3://b/c",\n    volume_size=10,\n'
    )
    found = {(finding.id, finding.severity) for finding in checked(tmp_path, kept)}
    assert {("EST515", "error"), ("EST515", "warning"), ("SMP005", "warning")} <= found
    right = SCRIPT.replace('os.environ["SM_MODEL_DIR"]', '"/opt/ml/checkpoints"')
    assert not {one.id for one in checked(tmp_path, kept, right)} & {"EST515", "SMP005"}
    for place, folder in (("LOCAL", "/data"), ("'/data'", "/data/run"), ("'/opt/ml/code/out'", "out")):
        elsewhere = kept.replace("volume_size=10", f"checkpoint_local_path={place}")
        script = right.replace("/opt/ml/checkpoints", folder)
        assert "EST515" not in {one.id for one in checked(tmp_path, elsewhere, script)}


JOBS = tomllib.loads((Path(__file__).parent / "jobs.toml").read_text("utf-8"))


@pytest.mark.parametrize("job", JOBS["job"], ids=lambda job: job["name"])
def test_a_wrong_job_is_named_and_a_right_one_is_not(tmp_path: Path, job: dict[str, Any]) -> None:
    """Each job of the table has findings with these words; none of them is left with its last changes."""
    texts = {"cell.py": BASES["estimator"], **{name: JOBS["text"][text] for name, text in job["files"].items()}}
    for changes, present in ((job["changes"], True), (job["right"], False)):
        for name, old, new in changes:
            assert old in texts[name]
            texts[name] = texts[name].replace(old, new)
        for name, text in texts.items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(text)
        report = check_estimator(tmp_path / job.get("start", "cell.py"))
        messages = " ".join([finding.message for finding in report] + [*report.readings[0].open])
        assert [words in messages for words in job["words"]] == [present] * len(job["words"]), messages


def test_an_image_of_ones_own_has_no_launcher_either(tmp_path: Path) -> None:
    cell = CELL.replace('    distribution={"torch_distributed": {"enabled": True}},\n', "").replace(
        'framework_version="2.8.0",\n    py_version="py312"',
        'image_uri="111122223333.dkr.ecr.us-east-1.amazonaws.com/t:1"',
    )
    assert "EST511" in {finding.id for finding in checked(tmp_path, cell)}


def test_the_length_that_was_read_is_listed_and_the_verdict_is_for_the_text() -> None:
    cell = BASES["estimator"].replace(
        '"epochs": 3',
        '"model_id": "meta-llama/Llama-3.1-8B", "fsdp": "full_shard", "per_device_train_batch_size": 1,'
        ' "max_length": 8192, "bf16": True',
    )
    report = check_estimator(cell)
    (found,) = [one for one in report if one.id == "EST508"]
    assert (found.severity, report.verdict.state, report.verdict.words) == ("error", "over", "Does not fit")
    assert "With activation checkpointing, which the text does not set: 26" in report.verdict.sentence
    assert "without activation checkpointing, which the text does not set" in found.message
    assert "activation_checkpointing='each'" in found.remedy
    assert "The sequence length is 8,192 tokens, the hyperparameter max_length." in report.readings[0].inferred


def test_defaults_of_a_launcher_are_assumptions_and_trainium_has_no_plan() -> None:
    cell = "import os\nos.environ.get\n" + BASES["estimator"].replace(
        '"ml.p4d.24xlarge"', 'os.environ.get("TYPE", "ml.p4d.24xlarge")'
    )
    report = check_estimator(cell)
    assert report.cluster is not None
    assert "The environment variable TYPE is 'ml.p4d.24xlarge', its default." in report.readings[0].inferred
    other = BASES["estimator"].replace("ml.p4d.24xlarge", "ml.trn1.32xlarge").replace('"epochs": 3', '"batch_size": 8')
    assert check_estimator(other).plan is None
    for line in ("neuron_parallel_compile torchrun train.py", "export NEURON_CC_FLAGS=x\ntorchrun train.py"):
        neuron = check_estimator(f"#!/bin/bash\n{line} --per_device_train_batch_size 1\n").readings[0]
        assert "AWS Trainium" in neuron.open[0]


MANIFEST = """\
apiVersion: v1
kind: Service
metadata: {name: etcd}
---
apiVersion: kubeflow.org/v1
kind: PyTorchJob
spec:
  pytorchReplicaSpecs:
    Worker:
      replicas: 2
      template:
        spec:
          nodeSelector: {node.kubernetes.io/instance-type: ml.p4d.24xlarge}
          containers:
            - resources: {limits: {nvidia.com/gpu: "8", vpc.amazonaws.com/efa: 4}}
              command: [torchrun, --nproc_per_node=8, /fsdp/train.py, --model_type=llama_v3, --hidden_width=4096,
                --num_layers=32, --num_heads=32, --num_key_value_heads=8, --intermediate_size=14336,
                --max_context_width=8192, --train_batch_size=1, --sharding_strategy=full]
"""
HYPERPOD = """\
from sagemaker.hyperpod.training import Containers, HyperPodPytorchJob, ReplicaSpec, Resources, Spec, Template

pod = Spec(containers=[Containers(
    name="c", image="i", command=["hyperpodrun", "--nproc_per_node=8", "/fsdp/train.py"],
    args=["--train_batch_size", "1", "--sharding_strategy", "hybrid"],
    resources=Resources(limits={"nvidia.com/gpu": "8"}),
)])
HyperPodPytorchJob(nproc_per_node="8", replica_specs=[ReplicaSpec(name="p", replicas=2, template=Template(spec=pod))])
"""
OPTIONS = 'parser.add_argument("--activation_checkpointing", type=int, default=1)\n'
COMMAND = BASES["model_trainer"].replace('entry_script="train.py"', 'command="torchrun train.py --train-batch-size 2"')
SHELL = COMMAND.replace("torchrun train.py --train-batch-size 2", "bash run.sh")
OF_TRL = """
from trl import ModelConfig, ScriptArguments, SFTConfig, SFTTrainer, TrlParser

scripts, training, model = TrlParser((ScriptArguments, SFTConfig, ModelConfig)).parse_args_and_config()
SFTTrainer(model=model.model_name_or_path, args=training, train_dataset=rows).train()
"""
STARTED = "set -e\ntorchrun train.py \\\n --train-batch-size 8\n"
CONFIGURED = BASES["estimator"].replace('"epochs": 3', '"config": "run.yaml"')
RUN = "per_device_train_batch_size: 2\nfsdp: full_shard\nfsdp_config: {activation_checkpointing: true}\nbf16: true\n"
FROM_FILE = OF_TRL.replace("parse_args_and_config()", 'parse_yaml_file("run.yaml")')
REMOTE = """\
from sagemaker.remote_function import remote
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

@remote(instance_type="ml.p4d.24xlarge", instance_count=2, use_torchrun=True)
def train(name, batch=8, sharding=""):
    model = AutoModelForCausalLM.from_pretrained(name)
    arguments = TrainingArguments("o", bf16=True, per_device_train_batch_size=batch, fsdp=sharding)
    Trainer(model=model, args=arguments, train_dataset=rows).train()

train("Qwen/Qwen2.5-0.5B", batch=2, sharding="full_shard auto_wrap")
"""
WITH_OTHER_BATCH = BASES["estimator"].replace('"epochs": 3', '"train_batch_size": 64, "micro": 2')
OTHER_BATCH = """
from argparse import ArgumentParser
from transformers import Trainer, TrainingArguments
parser = ArgumentParser()
parser.add_argument("--train_batch_size", type=int, default=8)
parser.add_argument("--micro", type=int, default=1)
args = parser.parse_args()
steps = args.train_batch_size // args.micro
arguments = TrainingArguments(
    "o", bf16=True, per_device_train_batch_size=args.micro, gradient_accumulation_steps=steps, deepspeed="z.json"
)
Trainer(model=m, args=arguments).train()
"""
LIGHTNING = """
import lightning
from lightning.pytorch.strategies import FSDPStrategy
from torch.utils.data import DataLoader
strategy = FSDPStrategy(sharding_strategy="SHARD_GRAD_OP")
trainer = lightning.Trainer(devices=8, strategy=strategy, precision="bf16-mixed")
trainer.fit(Model(), DataLoader(rows, batch_size=3))
"""
STARTER = "import os, sys\nos.system(f'{sys.executable} -m pip install x')\nos.system('bash run.sh')\n"
INNER = 'O="--x"\nO+=" --train-batch-size 8"\ntorchrun inner.py $O\n'
LOADS = """
import json
from transformers import Trainer, TrainingArguments
with open("run.json") as file:
    own = json.loads(file.read())
again = own.get("again")
a = TrainingArguments("o", bf16=True, per_device_train_batch_size=own["x"]["y"], gradient_checkpointing=again)
Trainer(model=m, args=a).train()
"""
PLUGIN = """
from accelerate import Accelerator, DeepSpeedPlugin
from torch.utils.data import DataLoader
accelerator = Accelerator(mixed_precision="bf16", deepspeed_plugin=DeepSpeedPlugin(zero_stage=2))
model, loader = accelerator.prepare(model, DataLoader(rows, batch_size=5))
"""
UNUSED = PLUGIN.replace("deepspeed_plugin=DeepSpeedPlugin(zero_stage=2", "gradient_accumulation_steps=2")
UNUSED = UNUSED.replace("2))", "2)") + "DeepSpeedPlugin(zero_stage=3, gradient_accumulation_steps=16)\n"
IMAGENET = """
import argparse, torch
parser = argparse.ArgumentParser()
parser.add_argument("-b", "--batch-size", default=256)
parser.add_argument("--spawns", action="store_true")
parser.add_argument("--halve", action="store_true")
def work(gpu, per_node, args):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if args.distributed and device.type == "cuda" and gpu is not None:
        args.batch_size = int(args.batch_size / per_node)
    if args.halve:
        args.batch_size //= 2
    for x in torch.utils.data.DataLoader(rows, batch_size=args.batch_size):
        torch.nn.parallel.DistributedDataParallel(model)(x).backward()
args = parser.parse_args()
args.distributed = args.spawns
if args.spawns:
    torch.multiprocessing.spawn(work, args=(torch.cuda.device_count(), args))
else:
    work(None, 1, args)
"""
STORED = "args.batch_size = 8\n"
PARSED, DEFAULT = "args = parser.parse_args()\n", "parser.set_defaults(batch_size=2)\n"
QUOTES = '[[ "$x" == \\"*\\" ]] && echo\n'
SFT = "torchrun -m verl.trainer.fsdp_sft_trainer data.micro_batch_size_per_gpu=2 model.lora_rank=8\n"
TWO = "#SBATCH --nodes=2\n#SBATCH --gres=gpu:4\nsrun "


@pytest.mark.parametrize(
    ("name", "text", "files", "plan"),
    [
        ("job.yaml", MANIFEST, {"src/train.py": f"from options import parser\n{OF_TRL}", "src/options.py": OPTIONS},
         {"library": "fsdp", "batch_size": 1, "sharding_strategy": "full_shard"}),
        ("cell.py", HYPERPOD, {}, {"library": "fsdp", "batch_size": 1, "sharding_strategy": "hybrid_shard"}),
        ("cell.py", COMMAND, {"src/train.py": SCRIPT}, {"library": "ddp", "batch_size": 2}),
        ("cell.py", BASES["model_trainer"], {"src/train.py": OPTIONS + OF_TRL.replace("scripts, training", "a, b")},
         {"activation_checkpointing": "each"}),
        ("cell.py", SHELL, {"src/train.py": SCRIPT, "src/run.sh": STARTED},
         {"library": "ddp", "batch_size": 8}),
        ("cell.py", CONFIGURED, {"train.py": OF_TRL, "run.yaml": RUN},
         {"library": "fsdp", "batch_size": 2, "activation_checkpointing": "each"}),
        ("cell.py", CONFIGURED.replace('"config":', '"per_device_train_batch_size": 7, "own":'),
         {"train.py": FROM_FILE, "run.yaml": RUN}, {"library": "fsdp", "batch_size": 2}),
        ("cell.py", REMOTE, {}, {"library": "fsdp", "batch_size": 2, "sharding_strategy": "full_shard"}),
        ("cell.py", WITH_OTHER_BATCH, {"train.py": OTHER_BATCH, "z.json": '{"zero_optimization": {"stage": 3}}'},
         {"library": "fsdp", "batch_size": 2, "sharding_strategy": "full_shard"}),
        ("cell.py", BASES["estimator"], {"train.py": LIGHTNING},
         {"library": "fsdp", "batch_size": 3, "sharding_strategy": "shard_grad_op", "precision": "bf16"}),
        ("cell.py", BASES["estimator"], {"train.py": PLUGIN},
         {"library": "fsdp", "batch_size": 5, "sharding_strategy": "shard_grad_op", "precision": "bf16"}),
        ("cell.py", BASES["estimator"], {"train.py": STARTER, "run.sh": INNER, "inner.py": SCRIPT},
         {"library": "ddp", "batch_size": 8}),
        ("job.sh", "#SBATCH -N 1\nsrun ./run.sh\n", {"run.sh": INNER, "inner.py": SCRIPT}, {"batch_size": 8}),
        ("cell.py", BASES["estimator"], {"train.py": LOADS, "run.json": '{"x": {"y": 3}, "again": true}'},
         {"batch_size": 3, "activation_checkpointing": "each"}),
        ("job.sh", f"{TWO}python main.py --spawns\n", {"main.py": IMAGENET}, {"batch_size": 64}),
        ("job.sh", f"{TWO}python main.py --spawns --halve -b 64\n", {"main.py": IMAGENET}, {"batch_size": 8}),
        ("job.sh", f"{TWO}python main.py -b 32\n", {"main.py": IMAGENET}, {"batch_size": 32}),
        ("job.sh", f"#!/bin/bash\n{QUOTES}accelerate launch --use_deepspeed train.py\n",
         {"train.py": PLUGIN.replace("stage=2", "stage=3, gradient_accumulation_steps=2")},
         {"sharding_strategy": "full_shard", "gradient_accumulation_steps": 2}),
        ("job.sh", f"{TWO}python main.py -b 64 --batch 32\n", {"main.py": IMAGENET}, {"batch_size": 32}),
        ("job.sh", f"{TWO}python main.py --batch 64 -b8\n", {"main.py": IMAGENET}, {"batch_size": 8}),
        ("job.sh", f"{TWO}python main.py -b 64 --halve\n", {"main.py": IMAGENET.replace("//= 2", "= 1")},
         {"batch_size": 1}),
        ("job.sh", f"{TWO}python main.py -b 64\n", {"main.py": IMAGENET.replace(PARSED, f"{PARSED}{STORED}")},
         {"batch_size": 8}),
        ("job.sh", f"{TWO}python main.py\n", {"main.py": IMAGENET.replace(PARSED, f"{DEFAULT}{PARSED}")},
         {"batch_size": 2}),
        ("cell.py", SHELL, {"src/train.py": SCRIPT, "src/run.sh": STARTED + STARTED.replace("8", "16 --fp16")},
         {"batch_size": 8, "precision": "bf16"}),
        ("cell.py", CONFIGURED, {"train.py": OF_TRL.replace("\nSFT", "\ntraining.per_device_train_batch_size = 5\nSFT"),
         "run.yaml": RUN}, {"batch_size": 5}),
        ("job.sh", f"{TWO}accelerate launch --multi_gpu train.py\n", {"train.py": UNUSED},
         {"library": "ddp", "gradient_accumulation_steps": 2}),
        ("job.sh", f"{TWO}accelerate launch --use_deepspeed --zero_stage 3 --gradient_accumulation_steps 8 train.py\n",
         {"train.py": UNUSED}, {"library": "fsdp", "gradient_accumulation_steps": 8}),
        ("job.sh", TWO + SFT, {}, {"library": "fsdp", "batch_size": 2, "gradient_accumulation_steps": 16}),
        ("job.sh", "#SBATCH --gres=gpu:1\npython train.py\n",
         {"train.py": LIGHTNING.replace("=strategy,", "=chosen(),")}, {"library": "ddp", "batch_size": 3}),
    ],
)  # fmt: skip
def test_the_plan_is_that_of_all_files_of_the_job(tmp_path: Path, name: str, text: str, files, plan) -> None:
    for path, content in ({name: text} | files).items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(content)
    report = check_estimator(tmp_path / name)
    assert report.plan is not None
    assert {key: getattr(report.plan, key) for key in plan} == plan


OTHERS = """
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, Trainer, TrainingArguments
reward = AutoModelForSequenceClassification.from_pretrained("distilbert-base-uncased")
model = AutoModelForCausalLM.from_pretrained("gpt2")
for parameter in reward.parameters():
    parameter.requires_grad = False
Trainer(model, TrainingArguments("o", per_device_train_batch_size=4), train_dataset=rows).train()
"""


def test_another_model_of_the_script_changes_nothing(tmp_path: Path) -> None:
    cell = BASES["estimator"].replace('"epochs": 3', '"model_name": "gpt2"')
    text = " ".join(checked(tmp_path, cell, OTHERS).readings[0].inferred)
    assert "'gpt2'" in text
    assert "freezes" not in text
    assert "Classification" not in text
    assert "freezes" in str(checked(tmp_path, cell, OTHERS.replace("reward.par", "model.par")))


def test_a_selector_and_an_affinity_that_differ_leave_the_instance_open() -> None:
    rules = "matchExpressions: [{key: node.kubernetes.io/instance-type, operator: In, values: [ml.p5.48xlarge]}]"
    within = f"requiredDuringSchedulingIgnoredDuringExecution: {{nodeSelectorTerms: [{{{rules}}}]}}"
    pod = "          containers:"
    both = MANIFEST.replace(pod, f"          affinity: {{nodeAffinity: {{{within}}}}}\n{pod}")
    assert "exclude each other" in str(check_estimator(both))
    assert check_estimator(both.replace("p4d.24", "p5.48")).cluster is not None


def test_a_job_that_can_be_interrupted_resumes(tmp_path: Path) -> None:
    spot = CELL.replace(
        "max_run=3600", 'max_run=3600, use_spot_instances=True, max_wait=7200, checkpoint_s3_uri="s3://b/c"'
    )
    right = SCRIPT.replace('os.environ["SM_MODEL_DIR"]', '"/opt/ml/checkpoints"')
    assert "EST515" in {finding.id for finding in checked(tmp_path, spot, right)}
    resumed = right.replace(".train()", ".train(resume_from_checkpoint=True)")
    assert "EST515" not in {finding.id for finding in checked(tmp_path, spot, resumed)}


CHOOSES = """
import argparse
import torch
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

parser = argparse.ArgumentParser()
parser.add_argument("--shard", type=int, default=1)
args, _ = parser.parse_known_args()
torch.distributed.init_process_group("nccl")
model = FullyShardedDataParallel(model) if args.shard else DistributedDataParallel(model)
for batch in DataLoader(rows, batch_size=4):
    model(batch).sum().backward()
"""
ITSELF = LIGHTNING.replace("strategy=strategy", 'strategy="ddp"')


@pytest.mark.parametrize(
    ("cell", "script", "library", "ids"),
    [
        (BASES["estimator"], CHOOSES, "fsdp", set()),
        (BASES["estimator"].replace('"epochs": 3', '"shard": 0'), CHOOSES, "ddp", set()),
        (BASES["estimator"], CHOOSES.replace("if args.shard", "if config.shard"), None, set()),
        (BASES["estimator"], LIGHTNING.replace("strategy=strategy", "strategy=config.name"), None, set()),
        (ALONE, ITSELF, "ddp", set()),
        (ALONE.replace("instance_count=1", "instance_count=2"), ITSELF, "ddp", {"EST511"}),
    ],
)
def test_the_strategy_is_that_of_the_branch_that_runs(tmp_path: Path, cell, script, library, ids) -> None:
    report = checked(tmp_path, cell, script)
    assert (report.plan.library if report.plan else None) == library
    assert {finding.id for finding in report if finding.id.startswith("EST5")} - {"EST506"} == ids


ADAPTS = """
from peft import LoraConfig
from transformers import AutoModelForSequenceClassification, Trainer, TrainingArguments
from trl import TrlParser
script, arguments = TrlParser((Options, TrainingArguments)).parse_args_and_config()
model = AutoModelForSequenceClassification.from_pretrained(script.model_path)
for parameter in model.parameters():
    parameter.requires_grad = False
config = LoraConfig(r=script.lora_r) if script.enable_lora else None
Trainer(model, arguments, peft_config=config).train()
"""
CLASSIFIES = """
from sagemaker.huggingface import HuggingFace
HuggingFace(entry_point="train.py", role="r", instance_type="ml.p3.2xlarge", instance_count=1, py_version="py38",
    transformers_version="4.12", pytorch_version="1.9", hyperparameters={"per_device_train_batch_size": 2,
    "enable_lora": SWITCH, "lora_r": 8, "model_path": "/models/distilbert-base-uncased"})
"""


@pytest.mark.parametrize("adapts", [True, False])
def test_a_switch_decides_on_the_adapter_and_a_classifier_has_no_vocabulary(tmp_path: Path, adapts) -> None:
    report = checked(tmp_path, CLASSIFIES.replace("SWITCH", str(adapts)), ADAPTS)
    job, model, inferred = report.job, report.model, " ".join(report.readings[0].inferred)
    assert ((job.adapter is not None), "freezes a part" in inferred) == (adapts, not adapts)
    assert (model.head.kind, report.plan.version, report.main.estimate is None) == ("classification", "1.13.1", False)
    assert (job.attention, job.sequence_length) == ("eager", 512)


def test_a_script_that_no_python_reads_is_an_error_and_no_silence(tmp_path: Path) -> None:
    report = checked(tmp_path, BASES["estimator"], "def train():\nprint(1)\n")
    assert "train.py, line 2: expected an indented block" in report.of("error")[0].message
    assert "no script was read" in str(report)
