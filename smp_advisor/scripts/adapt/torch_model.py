"""Steps: replicate the models with DistributedDataParallel, or shard them with FSDP."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from smp_advisor.scripts.adapt.adaptation import add_import, add_names
from smp_advisor.scripts.adapt.aliases import aliases_of, names_of
from smp_advisor.scripts.adapt.code import Edits, call_text, dotted, expression, statements, walk
from smp_advisor.scripts.adapt.construction import Construction, find_constructions, imported_layers, repeated_layers
from smp_advisor.scripts.adapt.roles import optimizers
from smp_advisor.scripts.adapt.wrappers import REPLICATING, SHARDING, take_out_wrappers, unwrap, uses_of_model

if TYPE_CHECKING:
    from collections.abc import Callable

    from smp_advisor.scripts.adapt.adaptation import Draft
    from smp_advisor.scripts.adapt.survey import Statement


def replicate_models(draft: Draft) -> None:
    """Wrap each model with ``DistributedDataParallel``, and reach its own attributes through ``.module``."""
    unwrap(draft, REPLICATING, attribute=True)
    constructions = _constructions(draft)
    uses = [use for construction in constructions for use in uses_of_model(draft, construction)]
    bypassing = next((use for use in uses if use.runs_layers and use.trains), None)
    if bypassing is not None:
        draft.abandon("runs_layers_ddp", bypassing.node, use=bypassing.name)
        return
    buffers = ", broadcast_buffers=False" if len(constructions) > 1 or _runs_twice(draft, constructions) else ""
    edits = Edits()
    for use in uses:
        if use.inner:
            continue
        edits.replace(use.node.value, cst.Attribute(value=use.node.value, attr=cst.Name("module")))
    _wrap(
        draft, edits, constructions, lambda construction: f"{construction.name} = DDP({construction.name}{buffers})\n"
    )
    if constructions:
        add_import(draft, "from torch.nn.parallel import DistributedDataParallel as DDP", local="DDP")


def shard_models(draft: Draft) -> None:  # noqa: C901 - a list of cases
    """Wrap each model with ``FullyShardedDataParallel``, for SMP v2 after its layers are transformed as planned."""
    target = draft.target
    library = target.kind == "smp_fsdp"
    divided = library and (target.tensor_parallel or target.context_parallel or target.expert_parallel)
    if library:
        take_out_wrappers(draft, REPLICATING)
        fsdp = next((call for call in draft.survey.calls if draft.survey.callee(call) in SHARDING), None)
        if fsdp is not None:
            _transform_before(draft, fsdp, divided=divided)
            return
    else:
        unwrap(draft, REPLICATING, attribute=True)
    constructions = _constructions(draft)
    imports: dict[str, str] = {}
    texts: dict[Statement, str] = {}
    names = set()
    for construction in constructions:
        name = construction.name
        use = next((use for use in uses_of_model(draft, construction) if use.runs_layers), None)
        if use is not None:
            draft.abandon("runs_layers_fsdp", use.node, use=use.name)
            return
        arguments = [name]
        if layer_class := _layer_class(draft, construction, imports):
            arguments.append(f"auto_wrap_policy=ModuleWrapPolicy({{{layer_class}}})")
            imports["ModuleWrapPolicy"] = "torch.distributed.fsdp.wrap"
        else:
            draft.add_todo("no_wrapping_policy")
        if library:
            arguments.append(f"mixed_precision=MixedPrecision(param_dtype={target.dtype}, reduce_dtype={target.dtype})")
            names.add("MixedPrecision")
        elif target.sharding_strategy not in ("", "full_shard"):
            arguments.append(f"sharding_strategy=ShardingStrategy.{target.sharding_strategy.upper()}")
            names.add("ShardingStrategy")
        device = "torch.cuda.current_device()"
        arguments += [
            f"device_id={device}" + ("" if library else ' if torch.cuda.is_available() else torch.device("cpu")'),
            "use_orig_params=True",
        ]
        transform = f"{name} = tsm.transform({name})\n" if divided else ""
        if transform and target.expert_parallel:
            draft.add_todo("needs_moe_config", call=transform.rstrip())
        texts[construction.statement] = f"{transform}{name} = {call_text('FSDP', arguments)}\n"
    _wrap(draft, Edits(), constructions, lambda construction: texts[construction.statement])
    if constructions:
        add_import(draft, "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP", local="FSDP")
        add_names(draft, "torch.distributed.fsdp", sorted(names))
        for name, module in imports.items():
            add_names(draft, module, [name])


def _transform_before(draft: Draft, sharded: cst.Call, *, divided: bool) -> None:
    """Insert the parallel layers of SMP v2 before the FSDP of the script."""
    statement, name = draft.survey.statement(sharded), dotted(sharded.args[0].value) if sharded.args else None
    if divided and statement is not None and name is not None:
        edits = Edits()
        edits.insert_before(statement, statements(f"{name} = tsm.transform({name})\n"))
        draft.apply(edits)


def _layer_class(draft: Draft, construction: Construction, imports: dict[str, str]) -> str:
    """Class of the repeated layers, empty if it was not found. One of another file is added to `imports`."""
    survey = draft.survey
    layers = repeated_layers(survey, construction)
    if layers is not None:
        return layers.layer_class
    elsewhere = imported_layers(survey, construction, draft.file.parent) if draft.file is not None else None
    if elsewhere is None:
        return ""
    module, name = elsewhere
    present = survey.imported.get(name)
    if survey.classes_named(name) or survey.named(name) or present not in (None, f"{module}.{name}"):
        return ""  # the script has another meaning of the name
    if present is None:
        imports[name] = module
    return name


def shard_models_by_tensor(draft: Draft) -> None:
    """Shard each model with ``fully_shard``, its repeated layers first."""
    unwrap(draft, REPLICATING, attribute=True)
    _zero_by_optimizer(draft)
    constructions = _constructions(draft)
    uses = {c.statement: [use for use in uses_of_model(draft, c) if use.runs_layers] for c in constructions}
    for use in (use for many in uses.values() for use in many):
        if not use.is_method:
            draft.abandon("runs_layer_alone", use.node, use=use.name)
            return
    registered = False
    imports: dict[str, str] = {}
    texts: dict[Statement, str] = {}
    for construction in constructions:
        name = construction.name
        layer_class = _layer_class(draft, construction, imports)
        text = f"fully_shard({name})\n"
        if layer_class:
            text = (
                f"for module in {name}.modules():\n    if isinstance(module, {layer_class}):\n"
                f"        fully_shard(module)\n{text}"
            )
        else:
            draft.add_todo("no_layer_class", name=name)
        for method in dict.fromkeys(use.attribute for use in uses[construction.statement]):
            text += f'register_fsdp_forward_method({name}, "{method}")\n'
            registered = True
        texts[construction.statement] = text
    _wrap(draft, Edits(), constructions, lambda construction: texts[construction.statement])
    if constructions:
        names = ["fully_shard", *(["register_fsdp_forward_method"] if registered else [])]
        add_names(draft, "torch.distributed.fsdp", names)
        for layer, module in imports.items():
            add_names(draft, module, [layer])


def _zero_by_optimizer(draft: Draft) -> None:
    """Replace ``model.zero_grad()``: between forward and backward pass, it would clear gathered parameters only."""
    survey, edits = draft.survey, Edits()
    for call in survey.calls:
        owner, _, method = (dotted(call.func) or "").rpartition(".")
        if method != "zero_grad" or not isinstance(call.func, cst.Attribute):
            continue
        function = survey.function(call)
        for optimizer in optimizers(survey):
            if optimizer.model is None or owner not in names_of(survey, aliases_of(survey, optimizer.model), function):
                continue
            places = aliases_of(survey, (optimizer.function, optimizer.name)) if optimizer.name is not None else set()
            names = sorted(names_of(survey, places, function), key=len)
            if names:
                edits.replace(call.func.value, expression(names[0]))
            else:
                draft.add_todo("zero_by_optimizer", call)
            break
    draft.apply(edits)


def _constructions(draft: Draft) -> list[Construction]:
    """Constructions of the models; the script is left unchanged if one is in another file."""
    before = len(draft.todo)
    constructions = find_constructions(draft)
    if len(draft.todo) > before:
        draft.abandon("created_in_another_file", reason=draft.todo[before])
    return constructions


def _wrap(draft: Draft, edits: Edits, constructions: list[Construction], text: Callable[[Construction], str]) -> None:
    """Insert a wrapper for each model before its parameters are first used."""
    for construction in constructions:
        first = _first_use(draft, construction)
        new = statements(text(construction))
        if first is not None:
            edits.insert_before(first, new)
        else:
            edits.insert_after(construction.last, new)
    draft.apply(edits)


def _first_use(draft: Draft, construction: Construction) -> Statement | None:
    """Statement before which the model is wrapped: the optimizer, or an earlier one that reads its parameters."""
    survey = draft.survey
    if construction.use is None:
        return None
    block = survey.body_of(construction.last)
    if construction.use not in block:
        return None
    start, stop = block.index(construction.last) + 1, block.index(construction.use)
    for statement in block[start:stop]:
        for node in walk(statement):
            if isinstance(node, cst.Attribute) and dotted(node) in (
                f"{construction.name}.parameters",
                f"{construction.name}.named_parameters",
            ):
                return statement
    return construction.use


def _runs_twice(draft: Draft, constructions: list[Construction]) -> bool:
    """Whether one statement or two statements of a block call the model twice before a backward pass."""
    survey = draft.survey
    for construction in constructions:
        calls = [call for call in survey.calls if dotted(call.func) == construction.name]
        places = [(survey.function(call), tuple(survey.loops(call))) for call in calls]
        if len(places) != len(set(places)):
            return True
    return False
