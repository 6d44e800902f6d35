"""Steps: give each replica its own shard of the data, without a partial last batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import libcst as cst

from smp_advisor.scripts.adapt.aliases import Place, names_of
from smp_advisor.scripts.adapt.code import (
    Edits,
    call_text,
    dotted,
    expression,
    keyword,
    positional,
    statements,
    text_of,
    walk,
)
from smp_advisor.scripts.adapt.draft import add_import, add_names, drop_unused_imports
from smp_advisor.scripts.adapt.launch import add_dist
from smp_advisor.scripts.adapt.roles import (
    assigned_name,
    backward_calls,
    is_held_out,
    iterated,
    loader_calls,
    places_of_loader,
)
from smp_advisor.scripts.adapt.survey import known_names

if TYPE_CHECKING:
    from smp_advisor.scripts.adapt.draft import Draft
    from smp_advisor.scripts.adapt.survey import Survey


_POSITIONS = known_names("data_loader_parameters")
_SAMPLERS = known_names("distributed_samplers")
_PLAIN = known_names("plain_samplers")


@dataclass(frozen=True, kw_only=True, slots=True)
class Shards:
    """How the data is divided over the replicas."""

    size: str
    """Expression of the number of shards."""
    rank: str
    """Expression of the shard of this process."""
    drop_all: bool
    """Whether evaluation data must drop its last partial batch."""


def shard_data(draft: Draft) -> None:
    """Shard the data by the ranks of SMP v1, so that every batch divides into microbatches."""
    target = draft.target
    shard_loaders(draft, Shards(size=target.data_size, rank=target.data_rank, drop_all=target.microbatches > 1))


def shard_loaders(draft: Draft, shards: Shards) -> None:  # noqa: C901, PLR0912, PLR0915 - a list of cases
    """Give every data loader its shard, for both versions of the library."""
    _fix_samplers(draft, shards)
    survey, edits = draft.survey, Edits()
    added, shuffled = False, list[cst.Call]()
    for call in loader_calls(survey):
        name = assigned_name(survey, call)
        held_out = is_held_out(survey, call)
        new = _Arguments(call)
        if held_out and not shards.drop_all:
            continue
        if held_out and new.mapping and not _mentions_sampler(survey, call):
            own = [text_of(a.with_changes(comma=cst.MaybeSentinel.DEFAULT)).strip() for a in call.args if not a.star]
            texts = [*own, f'**{{**{new.mapping}, "drop_last": True}}']
            edits.replace(call, expression(call_text(text_of(call.func), texts, width=88)))
            _count_full_batches(draft, edits, call)
            continue
        if held_out and not new.starred and not new.value("batch_sampler"):
            # Every replica evaluates all data: the counts of a shard would need a reduction over the replicas.
            if new.value("drop_last") in (None, "False"):
                new.set("drop_last", "True")
                edits.replace(call, new.call(survey, draft.module))
                _count_full_batches(draft, edits, call)
            continue
        if new.value("batch_sampler"):
            draft.add_todo("own_batch_sampler", call, rank=shards.rank, size=shards.size)
            continue
        if new.mapping and new.value("sampler"):
            continue
        if new.mapping and not _mentions_sampler(survey, call):
            _add_mapped_sampler(draft, edits, call, new, shards, held_out=held_out)
            added = True
            if not held_out:
                shuffled.append(call)
            continue
        if new.starred:
            draft.add_todo("starred_loader", call, rank=shards.rank, size=shards.size)
            continue
        if _is_streamed(survey, call, new):
            draft.add_todo("streamed", call, rank=shards.rank, size=shards.size)
        elif not new.value("sampler"):
            shuffle = new.remove("shuffle")
            _add_sampler(draft, edits, call, new, shards, shuffle, name)
            added = True
            if shuffle is not None and shuffle != "False":
                shuffled.append(call)
        if new.value("drop_last") not in (None, "True", "False"):
            draft.add_todo("drop_last_unknown", call)
        else:
            new.set("drop_last", "True")
        workers = new.value("num_workers")
        if workers not in (None, "0") and shards.rank.startswith("smp."):
            draft.add_todo("no_workers", call)
        edits.replace(call, new.call(survey, draft.module))
    todo = _set_epochs(draft, edits, shuffled)
    draft.apply(edits)
    if added:
        add_names(draft, "torch.utils.data.distributed", ["DistributedSampler"])
    for sentence in todo:
        draft.add_sentence(sentence)


class _Arguments:
    """Arguments of a data loader, read and changed by name."""

    def __init__(self, call: cst.Call) -> None:
        self._call = call
        self._args = list(call.args)
        self.starred = any(arg.star for arg in call.args)
        stars = [arg for arg in call.args if arg.star]
        self.mapping = ""
        """Name of the only ``**`` argument; empty if there is none or it is not a name."""
        if len(stars) == 1 and stars[0].star == "**" and isinstance(stars[0].value, cst.Name):
            self.mapping = stars[0].value.value

    def _find(self, name: str) -> int | None:
        for number, arg in enumerate(self._args):
            if arg.keyword is not None and arg.keyword.value == name:
                return number
        position = _POSITIONS.index(name)
        return position if positional(self._call.with_changes(args=self._args), position) is not None else None

    def value(self, name: str) -> str | None:
        index = self._find(name)
        if index is None:
            return None
        text = text_of(self._args[index].value)
        return None if text == "None" else text

    def remove(self, name: str) -> str | None:
        """Remove an argument and return its source; positional arguments after it become keyword arguments."""
        index = self._find(name)
        if index is None:
            return None
        text = text_of(self._args[index].value)
        if self._args[index].keyword is None:
            for later in range(index + 1, len(self._args)):
                if self._args[later].keyword is None:
                    self._args[later] = _named(_POSITIONS[later], self._args[later].value)
        del self._args[index]
        return text

    def set(self, name: str, text: str) -> None:
        index = self._find(name)
        if index is None:
            self._args.append(_named(name, expression(text)))
        else:
            self._args[index] = self._args[index].with_changes(value=expression(text))

    def without_mapping(self) -> list[str]:
        """Source of the arguments without the ``**`` argument."""
        return [text_of(a.with_changes(comma=cst.MaybeSentinel.DEFAULT)).strip() for a in self._args if not a.star]

    def call(self, survey: Survey, module: cst.Module) -> cst.Call:
        if len(self._args) == len(self._call.args) and all(
            isinstance(arg.comma, cst.Comma) or number == len(self._args) - 1 for number, arg in enumerate(self._args)
        ):
            return self._call.with_changes(args=self._args)
        lines = any("\n" in module.code_for_node(arg) for arg in self._call.args) or "\n" in text_of(
            self._call.whitespace_before_args
        )
        arguments = [text_of(arg.with_changes(comma=cst.MaybeSentinel.DEFAULT)).strip() for arg in self._args]
        width = 0 if lines else 88
        text = call_text(text_of(self._call.func), arguments, width=width)
        if isinstance(survey.parent(self._call), cst.DictElement | cst.Element):
            text = text.replace("\n", "\n    ")
        return cst.ensure_type(expression(text), cst.Call)


def _named(name: str, value: cst.BaseExpression) -> cst.Arg:
    return cst.Arg(
        keyword=cst.Name(name),
        value=value,
        equal=cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace("")),
    )


def _add_sampler(
    draft: Draft,
    edits: Edits,
    call: cst.Call,
    new: _Arguments,
    shards: Shards,
    shuffle: str | None,
    name: str | None,
) -> None:
    """Add a sampler, in a statement before the loader where possible."""
    survey = draft.survey
    dataset = keyword(call, "dataset") or positional(call, 0)
    if dataset is None:
        draft.add_todo("no_dataset", call)
        return
    text = text_of(dataset.value)
    statement = survey.statement(call)
    own = isinstance(statement, cst.SimpleStatementLine | cst.For) and _runs_once(survey, call, statement)
    stem = (name or "").rpartition(".")[2]
    lines = []
    if dotted(dataset.value) is None and own:
        fresh = survey.free_name(
            stem.replace("loader", "dataset") if "loader" in stem else "dataset", "sampled_dataset"
        )
        fresh = _unused(edits, fresh)
        lines.append(f"{fresh} = {text}")
        text = fresh
        new.set("dataset", fresh)
    arguments = [
        text,
        f"num_replicas={shards.size}",
        f"rank={shards.rank}",
        f"shuffle={shuffle or 'False'}",
        "drop_last=True",  # equal shards give every replica the same number of steps
    ]
    if not own or statement is None:
        new.set("sampler", call_text("DistributedSampler", arguments, width=88))
        return
    preferred = stem.replace("dataloader", "sampler").replace("loader", "sampler") if "loader" in stem else "sampler"
    sampler = _unused(edits, survey.free_name(preferred, f"{preferred}_by_rank"))
    lines.append(f"{sampler} = " + call_text("DistributedSampler", arguments, width=88, before=f"{sampler} = "))
    edits.insert_before(statement, statements("\n".join(lines)))
    new.set("sampler", sampler)


def _runs_once(survey: Survey, call: cst.Call, statement: cst.CSTNode) -> bool:
    """Whether an expression runs exactly once per run of its statement, so that its parts can be computed before."""
    for above in survey.ancestors(call):
        if above is statement:
            return True
        if isinstance(above, cst.Lambda | cst.BaseComp | cst.IfExp | cst.BooleanOperation | cst.IndentedBlock):
            return False
    return False


def _count_full_batches(draft: Draft, edits: Edits, call: cst.Call) -> None:
    """Replace ``len(loader.dataset)`` by the samples of the full batches, because the last partial batch is dropped."""
    survey = draft.survey
    places = places_of_loader(survey, call)
    for size in survey.calls:
        if dotted(size.func) != "len" or len(size.args) != 1:
            continue
        owner, _, attribute = (dotted(size.args[0].value) or "").rpartition(".")
        if attribute == "dataset" and owner in names_of(survey, places, survey.function(size)):
            edits.replace(size, expression(f"(len({owner}) * {owner}.batch_size)"))


def _mentions_sampler(survey: Survey, call: cst.Call) -> bool:
    """Whether the function mentions a sampler, which may then be in the mapping."""
    scope = survey.function(call) or survey.module
    return any(isinstance(node, cst.SimpleString) and "sampler" in node.value for node in walk(scope))


def _add_mapped_sampler(
    draft: Draft, edits: Edits, call: cst.Call, new: _Arguments, shards: Shards, *, held_out: bool
) -> None:
    """Override the options of ``DataLoader(dataset, **options)`` in the call."""
    name = new.mapping
    dataset = keyword(call, "dataset") or positional(call, 0)
    statement = draft.survey.statement(call)
    if dataset is None or statement is None:
        draft.add_todo("mapped_without_dataset", call, rank=shards.rank, size=shards.size)
        return
    text = text_of(dataset.value)
    if dotted(dataset.value) is None:
        if not isinstance(statement, cst.SimpleStatementLine) or not _runs_once(draft.survey, call, statement):
            draft.add_todo("mapped_dataset_inline", call, rank=shards.rank, size=shards.size)
            return
        fresh = draft.survey.free_name("dataset", "sampled_dataset")
        fresh = _unused(edits, fresh)
        edits.insert_before(statement, statements(f"{fresh} = {text}"))
        new.set("dataset", fresh)
        text = fresh
    drop = shards.drop_all or not held_out
    shuffle = new.remove("shuffle")
    sampler = [
        text,
        f"num_replicas={shards.size}",
        f"rank={shards.rank}",
        f"shuffle={shuffle}" if shuffle is not None else f'shuffle={name}.get("shuffle", False)',
        *(["drop_last=True"] if drop else []),
    ]
    changed = [*(['"shuffle": False'] if shuffle is None else []), *(['"drop_last": True'] if drop else [])]
    mapping = f"**{{**{name}, {', '.join(changed)}}}" if changed else f"**{name}"
    texts = [*new.without_mapping(), f"sampler={call_text('DistributedSampler', sampler, width=84)}", mapping]
    edits.replace(call, expression(call_text(text_of(call.func), texts, width=88)))


def _unused(edits: Edits, name: str) -> str:
    """A name that no inserted statement assigns."""
    taken = edits.inserted_names()
    number = 2
    while f"{name}_{number}" in taken:
        number += 1
    return f"{name}_{number}" if name in taken else name


def _is_streamed(survey: Survey, call: cst.Call, new: _Arguments) -> bool:
    name = new.value("dataset") or ""
    sources = [name] if "(" in name else []
    assigned = survey.assignments(survey.function(call), name)
    sources += [text_of(assignment.value) for assignment in assigned if assignment.value is not None]
    streams = {
        definition.name.value
        for definition in survey.classes
        if any("IterableDataset" in text_of(base.value) for base in definition.bases)
    }
    return any(any(text.startswith(stream + "(") for stream in streams) or "streaming=True" in text for text in sources)


def _fix_samplers(draft: Draft, shards: Shards) -> None:
    """Replace the rank among processes by the rank among replicas in existing samplers."""
    survey, edits = draft.survey, Edits()
    used_plain = False
    for call in survey.calls:
        name = survey.callee(call)
        if name in _SAMPLERS:
            arguments = [
                arg for arg in call.args if arg.keyword is None or arg.keyword.value not in ("num_replicas", "rank")
            ]
            if sum(arg.keyword is None for arg in arguments) > 1:
                draft.add_todo("sampler_with_arguments", call, size=shards.size, rank=shards.rank)
                continue
            texts = [text_of(arg.with_changes(comma=cst.MaybeSentinel.DEFAULT)).strip() for arg in arguments]
            texts[1:1] = [f"num_replicas={shards.size}", f"rank={shards.rank}"]
        elif name in _PLAIN and len(call.args) == 1:
            used_plain = True
            texts = [
                text_of(call.args[0].value),
                f"num_replicas={shards.size}",
                f"rank={shards.rank}",
                f"shuffle={'Random' in name}",
            ]
        elif name.startswith("torch.utils.data.") and name.endswith("Sampler") and "Batch" not in name:
            draft.add_todo("samples_everything", call, rank=shards.rank, size=shards.size)
            continue
        else:
            continue
        function = text_of(call.func) if name in _SAMPLERS else "DistributedSampler"
        text = call_text(function, texts, width=88)
        edits.replace(call, expression(text))
    draft.apply(edits)
    if used_plain:
        drop_unused_imports(draft, set(_PLAIN))
        add_names(draft, "torch.utils.data.distributed", ["DistributedSampler"])


def _set_epochs(draft: Draft, edits: Edits, calls: list[cst.Call]) -> list[str]:
    """Call ``set_epoch`` before each epoch, because every epoch would have the same order without it.

    Returns the to-dos for the samplers whose training loop was not found.
    """
    survey = draft.survey
    todo = []
    for call in calls:
        places = places_of_loader(survey, call)
        if not _insert_set_epoch(survey, edits, places):
            todo.append(
                "If there are several epochs, call set_epoch(epoch) on the sampler of"
                f" `{draft.excerpt(call)}` before each."
            )
    return todo


def _insert_set_epoch(survey: Survey, edits: Edits, places: set[Place]) -> bool:
    training = [set(survey.loops(call)) for call in backward_calls(survey)]
    for loop in survey.nodes:
        if not isinstance(loop, cst.For) or not any(loop in loops for loops in training):
            continue
        function = survey.function(loop)
        loader = next((n for n in iterated(loop.iter) if n in names_of(survey, places, function)), None)
        if loader is None:
            continue
        outer = survey.loops(loop)
        epoch = next(
            (
                o.target.value
                for o in outer
                if isinstance(o, cst.For) and isinstance(o.target, cst.Name) and "range(" in text_of(o.iter)
            ),
            None,
        )
        if epoch in (None, "_") and function is not None and "epoch" in survey.parameters(function):
            epoch = "epoch"
        if epoch in (None, "_"):
            return False
        text = f"{loader}.sampler.set_epoch({epoch})\n"
        if f".set_epoch({epoch})" not in text_of(survey.module if function is None else function):
            edits.insert_before(loop, statements(text))
        return True
    return False


def shard_data_by_group(draft: Draft) -> None:
    """Shard the data by rank; the ranks of one tensor-parallel or context-parallel group read the same shard."""
    shared = [
        f"tsm.state.{name}_parallel_degree"
        for name, planned in (("tensor", draft.target.tensor_parallel), ("context", draft.target.context_parallel))
        if planned
    ]
    group = shared[0] if len(shared) == 1 else f"({' * '.join(shared)})"
    division = f" // {group}" if shared else ""
    before = draft.module
    shards = Shards(size=f"dist.get_world_size(){division}", rank=f"dist.get_rank(){division}", drop_all=False)
    shard_loaders(draft, shards)
    if draft.module is not before and "dist." in draft.module.code:
        add_import(draft, "import torch.distributed as dist", local="dist")


def shard_data_by_process(draft: Draft) -> None:
    """Shard the training data by rank; every process evaluates all evaluation data."""
    if not loader_calls(draft.survey):
        draft.add_todo("no_loader")
        return
    shard_loaders(draft, Shards(size="dist.get_world_size()", rank="dist.get_rank()", drop_all=False))
    add_dist(draft)
