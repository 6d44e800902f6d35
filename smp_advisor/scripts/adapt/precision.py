"""Steps: mixed precision, gradient scalers and clipping, as the library or FSDP does them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

from smp_advisor.scripts.adapt.aliases import Place, aliases_of, names_of
from smp_advisor.scripts.adapt.code import Edits, dotted, expression, keyword, names_in, positional, text_of, walk
from smp_advisor.scripts.adapt.draft import add_import, drop_unused_imports
from smp_advisor.scripts.adapt.launch import IMPORT
from smp_advisor.scripts.adapt.roles import optimizer_places
from smp_advisor.scripts.adapt.survey import Survey, known_names, targets_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from smp_advisor.scripts.adapt.draft import Draft


AUTOCAST = frozenset(known_names("autocast"))
SCALER = frozenset(known_names("gradient_scalers"))


def scalers(survey: Survey) -> list[cst.Call]:
    """Calls that create a PyTorch gradient scaler."""
    return [call for call in survey.calls if survey.callee(call) in SCALER]


def remove_mixed_precision(draft: Draft) -> None:  # noqa: C901 - a list of cases
    """Remove ``autocast`` and the gradient scaler; keep the code inside them."""
    survey, edits = draft.survey, Edits()
    places: set[Place] = set()
    for call in scalers(survey):
        parent = survey.parent(call)
        if isinstance(parent, cst.Assign | cst.AnnAssign):
            statement = survey.statement(call)
            for target in targets_of(parent):
                name = dotted(target)
                if name is not None:
                    places |= aliases_of(survey, (survey.function(call), name))
            if statement is not None:
                edits.remove(statement)
        else:
            draft.add_todo("remove_scaler", call)
    for call in survey.calls:
        if not isinstance(call.func, cst.Attribute):
            continue
        owner = dotted(call.func.value)
        if owner is not None and owner in names_of(survey, places, survey.function(call)):
            _drop_use(draft, edits, call)
    _drop_arguments(draft, edits, places)
    for node in survey.nodes:
        if isinstance(node, cst.With):
            _drop_autocast(draft, edits, node)
        elif isinstance(node, cst.Decorator) and _is_call_of(survey, node.decorator, AUTOCAST):
            edits.remove(node)
    draft.apply(edits)
    drop_unused_imports(draft, {*AUTOCAST, *SCALER, "torch.cuda.amp", "torch.amp"})


def _is_call_of(survey: Survey, node: cst.CSTNode, names: frozenset[str]) -> bool:
    return isinstance(node, cst.Call) and survey.callee(node) in names


def _drop_use(draft: Draft, edits: Edits, call: cst.Call) -> None:
    survey = draft.survey
    method = cst.ensure_type(call.func, cst.Attribute).attr.value
    if method == "scale" and call.args:
        edits.replace(call, call.args[0].value)
    elif method == "step" and call.args:
        edits.replace(call, expression(f"{text_of(call.args[0].value)}.step()"))
    elif method in ("update", "unscale_", "load_state_dict") and isinstance(survey.parent(call), cst.Expr):
        statement = survey.statement(call)
        if statement is not None:
            edits.remove(statement)
    elif method == "state_dict":
        edits.replace(call, expression("{}"))
    else:
        draft.add_todo("scaler_used", call)


def _drop_arguments(draft: Draft, edits: Edits, places: set[Place]) -> None:
    """Remove the scaler from the parameters of functions and from the arguments of their calls."""
    survey = draft.survey
    for node in survey.nodes:
        function = survey.function(node)
        if isinstance(node, cst.FunctionDef):
            names = names_of(survey, places, node)
            params = node.params
            parameters = [p for p in params.params if p.name.value not in names]
            if len(parameters) != len(params.params):
                if parameters:
                    parameters[-1] = parameters[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
                edits.replace(params, params.with_changes(params=parameters))
        elif isinstance(node, cst.Call):
            names = names_of(survey, places, function)
            arguments = [arg for arg in node.args if dotted(arg.value) not in names]
            callee = dotted(node.func) or ""
            local = survey.named(callee.rpartition(".")[2]) or survey.classes_named(callee)
            if len(arguments) != len(node.args) and local:
                if arguments:
                    arguments[-1] = arguments[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
                edits.change(node, _with_arguments(arguments))
        elif isinstance(node, cst.Assign) and dotted(node.value) in names_of(survey, places, function):
            statement = survey.statement(node)
            if statement is not None:
                edits.remove(statement)


def _with_arguments(args: list[cst.Arg]) -> Callable[[cst.Call], cst.Call]:
    return lambda call: call.with_changes(args=args)


def _drop_autocast(draft: Draft, edits: Edits, block: cst.With) -> None:
    survey = draft.survey
    items = [
        item
        for item in block.items
        if not (isinstance(item.item, cst.Call) and survey.callee(item.item) in AUTOCAST)
        and not (isinstance(item.item, cst.Name) and _is_autocast(survey, block, item.item.value))
    ]
    if len(items) == len(block.items):
        return
    if items:
        items[-1] = items[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
        edits.change(block, lambda new: new.with_changes(items=items))
        return

    def unwrap(new: cst.With) -> Any:
        body = list(new.body.body)
        if body and isinstance(body[0], cst.SimpleStatementLine | cst.BaseCompoundStatement):
            body[0] = body[0].with_changes(leading_lines=[*new.leading_lines, *body[0].leading_lines])
        return cst.FlattenSentinel(body)

    edits.change(block, unwrap)


def _is_autocast(survey: Survey, block: cst.With, name: str) -> bool:
    assignments = survey.assignments(survey.function(block), name) or survey.assignments(None, name)
    return bool(assignments) and all(
        isinstance(a.value, cst.Call) and survey.callee(a.value) in AUTOCAST for a in assignments
    )


def use_library_scaler(draft: Draft) -> None:
    """Replace PyTorch's ``GradScaler`` by ``smp.amp.GradScaler``."""
    edits = Edits()
    for call in scalers(draft.survey):
        options = [arg for arg in call.args if arg.keyword is not None]
        # smp.amp.GradScaler has no device, the first argument of torch.amp.GradScaler("cuda").
        new = expression("smp.amp.GradScaler()")
        edits.replace(call, new.with_changes(args=[arg for arg in options if arg.keyword.value != "device"]))  # type: ignore[union-attr]
    if edits:
        draft.apply(edits)
        drop_unused_imports(draft, set(SCALER))
        add_import(draft, IMPORT, local="smp")


def use_sharded_scaler(draft: Draft) -> None:
    """Replace ``GradScaler``, which would look for overflows in the shards of one process only."""
    edits = Edits()
    for call in scalers(draft.survey):
        options = [arg for arg in call.args if arg.keyword is not None and arg.keyword.value != "device"]
        edits.replace(call, cst.Call(func=cst.Name("ShardedGradScaler"), args=options))
    if edits:
        draft.apply(edits)
        drop_unused_imports(draft, set(SCALER))
        module = "torch.distributed.fsdp.sharded_grad_scaler"
        add_import(draft, f"from {module} import ShardedGradScaler", local="ShardedGradScaler")


CLIP = frozenset(known_names("clipping"))


def clip_by_library(draft: Draft) -> None:
    """Replace or remove ``clip_grad_norm_``, depending on the plan."""
    survey, edits, target = draft.survey, Edits(), draft.target
    for call in survey.calls:
        if survey.callee(call) not in CLIP:
            continue
        statement = survey.statement(call)
        alone = isinstance(survey.parent(call), cst.Expr)
        limit = keyword(call, "max_norm") or positional(call, 1)
        if target.sharded_data_parallel:
            if alone and statement is not None:
                edits.remove(statement)
                if limit is not None and text_of(limit.value) not in ("1", "1.0"):
                    draft.add_todo("set_clipping", limit=text_of(limit.value))
            else:
                draft.add_todo("clips_under_sharding", call)
        elif target.fp16:
            names = sorted(names_of(survey, optimizer_places(survey), survey.function(call)))
            stepped = [
                dotted(site.func.value)
                for site in survey.calls
                if isinstance(site.func, cst.Attribute)
                and site.func.attr.value == "step"
                and survey.function(site) is survey.function(call)
                and dotted(site.func.value) in names
            ]
            if limit is None or not stepped:
                draft.add_todo("clip_master_grads", call)
                continue
            edits.replace(call, expression(f"{stepped[0]}.clip_master_grads({text_of(limit.value)})"))
        elif target.pipeline_parallel or target.tensor_parallel:
            draft.add_todo("clips_partition", call)
    draft.apply(edits)
    drop_unused_imports(draft, set(CLIP))


def clip_over_shards(draft: Draft) -> None:
    """Replace ``clip_grad_norm_`` by the function of the library."""
    if replace_clipping(draft, "clip_grad_norm_({model}, {limit})", "torch.sagemaker.grad_norm.clip_grad_norm_"):
        add_import(draft, "from torch.sagemaker.grad_norm import clip_grad_norm_", local="clip_grad_norm_")


def replace_clipping(draft: Draft, form: str, function: str) -> bool:
    """Replace torch's ``clip_grad_norm_``, and return whether a call was replaced.

    Parameters
    ----------
    form
        The new call, with the fields ``model`` and ``limit``.
    function
        What to call, for the to-do where the model or the limit is not visible.
    """
    survey, edits = draft.survey, Edits()
    for call in survey.calls:
        if survey.callee(call) not in CLIP:
            continue
        parameters, limit = positional(call, 0), keyword(call, "max_norm") or positional(call, 1)
        model = owner_of_parameters(parameters.value) if parameters is not None else None
        if model is None or limit is None:
            draft.add_todo("clips_shards", call, function=function)
            continue
        edits.replace(call, expression(form.format(model=model, limit=text_of(limit.value))))
    if not edits:
        return False
    draft.apply(edits)
    drop_unused_imports(draft, set(CLIP))
    return True


def owner_of_parameters(node: cst.CSTNode) -> str | None:
    """``model`` in ``model.parameters()``."""
    for inner in walk(node):
        if (
            isinstance(inner, cst.Call)
            and isinstance(inner.func, cst.Attribute)
            and inner.func.attr.value == "parameters"
        ):
            return dotted(inner.func.value)
    names = names_in(node)
    return names[0] if len(names) == 1 and "model" in names[0] else None


def clip_by_model(draft: Draft) -> None:
    """Replace ``torch.nn.utils.clip_grad_norm_`` by the method of FSDP."""
    replace_clipping(draft, "{model}.clip_grad_norm_({limit})", "clip_grad_norm_ of the FSDP model")
