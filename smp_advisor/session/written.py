"""An advice as text: JSON in files, which is read again, variables of its job, and its report as HTML."""

from __future__ import annotations

import json
import os
import zlib
from base64 import b64decode, b64encode
from dataclasses import fields
from itertools import groupby
from typing import TYPE_CHECKING, Any

from smp_advisor._version import __version__
from smp_advisor.advice.report import sections
from smp_advisor.core import files
from smp_advisor.core.files import json_values, sentence
from smp_advisor.core.words import escape
from smp_advisor.errors import ExportError, ModelError, StorageError
from smp_advisor.libraries.plan import Plan
from smp_advisor.session.storage import KINDS, from_plain, kind_of, plain
from smp_advisor.workload import Adapter, Job, Model
from smp_advisor.workload.from_config import is_model_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from smp_advisor.advice.practices import Step
    from smp_advisor.advice.recommendation import Recommendation
    from smp_advisor.cluster import Cluster
    from smp_advisor.session import Advice
    from smp_advisor.session.control_state import ControlState


FORMAT = "smp-advisor"
VERSION = 4
"""Version of the format, which changes with every field of a stored value: a test compares."""


def as_text(value: Any, **more: Any) -> str:
    """Return the JSON text of a value."""
    document = {
        "format": FORMAT, "version": VERSION, "written_by": __version__, "kind": kind_of(value), "value": plain(value),
    }  # fmt: skip
    return json.dumps(document | more, allow_nan=False, ensure_ascii=False) + "\n"


def live_text(recommended: Recommendation, state: ControlState) -> str:
    """Return the JSON text of an advice with the plan on screen."""
    return as_text(recommended, screen={"plan": plain(state.plan), "job": plain(state.advice.job)})


def from_text(text: str, name: str = "The text") -> tuple[Any, dict[str, Any]]:
    """Return the value of a JSON text of `as_text`, and the document."""
    try:
        document = json_values(text)
    except ValueError:
        raise StorageError(f"{name} is no JSON of stored values.") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT or "value" not in document:
        raise StorageError(f"{name} holds no stored value of this package.")
    version = document.get("version")
    writers = {"writer": f"smp_advisor {document.get('written_by')!s:.30}", "own": __version__}
    if version in (1, 2):
        document = _of_earlier(document)
    elif version != VERSION:
        raise StorageError(sentence("session", "other_version", name=name, version=version, reads=VERSION, **writers))
    kind = document.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        raise StorageError(f"{name} holds no {', '.join([*KINDS][:-1])} or {[*KINDS][-1]}, but {kind!r:.50}.")
    try:
        return from_plain(document["value"], str(kind)), document
    except StorageError as error:
        raise StorageError(sentence("session", "unreadable", name=name, error=error, **writers)) from None


def _of_earlier(document: dict[str, Any]) -> dict[str, Any]:
    """Return the document in the present form.

    In version 1, every object had its kind as `type`; until version 2, techniques had their figures as texts.
    """
    is_first = document["version"] == 1
    gone = {"type", "figures"} if is_first else {"figures"}

    def present(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: present(part) for name, part in value.items() if name not in gone}
        return [present(part) for part in value] if isinstance(value, list) else value

    value = document["value"]
    kind = value.get("type") if is_first and isinstance(value, dict) else document.get("kind")
    return document | {"kind": kind, "value": present(value)}


CARRIED = "SMP_ADVISOR_PREDICTION"
"""Environment variable of an exported job, by which `smp_advisor.watch` knows its prediction. `DescribeTrainingJob`
returns it, so that everybody who may watch the job may read it. A longer prediction is in ``advice.json`` alone."""
_MOST_CHARACTERS = 512
"""Of a variable (CreateTrainingJob, TrainingEnvironmentValue)."""
_MOST_VARIABLES = 8
_MOST_UNPACKED = 2**20
_USUAL = (
    b'"offload_activations":true,"active_microbatches":"shard_optimizer_state":true,"prescaled_batch":true,"ddp":true,'
    b'"sharded_data_parallel_degree":"hybrid_shard_degree":"pipeline_parallel_degree":"tensor_parallel_degree":8,'
    b'"sharding_strategy":"_hybrid_shard_zero2","gradient_accumulation_steps":"microbatches":"fp16":false,"bf16":true,'
    b'"n_embd":4096,"n_head":32,"n_inner":16384,"n_layer":48,"n_positions":2048,"vocab_size":50304,"model_type":"gpt2",'
    b'"intermediate_size":14336,"num_hidden_layers":32,"num_key_value_heads":8,"num_attention_heads":32,"hidden_size":'
    b'"max_position_embeddings":131072,"model_type":"llama"},"name":"Llama ","note":"origin":"inferred","tokens":'
    b'"job":{"sequence_length":4096,"precision":"bf16","attention":"fused","max_tokens_per_step":4194304},"adapter":{'
    b'{"model":{"config":{"plan":{"library":"fsdp","batch_size":1,"activation_checkpointing":"each"},"request":{"objective":'
)
"""Frequent parts, which a packed text does not repeat. Texts in jobs that run depend on them: they do not change."""
_REQUEST = {"objective": "throughput", "min_fit_probability": 0.95}


def carried(model: Model, job: Job, plan: Plan, request: Mapping[str, Any]) -> dict[str, str]:
    """Return the prediction of a job as a variable: JSON of what differs from defaults, packed if it is long.

    Measured runs and traced models take further variables. Empty if they take more than eight, or would not be read as
    the same.
    """
    try:
        terms = {name: value for name, value in request.items() if value != _REQUEST.get(name)}
        parts = {
            "model": _described(model),
            "job": _changed(job, Job()),
            "plan": {"library": plan.library, **_changed(plan, Plan(library=plan.library))},
            "request": terms,
        }
        text = json.dumps({name: part for name, part in parts.items() if part}, separators=(",", ":"))
        if len(text) > _MOST_CHARACTERS:
            packer = zlib.compressobj(9, wbits=-15, zdict=_USUAL)
            text = b64encode(packer.compress(text.encode()) + packer.flush()).decode()
        starts = range(0, len(text), _MOST_CHARACTERS)
        names = (CARRIED, *(f"{CARRIED}_{number}" for number in range(2, len(starts) + 1)))
        variables = {name: text[at : at + _MOST_CHARACTERS] for name, at in zip(names, starts, strict=True)}
        exact = carried_from(variables) == (model, job, plan, terms)
    except (ValueError, TypeError):
        return {}
    return variables if exact and len(variables) <= _MOST_VARIABLES else {}


def _described(model: Model) -> dict[str, Any]:
    """A model of the package's tables by its name, others by their configuration or, without one, all their figures."""
    if is_model_name(model.name) and Model.from_name(model.name) == model:
        return {"name": model.name}
    try:
        usual = json.loads(Model.from_config({"model_type": model.family}).config_json)
    except ModelError:
        return {"figures": plain(model)}
    values = json.loads(model.config_json).items()
    config = {key: value for key, value in values if key == "model_type" or usual.get(key, "") != value}
    return {"config": config, **_changed(model, Model.from_config(config))}


def call_of(model: Model, cluster: Cluster, job: Job, **settings: Any) -> str:
    """Return the Python of `advise` for a model on a cluster; empty if a value cannot be written."""
    described = _described(model)
    config = described.pop("config", None)
    name = described.pop("name", model.name) if config is not None else described.pop("name", "")
    described.pop("note", None), described.pop("origin", None)
    if described or (config is None and not name):
        return ""
    words = [repr(name) if config is None else f"smpa.Model.from_config({config!r})", repr(cluster.instance.name)]
    values = {"instance_count": cluster.nodes, **settings}
    for field in fields(job):
        value = getattr(job, field.name)
        if value != getattr(Job(), field.name) and field.name not in settings:
            values[field.name] = value
    if not all(isinstance(value, int | float | str | Adapter | None) for value in values.values()):
        return ""
    texts = (f"{name}={'smpa.' * isinstance(value, Adapter)}{value!r}" for name, value in values.items())
    return f"advice = smpa.advise({', '.join([*words, *texts])})"


def _changed(value: Any, usual: Any) -> dict[str, Any]:
    """Return the fields of a value that differ from those of another one."""
    own, defaults = plain(value), plain(usual)
    return {name: part for name, part in own.items() if part != defaults.get(name)}


def carried_from(variables: Mapping[str, str]) -> tuple[Model, Job, Plan, dict[str, Any]]:
    """Return the model, job, plan and further keywords of `advise` in the variable of a job."""
    try:
        more = (f"{CARRIED}_{number}" for number in range(2, _MOST_VARIABLES + 1))
        text = variables[CARRIED] + "".join(variables.get(name, "") for name in more)
        if not text.startswith("{"):
            text = zlib.decompressobj(-15, _USUAL).decompress(b64decode(text), _MOST_UNPACKED).decode()
        parts = dict(json_values(text))
        model = parts["model"]
        if "figures" in model:
            model = model["figures"]
        else:
            config = model.pop("config", None)
            model = plain(Model.from_name(model["name"]) if config is None else Model.from_config(config)) | model
        job = plain(Job()) | parts.get("job", {})
        values = from_plain(model, "Model"), from_plain(job, "Job"), from_plain(parts["plan"], "Plan")
        return *values, dict(parts.get("request", {}))
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError, zlib.error) as error:
        raise StorageError(f"The variable {CARRIED} holds no prediction: {error!s:.200}") from None


def write_text(text: str, path: str | os.PathLike[str]) -> None:
    """Write a text to a file, which is complete or unchanged afterwards."""
    target = files.user_path(path, StorageError)
    try:
        files.write_text(target, text)
    except OSError as error:
        raise StorageError(f"{os.fspath(target)!r} cannot be written: {error.strerror or error}.") from None


def read_text(path: str | os.PathLike[str]) -> str:
    """Return the text of a file of limited size."""
    return files.read_text(files.user_path(path, StorageError), files.MODEL, StorageError)


_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:900px;margin:32px auto;padding:0 16px;color-scheme:light dark}"
    "pre{overflow:auto;padding:12px;border:1px solid #8886;border-radius:6px;font-size:13px}"
    "figure{margin:24px 0!important}summary{font-weight:600;margin:8px 0}"
)


def html_page(advice: Advice) -> str:
    """A complete page without scripts or links to other files: report, charts and the cell that starts the job."""
    title, summary = sections(advice.explained)[0]
    alternatives = advice.chart("alternatives").as_html()
    body = f"<h1>{escape(title)}</h1>{''.join(_html_lines(summary))}{html_report(advice, alternatives, unfold=True)}"
    cell = f"<h2>Cell that starts the job</h2><pre>{escape(_cell(advice))}</pre>"
    head = f'<meta name="viewport" content="width=device-width"><title>{escape(title)}</title><style>{_STYLE}</style>'
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">{head}</head><body>{body}{cell}</body></html>\n'
    )


def html_report(advice: Advice, inserted: str = "", *, unfold: bool = False) -> str:
    """Memory, step time, ladder and the sections of the report below its summary, as HTML."""
    charts = "".join(advice.chart(name).as_html() for name in ("memory", "time"))
    opened = None if unfold else ("Why", "Configuration")
    folded = html_sections(advice.explained, opened=opened, left_out=("Ladder", "Memory per GPU"))
    return "".join([charts, inserted, advice.ladder()._repr_html_(), folded, html_sources(advice.steps)])


def html_sections(
    advice: Recommendation,
    *titles: str,
    opened: tuple[str, ...] | None = None,
    left_out: tuple[str, ...] = (),
) -> str:
    """Sections of the full report below its summary and ladder as HTML, folded.

    Parameters
    ----------
    advice
        With its reasons.
    titles
        Starts of the titles of the sections; all of them without any.
    opened
        Titles of those that are open; all without a value.
    left_out
        Titles of those that are left out.
    """
    parts = []
    for heading, lines in sections(advice, details=True)[2:]:
        if lines and heading not in left_out and heading.startswith(titles or ("",)):
            is_open = ' open=""' if opened is None or heading in opened else ""
            title = f'<summary style="cursor:pointer;font-weight:600">{escape(heading)}</summary>'
            parts.append(f"<details{is_open}>{title}{''.join(_html_lines(lines))}</details>")
    return "".join(parts)


def html_sources(steps: Iterable[Step]) -> str:
    """Links to the pages on which the techniques are based."""
    sources = {step.source_url: step.source_title for step in steps if step.source_url.startswith("https://")}
    link = '<a href="{}" target="_blank" rel="noopener">{}</a>'
    links = (link.format(escape(url), escape(name)) for url, name in sources.items())
    return f"<p>Sources of the techniques: {', '.join(links)}</p>" if sources else ""


def _cell(advice: Advice) -> str:
    """Return the cell, or the reason against it as a comment."""
    try:
        return advice.cell()
    except ExportError as error:
        return f"# {error}"


def _html_lines(lines: Iterable[str]) -> Iterator[str]:
    for start, texts in groupby(lines, lambda line: line[:2] if line[:2] in ("  ", "- ") else ""):
        if start == "  ":  # rows of a table
            yield f"<pre>{escape(chr(10).join(texts))}</pre>"
        elif start:
            yield f"<ul>{''.join(f'<li>{escape(text[2:])}</li>' for text in texts)}</ul>"
        else:
            yield "".join(f"<p>{escape(text)}</p>" for text in texts)
