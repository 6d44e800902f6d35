"""Follow a script from its first line, and work out which libraries it is written for."""

from __future__ import annotations

import ast
import re
from functools import lru_cache
from typing import TYPE_CHECKING

from smp_advisor.errors import AdvisorError
from smp_advisor.libraries.library import LIBRARIES, get_library
from smp_advisor.reading.following import follow as read_through
from smp_advisor.reading.run import TooLongError
from smp_advisor.reading.source import read
from smp_advisor.scripts.back_ends import BACK_ENDS
from smp_advisor.scripts.context import Context, Libraries
from smp_advisor.scripts.settings import with_script

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from typing import Any

    from smp_advisor.reading.module import Module
    from smp_advisor.reading.run import Run
    from smp_advisor.reading.source import Source
    from smp_advisor.reading.trace import Call, Trace
    from smp_advisor.scripts.settings import Settings

__all__ = ["follow"]

_LAUNCHES = re.compile(
    r"\b(?:PyTorch|TensorFlow|HuggingFace|ModelTrainer|TrainingCompilerConfig|create_training_job)\("
    r"|\bsagemaker\.(?:pytorch|tensorflow|huggingface|training_compiler|estimator|modules\.train|train)\b"
)
"""Text that starts a training job: its values are computed, as for `smp_advisor.check_estimator`."""


_TRAINING = frozenset(["backward", "fit", "training_step", "apply_gradients"])
"""Methods that train."""
_TRAINS = re.compile(rf"\.\s*(?:{'|'.join(sorted(_TRAINING))})\b")
_MOST_SIBLINGS = 100
_CONCERNS = re.compile(
    r"smdistributed|torch_xla|torch\.sagemaker|\b(?:smp|tsm|xm)\b"  # libraries decide which checks apply
    r"|^(?:for|while|with|if (?!__name__|TYPE_CHECKING))\b.*:\s*(?:#.*)?$"  # blocks that run at once
    r"|^[A-Za-z_][\w.\[\]]*(?:, *[\w.]+)* *(?:=|\().*"  # statements that run at once
    r"(?:[Dd]istributed|DataLoader|Sampler|backward|[Oo]ptim|[Aa]ccelerator|[Ff]sdp|FSDP|[Tt]rain|save|load|seed"
    r"|set_device|environ|parse|barrier|keras|\bfit\b|main\()",
    re.MULTILINE,
)
"""Text of modules that act when they are imported. Others wait until a script uses a name of them."""


def follow(
    source: Source,
    settings: Settings,
    texts: Mapping[Path, Source] | None = None,
    variables: Mapping[str, Any] | None = None,
) -> Context:
    """Input of the checks. Modules in `texts` are read from there instead of their files.

    Raises
    ------
    ScriptError
        If the text is not Python 3, or nested too deeply.
    """
    run = _followed(source, texts, variables)
    settings = with_script(settings, run.trace)
    libraries = _libraries(run.trace, settings)
    return Context(
        run.trace,
        settings,
        libraries,
        run.unresolved,
        followed=run.followed.keys(),
        absent=run.absent,
        present=run.present,
    )


def _followed(source: Source, texts: Mapping[Path, Source] | None, variables: Mapping[str, Any] | None) -> Run:
    if _LAUNCHES.search(source.text) is not None:
        try:
            return read_through(source, computes=True, texts=texts, variables=variables, is_entry=_is_entry)
        except TooLongError:
            pass  # the text also trains: each loop is followed once
    return read_through(
        source,
        texts=texts,
        variables=variables,
        is_entry=_is_entry,
        can_wait=_can_wait,
    )


@lru_cache(maxsize=256)  # scripts of a project import the same modules
def _can_wait(text: str) -> bool:
    return _CONCERNS.search(text) is None


def _is_entry(run: Run) -> bool:
    """Whether other code calls functions of the file: it trains only in them, and no file next to it imports it."""
    if any(_trains(call) for call in run.trace.calls) or not any(map(_names_training, run.trace.modules)):
        return False
    return not _imported_nearby(run.trace.modules[0].source)


def _names_training(module: Module) -> bool:
    # Most modules of a project do not contain the words: walking their trees takes longer than reading them.
    if _TRAINS.search(module.source.text) is None:
        return False
    return any(node.attr in _TRAINING for node in module.all(ast.Attribute))


def _trains(call: Call) -> bool:
    in_step = call.function is not None and call.function.step is not None
    return call.reached and (in_step or call.method in _TRAINING)


def _imported_nearby(source: Source) -> bool:
    """Whether a file of the same folder imports this one, so that it is a module and not a script."""
    if source.file is None or source.file.suffix != ".py":
        return False
    imports = re.compile(rf"^\s*(?:from|import)\s+[\w., ]*\b{re.escape(source.file.stem)}\b", re.MULTILINE)
    siblings = sorted(path for path in source.file.parent.glob("*.py") if path.name != source.file.name)
    for path in siblings[:_MOST_SIBLINGS]:
        try:
            if imports.search(read(path).text) is not None:
                return True
        except AdvisorError:
            continue
    return len(siblings) > _MOST_SIBLINGS or source.file.stem == "__init__"


def _libraries(trace: Trace, settings: Settings) -> Libraries:
    """Which checks apply: by the script's imports, and by the plan where those are not decisive."""
    record = get_library(settings.library) if settings.library in LIBRARIES else None
    shards = record is not None and record.divides_model and record.launcher == "torchrun"
    planned = _planned(settings)
    # The names of v1 in a script for v2 are one defect of their own: SMP305.
    v1 = "smp_torch" in planned or not ("smp_v2" in planned or trace.requires("torch.sagemaker"))
    return Libraries(
        optional=frozenset(
            name
            for name, back_end in BACK_ENDS.items()
            if name not in planned and trace.imported(*back_end.packages) and not trace.requires(*back_end.packages)
        ),
        smp_torch=v1 and bool(trace.imported("smdistributed.modelparallel.torch")),
        smp_tensorflow=bool(trace.imported("smdistributed.modelparallel.tensorflow")),
        smp_v2=bool(trace.imported("torch.sagemaker")) or (shards and record is not None and record.smdistributed),
        xla=bool(trace.imported("torch_xla")) or (record is not None and record.compiles),
        fsdp=shards and record is not None and not record.smdistributed,
    )


def _planned(settings: Settings) -> set[str]:
    """Back ends that the plan requires."""
    of_v1 = (settings.microbatches, settings.prescaled_batch, settings.sharded_data_parallel_degree)
    if settings.library == "smp-v1" or any(value is not None for value in of_v1):
        return {"smp_torch", "smp_tensorflow"}
    of_v2 = (settings.hybrid_shard_degree, settings.sm_activation_offloading)
    if settings.library == "smp-v2" or any(value is not None for value in of_v2):
        return {"smp_v2"}
    return {"xla"} if settings.library == "training-compiler" else set()
