"""Follow a script from its first line, and say what it is written for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.findings.finding import Unresolved
from smp_advisor.reading.module import ScriptError, parse
from smp_advisor.reading.run import Frame, Run
from smp_advisor.reading.statements import execute, follow_the_rest
from smp_advisor.scripts.context import Context, Libraries
from smp_advisor.scripts.settings import with_script

if TYPE_CHECKING:
    from pathlib import Path

    from smp_advisor.reading.source import Source
    from smp_advisor.reading.trace import Trace
    from smp_advisor.scripts.settings import Settings

__all__ = ["follow"]


def follow(source: Source, settings: Settings, texts: dict[Path, Source] | None = None) -> Context:
    """Everything the checks look at; modules in `texts` are taken from there and not from their files.

    Raises
    ------
    ScriptError
        Where the text is not Python 3, or nested more deeply than can be followed.
    """
    directory = source.file.resolve().parent if source.file is not None else None
    module = parse(source, directory=directory)
    run = Run(texts=texts or {})
    run.trace.modules.append(module)
    for line, reason in source.skipped:
        path, located = source.locate(line)
        run.unresolved.append(
            Unresolved(path=path, line=located, what=f"This cell is not Python ({reason}): left out.")
        )
    try:
        execute(run, Frame(module, module.scope), module.tree.body)
        run.guards.clear()
        follow_the_rest(run)
    except RecursionError:
        raise ScriptError(f"{source.path} cannot be checked: its expressions are nested too deeply.") from None
    settings = with_script(settings, run.trace)
    return Context(run.trace, settings, _libraries(run.trace, settings), run.unresolved)


def _libraries(trace: Trace, settings: Settings) -> Libraries:
    """Which catalogues apply: by the script's imports, and by the plan where those need not tell."""
    return Libraries(
        smp_torch=bool(trace.imported("smdistributed.modelparallel.torch")),
        smp_tensorflow=bool(trace.imported("smdistributed.modelparallel.tensorflow")),
        smp_v2=bool(trace.imported("torch.sagemaker")) or settings.library == "smp-v2",
        xla=bool(trace.imported("torch_xla")) or settings.library == "training-compiler",
        fsdp=settings.library == "fsdp",
    )
