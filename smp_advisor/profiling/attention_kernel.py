"""The attention kernel that a job will run: that of the versions which its library and its script install."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, Literal

from smp_advisor.libraries.library import get_library
from smp_advisor.libraries.version import installed_by, release, transformers_families
from smp_advisor.profiling.precision import usual_library

if TYPE_CHECKING:
    from smp_advisor.profiling.profiled_model import ProfiledModel

__all__ = ["AttentionKernel", "kernel_for"]

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

    Parameters
    ----------
    profiled
        None for a training script.
    requested
        Kernel that the user requested; None derives it.
    library
        None and ``auto`` stand for the libraries from which `advise` chooses.
    library_version
        Version of the library; empty for its default.
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
    if profiled is None or not _is_of_transformers(profiled):
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


def _is_of_transformers(profiled: ProfiledModel) -> bool:
    """Whether the model's code is that of transformers: other modules may have such a configuration, too."""
    return str(_class_of(profiled).__module__).startswith("transformers.")


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
