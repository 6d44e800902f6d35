"""The repeated layers of a model class defined in the script."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import libcst as cst

from smp_advisor.errors import AdvisorError
from smp_advisor.reading.source import read
from smp_advisor.scripts.adapt.code import dotted, walk
from smp_advisor.scripts.adapt.survey import Survey, targets_of

if TYPE_CHECKING:
    from pathlib import Path

    from smp_advisor.scripts.adapt.construction import Construction

__all__ = ["Layers", "imported_layers", "repeated_in", "repeated_layers"]


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
    """Module and class of the repeated layers of a model whose class a file next to the script defines.

    Parameters
    ----------
    survey
        Index of the script.
    construction
        The statement that creates the model.
    folder
        Folder of the script.
    """
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
