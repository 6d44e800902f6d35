"""Every generated script keeps the rules of the training-script checks for SMP v1, SMP101 to SMP135."""

from __future__ import annotations

import ast
from functools import cache

import pytest

from smp_advisor.export import training_script
from tests.export.examples import CASES, TASK_CASES

CELLS = CASES | TASK_CASES


class Script:
    """A script's syntax tree, with what the rules ask of it."""

    def __init__(self, text, plan):
        self.text, self.plan = text, plan
        self.tree = ast.parse(text)
        self.functions = {node.name: node for node in ast.walk(self.tree) if isinstance(node, ast.FunctionDef)}
        called = [node for node in ast.walk(self.tree) if isinstance(node, ast.Call)]
        self.called = {node: ast.unparse(node.func) for node in called}

    def calls(self, name, within=None):
        """Calls of a dotted name in the order of the text."""
        nodes = [node for node in ast.walk(within or self.tree) if self.called.get(node) == name]
        return sorted(nodes, key=lambda node: node.lineno)

    def call(self, name, within=None):
        (node,) = self.calls(name, within)
        return node

    def keyword(self, call, name):
        return next((ast.unparse(keyword.value) for keyword in call.keywords if keyword.arg == name), None)

    def place(self, *names):
        """Lines of `main` on which these are called first."""
        main = self.functions["main"]
        return [self.calls(name, main)[0].lineno for name in names]

    @property
    def steps(self):
        return [
            function
            for function in self.functions.values()
            if any(ast.unparse(decorator).startswith("smp.step") for decorator in function.decorator_list)
        ]

    def rises(self, *names):
        lines = self.place(*names)
        return lines == sorted(lines)


def model_is_only_called_in_steps(script):
    own = {id(node) for step in script.steps for node in ast.walk(step)}
    return all(id(call) in own for call in script.calls("model"))


def step_outputs_are_reduced(script):
    """A step's output is reduced at once, or under the name it is given."""
    reduced = {
        ast.unparse(node.value)
        for node in ast.walk(script.tree)
        if isinstance(node, ast.Attribute) and node.attr == "reduce_mean"
    }
    for name in ("training_step", "evaluation_step"):
        call = script.call(name)
        targets = {
            ast.unparse(node.targets[0])
            for node in ast.walk(script.tree)
            if isinstance(node, ast.Assign) and node.value is call
        }
        if not reduced & (targets | {ast.unparse(call)}):
            return False
    return True


def shards_by_the_right_rank(script):
    group = "rdp" if script.plan.prescaled_batch else "dp"
    (returned,) = [node for node in ast.walk(script.functions["data_parallel"]) if isinstance(node, ast.Return)]
    return ast.unparse(returned.value) == f"(smp.{group}_size(), smp.{group}_rank())"


def loss_is_scaled(script):
    scaled = script.keyword(script.call("smp.DistributedOptimizer"), "dynamic_loss_scale") == "True"
    return scaled is script.plan.fp16


def creates_in_planned_precision(script):
    dtype = {"fp16": "torch.float16", "bf16": "torch.bfloat16", "fp32": "torch.float32"}[script.plan.precision]
    return script.keyword(script.call("smp.model_creation"), "dtype") == dtype


def fp16_uses_the_wrapped_optimizer(script):
    if not script.plan.fp16:
        return True
    scheduler = ast.unparse(script.call("make_scheduler").args[1])
    return scheduler == "optimizer.optimizer" and len(script.calls("optimizer.clip_master_grads")) == 1


def sharded_data_parallelism_is_left_to_clip(script):
    clips = "clip_grad_norm" in script.text or "clip_master_grads(" in script.text
    return not (script.plan.sharded_data_parallel_degree > 1 and clips)


def optimizer_sharding_has_its_options(script):
    call = script.call("smp.DistributedModel")
    options = (script.keyword(call, "overlapping_allreduce"), script.keyword(call, "gradient_as_bucket_view"))
    return not script.plan.shard_optimizer_state or options == ("True", "True")


def checkpoints_are_partial_and_unguarded(script):
    (call,) = script.calls("smp.save_checkpoint", script.functions["save_checkpoint"])
    guards = [ast.unparse(node.test) for node in ast.walk(script.functions["main"]) if isinstance(node, ast.If)]
    saved_by = [test for test in guards if "checkpoint" in test]
    return script.keyword(call, "partial") == "True" and not any("rank" in test for test in saved_by)


def loads_local_files(script):
    """Only a tokenizer that the user names is loaded from the hub, whose cache is safe for several processes."""
    loads = [call for call, name in script.called.items() if name.endswith(".from_pretrained")]
    return not any(word in script.text for word in ("download=", "load_dataset")) and all(
        script.keyword(call, "local_files_only") == "True" or ast.unparse(call.args[0]) == "arguments.tokenizer"
        for call in loads
    )


def says_that_layers_stay_whole(script):
    registers = "smp.tp_register_with_module" in script.text
    needed = script.plan.tensor_parallel_degree > 1 and 'MODEL_TYPE = "gpt_neox"' in script.text
    return registers is needed


RULES = {
    "SMP101": lambda s: s.rises("smp.init", "smp.local_rank", "smp.dp_rank", "smp.DistributedModel"),
    "SMP102": lambda s: len(s.calls("smp.DistributedModel")) == 1,
    "SMP103": lambda s: len(s.calls("smp.DistributedOptimizer")) == 1,
    "SMP104": lambda s: s.rises("smp.DistributedModel", "make_optimizer", "smp.DistributedOptimizer"),
    "SMP105": model_is_only_called_in_steps,
    "SMP106": lambda s: len(s.calls("model.backward")) == 1 and not s.calls("loss.backward"),
    "SMP107": step_outputs_are_reduced,
    "SMP108": lambda s: ast.unparse(s.call("torch.cuda.set_device").args[0]) == "smp.local_rank()",
    "SMP110": lambda s: s.plan.batch_size % s.plan.microbatches == 0,
    "SMP111": shards_by_the_right_rank,
    "SMP112": lambda s: all(
        argument.arg in ("model", "input_ids", "attention_mask", "labels", "pixel_values")
        for step in s.steps
        for argument in step.args.args
    ),
    "SMP113": lambda s: "output_hidden_states" not in s.text and "use_cache=False" in s.text,
    "SMP115": lambda s: "torch.utils.checkpoint" not in s.text,
    "SMP116": lambda s: (
        s.rises("smp.DistributedModel", "checkpoint_activations")
        and len(s.calls("smp.set_activation_checkpointing")) == 2
    ),
    "SMP118": lambda s: loss_is_scaled(s) and creates_in_planned_precision(s),
    "SMP119": fp16_uses_the_wrapped_optimizer,
    "SMP120": sharded_data_parallelism_is_left_to_clip,
    "SMP122": lambda s: s.keyword(s.call("smp.model_creation"), "tensor_parallelism") == "smp.tp_size() > 1",
    "SMP123": lambda s: s.rises("smp.DistributedModel", "smp.DistributedOptimizer", "resume"),
    "SMP124": lambda s: "smp.dp_rank()" in ast.unparse(s.call("torch.manual_seed")),
    "SMP125": lambda s: len(s.calls("data_parallel", s.functions["make_batches"])) == 1,
    "SMP126": checkpoints_are_partial_and_unguarded,
    "SMP127": lambda s: not s.calls("optimizer.state_dict") and not s.calls("model.state_dict"),
    "SMP128": lambda s: s.text.count("model.parameters()") == 1,
    "SMP129": lambda s: ".forward(" not in s.text,
    "SMP131": lambda s: "mp_rank" not in s.text.replace("smp", "") and "mp_size" not in s.text.replace("smp", ""),
    "SMP132": lambda s: (
        not any(word in s.text for word in ("DistributedDataParallel", "GradScaler", "torch.jit", "apex", "autocast"))
    ),
    "SMP133": lambda s: "parse_known_args()" in s.text and "parse_args()" not in s.text,
    "SMP134": loads_local_files,
    "SMP135": says_that_layers_stay_whole,
    "optimizer sharding": optimizer_sharding_has_its_options,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CELLS)
@pytest.mark.parametrize("rule", RULES)
def test_generated_script_keeps_the_rule(name, rule):
    assert RULES[rule](script_of(name))


@cache
def script_of(name):
    case = CELLS[name]
    return Script(training_script(*case.parts), case.plan)


INIT = "    smp.init()  # reads the parameters of the estimator\n"
SET_DEVICE = "    torch.cuda.set_device(smp.local_rank())\n"
STEP = "        optimizer.step()\n"
SAVE = "        if arguments.checkpoint_every and step"

BROKEN = {
    "SMP101": ("60 B", INIT + SET_DEVICE, SET_DEVICE + INIT),
    "SMP105": ("60 B", "    model.eval()\n", "    model.eval()\n    model(input_ids=None)\n"),
    "SMP106": ("60 B", "model.backward(loss)", "loss.backward()"),
    "SMP107": ("60 B", "        ).reduce_mean()\n", "        )\n"),
    "SMP111": ("60 B", "smp.rdp_size(), smp.rdp_rank()", "smp.dp_size(), smp.dp_rank()"),
    "SMP118": ("60 B", "        dynamic_loss_scale=True,\n", ""),
    "SMP119": ("60 B", "make_scheduler(arguments, optimizer.optimizer)", "make_scheduler(arguments, optimizer)"),
    "SMP120": ("sharded data parallelism", STEP, "        optimizer.clip_master_grads(1.0)\n" + STEP),
    "SMP124": ("60 B", "arguments.seed + smp.dp_rank()", "arguments.seed"),
    "SMP126": ("60 B", SAVE, SAVE.replace("arguments", "smp.dp_rank() == 0 and arguments")),
    "SMP133": ("60 B", "arguments, unknown = parser.parse_known_args()", "arguments = parser.parse_args()"),
    "optimizer sharding": ("60 B", "overlapping_allreduce=True, ", ""),
}


@pytest.mark.parametrize("rule", BROKEN)
def test_reading_sees_a_broken_rule(rule):
    """The readings above can fail: each of these scripts breaks one rule."""
    name, original, broken = BROKEN[rule]
    case = CELLS[name]
    text = training_script(*case.parts)
    assert original in text
    assert not RULES[rule](Script(text.replace(original, broken), case.plan))


@pytest.mark.parametrize(("name", "delayed"), [("60 B", True), ("10 B", False), ("sharded data parallelism", False)])
def test_parameters_get_memory_late_where_host_memory_would_not_hold_them(name, delayed):
    """SMP130: 8 ranks x 60 B x 2 bytes crowd 1152 GiB; the third plan delays by its parameter."""
    case = CASES[name]
    assert ("smp.delay_param_initialization(" in training_script(*case.parts)) is delayed


def test_script_says_where_tensor_parallelism_needs_a_registration():
    case = CASES["10 B"]
    unregistered = TASK_CASES["gpt_neox"].model
    assert "smp.tp_register_with_module" in training_script(unregistered, case.cluster, case.job, case.plan)
    assert "smp.tp_register_with_module" not in training_script(*case.parts)


@pytest.mark.torch
def test_layers_of_the_library_are_checkpointed_by_the_plans_strategy():
    """Tensor-parallel layers are an nn.Sequential called seq_layers, to which the strategy applies."""
    import torch

    text = training_script(*CASES["offload"].parts)
    function = next(
        node
        for node in ast.parse(text).body
        if isinstance(node, ast.FunctionDef) and node.name == "checkpoint_activations"
    )
    checkpointed = []

    class Smp:
        @staticmethod
        def set_activation_checkpointing(module, **options):
            checkpointed.append((type(module).__name__, options))

    namespace = {"torch": torch, "smp": Smp}
    exec(ast.unparse(function), namespace)

    class Transformer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.seq_layers = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))

    wrapped = torch.nn.ModuleDict({"module": torch.nn.ModuleDict({"transformer": Transformer()})})
    namespace["checkpoint_activations"](wrapped, "group_2")
    assert checkpointed == [("Sequential", {"strategy": "group_2"})]
    namespace["checkpoint_activations"](wrapped, "none")
    assert len(checkpointed) == 1
    with pytest.raises(SystemExit, match="no layers named seq_layers or h"):
        namespace["checkpoint_activations"](torch.nn.Linear(2, 2), "each")
