"""Step: checkpoints are written by the library, from every rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from smp_advisor.scripts.adapt.aliases import names_of
from smp_advisor.scripts.adapt.code import call_text, dotted, names_in, spelled, statements
from smp_advisor.scripts.adapt.edits import Edits
from smp_advisor.scripts.adapt.imports import add_import
from smp_advisor.scripts.adapt.roles import model_places, optimizer_places
from smp_advisor.scripts.adapt.saved import Saved, is_rank_guard, saved_states

if TYPE_CHECKING:
    from smp_advisor.scripts.adapt.draft import Draft
    from smp_advisor.scripts.adapt.survey import Statement, Survey

__all__ = ["drop_variable", "guards", "save_by_library"]

_METRICS = ("loss", "acc", "best", "metric", "score", "held", "val", "ppl", "perplexity", "bleu", "f1")


def save_by_library(draft: Draft) -> None:
    """Replace ``torch.save`` of the model's state."""
    for _ in range(12):
        found = saved_states(draft.survey)
        if not found or not _replace(draft, found[0]):
            break
    _say_what_is_left(draft)


def _say_what_is_left(draft: Draft) -> None:
    """States that are saved in a way that was not taken apart."""
    survey = draft.survey
    places = model_places(survey) | optimizer_places(survey)
    for call in survey.calls:
        if isinstance(call.func, cst.Attribute) and call.func.attr.value == "state_dict" and not call.args:
            owner = (dotted(call.func.value) or "").removesuffix(".module")
            if owner in names_of(survey, places, survey.function(call)):
                draft.leave_to_do(
                    f"`{spelled(call)}` is this rank's part only: save and load by smp.save_checkpoint and"
                    " smp.resume_from_checkpoint."
                )


def _replace(draft: Draft, saved: Saved) -> bool:
    survey, edits = draft.survey, Edits()
    if not saved.plain or not isinstance(saved.statement, cst.SimpleStatementLine):
        draft.leave_to_do(f"`{draft.at(saved.call)}`: save by smp.save_checkpoint, from every rank.")
        return False
    partial = saved.optimizer is not None
    directory, tag, needs_os = _split_path(survey, saved.path)
    if saved.pretrained:
        # The name under which transformers looks for weights in a folder.
        directory, tag, needs_os = spelled(saved.path), '"pytorch_model.bin"', False
        draft.leave_to_do(
            f"`{draft.at(saved.call)}` also wrote the configuration: save it beside the weights, by the configuration's"
            " own save_pretrained, from smp.rank() == 0."
        )
    arguments = [
        f"path={directory}",
        f"tag={tag}",
        f"partial={partial}",
        f"model={saved.model}",
    ]
    if saved.optimizer is not None:
        arguments.append(f"optimizer={saved.optimizer}")
    if saved.content:
        entries = ", ".join(f"{key}: {value}" for key, value in saved.content)
        arguments.append(f"user_content={{{entries}}}")
    new = statements(call_text("smp.save_checkpoint", arguments, width=88))
    above = guards(survey, saved.statement)
    if above is None:
        draft.leave_to_do(
            f"`{draft.at(saved.call)}` runs on some ranks only, by a condition with more in it: every rank has to call"
            " smp.save_checkpoint."
        )
        above = []
    outermost = above[-1] if above else None
    if outermost is not None:
        # What else the guard holds stays in it.
        kept = [s for s in survey.body_of(saved.statement) if s is not saved.statement]
        if kept:
            edits.remove(saved.statement)
            edits.insert_before(outermost, new)
        else:
            new[0] = new[0].with_changes(leading_lines=outermost.leading_lines)
            edits.change(outermost, lambda _: cst.FlattenSentinel(new))
    else:
        new[0] = new[0].with_changes(leading_lines=saved.statement.leading_lines)
        edits.change(saved.statement, lambda _: cst.FlattenSentinel(new))
    drop_variable(survey, edits, saved)
    _say_who_decides(draft, saved)
    draft.apply(edits)
    if needs_os:
        add_import(draft, "import os", local="os")
    if not partial and draft.target.sharded_data_parallel:
        draft.leave_to_do(
            f"smp.save_checkpoint(..., partial=False) of `{directory}` needs library 1.15 with sharded data"
            " parallelism."
        )
    return True


def _say_who_decides(draft: Draft, saved: Saved) -> None:
    """A condition on a metric differs from rank to rank, and all of them have to save."""
    for above in draft.survey.ancestors(saved.statement):
        if isinstance(above, cst.FunctionDef):
            return
        if isinstance(above, cst.If) and any(
            word in name.lower() for name in names_in(above.test) for word in _METRICS
        ):
            draft.leave_to_do(
                f"Every rank has to decide alike whether to save by `{draft.at(above)}`: average what it compares over"
                " smp.get_dp_process_group() first."
            )
            return


def guards(survey: Survey, statement: Statement) -> list[cst.If] | None:
    """Rank conditions around the statement, innermost first; None where one of them holds more than ranks."""
    found: list[cst.If] = []
    for above in survey.ancestors(statement):
        if isinstance(above, cst.FunctionDef | cst.For | cst.While):
            break
        if isinstance(above, cst.If):
            if not is_rank_guard(above.test):
                if "rank" in spelled(above.test):
                    return None
                break
            if above.orelse is not None:
                return None
            found.append(above)
    return found


def _split_path(survey: Survey, path: cst.BaseExpression) -> tuple[str, str, bool]:
    """Directory and name of the file as expressions, and whether they need ``os``."""
    if isinstance(path, cst.SimpleString) and isinstance(path.evaluated_value, str):
        head, _, tail = path.evaluated_value.rpartition("/")
        return repr(head or ".").replace("'", '"'), repr(tail).replace("'", '"'), False
    if isinstance(path, cst.Call) and survey.callee(path) == "os.path.join" and len(path.args) == 2:
        return spelled(path.args[0].value), spelled(path.args[1].value), False
    if isinstance(path, cst.BinaryOperation) and isinstance(path.operator, cst.Divide):
        return spelled(path.left), spelled(path.right), False
    text = spelled(path)
    if isinstance(path, cst.FormattedString):
        head, slash, tail = text.rpartition("/")
        quote = path.start.lstrip("fFrR")
        if "{" not in tail.replace("{{", "") or tail.count("{") == tail.count("}"):
            return (f"{head}{quote}" if slash else '"."'), (f"{path.start}{tail}" if slash else text), False
    return f'os.path.dirname({text}) or "."', f"os.path.basename({text})", True


def drop_variable(survey: Survey, edits: Edits, saved: Saved) -> None:
    """``checkpoint = {...}`` that only ``torch.save`` used."""
    given = saved.call.args[0].value
    if not isinstance(given, cst.Name):
        return
    function = survey.function(saved.call)
    uses = [
        n for n in survey.nodes if isinstance(n, cst.Name) and n.value == given.value and survey.function(n) is function
    ]
    made = survey.assignments(function, given.value)
    if len(uses) == 2 and len(made) == 1:
        statement = survey.statement(made[0])
        if statement is not None:
            edits.remove(statement)
