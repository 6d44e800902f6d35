"""Steps: take other wrappers off the model, then wrap it for SMP v1, replicate it or shard it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import libcst as cst

from smp_advisor.scripts.adapt.code import (
    Edits,
    call_text,
    dotted,
    expression,
    statements,
    text_of,
    walk,
    without_moves,
)
from smp_advisor.scripts.adapt.construction import (
    LAYER_CLASSES,
    Construction,
    find_construction,
    find_constructions,
    wrap_construction,
)
from smp_advisor.scripts.adapt.plan_settings import CLIP, HALF, computes_in_half
from smp_advisor.scripts.adapt.roles import (
    is_bound,
    model_places,
    names_of,
    objects_of,
    optimizer_places,
    optimizers,
    root_of,
)
from smp_advisor.scripts.adapt.survey import Statement, Survey, known_names, targets_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from smp_advisor.scripts.adapt.adaptation import Draft

REPLICATING = frozenset(known_names("data_parallel_wrappers"))
SHARDING = frozenset(known_names("fsdp_wrappers"))


def take_out_wrappers(draft: Draft, wrappers: Iterable[str]) -> None:
    """Remove `wrappers` and ``.to(device)`` from the model: the library moves each part to its GPU."""
    unwrap(draft, wrappers)
    survey, edits = draft.survey, Edits()
    for call in survey.calls:
        plain, parent, statement = without_moves(call), survey.parent(call), survey.statement(call)
        if plain is call or not objects_of(survey, root_of(plain)) & model_places(survey) or statement is None:
            continue
        if isinstance(parent, cst.Attribute) and without_moves(outer := survey.parent(parent)) is not outer:
            continue  # model.half().to(device) is replaced at once
        same = isinstance(parent, cst.Assign) and [dotted(t) for t in targets_of(parent)] == [text_of(plain)]
        if same or isinstance(parent, cst.Expr):
            edits.remove(statement)
        else:
            edits.replace(call, plain)
    draft.apply(edits)


def unwrap(draft: Draft, wrappers: Iterable[str], *, attribute: bool = False) -> None:
    """Replace ``DataParallel(model)`` by ``model``, and ``model.module`` too if `attribute`."""
    wrappers = frozenset(wrappers)
    survey, edits = draft.survey, Edits()
    places = model_places(survey)
    for call in survey.calls:
        if survey.callee(call) not in wrappers or not call.args:
            continue
        inner = dotted(call.args[0].value)
        if objects_of(survey, root_of(call.args[0].value)) & places:
            parent, statement = survey.parent(call), survey.statement(call)
            same = isinstance(parent, cst.Assign) and [dotted(t) for t in targets_of(parent)] == [inner]
            if same and statement is not None:
                edits.remove(statement)
            else:
                edits.replace(call, call.args[0].value)
    if edits and attribute:
        for node in survey.nodes:
            if not isinstance(node, cst.Attribute) or node.attr.value != "module":
                continue
            if dotted(node.value) in names_of(survey, places, survey.function(node)):
                edits.replace(node, node.value)
    draft.apply(edits)


_MODULE = frozenset(known_names("module_attributes"))
_WITHOUT_LAYERS = frozenset(known_names("methods_without_layers"))


class Use(NamedTuple):
    """A use of an attribute of the model after it is wrapped."""

    node: cst.Attribute
    name: str
    """Source: ``model.encode``."""
    is_method: bool
    """Whether it is a method rather than a layer."""
    runs_layers: bool
    """Whether it is called and computes with the parameters of the model."""
    inner: bool
    """Whether the name stays that of the model inside the wrapper: ``m`` of ``m = model.to(device)``."""


def uses_of_model(draft: Draft, construction: Construction, *, start: Statement | None = None) -> list[Use]:
    """Uses of attributes that belong to the model and not to ``torch.nn.Module``, after the model is wrapped.

    `start` is the last statement before the wrapper; None if the wrapper precedes the first use of the parameters.
    """
    survey = draft.survey
    places = construction.objects
    start = start or construction.use or construction.last
    classes = _classes(survey, construction)
    assigned = [
        (dotted(target), survey.follows(start, node))
        for node in survey.nodes
        if isinstance(node, cst.Assign | cst.AnnAssign) and survey.function(node) is construction.function
        for target in targets_of(node)
    ]
    inner_names = {name for name, after in assigned if not after} - {name for name, after in assigned if after}
    inner_names.discard(construction.name)
    uses = []
    for node in survey.nodes:
        if not isinstance(node, cst.Attribute) or node.attr.value in _MODULE:
            continue
        function = survey.function(node)
        name = dotted(node.value)
        own = objects_of(survey, node.value)  # another model of the same name is none of its uses
        if name is None or name not in names_of(survey, places, function) or (own and not own & places):
            continue
        before = function is construction.function and not survey.follows(start, node)
        if (before and start not in survey.ancestors(node)) or survey.class_of(function) in classes:
            continue
        parent, attribute = survey.parent(node), node.attr.value
        called = isinstance(parent, cst.Call) and parent.func is node
        methods = [f for f in survey.named(attribute) if survey.class_of(f) in classes]
        is_method = bool(methods) or not _is_layer(classes, attribute)
        runs = called and _runs_layers(methods, classes, attribute)
        inner = name in inner_names and (function is construction.function or not is_bound(survey, function, name))
        uses.append(Use(node, f"{name}.{attribute}", is_method, runs, inner))
    return uses


def _classes(survey: Survey, construction: Construction) -> list[cst.ClassDef]:
    called = {dotted(node.func) or "" for node in walk(construction.statement) if isinstance(node, cst.Call)}
    return [definition for name in called for definition in survey.classes_named(name)]


def _is_layer(classes: list[cst.ClassDef], attribute: str) -> bool:
    return any(
        dotted(target) == f"self.{attribute}"
        for definition in classes
        for node in walk(definition)
        if isinstance(node, cst.Assign | cst.AnnAssign)
        for target in targets_of(node)
    )


def _runs_layers(methods: list[cst.FunctionDef], classes: list[cst.ClassDef], attribute: str) -> bool:
    """Whether a method calls layers or other methods of the model; a method that is not in the script may."""
    if attribute in _WITHOUT_LAYERS or attribute.startswith(("get_", "set_", "init_", "num_", "print_", "load_")):
        return False
    if not classes:
        return True
    if not methods:
        return _is_layer(classes, attribute)
    return any(
        isinstance(node, cst.Call) and text_of(node.func).startswith("self")
        for method in methods
        for node in walk(method)
    )


_OF_LIBRARY = frozenset(
    {"state_dict", "load_state_dict", "save_pretrained", "backward", "local_parameters", "local_state_dict", "join"}
)
"""Attributes of ``smp.DistributedModel``, and calls that the step for checkpoints replaces."""


def wrap_model(draft: Draft) -> None:
    """Create the model in ``smp.model_creation`` if required, and wrap it."""
    take_out_wrappers(draft, REPLICATING | SHARDING)
    construction = find_construction(draft)
    if construction is None or not _reach_inner_attributes(draft, construction):
        return
    construction = find_construction(draft)
    if construction is None:
        return
    target = draft.target
    _report_lost_weights(draft, construction)
    creation = []
    if target.tensor_parallel:
        creation.append("tensor_parallelism=True")
    if target.half:
        creation.append(f"dtype={target.dtype}")
    context = f"with smp.model_creation({', '.join(creation)})" if creation else ""
    arguments = [construction.name]
    if target.plan.shard_optimizer_state:
        arguments += ["overlapping_allreduce=True", "gradient_as_bucket_view=True"]
    _report_accumulation(draft)
    wrap = f"{construction.name} = " + call_text("smp.DistributedModel", arguments)
    wrap_construction(draft, construction, context=context, wrap=wrap)


def _reach_inner_attributes(draft: Draft, construction: Construction) -> bool:
    """Reach attributes of the model through ``.module``; False if a method other than forward runs layers."""
    edits = Edits()
    for use in uses_of_model(draft, construction, start=construction.last):
        if use.node.attr.value in _OF_LIBRARY:
            continue
        if use.runs_layers:
            draft.abandon("runs_layers_v1", use.node, use=use.name)
            return False
        edits.replace(use.node.value, cst.Attribute(value=use.node.value, attr=cst.Name("module")))
    draft.apply(edits)
    return True


def _report_lost_weights(draft: Draft, construction: Construction) -> None:
    """List weights that are loaded in vain, and norms over a part of the model."""
    survey = draft.survey
    if draft.target.tensor_parallel:
        for call in (node for node in walk(construction.statement) if isinstance(node, cst.Call)):
            if isinstance(call.func, cst.Attribute) and call.func.attr.value == "from_pretrained":
                draft.add_todo("loses_weights", construction.statement)
    places, plan = model_places(survey) | optimizer_places(survey), draft.target.plan
    own_clipping = draft.target.fp16 or plan.sharded_data_parallel_degree > 1  # which checks of the result find
    divided = plan.pipeline_parallel_degree > 1 or draft.target.tensor_parallel
    for call in survey.calls:
        if survey.callee(call) in CLIP and divided and not own_clipping:
            draft.add_todo("clips_partition", call)
        owner, _, method = (dotted(call.func) or "").rpartition(".")
        if method == "load_state_dict" and owner in names_of(survey, places, survey.function(call)):
            draft.add_todo("loads_undivided", call=text_of(call))


def _report_accumulation(draft: Draft) -> None:
    """List an update under a condition such as ``step % n == 0``, whose backward passes the wrapper has to know."""
    survey = draft.survey
    for call in survey.calls:
        owner, _, method = (dotted(call.func) or "").rpartition(".")
        if method == "step" and owner in names_of(survey, optimizer_places(survey), survey.function(call)):
            for above in survey.ancestors(call):
                counted = walk(above.test) if isinstance(above, cst.If) else ()
                for node in counted:
                    if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Modulo):
                        draft.add_todo("define_passes", above, text=text_of(node.right))


_SCALING = (
    "static_loss_scale=None",
    "dynamic_loss_scale=True",
    'dynamic_loss_args={"scale_window": 1000, "min_scale": 1, "delayed_shift": 2}',
)


def wrap_optimizer(draft: Draft) -> None:
    """Wrap every optimizer where it is created."""
    survey, edits = draft.survey, Edits()
    for optimizer in optimizers(survey):
        scaling = _SCALING if draft.target.fp16 else ()
        statement = survey.statement(optimizer.call)
        if optimizer.name is not None and statement is not None:
            before = f"{optimizer.name} = "
            text = before + call_text("smp.DistributedOptimizer", [optimizer.name, *scaling])
            edits.insert_after(statement, statements(text))
        elif isinstance(survey.parent(optimizer.call), cst.Return):
            text = call_text("smp.DistributedOptimizer", [text_of(optimizer.call), *scaling])
            edits.replace(optimizer.call, expression(text))
        else:
            draft.add_todo("wrap_optimizer", optimizer.call)
    draft.apply(edits)


def replicate_models(draft: Draft) -> None:
    """Wrap each model with ``DistributedDataParallel``, and reach its own attributes through ``.module``."""
    unwrap(draft, REPLICATING, attribute=True)
    constructions = _constructions(draft)
    uses = [use for construction in constructions for use in uses_of_model(draft, construction)]
    buffers = ", broadcast_buffers=False" if len(constructions) > 1 else ""
    edits = Edits()
    for use in uses:
        if use.inner:
            continue
        edits.replace(use.node.value, cst.Attribute(value=use.node.value, attr=cst.Name("module")))
    _wrap(
        draft, edits, constructions, lambda construction: f"{construction.name} = DDP({construction.name}{buffers})\n"
    )


def shard_models(draft: Draft) -> None:
    """Wrap each model with ``FullyShardedDataParallel`` for SMP v2, after its layers are transformed as planned."""
    target = draft.target
    experts = target.plan.expert_parallel_degree > 1
    divided = target.tensor_parallel or target.plan.context_parallel_degree > 1 or experts
    take_out_wrappers(draft, REPLICATING)
    fsdp = next((call for call in draft.survey.calls if draft.survey.callee(call) in SHARDING), None)
    if fsdp is not None:
        if divided:
            draft.add_todo("transform_first", fsdp)
        return
    constructions = _constructions(draft)
    texts: dict[Construction, str] = {}
    for construction in constructions:
        name = construction.name
        use = next((use for use in uses_of_model(draft, construction) if use.runs_layers), None)
        if use is not None:
            draft.abandon("runs_layers_fsdp", use.node, use=use.name)
            return
        arguments = [
            name,
            "auto_wrap_policy=ModuleWrapPolicy(layer_classes)",
            f"mixed_precision=MixedPrecision(param_dtype={target.dtype}, reduce_dtype={target.dtype})",
            "device_id=torch.cuda.current_device()",
            "use_orig_params=True",
        ]
        text = f"{name} = tsm.transform({name})\n" if divided else ""
        if text and experts:
            draft.add_todo("needs_moe_config", call=text.rstrip())
        text += LAYER_CLASSES.format(name=name)
        texts[construction] = f"{text}{name} = {call_text('FSDP', arguments)}\n"
    if "ModuleList" not in draft.survey.all_names():
        draft.add_todo("no_wrapping_policy")
    _wrap(draft, Edits(), constructions, texts.__getitem__)


def shard_models_by_tensor(draft: Draft) -> None:
    """Shard each model with ``fully_shard``, its repeated layers first."""
    unwrap(draft, REPLICATING, attribute=True)
    _leave_replicas(draft)
    constructions = _constructions(draft)
    uses = {c: [use for use in uses_of_model(draft, c) if use.runs_layers] for c in constructions}
    for use in (use for many in uses.values() for use in many):
        if not use.is_method:
            draft.abandon("runs_layer_alone", use.node, use=use.name)
            return
    options = ""
    if draft.target.half_planned and not computes_in_half(draft.survey):
        options += f", mp_policy=MixedPrecisionPolicy(param_dtype={HALF}, reduce_dtype=torch.float32)"
    if "grad_op" in draft.target.sharding_strategy:
        options += ", reshard_after_forward=False"
    if "hybrid" in draft.target.sharding_strategy:
        draft.add_todo("hybrid_mesh")
    texts: dict[Construction, str] = {}
    for construction in constructions:
        name = construction.name
        # Inner lists first: the parameters of a layer belong to the innermost shard around them.
        text = (
            f"layers = [\n    layer for stack in reversed(list({name}.modules()))"
            " if isinstance(stack, torch.nn.ModuleList) for layer in stack\n]\n"
            f"for module in (*layers, {name}):\n    fully_shard(module{options})\n"
        )
        for method in dict.fromkeys(use.node.attr.value for use in uses[construction]):
            text += f'register_fsdp_forward_method({name}, "{method}")\n'
        texts[construction] = text
    if "ModuleList" not in draft.survey.all_names():
        draft.add_todo("no_layer_class")
    _wrap(draft, Edits(), constructions, texts.__getitem__)


def _leave_replicas(draft: Draft) -> None:
    """Replace ``model.zero_grad()``, which would clear gathered parameters only, and ``no_sync``, which shards lack."""
    survey, edits = draft.survey, Edits()
    for call in survey.calls:
        owner, _, method = (dotted(call.func) or "").rpartition(".")
        function = survey.function(call)
        if method == "no_sync" and owner in names_of(survey, model_places(survey), function):
            edits.replace(call, expression("contextlib.nullcontext()"))
        if method == "zero_grad" and owner in names_of(survey, model_places(survey), function):
            updating = (o.objects for o in optimizers(survey) if owner in names_of(survey, o.model, function))
            names = [name for objects in updating for name in names_of(survey, objects, function)]
            if names:
                edits.replace(call.func, expression(f"{min(names, key=len)}.zero_grad"))
            else:
                draft.add_todo("zero_by_optimizer", call)
    draft.apply(edits)


def _constructions(draft: Draft) -> list[Construction]:
    """Constructions of the models; the script is left unchanged if one is in another file."""
    before = len(draft.todo)
    constructions = find_constructions(draft)
    if len(draft.todo) > before:
        draft.abandon("created_in_another_file", reason=draft.todo[before])
    return constructions


def _wrap(draft: Draft, edits: Edits, constructions: list[Construction], text: Callable[[Construction], str]) -> None:
    """Insert a wrapper for each model before the optimizer, or before an earlier use of the parameters."""
    for construction in constructions:
        new, block = statements(text(construction)), draft.survey.body_of(construction.last)
        if construction.use not in block:
            edits.insert_after(construction.last, new)
            continue
        start, stop = block.index(construction.last) + 1, block.index(construction.use)
        reads = (f"{construction.name}.parameters", f"{construction.name}.named_parameters")
        early = (s for s in block[start:stop] for n in walk(s) if isinstance(n, cst.Attribute) and dotted(n) in reads)
        edits.insert_before(next(early, construction.use), new)
    draft.apply(edits)
