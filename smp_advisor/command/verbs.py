"""The verbs of the command: each returns its answer as text and as plain data, with an exit status."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smp_advisor.command.options import exported
from smp_advisor.errors import AdvisorError, NoPlanFitsError

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Mapping

    from smp_advisor.advice import Advice
    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.estimators.report import Reading
    from smp_advisor.findings.report import Report

__all__ = ["VERBS", "Answer"]

YES, NO, WRONG = 0, 1, 2
_FILES = {".json", ".yaml", ".yml", ".toml", ".py", ".ipynb"}
"""Suffixes of saved advice, recipes and cells."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The answer of a verb."""

    text: str
    data: Any
    """For JSON."""
    status: int = YES


def advise(options: Namespace) -> Answer:
    """A recommendation. The status is 1 if no plan fits."""
    from smp_advisor.advice.recommendation import advise as recommend

    try:
        advice = recommend(
            _model(options.model),
            **options.settings,
        )
    except NoPlanFitsError as error:
        return Answer(text=str(error), data={"fits": False, "reason": str(error)}, status=NO)
    if options.output:
        advice.save(options.output)
    return Answer(text=str(advice), data=json.loads(advice.as_json()))


def estimate(options: Namespace) -> Answer:
    """The estimate of a plan."""
    value = _estimate(options.model, options)
    return Answer(text=_estimated(value), data=_plain(value))


def fits(options: Namespace) -> Answer:
    """Whether a plan fits with the required probability. The status is 1 if it does not."""
    source = Path(options.source)
    if source.suffix in _FILES and not (source.suffix == ".json" and options.settings.get("library")):
        values = _of_file(source, options)
    else:
        values = {options.source: _estimate(options.source, options)}
    least = options.settings.get("min_fit_probability", 0.95)
    lines = [f"{name}: {_verdict(value, least)}" for name, value in values.items()]
    all_fit = all(_fits(value, least) for value in values.values())
    data = [
        {"name": name, "fits": _fits(value, least), "fit_probability": value.fit_probability, "estimate": _plain(value)}
        for name, value in values.items()
    ]
    return Answer(text="\n".join(lines), data={"fits": all_fit, "jobs": data}, status=YES if all_fit else NO)


def check(options: Namespace) -> Answer:
    """The findings in scripts, cells and recipes. The status is 1 with an error among them."""
    reports = [_report(Path(path)) for path in options.paths]
    has_error = any(report.of("error") for report in reports)
    return Answer(
        text="\n\n".join(map(str, reports)),
        data=[json.loads(report.to_json()) for report in reports],
        status=NO if has_error else YES,
    )


def profile(options: Namespace) -> Answer:
    """The profile of a configuration's model. The status is 1 with a verdict against it."""
    from smp_advisor.profiling import profile as measure

    result = measure(_read_config(options.config), **options.settings)
    return Answer(text=str(result), data=result.as_dict(), status=NO if result.verdicts else YES)


def prove(options: Namespace) -> Answer:
    """The proof of an adaptation. The status is 1 without one."""
    from smp_advisor.proving import prove as run_both

    plan = None if options.advice is None else _advice(Path(options.advice)).plan
    proof = run_both(
        Path(options.original), Path(options.adapted), plan,
        library=options.library, root=options.root, arguments=shlex.split(options.arguments),
    )  # fmt: skip
    return Answer(text=str(proof), data=asdict(proof), status=YES if proof.proven else NO)


def export(options: Namespace) -> Answer:
    """The code of a saved advice."""
    from smp_advisor.advice.storage import write_text

    code = exported(_advice(Path(options.advice)), options.what, options.sdk)
    if not options.output:
        return Answer(text=code, data={"what": options.what, "code": code})
    write_text(code if code.endswith("\n") else f"{code}\n", options.output)
    return Answer(text=f"Wrote {options.output}.", data={"what": options.what, "file": options.output})


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


def _estimate(model: str, options: Namespace) -> Estimate:
    """Estimate of the plan of the options."""
    from smp_advisor.advice.model_input import read_model
    from smp_advisor.advice.request import job_of, sort_settings
    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.costs.evaluate import estimate as estimated
    from smp_advisor.libraries.library import get_library, require_library
    from smp_advisor.libraries.plan import Plan

    values = dict(options.settings)
    instance, library, count = (values.pop(name, None) for name in ("cluster", "library", "instance_count"))
    if not isinstance(instance, str) or not library:
        raise AdvisorError("A plan requires --instance and --library; its other settings have defaults.")
    require_library(library)
    if isinstance(count, str):
        raise AdvisorError("A plan requires a number of instances: --count 2.")
    values.pop("min_fit_probability", None)
    settings, shape, fields = sort_settings(values)
    plan = Plan(library=library, **fields)
    own = {"precision": plan.precision, "attention": get_library(options.library).default_attention}
    job = job_of(None, own | settings)
    workload = read_model(
        _model(model), sequence_length=job.sequence_length, shape=shape, job=job, library=plan.library
    )
    return estimated(workload, Cluster(instance, count or 1), job, plan)


def _of_file(path: Path, options: Namespace) -> dict[str, Estimate]:
    """Estimates of a saved advice, or of the jobs of a recipe or cell."""
    from smp_advisor.advice.model_input import read_model
    from smp_advisor.advice.request import job_of
    from smp_advisor.costs.evaluate import estimate as estimated
    from smp_advisor.estimators import check_estimator

    if _is_saved(path):
        advice = _advice(path)
        return {str(path): estimated(advice.model, advice.cluster, advice.job, advice.plan)}
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


def _fits(value: Estimate, least: float) -> bool:
    return value.fit_probability >= least and value.host_memory_fits


def _verdict(value: Estimate, least: float) -> str:
    words = "fits" if _fits(value, least) else "does not fit" if value.fit_probability < 0.5 else "may not fit"
    return f"{words}: {_memory(value)}, {100 * least:g} % required."


def _memory(value: Estimate) -> str:
    share = 100 * value.fit_probability
    return f"{value.needed_gib:,.1f} of {value.usable_gpu_memory_gib:.1f} GiB per GPU, {share:.3g} % likely"


def _estimated(value: Estimate) -> str:
    from smp_advisor.wording import run_cost, run_time, step_time, token_rate

    lines = [
        f"Plan: {value.plan}",
        f"Memory: {_memory(value)} to fit",
        f"Step: {step_time(value)}, {token_rate(value)}",
    ]
    if value.days is not None:
        lines.append(f"Run: {', '.join(filter(None, (run_time(value), run_cost(value))))}")
    return "\n".join([*lines, *(f"Assumed: {text}" for text in value.assumptions)])


def _plain(value: object) -> Any:
    from smp_advisor.advice.storage.plain import plain

    return plain(value)
