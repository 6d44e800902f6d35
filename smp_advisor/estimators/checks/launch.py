"""EST503 and EST507: the launcher, and Debugger and profiler."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smp_advisor.estimators.checks.case import SDK_2, SDK_3, Case, Change, Hit

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["launcher", "monitoring"]


def launcher(case: Case) -> Iterator[Hit]:
    """EST503: MPI starts SMP v1, torchrun starts SMP v2."""
    configuration = case.configuration
    yield from _without_strategy(case)
    if configuration.form == "recipe" or not case.smp_launcher:
        return
    yield from _enabled(case)
    readable = "distribution" in configuration.tables and not configuration.unknown("distribution")
    if configuration.form == SDK_2 or (configuration.form == "parameters" and readable):
        if readable:
            yield from _of_distribution(case)
    elif configuration.form == SDK_3 and not configuration.unknown("distributed"):
        yield from _of_trainer(case)
    elif configuration.form == "request" and not configuration.unknown("hyperparameters"):
        yield from _of_request(case)


def _without_strategy(case: Case) -> Iterator[Hit]:
    """``smdistributed`` contains a strategy, not its options."""
    table = case.configuration.tables.get("smdistributed")
    if table is None or table.open or {"modelparallel", "dataparallel"} & table.entries.keys():
        return
    yield _hit(case, "smdistributed", "no strategy")


def _enabled(case: Case) -> Iterator[Hit]:
    """``enabled`` must be True itself, or the SDK sends no parameters."""
    configuration = case.configuration
    table = configuration.tables.get("modelparallel")
    if table is None or configuration.form not in (SDK_2, "parameters") or configuration.unknown("modelparallel"):
        return
    enabled = configuration.settings.get("modelparallel")
    changes = (Change(table, "enabled", value=True),)
    if "enabled" in table.entries and enabled is not None and enabled.value is not True:
        yield _hit(case, "modelparallel", "enabled is not True", changes, value=repr(enabled.value))
    elif "enabled" not in table.entries and not table.open:
        yield _hit(case, "parameters", "not enabled", changes)


def _of_distribution(case: Case) -> Iterator[Hit]:
    configuration = case.configuration
    distribution = configuration.tables["distribution"]
    if "modelparallel" not in configuration.tables:
        return
    if case.smp_launcher == "torchrun":
        if configuration.get("mpi"):
            yield _hit(case, "mpi", "MPI for v2", (Change(distribution, "mpi", None, "remove"),))
        if not configuration.get("torch_distributed") and not configuration.unknown("torch_distributed"):
            changes = _switch(case, "torch_distributed", {"enabled": True})
            yield _hit(case, "smdistributed", "no torchrun", changes)
        return
    if configuration.get("torch_distributed"):
        changes = (Change(distribution, "torch_distributed", None, "remove"),)
        yield _hit(case, "torch_distributed", "torchrun for v1", changes)
    if not configuration.get("mpi") and not configuration.unknown("mpi"):
        block: dict[str, Any] = {"enabled": True}
        if case.instance is not None:
            block["processes_per_host"] = case.instance.gpus
        entries = " and ".join(f"{key}={value}" for key, value in block.items())
        yield _hit(case, "smdistributed", "no MPI", _switch(case, "mpi", block), mpi=entries)


def _switch(case: Case, name: str, block: dict[str, Any]) -> tuple[Change, ...]:
    """Turn on a launcher: add its block, or its ``enabled``."""
    configuration = case.configuration
    if name in configuration.tables:
        return (Change(configuration.tables[name], "enabled", value=True),)
    return (Change(configuration.tables["distribution"], name, block),)


def _of_trainer(case: Case) -> Iterator[Hit]:
    configuration = case.configuration
    driver = configuration.get("driver")
    if driver == "Torchrun" and configuration.get("source_code") is False:
        yield _hit(case, "driver", "Torchrun without source_code")
    if case.smp_launcher == "torchrun" and driver != "Torchrun" and not configuration.get("torch_distributed"):
        if driver is None:
            yield _hit(case, "driver", "v2 without a driver")
        else:
            yield _hit(case, "driver", "v2 with another driver", driver=driver)
    if case.smp_launcher != "mpi":
        return
    if driver == "MPI":
        on_one_node = " on one node" if case.nodes == 1 else ""
        yield _hit(case, "driver", f"v1 with the MPI driver{on_one_node}")
    elif driver == "Torchrun":
        yield _hit(case, "driver", "v1 with Torchrun")
    elif not configuration.get("mpi") and not configuration.unknown("hyperparameters"):
        yield _hit(case, "parameters", "trainer without MPI", _hyperparameters(case, texts=False))


def _of_request(case: Case) -> Iterator[Hit]:
    configuration = case.configuration
    if case.smp_launcher == "torchrun":
        if configuration.get("mpi"):
            yield _hit(case, "mpi", "request with MPI for v2")
        elif not configuration.get("torch_distributed") and not configuration.get("own_entrypoint"):
            changes = _added(case, {"sagemaker_torch_distributed_enabled": "true"})
            yield _hit(case, "parameters", "request without torchrun", changes)
    elif configuration.get("torch_distributed"):
        yield _hit(case, "torch_distributed", "request with torchrun for v1")
    elif not configuration.get("mpi"):
        yield _hit(case, "parameters", "request without MPI", _hyperparameters(case, texts=True))


def _hyperparameters(case: Case, *, texts: bool) -> tuple[Change, ...]:
    entries: dict[str, Any] = {"sagemaker_mpi_enabled": "true" if texts else True}
    if "processes_per_host" not in case.configuration.settings and case.instance is not None:
        gpus = case.instance.gpus
        entries["sagemaker_mpi_num_of_processes_per_host"] = str(gpus) if texts else gpus
    return _added(case, entries)


def _added(case: Case, entries: dict[str, Any]) -> tuple[Change, ...]:
    table = case.configuration.tables.get("hyperparameters")
    return () if table is None else tuple(Change(table, key, value) for key, value in entries.items())


def _hit(case: Case, name: str, variant: str, changes: tuple[Change, ...] = (), **values: object) -> Hit:
    return Hit(id="EST503", span=case.span_of(name), variant=variant, values=values, changes=changes)


def monitoring(case: Case) -> Iterator[Hit]:
    """EST507: Debugger and profiler, which SDK 2 turns on by default."""
    configuration = case.configuration
    if not case.of_sagemaker:
        return
    if configuration.form == SDK_2:
        yield from _of_estimator(case)
    elif configuration.form == "request":
        on = []
        if configuration.get("debugger_hook_config"):
            on.append("Debugger (DebugHookConfig)")
        if configuration.get("disable_profiler") is False:
            on.append("the profiler (ProfilerConfig without DisableProfiler)")
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
                variant="request",
                values={"tools": " and ".join(on)},
                changes=changes,
            )


def _of_estimator(case: Case) -> Iterator[Hit]:
    configuration = case.configuration
    call = configuration.tables["estimator"]
    hook, profiler = configuration.get("debugger_hook_config"), configuration.get("disable_profiler")
    debugs = hook is not False and not configuration.unknown("debugger_hook_config")
    # AWS's samples for SMP v2 keep the default of the profiler; those for SMP v1 and the compiler turn it off.
    set_explicitly = profiler is False or "profiler_config" in call.entries
    profiles = profiler is not True and not configuration.unknown("disable_profiler")
    profiles = profiles and (set_explicitly or debugs or case.smp_launcher != "torchrun")
    if not debugs and not profiles:
        return
    names = [name for name, on in (("Debugger", debugs), ("the profiler", profiles)) if on]
    by_default = hook is None and not set_explicitly
    tools = f"{' and '.join(names)} {'are' if len(names) > 1 else 'is'}"
    changes = [Change(call, "debugger_hook_config", value=False)] if debugs else []
    changes += [Change(call, "disable_profiler", value=True)] if profiles else []
    places = [name for name, on in (("debugger_hook_config", debugs), ("disable_profiler", profiles)) if on]
    written = [name for name in ("debugger_hook_config", "disable_profiler") if name in configuration.settings]
    yield Hit(
        id="EST507",
        span=case.span_of(*places, *written) if written else configuration.span,
        variant="default" if by_default else "on",
        values={"tools": tools[:1].upper() + tools[1:]},
        changes=tuple(changes),
    )
