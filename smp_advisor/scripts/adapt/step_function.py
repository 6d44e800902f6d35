"""A `@smp.step` function: its source, its inputs, and its outputs, one per microbatch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import libcst as cst

from smp_advisor.scripts.adapt.code import call_text, children, dotted, expression, names_in, text_of, walk
from smp_advisor.scripts.adapt.survey import BUILTINS, Function, Statement, Survey, assigned_names, known_names

if TYPE_CHECKING:
    from collections.abc import Callable


FIELDS = known_names("output_fields")
"""Fields of the output objects of transformers models."""


def is_loss(survey: Survey, name: str, value: cst.CSTNode | None) -> bool:
    """Whether a value is a loss, judging by its name or by the function that computes it."""
    last = name.rpartition(".")[2].lower()
    if "loss" in last or last in ("nll", "perplexity", "objective"):
        return True
    if isinstance(value, cst.Call):
        method = value.func.attr.value if isinstance(value.func, cst.Attribute) else ""
        callee = (survey.callee(value).rpartition(".")[2] or method).lower()
        of_module = survey.callee(value).startswith("torch.")
        if callee in ("sum", "mean"):
            return len(value.args) == int(of_module)  # a sum over some axes has values for each sample
        return callee in ("criterion", "cross_entropy", "mse_loss", "nll_loss", "bce_loss") or "loss" in callee
    if isinstance(value, cst.UnaryOperation):
        return is_loss(survey, "", value.expression)
    return isinstance(value, cst.BinaryOperation) and (
        is_loss(survey, "", value.left) or is_loss(survey, "", value.right)
    )


def reduction(*, loss: bool) -> str:
    """Method call that combines an output over the microbatches: the mean of a loss, or the concatenated batch."""
    return ".reduce_mean()" if loss else ".concat()"


def fields_read(nodes: list[cst.CSTNode], name: str) -> tuple[list[str], bool]:
    """Fields read from an output object, by attribute or key, and whether the object itself is used as well."""
    fields: list[str] = []
    as_object = False
    for node in nodes:
        skip: set[int] = set()
        for inner in walk(node):
            field = None
            if isinstance(inner, cst.Attribute) and dotted(inner.value) == name and inner.attr.value in FIELDS:
                field = inner.attr.value
            elif isinstance(inner, cst.Subscript) and dotted(inner.value) == name:
                index = inner.slice[0].slice
                key = index.value if isinstance(index, cst.Index) else None
                if isinstance(key, cst.SimpleString) and key.evaluated_value in FIELDS:
                    field = str(key.evaluated_value)
            if field is not None:
                # The name of the object inside this node is not a use of the object itself.
                skip.update(id(below) for below in walk(inner))
                if field not in fields:
                    fields.append(field)
            elif isinstance(inner, cst.Name) and inner.value == name and id(inner) not in skip:
                as_object = True
    return fields, as_object


_FACTORIES = known_names("tensor_factories")


@dataclass(kw_only=True, slots=True)
class Inputs:
    """Values that the statements read from the code around them."""

    arguments: dict[str, str] = field(default_factory=dict)
    """Argument of the call for each parameter of the function, in order."""
    renamed: dict[str, str] = field(default_factory=dict)
    """Parameter of the function for each expression of the loop, where they differ."""
    not_split: list[str] = field(default_factory=list)
    """Tensors without a batch dimension."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepFunction:
    """Parts of the source of a step function."""

    name: str
    parameters: tuple[str, ...]
    not_split: tuple[str, ...]
    body: str
    returned: tuple[str, ...]
    docstring: str


def step_text(function: StepFunction) -> str:
    """Source of the function, for the module level."""
    decorator = "@smp.step"
    if function.not_split:
        decorator += f"(non_split_inputs=[{', '.join(repr(name) for name in function.not_split)}])".replace("'", '"')
    head = "def " + call_text(function.name, function.parameters, width=94) + ":"
    lines = [decorator, head, f'    """{function.docstring}"""']
    lines += ["    " + line if line.strip() else "" for line in function.body.rstrip().splitlines()]
    lines.append(f"    return {', '.join(function.returned)}")
    return "\n".join(lines) + "\n"


def gather_inputs(  # noqa: C901 - a list of cases
    survey: Survey, function: Function, nodes: list[cst.CSTNode], models: set[str], *, inside: set[str], read: set[str]
) -> Inputs:
    """Parameters for the names that `nodes` read from the code around them (`read`); the model comes first.

    `inside` are the names that the nodes define before they read them.
    """
    inputs = Inputs()
    taken: set[str] = set(inside)
    at_module = survey.module_names()
    in_loop = _loop_names(survey, nodes)

    around = [f for f in (function, *survey.ancestors(function or survey.module)) if isinstance(f, cst.FunctionDef)]

    def is_free(name: str) -> bool:
        if name not in read:
            return False
        # A batch called `input` or `data` hides the built-in function or the module of this name.
        if any(survey.is_bound(scope, name) for scope in around):
            return True
        if function is None and name in in_loop:
            return True
        return function is not None and name not in at_module and name not in BUILTINS

    def add(text: str, preferred: str) -> None:
        if text in inputs.renamed or (text in inputs.arguments and text == preferred):
            return
        name = preferred
        while name in taken or (name != text and name in survey.imported):
            name += "_"
        taken.add(name)
        inputs.arguments[name] = text
        if name != text:
            inputs.renamed[text] = name

    model_name = next((m for node in nodes for m in _read_in_order(node) if m in models), None)
    if model_name is not None:
        add(model_name, "model" if "." in model_name else model_name)
    owner = survey.class_of(function)
    methods = {f.name.value for f in survey.functions if owner is not None and survey.class_of(f) is owner}
    for node in nodes:
        _gather(node, is_free, models, methods, add)
    # The model first, then values that change with each batch, then constants.
    first, *further = inputs.arguments.items()
    further.sort(key=lambda item: not any(name in in_loop for name in names_in(expression(item[1]))))
    inputs.arguments = dict([first, *further])
    for name, text in inputs.arguments.items():
        if (
            "." not in text
            and "(" not in text
            and function is not None
            and _is_constant_tensor(survey, function, text, in_loop)
        ):
            inputs.not_split.append(name)
    return inputs


def _gather(  # noqa: C901, PLR0912 - a list of cases
    node: cst.CSTNode,
    is_free: Callable[[str], bool],
    models: set[str],
    methods: set[str],
    add: Callable[[str, str], None],
) -> None:
    lifted = _moved_input(node, is_free)
    if lifted is not None:
        add(text_of(node), lifted)
        return
    name = dotted(node) if isinstance(node, cst.Name | cst.Attribute) else None
    if name is not None:
        if name in models:
            add(name, "model" if "." in name else name)
        elif name.startswith("self."):
            attribute = ".".join(name.split(".")[:2])
            if attribute in models:
                add(attribute, "model")
            else:
                add(attribute, attribute[len("self.") :].lstrip("_"))
        elif is_free(name.split(".")[0]):
            add(name.split(".")[0], name.split(".")[0])
        return
    if isinstance(node, cst.Arg):
        _gather(node.value, is_free, models, methods, add)
        return
    if isinstance(node, cst.Attribute):
        _gather(node.value, is_free, models, methods, add)
        return
    if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and dotted(node.func) is not None:
        owner = dotted(node.func.value) or ""
        if owner == "self" and node.func.attr.value in methods:
            # self.compute_loss(...): pass the object itself.
            add("self", "trainer")
        elif owner == "self":
            _gather(node.func, is_free, models, methods, add)
        else:
            _gather(node.func.value, is_free, models, methods, add)
        for arg in node.args:
            _gather(arg, is_free, models, methods, add)
        return
    if isinstance(node, cst.AssignTarget | cst.AnnAssign) and isinstance(getattr(node, "target", None), cst.Name):
        for child in children(node):
            if child is not node.target:
                _gather(child, is_free, models, methods, add)
        return
    for child in children(node):
        _gather(child, is_free, models, methods, add)


def _moved_input(node: cst.CSTNode, is_free: Callable[[str], bool]) -> str | None:
    """Parameter name for ``x.to(device)`` of an input, which the documentation requires to be moved before the step."""
    if not (
        isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and node.func.attr.value in ("to", "cuda")
    ):
        return None
    source = node.func.value
    names = names_in(source)
    if not names or not all(is_free(name) for name in names):
        return None
    if isinstance(source, cst.Subscript):
        key = source.slice[0].slice
        if isinstance(key, cst.Index) and isinstance(key.value, cst.SimpleString):
            text = str(key.value.evaluated_value)
            return text if text.isidentifier() else "inputs"
        return "inputs"
    return names[0] if isinstance(source, cst.Name) else "inputs"


def _read_in_order(node: cst.CSTNode) -> list[str]:
    return [name for inner in walk(node) if isinstance(inner, cst.Name | cst.Attribute) and (name := dotted(inner))]


def _loop_names(survey: Survey, nodes: list[cst.CSTNode]) -> set[str]:
    """Names bound by the loops around the statements, which change from batch to batch."""
    names: set[str] = set()
    for loop in survey.loops(nodes[0]) if nodes else []:
        names |= assigned_names(loop)
    return names


def _is_constant_tensor(survey: Survey, function: Function, name: str, in_loop: set[str]) -> bool:
    if name in in_loop:
        return False
    for assignment in survey.assignments(function, name):
        for node in walk(assignment):
            if isinstance(node, cst.Call) and survey.callee(node) in _FACTORIES:
                return True
    return False


def renamed_text(nodes: list[Statement], renamed: dict[str, str], change: Callable[[Any], Any]) -> str:
    """Source of the statements at module level, with expressions renamed and `change` applied to each statement."""
    return cst.Module(body=[change(node.visit(Rename(renamed))) for node in nodes]).code


class Rename(cst.CSTTransformer):
    """Replaces expressions by names, given the source of each."""

    def __init__(self, renamed: dict[str, str]) -> None:
        super().__init__()
        self._renamed = renamed

    def on_visit(self, node: cst.CSTNode) -> bool:
        """Whether to visit the children: not those of a replaced expression."""
        return not (isinstance(node, cst.BaseExpression) and text_of(node) in self._renamed)

    def on_leave(self, original_node: Any, updated_node: Any) -> Any:
        """Replacement of a node."""
        if isinstance(original_node, cst.BaseExpression):
            name = self._renamed.get(text_of(original_node))
            if name is not None:
                return cst.parse_expression(name)
        return updated_node
