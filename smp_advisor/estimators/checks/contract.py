"""EST506 for PyTorch's own libraries, and EST514: what the SDK, the container or the service does with the text."""

from __future__ import annotations

import posixpath
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from smp_advisor.cluster.containers import containers_of
from smp_advisor.core.files import data_file
from smp_advisor.estimators.cases import SDK_2, SDK_3, Case, Hit
from smp_advisor.estimators.configuration import constant, count, inner_table
from smp_advisor.estimators.script import SAVES
from smp_advisor.estimators.terms import LOCAL, is_version, nearest_pair, terms_of
from smp_advisor.libraries.version import release
from smp_advisor.review.reading.values import Collection, Constant, Mapping, Result
from smp_advisor.review.scripts.checks.outputs import MODEL_DIR

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_HOMES = {"pytorch": "pytorch-training", "huggingface": "huggingface-pytorch-training"}


def versions(case: Case) -> Iterator[Hit]:
    """EST506: a version without an image, for jobs of FSDP and DDP as for those of SageMaker's libraries."""
    configuration = case.configuration
    home = _HOMES.get(configuration.framework)
    framework, python = configuration.get("framework_version"), configuration.get("py_version")
    looked_up = "image_uri" in configuration.settings or "tensorflow_version" in configuration.settings
    if case.of_sagemaker or configuration.form != SDK_2 or home is None or looked_up or not isinstance(framework, str):
        return
    rows = [row for row in containers_of(home) if row.sdk_2 is not None]
    if is_version(framework) and release(framework) < release(rows[0].framework_version):
        return  # older than the table
    transformers = configuration.get("transformers_version") if configuration.framework == "huggingface" else None
    if isinstance(transformers, str):
        rows = [row for row in rows if f"{row.transformers_version}.".startswith(f"{transformers}.")]
    same = [row for row in rows if row.framework_version == framework]
    short = [row for row in rows if row.framework_version.startswith(f"{framework}.")]
    # The SDK's lists for the others have short versions up to 1.12.
    older = is_version(framework) and release(framework) < (1, 13) and not configuration.get("torch_distributed")
    launched = not older and any(map(configuration.get, ("torch_distributed", "smdistributed", "pytorchddp")))
    right = same or ([] if launched and framework.count(".") == 1 else short)
    if right and (not isinstance(python, str) or any(python in row.py_versions for row in right)):
        return
    versions_text = f"transformers {transformers} with PyTorch {framework}" if transformers else f"PyTorch {framework}"
    written = versions_text + (f" and {python}" if isinstance(python, str) else "")
    usable = same or short or rows or [row for row in containers_of(home) if row.sdk_2 is not None]
    pairs = [
        (f"{row.framework_version} (transformers {row.transformers_version})", row.py_versions[-1]) for row in usable
    ]
    near = nearest_pair(pairs, framework)
    why = ": the SDK takes short versions only without a distribution" if short and not same and launched else ""
    image, keys = near[0].removesuffix(" (transformers )"), ("framework_version", "transformers_version")
    values: dict[str, Any] = {"versions": written, "framework": image, "python": near[1], "why": why}
    yield case.hit("EST506", "no image of PyTorch", *keys, **values)


_FORMS: dict[str, Any] = data_file("estimators", "forms")
_TOOLKIT_SETS = ("btl_vader_single_copy_mechanism",)
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
_JOB_NAME = re.compile(r"[A-Za-z0-9](-*[A-Za-z0-9]){0,62}")
_MOST_WARM, _MOST_RETRIES = 3600, 30


def places(case: Case) -> Iterator[Hit]:
    """EST514: pods of several instances that request no EFA, and terms of the local mode."""
    configuration, machine, pods = case.configuration, case.instance, case.nodes or 1
    alone = configuration.form != "manifest" or pods < 2 or configuration.get("requests_efa")
    if not alone and machine is not None and machine.efa:
        yield case.hit("EST514", "no EFA", "instance_type", nodes=pods, instance=machine.name)
    kind, nodes = configuration.get("instance_type"), count(configuration.get("instance_count", 1)) or 1
    call = configuration.tables.get("estimator")
    session = call.get("sagemaker_session") if call is not None and kind in LOCAL else None
    if call is not None and isinstance(session, Result) and session.call.called == "Session":
        hit = case.hit("EST514", "local session", named=kind)
        yield replace(hit, span=call.entries["sagemaker_session"].span)
    if configuration.get("dataparallel") is True and isinstance(kind, str) and kind not in _FORMS["smddp"]:
        yield case.hit("EST514", "no SMDDP", "dataparallel", named=kind)
    if kind not in LOCAL:
        return
    if kind == "local_gpu" and nodes > 1 and configuration.form == SDK_2:
        yield case.hit("EST514", "local GPU nodes", "instance_count", nodes=nodes)
    launched = any(configuration.get(name) for name in ("torch_distributed", "mpi", "smdistributed", "driver"))
    if kind == "local" and launched:
        yield case.hit("EST514", "local without a GPU", "instance_type")


def channels(case: Case) -> Iterator[Hit]:
    """EST514: channels that the script or a path in the text needs, and the job does not have."""
    configuration = case.configuration
    names, call = configuration.get("channels"), configuration.tables.get("estimator")
    if names is None:
        return
    if call is not None and ("model_uri" in call.entries or call.open):  # the SDK adds a channel for it
        channel = constant(call, "model_channel_name") if "model_channel_name" in call.entries else "model"
        if not isinstance(channel, str):
            return
        names |= {channel}
    environment = inner_table(call, "environment")
    variables = environment.entries if environment is not None else {}
    spelled = {name.upper() for name in names}
    listed = f"the channels {', '.join(sorted(names))}" if names else "no channel"
    script = case.script
    for name in sorted(script.channels - spelled) if script is not None else ():
        if script is not None and (variable := f"SM_CHANNEL_{name}") not in variables:
            yield case.hit("EST514", "no channel", "entry_point", named=variable, right=listed, kind=script.name)
    for setting in configuration.hyperparameters.values():
        path = str(setting.value).removeprefix(_INPUTS)
        folder = path.partition("/")[0]
        if path != str(setting.value) and folder and folder not in {*names, *_FORMS["own_channels"]}:
            hit = case.hit("EST514", "no folder", named=str(setting.value), right=listed)
            yield replace(hit, span=setting.span or hit.span)


_INPUTS = "/opt/ml/input/data/"


def of_trainer(case: Case) -> Iterator[Hit]:
    """EST514: names that SDK 3 exports in a shell under ``set -e``, its command as it is, and its MPI."""
    configuration = case.configuration
    if configuration.form != SDK_3:
        return
    call = configuration.tables["estimator"]
    passed = inner_table(call, "hyperparameters")
    for key, entry in passed.entries.items() if passed is not None else ():
        if isinstance(key, str) and not _IDENTIFIER.fullmatch(key.replace("-", "_")):
            yield replace(case.hit("EST514", "name", kind="hyperparameter", named=key), span=entry.span)
    for table in (call, configuration.tables.get("started")):
        listed = table.get("input_data_config") if table is not None else None
        for item in listed.items if isinstance(listed, Collection) else ():
            name = constant(item.call.passed, "channel_name") if isinstance(item, Result) else None
            if isinstance(name, str) and isinstance(item, Result) and not _IDENTIFIER.fullmatch(name):
                hit = case.hit("EST514", "name", kind="channel", named=name)
                yield replace(hit, span=item.call.passed.span)
    command, passed = configuration.get("command"), configuration.tables.get("hyperparameters")
    reads = any(mark in str(command) for mark in ("SM_HP", "hyperparameters.json", "$"))
    if isinstance(command, str) and passed is not None and passed.entries and not reads:
        names = ", ".join(str(key) for key in list(passed.entries)[:4])
        yield case.hit("EST514", "command", "command", names=names)
    terms = terms_of(configuration)
    if configuration.get("driver") == "MPI" and (terms.instance_count or 1) > 1 and not case.smp_launcher:
        gpus = terms.instance.gpus if terms.instance is not None else 8
        yield case.hit("EST514", "MPI on one node", "driver", nodes=terms.instance_count, gpus=gpus)


def of_estimator(case: Case) -> Iterator[Hit]:
    """EST514: terms and names of an estimator that SDK 2 or the service refuses, or that have no effect."""
    call = case.configuration.tables.get("estimator")
    if call is None or case.configuration.form != SDK_2:
        return
    if "checkpoint_local_path" in call.entries and "checkpoint_s3_uri" not in call.entries and not call.open:
        yield replace(case.hit("EST514", "no location"), span=call.entries["checkpoint_local_path"].span)
    for key, most, what in (
        ("keep_alive_period_in_seconds", _MOST_WARM, "seconds"),
        ("max_retry_attempts", _MOST_RETRIES, "attempts"),
    ):
        value = constant(call, key)
        if isinstance(value, int) and value > most:
            hit = case.hit("EST514", "range", named=key, value=value, most=most, what=what)
            yield replace(hit, span=call.entries[key].span)
    kind = call.get("instance_type")
    later = isinstance(kind, Result) and kind.call.called == "ParameterString"
    if later and "image_uri" not in call.entries and case.configuration.get("torch_distributed"):
        yield replace(case.hit("EST514", "pipeline"), span=call.entries["instance_type"].span)
    name = constant(call, "base_job_name")
    if isinstance(name, str) and not _JOB_NAME.fullmatch(f"{name[:39]}-2026"):  # the SDK adds the time
        yield replace(case.hit("EST514", "job name", named=name), span=call.entries["base_job_name"].span)
    mpi = case.configuration.tables.get("mpi")
    mpi_options = constant(mpi, "custom_mpi_options")
    for option in _TOOLKIT_SETS:
        if mpi is not None and isinstance(mpi_options, str) and option in mpi_options:
            hit = case.hit("EST514", "MPI option", named=option)
            yield replace(hit, span=mpi.entries["custom_mpi_options"].span)


_MODES = ("File", "Pipe", "FastFile")


def of_request(case: Case) -> Iterator[Hit]:
    """EST514: fields of a request that CreateTrainingJob refuses."""
    if case.configuration.form != "request":
        return
    request = case.configuration.tables["request"]
    algorithm, outputs = inner_table(request, "AlgorithmSpecification"), inner_table(request, "OutputDataConfig")
    tests: list[tuple[Mapping | None, str, Callable[[str], object], str]] = [
        (request, "TrainingJobName", _JOB_NAME.fullmatch, "letters, digits and hyphens, at most 63"),
        (algorithm, "TrainingInputMode", _MODES.__contains__, f"one of {', '.join(_MODES)}"),
        (outputs, "S3OutputPath", re.compile(r"(?:https|s3)://.+").match, "an address that starts with s3://"),
    ]
    for table, key, valid, right in tests:
        value = constant(table, key)
        if table is not None and isinstance(value, str) and not valid(value):
            hit = case.hit("EST514", "field", named=key, value=value, right=right)
            yield replace(hit, span=table.entries[key].span)
    passed = inner_table(request, "HyperParameters")
    for key, entry in passed.entries.items() if passed is not None else ():
        if isinstance(entry.value, Constant) and not isinstance(entry.value.value, str):
            value = entry.value.value
            hit = case.hit("EST514", "field", named=f"HyperParameters[{key!r}]", value=value, right="a text")
            yield replace(hit, span=entry.span)


EST514 = (places, channels, of_trainer, of_estimator, of_request)
_STATE_BYTES = 14
"""Bytes of a checkpoint per parameter: fp32 weights or a 16-bit copy, and two moments of the optimizer."""
_CHECKPOINTS = 3


def _often(saves: dict[str, Any]) -> str | None:
    """Return how often Trainer adds a checkpoint; None if it keeps few of them, or may do so."""
    strategy, steps = saves.get("save_strategy", "steps"), count(saves.get("save_steps", 500))
    limited = "save_total_limit" in saves and saves["save_total_limit"] not in ("None", "none")
    if limited or strategy not in ("steps", "epoch"):
        return None
    if strategy == "epoch":
        return "once per epoch"
    if steps is None or steps > _FEW:
        return None
    return f"every {steps} steps" + ("" if "save_steps" in saves else " by default")


_FEW = 10_000
"""Steps between two checkpoints from which most jobs save none before their end."""


def outputs(case: Case) -> Iterator[Hit]:
    """EST515: checkpoints that are not where the job copies them, or do not fit on its volume."""
    received, terms, model = case.script, terms_of(case.configuration), case.back.model
    call, settings = case.configuration.tables.get("estimator"), case.configuration.hyperparameters
    # Trainer saves by default; the example scripts of transformers have its arguments as options.
    of_git = "git_config" in case.configuration.settings and {"output_dir", "num_train_epochs"} <= settings.keys()
    out = str(settings["output_dir"].value) if of_git else received.checkpoints_in if received is not None else ""
    reported = received is not None and any(finding.id == "SMP005" for finding in received.report)
    passed = {name: settings[name].value for name in SAVES if name in settings}
    often = _often(passed | (received.saves if received is not None else {}))
    trains = str(settings["do_train"].value).lower() in ("true", "1") if "do_train" in settings else not of_git
    in_model = often is not None and trains and out.startswith(MODEL_DIR)
    if call is not None and in_model and not (terms.checkpoints or reported):
        yield case.hit("EST515", "in the model", script=str(case.configuration.get("entry_point")), often=often)
    if received is None or call is None:
        return
    if terms.checkpoints and terms.spot and not received.resumes:
        yield case.hit("EST515", "not resumed", "checkpoint_s3_uri", script=received.name)
    folder = received.checkpoints_in.rstrip("/")
    config = call.get("checkpoint_config")
    place = config.call.passed.get("local_path") if isinstance(config, Result) else config
    place = call.get("checkpoint_local_path") or place
    copied = str(getattr(place, "value", "") or "/opt/ml/checkpoints")
    inside = posixpath.join("/opt/ml/code", folder, "").startswith(f"{copied.rstrip('/')}/")
    alone = case.configuration.form == SDK_2 and place is None and terms.checkpoints is False
    alone = alone and not received.uploads
    if inside and folder and alone and case.configuration.get("instance_type") not in LOCAL:
        yield case.hit("EST515", "lost", "entry_point", script=received.name, folder=repr(folder))
    if not folder or inside or not isinstance(place, Constant | None):
        return
    if terms.checkpoints:
        where = "the folder of the model" if folder == MODEL_DIR else repr(folder)
        yield case.hit("EST515", "elsewhere", "checkpoint_s3_uri", script=received.name, folder=where, copied=copied)
    size = constant(call, "volume_size", "train_volume_size")
    adapts = bool(case.configuration.get("adapter"))  # its checkpoints are small
    if isinstance(size, int) and model is not None and not adapts:
        checkpoint_gb = model.parameter_count * _STATE_BYTES / 1e9
        if checkpoint_gb * _CHECKPOINTS > size:
            hit = case.hit("EST515", "volume", size=size, each=f"{checkpoint_gb:,.0f}", script=received.name)
            yield replace(hit, span=call.entries["volume_size"].span)
