"""The extrapolated peak against a steady-state step traced with its optimizer."""

from contextlib import nullcontext
from functools import partial

import pytest

from smp_advisor import Cluster, Job, Model, estimate
from smp_advisor.libraries.ddp import DdpPlan
from tests.deferred import Deferred, deferred
from tests.profiling.shared import net, profiled
from tests.rows import rows

pytestmark = pytest.mark.torch

torch, nn = Deferred("torch"), Deferred("torch.nn")
build_fake, fake_inputs = deferred("smp_advisor.profiling.fake", "build_fake", "fake_inputs")
KnownValuesMode = Deferred("smp_advisor.profiling.known_values", "KnownValuesMode")
example_inputs = Deferred("smp_advisor.profiling.inputs", "example_inputs")
call_model, loss_of = deferred("smp_advisor.profiling.step", "call_model", "loss_of")
checkpoint = Deferred("torch.utils.checkpoint", "checkpoint")
cuda_autocast_rules, gpu_kernels = deferred("smp_advisor.profiling.gpu_kernels", "cuda_autocast_rules", "gpu_kernels")
StepRecorder = Deferred("smp_advisor.profiling.step_recorder", "StepRecorder")
read_model = Deferred("smp_advisor.profiling.profiled_model", "read_model")
measure_step = Deferred("smp_advisor.profiling.step", "measure_step")
stacks = Deferred("smp_advisor.profiling.structure", "stacks")
Settings, compute_dtype = deferred("smp_advisor.profiling.traced_steps", "Settings", "compute_dtype")
trace = Deferred("smp_advisor.profiling.trace", "trace")

GPT2 = {"model_type": "gpt2", "n_embd": 1600, "n_layer": 3, "n_head": 25}
LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 3,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
}  # fmt: skip


def peak_of_two_steps(model, inputs, precision, optimizer):
    """Peak live bytes of the second of two steps, each with its update."""
    recorder = StepRecorder(dict(model.named_parameters()))
    recorder.track([*model.parameters(), *model.buffers(), *inputs.values()])
    rules = cuda_autocast_rules() if precision == "amp" else nullcontext()
    with recorder, gpu_kernels("fused", recorder.on_attention), rules:
        for _ in range(2):
            recorder.restart("forward")
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "amp"):
                loss = loss_of(call_model(model, inputs))
            recorder.mark("backward")
            loss.backward()
            loss = None
            recorder.mark("optimizer")
            optimizer.step()
            recorder.mark("end")
            optimizer.zero_grad(set_to_none=True)
    return recorder.peak_bytes


COMPOSED = [(GPT2, "amp", 512), (LLAMA, "bf16", 1024)]


def traced_passes(values, sequence):
    """Peak bytes of a pass over checkpointed blocks in bf16 beyond parameters and gradients."""
    profiled, mode = read_model(values), KnownValuesMode()
    model = build_fake(lambda: profiled.build(attention="eager"), mode, torch.bfloat16).train()
    inputs = fake_inputs(example_inputs(model).make(1, sequence), mode, torch.bfloat16)
    for block in [model.get_submodule(path) for stack in stacks(model) for path in stack.paths]:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False, preserve_rng_state=False)
    recorder = StepRecorder(dict(model.named_parameters()))
    with mode:
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        recorder.track([*model.parameters(), *(part.grad for part in model.parameters()), *model.buffers()])
        resident = recorder.live_bytes
        with recorder, gpu_kernels("eager", recorder.on_attention):
            recorder.restart("forward")
            loss = loss_of(call_model(model, inputs))
            recorder.mark("backward")
            loss.backward()
            recorder.mark("end")
    return recorder.peak_bytes - resident


WIDE = {"hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8, "vocab_size": 256}
EAGER = [
    ({"model_type": "llama", "intermediate_size": 1408, "num_key_value_heads": 4, **WIDE}, 2048),
    ({"model_type": "mixtral", "intermediate_size": 1024, "num_local_experts": 4, **WIDE}, 1024),
    ({"model_type": "bert", "intermediate_size": 2048, "max_position_embeddings": 1024, **WIDE}, 1024),
    ({"model_type": "gpt2", "n_embd": 512, "n_layer": 4, "n_head": 8, "vocab_size": 256}, 1024),
]


def test_the_gradients_of_scores_stand_beside_a_recomputed_block():
    for values, sequence in EAGER:
        job = Job(
            sequence_length=sequence, precision="bf16", state_precision="16-bit", attention="eager", stack="hf-eager"
        )
        model, plan = Model.from_config(values), DdpPlan(activation_checkpointing=True)
        memory = estimate(model, Cluster("ml.g5.2xlarge", 1), job, plan).memory.peak
        ours = memory.activations_gib + memory.recomputation_gib + memory.logits_gib
        # Less: gradients of the layers' weights, which are large here.
        assert 0.8 <= ours * 2**30 / traced_passes(values, sequence) <= 1.05, values["model_type"]


BYTES = [("fp32", 16, 20), ("bf16", 8, 10), ("fp16", 20, 24), ("amp", 16, 20), ("mixed", 16, 20)]


@pytest.mark.parametrize(("values", "precision", "sequence"), rows(COMPOSED, COMPOSED[1]))  # types mixed by autocast
def test_the_composed_peak_is_the_traced_one(values, precision, sequence):
    settings = Settings(precision=precision, attention="fused", sequence=1024)
    profiled = read_model(values)
    profile = trace(profiled, settings).profile
    # The second of two steps: the optimizer state is resident, and gradients are freed between steps.
    mode, dtype = KnownValuesMode(), compute_dtype(settings.training_precision)
    model = build_fake(lambda: profiled.build(attention=settings.attention), mode, dtype).train()
    inputs = fake_inputs(example_inputs(model).make(2, sequence), mode, dtype)
    blocks = [path for stack in stacks(model) for path in stack.paths]
    with mode:
        optimizer = torch.optim.AdamW(list(model.parameters()), foreach=True)
        peak_bytes = peak_of_two_steps(model, inputs, precision, optimizer)
    composed = profile.peak_memory(2, sequence)
    assert composed.peak_bytes == pytest.approx(peak_bytes, rel=1e-3)
    # With every block checkpointed, autograd keeps what was counted from the inputs of the blocks.
    for block in map(model.get_submodule, blocks):
        block.forward = partial(checkpoint, block.forward, use_reentrant=False, preserve_rng_state=False)
    with mode:
        kept = measure_step(model, inputs, blocks=blocks, precision=precision).saved_bytes
    assert profile.activation_bytes(2, sequence, checkpointing=True) == pytest.approx(kept, rel=0.02)


# Copies of 32 bits with gradients of 16 and of 32 stay; `test_job_precision` has the table of all.
@pytest.mark.parametrize(("precision", "at_rest", "at_peak"), rows(BYTES, *(BYTES[row] for row in (0, 1, 3))))
def test_bytes_a_parameter(precision, at_rest, at_peak):
    layers = net(lambda self, x: self.second(self.first(x)), first=nn.Linear(512, 512), second=nn.Linear(512, 512))
    profile = profiled(layers, precision=precision, inputs=torch.zeros(8, 512))
    peak = profile.peak_memory(1)
    assert peak.phase == "optimizer"
    count = profile.parameter_count
    resident = peak.parameters_bytes + peak.optimizer_state_bytes + peak.gradients_bytes
    assert (resident / count, peak.peak_bytes / count) == pytest.approx((at_rest, at_peak), rel=1e-3)
