"""Steps: the batch, accumulation, precision, clipping and checkpointing of the plan, and gradient scalers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from smp_advisor.scripts.adapt.adaptation import add_import, drop_unused_imports
from smp_advisor.scripts.adapt.aliases import names_of
from smp_advisor.scripts.adapt.code import (
    Edits,
    dotted,
    expression,
    keyword,
    names_in,
    positional,
    statements,
    text_of,
    walk,
    with_arguments,
)
from smp_advisor.scripts.adapt.construction import find_construction, repeated_layers
from smp_advisor.scripts.adapt.roles import backward_calls, is_held_out, loader_calls, model_places, optimizer_places
from smp_advisor.scripts.adapt.survey import Survey, known_names, targets_of

if TYPE_CHECKING:
    from smp_advisor.scripts.adapt.adaptation import Draft


AUTOCAST = frozenset(known_names("autocast"))
SCALER = frozenset(known_names("gradient_scalers"))
CLIP = frozenset(known_names("clipping"))


def set_batch(draft: Draft) -> None:
    """Give the training loaders the batch size of the plan, where it is written."""
    size = draft.target.batch_size
    survey, edits = draft.survey, Edits()
    for call in loader_calls(survey):
        batch_size = keyword(call, "batch_size") or positional(call, 1)
        if size and batch_size is not None and not is_held_out(survey, call):
            _set(survey, edits, batch_size.value, size)
    draft.apply(edits)


def _set(survey: Survey, edits: Edits, value: cst.BaseExpression, number: int) -> None:
    """Replace an integer where it is assigned or an option's default, or the expression itself."""
    name = (dotted(value) or "").rpartition(".")[2]
    for node in survey.nodes:
        if isinstance(node, cst.Assign | cst.AnnAssign) and isinstance(node.value, cst.Integer):
            if any((dotted(target) or "").rpartition(".")[2] == name for target in targets_of(node)):
                value = node.value
        elif (
            isinstance(node, cst.Call)
            and isinstance(node.func, cst.Attribute)
            and node.func.attr.value == "add_argument"
        ):
            default = keyword(node, "default")
            options = [text_of(arg.value).strip("\"'-").replace("-", "_") for arg in node.args if arg.keyword is None]
            if name in options and default is not None and isinstance(default.value, cst.Integer):
                value = default.value
    if text_of(value) != str(number):
        edits.replace(value, cst.Integer(str(number)))


def accumulate(draft: Draft) -> None:
    """Update the parameters after every so many backward passes, with the mean of their gradients."""
    count = draft.target.accumulation
    if not count:
        return
    survey = draft.survey
    own = next((a for a in _assigned_numbers(survey) if "accum" in a[0].lower()), None)
    if own is not None:
        edits = Edits()
        if own[1].value != str(count):
            edits.replace(own[1], cst.Integer(str(count)))
        draft.apply(edits)
        return
    backwards = backward_calls(survey)
    loops = [loop for call in backwards for loop in survey.loops(call)[:1]]
    if count == 1 or len(backwards) != 1 or not loops or not isinstance(loops[0], cst.For):
        return
    _accumulate(draft, backwards[0], loops[0], count)


def _assigned_numbers(survey: Survey) -> list[tuple[str, cst.Integer]]:
    """Names with integers: assignments and defaults of options."""
    numbers = [
        (dotted(target) or "", node.value)
        for node in survey.nodes
        if isinstance(node, cst.Assign | cst.AnnAssign) and isinstance(node.value, cst.Integer)
        for target in targets_of(node)
    ]
    for call in survey.calls:
        default = keyword(call, "default")
        is_option = isinstance(call.func, cst.Attribute) and call.func.attr.value == "add_argument"
        if is_option and default is not None and isinstance(default.value, cst.Integer):
            numbers.append((text_of(call.args[0].value), default.value))
    return numbers


def _accumulate(draft: Draft, call: cst.Call, loop: cst.For, count: int) -> None:
    survey, edits = draft.survey, Edits()
    statement = survey.statement(call)
    block = survey.body_of(statement) if statement is not None else []
    optimizers = names_of(survey, optimizer_places(survey), survey.function(call))
    if statement is None or block != list(loop.body.body) or not isinstance(statement, cst.SimpleStatementLine):
        return
    place = block.index(statement)
    clearing = [s for s in block if any(f"{name}.zero_grad(" in text_of(s) for name in optimizers)]
    updating = [n for n in range(place + 1, len(block)) if any(f"{o}.step(" in text_of(block[n]) for o in optimizers)]
    if not updating or not clearing or not all(isinstance(s, cst.SimpleStatementLine) for s in clearing):
        return
    last = updating[-1]
    following = last + 1
    while following < len(block) and (block[following] in clearing or "sched" in text_of(block[following])):
        following += 1
    update = [s for s in block[place + 1 : following] if s not in clearing]
    index = survey.free_name("batch_index", "index_of_batch")
    loss = cst.ensure_type(call.func, cst.Attribute).value
    counted = (
        isinstance(loop.iter, cst.Call) and dotted(loop.iter.func) == "enumerate" and isinstance(loop.target, cst.Tuple)
    )
    if counted and isinstance(loop.target, cst.Tuple) and len(loop.iter.args) == 1:  # type: ignore[attr-defined]
        index = text_of(loop.target.elements[0].value)
    edits.replace(loss, expression(f"({text_of(loss)} / {count})"))
    new = cst.ensure_type(statements(f"if ({index} + 1) % {count} == 0:\n    pass\n")[0], cst.If)
    body = [s.with_changes(leading_lines=[]) if n == 0 else s for n, s in enumerate([*update, clearing[0]])]
    body[-1] = body[-1].with_changes(leading_lines=[])
    edits.insert_after(statement, [new.with_changes(body=new.body.with_changes(body=body))])
    for old in (*update, *clearing):
        edits.remove(old)
    if not (counted and index != "batch_index"):
        target = text_of(loop.target)
        target = f"({target})" if isinstance(loop.target, cst.Tuple) and not target.startswith("(") else target
        header = cst.ensure_type(
            statements(f"for {index}, {target} in enumerate({text_of(loop.iter)}):\n    pass\n")[0], cst.For
        )
        edits.replace(loop.target, header.target)
        edits.replace(loop.iter, header.iter)
    draft.apply(edits)


def compute_in_half(draft: Draft) -> None:
    """Compute in the precision of the plan: by the wrapper of shards, or by autocast around the forward pass."""
    dtype, sharded = draft.target.planned_dtype, draft.target.kind == "fsdp2"
    survey, edits = draft.survey, Edits()
    if not dtype or any(survey.callee(call) in AUTOCAST for call in survey.calls):
        return
    if draft.target.kind == "ddp":
        _autocast(draft, dtype)
        return
    policy, option = ("MixedPrecisionPolicy", "mp_policy") if sharded else ("MixedPrecision", "mixed_precision")
    value = f"{policy}(param_dtype={dtype}, reduce_dtype={'torch.float32' if sharded else dtype})"
    for call in survey.calls:
        suffix = ".fully_shard" if sharded else ".FullyShardedDataParallel"
        if survey.callee(call).endswith(suffix) and keyword(call, option) is None:
            edits.replace(call, with_arguments(call, {option: value}))
    if edits:
        draft.apply(edits)
        add_import(draft, f"from torch.distributed.fsdp import {policy}", local=policy)


def _autocast(draft: Draft, dtype: str) -> None:
    """Put the statements from the first call of the model to the backward pass under autocast."""
    survey, edits = draft.survey, Edits()
    for call in backward_calls(survey):
        statement = survey.statement(call)
        block = survey.body_of(statement) if statement is not None else []
        models = names_of(survey, model_places(survey), survey.function(call))
        end = block.index(statement) if statement in block else 0
        start = next((n for n in range(end) if _calls(block[n], models)), None)
        if start is None:
            if statement is not None and _calls(statement, models):
                draft.add_todo("autocast_by_hand", call)
            continue
        device = 'device_type="cuda" if torch.cuda.is_available() else "cpu"'
        text = f"with torch.autocast({device}, dtype={dtype}):\n    pass\n"
        new = cst.ensure_type(statements(text)[0], cst.With)
        moved = block[start:end]
        body = [moved[0].with_changes(leading_lines=[]), *moved[1:]]
        edits.insert_before(
            moved[0], [new.with_changes(body=new.body.with_changes(body=body), leading_lines=moved[0].leading_lines)]
        )
        for old in moved:
            edits.remove(old)
    draft.apply(edits)


def _calls(statement: cst.CSTNode, models: set[str]) -> bool:
    return any(isinstance(node, cst.Call) and dotted(node.func) in models for node in walk(statement))


def _scalers(survey: Survey) -> list[cst.Call]:
    """Calls that create a PyTorch gradient scaler."""
    return [call for call in survey.calls if survey.callee(call) in SCALER]


def use_library_scaler(draft: Draft) -> None:
    """Replace PyTorch's ``GradScaler`` by ``smp.amp.GradScaler``."""
    edits = Edits()
    for call in _scalers(draft.survey):
        options = [arg for arg in call.args if arg.keyword is not None]
        # smp.amp.GradScaler has no device, the first argument of torch.amp.GradScaler("cuda").
        new = expression("smp.amp.GradScaler()")
        edits.replace(call, new.with_changes(args=[arg for arg in options if arg.keyword.value != "device"]))  # type: ignore[union-attr]
    if edits:
        draft.apply(edits)
        drop_unused_imports(draft, set(SCALER))
        add_import(draft, "import smdistributed.modelparallel.torch as smp", local="smp")


def use_sharded_scaler(draft: Draft) -> None:
    """Replace ``GradScaler``, which would look for overflows in the shards of one process only."""
    edits = Edits()
    for call in _scalers(draft.survey):
        options = [arg for arg in call.args if arg.keyword is not None and arg.keyword.value != "device"]
        edits.replace(call, cst.Call(func=cst.Name("ShardedGradScaler"), args=options))
    if edits:
        draft.apply(edits)
        drop_unused_imports(draft, set(SCALER))
        module = "torch.distributed.fsdp.sharded_grad_scaler"
        add_import(draft, f"from {module} import ShardedGradScaler", local="ShardedGradScaler")


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
    """Replace ``clip_grad_norm_`` by the function of SMP v2 or the method of FSDP, by the norm of all shards."""
    survey, edits, library = draft.survey, Edits(), draft.target.kind == "smp_fsdp"
    for call in survey.calls:
        if survey.callee(call) not in CLIP:
            continue
        parameters, limit = positional(call, 0), keyword(call, "max_norm") or positional(call, 1)
        model = _owner_of_parameters(parameters.value) if parameters is not None else None
        if model is None or limit is None:
            function = "torch.sagemaker.grad_norm.clip_grad_norm_" if library else "clip_grad_norm_ of the FSDP model"
            draft.add_todo("clips_shards", call, function=function)
            continue
        most = text_of(limit.value)
        edits.replace(
            call, expression(f"clip_grad_norm_({model}, {most})" if library else f"{model}.clip_grad_norm_({most})")
        )
    if edits:
        draft.apply(edits)
        drop_unused_imports(draft, set(CLIP))
        if library:
            add_import(draft, "from torch.sagemaker.grad_norm import clip_grad_norm_", local="clip_grad_norm_")


def _owner_of_parameters(node: cst.CSTNode) -> str | None:
    """``model`` in ``model.parameters()``."""
    for inner in walk(node):
        if isinstance(inner, cst.Call) and isinstance(method := inner.func, cst.Attribute):
            if method.attr.value != "parameters":
                continue
            return dotted(method.value)
    names = names_in(node)
    return names[0] if len(names) == 1 and "model" in names[0] else None


def checkpoint_layers(draft: Draft) -> None:
    """Checkpoint the repeated layers: after FSDP, or before the model is replicated or sharded by tensor."""
    if not draft.target.activation_checkpointing:
        return
    construction = find_construction(draft)
    survey = draft.survey
    layers = repeated_layers(survey, construction) if construction is not None else None
    if construction is None or layers is None or not layers.layer_class:
        draft.add_todo("no_checkpointed_class")
        return
    name = construction.name
    text = (
        f"apply_activation_checkpointing(\n    {name},\n    checkpoint_wrapper_fn=checkpoint_wrapper,\n"
        f"    check_fn=lambda module: isinstance(module, {layers.layer_class}),\n)\n"
    )
    imported = ["apply_activation_checkpointing", "checkpoint_wrapper"]
    if draft.target.offload_activations:
        text += f"{name} = offload_wrapper({name})\n"
        imported.append("offload_wrapper")
    edits = Edits()
    wrapper = next((c for c in survey.calls if survey.callee(c).endswith(".FullyShardedDataParallel")), None)
    after = survey.statement(wrapper) if wrapper is not None else None
    edits.insert_after(after or construction.last, statements(text))
    draft.apply(edits)
    lines = "".join(f"    {name},\n" for name in imported)
    module = "torch.distributed.algorithms._checkpoint.checkpoint_wrapper"
    add_import(draft, f"from {module} import (\n{lines})", local=imported[0])


def checkpoint_activations(draft: Draft) -> None:
    """Call the library on the repeated layers, with a to-do if they were not found."""
    if not draft.target.activation_checkpointing:
        return
    survey = draft.survey
    wrapper = next((c for c in survey.calls if survey.callee(c).endswith(".DistributedModel")), None)
    statement = survey.statement(wrapper) if wrapper is not None else None
    parent = survey.parent(wrapper) if wrapper is not None else None
    name = next((dotted(t) for t in targets_of(parent)), None) if parent is not None else None
    if wrapper is None or statement is None or name is None:
        return
    strategy = draft.target.activation_checkpointing
    todo: list[str] = []
    construction = find_construction(draft)
    layers = repeated_layers(survey, construction) if construction is not None else None
    if layers is None and _is_transformers(survey):
        text = _search_text(name, strategy)
    elif layers is None:
        todo.append(
            "The plan checkpoints activations, and no list of repeated layers was found in the model: call"
            f" smp.set_activation_checkpointing for each layer after `{draft.excerpt(statement)}`."
        )
        text = ""
    elif layers.sequential:
        text = f"smp.set_activation_checkpointing({name}.module.{layers.attribute}, strategy={strategy!r})\n"
        text = text.replace("'", '"')
    else:
        # Strategies apply to nn.Sequential only.
        text = f"for layer in {name}.module.{layers.attribute}:\n    smp.set_activation_checkpointing(layer)\n"
        if strategy != "each":
            todo.append(
                f"The strategy {strategy} applies to an nn.Sequential only. `{layers.attribute}` is an nn.ModuleList:"
                " its layers are checkpointed one by one."
            )
    for sentence in todo:
        draft.add_sentence(sentence)
    if text:
        edits = Edits()
        edits.insert_after(statement, statements(text))
        draft.apply(edits)


def _is_transformers(survey: Survey) -> bool:
    return any(origin.split(".")[0] == "transformers" for origin in survey.imported.values())


def _search_text(name: str, strategy: str) -> str:
    """Loop that finds the list of layers in a transformers model by its name."""
    return (
        "# Find the layers of the transformers model. Strategies apply to nn.Sequential only.\n"
        f"for path, stack in {name}.named_modules():\n"
        '    if path.split(".")[-1] not in ("seq_layers", "h", "layer", "layers", "block", "blocks"):\n'
        "        continue\n"
        "    if isinstance(stack, torch.nn.Sequential):\n"
        f'        smp.set_activation_checkpointing(stack, strategy="{strategy}")\n'
        "    elif isinstance(stack, torch.nn.ModuleList):\n"
        "        for layer in stack:\n"
        "            smp.set_activation_checkpointing(layer)\n"
    )
