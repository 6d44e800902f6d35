"""Training precisions and attention kernels of a job in its library."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, Literal

from smp_advisor.errors import ProfileError
from smp_advisor.libraries.library import get_library, library_with
from smp_advisor.libraries.version import installed_by, release, transformers_families

if TYPE_CHECKING:
    from smp_advisor.libraries.plan import Plan
    from smp_advisor.profiling.profiled_model import ProfiledModel
    from smp_advisor.workload.job import Job


Precision = Literal["fp32", "amp", "bf16", "fp16", "mixed"]


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingPrecision:
    """Bytes per parameter between steps, and the size of activations."""

    precision: Precision
    label: str
    """Text shown to the user."""
    parameter_bytes: int = 4
    """Bytes of a stored parameter."""
    gradient_bytes: int = 4
    """Bytes of a gradient between the backward pass and the optimizer step."""
    moment_bytes: int = 4
    """Bytes of one moment: Adam has two, SGD with momentum has one."""
    copy_bytes: int = 0
    """fp32 master parameters and gradients, in addition to the 16-bit ones."""
    gathers: bool = False
    """Whether layers compute with 16-bit copies of stored fp32 parameters, which exist for a few blocks at a time."""

    @property
    def title(self) -> str:
        """Its name within a sentence."""
        return "FSDP's mixed precision" if self.gathers else self.precision

    def state_bytes(self, optimizer: str = "adam") -> int:
        """Bytes of optimizer state per parameter, including master copies; an unlisted optimizer counts as Adam."""
        if optimizer in _QUANTIZED_MOMENTS:
            return _QUANTIZED_MOMENTS[optimizer] + self.copy_bytes
        return _MOMENTS.get(optimizer, _MOMENTS["adam"]) * self.moment_bytes + self.copy_bytes

    def rise_bytes(self, optimizer: str) -> int:
        """Bytes of temporaries of an optimizer step per parameter: of all of them at once, PyTorch's default on a GPU.

        AdamW has one temporary, also where its step updates fp32 copies; SGD has none (traced with PyTorch 2.13).
        """
        return 0 if optimizer in {"sgd", "plain-sgd"} else 4 if self.copy_bytes else self.parameter_bytes


_MOMENTS = {"adam": 2, "sgd": 1, "lion": 1, "muon": 1, "plain-sgd": 0, "adafactor": 0}
_QUANTIZED_MOMENTS = {"adam-8bit": 2, "trainer-adam-8bit": 2, "adam-4bit": 1, "galore": 2}
"""Bytes of both moments."""


_ALL = (
    TrainingPrecision(precision="fp32", label="fp32"),
    TrainingPrecision(precision="amp", label="mixed precision by torch.autocast"),
    TrainingPrecision(precision="bf16", label="pure bf16", parameter_bytes=2, gradient_bytes=2, moment_bytes=2),
    # SMP v1's fp16 enables FP16_Module and FP16_Optimizer: 20 bytes per parameter (SMP documentation, Introduction to
    # model parallelism).
    TrainingPrecision(
        precision="fp16",
        label="fp16 with fp32 master copies, as SMP v1 wraps the model",
        parameter_bytes=2,
        gradient_bytes=2,
        copy_bytes=8,
    ),
    # FSDP's MixedPrecision and MixedPrecisionPolicy store and update fp32 shards: 16 bytes per parameter with Adam.
    TrainingPrecision(
        precision="mixed", label="16-bit layers over fp32 parameters, as FSDP gathers them", gathers=True
    ),
)
PRECISIONS: dict[str, TrainingPrecision] = {entry.precision: entry for entry in _ALL}


def training_precision(precision: object) -> TrainingPrecision:
    """TrainingPrecision by name."""
    if not isinstance(precision, str) or precision not in PRECISIONS:
        raise ProfileError(f"precision must be one of {', '.join(PRECISIONS)}, not {precision!r}.")
    return PRECISIONS[precision]


def higher_precision(precision: str) -> str:
    """The precision to try if a forward pass fails in this one: autocast for 16 bits, then fp32; empty after that."""
    return {"fp16": "amp", "bf16": "amp", "mixed": "amp", "amp": "fp32"}.get(precision, "")


def usual_library() -> str:
    """Return the library that stands for those from which `advise` chooses: PyTorch's own, with the stack of SMP v2."""
    return library_with(framework="pytorch", smdistributed=False, divides_model=True).name


def precision_of_job(
    job: Job, *, requested: str | None = None, library: str | None = None, plan: Plan | None = None
) -> Precision:
    """Key of `PRECISIONS` for a job."""
    if requested is not None:
        return training_precision(requested).precision
    name = plan.library if plan is not None else usual_library() if library in {None, "auto"} else str(library)
    record = get_library(name)
    if plan is not None:
        precision = plan.precision
    else:
        precision = record.default_precision if "precision" in job.defaulted() else job.precision
    if precision == "fp32":
        return "fp32"
    return "bf16" if job.state_precision == "16-bit" else record.half_precision


_FIRST_FUSED = (2,)
"""First PyTorch release with fused attention of its own."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionKernel:
    """An attention kernel, and why it is traced."""

    name: Literal["fused", "eager"]
    reason: str
    """A phrase without a period."""
    is_only: bool = False
    """Whether the code of the model has no other form in the versions of the job."""


def kernel_for(
    profiled: ProfiledModel | None,
    *,
    requested: Literal["fused", "eager"] | None = None,
    library: str | None = None,
    library_version: str = "",
) -> AttentionKernel:
    """Kernel of a model in the versions that a library's job installs.

    Before PyTorch 2 (SMP v1) attention is eager. From PyTorch 2 on, it depends on the release of transformers that the
    container has or the generated script installs, whatever release is installed here.
    """
    if requested is not None:
        return AttentionKernel(name=requested, reason="as requested")
    name = usual_library() if library in {None, "auto"} else str(library)
    family = "" if profiled is None else getattr(profiled.config, "model_type", None) or ""
    job = installed_by(name, family, library_version)
    title = get_library(name).title
    if get_library(name).framework == "tensorflow":
        return AttentionKernel(name="eager", reason=f"{title} runs TensorFlow, whose attention stores the scores")
    pytorch = f"PyTorch {job.framework_version}"
    if release(job.framework_version) < _FIRST_FUSED:
        return AttentionKernel(name="eager", reason=f"{pytorch} of {title}'s container has no fused attention")
    # Other modules may have such a configuration, too.
    if profiled is None or not str(_class_of(profiled).__module__).startswith("transformers."):
        return AttentionKernel(
            name="fused", reason=f"the model's own code, with the fused kernel of {pytorch} ({title})"
        )
    if family not in transformers_families() or not job.transformers_version:
        return _of_this_machine(profiled, family)
    source = (
        f"{title}'s container {job.repository} {job.framework_version} has"
        if job.from_container
        else f"the generated script for {title} installs"
    )
    installs = f"{source} transformers {job.transformers_version} ({pytorch})"
    if transformers_families()[family].is_fused(job.transformers_version):
        lacking = ""
        if not _is_fused_here(profiled):
            lacking = (
                f"; transformers {_local_version()}, which traced it here, has no such form, so scores are counted"
            )
        return AttentionKernel(name="fused", reason=f"{installs}, whose code of {family} runs fused attention{lacking}")
    return AttentionKernel(
        name="eager", reason=f"{installs}, whose code of {family} has no fused attention", is_only=True
    )


def _of_this_machine(profiled: ProfiledModel, family: str) -> AttentionKernel:
    here = f"no script is generated for {family}, and transformers {_local_version()} of this machine"
    if _is_fused_here(profiled):
        return AttentionKernel(name="fused", reason=f"{here} runs fused attention")
    return AttentionKernel(name="eager", reason=f"{here} has no fused attention of it", is_only=True)


def _is_fused_here(profiled: ProfiledModel) -> bool:
    return bool(getattr(_class_of(profiled), "_supports_sdpa", False))


def _class_of(profiled: ProfiledModel) -> Any:
    return profiled.model_class or type(profiled.module)


def _local_version() -> str:
    try:
        return version("transformers")
    except PackageNotFoundError:
        return "of an unknown version"
