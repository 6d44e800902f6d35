"""Every setting that a job cell passes is read by the generated script, or refused at its start."""

import argparse
import ast
import functools
import json
import sys
from dataclasses import replace

import pytest

from smp_advisor.cluster import Cluster
from smp_advisor.costs.evaluate import estimate
from smp_advisor.export import estimator_cell
from smp_advisor.libraries import Plan
from smp_advisor.workload.job import Job
from tests.export.examples import P4D, TASKS, training_script
from tests.export.reading import estimator_arguments, names_of

TWO_NODES = Cluster(P4D, 2)
PLANS = {
    "smp-v1": Plan(fp16=True, tensor_parallel_degree=4, activation_checkpointing="each", batch_size=4),
    "smp-v1-tensorflow": Plan(library="smp-v1-tensorflow", partitions=2, microbatches=2, batch_size=4, horovod=True),
    "smp-v2": Plan(
        library="smp-v2",
        hybrid_shard_degree=8,
        tensor_parallel_degree=2,
        fp8=True,
        activation_checkpointing="each",
        offload_activations=True,
        batch_size=4,
    ),
    "fsdp": Plan(library="fsdp", sharding_strategy="shard_grad_op", gradient_accumulation_steps=2, batch_size=4),
    "ddp": Plan(library="ddp", activation_checkpointing="every_2", batch_size=4),
    "training-compiler": Plan(library="training-compiler", batch_size=4),
}


def script_and_settings(library):
    """The script of a plan as a syntax tree, and the settings that the job's cell passes to it."""
    plan = PLANS[library]
    model = TASKS["llama" if library in ("smp-v2", "fsdp") else "gpt2"]
    parts = (model, TWO_NODES, Job(sequence_length=32, precision=plan.precision, tokens=1e9), plan)
    cell = estimator_cell(*parts, sdk="v2", data="s3://bucket/data", checkpoints="s3://bucket/checkpoints")
    return ast.parse(training_script(*parts)), estimator_arguments(cell)["hyperparameters"]


def settings_of(script, name):
    """Settings that the script reads (SETTINGS), or has built in (FIXED)."""
    (values,) = [
        node.value for node in script.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name
    ]
    return set(ast.literal_eval(values))


def parse(script, options, monkeypatch):
    """Run the script's own reading of its command line."""
    names = names_of(ast.unparse(script), "SETTINGS", "FIXED", "parse_arguments", argparse=argparse)
    command_line = ["train_smp.py", *(text for key, value in options.items() for text in (f"--{key}", str(value)))]
    monkeypatch.setattr(sys, "argv", command_line)
    return names["parse_arguments"]()


@pytest.mark.parametrize("library", PLANS)
def test_every_setting_of_the_cell_is_read_or_built_in(library, monkeypatch, capsys):
    """Another value of one that is built in is refused, and so is one that the script does not have."""
    script, settings = script_and_settings(library)
    read = {
        node.attr
        for node in ast.walk(script)
        if isinstance(node, ast.Attribute) and ast.unparse(node.value).removeprefix("self.") == "arguments"
    }
    fixed, declared = settings_of(script, "FIXED"), settings_of(script, "SETTINGS")
    assert set(settings) - {"mp_parameters"} <= (declared | fixed) & (read | fixed)
    assert declared <= read, "an option that the script ignores"
    of_library = {"mp_parameters": "ddp=True"} if library.startswith("smp") else {}
    arguments = parse(script, settings | of_library, monkeypatch)
    assert {name: str(getattr(arguments, name)) for name in settings} == {
        name: str(type(getattr(arguments, name))(value)) for name, value in settings.items()
    }
    refused = {"passes": "unrecognized arguments: --passes other"}
    for name in PLANS[library].hyperparameters.keys() & fixed:
        refused[name] = f"argument --{name}: invalid choice: 'other'"
    assert len(refused) > 1
    for name, sentence in refused.items():
        with pytest.raises(SystemExit):
            parse(script, settings | {name: "other"}, monkeypatch)
        assert sentence in capsys.readouterr().err


@pytest.mark.torch
def test_operators_store_what_the_estimate_counts_and_change_no_gradient():
    """Every second product without the last, which no gradient reads."""
    import torch
    import transformers
    from torch.distributed.algorithms._checkpoint import checkpoint_wrapper as checkpointing
    from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

    model, plan = TASKS["llama"], Plan(library="fsdp", batch_size=2, activation_checkpointing="operators")
    stored = []

    def counting(policy):
        def decide(context, operator, *arguments, **keywords):
            decision = policy(context, operator, *arguments, **keywords)
            if decision == CheckpointPolicy.MUST_SAVE and not context.is_recompute:
                stored.append((operator, arguments))
            return decision

        return create_selective_checkpoint_contexts(decide)

    parts = Job(sequence_length=8, precision="bf16"), plan
    source = training_script(model, Cluster(P4D, 1), *parts)
    names = {"torch": torch, "CheckpointPolicy": CheckpointPolicy, "checkpointing": checkpointing}
    names |= {"functools": functools, "create_selective_checkpoint_contexts": counting}
    exec(source[source.index("ATTENTION = ") : source.index("def wrap(")], names)

    def gradients(selective):
        torch.manual_seed(0)
        built = transformers.AutoModelForCausalLM.from_config(
            transformers.AutoConfig.for_model(**json.loads(model.config_json))
        )
        if selective:
            kind = type(built.model.layers[0])
            checkpointing.apply_activation_checkpointing(
                built, names["selective"], check_fn=lambda part: isinstance(part, kind)
            )
        tokens = torch.randint(0, 30, (2, 8), generator=torch.Generator().manual_seed(1))
        built(input_ids=tokens, labels=tokens, use_cache=False)["loss"].backward()
        return [value.grad for value in built.parameters()]

    whole, selective = gradients(False), gradients(True)
    assert all(torch.equal(*pair) for pair in zip(whole, selective, strict=True))
    products = [arguments for operator, arguments in stored if operator in names["PRODUCTS"]]
    widths = sum(matrix.size(1) for *_, matrix in products)
    shape = model.shape
    # Queries, values and gates; the last product is left out.
    keys = next(iter(model.groups)).block.attentions[0]
    assert len(products) == 3 * shape.layers
    assert widths == shape.layers * (shape.hidden + keys.kv_heads * keys.head_dim + shape.ffn)
    each, operators = (
        estimate(model, Cluster(P4D, 1), parts[0], replace(plan, activation_checkpointing=kind))
        .memory.stages[0]
        .activations_gib
        for kind in ("each", "operators")
    )
    attended = shape.layers * shape.hidden
    assert round((operators - each) * 2**30) == 2 * 2 * 8 * (widths + attended)
