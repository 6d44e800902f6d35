"""Models, clusters and plans that the export tests share: AWS's reference rows and one of each technique."""

import json
from dataclasses import dataclass

from smp_advisor.cluster import Cluster
from smp_advisor.export.script import writable, written
from smp_advisor.libraries import Plan
from smp_advisor.workload.block import Attention, Block, Matmul, SavedActivations
from smp_advisor.workload.job import Job
from smp_advisor.workload.model import BlockGroup, Head, Model, Shape


def training_script(*parts, **options):
    """The complete training script of a plan: the text below the first line of its cell."""
    return written(writable(*parts, **options))


@dataclass(frozen=True)
class Case:
    model: Model
    cluster: Cluster
    job: Job
    plan: Plan

    @property
    def parts(self):
        return self.model, self.cluster, self.job, self.plan


def make_model(
    family="gpt2",
    config=None,
    *,
    name="gpt2-10b",
    layers=2,
    hidden=32,
    heads=8,
    vocab=128,
    parameters_per_block=12_000,
    head="language-model",
    outputs=128,
):
    """A model as plain data: the exporter reads its name, family, configuration and sizes, nothing of its costs."""
    block = Block(
        kind="decoder",
        hidden=hidden,
        parameters=parameters_per_block,
        replicated_parameters=0,
        matmuls=(Matmul(name="all", inputs=hidden, outputs=hidden),),
        attentions=(Attention(heads=heads, kv_heads=heads, head_dim=hidden // heads),),
        saved=SavedActivations(split_elements=1.0, replicated_elements=1.0),
    )
    return Model(
        name=name,
        family=family,
        origin="given",
        shape=Shape(layers=layers, hidden=hidden, heads=heads, kv_heads=heads, ffn=4 * hidden, vocab=vocab),
        groups=(BlockGroup(block=block, count=layers),),
        embedding_parameters=vocab * hidden,
        token_embedding_parameters=vocab * hidden,
        final_parameters=2 * hidden,
        head=Head(kind=head, outputs=outputs, parameters=0, tied=True, per_token=head == "language-model"),
        fixed_sequence_length=None,
        config_json=json.dumps(GPT2 if config is None else config, sort_keys=True),
    )


WORDS, POSITIONS = {"vocab_size": 128}, {"max_position_embeddings": 64}
GPT = {"n_embd": 32, "n_head": 4, "n_layer": 2, "n_positions": 64}
GPT2 = {"model_type": "gpt2", **GPT, **WORDS}

P4D = "ml.p4d.24xlarge"

CASES = {
    "10 B": Case(
        make_model(name="10 B, GPT-2", layers=44, parameters_per_block=227_000_000),
        Cluster(P4D, 16),
        Job(sequence_length=512),
        Plan(
            tensor_parallel_degree=4,
            shard_optimizer_state=True,
            prescaled_batch=True,
            fp16=True,
            batch_size=40,
            activation_checkpointing="each",
        ),
    ),
    "60 B": Case(
        make_model(name="60 B, GPT-2", layers=64, parameters_per_block=930_000_000),
        Cluster(P4D, 32),
        Job(sequence_length=512, tokens=1e10),
        Plan(
            pipeline_parallel_degree=2,
            tensor_parallel_degree=8,
            shard_optimizer_state=True,
            prescaled_batch=True,
            fp16=True,
            microbatches=4,
            batch_size=56,
            activation_checkpointing="each",
        ),
    ),
    "pipeline": Case(
        make_model(name="gpt-j", family="gptj", layers=4),
        Cluster("ml.p3.16xlarge", 2),
        Job(sequence_length=1024),
        Plan(
            pipeline_parallel_degree=4,
            microbatches=8,
            active_microbatches=8,
            pipeline="simple",
            placement_strategy="spread",
            optimize="memory",
            fp16=True,
            batch_size=8,
        ),
    ),
    "sharded data parallelism": Case(
        make_model(name="neox", family="gpt_neox"),
        Cluster(P4D, 4),
        Job(sequence_length=2048, precision="bf16"),
        Plan(
            sharded_data_parallel_degree=32,
            bf16=True,
            delayed_parameter_initialization=True,
            skip_tracing=True,
            sdp_gradient_clipping=0.5,
            sdp_reduce_bucket_size=500_000_000,
            sdp_hierarchical_allgather=False,
            ddp_dist_backend="auto",
            batch_size=8,
            activation_checkpointing="each",
        ),
    ),
    "offload": Case(
        make_model(name="offloaded"),
        Cluster("ml.p4de.24xlarge", 2),
        Job(sequence_length=2048),
        Plan(
            tensor_parallel_degree=8,
            fp16=True,
            offload_activations=True,
            activation_loading_horizon=2,
            activation_checkpointing="group_2",
            batch_size=4,
        ),
    ),
    "g4dn": Case(
        make_model(name="small", layers=4),
        Cluster("ml.g4dn.12xlarge", 1),
        Job(sequence_length=512),
        Plan(pipeline_parallel_degree=4, microbatches=4, fp16=True, batch_size=4),
    ),
}

TINY = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2}

TASKS = {
    "gpt2": Model.from_config(GPT2),
    "gptj": Model.from_config({"model_type": "gptj", "rotary_dim": 4, **GPT, **WORDS}),
    "gpt_neo": Model.from_config(
        {
            "model_type": "gpt_neo",
            "hidden_size": 32,
            "num_layers": 2,
            "num_heads": 4,
            "attention_types": [[["global", "local"], 1]],
            **POSITIONS,
            **WORDS,
        }
    ),
    "gpt_neox": Model.from_config({"model_type": "gpt_neox", **POSITIONS, **TINY, **WORDS}),
    "bloom": Model.from_config({"model_type": "bloom", "hidden_size": 32, "n_head": 4, "n_layer": 2, **WORDS}),
    "opt": Model.from_config(
        {"model_type": "opt", "ffn_dim": 64, "word_embed_proj_dim": 32, **POSITIONS, **TINY, **WORDS}
    ),
    "llama": Model.from_config({"model_type": "llama", **POSITIONS, **TINY, **WORDS}),
    "mistral": Model.from_config({"model_type": "mistral", "num_key_value_heads": 2, **POSITIONS, **TINY, **WORDS}),
    "mixtral": Model.from_config(
        {"model_type": "mixtral", "num_key_value_heads": 2, "num_local_experts": 4, **POSITIONS, **TINY, **WORDS}
    ),
    "falcon": Model.from_config({"model_type": "falcon", **TINY, **WORDS}),
    "bert": Model.from_config({"model_type": "bert", **POSITIONS, **TINY, **WORDS}),
    "roberta": Model.from_config({"model_type": "roberta", **POSITIONS, **TINY, **WORDS}),
    "t5": Model.from_config(
        {
            "model_type": "t5",
            "d_model": 32,
            "d_kv": 8,
            "d_ff": 64,
            "num_layers": 2,
            "num_heads": 4,
            "decoder_start_token_id": 0,
            "pad_token_id": 0,
            **WORDS,
        },
    ),
    "vit": Model.from_config({"model_type": "vit", "image_size": 16, "patch_size": 8, "num_channels": 3, **TINY}),
    "gpt2 classifier": make_model(config=GPT2, head="classification", outputs=3),
}
"""A small model of every family that the advisor knows, and one that classifies text."""

TASK_CASES = {
    name: Case(
        model,
        Cluster(P4D),
        Job(sequence_length=32, precision="fp32"),
        Plan(batch_size=4, activation_checkpointing="each"),
    )
    for name, model in TASKS.items()
}
