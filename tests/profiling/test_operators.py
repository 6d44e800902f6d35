"""Operators of a profile: counted by module and pass, and the input of the step time."""

import dataclasses

import pytest

from smp_advisor.cluster import Cluster
from smp_advisor.costs import estimate
from smp_advisor.libraries import Plan
from smp_advisor.workload import Job, Model
from tests.deferred import Deferred
from tests.profiling.shared import plain_profile, profiled
from tests.rows import rows

pytestmark = pytest.mark.torch

torch = Deferred("torch")
transformers = Deferred("transformers")
read_model = Deferred("smp_advisor.profiling.profiled_model", "read_model")
Settings = Deferred("smp_advisor.profiling.traced_steps", "Settings")
_Tracer = Deferred("smp_advisor.profiling.trace", "_Tracer")
PlainGPT = Deferred("tests.profiling.plain_models", "PlainGPT")
SMALL = {"hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 8}


@pytest.fixture(scope="module")
def plain():
    return plain_profile()


def test_each_operator_has_the_traffic_and_the_products_of_its_module(plain):
    batch, tokens, width = 3, 128, 64
    rows = {(row.phase, row.module, row.operator): row for row in plain.blocks[2].operators}
    elements = 2 * batch * tokens * width  # bytes of the residual stream
    up = rows["forward", "fc", "aten.addmm"]
    assert up.kind == "product"
    assert up.flops(batch, tokens) == 2 * batch * tokens * width * 4 * width
    assert up.bytes(batch, tokens) == elements + 2 * (4 * width * width + 4 * width) + 4 * elements
    back = rows["backward", "fc", "aten.mm"]
    assert (back.count(batch, tokens), back.flops(batch, tokens)) == (2, 2 * up.flops(batch, tokens))
    gelu = rows["forward", "", "aten.gelu"]  # a function of the block itself
    assert (gelu.kind, gelu.count(batch, tokens), gelu.flops(batch, tokens)) == ("memory", 1, 0)
    assert gelu.bytes(batch, tokens) == 2 * 4 * elements
    assert rows["forward", "", "aten._scaled_dot_product_flash_attention"].kind == "attention"
    assert not any("view" in operator or "transpose" in operator for _, _, operator in rows)


@pytest.mark.parametrize(
    ("make", "values"),
    [
        (lambda: PlainGPT(layers=6), {"precision": "amp"}),
        (
            lambda: transformers.LlamaConfig(**SMALL, intermediate_size=256, num_key_value_heads=2),
            {"attention": "eager"},
        ),
    ],
)
def test_operators_add_up_to_the_step_of_the_full_model(make, values):
    """Extrapolated from a few blocks and small sizes, they are those of the full model at another size."""
    model = make()
    settings = {"precision": "bf16", "attention": "fused", "sequence": 256} | values
    profile = profiled(model, **settings)
    tracer = _Tracer(read_model(model), Settings(**settings))
    batch, tokens = tracer.samples.unseen
    step = tracer.step(batch, tokens, 10**6, operators=True)
    expected: dict = {}
    for key, measure in step.operators.items():
        figures = expected.setdefault((key.phase, key.operator), [0, 0, 0])
        for place, figure in enumerate((measure.count, measure.flops, measure.bytes)):
            figures[place] += figure
    every = [*profile.outside_operators, *(row for block in profile.blocks for row in block.operators)]
    found: dict = {}
    for row in every:
        figures = found.setdefault((row.phase, row.operator), [0, 0, 0])
        for place, figure in enumerate((row.count, row.flops, row.bytes)):
            figures[place] += figure(batch, tokens)
    assert found == expected
    for phase, total in (("forward", profile.forward_flops), ("backward", profile.backward_flops)):
        assert sum(row.flops(batch, tokens) for row in every if row.phase == phase) == total(batch, tokens)


FAMILIES = {
    "GPT2Config": (18, {"n_embd": 128, "n_layer": 4, "n_head": 4}),
    "LlamaConfig": (37, {**SMALL, "intermediate_size": 256}),
    "ViTConfig": (11, {**SMALL, "intermediate_size": 512}),
}


@pytest.mark.parametrize("family", rows(FAMILIES, "GPT2Config"))  # with the kernels of ViT
def test_traced_kernels_are_those_of_the_formulas_of_a_family(family):
    """The formulas count kernels in the model's code: a trace of this code has the same ones."""
    launches, values = FAMILIES[family]
    config = getattr(transformers, family)(**values)
    traffic = []
    for model in (Model.from_config(config), Model.from_profile(profiled(config, sequence=256))):
        kernels = model.groups[-1].block.separate
        traffic.append(kernels.elements + kernels.split_elements)
        assert kernels.products + kernels.launches == launches
    assert traffic[1] == pytest.approx(traffic[0], rel=0.06)


def test_a_plain_module_takes_the_time_of_its_operators():
    """The same network, as a family with formulas and as a module of unknown origin, takes the same time."""
    profile = profiled(transformers.GPT2Config(n_layer=2), sequence=1024)
    anonymous = dataclasses.replace(profile, config_json="{}")
    without = profile.as_dict() | {"config_json": "{}"}
    for kind in without["blocks"]["kinds"]:
        kind["operators"] = ()
    cluster, job = Cluster("ml.p4d.24xlarge"), Job(sequence_length=1024, precision="bf16", stack="hf-sdpa")
    plan = Plan(library="ddp", batch_size=8)
    known, traced, approximate = (
        estimate(Model.from_profile(source), cluster, job, plan).step_seconds
        for source in (profile, anonymous, without)
    )
    assert traced == pytest.approx(known, rel=0.03)
    assert abs(traced - known) < abs(approximate - known)


_MODULES = {
    # name: (class of torch.nn, arguments, shape of the input, multiplications of the forward pass)
    "grouped": ("Conv2d", (8, 12, 3), {"groups": 4, "padding": 1}, (2, 8, 5, 7), 2 * 5 * 7 * 12 * 2 * 9),
    "depthwise": ("Conv1d", (512, 512, 4), {"groups": 512}, (3, 512, 10), 3 * 7 * 512 * 4),
    "strided": ("Conv2d", (8, 12, 3), {"stride": 2}, (2, 8, 9, 9), 2 * 4 * 4 * 12 * 8 * 9),
    "solid": ("Conv3d", (4, 6, 3), {"groups": 2}, (1, 4, 5, 5, 5), 27 * 6 * 2 * 27),
    "transposed": ("ConvTranspose2d", (8, 12, 3), {"groups": 4, "stride": 2}, (2, 8, 5, 7), 2 * 5 * 7 * 8 * 3 * 9),
    "linear": ("Linear", (16, 24), {}, (2, 5, 16), 2 * 5 * 16 * 24),
}


@pytest.mark.parametrize("name", _MODULES)
@pytest.mark.parametrize("needs_input", [True, False])
def test_every_gradient_of_a_product_has_the_multiplications_of_its_forward_pass(name, needs_input):
    from torch.utils._python_dispatch import TorchDispatchMode

    from smp_advisor.profiling.flop_formulas import flop_formula

    class Counter(TorchDispatchMode):
        flops = 0

        def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
            result = operator(*args, **(kwargs or {}))
            formula = flop_formula(operator._overloadpacket)
            self.flops += formula(*args, **(kwargs or {}), out_val=result) if formula else 0
            return result

    kind, arguments, keywords, shape, multiplications = _MODULES[name]
    with torch.device("meta"):
        module = getattr(torch.nn, kind)(*arguments, **keywords)
        values = torch.ones(shape, requires_grad=needs_input)
    with Counter() as counter:
        result = module(values)
        assert counter.flops == 2 * multiplications
        result.sum().backward()
    assert counter.flops == 2 * multiplications * (3 if needs_input else 2)


def test_modules_add_up_to_the_model(plain):
    frame, size = plain.modules(), (plain.batch, plain.sequence)
    assert frame["parameters"].sum() == plain.parameter_count
    assert frame["saved_bytes"].sum() == plain.saved_bytes(*size)
    assert frame["forward_flops"].sum() == plain.forward_flops(*size)
    assert frame["saved_share"].sum() == pytest.approx(1)
    assert frame["count"].sum() == len(plain.blocks) + 1
