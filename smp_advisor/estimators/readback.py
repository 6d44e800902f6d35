"""Conversion of a configuration to a plan, cluster, job and model."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from smp_advisor.arguments.amounts import digits_as_number
from smp_advisor.cluster.cluster import Cluster
from smp_advisor.cluster.table import Instance, not_covered
from smp_advisor.cluster.table import instance as known_instance
from smp_advisor.core.files import table
from smp_advisor.errors import AdvisorError
from smp_advisor.estimators.configuration import count, inner_table, is_on, plain_of
from smp_advisor.estimators.recipes import adapter_of
from smp_advisor.estimators.terms import (
    LOCAL,
    container_of,
    is_version,
    known_pairs,
    library_version,
    terms_of,
    version_of_older_pair,
)
from smp_advisor.libraries.job_rules import EXPORTED_SCRIPT
from smp_advisor.libraries.layout import of_own_code
from smp_advisor.libraries.library import DEFAULT_LIBRARY, get_library
from smp_advisor.libraries.plan import Plan
from smp_advisor.libraries.schema import schema
from smp_advisor.libraries.version import default_version, release, version_on
from smp_advisor.session.written import CARRIED, carried_from
from smp_advisor.workload.from_config import is_model_name, model_from_config, model_from_name
from smp_advisor.workload.job import DEFAULT_SEQUENCE_LENGTH, Job
from smp_advisor.workload.model import Model

if TYPE_CHECKING:
    from smp_advisor.estimators.configuration import Configuration

_FORMS: dict[str, Any] = table("smp_advisor.estimators", "data/forms.toml")

MODEL_IS_MISSING = "so memory is not checked: pass model=."
"""End of the sentence about a job without a model."""

BATCH: tuple[str, ...] = tuple(_FORMS["batch"])
SEQUENCE: tuple[str, ...] = tuple(_FORMS["sequence"])
_FAMILIES = ("llama", "mixtral", "mistral", "gpt_neox", "gptj", "gpt2")
_OTHER_BLOCKS = ("llama4", "llama_v4")
"""Model types with blocks other than those of the family with the same prefix."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadBack:
    """Plan, cluster, job and model of a configuration; None if not known, with the reason in `open`."""

    plan: Plan | None = None
    cluster: Cluster | None = None
    job: Job | None = None
    model: Model | None = None
    version: str = ""
    """Library version of the parameters."""
    assumes_length: bool = False
    """Whether the sequence length is neither in the text nor in the script."""
    settings: frozenset[str] = frozenset()
    """Script settings in the text. The plan uses minimal values for the others."""
    inferred: tuple[str, ...] = ()
    """Assumptions for settings that are not in the text, one sentence each."""
    open: tuple[str, ...] = field(default=())
    """Parts that could not be determined, one sentence each."""


def read_back(
    configuration: Configuration,
    *,
    model: Model | None = None,
    job: Job | None = None,
    cluster: Cluster | Instance | None = None,
) -> ReadBack:
    """Convert a configuration to a plan, cluster, job and model; those of the user replace the ones in the text."""
    inferred: list[str] = [*configuration.get("read_with", ()), *filter(None, [configuration.get("limit")])]
    left_open: list[str] = []
    library = configuration.library
    version = _version(configuration, inferred) if library else ""
    # A setting of the script among the parameters of the library is a common mistake, and is meant.
    own = [entry.key for entry in schema(library).settings] if library else []
    for name in [name for name in own if name in configuration.parameters and name != "batch_size"]:
        configuration.hyperparameters.setdefault(name, configuration.parameters.pop(name))
        inferred.append(f"{name} is read as a setting of the script: the library documents no such parameter.")
    settings = script_settings(configuration, inferred)
    inferred += configuration.get("assumes", ())
    if configuration.strategy is not None:
        inferred += configuration.strategy.inferred
    if configuration.get("replaces_model", default=True) is False:
        inferred.append(
            "SMP v2 only shards the model (use_smp_model: False), which has no tensor parallelism, expert parallelism"
            " or fp8 then."
        )
    if configuration.get("trains_on_preferences", default=False) and not configuration.get("adapter"):
        left_open.append(
            "The estimate has no reference model, which training on preferences (dpo) keeps in memory, too."
        )
    kind = configuration.get("instance_type")
    # Trainium and inference instances get no plan for GPUs.
    limitation = not_covered(kind) if isinstance(kind, str) and cluster is None else ""
    plan = None if limitation else _plan(configuration, version, settings, left_open)
    place = _cluster(configuration, cluster, inferred, left_open)
    shared = configuration.get("shares_gpus")
    exported = _exported(configuration)
    own_model, own_job = exported or (None, None)
    # No memory figure rather than one of a job that the cost model does not describe.
    offloads = plan is not None and configuration.strategy is not None and configuration.strategy.offloads
    read_model = None if offloads else model or (None if shared else own_model or _model(configuration, inferred))
    if offloads:
        left_open.append(
            "Memory is not checked: the job has parameters or optimizer state in host memory, which no plan describes."
        )
    elif shared:
        left_open.append(f"Memory is not checked: {shared} are on the same GPUs, and no plan describes them.")
    elif read_model is None and library is not None and (plan is not None or configuration.form == "recipe"):
        left_open.append(f"{configuration.title} {_why_no_model(configuration)}, {MODEL_IS_MISSING}")
    read_job = job or _job(configuration, plan, read_model, own_job, inferred)
    if plan is not None and read_job is not None and read_job.precision != plan.precision:
        # The advisor's job may have another precision; the pasted configuration trains in that of the plan.
        read_job = replace(read_job, precision=plan.precision, fp8=bool(getattr(plan, "fp8", False)))
    return ReadBack(
        plan=plan,
        cluster=place,
        job=read_job,
        model=read_model,
        version=version,
        assumes_length=job is None and own_job is None and not any(_number(configuration, name) for name in SEQUENCE),
        settings=frozenset(settings),
        inferred=tuple(inferred),
        open=(*left_open, *configuration.get("unreceived", ())),
    )


def _version(configuration: Configuration, inferred: list[str]) -> str:
    """Return the library version in the image that the framework version selects."""
    library = str(configuration.library)
    framework, python = configuration.get("framework_version"), configuration.get("py_version")
    matching = library_version(library, framework, python) or library_version(library, framework)
    if matching is not None:
        return matching
    name, written = schema(library).name, python if isinstance(python, str) else None
    older = version_of_older_pair(library, framework, written) if is_version(framework) else None
    if older is not None:
        inferred.append(f"{name} {older}, the nearest known version to the image of framework version {framework}.")
        return older
    older_than_known = is_version(framework) and release(framework) < release(known_pairs(library)[0][0])
    older_than_known = older_than_known or container_of(configuration.framework, framework) is not None
    missing = "its image is older than the versions estimated here"
    missing = missing if older_than_known else f"it has no image with framework version {framework!r}"
    oldest, machine = library_version(library, known_pairs(library)[0][0]), terms_of(configuration).instance
    chosen = oldest if older_than_known and oldest else default_version(library)
    chosen = version_on(library, chosen, machine) if machine is not None else chosen
    why = "the configuration has no framework version" if framework is None else missing
    inferred.append(f"{name} {chosen}, because {why}.")
    return chosen


def script_settings(configuration: Configuration, inferred: list[str] | None = None) -> dict[str, Any]:
    """Return the settings of the script by their names in a plan, from hyperparameters of AWS's samples and recipes."""
    record = get_library(configuration.library or DEFAULT_LIBRARY)
    hyperparameters = {name: entry.value for name, entry in configuration.hyperparameters.items()}
    keys = {setting.key for setting in schema(record.name).settings}
    settings = {name: value for name, value in hyperparameters.items() if name in keys}
    batch = next((name for name in BATCH if name in hyperparameters), None)
    if batch is not None and "batch_size" in keys and "batch_size" not in settings:
        settings["batch_size"] = hyperparameters[batch]
        if inferred is not None:
            inferred.append(f"The batch size is the hyperparameter {batch}.")
    checkpoints, strategy = is_on(hyperparameters.get("activation_checkpointing")), "activation_strategy"
    if checkpoints and isinstance(hyperparameters.get(strategy), str) and record.script == "smp_step":
        settings["activation_checkpointing"] = hyperparameters[strategy]
    if "delayed_parameter_initialization" in keys and "delayed_param" in hyperparameters:
        settings["delayed_parameter_initialization"] = is_on(hyperparameters["delayed_param"])
    if "precision" in keys and "precision" not in settings:
        flagged = [name for name in ("bf16", "fp16") if is_on(hyperparameters.get(name))]
        if len(flagged) == 1:
            settings["precision"] = flagged[0]
            if inferred is not None and configuration.hyperparameters[flagged[0]].span is not None:
                inferred.append(f"The precision is {flagged[0]}, by the hyperparameter {flagged[0]}.")
    if "precision" in hyperparameters and record.script == "smp_step":
        settings["precision"] = hyperparameters["precision"]
    return {name: digits_as_number(value) for name, value in settings.items()}


def _plan(configuration: Configuration, version: str, settings: dict[str, Any], left_open: list[str]) -> Plan | None:
    library = configuration.library
    if library is None and configuration.strategy is not None:
        left_open.append(configuration.strategy.why_no_plan)
        return None
    if library is None:
        uses = "uses neither smdistributed.modelparallel nor Training Compiler, so there is no plan for it"
        if configuration.form == "recipe":
            uses = "does not set use_smp_model, and plans do not describe NeMo's own recipes and those for Trainium"
        left_open.append(f"{configuration.title} {uses}.")
        return None
    compiles = get_library(library).compiles
    if compiles and (configuration.framework == "tensorflow" or "tensorflow_version" in configuration.settings):
        left_open.append("No plan: plans do not describe Training Compiler with TensorFlow.")
        return None
    concerned = {"parameters", "modelparallel", "distribution", "distributed", "smdistributed"}
    concerned |= {parameter.key for parameter in schema(library).parameters}
    if wanting := [gap for gap in configuration.gaps if gap.name in concerned]:
        left_open.append(f"No plan: {wanting[0].name} is not known, {wanting[0].why}.")
        return None
    parameters = configuration.values()
    if compiles:
        parameters = {"enabled": bool(configuration.get("compiler", default=True))}
        if isinstance(configuration.get("compiler_debug"), bool):
            parameters["debug"] = configuration.get("compiler_debug")
    microbatches = parameters.get("microbatches")
    if "batch_size" not in settings and isinstance(microbatches, int):
        settings = {"batch_size": microbatches, **settings}
    try:
        return Plan.from_parameters(parameters, settings, version=version, library=library)
    except AdvisorError as error:
        left_open.append(f"No plan: {error}")
        return None


def _cluster(
    configuration: Configuration, chosen: Cluster | Instance | None, inferred: list[str], left_open: list[str]
) -> Cluster | None:
    """The user's cluster, or an instance of theirs with the text's number of nodes; else the cluster of the text."""
    written = configuration.get("instance_count", 1)
    nodes = written if isinstance(written, int) and not isinstance(written, bool) else None
    if isinstance(chosen, Cluster):
        if nodes != chosen.nodes and "instance_count" in configuration.settings:
            inferred.append(f"{chosen.nodes} nodes, those of your cluster instead of the {written} in the text.")
        return chosen
    kind = chosen if chosen is not None else configuration.get("instance_type")
    described = configuration.strategy is None or configuration.library is not None
    if (
        kind is None
        and described
        and configuration.form in ("recipe", "manifest")
        and not configuration.unknown("instance_type")
    ):
        left_open.append(
            f"{configuration.title} names no instance, so memory is not checked: pass one, for example"
            " cluster='ml.p5.48xlarge'."
        )
    if nodes is None or not isinstance(kind, str | Instance):
        return None
    if kind in LOCAL:
        left_open.append(f"No cluster: {kind} runs the job on this machine.")
        return None
    try:
        return Cluster(known_instance(kind) if isinstance(kind, str) else kind, nodes)
    except AdvisorError as error:
        left_open.append(f"No cluster: {error}")
        return None


def _exported(configuration: Configuration) -> tuple[Model, Job] | None:
    """Model and job that the exporter wrote into the environment of a cell; None for other cells."""
    environment = inner_table(configuration.tables.get("estimator"), "environment")
    if environment is None or CARRIED not in environment.entries:
        return None
    try:
        model, job, _, _ = carried_from(plain_of(environment))
    except AdvisorError:
        return None
    return model, job


def _job(
    configuration: Configuration, plan: Plan | None, model: Model | None, own: Job | None, inferred: list[str]
) -> Job | None:
    written = next((name for name in SEQUENCE if _number(configuration, name)), "")
    length = _number(configuration, written) if written else None
    if own is not None:
        return replace(own, sequence_length=length or own.sequence_length)
    if length is not None and model is not None:
        where = "hyperparameter" if configuration.hyperparameters[written].span is not None else "script's setting"
        inferred.append(f"The sequence length is {length:,} tokens, the {where} {written}.")
    if length is None:
        positions = model.shape.max_positions if model is not None else 0
        positions -= 2 * (positions % 8 == 2)  # rows that tables of RoBERTa and OPT have for padding
        length = min(DEFAULT_SEQUENCE_LENGTH, positions or DEFAULT_SEQUENCE_LENGTH)
        if model is not None and model.reads_tokens:
            inferred.append(f"A sequence length of {length:,} tokens, because the configuration has none.")
    record = get_library(configuration.library) if configuration.library is not None else None
    fused = record is not None and record.default_attention == "fused"
    if plan is not None and get_library(plan.library).script == "smp_step":
        # FlashAttention is in SMP v1 from 1.13.0. Whether the script uses it is not visible, so it is assumed.
        fused = release(plan.version) >= release("1.13.0")
    elif plan is not None and not get_library(plan.library).of_sagemaker:
        fused = fused and release(plan.version) >= release("2.0")
    older = configuration.get("transformers_version")
    if is_version(older) and release(older) < release("4.36"):
        fused = False  # transformers had no scaled_dot_product_attention
    try:
        job = Job(
            sequence_length=length,
            precision=plan.precision if plan is not None else "bf16" if fused else "fp16",
            fp8=bool(getattr(plan, "fp8", False)),
            attention="fused" if fused else "eager",
            adapter=adapter_of(configuration, inferred),
            state_precision=configuration.get("state_precision", "mixed"),
            **configuration.get("of_job", {}),
        )
    except AdvisorError:
        return None
    if model is not None and "optimizer" not in configuration.get("of_job", {}):
        inferred.append(f"Assumed are optimizer={job.optimizer!r} and attention={job.attention!r}.")
    entry = configuration.get("entry_point")
    is_exported = isinstance(entry, str) and EXPORTED_SCRIPT.fullmatch(PurePosixPath(entry).name) is not None
    return job if is_exported or plan is None else of_own_code(job, plan.library)


def _number(configuration: Configuration, name: str) -> int | None:
    entry = configuration.hyperparameters.get(name)
    return count(digits_as_number(entry.value)) if entry is not None else None


def _why_no_model(configuration: Configuration) -> str:
    values = {name: str(entry.value) for name, entry in configuration.hyperparameters.items()}
    for name in _FORMS["model_names"]:
        if name in values and not values[name].startswith(("/", ".", "s3:")):
            return f"names the model {values[name]!r:.80}, of which no shape is known"
    if "model_type" in values and any(name in values for name in _FORMS["shape"]["layers"]):
        return f"has the model_type {values['model_type']!r:.80}, whose blocks no shape describes"
    return "does not describe the model"


def known_model(text: object) -> str:
    """Return the name of a model that the table has: a text, or the end of a path to it; else empty."""
    names = (text, text.rstrip("/").rpartition("/")[2]) if isinstance(text, str) else ()
    return next(filter(is_model_name, names), "")


def _model(configuration: Configuration, inferred: list[str]) -> Model | None:
    """The model with the shape in the hyperparameters, as in AWS's samples and recipes, or with the name in them."""
    settings = configuration.hyperparameters
    own = [settings[name].value for name in _FORMS["model_names"] if name in settings]
    for value, where in (*((value, "") for value in own), (configuration.get("script_model"), " in the script")):
        if name := known_model(value):
            model, head = model_from_name(name), configuration.get("script_head", "")
            if head:
                values = {**json.loads(model.config_json), "architectures": [head]}
                model = replace(model_from_config(values), name=model.name)
            which = f"its name {name!r}" if not where else f"the name {name!r}{where}"
            loaded = f", loaded by {head}" if head else ""
            inferred.append(f"The model is {model.summary.rstrip('.')}, by {which}{loaded}.")
            return model
    shape: dict[str, Any] = {
        field: next((value for name in names if (value := _number(configuration, name))), None)
        for field, names in _FORMS["shape"].items()
    }
    if not (shape["layers"] and shape["hidden"] and shape["heads"]):
        return None
    model_type = configuration.hyperparameters.get("model_type")
    kind = str(model_type.value).lower() if model_type is not None else "gpt2"
    family = next((name for name in _FAMILIES if kind.startswith(name)), None)
    if family is None or kind.startswith(_OTHER_BLOCKS):
        return None  # a shape does not describe its blocks
    if family != "mixtral":
        shape["experts"] = shape["experts_per_token"] = None
    if family not in ("llama", "mistral", "mixtral"):
        shape["kv_heads"] = None
    try:
        model = Model.from_shape(family=family, **{field: value for field, value in shape.items() if value is not None})
    except (AdvisorError, TypeError):
        return None
    why = "" if model_type is not None else ", because the configuration has no model_type"
    description = f"with blocks of {family}{why}"
    inferred.append(f"The model is {model.summary.rstrip('.')}: the shape in the hyperparameters, {description}.")
    return model
