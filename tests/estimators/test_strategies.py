"""Jobs without SageMaker's libraries: their strategy is read, or honestly unknown; recipes of every kind."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smp_advisor import check_estimator
from smp_advisor.errors import AdvisorError
from tests.estimators.cells import written

ESTIMATOR = """
from sagemaker.huggingface import HuggingFace

estimator = HuggingFace(
    entry_point="train.py",
    source_dir="scripts",
    instance_type="{instance}",
    instance_count={count},
    transformers_version="4.56.2",
    pytorch_version="2.8.0",
    py_version="py312",
    hyperparameters={hyperparameters},
    {more}
)
"""
TORCHRUN = 'distribution={"torch_distributed": {"enabled": True}},'
MODEL = {"model_id": "meta-llama/Llama-2-7b-hf", "per_device_train_batch_size": 2, "bf16": True}


def job(hyperparameters=None, more=TORCHRUN, *, instance="ml.p4d.24xlarge", count=2):
    settings = {**MODEL, **(hyperparameters or {})}
    return ESTIMATOR.format(instance=instance, count=count, hyperparameters=repr(settings), more=more)


def reading(text):
    return check_estimator(text).readings[0]


@pytest.fixture
def beside(tmp_path):
    """Read a text in a file next to its script and other files."""

    def read(text, code="", folder="scripts", **files):
        for name, content in {f"{folder}/train.py": code, "launch.py": text, **files}.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(content)
        return reading(tmp_path / "launch.py")

    return read


@pytest.mark.parametrize(
    ("option", "sharding", "checkpointing"),
    [
        ("full_shard auto_wrap", "full_shard", "gradient_checkpointing"),
        ('"full_shard auto_wrap"', "full_shard", "activation_checkpointing"),
        ("shard_grad_op", "shard_grad_op", "gradient_checkpointing"),
        ("hybrid_shard auto_wrap", "hybrid_shard", "gradient_checkpointing"),
    ],
)
def test_fsdp_of_the_trainer(option, sharding, checkpointing):
    job_read = reading(job({"fsdp": option, checkpointing: True}))
    assert (job_read.plan.library, job_read.plan.sharding_strategy) == ("fsdp", sharding)
    assert (job_read.plan.batch_size, job_read.plan.precision) == (2, "bf16")
    assert job_read.plan.activation_checkpointing == "each"
    assert job_read.estimate is not None
    assert "by its name 'meta-llama/Llama-2-7b-hf'" in " ".join(job_read.inferred)
    assert reading(job({"fsdp": option, "lora_r": 8, "quantization_bit": 4})).job.adapter.base_bits == 4


@pytest.mark.parametrize(
    ("hyperparameters", "more", "words"),
    [
        ({"fsdp": "diagonal"}, TORCHRUN, "'diagonal' is none of PyTorch's"),
        ({"deepspeed": {"zero_optimization": {"stage": "x"}}}, TORCHRUN, "its stage is not known"),
        ({"deepspeed": {"zero_optimization": {"stage": 1}}}, TORCHRUN, "ZeRO-1 has no plan: no library here"),
        ({"deepspeed": "configs/z3.json"}, TORCHRUN, "in the file 'configs/z3.json'"),
        ({}, TORCHRUN, "strategy is unknown, so there is no plan"),
        ({"config": "/opt/ml/input/data/config/x.yaml"}, TORCHRUN, "put that file next to"),
        ({}, "", "One process has no plan: it has 16 GPUs and no launcher"),
    ],
)
def test_no_plan_instead_of_a_guess(hyperparameters, more, words):
    job_read = reading(job(hyperparameters, more))
    assert job_read.plan is None
    assert words in " ".join(job_read.open), job_read.open


@pytest.mark.parametrize(
    ("option", "library"),
    [
        ({"fsdp": "full_shard offload"}, "fsdp"),
        ({"fsdp": "no_shard offload"}, "ddp"),
        ({"deepspeed": {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}}}, "fsdp"),
    ],
)
def test_offloading_to_the_host_has_a_plan_and_no_verdict(option, library):
    job_read = reading(job(option))
    assert (job_read.plan.library, job_read.estimate) == (library, None)
    assert job_read.plan.sharding_strategy == ("full_shard" if library == "fsdp" else "")
    assert "state in host memory, which no plan describes." in " ".join(job_read.open)


@pytest.mark.parametrize(("stage", "sharding"), [(2, "shard_grad_op"), (3, "full_shard")])
def test_zero_is_estimated_as_fsdp_and_says_so(stage, sharding):
    job_read = reading(job({"deepspeed": {"zero_optimization": {"stage": stage}}}))
    assert job_read.plan.sharding_strategy == sharding
    assert f"DeepSpeed ZeRO-{stage} is estimated as FSDP with {sharding}" in " ".join(job_read.inferred)
    alone = reading(json.dumps({"zero_optimization": {"stage": stage}, "train_micro_batch_size_per_gpu": 4}))
    assert (alone.plan.sharding_strategy, alone.plan.batch_size) == (sharding, 4)


@pytest.mark.parametrize(
    ("environment", "sharding"),
    [
        ({"FSDP_SHARDING_STRATEGY": "HYBRID_SHARD"}, "hybrid_shard"),
        ({"FSDP_SHARDING_STRATEGY": "2"}, "shard_grad_op"),
        ({}, "full_shard"),
        ({"FSDP_VERSION": "2", "FSDP_RESHARD_AFTER_FORWARD": "false"}, "shard_grad_op"),
    ],
)
def test_accelerate_in_the_environment(environment, sharding):
    job_read = reading(job(more=f"{TORCHRUN} environment={ {'ACCELERATE_USE_FSDP': '1', **environment}!r},"))
    assert (job_read.plan.library, job_read.plan.sharding_strategy) == ("fsdp", sharding)


@pytest.mark.parametrize(
    "environment", [{"USE_FSDP": "true"}, {"MULTI_GPU": "1"}, {"USE_DEEPSPEED": "1", "ZERO_STAGE": "3"}, {1: "true"}]
)
@pytest.mark.parametrize("name", ["DDP", "FSDP"])
def test_own_variables_of_a_job_choose_no_strategy(beside, environment, name):
    plan = beside(job(more=f"{TORCHRUN} environment={environment!r},"), SCRIPTS[name][0]).plan
    assert (plan.library, plan.sharding_strategy or None) == (name.lower(), SCRIPTS[name][1])


@pytest.mark.parametrize(
    ("text", "library"),
    [
        ("distributed_type: MULTI_GPU\ndeepspeed_config: {deepspeed_config_file: a.json}\n", "ddp"),
        ("distributed_type: DEEPSPEED\ndeepspeed_config: {deepspeed_config_file: a.json}\n", None),
        ("distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 3, offload_optimizer_device: cpu}\n",
         "fsdp"),
        ("distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 3, offload_optimizer_device: [cpu]}\n",
         "fsdp"),
    ],
)  # fmt: skip
def test_a_file_of_accelerate_is_read_for_its_kind_alone(beside, text, library):
    alone = reading(f"{text}num_processes: 8\n")
    assert getattr(alone.plan, "library", None) == library
    launch = "accelerate launch --config_file a.yaml train.py --per_device_train_batch_size 1 --bf16 True"
    files = {"code/a.yaml": text, "code/train.py": SCRIPTS["Trainer"][0]}
    command = TRAINER.replace("""f"bash start.sh {' '.join(args)}\"""", repr(launch))
    started = beside(command, **files)
    assert getattr(started.plan, "library", None) == library


@pytest.mark.parametrize(
    "resources", ["{limits: , requests: {nvidia.com/gpu: 8}}", "{limits: [1], requests: {nvidia.com/gpu: 8}}"]
)
def test_resources_of_a_container_without_limits(resources):
    command = "[torchrun, /x/train.py, --fsdp, full_shard, --train_batch_size, 4]"
    pod = f"containers: [{{command: {command}, resources: {resources}}}]"
    text = f"kind: PyTorchJob\nspec: {{pytorchReplicaSpecs: {{Worker: {{template: {{spec: {{{pod}}}}}}}}}}}\n"
    assert reading(f"apiVersion: v1\n{text}").plan.library == "fsdp"


def test_data_parallel_jobs_are_ddp():
    for distribution in ({"smdistributed": {"dataparallel": {"enabled": True}}}, {"pytorchddp": {"enabled": True}}):
        assert reading(job(more=f"distribution={distribution!r},")).plan.library == "ddp"


def test_a_job_on_one_gpu_is_a_single_replica_if_its_script_may_train(beside):
    text = job({"gradient-accumulation-steps": 8}, more="", instance="ml.g5.2xlarge", count=1)
    plan = reading(text).plan
    assert (plan.library, plan.gradient_accumulation_steps) == ("ddp", 8)
    assert "EST511" not in {found.id for found in check_estimator(text)}
    local = reading(job(more="", instance="local_gpu", count=1))
    assert "No cluster: local_gpu runs the job on this machine." in local.open
    assert beside(text, "import subprocess\nsubprocess.run(['tune', 'run', 'generate'])\n").plan is None


ACCELERATE = """
distributed_type: FSDP
mixed_precision: bf16
num_machines: 2
num_processes: 16
fsdp_config:
  fsdp_sharding_strategy: SHARD_GRAD_OP
  fsdp_activation_checkpointing: true
"""


def test_accelerate_s_configuration():
    plan = reading(ACCELERATE).plan
    assert (plan.sharding_strategy, plan.precision, plan.activation_checkpointing) == ("shard_grad_op", "bf16", "each")
    two = ACCELERATE.replace(
        "fsdp_sharding_strategy: SHARD_GRAD_OP", "fsdp_version: 2\n  fsdp_reshard_after_forward: true"
    )
    assert reading(two).plan.sharding_strategy == "full_shard"
    zero_3 = "distributed_type: DEEPSPEED\nnum_processes: 8\ndeepspeed_config:\n  zero_stage: 3\n"
    assert reading(zero_3).plan.sharding_strategy == "full_shard"
    assert reading("distributed_type: MULTI_GPU\nnum_processes: 8\n").plan.library == "ddp"
    assert "MEGATRON_LM has no plan" in reading("distributed_type: MEGATRON_LM\nnum_processes: 8\n").open[0]


SCRIPTS = {
    "FSDP2": ("from torch.distributed.fsdp import fully_shard\nfully_shard(model)\n", "full_shard"),
    "FSDP": (
        """from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy
model = FSDP(model, sharding_strategy=ShardingStrategy.HYBRID_SHARD)
""",
        "hybrid_shard",
    ),
    "Trainer": (
        """from transformers import HfArgumentParser, Trainer, TrainingArguments
(arguments,) = HfArgumentParser((TrainingArguments,)).parse_args_into_dataclasses()
Trainer(model, arguments).train()
""",
        None,
    ),
    "DDP": ("from torch.nn.parallel import DistributedDataParallel as DDP\nmodel = DDP(model)\n", None),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_script_next_to_the_text_decides(beside, name):
    code, sharding = SCRIPTS[name]
    job_read = beside(job(), code)
    assert (getattr(job_read.plan, "sharding_strategy", None) or None) == sharding
    assert job_read.plan.library == ("fsdp" if sharding else "ddp")


@pytest.mark.parametrize(
    ("base", "upcast"),
    [("prepare_model_for_kbit_training(model)", True), ("load(BitsAndBytesConfig(load_in_4bit=True))", False)],
)
def test_qlora_in_the_script_is_an_adapter_over_four_bits(beside, base, upcast):
    code = "from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training\n"
    job_read = beside(job({"fsdp": "full_shard"}), f"{code}model = get_peft_model({base}, LoraConfig(r=64))\n")
    adapter = job_read.job.adapter
    assert (adapter.rank, adapter.base_bits, adapter.upcast) == (64, 4, upcast)
    assert job_read.plan.activation_checkpointing == ("each" if upcast else False)  # PEFT's default


TRAINER = """
from sagemaker.modules.configs import Compute, SourceCode
from sagemaker.modules.train import ModelTrainer

args = ["--config", "recipes/sft.yaml"]
trainer = ModelTrainer(
    training_image="763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-training:2.7.1-gpu-py312-cu128-ubuntu22.04-sagemaker",
    source_code=SourceCode(source_dir="code", command=f"bash start.sh {' '.join(args)}"),
    compute=Compute(instance_type="ml.p4d.24xlarge", instance_count=1),
)
"""
START = """set -e
ACCELERATE_CONFIG="${SCRIPT_DIR}/configs/sharded.yaml"
TRAINING_SCRIPT="${SCRIPT_DIR}/sft.py"
accelerate launch --config_file "$ACCELERATE_CONFIG" "$TRAINING_SCRIPT" --config "$1"
"""


def test_the_command_of_a_model_trainer_is_read_to_its_files(beside, tmp_path):
    files = {
        "code/start.sh": START,
        "code/configs/sharded.yaml": "distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 3}\n",
        "code/recipes/sft.yaml": "model_name_or_path: meta-llama/Llama-2-7b-hf\nbf16: true\nmax_length: 4096\n"
        "per_device_train_batch_size: 3\n",
        "code/sft.py": "from transformers import Trainer\nmodel.activation_checkpointing_enable()\nTrainer().train()\n",
    }
    job_read = beside(TRAINER, **files)
    assert (job_read.plan.library, job_read.plan.batch_size, job_read.plan.precision) == ("fsdp", 3, "bf16")
    assert job_read.plan.activation_checkpointing == "each"
    assert job_read.job.sequence_length == 4096
    (tmp_path / "code/configs/sharded.yaml").write_text("distributed_type: MULTI_GPU\n")
    assert reading(tmp_path / "launch.py").plan.library == "ddp"
    assert "EST513" not in {finding.id for finding in check_estimator(tmp_path / "launch.py")}
    (tmp_path / "code/recipes/sft.yaml").unlink()
    (tmp_path / "code/configs/sharded.yaml").unlink()
    missing = check_estimator(tmp_path / "launch.py")
    assert missing.readings[0].plan is None
    assert "put that file next to" in missing.readings[0].open[0]
    found = [finding.message.partition(": ") for finding in missing if finding.id == "EST513"]
    assert {named.partition(",")[0]: unread for named, _, unread in found} == {
        "start.sh names configs/sharded.yaml": "the strategy and the precision that accelerate launches are not known.",
        "command names recipes/sft.yaml": "the batch, sequence length and precision in it are not known.",
    }


@pytest.mark.parametrize(
    ("name", "hyperparameters", "unread"),
    [
        ("train.py", {}, "the strategy and the settings in its code"),
        ("ds.json", {"deepspeed": "ds.json"}, "the ZeRO stage, offloading, batch and precision"),
        ("sft.yaml", {"config": "sft.yaml"}, "the batch, sequence length and precision in it"),
    ],
)
def test_a_file_that_is_named_and_missing_is_a_finding(tmp_path, name, hyperparameters, unread):
    def found(text):
        (tmp_path / "launch.py").write_text(text)
        messages = [finding.message for finding in check_estimator(tmp_path / "launch.py") if finding.id == "EST513"]
        return next((message for message in messages if f" names {name}, " in message), "")

    text = job(hyperparameters, TORCHRUN)
    assert found(text).endswith(f": {unread} are not known.")
    assert not [finding for finding in check_estimator(text) if finding.id == "EST513"], "pasted text has no folder"
    assert not found(f"import os\nos.system('git clone https://host/recipes')\n{text}")
    for argument in (
        "git_config={'repo': 'https://host'}",
        "source_dir='s3://bucket/code.tar.gz'",
        "source_dir=made()",
    ):
        assert not found(text.replace('source_dir="scripts"', argument))
    place = tmp_path / "scripts" / name if name.endswith(".py") else tmp_path / name
    place.parent.mkdir(exist_ok=True)
    place.write_text("")
    assert not found(text)


FINE_TUNING = """
run:
  model_type: llm_finetuning_aws
  name: llama-2-7b
instance_types: [ml.g5.12xlarge, ml.p5.48xlarge, ml.p4d.24xlarge]
trainer:
  devices: 8
  num_nodes: 1
training_config:
  model_config:
    model_name_or_path: meta-llama/Llama-2-7b-hf
    peft_config:
      peft_type: lora
      r: 16
      target_modules: all-linear
  training_args:
    gradient_checkpointing: true
    max_len: 4096
    micro_train_batch_size: 2
    train_batch_size: 128
    strategy:
      fsdp_config:
        cpu_offload: false
        sharding_strategy: FULL_SHARD
    trainer_type: sft
"""
VERL = """
run:
  model_type: verl
  name: verl-sft-llama
instance_types: [ml.p5.48xlarge]
trainer:
  devices: 8
  num_nodes: 2
training_config:
  data:
    max_length: 4096
    max_token_len_per_gpu: 16384
    train_batch_size: 128
    use_dynamic_bsz: true
  engine:
    fsdp_size: 8
    strategy: fsdp2
  model:
    enable_gradient_checkpointing: true
    lora_rank: 32
    path: meta-llama/Llama-2-7b-hf
"""


def test_a_recipe_of_llm_fine_tuning():
    job_read = reading(FINE_TUNING)
    assert (job_read.plan.library, job_read.plan.sharding_strategy) == ("fsdp", "full_shard")
    assert (job_read.plan.batch_size, job_read.plan.gradient_accumulation_steps) == (2, 8)
    assert (job_read.job.adapter.rank, job_read.job.adapter.targets) == (16, "all-linear")
    assert job_read.cluster.instance.name == "ml.p5.48xlarge"
    assert "the first of 3 that the recipe supports with 8 GPUs" in " ".join(job_read.inferred)
    assert job_read.estimate.fits
    assert "host memory" in reading(FINE_TUNING.replace("cpu_offload: false", "cpu_offload: true")).open[0]


def test_a_recipe_of_verl():
    job_read = reading(VERL)
    assert job_read.plan.sharding_strategy == "hybrid_shard"
    assert (job_read.plan.batch_size, job_read.plan.gradient_accumulation_steps) == (4, 2)
    assert job_read.job.adapter.rank == 32


def test_memory_of_reinforcement_learning_is_not_checked():
    roles = (
        VERL.replace(
            "  engine:\n    fsdp_size: 8\n    strategy: fsdp2\n  model:",
            "  actor_rollout_ref:\n   actor: {strategy: fsdp}\n   model:",
        )
        .replace("\n    enable_g", "\n     enable_g")
        .replace("\n    lora_rank", "\n     lora_rank")
        .replace("\n    path", "\n     path")
    )
    job_read = reading(roles)
    assert job_read.plan.library == "fsdp"
    assert job_read.estimate is None
    assert "Memory is not checked: the rollout engine" in " ".join(job_read.open)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("run: {model_type: amazon.nova-lite-v1:0:300k, replicas: 4}\ntraining_config: {max_length: 4096}\n", "Amazon"),
        ("run: {name: x}\nevaluation: {task: mmlu}\n", "it trains no model"),
        ("run: {name: n}\ntrainer: {devices: 8}\nstrategy: {tensor_model_parallel_size: 8}\n", "NeMo (tensor_model_"),
    ],
)
def test_recipes_without_a_plan_name_their_reason(text, words):
    job_read = reading(text)
    assert job_read.plan is None
    assert words in job_read.open[0]


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-9, 99) | st.text("ab", max_size=3),
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
        max_leaves=3,
    ),
    st.data(),
)
def test_any_value_anywhere_in_a_recipe_is_read_or_refused(value, data):
    text = data.draw(st.sampled_from((FINE_TUNING, VERL, ACCELERATE)))
    lines = text.strip().split("\n")
    place = data.draw(st.integers(0, len(lines) - 1))
    lines[place] = f"{lines[place].partition(':')[0]}: {json.dumps(value)}"
    try:
        check_estimator("\n".join(lines))
    except AdvisorError:
        return


LOOP = "from torch.nn.parallel import DistributedDataParallel as DDP\nmodel = DDP(model)\nloss.backward()\n"
OPTION = 'parser.add_argument("--train-batch-size", type=int, default=6)\n'
MAKES = "from transformers import Trainer, TrainingArguments\n{}\nTrainer(model, arguments).train()\n"


@pytest.mark.parametrize(
    ("code", "batch", "precision"),
    [
        (OPTION + LOOP, 6, "fp32"),
        (OPTION + LOOP + "model.half()\n", 6, "bf16"),
        (OPTION + LOOP + "with torch.cuda.amp.autocast(enabled=False):\n    pass\n", 6, "fp32"),
        ("class Settings:\n    batch_size: int = 5\n" + LOOP, 5, "fp32"),
        (MAKES.format("arguments = TrainingArguments(per_device_train_batch_size=3, fp16=True)"), 3, "fp16"),
        (
            OPTION + MAKES.format("arguments = TrainingArguments(per_device_train_batch_size=a.train_batch_size)"),
            6,
            "fp32",
        ),
        (MAKES.format("arguments = TrainingArguments(output_dir='x')"), 8, "fp32"),
        (LOOP, None, None),
        (MAKES.format("arguments = TrainingArguments(**options)"), None, None),
    ],
)
def test_what_the_text_leaves_to_the_script_is_read_there_or_there_is_no_plan(beside, code, batch, precision):
    text = ESTIMATOR.format(instance="ml.p4d.24xlarge", count=1, hyperparameters="{}", more=TORCHRUN)
    job_read = beside(text, code)
    plan = job_read.plan
    assert (plan and plan.batch_size, plan and plan.precision) == (batch, precision)
    if plan is None:
        assert "the batch size is neither in the text nor readable in its script" in job_read.open[0]
    else:
        assert precision in " ".join(job_read.inferred)


def test_memory_next_to_generation_is_not_checked_and_a_reference_model_is_named(beside):
    for trainer, words in (("GRPOTrainer", "generation and the reference model"), ("DPOTrainer", "reference model")):
        code = f"from trl import {trainer}, TrlParser\nTrlParser(()).parse_args_and_config()\n{trainer}(m).train()\n"
        job_read = beside(job({"fsdp": "full_shard"}), code)
        assert words in " ".join(job_read.open)
        assert (job_read.estimate is None) == (trainer == "GRPOTrainer")


def test_checkpointing_by_default_of_a_script_for_smp_is_read(beside):
    code = 'parser.add_argument("--activation_checkpointing", type=int, default=1)\n'
    body = 'parameters = {"pipeline_parallel_degree": 2, "microbatches": 4, "ddp": True}'
    text = written(body).replace("instance_type=", 'entry_point="train.py",\n    instance_type=')
    job_read = beside(text, code, ".")
    assert job_read.plan.activation_checkpointing == "each"
    assert "activation_checkpointing is the default of the script's option." in job_read.inferred
    code = MAKES.format("arguments = TrainingArguments(gradient_checkpointing=True)")
    assert beside(text, code, ".").plan.activation_checkpointing == "each"
    own = "import argparse as a\np = a.ArgumentParser()\np.add_argument('--batch_size', default=24)\nf(p.parse_args())"
    assert beside(text.replace('"batch_size"', '"rows"'), own, ".").plan.batch_size == 24
    parses = "import argparse\np = argparse.ArgumentParser()\np.add_argument('--again')\nargs = p.parse_args()\n"
    code = parses + MAKES.format("arguments = TrainingArguments(gradient_checkpointing=args.again)")
    assert beside(job({"again": True}), code).plan.activation_checkpointing == "each"


def test_a_script_of_alpaca_has_its_options_in_a_function_and_a_batch_of_an_update(tmp_path):
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts/train.py").write_text(
        "import fire\ndef train(base_model: str = '', load_in_8bit: bool = False, load_in_4bit: bool = False,\n"
        "          cutoff_len: int = 256, batch_size: int = 128, micro_batch_size: int = 4):\n"
        "    if load_in_4bit:\n        config = BitsAndBytesConfig(load_in_4bit=True)\n"
        "    model = get_peft_model(model, LoraConfig(r=8, target_modules=['q_proj', 'v_proj']))\n"
        "    sized = load(base_model, load_in_8bit, cutoff_len, batch_size // micro_batch_size)\n"
        "    Trainer(model).train()\n\nfire.Fire(train)\n",
        "utf-8",
    )

    def read(**hyperparameters):
        file = tmp_path / "launch.py"
        file.write_text(
            ESTIMATOR.format(instance="ml.g5.2xlarge", count=1, hyperparameters=repr(hyperparameters), more=""), "utf-8"
        )
        return reading(str(file))

    own = read(base_model="meta-llama/Llama-2-7b-hf")
    assert (own.plan.batch_size, own.plan.gradient_accumulation_steps, own.job.sequence_length) == (4, 32, 256)
    assert (own.job.adapter.base_bits, own.job.adapter.targets, own.model.name) == (16, "query-value", "Llama 2 7B")
    assert read(load_in_8bit=True).job.adapter.base_bits == 8
    chosen = read(base_model="cerebras/Cerebras-GPT-111M", load_in_4bit=True, batch_size=8, micro_batch_size=8)
    assert (chosen.job.adapter.base_bits, chosen.plan.gradient_accumulation_steps) == (4, 1)
    assert "names the model 'cerebras/Cerebras-GPT-111M', of which no shape is known" in " ".join(chosen.open)


DIVIDED = """
import argparse, os, torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
parser = argparse.ArgumentParser()
parser.add_argument("--per_device_train_batch_size", type=int, default=256)
parser.add_argument("--use_lora", default=False); args = parser.parse_args()
dist.init_process_group("nccl") or (wants() and LoraConfig(r=8))
{line}
model = DDP(torch.nn.Linear(8, 8).cuda())
for rows in torch.utils.data.DataLoader(data, batch_size=args.per_device_train_batch_size):
    model(rows).sum().backward()
"""


@pytest.mark.parametrize(
    ("line", "batch"),
    [
        ("", 64),
        ("args.per_device_train_batch_size //= dist.get_world_size() // 8", 32),
        ("args.per_device_train_batch_size = int(args.per_device_train_batch_size / torch.cuda.device_count())", 8),
        ("args.per_device_train_batch_size = max(args.per_device_train_batch_size // dist.get_world_size(), 1)", 4),
        ("args.per_device_train_batch_size //= int(os.getenv('LOCAL_WORLD_SIZE', '1'))", 8),
        ("args.per_device_train_batch_size //= int(os.environ['WORLD_SIZE'])", 4),
        ("args.per_device_train_batch_size //= int(os.environ['PARTS'])", None),
        ("if wants():\n    args.per_device_train_batch_size //= 2", None),
        ("n = 2\nif wants():\n    n = max(1, 2)\nargs.per_device_train_batch_size *= n", 128),
        ("args.per_device_train_batch_size = max(int(args.per_device_train_batch_size // 128), 1)", 1),
        ("few = torch.utils.data.DataLoader(val_rows, batch_size=args.per_device_train_batch_size * 2)", 64),
    ],
)
def test_a_batch_that_a_script_divides_is_not_that_of_a_gpu(beside, line, batch):
    job_read = beside(job({"per_device_train_batch_size": 64}), DIVIDED.format(line=line))
    assert (None if job_read.plan is None else job_read.plan.batch_size) == batch


def test_programs_that_a_script_starts_may_have_a_launcher(tmp_path):
    (tmp_path / "train.py").write_text("import os\nos.system('/bin/bash run.sh')\n")
    (tmp_path / "launch.py").write_text(job(more="").replace('source_dir="scripts"', 'source_dir="."'))
    assert not [finding.message for finding in check_estimator(tmp_path / "launch.py") if "launcher" in finding.message]


LAUNCHED = """from transformers import AutoModelForCausalLM, Trainer, TrainingArguments, HfArgumentParser
(args,) = HfArgumentParser(TrainingArguments).{parses}
Trainer(AutoModelForCausalLM.from_pretrained("gpt2"), args).train()
"""


def test_what_a_launcher_is_given_is_the_plan_or_there_is_none(tmp_path):
    (tmp_path / "train.py").write_text(LAUNCHED.format(parses="parse_args_into_dataclasses()"))
    own = "mixed_precision: fp16\nfsdp_config: {fsdp_activation_checkpointing: on}"
    (tmp_path / "fsdp.yaml").write_text(f"distributed_type: FSDP\n{own}")
    for launch, batch, said in (
        ("--use_fsdp --fsdp_activation_checkpointing true", "4", "FSDP bf16 each"),
        ("--config_file fsdp.yaml", "4", "FSDP bf16 each"),
        ("--config_file fsdp.yaml --use_deepspeed --zero_stage 2", "4", "FSDP bf16 False"),
        ("--config_file $1", "4", "--config_file $1 has no plan"),
        ("--use_deepspeed -m", "4", "FSDP bf16 False"),
        ("--use_megatron_lm", "4", "--use_megatron_lm True has no plan"),
        ("--use_fsdp \\\r\n", "4 --fsdp $HOW", "sharding strategy '$how'"),
        ("--multi_gpu", "$ROWS", "'$ROWS' is a str"),
    ):
        command = f"accelerate launch --mixed_precision bf16 {launch} train.py --train_batch_size {batch}\n"
        (tmp_path / "job.sh").write_text(f"#SBATCH --nodes=1\n{command}", newline="")
        found = reading(tmp_path / "job.sh")
        values = () if found.plan is None else (found.plan.precision, found.plan.activation_checkpointing)
        assert said in " ".join(("FSDP", *map(str, values)) if values else found.open)


def test_sections_that_are_not_of_the_training_are_left_out_and_code_decides_before_its_option(beside):
    code = DIVIDED.format(line="").replace("args.per_device_train_batch_size", "settings.batch_size")
    for sections, batch in (
        ("evaluation: {batch_size: 64}\ntrain: {batch_size: 4}\n", 4),
        ("early: {batch_size: 64}\nlate: {batch_size: 4}\n", None),
        ("batch_size: 4\nlora: {enabled: false, lora_r: 8}\nfsdp: {enabled: false}\n", 4),
    ):
        found = beside(job({"config": "c.yaml"}), code, **{"scripts/c.yaml": sections})
        assert (None if found.plan is None else found.plan.batch_size, found.job.adapter) == (batch, None)
    wraps = "import torch.distributed.fsdp as f\nf.FSDP(net, sharding_strategy=f.ShardingStrategy.SHARD_GRAD_OP)\n"
    assert beside(job({"use_fsdp": True}), DIVIDED.format(line=wraps)).plan.sharding_strategy == "shard_grad_op"
    code, lines = LAUNCHED.format(parses="parse_yaml_file(yaml_file='c.yaml')"), "gradient_accumulation_steps: 3\n"
    assert beside(job(), code, **{"scripts/c.yaml": lines}).plan.gradient_accumulation_steps == 3
