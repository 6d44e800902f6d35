"""Configurations in which nothing is wrong, from which tests make those in which one thing is."""

V1 = """\
import sagemaker
from sagemaker.pytorch import PyTorch

smp_options = {
    "enabled": True,
    "parameters": {
        "pipeline_parallel_degree": 2,  # stages
        "tensor_parallel_degree": 4,
        "microbatches": 4,
        "active_microbatches": 2,
        "optimize": "speed",
        "prescaled_batch": True,
        "shard_optimizer_state": True,
        "fp16": True,
        "ddp": True,  # replicas
    },
}
estimator = PyTorch(
    entry_point="train.py",
    role=sagemaker.get_execution_role(),
    instance_type="ml.p4d.24xlarge",
    instance_count=2,
    framework_version="1.13.1",
    py_version="py39",
    distribution={
        "smdistributed": {"modelparallel": smp_options},
        "mpi": {"enabled": True, "processes_per_host": 8},  # one a GPU
    },
    hyperparameters={"batch_size": 8, "activation_checkpointing": "each", "learning_rate": 1e-4},
    debugger_hook_config=False,
    disable_profiler=True,
)
estimator.fit("s3://bucket/data", wait=False)
"""

V2 = """\
from sagemaker.pytorch import PyTorch

estimator = PyTorch(
    entry_point="train.py",
    role="role",
    instance_type="ml.p4d.24xlarge",
    instance_count=2,
    framework_version="2.4.1",
    py_version="py311",
    distribution={
        "torch_distributed": {"enabled": True},
        "smdistributed": {
            "modelparallel": {
                "enabled": True,
                "parameters": {
                    "hybrid_shard_degree": 8,
                    "tensor_parallel_degree": 2,
                    "sm_activation_offloading": False,
                },
            }
        },
    },
    hyperparameters={"batch_size": 4, "activation_checkpointing": "each", "precision": "bf16"},
    debugger_hook_config=False,
    disable_profiler=True,
)
"""

TRAINER = """\
from sagemaker.core import image_uris
from sagemaker.core.training.configs import Compute, SourceCode
from sagemaker.train import ModelTrainer
from sagemaker.train.distributed import SMP, Torchrun

image = image_uris.get_training_image_uri(
    "us-west-2",
    framework="pytorch",
    framework_version="2.4.1",
    py_version="py311",
    instance_type="ml.p4d.24xlarge",
    distribution={"torch_distributed": {"enabled": True}, "smdistributed": {"modelparallel": {"enabled": True}}},
)
trainer = ModelTrainer(
    training_image=image,
    source_code=SourceCode(source_dir="src", entry_script="train.py"),
    compute=Compute(instance_type="ml.p4d.24xlarge", instance_count=2),
    distributed=Torchrun(
        process_count_per_node=8,
        smp=SMP(hybrid_shard_degree=8, tensor_parallel_degree=2, sm_activation_offloading=False),
    ),
    hyperparameters={"batch_size": 4, "activation_checkpointing": "each", "precision": "bf16"},
)
"""

TENSORFLOW = """\
from sagemaker.tensorflow import TensorFlow

estimator = TensorFlow(
    entry_point="train.py",
    role="role",
    instance_type="ml.p3.16xlarge",
    instance_count=1,
    framework_version="2.6.3",
    py_version="py38",
    distribution={
        "smdistributed": {
            "modelparallel": {"enabled": True, "parameters": {"partitions": 8, "microbatches": 4}}
        },
        "mpi": {"enabled": True, "processes_per_host": 8},
    },
    hyperparameters={"batch_size": 8},
    debugger_hook_config=False,
    disable_profiler=True,
)
"""

RECIPE = """\
run:
  name: llama-8b
  model_type: hf
instance_type: p5.48xlarge
trainer:
  devices: 8
  num_nodes: 16
  precision: bf16
use_smp_model: True
model:
  model_type: llama_v3
  train_batch_size: 2
  tensor_model_parallel_degree: 2 # within a node
  expert_model_parallel_degree: 1
  context_parallel_degree: 1
  activation_checkpointing: False
  activation_loading_horizon: 1
  offload_activations: False
  sharding_strategy: hybrid_shard
  shard_degree: 64
  fp8: True
  max_context_width: 8192
  max_position_embeddings: ${.max_context_width}
  num_hidden_layers: 32
  hidden_size: 4096
  num_attention_heads: 32
  num_key_value_heads: 8
  intermediate_size: 14336
  vocab_size: 128256
  precision: ${recipes.trainer.precision}
"""

ADAPTER_RECIPE = (
    RECIPE.replace("instance_type: p5.48xlarge\n", "")
    .replace("use_smp_model: True", "use_smp_model: False")
    .replace("tensor_model_parallel_degree: 2", "tensor_model_parallel_degree: 1")
    .replace("context_parallel_degree: 1", "context_parallel_degree: 8")
    .replace("offload_activations: False", "offload_activations: True")
    .replace("activation_checkpointing: False", "activation_checkpointing: True")
    + """\
  peft:
    peft_type: qlora_4bit
    rank: 16
    alpha: 16
    dropout: 0.1
"""
)
"""A recipe like AWS's QLoRA recipes of its release 1.3.3: no instance, and SMP v2 only shards."""

REQUEST = """\
{
  "TrainingJobName": "mine",
  "AlgorithmSpecification": {
    "TrainingImage": "763104351884.dkr.ecr.us-west-2.amazonaws.com/pytorch-training:1.13.1-gpu-py39",
    "TrainingInputMode": "File"
  },
  "ResourceConfig": {"InstanceType": "ml.p4d.24xlarge", "InstanceCount": 2, "VolumeSizeInGB": 30},
  "HyperParameters": {
    "batch_size": "8",
    "activation_checkpointing": "\\"each\\"",
    "sagemaker_mpi_enabled": "true",
    "sagemaker_mpi_num_of_processes_per_host": "8",
    "mp_parameters": "{\\"pipeline_parallel_degree\\": 2, \\"microbatches\\": 4, \\"ddp\\": true, \\"fp16\\": true}"
  },
  "ProfilerConfig": {"DisableProfiler": true}
}
"""

TAKES_PARAMETERS = """\
estimator = PyTorch(
    instance_type="ml.p4d.24xlarge",
    instance_count=2,
    framework_version="1.13.1",
    py_version="py39",
    debugger_hook_config=False,
    disable_profiler=True,
    distribution={
        "smdistributed": {"modelparallel": {"enabled": True, "parameters": parameters}},
        "mpi": {"enabled": True, "processes_per_host": 8},
    },
)
"""

WAYS = {
    "union": """\
base = {"ddp": True, "fp16": False}
parameters = base | {"fp16": True, "microbatches": 4}
parameters["pipeline_parallel_degree"] = 2
""",
    "function": """\
def options(stages, *, m=1, **more):
    found = {"pipeline_parallel_degree": stages, "microbatches": m}
    found.update(more)
    return found

parameters = options(2, m=4, ddp=True, fp16=True)
""",
}
"""Ways to make one dictionary of parameters."""

PARAMETERS = {"pipeline_parallel_degree": 2, "microbatches": 4, "ddp": True, "fp16": True}


def written(body: str) -> str:
    """A cell whose estimator takes what `body` calls parameters."""
    return f"from sagemaker.pytorch import PyTorch\n{body}\n{TAKES_PARAMETERS}"
