"""The rules on models, optimizers, precision and checkpoints, broken in other words."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from mutation_operators.operator import FP16, PIPELINE, SHARDED, TENSOR, Script, keyword_of, operator
from mutation_operators.pytorch import P, T
from mutation_operators.pytorch_rewritten import before

if TYPE_CHECKING:
    from collections.abc import Iterator

CHECKPOINTING = "model-parallel-extended-features-pytorch-activation-checkpointing"
SAVING = "model-parallel-extended-features-pytorch-saving-loading-checkpoints"
TENSOR_PAGE = "model-parallel-extended-features-pytorch-tensor-parallelism-examples"


@operator("torch", "PyTorch's native checkpointing is not compatible", CHECKPOINTING, PIPELINE)
def gradient_checkpointing_of_transformers(script: Script) -> Iterator[str]:
    if "from_config" in script.text or "from_pretrained" in script.text or "LMHeadModel(" in script.text:
        for call in script.calls("smp.DistributedModel"):
            if call.args and isinstance(call.args[0], ast.Name):
                yield before(script, call, f"{call.args[0].id}.gradient_checkpointing_enable()")


@operator("torch", "PyTorch's native checkpointing is not compatible", CHECKPOINTING, PIPELINE)
def native_checkpointing_by_an_alias(script: Script) -> Iterator[str]:
    for step in script.steps():
        for call in ast.walk(step):
            if isinstance(call, ast.Call) and ast.unparse(call.func) == "model" and call.args and not call.keywords:
                arguments = ", ".join(script.source(a) for a in [call.func, *call.args])
                alias = "from torch.utils.checkpoint import checkpoint as remember"
                yield script.on_top(alias, (call, f"remember({arguments}, use_reentrant=False)"))


@operator("torch", "DistributedDataParallel is not supported", P, PIPELINE)
def torch_ddp_around(script: Script) -> Iterator[str]:
    for call in script.calls("smp.DistributedModel"):
        alias = "from torch.nn.parallel import DistributedDataParallel as DDP"
        yield script.on_top(alias, (call, f"DDP({script.source(call)}, device_ids=[smp.local_rank()])"))
        yield script.swap((call, f"torch.nn.DataParallel({script.source(call)})"))


@operator("torch", "torch.jit.ScriptModules are not supported", P, PIPELINE)
def traced_model(script: Script) -> Iterator[str]:
    for call in script.calls("smp.DistributedModel"):
        inner = script.source(call.args[0])
        yield before(script, call, f"scripted = torch.jit.trace({inner}, torch.zeros(1))", (call.args[0], "scripted"))


@operator("torch", "smp.amp.GradScaler instead of torch's", P, PIPELINE)
def scaler_by_an_alias(script: Script) -> Iterator[str]:
    for call in script.calls("smp.amp.GradScaler"):
        yield script.on_top("from torch.cuda.amp import GradScaler", (call.func, "GradScaler"))
        yield script.swap((call, 'torch.amp.GradScaler("cuda")'))


@operator("torch", "restrict each process to its own device by set_device(smp.local_rank())", P, PIPELINE)
def one_device_for_all(script: Script) -> Iterator[str]:
    for call in script.calls("cuda.set_device"):
        if "smp.local_rank" in ast.unparse(call):
            yield script.swap((call.args[0], "0"))
            yield before(script, call, "gpu = smp.dp_rank()", (call.args[0], "gpu"))


@operator("torch", "import and initialize the library with smp.init", P, PIPELINE)
def init_too_late(script: Script) -> Iterator[str]:
    for call in script.calls("smp.init"):
        yield before(script, call, 'print("rank", smp.rank())')


@operator("torch", "wrap the model with smp.DistributedModel", P, PIPELINE)
def wrapped_model_not_used(script: Script) -> Iterator[str]:
    for call in script.calls("smp.DistributedModel"):
        statement = script.statement(call)
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "model" and call.args:
            yield script.swap((statement, f"wrapped = {script.source(call)}\nmodel = {script.source(call.args[0])}"))


@operator("torch", "one DistributedModel a script", "smd_model_parallel_pytorch", PIPELINE)
def second_model(script: Script) -> Iterator[str]:
    for call in script.calls("smp.DistributedModel"):
        statement = script.statement(call)
        if isinstance(statement, ast.Assign):
            yield script.swap(
                (statement, f"{script.source(statement)}\nteacher = smp.DistributedModel(torch.nn.Linear(8, 8))")
            )


@operator("torch", "wrap the optimizer with smp.DistributedOptimizer", P, PIPELINE)
def wrapped_optimizer_not_used(script: Script) -> Iterator[str]:
    for call in script.calls("smp.DistributedOptimizer"):
        statement = script.statement(call)
        same = bool(call.args) and ast.unparse(call.args[0]) == "optimizer"
        if isinstance(statement, ast.Assign) and same and ast.unparse(statement.targets[0]) == "optimizer":
            yield script.swap((statement, f"distributed = {script.source(call)}"))


@operator("torch", "the optimizer is created after smp.DistributedModel", T, TENSOR, needs="tensor_parallel")
def optimizer_of_the_plain_model(script: Script) -> Iterator[str]:
    for wrap in script.calls("smp.DistributedModel"):
        statement = script.statement(wrap)
        if isinstance(wrap.args[0], ast.Name) and isinstance(statement, ast.Assign):
            plain, model = wrap.args[0].id, ast.unparse(statement.targets[0])
            for later in script.calls("parameters"):
                if later.lineno > wrap.lineno and ast.unparse(later.func) == f"{model}.parameters":
                    kept = "" if plain != model else f"unwrapped = {plain}\n"
                    source = "unwrapped" if kept else plain
                    if isinstance(script.parent(later), ast.Call):
                        yield script.swap(
                            (statement, kept + script.source(statement)), (later.func, f"{source}.parameters")
                        )


@operator("torch", "weights are loaded after smp.DistributedModel", T, TENSOR, needs="tensor_parallel")
def pretrained_weights_before_wrapping(script: Script) -> Iterator[str]:
    for call in script.calls("from_config"):
        if call.args and isinstance(call.func, ast.Attribute) and "resume_from_checkpoint" not in script.text:
            yield script.swap((call, f'{script.source(call.func.value)}.from_pretrained("gpt2-xl")'))


@operator(
    "torch", "tensor parallelism is enabled where the model is created", TENSOR_PAGE, TENSOR, needs="tensor_parallel"
)
def tensor_parallelism_off(script: Script) -> Iterator[str]:
    for call in script.calls("smp.model_creation"):
        given = keyword_of(call, "tensor_parallelism")
        if given is not None:
            yield script.swap((given.value, "False"))


@operator("torch", "with tensor parallelism the seed is based on smp.dp_rank()", T, TENSOR, needs="tensor_parallel")
def one_seed_by_a_name(script: Script) -> Iterator[str]:
    for call in script.calls("torch.manual_seed"):
        if "dp_rank()" in ast.unparse(call):
            yield script.on_top("SEED = 1234", (call.args[0], "SEED"))


@operator("torch", "with tensor parallelism checkpoints are saved at rdp_rank 0", T, TENSOR, needs="tensor_parallel")
def save_after_leaving_by_dp_rank(script: Script) -> Iterator[str]:
    for node in ast.walk(script.tree):
        saves = isinstance(node, ast.If) and "state_dict" in ast.unparse(node)
        if isinstance(node, ast.If) and saves and ast.unparse(node.test) == "smp.rdp_rank() == 0":
            yield script.swap((node.test, "not smp.dp_rank()"))
            body = "\n".join(script.source(s) for s in node.body)
            if isinstance(script.parent(node), ast.FunctionDef) and len(node.body) == 1:
                yield script.swap((node, f"if smp.dp_rank() != 0:\n    return\n{body}"))


@operator(
    "torch", "optimizer states are checkpointed partially with tensor parallelism", T, TENSOR, needs="tensor_parallel"
)
def full_checkpoint_with_optimizer(script: Script) -> Iterator[str]:
    for call in script.calls("smp.save_checkpoint"):
        given = keyword_of(call, "partial")
        if given is not None and keyword_of(call, "optimizer") is not None:
            yield script.swap((given.value, "False"))


@operator("torch", "parameters handed to the optimizer are unique", SAVING, TENSOR, needs="save")
def parameters_added_twice(script: Script) -> Iterator[str]:
    for call in script.calls("parameters"):
        outer = script.parent(call)
        if isinstance(outer, ast.Call) and outer.args[:1] == [call] and "tensor_parallel" in script.text:
            model = script.source(call.func.value)
            yield script.swap((call, f"list({model}.parameters()) + list({model}.module.parameters())"))


@operator(
    "torch",
    "tensor parallelism covers GPT-2, BERT, RoBERTa, GPT-J and GPT-Neo",
    "model-parallel-extended-features-pytorch-hugging-face",
    TENSOR,
    needs="tensor_parallel",
)
def family_without_support(script: Script) -> Iterator[str]:
    for name in ("GPT2LMHeadModel(", "GPT2LMHeadModel.from_config("):
        if name in script.text:
            yield script.text.replace("GPT2LMHeadModel", "BloomForCausalLM").replace("GPT2Config", "BloomConfig")
            break


@operator(
    "torch",
    "fp16 training sets up loss scaling",
    "model-parallel-extended-features-pytorch-fp16",
    FP16,
    needs="_loss_scale",
)
def scheduler_by_a_name(script: Script) -> Iterator[str]:
    for node in ast.walk(script.tree):
        if (
            isinstance(node, ast.Attribute)
            and node.attr == "optimizer"
            and isinstance(node.value, ast.Name)
            and node.value.id == "optimizer"
            and isinstance(script.parent(node), ast.Call)
        ):
            yield before(script, node, "scheduled = optimizer", (node, "scheduled"))


@operator(
    "torch",
    "in fp16 gradients are clipped by clip_master_grads",
    "model-parallel-extended-features-pytorch-fp16",
    FP16,
    needs="_loss_scale",
)
def clip_by_an_alias(script: Script) -> Iterator[str]:
    for call in script.calls("clip_master_grads"):
        clipped = f"clip(model.parameters(), max_norm={script.source(call.args[0])})"
        yield script.on_top("from torch.nn.utils import clip_grad_norm_ as clip", (call, clipped))


@operator("torch", "accumulated gradients need backward_passes_per_step", "smd_model_parallel_pytorch", SHARDED)
def one_backward_pass(script: Script) -> Iterator[str]:
    for call in script.calls("smp.DistributedModel"):
        given = keyword_of(call, "backward_passes_per_step")
        if given is not None:
            yield script.swap((given.value, "1"))


@operator(
    "torch",
    "sharded data parallelism clips gradients by itself",
    "model-parallel-extended-features-pytorch-sharded-data-parallelism",
    SHARDED,
)
def clip_without_a_condition(script: Script) -> Iterator[str]:
    for node in ast.walk(script.tree):
        if isinstance(node, ast.If) and "sharded" in ast.unparse(node.test) and "clip" in ast.unparse(node.body[0]):
            yield script.swap((node.test, "True"))


@operator("torch", "download on a single process per instance", P, PIPELINE)
def download_without_a_rank(script: Script) -> Iterator[str]:
    for call in script.calls("MNIST", "CIFAR10"):
        given = keyword_of(call, "download")
        if given is not None and ast.unparse(given.value) == "False":
            yield script.swap((given.value, "True"))


@operator("torch", "the job passes --mp_parameters to the script", "model-parallel-sm-sdk", PIPELINE)
def strict_arguments_in_a_helper(script: Script) -> Iterator[str]:
    for call in script.calls("parse_known_args"):
        assert isinstance(call.func, ast.Attribute)
        statement = script.statement(call)
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Tuple) and not call.args:
            helper = "\ndef options_of(reader):\n    return reader.parse_args()\n"
            first = script.source(statement.targets[0].elts[0])
            yield script.on_top(helper, (statement, f"{first} = options_of({script.source(call.func.value)})"))


@operator(
    "torch",
    "activation checkpointing is requested if the plan has it",
    "model-parallel-best-practices",
    {**PIPELINE, "activation_checkpointing": "each"},
)
def no_checkpointing(script: Script) -> Iterator[str]:
    for call in script.calls("smp.set_activation_checkpointing"):
        if len(script.calls("smp.set_activation_checkpointing")) == 1:
            yield script.without(script.statement(call))


@operator(
    "torch",
    "offloading needs activation checkpointing",
    "model-parallel-best-practices",
    {**PIPELINE, "offload_activations": True},
)
def offloading_without_checkpointing(script: Script) -> Iterator[str]:
    for call in script.calls("smp.set_activation_checkpointing"):
        if len(script.calls("smp.set_activation_checkpointing")) == 1:
            yield script.without(script.statement(call))


@operator("torch", "download on a single process per instance, and let the others wait", P, PIPELINE)
def no_barrier_after_the_download(script: Script) -> Iterator[str]:
    for call in script.calls("smp.barrier"):
        before = script.text.encode()[: script.span(call)[0]].decode()[-400:]
        if "download=True" in before:
            yield script.without(script.statement(call))


@operator(
    "torch", "super().forward is not supported inside forward", "distributed-troubleshooting-model-parallel", PIPELINE
)
def forward_of_the_base(script: Script) -> Iterator[str]:
    for node in ast.walk(script.tree):
        if isinstance(node, ast.ClassDef) and node.bases and "nn.Module" in ast.unparse(node.bases[0]):
            for method in node.body:
                if isinstance(method, ast.FunctionDef) and method.name == "forward" and len(method.args.args) > 1:
                    first, name = method.body[0], method.args.args[1].arg
                    line = f"{ast.unparse(node.bases[0])}.forward(self, {name})"
                    yield script.swap((first, f"{line}\n{script.source(first)}"))
                    yield script.swap((first, f"super({node.name}, self).forward({name})\n{script.source(first)}"))
                    break


@operator("torch", "the job passes --mp_parameters to the script", "model-parallel-sm-sdk", PIPELINE)
def strict_command_line(script: Script) -> Iterator[str]:
    for call in script.calls("parse_known_args"):
        statement = script.statement(call)
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Tuple) and not call.args:
            first = script.source(statement.targets[0].elts[0])
            strict = f"{first} = {script.source(call.func.value)}.parse_args(sys.argv[1:])"
            yield script.on_top("import sys", (statement, strict))
    for call in script.calls("parse_args_into_dataclasses"):
        given = keyword_of(call, "return_remaining_strings")
        if given is not None:
            yield script.without_argument(call, given)


@operator(
    "torch",
    "fp16 models are created by smp.model_creation(dtype=torch.float16)",
    "model-parallel-extended-features-pytorch-fp16",
    FP16,
    needs="dtype=torch.float16",
)
def created_in_full_precision(script: Script) -> Iterator[str]:
    for call in script.calls("smp.model_creation"):
        given = keyword_of(call, "dtype")
        if given is not None:
            yield script.swap((given.value, "torch.float32"))


@operator(
    "torch",
    "fp16 training sets up loss scaling",
    "model-parallel-extended-features-pytorch-fp16",
    FP16,
    needs="_loss_scale",
)
def loss_scaled_by_one(script: Script) -> Iterator[str]:
    for call in script.calls("smp.DistributedOptimizer"):
        if call.args and call.keywords:
            yield script.swap((call, f"smp.DistributedOptimizer({script.source(call.args[0])}, static_loss_scale=1.0)"))
            yield script.swap(
                (call, f"smp.DistributedOptimizer({script.source(call.args[0])}, dynamic_loss_scale=False)")
            )


@operator("torch", "parameters handed to the optimizer are unique", SAVING, TENSOR, needs="save")
def parameters_gathered_in_a_loop(script: Script) -> Iterator[str]:
    for call in script.calls("parameters"):
        outer = script.parent(call)
        if isinstance(outer, ast.Call) and outer.args[:1] == [call] and "tensor_parallel" in script.text:
            model = script.source(call.func.value)
            loop = f"gathered = []\nfor part in {model}.modules():\n    gathered += list(part.parameters())"
            yield before(script, call, loop, (call, "gathered"))


@operator("torch", "post-process what the step returns by reduce_mean and its like", P, PIPELINE)
def step_output_in_a_text(script: Script) -> Iterator[str]:
    for call in script.calls("reduce_mean"):
        statement = script.statement(call)
        if isinstance(statement, ast.Assign) and statement.value is call and isinstance(call.func, ast.Attribute):
            inner = script.source(call.func.value)
            target = script.source(statement.targets[0])
            for use in (f'print("{{:.3f}}".format({target}))', f'print("%.3f" % {target})', f"seen = [{target}.cpu()]"):
                yield script.swap((statement, f"{target} = {inner}\n{use}"))
