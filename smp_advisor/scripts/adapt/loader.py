"""Steps: give each replica its own shard of the data, without a partial last batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import libcst as cst

from smp_advisor.reading.values import Instance, Result
from smp_advisor.scripts.adapt.code import Edits, call_text, expression, statements, text_of
from smp_advisor.scripts.adapt.roles import (
    assigned_name,
    backward_calls,
    events_of,
    is_held_out,
    loader_calls,
    loops_of,
    loops_over,
    names_of,
    objects_of,
)
from smp_advisor.scripts.adapt.survey import known_names
from smp_advisor.scripts.queries import constant, derivation

if TYPE_CHECKING:
    from smp_advisor.scripts.adapt.adaptation import Draft, Target
    from smp_advisor.scripts.adapt.survey import Survey


_POSITIONS = known_names("data_loader_parameters")


class Shards(NamedTuple):
    """How the data is divided over the replicas."""

    size: str
    """Expression of the number of shards."""
    rank: str
    """Expression of the shard of this process."""


def _shards(target: Target) -> Shards:
    if target.kind == "smp_step":
        group = "smp.rdp" if target.plan.prescaled_batch else "smp.dp"  # a tensor-parallel group shares such a batch
        return Shards(size=f"{group}_size()", rank=f"{group}_rank()")
    # The ranks of one tensor-parallel or context-parallel group of SMP v2 read the same shard.
    shared = [
        f"tsm.state.{name}_parallel_degree"
        for name in ("tensor", "context")
        if target.kind == "smp_fsdp" and getattr(target.plan, f"{name}_parallel_degree") > 1
    ]
    group = shared[0] if len(shared) == 1 else f"({' * '.join(shared)})"
    division = f" // {group}" if shared else ""
    return Shards(size=f"dist.get_world_size(){division}", rank=f"dist.get_rank(){division}")


def shard_loaders(draft: Draft) -> None:  # noqa: C901 - a list of cases
    """Give every data loader of the training its shard, without a partial last batch."""
    shards = _shards(draft.target)
    if not loader_calls(draft.survey) and draft.target.kind in ("ddp", "fsdp2"):
        draft.add_todo("no_loader")
        return
    survey, edits = draft.survey, Edits()
    shuffled = list[cst.Call]()
    for call in loader_calls(survey):
        arguments, held_out = _arguments(call), is_held_out(survey, call)
        options = arguments.get("**", "")
        starred = any(arg.star for arg in call.args) and not (options.isidentifier() and "sampler" not in arguments)
        if held_out:  # every replica evaluates all data: the counts of a shard would need a reduction
            if draft.target.plan.microbatches > 1 and "batch_sampler" not in arguments and not starred:
                arguments["**" if options else "drop_last"] = (
                    f'{{**{options}, "drop_last": True}}' if options else "True"
                )
                edits.replace(call, _call(call, arguments))
                draft.add_todo("drops_evaluated", call)
            continue
        if arguments.get("batch_sampler", "None") != "None":
            draft.add_todo("own_batch_sampler", call, rank=shards.rank, size=shards.size)
            continue
        texts = (node.value for node in survey.nodes if isinstance(node, cst.SimpleString))
        if starred or (options and any("sampler" in text for text in texts)):
            draft.add_todo("starred_loader", call, rank=shards.rank, size=shards.size)
            continue
        if _is_streamed(survey, call):
            draft.add_todo("streamed", call, rank=shards.rank, size=shards.size)
        elif arguments.get("sampler", "None") == "None":
            shuffle = arguments.pop("shuffle", f'{options}.get("shuffle", False)' if options else "False")
            _add_sampler(draft, edits, call, arguments, shards, shuffle)
            if shuffle != "False":
                shuffled.append(call)
        if options:
            is_shuffled = any(arg.keyword is not None and arg.keyword.value == "shuffle" for arg in call.args)
            overruled = '"drop_last": True' if is_shuffled else '"shuffle": False, "drop_last": True'
            arguments["**"] = f"{{**{options}, {overruled}}}"
        else:
            arguments["drop_last"] = "True"
        if arguments.get("num_workers", "0") != "0" and shards.rank.startswith("smp."):
            draft.add_todo("no_workers", call)
        edits.replace(call, _call(call, arguments))
    _set_epochs(draft, edits, shuffled)
    draft.apply(edits)


def _arguments(call: cst.Call) -> dict[str, str]:
    """Source of the arguments by the parameters of a data loader; ``**`` for options in a mapping."""
    arguments: dict[str, str] = {}
    for number, arg in enumerate(call.args):
        name = arg.star or (arg.keyword.value if arg.keyword is not None else _POSITIONS[number])
        arguments[name] = text_of(arg.value)
    return arguments


def _call(call: cst.Call, arguments: dict[str, str]) -> cst.Call:
    """The call with other arguments."""
    unnamed = {_POSITIONS[n] for n, arg in enumerate(call.args) if arg.keyword is None and not arg.star and n < 2}
    texts = [
        text if name in unnamed else f"{name}{text}" if name.startswith("*") else f"{name}={text}"
        for name, text in sorted(arguments.items(), key=lambda item: item[0] == "**")
    ]
    text = call_text(text_of(call.func), texts)
    return cst.ensure_type(expression(text), cst.Call)


def _add_sampler(
    draft: Draft, edits: Edits, call: cst.Call, arguments: dict[str, str], shards: Shards, shuffle: str
) -> None:
    """Add a sampler, in a statement before the loader where possible."""
    survey = draft.survey
    text = arguments.get("dataset", "dataset")
    statement = survey.statement(call)
    own = isinstance(survey.parent(call), cst.Assign | cst.AnnAssign | cst.For | cst.Return)
    stem = (assigned_name(survey, call) or "").rpartition(".")[2]
    is_loader = "loader" in stem
    lines = []
    if "(" in text and own:
        name = survey.free_name(stem.replace("loader", "dataset") if is_loader else "dataset", "sampled_dataset")
        lines.append(f"{name} = {text}")
        text = arguments["dataset"] = name
    options = [
        text,
        f"num_replicas={shards.size}",
        f"rank={shards.rank}",
        f"shuffle={shuffle}",
        "drop_last=True",  # equal shards give every replica the same number of steps
    ]
    if not own or statement is None:
        arguments["sampler"] = call_text("DistributedSampler", options)
        return
    preferred = stem.replace("dataloader", "sampler").replace("loader", "sampler") if is_loader else "sampler"
    sampler = survey.free_name(preferred, f"{preferred}_by_rank")
    lines.append(f"{sampler} = " + call_text("DistributedSampler", options))
    edits.insert_before(statement, statements("\n".join(lines)))
    arguments["sampler"] = sampler


def _is_streamed(survey: Survey, call: cst.Call) -> bool:
    """Whether the dataset comes from an iterable one, or from a call with ``streaming=True``."""
    for value in (v for event in events_of(survey, call) for v in derivation(event.argument("dataset", 0))):
        if isinstance(value, Result) and constant(value.call.argument("streaming")):
            return True
        if isinstance(value, Instance) and any(path.endswith("IterableDataset") for path in value.cls.ancestors()):
            return True
    return False


def _set_epochs(draft: Draft, edits: Edits, calls: list[cst.Call]) -> None:
    """Call ``set_epoch`` in the loop that counts the epochs: every epoch would have the same order without it."""
    survey = draft.survey
    training = backward_calls(survey)
    around = [loops_of(survey, event) for call in training for event in events_of(survey, call)]
    for call in calls:
        places = objects_of(survey, call)
        own = [loop for loop in loops_over(survey, call) if isinstance(loop, cst.For)]
        outer = next((loops[: loops.index(loop)] for loop in own for loops in around if loop in loops), [])
        counted = [o for o in outer if isinstance(o.target, cst.Name) and "range(" in text_of(o.iter)]
        epochs = next((o for o in reversed(counted) if text_of(o.target) != "_"), None)
        names = names_of(survey, places, survey.function(epochs)) if epochs is not None else set()
        if epochs is None or not names:
            draft.add_todo("set_epoch", call)
            continue
        inside = next((loop for loop in own if epochs in survey.loops(loop)), epochs.body.body[0])
        text = f"{min(names, key=len)}.sampler.set_epoch({text_of(epochs.target)})"
        if text not in text_of(epochs):
            edits.insert_before(inside, statements(text))
