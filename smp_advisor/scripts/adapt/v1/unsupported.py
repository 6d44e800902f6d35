"""Step: replace or remove calls that do not work inside a divided model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from smp_advisor.scripts.adapt.code import dotted, expression, keyword, text_of
from smp_advisor.scripts.adapt.edits import Edits
from smp_advisor.scripts.adapt.imports import add_import, drop_unused_imports

if TYPE_CHECKING:
    from smp_advisor.scripts.adapt.draft import Draft

__all__ = ["replace_unsupported"]

_CHECKPOINT = "smdistributed.modelparallel.torch.patches.checkpoint"


def replace_unsupported(draft: Draft) -> None:  # noqa: C901, PLR0912 - a list of cases
    """Replace or remove unsupported calls, with a to-do for calls that need a decision."""
    survey, edits = draft.survey, Edits()
    checkpoints: set[str] = set()
    for call in survey.calls:
        name = survey.callee(call)
        if name in ("torch.utils.checkpoint.checkpoint", "torch.utils.checkpoint.checkpoint_sequential"):
            last = name.rpartition(".")[2]
            checkpoints.add(last)
            arguments = [arg for arg in call.args if arg.keyword is None or arg.keyword.value != "use_reentrant"]
            if arguments:
                arguments[-1] = arguments[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
            edits.replace(call, call.with_changes(func=cst.Name(last), args=arguments))
        elif name == "torch.compile" or name in ("torch.jit.script", "torch.jit.trace"):
            statement = survey.statement(call)
            argument = call.args[0].value if call.args else None
            parent = survey.parent(call)
            same = (
                isinstance(parent, cst.Assign)
                and argument is not None
                and text_of(parent.targets[0].target) == text_of(argument)
            )
            if same and statement is not None:
                edits.remove(statement)
            elif argument is not None and not isinstance(survey.parent(call), cst.Decorator):
                edits.replace(call, argument)
            else:
                draft.add_todo(
                    f"`{draft.excerpt(call)}`: remove {name}, because the library divides only plain modules."
                )
        elif text_of(call.func) == "super().forward" and getattr(survey.function(call), "name", None) is not None:
            function = survey.function(call)
            if function is not None and function.name.value == "forward":
                edits.replace(call.func, expression("super()._orig_forward"))
        elif name.endswith("fsdp.fully_shard"):
            draft.add_todo(
                f"`{draft.excerpt(call)}`: remove the sharding by PyTorch, because the library shards the model."
            )
        elif name.split(".")[0] == "apex":
            draft.add_todo(
                f"`{draft.excerpt(call)}`: apex is not supported. Use the fused implementations in smp.optimizers and"
                " smp.nn."
            )
        elif name.endswith(("convert_sync_batchnorm", "SyncBatchNorm")):
            draft.add_todo(
                f"`{draft.excerpt(call)}`: the library synchronizes buffers only at the start. Reduce them over"
                " smp.get_dp_process_group() if each step requires it."
            )
        elif isinstance(call.func, cst.Attribute) and call.func.attr.value in (
            "gradient_checkpointing_enable",
            "gradient_checkpointing_disable",
        ):
            statement = survey.statement(call)
            if statement is not None and isinstance(survey.parent(call), cst.Expr):
                edits.remove(statement)
                if not draft.target.activation_checkpointing:
                    draft.add_todo(
                        "The script checkpointed activations with a transformers call that the library does not"
                        " support. The call was removed: enable activation checkpointing in the plan if you need it."
                    )
        elif keyword(call, "closure") is not None and dotted(call.func):
            draft.add_todo(f"`{draft.excerpt(call)}`: an optimizer that calls a closure does not work with smp.step.")
    draft.apply(edits)
    if checkpoints:
        drop_unused_imports(
            draft,
            {
                "torch.utils.checkpoint",
                "torch.utils.checkpoint.checkpoint",
                "torch.utils.checkpoint.checkpoint_sequential",
            },
        )
        _switch_import(draft, checkpoints)


def _switch_import(draft: Draft, names: set[str]) -> None:
    edits = Edits()
    for node in draft.survey.nodes:
        if (
            isinstance(node, cst.ImportFrom)
            and node.module is not None
            and dotted(node.module) == "torch.utils.checkpoint"
        ):
            edits.replace(node.module, expression(_CHECKPOINT))
    draft.apply(edits)
    for name in sorted(names):
        if draft.survey.imported.get(name) != f"{_CHECKPOINT}.{name}":
            add_import(draft, f"from {_CHECKPOINT} import {name}", local=name)
