"""The steps of an adaptation, in order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.scripts.adapt.driven.arguments import set_arguments
from smp_advisor.scripts.adapt.driven.driver import driver_of
from smp_advisor.scripts.adapt.options import accept_unknown_options
from smp_advisor.scripts.adapt.precision import remove_mixed_precision
from smp_advisor.scripts.adapt.torchrun import clipping as torchrun_clipping
from smp_advisor.scripts.adapt.torchrun import launch as torchrun_launch
from smp_advisor.scripts.adapt.torchrun import loader as torchrun_loader
from smp_advisor.scripts.adapt.torchrun import model as torchrun_model
from smp_advisor.scripts.adapt.torchrun import saving as torchrun_saving
from smp_advisor.scripts.adapt.torchrun import scaler as torchrun_scaler
from smp_advisor.scripts.adapt.torchrun import seed as torchrun_seed
from smp_advisor.scripts.adapt.v1.activation_checkpointing import checkpoint_activations
from smp_advisor.scripts.adapt.v1.clipping import clip_by_library
from smp_advisor.scripts.adapt.v1.download import download_once
from smp_advisor.scripts.adapt.v1.evaluation_step import move_evaluation_steps
from smp_advisor.scripts.adapt.v1.grad_scaler import use_library_scaler
from smp_advisor.scripts.adapt.v1.launch import remove_process_group, start_library
from smp_advisor.scripts.adapt.v1.loader import shard_data
from smp_advisor.scripts.adapt.v1.model import wrap_model
from smp_advisor.scripts.adapt.v1.optimizer import wrap_optimizer
from smp_advisor.scripts.adapt.v1.saving import save_by_library
from smp_advisor.scripts.adapt.v1.seed import seed_by_rank
from smp_advisor.scripts.adapt.v1.training_step import move_training_steps
from smp_advisor.scripts.adapt.v1.unsupported import replace_unsupported
from smp_advisor.scripts.adapt.v2 import activation_checkpointing as v2_activation
from smp_advisor.scripts.adapt.v2 import clipping as v2_clipping
from smp_advisor.scripts.adapt.v2 import launch as v2_launch
from smp_advisor.scripts.adapt.v2 import loader as v2_loader
from smp_advisor.scripts.adapt.v2 import model as v2_model
from smp_advisor.scripts.adapt.v2 import saving as v2_saving

if TYPE_CHECKING:
    from smp_advisor.scripts.adapt.draft import Step
    from smp_advisor.scripts.adapt.survey import Survey
    from smp_advisor.scripts.adapt.target import Target

__all__ = ["steps_for"]


def steps_for(survey: Survey, target: Target) -> list[tuple[str, Step]]:
    """Steps in order, each with its key in ``steps.toml``; each step reads the result of the previous one."""
    driver = driver_of(survey)
    if driver is not None:
        return [(f"{driver.runner}.arguments", set_arguments)]
    if target.kind == "smp_fsdp":
        return _v2()
    if target.kind != "smp_step":
        return _torchrun(target)
    precision: tuple[str, Step] = (
        ("v1.precision", remove_mixed_precision) if target.half else ("v1.grad_scaler", use_library_scaler)
    )
    return [
        ("v1.options", accept_unknown_options),
        ("v1.process_group", remove_process_group),
        ("v1.launch", start_library),
        ("v1.download", download_once),
        ("v1.seed", seed_by_rank),
        ("v1.loader", shard_data),
        precision,
        ("v1.unsupported", replace_unsupported),
        ("v1.model", wrap_model),
        ("v1.activation_checkpointing", checkpoint_activations),
        ("v1.optimizer", wrap_optimizer),
        ("v1.training_step", move_training_steps),
        ("v1.evaluation_step", move_evaluation_steps),
        ("v1.clipping", clip_by_library),
        ("v1.saving", save_by_library),
    ]


def _torchrun(target: Target) -> list[tuple[str, Step]]:
    wrap: dict[str, list[tuple[str, Step]]] = {
        "ddp": [("ddp.model", torchrun_model.replicate_models)],
        "fsdp": [
            ("fsdp.seed", torchrun_seed.seed_models),
            ("fsdp.scaler", torchrun_scaler.use_sharded_scaler),
            ("fsdp.model", torchrun_model.shard_models),
            ("fsdp.activation_checkpointing", v2_activation.checkpoint_activations),
            ("fsdp.clipping", torchrun_clipping.clip_over_shards),
        ],
        "fsdp2": [
            ("fsdp2.seed", torchrun_seed.seed_models),
            ("fsdp2.model", torchrun_model.shard_models_by_tensor),
        ],
    }
    kind = target.kind
    return [
        ("torchrun.launch", torchrun_launch.start_processes),
        ("torchrun.download", torchrun_launch.download_once),
        ("torchrun.loader", torchrun_loader.shard_data),
        *wrap[kind],
        (f"{kind}.saving", torchrun_saving.save_on_first_rank if kind == "ddp" else torchrun_saving.save_full_state),
    ]


def _v2() -> list[tuple[str, Step]]:
    return [
        ("v2.options", accept_unknown_options),
        ("v2.launch", v2_launch.start_library),
        ("v2.loader", v2_loader.shard_data),
        ("v2.precision", remove_mixed_precision),
        ("v2.model", v2_model.shard_model),
        ("v2.activation_checkpointing", v2_activation.checkpoint_activations),
        ("v2.clipping", v2_clipping.clip_over_shards),
        ("v2.saving", v2_saving.save_full_state),
    ]
