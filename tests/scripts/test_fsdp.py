"""Accumulation and adapters under FSDP: who keeps whole gradients, what they weigh, and who is right to."""

import pytest

from smp_advisor.libraries import Plan
from smp_advisor.review.scripts import check_script
from tests.scripts import samples

PLAN = samples.FSDP_PLAN
UNSYNCED = samples.FSDP.replace("with nullcontext():", "with nullcontext() if last else model.no_sync():")
FABRIC = samples.FABRIC.replace("= DDPStrategy()", "= FSDPStrategy()")
ACCELERATE = samples.ACCELERATE.replace(", sync_each_batch=True", "")
TRAINER = samples.SHARDED_TRAINER.replace(
    '    accelerator_config={"gradient_accumulation_kwargs": {"sync_each_batch": True}},\n', ""
)
BLOCKS = "functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={LlamaDecoderLayer})"
MIXED = samples.ADAPTER.replace("fsdp_auto_wrap_policy(model)", BLOCKS)
MADE = "model = get_peft_model(model, LoraConfig(r=8))\n"
WAITS = "    with nullcontext() if last else model.no_sync():\n"
KEPT = "    use_orig_params=True,\n"
STACK = """\
    with contextlib.ExitStack() as stack:
        if not last:
            stack.enter_context(model.no_sync())
"""
WAITING = """\
BATCHES = 8


def waiting(model, last):
    return contextlib.nullcontext() if last else model.no_sync()
"""
UNDER_DDP = """\
    if isinstance(model, torch.nn.parallel.DistributedDataParallel):
        sync = model.no_sync()
    else:
        sync = nullcontext()
    with sync:
"""
EVALUATED = """\
    with model.no_sync():
        with torch.no_grad():
            model(**batch)
    with nullcontext():
"""
BY_NAME = """\
for name, parameter in model.named_parameters():
    parameter.requires_grad = "lora_" in name
"""
OPTIONS = """\
import argparse

parser = argparse.ArgumentParser()
parser.add_argument("--accumulation_steps", type=int, default=1)
parser.add_argument("--lora", action="store_true")
args, _ = parser.parse_known_args()
BATCHES = args.accumulation_steps
"""


def changed(text: str, *replacements: tuple[str, str]) -> str:
    for old, new in replacements:
        assert old in text, old
        text = text.replace(old, new)
    return text


def found(text: str, plan=None, **more) -> dict[str, str]:
    return {finding.id: finding.message for finding in check_script(text, plan, **more)}


@pytest.mark.parametrize(
    "block",
    [
        "    with model.no_sync():\n",
        "    held = contextlib.nullcontext() if last else model.no_sync()\n    with held:\n",
        "    sync = getattr(model, 'no_sync') if not last else contextlib.nullcontext\n    with sync():\n",
        "    sync = contextlib.nullcontext if last else model.no_sync\n    with sync():\n",
        "    with waiting(model, last):\n",
        STACK,
        "    if isinstance(model, FullyShardedDataParallel):\n        context = model.no_sync()\n    with context:\n",
    ],
    ids=["plain", "value", "getattr", "method", "function", "stack", "isinstance"],
)
def test_no_sync_is_found_in_other_words(block):
    text = changed(
        samples.FSDP,
        ("    with nullcontext():\n", block),
        ("import functools\n", "import contextlib\nimport functools\n"),
        ("BATCHES = 8\n", WAITING),
    )
    assert set(found(text, PLAN)) - {"DDP614"} == {"SMP308"}  # where it is never left, nothing is averaged


def test_a_class_that_holds_the_model_is_followed():
    text = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from corpus import make_loader, make_model


class Loop:
    def __init__(self, model):
        self.model = FSDP(model)

    def step(self, batch, last):
        if last:
            self.model(batch).backward()
        else:
            with self.model.no_sync():
                self.model(batch).backward()


loop = Loop(make_model())
for number, batch in enumerate(make_loader()):
    loop.step(batch, number % 4 == 3)
"""
    assert set(found(text)) == {"SMP308"}
    replicated = text.replace("torch.distributed.fsdp", "torch.nn.parallel")
    assert not found(replicated.replace("FullyShardedDataParallel", "DistributedDataParallel"))


def test_a_file_of_functions_that_something_else_runs_is_judged_too():
    text = FABRIC.replace("strategy = FSDP", "def setup():\n    strategy = FSDP").replace("\nfabric", "\n    fabric")
    assert set(found(text)) == {"SMP308"}
    assert not found(text.replace("FSDPStrategy()", "DDPStrategy()"))


def test_accelerate_is_judged_by_its_plugin_or_by_what_the_script_is_checked_for():
    assert "accumulates 8 batches" in found(ACCELERATE)["SMP308"]
    bare = changed(ACCELERATE, ("fsdp_plugin=FullyShardedDataParallelPlugin(), ", ""))
    assert not found(bare)
    assert set(found(bare, library="fsdp")) == {"SMP308", "TRN709"}
    fixed = changed(bare, ("gradient_accumulation_plugin=plugin", "gradient_accumulation_steps=4"))
    assert set(found(fixed, PLAN)) == {"SMP308", "TRN709"}
    assert not found(changed(ACCELERATE, ("num_steps=8", "num_steps=1")))
    # Without `accumulate`, the number only divides the loss.
    assert not found(changed(ACCELERATE, ("with accelerator.accumulate(model):", "if True:")))


@pytest.mark.parametrize(
    "replacements",
    [
        [
            ("import FullyShardedDataParallel, ", "import "),
            ("import functools\n", "import functools\nfrom torch.nn.parallel import DistributedDataParallel\n"),
            ("= FullyShardedDataParallel(", "= DistributedDataParallel("),
        ],
        [
            (KEPT, f"{KEPT}    sharding_strategy=ShardingStrategy.NO_SHARD,\n"),
            ("MixedPrecision\n", "MixedPrecision, ShardingStrategy\n"),
        ],
        [
            (KEPT, f"{KEPT}    cpu_offload=CPUOffload(offload_params=True),\n"),
            ("import FullyShardedDataParallel", "import CPUOffload, FullyShardedDataParallel"),
        ],
        [(WAITS, UNDER_DDP)],
        [(WAITS, WAITS.replace("last", "isinstance(model, FullyShardedDataParallel)"))],
        [(WAITS, EVALUATED)],
    ],
    ids=["DDP", "NO_SHARD", "CPU offloading", "under DDP", "not FSDP", "no backward"],
)
def test_gradients_that_are_whole_anyway_or_must_wait_are_left_alone(replacements):
    assert not found(changed(UNSYNCED, *replacements), PLAN).keys() - {"TRN720", "TRN726"}  # of DDP


def test_a_model_wrapped_by_either_is_warned_of_where_it_may_be_fsdps():
    either = changed(
        UNSYNCED,
        (
            "model = FullyShardedDataParallel(\n    model,",
            "plain = model\nmodel = FullyShardedDataParallel(\n    model,",
        ),
        (
            "optimizer =",
            "if BATCHES > big():\n    model = torch.nn.parallel.DistributedDataParallel(plain)\noptimizer =",
        ),
    )
    assert set(found(either, PLAN)) == {"SMP308"}


def test_smp_v2_that_holds_replicas_is_left_alone():
    text = changed(samples.V2, ("    loss.backward()", "    with model.no_sync():\n        loss.backward()"))
    for degree, expected in ((1, set()), (4, {"SMP308"}), (0, {"SMP308"})):
        ids = set(found(text, samples.V2_PLAN | {"hybrid_shard_degree": degree}))
        assert ids - {"DDP614"} == expected  # nor is any gradient averaged


def test_the_libraries_own_accumulation_in_version_1_is_left_alone():
    text = changed(samples.SHARDED, ("    loss = train_step", "    with model.no_sync():\n        loss = train_step"))
    assert not found(text, samples.SHARDED_PLAN)


def test_an_option_that_makes_a_step_of_one_batch_is_named_or_settles_it():
    text = changed(UNSYNCED, ("BATCHES = 8\n", OPTIONS))
    assert "only with --accumulation_steps above 1." in found(text, PLAN)["SMP308"]
    assert not found(text, PLAN, hyperparameters={"accumulation_steps": 1})
    passed = found(text, PLAN, hyperparameters={"accumulation_steps": 4})["SMP308"]
    assert "only with --" not in passed


def test_a_plan_s_own_batches_settle_an_option_of_that_name():
    text = changed(UNSYNCED, ("BATCHES = 8\n", OPTIONS.replace("accumulation_steps", "gradient_accumulation_steps")))
    assert not found(text, Plan(library="fsdp"))
    assert "only with --" not in found(text, Plan(library="fsdp", gradient_accumulation_steps=4))["SMP308"]


@pytest.mark.parametrize(
    "replacements",
    [
        [
            (BLOCKS, "ModuleWrapPolicy({LlamaDecoderLayer})"),
            ("import transformer_auto_wrap_policy", "import ModuleWrapPolicy"),
        ],
        [(f"    auto_wrap_policy={BLOCKS},\n", "")],
        [(MADE, "model.add_adapter(LoraConfig(r=8))\n")],
        [(MADE, BY_NAME)],
        [
            (MADE, "loralib.mark_only_lora_as_trainable(model)\n"),
            ("import functools\n", "import functools\nimport loralib\n"),
        ],
    ],
    ids=["ModuleWrapPolicy", "no policy", "transformers", "by name", "loralib"],
)
def test_adapters_in_units_with_frozen_parameters_are_found(replacements):
    assert set(found(changed(MIXED, *replacements), PLAN)) == {"SMP309"}


@pytest.mark.parametrize(
    "replacements",
    [
        [(MADE, "")],
        [
            ("={LlamaDecoderLayer}", "={LlamaDecoderLayer, LoraLayer}"),
            ("import LoraConfig", "import LoraLayer, LoraConfig"),
        ],
        [("={LlamaDecoderLayer}", "={LlamaDecoderLayer, torch.nn.Linear}")],
        [
            (BLOCKS, "functools.partial(lambda_auto_wrap_policy, lambda_fn=lambda part: part.weight.requires_grad)"),
            ("import transformer_auto_wrap_policy", "import lambda_auto_wrap_policy"),
        ],
        [(BLOCKS, "make_policy(model)")],
        [(KEPT, f"{KEPT}    ignored_states=adapters_of(model),\n")],
        [(MADE, "judge = get_peft_model(make_judge(), LoraConfig(r=8))\n")],
        [(MADE, "for part in model.model.embed_tokens.parameters():\n    part.requires_grad = False\n")],
        [(MADE, BY_NAME.replace("parameter.requires_grad = ", "print(parameter.requires_grad), "))],
    ],
    ids=[
        *("no adapter", "adapters wrapped", "layers wrapped", "by lambda", "unseen", "ignored"),
        *("another model", "whole modules", "only read"),
    ],
)
def test_parameters_that_are_apart_or_may_be_are_left_alone(replacements):
    assert not found(changed(MIXED, *replacements), PLAN)


def test_an_adapter_that_an_option_asks_for_is_named():
    text = changed(MIXED, ("BATCHES = 8\n", OPTIONS), (MADE, f"if args.lora:\n    {MADE}"))
    assert "This code runs only with --lora." in found(text, PLAN)["SMP309"]
    assert "--lora" not in found(text, PLAN, hyperparameters={"lora": True})["SMP309"]
    assert not found(text, PLAN, hyperparameters={"lora": False})


def test_a_policy_for_adapters_beside_one_for_blocks_is_right():
    text = changed(
        MIXED,
        ("BATCHES = 8\n", OPTIONS),
        (MADE, f"if args.lora:\n    {MADE}"),
        (f"auto_wrap_policy={BLOCKS}", f"auto_wrap_policy=fsdp_auto_wrap_policy(model) if args.lora else {BLOCKS}"),
    )
    assert not found(text, PLAN, hyperparameters={"lora": True})


def test_whole_gradients_of_adapters_alone_are_no_matter():
    waits = ("    with nullcontext():\n", WAITS)
    assert not found(changed(samples.ADAPTER, waits), PLAN)
    assert set(found(changed(MIXED, waits), PLAN)) == {"SMP308", "SMP309"}
    assert set(found(TRAINER)) == {"SMP308"}
    assert not found(changed(TRAINER, ("trainer =", "import peft\nconfig = peft.LoraConfig(r=8)\ntrainer =")))


def test_lightnings_strategy_keeps_parameters_by_default():
    text = changed(
        FABRIC,
        ("= FSDPStrategy()", "= FSDPStrategy(auto_wrap_policy={Block})"),
        ("fabric.setup(make_model()", "fabric.setup(trained(make_model())"),
        ("from corpus", "from litgpt.lora import Block, mark_only_lora_as_trainable\nfrom corpus"),
        ("def main(", "def trained(model):\n    mark_only_lora_as_trainable(model)\n    return model\n\n\ndef main("),
    )
    assert set(found(text)) == {"SMP309"}
    assert not found(text.replace("{Block}", "{torch.nn.Linear}").replace("from corpus", "import torch\nfrom corpus"))
