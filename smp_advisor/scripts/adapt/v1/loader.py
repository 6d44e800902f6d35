"""Step: each replica reads its own share of the data, in whole batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from smp_advisor.scripts.adapt.aliases import Place, names_of, spread
from smp_advisor.scripts.adapt.code import call_text, dotted, expression, keyword, positional, spelled, statements, walk
from smp_advisor.scripts.adapt.edits import Edits
from smp_advisor.scripts.adapt.imports import add_names, drop_unused_imports
from smp_advisor.scripts.adapt.roles import backward_calls, loader_calls
from smp_advisor.scripts.adapt.survey import Survey, targets_of

if TYPE_CHECKING:
    from smp_advisor.scripts.adapt.draft import Draft

__all__ = ["Shards", "shard_data", "shard_loaders"]

_POSITIONS = (
    "dataset",
    "batch_size",
    "shuffle",
    "sampler",
    "batch_sampler",
    "num_workers",
    "collate_fn",
    "pin_memory",
    "drop_last",
)
_SAMPLER = "torch.utils.data.distributed.DistributedSampler"
_SAMPLERS = (_SAMPLER, "torch.utils.data.DistributedSampler")
_PLAIN = (
    "torch.utils.data.RandomSampler",
    "torch.utils.data.SequentialSampler",
    "torch.utils.data.sampler.RandomSampler",
    "torch.utils.data.sampler.SequentialSampler",
)
_HELD_OUT = ("val", "eval", "test", "dev")


class Shards:
    """Rank and number of shares, and whether partial batches must go."""

    def __init__(self, *, size: str, rank: str, drop_all: bool, drop_any: bool) -> None:
        self.size, self.rank, self.drop_all, self.drop_any = size, rank, drop_all, drop_any


def shard_data(draft: Draft) -> None:
    """Shares by the ranks of SMP v1, whole batches for every microbatch."""
    target = draft.target
    shard_loaders(
        draft,
        Shards(size=target.data_size, rank=target.data_rank, drop_all=target.microbatches > 1, drop_any=True),
    )


def shard_loaders(draft: Draft, shards: Shards) -> None:  # noqa: C901, PLR0912 - a list of cases
    """Give every loader its share; shared by both versions of the library."""
    _fix_samplers(draft, shards)
    survey, edits = draft.survey, Edits()
    added, shuffled = False, []
    for call in loader_calls(survey):
        name = _name_of(survey, call)
        held_out = any(word in (name or "").lower() for word in _HELD_OUT)
        new = _Arguments(call)
        if new.given("batch_sampler"):
            draft.leave_to_do(
                f"`{draft.at(call)}` has a batch sampler of its own: let it read share {shards.rank} of {shards.size}"
                " and drop its last partial batch."
            )
            continue
        if new.spread_mapping and not _names_sampler(survey, call):
            _give_mapped(draft, edits, call, new, shards, held_out=held_out)
            added = True
            if not held_out:
                shuffled.append((call, True))
            continue
        if new.starred:
            draft.leave_to_do(
                f"`{draft.at(call)}` gets arguments by * or **: pass drop_last=True and a DistributedSampler for share"
                f" {shards.rank} of {shards.size} in them."
            )
            continue
        if _is_streamed(survey, call, new):
            draft.leave_to_do(
                f"The dataset of `{draft.at(call)}` is a stream: let it yield share {shards.rank} of {shards.size}"
                " only."
            )
        elif not new.given("sampler"):
            shuffle = new.take("shuffle")
            before = _give_sampler(draft, edits, call, new, shards, shuffle, name, held_out=held_out)
            added = True
            if shuffle is not None and shuffle != "False" and not held_out:
                shuffled.append((call, before))
        if shards.drop_all or (shards.drop_any and not held_out):
            if new.given("drop_last") not in (None, "True", "False"):
                draft.leave_to_do(f"drop_last of `{draft.at(call)}` must be True: the last batch has to divide too.")
            else:
                new.put("drop_last", "True")
        workers = new.given("num_workers")
        if workers not in (None, "0") and shards.rank.startswith("smp."):
            draft.leave_to_do(f"On ml.p4d instances the library asks for num_workers=0 in `{draft.at(call)}`.")
        edits.replace(call, new.call(survey, draft.module))
    new_epochs = _epochs(draft, edits, [call for call, _ in shuffled])
    draft.apply(edits)
    if added:
        add_names(draft, "torch.utils.data.distributed", ["DistributedSampler"])
    for sentence in new_epochs:
        draft.leave_to_do(sentence)


class _Arguments:
    """A loader's arguments, to be changed by name."""

    def __init__(self, call: cst.Call) -> None:
        self._call = call
        self._args = list(call.args)
        self.starred = any(arg.star for arg in call.args)
        stars = [arg for arg in call.args if arg.star]
        self.spread_mapping = ""
        """Name of the one mapping that is spread into the arguments."""
        if len(stars) == 1 and stars[0].star == "**" and isinstance(stars[0].value, cst.Name):
            self.spread_mapping = stars[0].value.value

    def _find(self, name: str) -> int | None:
        for number, arg in enumerate(self._args):
            if arg.keyword is not None and arg.keyword.value == name:
                return number
        position = _POSITIONS.index(name)
        return position if positional(self._call.with_changes(args=self._args), position) is not None else None

    def given(self, name: str) -> str | None:
        found = self._find(name)
        if found is None:
            return None
        text = spelled(self._args[found].value)
        return None if text == "None" else text

    def take(self, name: str) -> str | None:
        """Remove an argument; those by position after it get their names."""
        found = self._find(name)
        if found is None:
            return None
        text = spelled(self._args[found].value)
        if self._args[found].keyword is None:
            for later in range(found + 1, len(self._args)):
                if self._args[later].keyword is None:
                    self._args[later] = _named(_POSITIONS[later], self._args[later].value)
        del self._args[found]
        return text

    def put(self, name: str, text: str) -> None:
        found = self._find(name)
        if found is None:
            self._args.append(_named(name, expression(text)))
        else:
            self._args[found] = self._args[found].with_changes(value=expression(text))

    def set_dataset(self, text: str) -> None:
        self.put("dataset", text)

    def call(self, survey: Survey, module: cst.Module) -> cst.Call:
        if len(self._args) == len(self._call.args) and all(
            isinstance(arg.comma, cst.Comma) or number == len(self._args) - 1 for number, arg in enumerate(self._args)
        ):
            return self._call.with_changes(args=self._args)
        lines = any("\n" in module.code_for_node(arg) for arg in self._call.args) or "\n" in spelled(
            self._call.whitespace_before_args
        )
        arguments = [spelled(arg.with_changes(comma=cst.MaybeSentinel.DEFAULT)).strip() for arg in self._args]
        width = 0 if lines else 88
        text = call_text(spelled(self._call.func), arguments, width=width)
        if isinstance(survey.parent(self._call), cst.DictElement | cst.Element):
            text = text.replace("\n", "\n    ")
        return cst.ensure_type(expression(text), cst.Call)


def _named(name: str, value: cst.BaseExpression) -> cst.Arg:
    return cst.Arg(
        keyword=cst.Name(name),
        value=value,
        equal=cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace("")),
    )


def _name_of(survey: Survey, call: cst.Call) -> str | None:
    parent = survey.parent(call)
    if isinstance(parent, cst.Assign | cst.AnnAssign):
        return next((dotted(target) for target in targets_of(parent)), None)
    if isinstance(parent, cst.DictElement):
        return spelled(parent.key)
    return None


def _give_sampler(
    draft: Draft,
    edits: Edits,
    call: cst.Call,
    new: _Arguments,
    shards: Shards,
    shuffle: str | None,
    name: str | None,
    *,
    held_out: bool,
) -> bool:
    """Add a sampler; True where it became a statement of its own."""
    survey = draft.survey
    dataset = keyword(call, "dataset") or positional(call, 0)
    if dataset is None:
        draft.leave_to_do(f"`{draft.at(call)}` has no dataset to share out: give it a DistributedSampler.")
        return False
    text = spelled(dataset.value)
    statement = survey.statement(call)
    own = isinstance(survey.parent(call), cst.Assign | cst.AnnAssign | cst.Return) and isinstance(
        statement, cst.SimpleStatementLine
    )
    stem = (name or "").rpartition(".")[2]
    lines = []
    if dotted(dataset.value) is None and own:
        fresh = survey.free_name(
            stem.replace("loader", "dataset") if "loader" in stem else "dataset", "sampled_dataset"
        )
        lines.append(f"{fresh} = {text}")
        text = fresh
        new.set_dataset(fresh)
    arguments = [
        text,
        f"num_replicas={shards.size}",
        f"rank={shards.rank}",
        f"shuffle={shuffle or 'False'}",
    ]
    if shards.drop_all or (shards.drop_any and not held_out):
        # With equal shares, every replica takes the same number of steps.
        arguments.append("drop_last=True")
    if not own or statement is None:
        new.put("sampler", call_text("DistributedSampler", arguments, width=88))
        return False
    wish = stem.replace("dataloader", "sampler").replace("loader", "sampler") if "loader" in stem else "sampler"
    sampler = survey.free_name(wish, f"{wish}_by_rank")
    lines.append(f"{sampler} = " + call_text("DistributedSampler", arguments, width=88, before=f"{sampler} = "))
    edits.insert_before(statement, statements("\n".join(lines)))
    new.put("sampler", sampler)
    return True


def _names_sampler(survey: Survey, call: cst.Call) -> bool:
    """Whether a sampler may be in the mapping: its key is somewhere in the function."""
    scope = survey.function(call) or survey.module
    return any(isinstance(node, cst.SimpleString) and "sampler" in node.value for node in walk(scope))


def _give_mapped(
    draft: Draft, edits: Edits, call: cst.Call, new: _Arguments, shards: Shards, *, held_out: bool
) -> None:
    """``DataLoader(dataset, **options)``: what has to change comes after what the options say."""
    name = new.spread_mapping
    dataset = keyword(call, "dataset") or positional(call, 0)
    statement = draft.survey.statement(call)
    if dataset is None or dotted(dataset.value) is None or statement is None:
        draft.leave_to_do(
            f"`{draft.at(call)}`: pass drop_last=True and a DistributedSampler for share {shards.rank} of"
            f" {shards.size}."
        )
        return
    drop = shards.drop_all or (shards.drop_any and not held_out)
    sampler = [
        spelled(dataset.value),
        f"num_replicas={shards.size}",
        f"rank={shards.rank}",
        f'shuffle={name}.get("shuffle", False)',
        *(["drop_last=True"] if drop else []),
    ]
    kept = [spelled(a.with_changes(comma=cst.MaybeSentinel.DEFAULT)).strip() for a in call.args if not a.star]
    last = '"drop_last": True' if drop else ""
    changed = ", ".join(['"shuffle": False', *([last] if last else [])])
    texts = [*kept, f"sampler={call_text('DistributedSampler', sampler, width=84)}", f"**{{**{name}, {changed}}}"]
    edits.replace(call, expression(call_text(spelled(call.func), texts, width=88)))


def _is_streamed(survey: Survey, call: cst.Call, new: _Arguments) -> bool:
    name = new.given("dataset") or ""
    made = [name] if "(" in name else []
    assigned = survey.assignments(survey.function(call), name)
    made += [spelled(assignment.value) for assignment in assigned if assignment.value is not None]
    streams = {
        definition.name.value
        for definition in survey.classes
        if any("IterableDataset" in spelled(base.value) for base in definition.bases)
    }
    return any(any(text.startswith(stream + "(") for stream in streams) or "streaming=True" in text for text in made)


def _fix_samplers(draft: Draft, shards: Shards) -> None:
    """Samplers that the script has already: the rank among replicas, not among processes."""
    survey, edits = draft.survey, Edits()
    used_plain = False
    for call in survey.calls:
        name = survey.callee(call)
        if name in _SAMPLERS:
            kept = [
                arg for arg in call.args if arg.keyword is None or arg.keyword.value not in ("num_replicas", "rank")
            ]
            if sum(arg.keyword is None for arg in kept) > 1:
                draft.leave_to_do(f"`{draft.at(call)}`: pass num_replicas={shards.size} and rank={shards.rank}.")
                continue
            texts = [spelled(arg.with_changes(comma=cst.MaybeSentinel.DEFAULT)).strip() for arg in kept]
            texts[1:1] = [f"num_replicas={shards.size}", f"rank={shards.rank}"]
        elif name in _PLAIN and call.args:
            used_plain = True
            texts = [
                spelled(call.args[0].value),
                f"num_replicas={shards.size}",
                f"rank={shards.rank}",
                f"shuffle={'Random' in name}",
            ]
        elif name.startswith("torch.utils.data.") and name.endswith("Sampler") and "Batch" not in name:
            draft.leave_to_do(
                f"`{draft.at(call)}` draws from all of the data: let it draw share {shards.rank} of {shards.size}."
            )
            continue
        else:
            continue
        function = spelled(call.func) if name in _SAMPLERS else "DistributedSampler"
        text = call_text(function, texts, width=88)
        edits.replace(call, expression(text))
    draft.apply(edits)
    if used_plain:
        drop_unused_imports(draft, set(_PLAIN))
        add_names(draft, "torch.utils.data.distributed", ["DistributedSampler"])


def _epochs(draft: Draft, edits: Edits, calls: list[cst.Call]) -> list[str]:
    """Before each pass over shuffled data the sampler is told the epoch, or every epoch has the same order."""
    survey = draft.survey
    todo = []
    for call in calls:
        parent = survey.parent(call)
        name = _name_of(survey, call) if isinstance(parent, cst.Assign | cst.AnnAssign) else None
        places = spread(survey, (survey.function(call), name)) if name is not None else set()
        if isinstance(parent, cst.Return):
            function = survey.function(call)
            for other in survey.calls:
                above = survey.parent(other)
                if function is not None and dotted(other.func) == function.name.value and isinstance(above, cst.Assign):
                    for target in targets_of(above):
                        if dotted(target) is not None:
                            places |= spread(survey, (survey.function(other), str(dotted(target))))
        if not _tell_epoch(survey, edits, places):
            todo.append(f"Call set_epoch(epoch) of the sampler of `{draft.at(call)}` before each epoch.")
    return todo


def _tell_epoch(survey: Survey, edits: Edits, places: set[Place]) -> bool:
    training = [set(survey.loops(call)) for call in backward_calls(survey)]
    for loop in survey.nodes:
        if not isinstance(loop, cst.For) or not any(loop in loops for loops in training):
            continue
        function = survey.function(loop)
        loader = next((n for n in _iterated(loop.iter) if n in names_of(survey, places, function)), None)
        if loader is None:
            continue
        outer = survey.loops(loop)
        epoch = next(
            (
                o.target.value
                for o in outer
                if isinstance(o, cst.For) and isinstance(o.target, cst.Name) and "range(" in spelled(o.iter)
            ),
            None,
        )
        if epoch in (None, "_") and function is not None and "epoch" in survey.parameters(function):
            epoch = "epoch"
        if epoch in (None, "_"):
            return False
        text = f"{loader}.sampler.set_epoch({epoch})\n"
        if f".set_epoch({epoch})" not in spelled(survey.module if function is None else function):
            edits.insert_before(loop, statements(text))
        return True
    return False


def _iterated(node: cst.CSTNode) -> list[str]:
    """Names that a ``for`` may run over: the loader itself, or through enumerate, tqdm and the like."""
    name = dotted(node)
    if name is not None:
        return [name]
    if isinstance(node, cst.Call):
        return [found for arg in node.args for found in _iterated(arg.value)]
    return []
