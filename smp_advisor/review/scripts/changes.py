"""The changes that a training script needs for a plan, as a numbered list: file, line, code to write, reason.

Derived from the reading that the checks use. Nothing is rewritten: a person makes the changes, a rehearsal proves them.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from smp_advisor.arguments.signatures import checked
from smp_advisor.errors import AdvisorError
from smp_advisor.libraries.library import get_library
from smp_advisor.review.reading.source import read
from smp_advisor.review.reading.values import Instance, Result, is_none
from smp_advisor.review.scripts.check import report_of
from smp_advisor.review.scripts.checks.data import iterations_over, loaders
from smp_advisor.review.scripts.checks.parallel import REPLICATING, reached_accelerators
from smp_advisor.review.scripts.checks.planned import trainer_arguments
from smp_advisor.review.scripts.checks.sharding import FSDP
from smp_advisor.review.scripts.following import follow
from smp_advisor.review.scripts.queries import is_optimizer, known_names, origins
from smp_advisor.review.scripts.settings import from_plan

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smp_advisor.libraries.plan import Plan
    from smp_advisor.review.reading.trace import Call
    from smp_advisor.review.reading.values import Value
    from smp_advisor.review.scripts.context import Context


@dataclass(frozen=True, slots=True)
class Change:
    """One change: `code` belongs after the line, or in its place if the reason states it."""

    number: int
    file: str
    line: int
    code: str
    reason: str

    def __str__(self) -> str:
        code = "\n".join(f"       {line}" for line in self.code.splitlines())
        return f"{self.number:>3}. {self.file}:{self.line}: {self.reason}\n{code}"


@dataclass(frozen=True, slots=True, repr=False)
class ScriptChanges(Sequence[Change]):
    """The numbered list, and what it could not decide."""

    changes: tuple[Change, ...]
    open: tuple[str, ...] = field(default=())
    """Code that was not followed, and what the list therefore may lack, one sentence each."""

    @overload
    def __getitem__(self, index: int) -> Change: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Change, ...]: ...
    def __getitem__(self, index: int | slice) -> Change | tuple[Change, ...]:
        """One change, or several."""
        return self.changes[index]

    def __len__(self) -> int:
        """Number of changes."""
        return len(self.changes)

    def __repr__(self) -> str:
        lines = [str(change) for change in self.changes] or ["No change that the reading shows."]
        lines += [f"Not decided: {sentence}" for sentence in self.open]
        lines.append("The list is read from the text: rehearse the changed script before you pay for a cluster.")
        return "\n".join(lines)

    __str__ = __repr__


@checked
def script_changes(script: str | Path, plan: Plan) -> ScriptChanges:
    r"""List what a training script has to change to train as a plan does. The script is read, never run.

    Parameters
    ----------
    script
        Path of a ``.py`` or ``.ipynb`` file, or the text itself. Modules next to a file are followed.
    plan
        The plan: its library, and its batch, precision, checkpointing and sharding.

    Returns
    -------
    ScriptChanges
        A sequence of changes in the order of the lines, each with the code to write; with `open`, what was not
        followed.

    Raises
    ------
    AdvisorError
        The file does not exist, or is not Python 3; or `plan` is no plan.

    Examples
    --------
    >>> import smp_advisor as smpa
    >>> text = "import torch\nmodel = torch.nn.Linear(2, 2)\n"
    >>> text += "optimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
    >>> text += "for x in batches:\n    model(x).mean().backward()\n    optimizer.step()\n"
    >>> changes = script_changes(text, smpa.Plan(library="ddp", batch_size=1))
    >>> [change.line for change in changes][:2]
    [1, 3]
    """
    if not hasattr(plan, "library") or not hasattr(plan, "hyperparameters"):
        raise AdvisorError(f"plan must be a Plan, not {type(plan).__name__}.")
    context = follow(read(script), from_plan(plan, None))
    record = get_library(plan.library)
    entries: list[tuple[str, int, str, str]] = []
    open_: list[str] = [f"line {note.line}: {note.what}" for note in context.unresolved]
    if context.trainer:
        entries += _of_trainer(context, plan)
    elif reached_accelerators(context):
        entries += _of_accelerate(context, plan)
    elif record.smdistributed or record.compiles:
        open_.append(f"{record.title if hasattr(record, 'title') else plan.library}: the checks name what is missing.")
    else:
        loop = _Loop(context, plan, sharded=record.divides_model)
        entries += loop.changes()
        open_ += loop.open
    changed_lines = {(line, file) for file, line, _, _ in entries}
    for finding in report_of(context).findings:
        file = Path(finding.path).name
        if (
            finding.severity == "error"
            and (finding.line, file) not in changed_lines
            and finding.id not in ("SMP001", "TRN709")
        ):
            entries.append((file, finding.line, f"# {finding.remedy}", f"{finding.id}: {finding.message}"))
        elif finding.id == "SMP001" and (record.smdistributed or record.compiles):
            entries.append((file, finding.line, f"# {finding.remedy}", finding.message))
    order = {Path(module.source.path).name: number for number, module in enumerate(context.trace.modules)}
    entries.sort(key=lambda row: (order.get(row[0], 99), row[1]))
    return ScriptChanges(tuple(Change(n, *row) for n, row in enumerate(entries, 1)), tuple(dict.fromkeys(open_)))


_Row = tuple[str, int, str, str]


def _at(call: Call, code: str, reason: str, *, last: bool = True) -> _Row:
    statement = call.module.statement(call.node) or call.node
    line = (statement.end_lineno if last else statement.lineno) or statement.lineno
    path, number = call.module.source.locate(line)
    return Path(path).name, number, code, reason


def _settings(plan: Plan) -> dict[str, Any]:
    return dict(plan.hyperparameters)


def _of_trainer(context: Context, plan: Plan) -> Iterator[_Row]:
    """Arguments of Trainer: each of the plan that the script does not have."""
    settings, record = _settings(plan), get_library(plan.library)
    planned_settings: dict[str, Any] = {
        "per_device_train_batch_size": settings.get("batch_size"),
        "gradient_accumulation_steps": settings.get("gradient_accumulation_steps", 1),
        **({"bf16": True} if settings.get("precision") == "bf16" else {}),
        **({"fp16": True} if settings.get("precision") == "fp16" else {}),
    }
    checkpoints = settings.get("activation_checkpointing") not in (None, False, "none")
    if record.divides_model:
        planned_settings["fsdp"] = "full_shard auto_wrap"
        planned_settings |= (
            {"fsdp_config": {"activation_checkpointing": True}, "gradient_checkpointing": False} if checkpoints else {}
        )
    elif checkpoints:
        planned_settings |= {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": False}}
    for call in trainer_arguments(context):
        different = {
            name: value
            for name, value in planned_settings.items()
            if value is not None and getattr(call.argument(name), "value", ...) != value
        }
        if different:
            code = ",\n".join(f"{name}={value!r}" for name, value in different.items())
            yield _at(call, code, f"Arguments of {call.called}() that the plan has and the script does not.")
        if not call.gives("save_strategy") and not call.gives("save_steps"):
            code = 'output_dir="/opt/ml/checkpoints", save_strategy="steps", save_steps=200, save_total_limit=2'
            yield _at(call, code, "Checkpoints in the folder that checkpoint_s3_uri copies while the job runs.")
    for call in context.trace.methods("train"):
        if call.reached and not call.gives("resume_from_checkpoint", 0) and not call.arguments:
            text = call.module.text(call.node.func)
            code = f'{text}(resume_from_checkpoint=bool(glob.glob("/opt/ml/checkpoints/checkpoint-*")))'
            yield _at(call, code, "In its place: a restarted job goes on where it was.", last=False)


def _of_accelerate(context: Context, plan: Plan) -> Iterator[_Row]:
    settings, record = _settings(plan), get_library(plan.library)
    precision = settings.get("precision")
    planned_settings = {"mixed_precision": repr("no" if precision == "fp32" else precision)}
    steps = settings.get("gradient_accumulation_steps", 1)
    planned_settings |= {"gradient_accumulation_steps": repr(steps)} if isinstance(steps, int) and steps > 1 else {}
    planned_settings |= (
        {"fsdp_plugin": "FullyShardedDataParallelPlugin(fsdp_version=2)"} if record.divides_model else {}
    )
    for call in reached_accelerators(context):
        code = ",\n".join(f"{name}={value}" for name, value in planned_settings.items() if not call.gives(name))
        if code:
            yield _at(call, code, "Arguments of Accelerator() that the plan has and the script does not.")
    if not context.trace.methods("save_state"):
        for call in context.trace.methods("backward")[-1:]:
            code = 'accelerator.save_state("/opt/ml/checkpoints/last")  # every 200 steps, on every process'
            yield _at(call, code, "A checkpoint to resume from; all processes call it.")


class _Loop:
    """A plain loop of PyTorch: its model, optimizer, loaders, updates and savers."""

    def __init__(self, context: Context, plan: Plan, *, sharded: bool) -> None:
        self.context, self.plan, self.sharded = context, plan, sharded
        self.open: list[str] = []
        self.optimizers = [call for call in context.trace.calls if is_optimizer(call.name) and call.reached]
        self.backwards = [call for call in context.trace.methods("backward") if call.reached]

    def changes(self) -> Iterator[_Row]:
        if not self.backwards:
            self.open.append("No backward pass was followed: check the file that trains.")
            return
        yield from self._start()
        yield from self._wrapping()
        yield from self._data()
        yield from self._precision()
        yield from self._accumulation()
        yield from self._saving()
        yield from self._end()

    def _start(self) -> Iterator[_Row]:
        trace, module = self.context.trace, self.context.trace.modules[0]
        if trace.named("torch.distributed.init_process_group"):
            return
        imports = [node for node in module.tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
        line = max((node.end_lineno or node.lineno for node in imports), default=1)
        path, number = module.source.locate(line)
        code = (
            'import os\nimport torch.distributed as dist\n\nlocal_rank = int(os.environ["LOCAL_RANK"])\n'
            'torch.cuda.set_device(local_rank)\ndist.init_process_group("nccl")'
        )
        yield (
            Path(path).name,
            number,
            code,
            "torchrun starts one process per GPU: each takes its GPU and joins the group.",
        )

    def _model(self) -> tuple[Call, str, Value] | None:
        """The optimizer, the name of the model whose parameters it has, and its value."""
        for optimizer in self.optimizers:
            for origin in origins(optimizer.argument("params", 0)):
                if (
                    isinstance(origin, Result)
                    and origin.call.method == "parameters"
                    and origin.call.receiver is not None
                ):
                    func = origin.call.node.func
                    text = origin.call.module.text(func.value) if isinstance(func, ast.Attribute) else "model"
                    return optimizer, text, origin.call.receiver
        return None

    def _wrapping(self) -> Iterator[_Row]:
        if any(call.reached for call in self.context.trace.named(*REPLICATING, *FSDP)):
            return
        model = self._model()
        if model is None:
            self.open.append("The model of the optimizer was not followed: wrap it before the optimizer is made.")
            return
        optimizer, name, value = model
        inner = self._inner_calls(value)
        if inner:
            self.open.append(
                f"{', '.join(inner)} run the model by other methods than forward: let forward dispatch to them, or no"
                " gradient is averaged."
            )
        settings = _settings(self.plan)
        half = {"bf16": "bfloat16", "fp16": "float16"}.get(str(settings.get("precision")))
        if settings.get("activation_checkpointing") not in (None, False, "none"):
            code = (
                "from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (\n"
                "    apply_activation_checkpointing,\n)\n\n"
                f"apply_activation_checkpointing({name}, check_fn=lambda module: isinstance(module, Block))"
            )
            reason = "Before the model is wrapped: the plan checkpoints activations; Block is the class of its blocks."
            yield _at(optimizer, code, reason, last=False)
        if self.sharded:
            policy = f"MixedPrecisionPolicy(param_dtype=torch.{half}, reduce_dtype=torch.float32)" if half else ""
            policy_argument = ", mp_policy=policy" if policy else ""
            code = (
                f"from torch.distributed.fsdp import {'MixedPrecisionPolicy, ' if policy else ''}fully_shard\n\n"
                + (f"policy = {policy}\n" if policy else "")
                + f"{name}.cuda(local_rank)\nfor block in {name}.layers:  # its repeated blocks\n"
                f"    fully_shard(block{policy_argument})\nfully_shard({name}{policy_argument})"
            )
            reason = "Before this line: the model is sharded by its blocks, then itself; the optimizer gets shards."
        else:
            code = (
                "from torch.nn.parallel import DistributedDataParallel\n\n"
                f"{name} = DistributedDataParallel({name}.cuda(local_rank), device_ids=[local_rank])"
            )
            reason = "Before this line: the wrapper averages gradients; use it, and not the inner model, from here on."
        yield _at(optimizer, code, reason, last=False)

    def _inner_calls(self, model: Value) -> list[str]:
        loops = {call.loops[-1] for call in self.backwards if call.loops}
        names = []
        for call in self.context.trace.calls:
            own = any(origin is model or (isinstance(origin, Instance) and origin in origins(model))
                      for origin in origins(call.receiver))  # fmt: skip
            if (
                own
                and call.method
                and call.function is not None
                and call.method != "forward"
                and loops & set(call.loops)
            ):
                names.append(call.module.text(call.node.func) + "()")
        return list(dict.fromkeys(names))

    def _data(self) -> Iterator[_Row]:
        trained = {loop for call in self.backwards for loop in call.loops}
        has_loader = False
        for loader in loaders(self.context):
            fed = [iteration for iteration in iterations_over(self.context, loader) if iteration.node in trained]
            has_loader = has_loader or bool(fed)
            has_sampler = any((value := loader.argument(name, at)) is not None and not is_none(value)
                        for name, at in (("sampler", 3), ("batch_sampler", 4)))  # fmt: skip
            if not fed or has_sampler or not loader.reached or loader.unpacks:
                continue
            node = loader.node.args[0] if loader.node.args else None
            data = loader.module.text(node) if node is not None else "dataset"
            code = (
                "from torch.utils.data import DistributedSampler\n\n"
                f"sampler = DistributedSampler({data}, shuffle=True)  # then: DataLoader({data}, sampler=sampler, ...)"
            )
            yield _at(
                loader, code, "Before this line: each rank reads its part; shuffle=True of the loader goes.", last=False
            )
            outer = [call.loops[0] for call in self.backwards if len(call.loops) > 1]
            moved = any(word in loader.module.source.text for word in (".cuda(", ".to("))
            inner = next((call.loops[-1] for call in self.backwards if call.loops), None)
            if not moved and inner is not None:
                path, line = loader.module.source.locate(getattr(inner, "lineno", 1))
                code = "batch = batch.cuda(local_rank, non_blocking=True)"
                yield (
                    Path(path).name,
                    line,
                    code,
                    "In the loop over batches: each batch goes to the GPU of the process.",
                )
            if outer:
                path, line = loader.module.source.locate(getattr(outer[0], "lineno", loader.node.lineno))
                code = "sampler.set_epoch(epoch)"
                yield Path(path).name, line, code, "In the loop over epochs: another order in each epoch."
        if not has_loader:
            self.open.append("The data of the loop come from no DataLoader that was followed: divide them by rank.")
        batch = _settings(self.plan).get("batch_size")
        self.open.append(f"The plan has batch_size={batch} per GPU: compare it with that of the loader.")

    def _precision(self) -> Iterator[_Row]:
        precision = _settings(self.plan).get("precision")
        text = "".join(module.source.text for module in self.context.trace.modules)
        if precision not in ("bf16", "fp16") or "autocast" in text or "MixedPrecision" in text:
            return
        if self.sharded:
            return  # the policy of the wrapper
        kind = "bfloat16" if precision == "bf16" else "float16"
        code = f'with torch.autocast("cuda", dtype=torch.{kind}):  # the forward pass and the loss'
        yield _at(
            self.backwards[0],
            code,
            f"Around the forward pass before this line: the plan computes in {precision}.",
            last=False,
        )

    def _accumulation(self) -> Iterator[_Row]:
        steps = _settings(self.plan).get("gradient_accumulation_steps", 1)
        if isinstance(steps, int) and steps > 1:
            update = "    optimizer.step()\n    optimizer.zero_grad()"
            code = f"(loss / {steps}).backward()\nif (step + 1) % {steps} == 0:\n{update}"
            reason = f"In its place, with the update below: the plan accumulates {steps} batches."
            yield _at(self.backwards[0], code, reason, last=False)

    def _saving(self) -> Iterator[_Row]:
        saves = [call for call in self.context.trace.named(*known_names("saves")) if call.reached]
        for call in saves:
            guarded = any(
                "rank" in ast.unparse(guard.test) or "main" in ast.unparse(guard.test) for guard in call.guards
            )
            if self.sharded:
                code = (
                    "from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict\n\n"
                    "options = StateDictOptions(full_state_dict=True, cpu_offload=True)\n"
                    "state = get_model_state_dict(model, options=options)  # on every rank\n"
                    "if dist.get_rank() == 0:\n    torch.save(state, path)"
                )
                yield _at(call, code, "In its place: every rank gathers, one writes.", last=False)
            elif not guarded:
                code = "if dist.get_rank() == 0:\n    torch.save(model.module.state_dict(), path)"
                yield _at(call, code, "In its place: one rank writes, the state of the inner model.", last=False)
        loop = next((call.loops[0] for call in self.backwards if call.loops), None)
        if loop is not None and not self._resumes():
            module = self.backwards[0].module
            path, line = module.source.locate(getattr(loop, "lineno", 1))
            state = (
                "dcp.load(state, checkpoint_id=newest)" if self.sharded else "torch.load(newest, map_location='cpu')"
            )
            code = (
                'newest = max(glob.glob("/opt/ml/checkpoints/step-*"), default=None)\n'
                f"if newest is not None:\n    {state}  # model, optimizer, schedule, epoch and step"
            )
            yield Path(path).name, line, code, "Before the loop: a restarted job goes on where it was, on every rank."
        if not any("/opt/ml/checkpoints" in module.source.text for module in self.context.trace.modules):
            self.open.append(
                "No checkpoint is written to /opt/ml/checkpoints: save model, optimizer and step there at intervals,"
                " and load the newest at the start, or an interrupted job begins again."
            )

    def _resumes(self) -> bool:
        """Whether the script loads a state of its own."""
        return any("load_state_dict" in module.source.text for module in self.context.trace.modules)

    def _end(self) -> Iterator[_Row]:
        module = self.context.trace.modules[0]
        if not self.context.trace.named("torch.distributed.destroy_process_group") and module.tree.body:
            last = module.tree.body[-1]
            path, line = module.source.locate(last.end_lineno or last.lineno)
            yield Path(path).name, line, "dist.destroy_process_group()", "At the end: the process group is closed."
