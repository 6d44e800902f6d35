"""The verbs of the command: each answers one question about a request."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smp_advisor.errors import AdvisorError, NoPlanFitsError
from smp_advisor.export.formats import FORMATS
from smp_advisor.tools.answers import (
    NO,
    YES,
    Answer,
    advised,
    checked,
    estimated,
    figures,
    fitting,
    memory_words,
    needed,
    not_fitting,
    refused,
)
from smp_advisor.wording import fits as is_fitting
from smp_advisor.wording import percent, plural

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Mapping

    from smp_advisor.advice import Advice
    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.estimators.report import Reading
    from smp_advisor.findings.report import Report
    from smp_advisor.workload.model import Model

__all__ = ["EXPORTS", "VERBS"]

_FILES = {".json", ".yaml", ".yml", ".toml", ".py", ".ipynb"}
"""Suffixes of saved advice, recipes and cells."""
_CELLS = ("job", "script", "local", "monitoring", "permissions", "quota")
EXPORTS = (*_CELLS, *FORMATS)
"""Kinds of code: cells of a notebook, then jobs for other launchers."""


def advise(options: Namespace) -> Answer:
    """A recommendation. The status is 1 if no plan fits."""
    from smp_advisor.advice.recommendation import advise as recommend

    settings, read_as = _with_instance(options.settings)
    try:
        advice = recommend(_model(options.model), **settings)
    except NoPlanFitsError as error:
        return refused(str(error), error.ways_out)
    if options.output:
        advice.save(options.output)
    answer = advised(advice)
    if options.full:
        return replace(answer, text=str(advice))
    return replace(answer, text=f"{answer.text}\n{read_as}") if read_as else answer


def estimate(options: Namespace) -> Answer:
    """The estimate of one plan. The status is 1 if it does not fit."""
    model, cluster, value = _estimate(options.model, options)
    where = f"{cluster.nodes} x {cluster.instance.name}"
    return estimated(model, where, value, options.settings.get("min_fit_probability") or 0.95)


def fits(options: Namespace) -> Answer:
    """Whether a model fits on a cluster with any plan, or a file with its own. The status is 1 if it does not."""
    source = Path(options.source)
    if source.suffix in _FILES and not (source.suffix == ".json" and options.settings.get("cluster")):
        return _file_fits(source, options)
    from smp_advisor.advice.recommendation import advise as recommend

    settings, read_as = _with_instance(options.settings)
    if "cluster" not in settings:
        raise AdvisorError("Whether a model fits depends on its cluster: add --instance ml.p4d.24xlarge, for example.")
    try:
        advice = recommend(_model(options.source), **settings)
    except NoPlanFitsError as error:
        return not_fitting(str(error), error.ways_out, read_as)
    return fitting(advice, _changes(advice), read_as)


def _with_instance(settings: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """The settings with the complete name of a family of several sizes: that of its largest; and a note about it."""
    from smp_advisor.cluster.table import instances

    name = settings.get("cluster")
    family = name.lower().removeprefix("ml.") if isinstance(name, str) else ""
    sizes = [entry for entry in instances() if entry.name.split(".")[1] == family]
    if len(sizes) < 2:
        return dict(settings), ""
    largest = max(sizes, key=lambda entry: (entry.gpus, entry.vcpus))
    others = ", ".join(entry.name for entry in sizes if entry is not largest)
    return {**settings, "cluster": largest.name}, f"{name} is read as {largest.name}, not {others}"


def _changes(advice: Advice) -> str:
    """What ends the fit, or does not: fewer nodes, a longer sequence, a technique less."""
    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.search.clusters import best_on

    question, sentences = advice.question, []
    if question is None:
        return ""
    nodes, length = advice.cluster.nodes // 2, 2 * advice.job.sequence_length
    if nodes:
        less = best_on(question, Cluster(advice.cluster.instance, nodes)).fits
        sentences.append(f"{plural(nodes, 'node')} {'is' if nodes == 1 else 'are'} {'also' if less else 'not'} enough")
    positions = advice.model.shape.max_positions
    if not advice.model.fixed_sequence_length and (not positions or length <= positions):
        longer = best_on(question.training(sequence_length=length), advice.cluster).fits
        sentences.append(f"sequences of {length:,} tokens {'fit, too' if longer else 'do not fit'}")
    text = "; ".join(sentences)
    return " ".join(filter(None, (f"{text[:1].upper()}{text[1:]}." if text else "", needed(advice))))


def check(options: Namespace) -> Answer:
    """The findings in scripts, cells and recipes. The status is 1 with an error among them."""
    return checked([_report(Path(path)) for path in options.paths])


def profile(options: Namespace) -> Answer:
    """The profile of a configuration's model. The status is 1 with a verdict against it."""
    from smp_advisor.profiling import profile as measure

    result = measure(_read_config(options.config), **options.settings)
    return Answer(
        text=str(result),
        data={
            "answer": str(result).splitlines()[0],
            "summary": str(result).splitlines(),
            "verdicts": [*result.verdicts],
        },
        full=result.as_dict,
        page=lambda: str(result),
        status=NO if result.verdicts else YES,
    )


def prove(options: Namespace) -> Answer:
    """The proof of an adaptation. The status is 1 without one."""
    from smp_advisor.proving import prove as run_both

    plan = None if options.advice is None else _advice(Path(options.advice)).plan
    proof = run_both(
        Path(options.original), Path(options.adapted), plan,
        library=options.library, root=options.root, arguments=shlex.split(options.arguments),
    )  # fmt: skip
    return Answer(
        text=str(proof),
        data={"answer": str(proof).splitlines()[0], "proven": proof.proven, "proof": str(proof).splitlines()},
        full=lambda: asdict(proof),
        page=lambda: str(proof),
        status=YES if proof.proven else NO,
    )


def export(options: Namespace) -> Answer:
    """The code of a saved advice."""
    from smp_advisor.advice.written import write_text

    code = _code(_advice(Path(options.advice)), options.what, options.sdk)
    if options.output:
        write_text(code if code.endswith("\n") else f"{code}\n", options.output)
        return _said(f"Wrote {options.output}.", what=options.what, file=options.output)
    return replace(_said(code, what=options.what, code=code), data={"what": options.what, "code": code})


def _code(advice: Advice, what: str, sdk: str) -> str:
    """The code of one kind."""
    cells: dict[str, Callable[[], str]] = {
        "job": lambda: advice.cell(sdk),
        "script": lambda: _file(advice.script_cell()),
        "local": advice.local_cell,
        "monitoring": advice.monitoring_cell,
        "permissions": lambda: advice.permissions_cell(sdk=sdk),
        "quota": advice.quota_cell,
    }
    return cells[what]() if what in cells else advice.export(what)


def _file(cell: str) -> str:
    """The file that a cell with ``%%writefile`` writes."""
    return cell.partition("\n")[2] if cell.startswith("%%writefile ") else cell


def _said(text: str, **data: Any) -> Answer:
    """The answer of a few words."""
    values = {"answer": text.splitlines()[0] if text else "", **data}
    return Answer(text=text, data=values, full=lambda: values, page=lambda: text)


VERBS: Mapping[str, Callable[[Namespace], Answer]] = {
    "advise": advise,
    "estimate": estimate,
    "fits": fits,
    "check": check,
    "profile": profile,
    "prove": prove,
    "export": export,
}


def _model(text: str) -> Any:
    return _read_config(text) if Path(text).suffix == ".json" else text


def _read_config(path: str) -> Any:
    from smp_advisor.files import MODEL, has_too_many_values, read_bytes

    try:
        text = read_bytes(Path(path), MODEL).decode("utf-8")
        config = None if has_too_many_values(text) else json.loads(text)
    except OSError as error:
        raise AdvisorError(f"{path!r:.200} cannot be read: {error.strerror or error}.") from None
    except (ValueError, RecursionError):
        config = None
    if not isinstance(config, dict):
        raise AdvisorError(f"{path!r:.200} is no JSON of a configuration.")
    return config


def _estimate(model: str, options: Namespace) -> tuple[Model, Cluster, Estimate]:
    """Estimate of the plan of the options."""
    from smp_advisor.advice.request import job_of, read_model, sort_settings
    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.costs.evaluate import estimate as evaluate
    from smp_advisor.libraries.library import get_library, require_library
    from smp_advisor.libraries.plan import Plan

    values, _ = _with_instance(options.settings)
    instance, library, count = (values.pop(name, None) for name in ("cluster", "library", "instance_count"))
    if not isinstance(instance, str) or not library:
        raise AdvisorError("A plan requires --instance and --library; its other settings have defaults.")
    require_library(library)
    if isinstance(count, str):
        raise AdvisorError("A plan requires a number of instances: --count 2.")
    values.pop("min_fit_probability", None)
    settings, shape, fields = sort_settings(values)
    plan = Plan(library=library, **fields)
    own = {"precision": plan.precision, "attention": get_library(library).default_attention}
    job = job_of(None, own | settings)
    workload = read_model(
        _model(model), sequence_length=job.sequence_length, shape=shape, job=job, library=plan.library
    )
    cluster = Cluster(instance, count or 1)
    return workload, cluster, evaluate(workload, cluster, job, plan)


def _file_fits(source: Path, options: Namespace) -> Answer:
    """Whether the plans of a file fit."""
    values, least = _of_file(source, options), options.settings.get("min_fit_probability") or 0.95
    lines = [f"{name}: {_verdict(value, least)}" for name, value in values.items()]
    data = {
        "fits": all(is_fitting(value, least) for value in values.values()),
        "jobs": [{"name": name, **figures(value, least)} for name, value in values.items()],
    }
    return Answer(
        text="\n".join(lines),
        data={"answer": " ".join(lines), **data},
        full=lambda: data,
        page=lambda: "\n".join(lines),
        status=YES if data["fits"] else NO,
    )


def _verdict(value: Estimate, least: float) -> str:
    words = "fits" if is_fitting(value, least) else "does not fit" if value.fit_probability < 0.5 else "may not fit"
    return f"{words}: {memory_words(value)[:-1]}, {percent(least)} required)."


def _of_file(path: Path, options: Namespace) -> dict[str, Estimate]:
    """Estimates of a saved advice, or of the jobs of a recipe or cell."""
    from smp_advisor.advice.request import job_of, read_model
    from smp_advisor.costs.evaluate import estimate as evaluate
    from smp_advisor.estimators import check_estimator

    if _is_saved(path):
        advice = _advice(path)
        return {str(path): evaluate(advice.model, advice.cluster, advice.job, advice.plan)}
    length, least = job_of(None, {}).sequence_length, options.settings.get("min_fit_probability", 0.95)
    model = None if options.model is None else read_model(_model(options.model), sequence_length=length, shape={})
    report = check_estimator(path, model=model, cluster=options.settings.get("cluster"), min_fit_probability=least)
    missing = [_missing(reading) for reading in report.readings if reading.estimate is None]
    if missing or not report.readings:
        raise AdvisorError(f"{path} has a job that cannot be estimated: {'; '.join(missing) or 'no job was found'}")
    return {f"{path}:{r.line} {r.title}": r.estimate for r in report.readings if r.estimate is not None}


def _missing(reading: Reading) -> str:
    """The reason why the plan of a job has no estimate."""
    from smp_advisor.estimators.readback import MODEL_IS_MISSING

    parts = [reading.model or "its model is not in the text: pass --model", reading.plan or "it has no plan"]
    sentences = [sentence for sentence in reading.open if not sentence.endswith(MODEL_IS_MISSING)]
    reasons = [part for part in (*parts, *sentences) if isinstance(part, str)]
    return f"{reading.title} in line {reading.line}: {' '.join(reasons) or 'its cluster is unknown: pass --instance.'}"


def _is_saved(path: Path) -> bool:
    from smp_advisor.files import NOTEBOOK, read_bytes

    try:
        return b'"format": "smp-advisor"' in read_bytes(path, NOTEBOOK)[:200]
    except OSError as error:
        raise AdvisorError(f"{str(path)!r:.200} cannot be read: {error.strerror or error}.") from None


def _advice(path: Path) -> Advice:
    from smp_advisor.advice import Advice
    from smp_advisor.advice.files import load

    value = load(path)
    if not isinstance(value, Advice):
        raise AdvisorError(f"{path} holds a {type(value).__name__}, and an advice is required.")
    return value


def _report(path: Path) -> Report:
    """The report on a file: as a training script, unless it has an estimator or is no Python."""
    from smp_advisor.estimators import check_estimator
    from smp_advisor.estimators.check import looks_like_estimator
    from smp_advisor.files import SCRIPT, read_bytes
    from smp_advisor.scripts import check_script

    if path.suffix in {".py", ".ipynb"}:
        try:
            text = read_bytes(path, SCRIPT).decode("utf-8", "replace") if path.suffix == ".py" else ""
        except OSError as error:
            raise AdvisorError(f"{str(path)!r:.200} cannot be read: {error.strerror or error}.") from None
        if path.suffix == ".ipynb" or not looks_like_estimator(text):
            return check_script(path)
    return check_estimator(path)
