"""EST503, EST507: how the job is launched, and what watches it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smp_advisor.estimators.checks.case import SDK_2, SDK_3, Case, Change, Hit

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["launcher", "monitoring"]

_NOT_STARTED = "No launcher starts the processes: one process runs, and the library is not initialized"
_WRONG_IMAGE = "torch_distributed makes the SDK choose the image of version 2, in which version 1 does not exist"


def launcher(case: Case) -> Iterator[Hit]:
    """EST503: MPI for version 1, torchrun for version 2."""
    configuration = case.configuration
    yield from _without_strategy(case)
    if configuration.form == "recipe" or not case.library.startswith("smp-"):
        return
    yield from _enabled(case)
    known = "distribution" in configuration.tables and not configuration.unknown("distribution")
    if configuration.form == SDK_2 or (configuration.form == "parameters" and known):
        if known:
            yield from _of_distribution(case)
    elif configuration.form == SDK_3 and not configuration.unknown("distributed"):
        yield from _of_trainer(case)
    elif configuration.form == "request" and not configuration.unknown("hyperparameters"):
        yield from _of_request(case)


def _without_strategy(case: Case) -> Iterator[Hit]:
    """``smdistributed`` holds a strategy, not its options."""
    table = case.configuration.tables.get("smdistributed")
    if table is None or table.open or {"modelparallel", "dataparallel"} & table.entries.keys():
        return
    yield _hit(
        case,
        ("smdistributed",),
        "smdistributed holds neither modelparallel nor dataparallel",
        "The SDK raises ValueError when the estimator is made",
        'Put the options under it: "smdistributed": {"modelparallel": {"enabled": True, "parameters": {...}}}',
    )


def _enabled(case: Case) -> Iterator[Hit]:
    """``enabled`` must be the truth value itself, and parameters must not be empty, or the SDK sends none."""
    configuration = case.configuration
    table = configuration.tables.get("modelparallel")
    if table is None or configuration.form not in (SDK_2, "parameters") or configuration.unknown("modelparallel"):
        return
    enabled = configuration.settings.get("modelparallel")
    if "enabled" in table.entries and enabled is not None and enabled.value is not True:
        yield _hit(
            case,
            ("modelparallel",),
            f"modelparallel has enabled={enabled.value!r}, which is not the truth value True",
            "The SDK drops the parameters without a word and the job runs without them",
            'Write "enabled": True',
            (Change(table, "enabled", value=True),),
        )
    elif "enabled" not in table.entries and not table.open:
        yield _hit(
            case,
            ("parameters",),
            "modelparallel has no enabled",
            "The SDK drops the parameters without a word and the job runs without them",
            'Add "enabled": True',
            (Change(table, "enabled", value=True),),
        )


def _of_distribution(case: Case) -> Iterator[Hit]:
    configuration = case.configuration
    distribution = configuration.tables["distribution"]
    if "modelparallel" not in configuration.tables:
        return
    if case.library == "smp-v2":
        if configuration.get("mpi"):
            yield _hit(
                case,
                ("mpi",),
                "mpi is on in a job of SMP v2, which torchrun starts",
                "The SDK starts the job by MPI, and torch.sagemaker finds no process group",
                "Take mpi out",
                (Change(distribution, "mpi", None, "remove"),),
            )
        if not configuration.get("torch_distributed") and not configuration.unknown("torch_distributed"):
            yield _hit(
                case,
                ("smdistributed",),
                "torch_distributed is missing, which starts SMP v2 and selects its image",
                "The SDK takes the PyTorch image, which has no torch.sagemaker: ImportError on every node",
                'Add "torch_distributed": {"enabled": True} to the distribution',
                _switch(case, "torch_distributed", {"enabled": True}),
            )
        return
    if configuration.get("torch_distributed"):
        yield _hit(
            case,
            ("torch_distributed",),
            "torch_distributed is on in a job of SMP v1, which MPI starts",
            _WRONG_IMAGE,
            "Take torch_distributed out",
            (Change(distribution, "torch_distributed", None, "remove"),),
        )
    if not configuration.get("mpi") and not configuration.unknown("mpi"):
        block: dict[str, Any] = {"enabled": True}
        if case.instance is not None:
            block["processes_per_host"] = case.instance.gpus
        yield _hit(
            case,
            ("smdistributed",),
            "mpi is missing, which starts SMP v1",
            _NOT_STARTED,
            f'Add "mpi": {_shown(block)} to the distribution',
            _switch(case, "mpi", block),
        )


def _switch(case: Case, name: str, block: dict[str, Any]) -> tuple[Change, ...]:
    """Turn a launcher on: its block, or its ``enabled``."""
    configuration = case.configuration
    if name in configuration.tables:
        return (Change(configuration.tables[name], "enabled", value=True),)
    return (Change(configuration.tables["distribution"], name, block),)


def _shown(block: dict[str, Any]) -> str:
    return "{" + ", ".join(f'"{key}": {value}' for key, value in block.items()) + "}"


def _of_trainer(case: Case) -> Iterator[Hit]:
    configuration = case.configuration
    driver = configuration.get("driver")
    if driver == "Torchrun" and configuration.get("source_code") is False:
        yield _hit(
            case,
            ("driver",),
            "Torchrun without source_code",
            "ModelTrainer raises AttributeError: its driver starts the script that source_code names",
            "Pass source_code=SourceCode(source_dir=..., entry_script=...)",
        )
    if case.library == "smp-v2" and driver != "Torchrun" and not configuration.get("torch_distributed"):
        yield _hit(
            case,
            ("driver",),
            f"SMP v2 is started by {driver + '(...)' if driver else 'nothing'}",
            _NOT_STARTED if driver is None else "MPI starts the processes, and torch.sagemaker finds no process group",
            "distributed=Torchrun(smp=SMP(...))",
        )
    if not case.library.startswith("smp-v1"):
        return
    if driver == "MPI":
        several = case.nodes is None or case.nodes > 1
        yield _hit(
            case,
            ("driver",),
            "SMP v1 is started by the MPI driver of SDK 3",
            (
                "The driver starts process_count_per_node processes in all, not on each node, and none of the"
                " container's own set-up for the library"
                if several
                else "The driver leaves out the container's own set-up for the library"
            ),
            "Leave distributed and source_code out and pass the container's sagemaker_* hyperparameters, or use SDK 2",
            severity="error" if several else "warning",
        )
    elif driver == "Torchrun":
        yield _hit(case, ("driver",), "SMP v1 is started by Torchrun", _NOT_STARTED, "Use SDK 2, whose MPI starts it")
    elif not configuration.get("mpi") and not configuration.unknown("hyperparameters"):
        yield _hit(
            case,
            ("parameters",),
            "sagemaker_mpi_enabled is missing among the hyperparameters, which starts SMP v1",
            _NOT_STARTED,
            'Add "sagemaker_mpi_enabled": True and "sagemaker_mpi_num_of_processes_per_host"',
            _hyperparameters(case, texts=False),
        )


def _of_request(case: Case) -> Iterator[Hit]:
    configuration = case.configuration
    if case.library == "smp-v2":
        if configuration.get("mpi"):
            yield _hit(
                case,
                ("mpi",),
                "sagemaker_mpi_enabled is on in a job of SMP v2, which torchrun starts",
                "The container starts the job by MPI, and torch.sagemaker finds no process group",
                "Take it out and set sagemaker_torch_distributed_enabled",
            )
        elif not configuration.get("torch_distributed") and not configuration.get("own_entrypoint"):
            yield _hit(
                case,
                ("parameters",),
                "sagemaker_torch_distributed_enabled is missing among the hyperparameters, which starts SMP v2",
                _NOT_STARTED,
                'Add "sagemaker_torch_distributed_enabled": "true"',
                _added(case, {"sagemaker_torch_distributed_enabled": "true"}),
            )
    elif configuration.get("torch_distributed"):
        yield _hit(
            case,
            ("torch_distributed",),
            "sagemaker_torch_distributed_enabled is on in a job of SMP v1, which MPI starts",
            "The container starts the job by torchrun, and the library finds no MPI",
            "Take it out and set sagemaker_mpi_enabled",
        )
    elif not configuration.get("mpi"):
        yield _hit(
            case,
            ("parameters",),
            "sagemaker_mpi_enabled is missing among the hyperparameters, which starts SMP v1",
            _NOT_STARTED,
            'Add "sagemaker_mpi_enabled": "true" and "sagemaker_mpi_num_of_processes_per_host"',
            _hyperparameters(case, texts=True),
        )


def _hyperparameters(case: Case, *, texts: bool) -> tuple[Change, ...]:
    wanted: dict[str, Any] = {"sagemaker_mpi_enabled": "true" if texts else True}
    if "processes_per_host" not in case.configuration.settings and case.instance is not None:
        gpus = case.instance.gpus
        wanted["sagemaker_mpi_num_of_processes_per_host"] = str(gpus) if texts else gpus
    return _added(case, wanted)


def _added(case: Case, wanted: dict[str, Any]) -> tuple[Change, ...]:
    table = case.configuration.tables.get("hyperparameters")
    return () if table is None else tuple(Change(table, key, value) for key, value in wanted.items())


def _hit(
    case: Case,
    names: tuple[str, ...],
    what: str,
    consequence: str,
    remedy: str,
    changes: tuple[Change, ...] = (),
    *,
    severity: Any = None,
) -> Hit:
    return Hit(
        id="EST503",
        span=case.span_of(*names),
        values={"what": what, "consequence": consequence, "remedy": remedy},
        severity=severity,
        changes=changes,
    )


def monitoring(case: Case) -> Iterator[Hit]:
    """EST507: Debugger and profiler, which SDK 2 turns on where nobody turns them off."""
    configuration = case.configuration
    if not case.library.startswith("smp-") and case.library != "training-compiler":
        return
    if configuration.form == SDK_2:
        yield from _of_estimator(case)
    elif configuration.form == "request":
        on = []
        if configuration.get("debugger_hook_config"):
            on.append("DebugHookConfig is set")
        if configuration.get("disable_profiler") is False:
            on.append("ProfilerConfig does not say DisableProfiler")
        if on:
            table = configuration.tables["request"]
            changes: tuple[Change, ...] = ()
            if "DebugHookConfig" in table.entries:
                changes += (Change(table, "DebugHookConfig", None, "remove"),)
            if configuration.get("disable_profiler") is False:
                changes += (Change(table, "ProfilerConfig", {"DisableProfiler": True}),)
            yield Hit(
                id="EST507",
                span=case.span_of("debugger_hook_config", "disable_profiler"),
                values={"what": " and ".join(on)},
                changes=changes,
            )


def _of_estimator(case: Case) -> Iterator[Hit]:
    configuration = case.configuration
    call = configuration.tables["estimator"]
    hook, profiler = configuration.get("debugger_hook_config"), configuration.get("disable_profiler")
    debugs = hook is not False and not configuration.unknown("debugger_hook_config")
    # AWS's own samples of version 2 leave the profiler as it is; those of version 1 and the compiler turn it off.
    stated = profiler is False or "profiler_config" in call.entries
    profiles = profiler is not True and not configuration.unknown("disable_profiler")
    profiles = profiles and (stated or debugs or case.library != "smp-v2")
    if not debugs and not profiles:
        return
    names = [name for name, on in (("Debugger", debugs), ("the profiler", profiles)) if on]
    by_default = hook is None and not stated
    text = f"{' and '.join(names)} {'are' if len(names) > 1 else 'is'} on"
    changes = [Change(call, "debugger_hook_config", value=False)] if debugs else []
    changes += [Change(call, "disable_profiler", value=True)] if profiles else []
    places = [name for name, on in (("debugger_hook_config", debugs), ("disable_profiler", profiles)) if on]
    written = [name for name in ("debugger_hook_config", "disable_profiler") if name in configuration.settings]
    yield Hit(
        id="EST507",
        span=case.span_of(*places, *written) if written else configuration.span,
        values={"what": text[:1].upper() + text[1:] + (", as SDK 2 has it by default" if by_default else "")},
        changes=tuple(changes),
    )
