"""Shell scripts as jobs: batch files of Slurm, variables that are filled in, and other forms by their names."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from smp_advisor import check_estimator
from smp_advisor.errors import AdvisorError
from smp_advisor.review.reading.commands import commands_of

if TYPE_CHECKING:
    from pathlib import Path

BATCH = """#!/bin/bash
#SBATCH --nodes=4 # of one kind
#SBATCH --gres=gpu:8
GPUS=8   # per node
if [ -n "$IMAGE" ]; then
    export SCRIPT=/image/other.py
fi
export SCRIPT=${SCRIPT:=../src/train.py}
declare -a LAUNCH=(
    --nproc_per_node=$GPUS
    --nnodes=$SLURM_JOB_NUM_NODES
)
ARGS="--train_batch_size 2 \\
  --max_seq_length 4096"
srun -l torchrun "${LAUNCH[@]}" $SCRIPT $ARGS
"""
SCRIPT = """
import argparse
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from transformers import AutoModelForCausalLM
import torch
parser = argparse.ArgumentParser()
parser.add_argument("--train_batch_size", type=int)
parser.add_argument("--max_seq_length", type=int)
args = parser.parse_args()
model = FSDP(AutoModelForCausalLM.from_pretrained("meta-llama/Llama-3.1-8B", torch_dtype=torch.bfloat16))
loader = torch.utils.data.DataLoader(rows, batch_size=args.train_batch_size, collate_fn=cut(args.max_seq_length))
for batch in loader:
    model(**batch).loss.backward()
"""


def test_a_batch_file_is_a_job_with_its_script(tmp_path: Path) -> None:
    for folder in ("slurm", "src"):
        (tmp_path / folder).mkdir()
    (tmp_path / "src" / "train.py").write_text(SCRIPT)
    (tmp_path / "slurm" / "job.sbatch").write_text(BATCH)
    reading = check_estimator(tmp_path / "slurm" / "job.sbatch", cluster="ml.p5.48xlarge").readings[0]
    assert reading.plan is not None
    assert (reading.plan.library, reading.plan.batch_size) == ("fsdp", 2)
    assert reading.job is not None
    assert (reading.job.sequence_length, reading.job.state_precision) == (4096, "16-bit")
    assert reading.cluster is not None
    assert reading.cluster.nodes == 4
    alone = check_estimator(tmp_path / "slurm" / "job.sbatch")
    assert "names no instance" in alone.verdict.sentence
    for cast in (".float()", ".to(dtype=torch.float32)"):
        (tmp_path / "src" / "train.py").write_text(SCRIPT.replace("torch.bfloat16)", f"torch.bfloat16){cast}"))
        full = check_estimator(tmp_path / "slurm" / "job.sbatch", cluster="ml.p5.48xlarge").readings[0].job
        assert getattr(full, "state_precision", "") == "mixed"


@pytest.mark.parametrize(
    ("head", "options", "nodes", "strategy"),
    [
        ("-N4\n#SBATCH --gres=gpu:8,nvme:1", "--fsdp full_shard", 4, "fsdp"),
        ("-n 32 --ntasks-per-node=8", "--fsdp full_shard --gradient_checkpointing > log 2>&1 &", 4, "fsdp"),
        ("--nodes=4 --gpus-per-node=a100:8", '--fsdp "full_shard offload" | tee log', 4, "fsdp"),
    ],
)
def test_options_of_slurm_and_quoted_values(tmp_path, head, options, nodes, strategy) -> None:
    (tmp_path / "train.py").write_text(
        "from transformers import HfArgumentParser, Trainer, TrainingArguments, AutoModelForCausalLM as M\n"
        "Trainer(M.from_pretrained('gpt2'), *HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()).train()"
    )
    run = "srun torchrun --nproc_per_node=$SLURM_GPUS_ON_NODE train.py --bf16 True --per_device_train_batch_size 1"
    (tmp_path / "job.sbatch").write_text(f"#!/bin/bash\n#SBATCH {head}\n{run} {options}\n")
    report = check_estimator(tmp_path / "job.sbatch", cluster="ml.p5.48xlarge")
    plan, cluster = report.readings[0].plan, report.readings[0].cluster
    assert (cluster.nodes, plan and plan.library, report.of("error")) == (nodes, strategy, [])
    assert plan is None or (plan.activation_checkpointing == "each") == ("gradient" in options)


@pytest.mark.parametrize("own", ["", "--ntasks-per-node=1", "--tasks-per-node=1", "-n 2", "--gpus-per-task=8"])
def test_processes_that_each_task_starts_again(tmp_path, own) -> None:
    text = f"#!/bin/bash\n#SBATCH --nodes=2 --ntasks-per-node=8\nsrun {own} torchrun --nproc_per_node=8 train.py\n"
    (tmp_path / "job.sbatch").write_text(text)
    assert [f.id for f in check_estimator(tmp_path / "job.sbatch") if f.severity == "error"] == ["EST511"] * (not own)


@pytest.mark.parametrize("start", ["main, nprocs=8", "main, nprocs=1", "words, nprocs=8"])
@pytest.mark.parametrize(("distribution", "twice"), [("{'torch_distributed': {'enabled': True}}", True), ("{}", False)])
def test_spawn_in_each_process_of_torchrun(tmp_path, distribution, twice, start) -> None:
    script = "import torch.multiprocessing as mp\nfrom train import main\ndef words(number):\n    print(number)\n"
    script += f"mp.spawn({start})\n"
    (tmp_path / "start.py").write_text(f"{script}loss.backward()\n")
    cell = f"from sagemaker.pytorch import PyTorch\nPyTorch(entry_point='start.py', distribution={distribution},"
    cell += (
        " role='r', instance_type='ml.p4d.24xlarge', instance_count=1, framework_version='2.8.0', py_version='py312')\n"
    )
    (tmp_path / "cell.py").write_text(cell)
    messages = [finding.message for finding in check_estimator(tmp_path / "cell.py")]
    found = any(message.startswith("The launcher starts a process per GPU") for message in messages)
    assert found == (twice and start == "main, nprocs=8"), messages


FLOW = """A="x y"
if true; then
B=1
fi
cat <<E
not
E
run $A $B ${C:-d} $E $((2 * 4)) 'a b'
"""


def test_variables_are_filled_in() -> None:
    words = commands_of(BATCH, SLURM_JOB_NUM_NODES="4")[-1]
    assert " ".join(words[2:6]) == "torchrun --nproc_per_node=8 --nnodes=4 ../src/train.py"
    assert words[6:] == ["--train_batch_size", "2", "--max_seq_length", "4096"]
    lines = [" ".join(words) for words in commands_of(FLOW)]
    assert lines == ["if true; then", "fi", "cat <<E", "run x y 1 d $E 8 a b"]


@pytest.mark.parametrize(
    ("text", "run"),
    [
        ("A=(--b 1)\nA+=(--c 2)", "--b 1 --c 2"),
        ('A="--b 1"\nA+=" --c 2"', "--b 1 --c 2"),
        ('A="--b 1"\nif x; then\n  A+=" --c 2"\nfi', "--b 1 --c=$()"),
        ('A="--b 1"\nif x; then A+=" --c 2"; fi\nA+=" --d 3"', "--b 1 --c=$() --d 3"),
        ('A="--b 1"\n[ -n "$X" ] && A+=" --c 2"', "--b 1 --c=$()"),
        ('if x; then\n  A+=" --b 1"\nelse\n  A+=" --c 2"\nfi', "--b=$() --c=$()"),
        ('if x; then\n  A="--b 1"\nelse\n  A="--b 2"\nfi', "$()"),
        ("A=\"--b '1 # 2' --c 3\" # no", "--b 1 # 2 --c 3"),
    ],
)
def test_what_is_added_to_a_variable(text: str, run: str) -> None:
    assert " ".join(commands_of(f"{text}\nrun $A")[-1]) == f"run {run}"


def test_options_of_a_branch_choose_nothing(tmp_path: Path) -> None:
    text = '#SBATCH --nodes=1\nA="--bf16 True"\nif x; then\n  A+=" --{} 4"\nfi\n'
    text += "srun torchrun --nproc_per_node=8 train.py $A --fsdp full_shard\n"
    (tmp_path / "train.py").write_text(PARSED.format(parse="parse_args_into_dataclasses()"))
    batches = []
    for name in ("per_device_train_batch_size", "seed"):
        (tmp_path / "job.sh").write_text(text.format(name))
        plan = check_estimator(tmp_path / "job.sh", cluster="ml.p5.48xlarge").readings[0].plan
        batches.append((plan.precision, plan.batch_size) if plan is not None else None)
    assert batches == [None, ("bf16", 8)]


ENVIRONMENT = """import os
model_id = "Qwen/Qwen3-0.6B"
os.environ["MODEL"] = model_id
"""
ARGUMENTS = """%%bash
cat > args.yaml <<EOF
model_id: "${MODEL}"
per_device_train_batch_size: 4
bf16: true
lora_target_modules: ["q_proj", "v_proj"]
use_peft: true
optim: paged_adamw_8bit
EOF"""
TRAINER = """from sagemaker.train import ModelTrainer
from sagemaker.train.configs import Compute, SourceCode
compute = Compute(instance_type="ml.g5.2xlarge", instance_count=1)
code, settings = SourceCode(entry_script="train.py"), {"config": "args.yaml"}
ModelTrainer(training_image="i", compute=compute, source_code=code, hyperparameters=settings).train()
"""


def test_cells_of_a_shell_get_the_environment_of_the_notebook(tmp_path: Path) -> None:
    cells = (ENVIRONMENT, ARGUMENTS, TRAINER)
    listed = [{"cell_type": "code", "source": cell, "metadata": {}, "outputs": []} for cell in cells]
    (tmp_path / "a.ipynb").write_text(json.dumps({"cells": listed, "nbformat": 4, "metadata": {}}))
    (tmp_path / "train.py").write_text("from trl import SFTTrainer\nSFTTrainer(model, args=args).train()\n")
    reading = check_estimator(tmp_path / "a.ipynb").readings[0]
    assert "Qwen/Qwen3-0.6B" in " ".join(reading.inferred)
    assert reading.job is not None
    assert reading.job.adapter is not None
    assert (reading.job.adapter.targets, reading.job.optimizer) == ("query-value", "adam-8bit")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('JumpStartEstimator(model_id="m").fit()', "JumpStart"),
        ("with RemoteExecutor(max_parallel_jobs=2) as executor:\n    executor.submit(f)", "RemoteExecutor"),
        ('SKLearn(entry_point="a.py").fit()', "PyTorch and TensorFlow"),
        ("#!/bin/bash\n#SBATCH --nodes=2\nsrun hostname", "Slurm job"),
        ("#!/bin/sh\necho a", "shell script"),
        ("#!/bin/sh\nhyp create hyp-pytorch-job --job-name a", "manifest or recipe"),
        ("#!/bin/sh\npython3 main.py recipes=training/llama/a", "YAML of the recipe"),
        ('HEADER = "#SBATCH --nodes=2"\nSKLearn(entry_point="a.py")', "PyTorch and TensorFlow"),
        ("apiVersion: v1\nkind: Pod\n", "a Kubernetes manifest of kind 'Pod'"),
        ("defaults: [base, _self_]\ncallbacks: []\nresume: {a: 1}\n", "configuration, which only changes base"),
        ("defaults: [_self_]\nmodel: {micro_batch_size: 1}\n", "a configuration of Hydra"),
        ("num_layers: 2\nhidden_size: 64\n", "the configuration of a model alone"),
    ],
)
def test_other_forms_are_named(text: str, said: str) -> None:
    with pytest.raises(AdvisorError, match=said):
        check_estimator(text)


def test_a_second_start_of_a_batch_file_is_named(tmp_path: Path) -> None:
    for again, said in (
        ("b.py", "b.py is not known: the Slurm job starts it as well"),
        ("a.py", "it again with other"),
    ):
        text = f"#!/bin/bash\n#SBATCH --nodes=1\ntorchrun a.py\nsrun torchrun {again} --rows 3\n"
        (tmp_path / "job.sh").write_text(text)
        notes = [note.what for note in check_estimator(tmp_path / "job.sh").unresolved]
        assert any(said in note for note in notes), notes


def test_the_script_of_an_estimator_is_its_first_argument() -> None:
    cell = "from sagemaker.pytorch import PyTorch\nPyTorch('a.py', '2.8.0', 'py312', role='r', {}).fit()\n"
    report = check_estimator(cell.format("instance_type='ml.p4d.24xlarge', instance_count=1"))
    assert [finding.id for finding in report] == ["EST511"]


def test_variables_of_a_container_choose_and_templates_are_no_instances(tmp_path: Path) -> None:
    names = '[{name: text, value: "1"}, {name: ACCELERATE_USE_FSDP, value: "true"}]'
    pod = f"containers: [{{command: [accelerate, launch, /x/train.py, --train_batch_size, 4], env: {names}}}]"
    pod = f"{{spec: {{nodeSelector: {{node.kubernetes.io/instance-type: <KIND>}}, {pod}}}}}"
    text = f"apiVersion: v1\nkind: PyTorchJob\nspec: {{pytorchReplicaSpecs: {{Worker: {{template: {pod}}}}}}}\n"
    (tmp_path / "job.yaml.example").write_text(text)
    report = check_estimator(tmp_path / "job.yaml.example")
    assert (list(report), report.readings[0].plan.library) == ([], "fsdp")


EXPORTS = """#!/bin/sh
export ACCELERATE_USE_FSDP=true
export FSDP_SHARDING_STRATEGY='SHARD_GRAD_OP'
accelerate launch src/train.py --per_device_train_batch_size 3 --bf16
"""
PREPARED = """#!/bin/sh
bash -c 'python prepare.py --per_device_train_batch_size 9 && torchrun src/train.py --fsdp full_shard \\
  --per_device_train_batch_size 3 --bf16'
"""
LAUNCHED = """
import argparse
import deepspeed
from transformers import AutoModelForCausalLM, HfArgumentParser, Trainer, TrainingArguments

def train(stage, batch):
    model = AutoModelForCausalLM.from_pretrained("facebook/opt-125m")
    config = {"train_micro_batch_size_per_gpu": batch, "bf16": {"enabled": True}, "zero_optimization": {"stage": stage}}
    engine, *_ = deepspeed.initialize(model=model, config_params=config)
    engine.backward(engine(rows).loss)

parser = argparse.ArgumentParser()
parser.add_argument("--stage", type=int, default=0)
parser.add_argument("--batch-size", type=int, default=1)
args, _ = parser.parse_known_args()
train(args.stage, args.batch_size)
"""
PARSED = """
from transformers import AutoModelForCausalLM, HfArgumentParser, Trainer, TrainingArguments
(arguments,) = HfArgumentParser(TrainingArguments).{parse}
trainer = Trainer(model=AutoModelForCausalLM.from_pretrained("facebook/opt-125m"), args=arguments, train_dataset=rows)
trainer.train()
"""
SECTIONS = "training:\n  per_device_train_batch_size: 3\n  bf16: true\nfsdp: full_shard auto_wrap\n"
ACCELERATE = """#SBATCH --nodes=2
export LAUNCHER="accelerate launch \\
    --num_machines $SLURM_NNODES --mixed_precision bf16 {options}"
export ARGS=" --config_name "facebook/opt-125m" \\
    --per_device_train_batch_size 3"
export CMD="$LAUNCHER /fsx/train.py $ARGS"
srun $CMD
"""
OF_OPTIONS = PARSED.format(parse="parse_args_into_dataclasses()")
ROOTED = """#SBATCH --nodes=2
ROOT="$(cd "$SLURM_SUBMIT_DIR/.." && pwd)"
srun torchrun --nproc_per_node 8 {script}
"""


@pytest.mark.parametrize(
    ("batch_file", "script", "expected"),
    [
        (EXPORTS, OF_OPTIONS, ("fsdp", "shard_grad_op", 3)),
        (PREPARED, OF_OPTIONS, ("fsdp", "full_shard", 3)),
        (ACCELERATE.format(options="--use_fsdp --fsdp_sharding_strategy 4"), OF_OPTIONS, ("fsdp", "hybrid_shard", 3)),
        (ACCELERATE.format(options="--use_deepspeed --zero_stage 3"), OF_OPTIONS, ("fsdp", "full_shard", 3)),
        (ROOTED.format(script="$ROOT/src/train.py --config $ROOT/configs/args.yaml"), OF_OPTIONS,
         ("fsdp", "full_shard", 3)),
        (ROOTED.format(script='$(dirname "$PWD")/src/train.py'),
         PARSED.format(parse="parse_yaml_file('args.yaml')"), ("fsdp", "full_shard", 3)),
        (ROOTED.format(script="/image/train.py --enable_fsdp --batch_size_training=3"), "", ("fsdp", "full_shard", 3)),
        ("#!/bin/sh\nssh host 'cd job && deepspeed --hostfile hosts src/train.py --stage=2 --batch-size=3'\n",
         LAUNCHED, ("fsdp", "shard_grad_op", 3)),
    ],
)  # fmt: skip
def test_a_strategy_arrives_from_where_a_job_has_it(
    tmp_path: Path, batch_file: str, script: str, expected: tuple[str, str, int]
) -> None:
    for folder, name, text in (
        ("slurm", "job.sh", batch_file), ("src", "train.py", script), ("configs", "args.yaml", SECTIONS),
        ("src", "args.yaml", SECTIONS),
    ):  # fmt: skip
        (tmp_path / folder).mkdir(exist_ok=True)
        if text:
            (tmp_path / folder / name).write_text(text)
    report = check_estimator(tmp_path / "slurm" / "job.sh", cluster="ml.p5.48xlarge")
    plan = report.readings[0].plan
    assert plan is not None, report.readings[0].open
    assert (plan.library, plan.sharding_strategy, plan.batch_size, plan.precision) == (*expected, "bf16")
    assert not [finding.message for finding in report if finding.id == "EST513"]


TEMPLATE = """apiVersion: kubeflow.org/v1
kind: PyTorchJob
spec:
  pytorchReplicaSpecs:
    Worker:
      replicas: ${NODES}
      template:
        spec:
          nodeSelector: {node.kubernetes.io/instance-type: "${INSTANCE_TYPE}"}
          containers:
            - image: %s
              env: [{name: ENTRY, value: /opt/train.py}, {name: OPTIONS, value: --fsdp=full_shard}]
              command: [bash, -c, 'torchrun --nproc_per_node 8 ${ENTRY} $(OPTIONS) --train_batch_size 3']
"""


def test_a_template_of_a_manifest_has_variables_and_no_unknown_instance(tmp_path: Path) -> None:
    file = tmp_path / "train.yaml.template"
    file.write_text(TEMPLATE % "pytorch-training")
    report = check_estimator(file)
    assert not list(report)
    assert report.readings[0].plan is not None
    assert report.readings[0].plan.batch_size == 3
    file.write_text(TEMPLATE % "pytorch-training-neuronx")
    assert "Trainium" in str(check_estimator(file).readings[0].open)
