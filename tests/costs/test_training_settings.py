"""Settings of the training script: what each saves or costs, and which libraries and plans have it."""

import math
import re
from dataclasses import replace
from typing import Any

import pytest

from smp_advisor.cluster import Cluster
from smp_advisor.costs import estimate
from smp_advisor.costs.estimate import Estimate, StageMemory
from smp_advisor.costs.evaluate import memory_columns
from smp_advisor.costs.guesses import guesses
from smp_advisor.errors import AdvisorError, JobError, PlanError
from smp_advisor.libraries import Plan, libraries
from smp_advisor.libraries.layout import Layout, layout_of
from smp_advisor.libraries.state_bytes import fully_sharded, over_frozen
from smp_advisor.session.advise import advise
from smp_advisor.workload import Adapter, Job, Model
from smp_advisor.workload.stack import training_settings
from tests.costs.shapes import a100s

MODEL = Model.from_shape(family="llama", layers=16, hidden=2048, heads=16, vocab=32_000)
GPUS = 8
GIB = 2**30
JOB = Job(sequence_length=2048, precision="bf16", attention="fused")


def run(library: str = "fsdp", plan: dict[str, Any] | None = None, **settings: Any) -> Estimate:
    return estimate(
        MODEL, Cluster("ml.p4d.24xlarge", 1), replace(JOB, **settings), Plan(library=library, **(plan or {}))
    )


def memory(library: str = "fsdp", plan: dict[str, Any] | None = None, **settings: Any) -> StageMemory:
    return run(library, plan, **settings).memory.peak


def per_parameter(gib: float, shards: int = GPUS) -> float:
    return gib * GIB * shards / MODEL.parameter_count


def test_states_in_16_bits_take_half_of_each_part() -> None:
    mixed, pure = memory(), memory(state_precision="16-bit")
    assert per_parameter(mixed.parameters_gib) == pytest.approx(4)
    assert per_parameter(pure.parameters_gib) == pytest.approx(2)
    assert per_parameter(pure.optimizer_state_gib) == pytest.approx(4)
    small, quantized = memory(state_precision="16-bit", optimizer="adam-8bit"), 2 + 2 * 4 / 256  # with scales
    assert per_parameter(small.optimizer_state_gib) == pytest.approx(quantized)
    # Trainer keeps those of the embedding in fp32 (findings/trainer_keeps_embedding_states_in_fp32.sh).
    of_trainer, share = memory(optimizer="trainer-adam-8bit"), 32_000 * 2048 / MODEL.parameter_count
    assert per_parameter(of_trainer.optimizer_state_gib) == pytest.approx(quantized + (8 - quantized) * share)
    assert memory(optimizer="trainer-adam-8bit", paged_optimizer=True).optimizer_state_gib == 0


def test_a_paged_optimizer_moves_its_state_to_the_host() -> None:
    paged = run(paged_optimizer=True)
    assert paged.memory.peak.optimizer_state_gib == 0
    assert paged.host_memory_gib_per_node == pytest.approx(8 * MODEL.parameter_count / GIB)
    assert sum("paged optimizer" in sentence for sentence in paged.assumptions) == 1
    assert len(set(paged.assumptions)) == len(paged.assumptions)


def test_an_update_in_the_backward_pass_stores_no_gradients() -> None:
    assert memory(optimizer_step="backward").gradients_gib == 0
    with pytest.raises(PlanError, match="cannot accumulate gradients over 2 batches: set gradient_accumulation_steps"):
        run(plan={"gradient_accumulation_steps": 2}, optimizer_step="backward")
    plan = advise("350M", "ml.p4d.24xlarge", library="ddp", global_batch_size=64, optimizer_step="backward").plan
    assert plan.gradient_accumulation_steps == 1


def test_updating_all_parameters_together_needs_one_more_copy_of_a_moment() -> None:
    def of(**settings: Any) -> StageMemory:
        return memory("ddp", sequence_length=128, **settings)  # fewer activations than the step's copies

    at_once, one_by_one = of(optimizer_step="foreach"), of(optimizer_step="loop")
    assert of() == of(optimizer_step="fused"), "as the exported script steps"
    assert at_once.optimizer_step_gib > one_by_one.optimizer_step_gib == 0
    assert of(optimizer_step="fused") == one_by_one


@pytest.mark.parametrize(("loss", "bytes_per_logit"), [("plain", 12), ("chunked", 2), ("fused", 4)])
def test_bytes_per_logit(loss: str, bytes_per_logit: int) -> None:
    logits = JOB.sequence_length * 32_000
    assert memory(loss=loss).logits_gib == pytest.approx(bytes_per_logit * logits / GIB)


def test_gradients_stay_unsharded_only_while_batches_are_accumulated() -> None:
    def gradients(steps: int, **settings: Any) -> float:
        return per_parameter(memory(plan={"gradient_accumulation_steps": steps}, **settings).gradients_gib)

    assert gradients(1, unsharded_accumulation=True) == gradients(4) == pytest.approx(4)
    assert gradients(4, unsharded_accumulation=True) == pytest.approx(4 + 4 * GPUS)
    rounded = gradients(4, unsharded_accumulation=True, gradient_reduction="16-bit")
    assert rounded == pytest.approx(4 + 2 * GPUS)


def test_embeddings_of_their_own_are_gathered_for_their_own_use_only() -> None:
    within, apart = (memory(loss="chunked", separate_embeddings=apart).communication_gib for apart in (False, True))
    # Token table, output layer and final norm in two bytes.
    assert within - apart == pytest.approx(2 * 2048 * (2 * 32_000 + 1) / GIB)


def test_code_with_fused_operations_stores_less() -> None:
    eager, compiled = memory(stack="hf-sdpa"), memory(stack="torch-compile")
    assert compiled.activations_gib < 0.8 * eager.activations_gib
    # Blocks are compiled, and the loss runs as it is written: 16 bytes per logit.
    assert compiled.logits_gib == pytest.approx(16 / 12 * eager.logits_gib)
    assert memory(stack="torch-compile", loss="fused").logits_gib == pytest.approx(eager.logits_gib / 3)
    gpts = (Model.from_shape(layers=16, hidden=2048, heads=16, activation=each) for each in (None, "gelu"))
    values = (estimate(model, Cluster("ml.p4d.24xlarge", 1), JOB, Plan(library="fsdp")) for model in gpts)
    unfused, fused = (value.memory.peak.activations_gib for value in values)
    assert unfused / fused == pytest.approx((34 + 24) / 34, rel=0.05)


def test_grouped_experts_store_no_outputs_and_fp8_weights_have_copies() -> None:
    model = Model.from_shape(
        family="mixtral", layers=8, hidden=2048, heads=32, kv_heads=4, ffn=768, experts=64, experts_per_token=8
    )

    def of(**settings: Any) -> StageMemory:
        return estimate(model, Cluster("ml.p5.48xlarge", 1), replace(JOB, **settings), Plan(library="fsdp")).memory.peak

    saved = of(stack="liger").activations_gib - of(stack="transformer-engine").activations_gib
    assert saved == pytest.approx(8 * 2 * 8 * 2048 * 2048 / GIB)  # layers x bytes x experts x hidden x tokens

    def of_v2(**settings: Any) -> StageMemory:
        cluster, job = Cluster("ml.p5.48xlarge", 1), replace(JOB, **settings)
        return estimate(MODEL, cluster, job, Plan(library="smp-v2", fp8=job.fp8)).memory.peak

    # Inputs that gradients of weights alone read are kept in fp8.
    assert 0.7 < of_v2(fp8=True).activations_gib / of_v2().activations_gib < 0.95
    copies = of_v2(fp8=True).parameters_gib - of_v2().parameters_gib
    assert copies == pytest.approx(2 * 16 * MODEL.groups[0].block.parameters / GIB)


def test_checkpointing_part_of_the_model_is_between_none_and_all_of_it() -> None:
    runs = [
        run(plan={"activation_checkpointing": strategy, "batch_size": 4})
        for strategy in (False, "every_4", "every_2", "operators", "each")
    ]
    stored = [each.memory.peak.activations_gib for each in runs]
    assert stored == sorted(stored, reverse=True)
    assert stored[2] == pytest.approx((stored[0] + stored[-1]) / 2, rel=0.01)
    repeated = [each.time.recomputation_seconds for each in runs]
    assert repeated[0] == 0
    assert repeated[1] == pytest.approx(repeated[-1] / 4)
    assert 0 < repeated[3] < repeated[2] < repeated[-1]


@pytest.mark.parametrize("library", [record.name for record in libraries()])
@pytest.mark.parametrize("name", training_settings())
def test_a_library_trains_with_a_setting_or_refuses_it(library: str, name: str) -> None:
    value = next(reversed(training_settings()[name].values or {True: ""}))
    record = next(record for record in libraries() if record.name == library)
    job = replace(JOB, **{name: value})
    settings = {"smp-v1": {"fp16": True}, "smp-v1-tensorflow": {"horovod": True, "precision": "fp16"}}.get(library, {})
    job = replace(job, precision=Plan(library=library, **settings).precision)
    if name in record.training_settings:
        estimate(MODEL, Cluster("ml.p4d.24xlarge", 1), job, Plan(library=library, **settings))
    else:
        with pytest.raises(AdvisorError, match=f"does not train with {name}={value!r}: leave it out"):
            estimate(MODEL, Cluster("ml.p4d.24xlarge", 1), job, Plan(library=library, **settings))


def test_a_plan_near_full_memory_is_slow_and_has_a_warning() -> None:
    plan = Plan(library="fsdp", activation_checkpointing="each")

    def at(share: float) -> Estimate:
        roomy = a100s(79.0)
        needed = estimate(MODEL, roomy, JOB, plan).needed_gib
        instance = replace(roomy.instance, usable_gpu_memory_gib=needed / share)
        return estimate(MODEL, replace(roomy, instance=instance), JOB, plan)

    roomy, tight, full, over = (at(share) for share in (0.94, 0.975, 1.0, 1.02))
    seconds = roomy.step_seconds
    assert roomy.time.allocator_seconds == over.time.allocator_seconds == 0
    assert tight.step_seconds == pytest.approx(1.3 * seconds)
    assert full.step_seconds == pytest.approx(1.6 * seconds)
    assert "Warning: the plan needs 97 % of the GPU's memory." in tight.assumptions[0]
    assert not any("Near full memory" in sentence for sentence in (*roomy.assumptions, *over.assumptions))


def effect(guess: str) -> float:
    """Logarithm of the other step time over the guessed one."""
    times = re.search(r"a step takes ([\d.]+) (\w+) instead of ([\d.]+) \2;", guess)
    assert times, guess
    return math.log(float(times[1]) / float(times[3]))


def test_what_is_guessed_is_named_with_what_the_other_value_gives() -> None:
    cluster, plan = Cluster("ml.p5.48xlarge", 1), Plan(library="fsdp", activation_checkpointing="each")
    model = Model.from_shape(family="llama", layers=16, hidden=2048, heads=16, vocab=32_000)
    job = replace(JOB, sequence_length=65_536, stack="torch-compile")
    kernel, *others = guesses(model, cluster, job, plan)
    assert not others
    assert "set attention_kernel='flash-3'." in kernel or effect(kernel) > 0
    named = replace(job, attention_kernel="flash-3")
    assert guesses(model, cluster, named, plan) == ()
    faster = estimate(model, cluster, named, plan).step_factors
    slower = estimate(model, cluster, job, plan).step_factors
    assert faster[1] / faster[0] < slower[1] / slower[0]
    left_open = guesses(model, cluster, replace(JOB, sequence_length=65_536), plan)
    assert 1 < len(left_open) <= 3
    assert [abs(effect(guess)) for guess in left_open] == sorted((abs(effect(of)) for of in left_open), reverse=True)
    for library, setting in (("fsdp", "autocast='on'"), ("ddp", "autocast='off'")):  # what each has not
        casts = [of for of in guesses(model, cluster, JOB, Plan(library=library)) if "set autocast" in of]
        assert [(f"set {setting}." in of, effect(of) > 0) for of in casts] == [(True, library == "fsdp")]
    with pytest.raises(JobError, match="eager"):
        replace(JOB, attention="eager", attention_kernel="flash-2")


def test_kinds_of_mixed_precision_and_of_stored_weights() -> None:
    plan = {"activation_checkpointing": "each"}
    cast, autocast = (memory(plan=plan, autocast=of, gradient_reduction="16-bit") for of in ("off", "on"))
    # The stream between blocks is fp32, and so are gathered units; logits are 16 bytes.
    assert autocast.activations_gib > 1.7 * cast.activations_gib
    assert autocast.communication_gib > cast.communication_gib
    assert autocast.logits_gib == pytest.approx(16 / 12 * cast.logits_gib)
    state = layout_of([Plan(library="fsdp")], replace(JOB, autocast="on"), a100s(80)).state_bytes
    assert (state.cast_bytes, state.gathered_element_bytes, state.reduced_bytes, state.fp32_inputs) == (2, 4, 4, True)
    apex, plain = (memory("ddp", attention="eager", stack=of) for of in ("apex", "hf-eager"))
    assert per_parameter(apex.parameters_gib, 1) == pytest.approx(2)
    assert per_parameter(plain.parameters_gib, 1) == pytest.approx(6)
    # DDP has a second copy of fp32 gradients, except in the exported script.
    copies = [memory("ddp", stack=of).communication_gib for of in ("hf-sdpa", "auto")]
    assert per_parameter(copies[0] - copies[1], 1) == pytest.approx(4, abs=0.15)
    # Weights stored in fp8 alone take a byte, and a softmax in one kernel stores 16 bits under autocast, too.
    job, blocks = replace(JOB, adapter=Adapter()), sum(m.inputs * m.outputs for of in MODEL.blocks for m in of.matmuls)
    needed = [
        memory_columns(MODEL, a100s(80), job, Layout.of_columns(over_frozen(fully_sharded(of), of))).needed_bytes[0]
        for of in (replace(job, fp8=True, fp8_weights=True), job)
    ]
    assert needed[1] - needed[0] == pytest.approx(blocks)
    eager = [memory("ddp", attention="eager", stack=of).activations_gib for of in ("torch-compile", "hf-eager")]
    assert eager[0] < 0.8 * eager[1]
    assert per_parameter(memory(optimizer="galore").optimizer_state_gib) == pytest.approx(1.65)
    muon, root = memory(optimizer="muon").optimizer_state_gib, 2 * 32_000 * 2048 + 2048
    assert per_parameter(muon) == pytest.approx(4 + 4 * root / MODEL.parameter_count)


def test_code_that_replaces_nothing_in_a_family_is_not_counted() -> None:
    plan, cluster = Plan(library="fsdp", activation_checkpointing="each"), Cluster("ml.p4d.24xlarge", 1)
    falcon, llama = Model.from_name("tiiuae/falcon-7b"), MODEL
    for model, replaced in ((falcon, False), (llama, True)):
        liger, plain = (estimate(model, cluster, replace(JOB, stack=of), plan) for of in ("liger", "hf-sdpa"))
        assert (liger.needed_gib < plain.needed_gib) == replaced
        assert any("replace nothing in models of the type" in text for text in liger.assumptions) != replaced
    advice = advise("tiiuae/falcon-7b", "ml.p4d.24xlarge", stack="liger", library="fsdp")
    assert advice.job.stack == "hf-sdpa"
    assert any("Liger kernels replace nothing" in text for text in advice.warnings)


def test_replicas_of_shards_reduce_once_per_update_in_the_exported_script() -> None:
    def exchange(**settings: Any) -> float:
        plan = Plan(library="fsdp", sharding_strategy="hybrid_shard", gradient_accumulation_steps=8)
        return estimate(MODEL, Cluster("ml.p4d.24xlarge", 4), replace(JOB, **settings), plan).time.data_parallel_seconds

    assert exchange() < 0.95 * exchange(stack="hf-sdpa")
