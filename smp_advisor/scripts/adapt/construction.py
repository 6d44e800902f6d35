"""The statement that constructs the model, its repeated layers, and the wrapper around it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import libcst as cst

from smp_advisor.errors import AdvisorError
from smp_advisor.reading.source import read
from smp_advisor.scripts.adapt.aliases import Place, aliases_of, call_arguments, callees, source_of
from smp_advisor.scripts.adapt.code import Edits, dotted, statements, text_of, walk
from smp_advisor.scripts.adapt.roles import optimizers
from smp_advisor.scripts.adapt.survey import Survey, targets_of

if TYPE_CHECKING:
    from pathlib import Path

    from smp_advisor.scripts.adapt.adaptation import Draft
    from smp_advisor.scripts.adapt.survey import Function, Statement


@dataclass(frozen=True, kw_only=True, slots=True)
class Construction:
    """The statements of one block that construct and reassign the model."""

    function: Function
    name: str
    statement: Statement
    """Constructs the model; may be an ``if`` statement whose branches do."""
    last: Statement
    """Last statement of the block that assigns the model before the optimizer is built; the wrapper follows it."""
    use: Statement | None
    """Statement of the block that builds the optimizer, or calls the function that does; None if it is elsewhere."""


def find_constructions(draft: Draft) -> list[Construction]:
    """Constructions of all models that the script trains, with a to-do for each that cannot be determined."""
    _name_argument(draft)
    survey = draft.survey
    constructions: list[Construction] = []
    visited: set[frozenset[Place]] = set()
    for optimizer in optimizers(survey):
        if optimizer.model is None:
            continue
        places = frozenset(aliases_of(survey, optimizer.model))
        if places in visited:
            continue
        visited.add(places)
        construction = _trace(survey, optimizer.model, survey.statement(optimizer.call), set())
        if construction is None:
            draft.add_todo("no_construction", name=optimizer.model[1])
        elif construction.statement not in [earlier.statement for earlier in constructions]:
            constructions.append(construction)
    if not visited:
        draft.add_todo("no_optimizer")
    return constructions


def find_construction(draft: Draft) -> Construction | None:
    """Construction of the only model that the script trains; None, with a to-do, if it cannot be determined."""
    _name_argument(draft)
    survey = draft.survey
    trained = [optimizer for optimizer in optimizers(survey) if optimizer.model is not None]
    if not trained:
        draft.add_todo("no_optimizer")
        return None
    places = [frozenset(aliases_of(survey, optimizer.model)) for optimizer in trained if optimizer.model is not None]
    if len(set(places)) > 1:
        names = sorted({optimizer.model[1] for optimizer in trained if optimizer.model is not None})
        draft.abandon("several_models", count=len(set(places)), names=", ".join(names))
        return None
    optimizer = trained[0]
    model = cast("Place", optimizer.model)
    construction = _trace(survey, model, survey.statement(optimizer.call), set())
    if construction is None:
        draft.add_todo("no_construction", name=model[1])
    return construction


def _name_argument(draft: Draft) -> None:
    """Replace ``Trainer(Net(), ...)`` by ``model = Net()`` and ``Trainer(model, ...)``, so the model has a name."""
    survey = draft.survey
    for function, name in {
        place for o in optimizers(survey) if o.model is not None for place in aliases_of(survey, o.model)
    }:
        if function is None or name not in survey.parameters(function):
            continue
        for call in survey.calls:
            for called, skipped in callees(survey, call):
                arg = call_arguments(survey, call, function, skipped).get(name) if called is function else None
                statement = survey.statement(call)
                if (
                    arg is None
                    or not isinstance(arg.value, cst.Call)
                    or not isinstance(statement, cst.SimpleStatementLine)
                ):
                    continue
                fresh = name if name not in _names_at(survey, call) else survey.free_name("model", "trained_model")
                edits = Edits()
                edits.insert_before(statement, statements(f"{fresh} = {text_of(arg.value)}\n"))
                edits.replace(arg.value, cst.Name(fresh))
                draft.apply(edits)
                return


def _names_at(survey: Survey, node: cst.CSTNode) -> set[str]:
    function = survey.function(node)
    names = survey.module_names()
    if function is not None:
        names |= {n.value for n in walk(function) if isinstance(n, cst.Name)}
    return names


def _trace(survey: Survey, place: Place, before: Statement | None, visited: set[Place]) -> Construction | None:  # noqa: C901 - a list of cases
    if place in visited:
        return None
    visited.add(place)
    function, name = place
    assignments = [
        a
        for a in survey.assignments(function, name)
        if a.value is not None
        and _constructs(survey, a.value)
        # An assignment after the optimizer is another model, for example the best one loaded from a checkpoint.
        and (before is None or survey.function(before) is not function or not survey.follows(before, a))
    ]
    if assignments:
        return _from_assignments(survey, place, assignments, before, visited)
    if function is None:
        return None
    if name in survey.parameters(function):
        for call in survey.calls:
            for called, skipped in callees(survey, call):
                if called is function:
                    arg = call_arguments(survey, call, function, skipped).get(name)
                    argument_name = dotted(arg.value) if arg is not None else None
                    if argument_name is not None:
                        construction = _trace(
                            survey, (survey.function(call), argument_name), survey.statement(call), visited
                        )
                        if construction is not None:
                            return construction
        return None
    owner = survey.class_of(function)
    if name.startswith("self.") and owner is not None:
        for method in survey.functions:
            if survey.class_of(method) is owner and survey.assignments(method, name):
                return _trace(survey, (method, name), None, visited)
        return None
    return _trace(survey, (None, name), before, visited)


def _from_assignments(
    survey: Survey,
    place: Place,
    assignments: list[cst.Assign | cst.AnnAssign],
    before: Statement | None,
    visited: set[Place],
) -> Construction | None:
    function, name = place
    first = assignments[0]
    source = source_of(survey, cast("cst.BaseExpression", first.value))
    if source is not None and source != name:
        # self.model = model.to(device): constructed where `model` is assigned.
        construction = _trace(survey, (function, source), survey.statement(first), visited)
        if construction is not None:
            return construction
    assigning = [assigned for a in assignments if (assigned := survey.statement(a)) is not None]
    for statement in [assigning[0], *survey.ancestors(assigning[0])]:
        block = survey.body_of(statement)
        if not block:
            continue
        if statement is function:
            break
        containing: list[Statement | None] = [_containing(survey, node, block) for node in assigning]
        if None not in containing:
            stop = _containing(survey, before, block)
            limit = block.index(stop) if stop is not None else len(block)
            earlier = [s for s in containing if s is not None and block.index(s) < limit]
            earlier = earlier or [cast("Statement", statement)]
            return Construction(function=function, name=name, statement=earlier[0], last=earlier[-1], use=stop)
    # The model is constructed in separate branches: only the user knows where to wrap it.
    return None


def _containing(survey: Survey, node: Statement | None, block: list[Statement]) -> Statement | None:
    """The statement of the block that is the node or contains it."""
    if node is None:
        return None
    return cast("Statement | None", next((above for above in (node, *survey.ancestors(node)) if above in block), None))


def _constructs(survey: Survey, value: cst.BaseExpression) -> bool:
    """Whether a value is a model: neither None nor a wrapper added by an earlier step."""
    if dotted(value) == "None":
        return False
    return not (
        isinstance(value, cst.Call) and survey.callee(value).endswith((".DistributedModel", "sagemaker.transform"))
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Layers:
    """A list of layers such as ``self.blocks = nn.ModuleList([Block() for _ in range(n)])``."""

    attribute: str
    """Path from the model, for example ``blocks`` or ``encoder.blocks``."""
    sequential: bool
    layer_class: str
    """Class of the layers; empty if it is not defined or imported in the script."""


def repeated_layers(survey: Survey, construction: Construction) -> Layers | None:
    """The only list of repeated layers in the model; None if there is none or more than one."""
    called = {dotted(node.func) for node in walk(construction.statement) if isinstance(node, cst.Call)}
    return _only_layers(survey, called)


def imported_layers(survey: Survey, construction: Construction, folder: Path) -> tuple[str, str] | None:
    """Module and class of the repeated layers of a model whose class a file next to the script defines."""
    for call in (node for node in walk(construction.statement) if isinstance(node, cst.Call)):
        module, _, name = (survey.callee(call) or "").rpartition(".")
        file = folder.joinpath(*module.split(".")).with_suffix(".py")
        if not module or not file.is_file():
            continue
        try:
            neighbor = Survey(cst.parse_module(read(file).text))
        except (AdvisorError, cst.ParserSyntaxError, RecursionError):
            continue
        layers = _only_layers(neighbor, {name})
        if layers is not None and neighbor.classes_named(layers.layer_class):
            return module, layers.layer_class
    return None


def _only_layers(survey: Survey, called: set[str | None]) -> Layers | None:
    for name in list(called):
        # model = build_model(args): include the classes called in the helper.
        for function in survey.named(name or ""):
            called |= {dotted(node.func) for node in walk(function) if isinstance(node, cst.Call)}
    classes = [definition for definition in survey.classes if definition.name.value in called]
    candidates = [layers for definition in classes for layers in _of_class(survey, definition, "", set())]
    candidates = [layers for layers in candidates if layers.layer_class] or candidates
    return candidates[0] if len(candidates) == 1 else None


def repeated_in(survey: Survey, classes: list[cst.ClassDef]) -> str:
    """Class of the repeated layers in these classes; empty if there is none or more than one."""
    names = {layers.layer_class for definition in classes for layers in _of_class(survey, definition, "", set())}
    names.discard("")
    return names.pop() if len(names) == 1 else ""


def _of_class(survey: Survey, definition: cst.ClassDef, prefix: str, visited: set[str]) -> list[Layers]:
    if definition.name.value in visited:
        return []
    visited = visited | {definition.name.value}
    lists: list[Layers] = []
    for node in walk(definition):
        if not isinstance(node, cst.Assign | cst.AnnAssign) or not isinstance(node.value, cst.Call):
            continue
        target = next((dotted(t) for t in targets_of(node)), None) or ""
        if not target.startswith("self.") or target.count(".") != 1:
            continue
        attribute = prefix + target[len("self.") :]
        kind = survey.callee(node.value)
        if kind in ("torch.nn.Sequential", "torch.nn.ModuleList"):
            layer = _repeated(survey, node.value)
            if layer is not None:
                lists.append(Layers(attribute=attribute, sequential=kind.endswith("Sequential"), layer_class=layer))
        else:
            for inner in survey.classes_named(dotted(node.value.func) or ""):
                lists += _of_class(survey, inner, attribute + ".", visited)
    return lists


def _repeated(survey: Survey, call: cst.Call) -> str | None:
    """Class of layers created by a comprehension or listed more than once; None if no layer repeats."""
    for node in walk(call):
        if isinstance(node, cst.ListComp | cst.GeneratorExp) and isinstance(node.elt, cst.Call):
            name = dotted(node.elt.func) or ""
            return name if survey.classes_named(name) or "." in name or name in survey.imported else ""
    called = [dotted(node.func) for arg in call.args for node in walk(arg) if isinstance(node, cst.Call)]
    local = [name for name in called if name and survey.classes_named(name)]
    return local[0] if len(local) > 1 and len(set(local)) == 1 else None


def wrap_construction(draft: Draft, construction: Construction, *, context: str, wrap: str) -> None:
    """Put the construction into `context` (a ``with`` header, or empty), and insert `wrap` after its last statement."""
    edits = Edits()
    after = statements(wrap)
    if context:
        alone = construction.last is construction.statement

        def indent(new: Any) -> Any:
            block = cst.ensure_type(statements(f"{context}:\n    pass\n")[0], cst.With)
            block = block.with_changes(
                leading_lines=new.leading_lines,
                body=block.body.with_changes(body=[new.with_changes(leading_lines=[])]),
            )
            return cst.FlattenSentinel([block, *(after if alone else [])])

        edits.change(construction.statement, indent)
    if not context or construction.last is not construction.statement:
        edits.insert_after(construction.last, after)
    draft.apply(edits)
