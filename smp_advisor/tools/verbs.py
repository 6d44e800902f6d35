"""The verbs of the command: each answers one question about a request."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smp_advisor.advice.clusters import largest
from smp_advisor.advice.description import read_model
from smp_advisor.advice.request import JOB_FIELDS, SETTINGS, job_of, meant_places, question_of, sort_settings, suited
from smp_advisor.arguments import LIMITS, options_of, without_python
from smp_advisor.cluster import Cluster
from smp_advisor.core.files import LOG, MODEL, NOTEBOOK, json_values, read_text
from smp_advisor.core.words import plain, plural
from smp_advisor.costs.evaluate import estimate as evaluate
from smp_advisor.costs.wording import fits as is_fitting
from smp_advisor.errors import AdvisorError, NoPlanFitsError, NoScriptError
from smp_advisor.estimators import check_estimator
from smp_advisor.estimators import watch as attach
from smp_advisor.estimators.check import looks_like_estimator
from smp_advisor.estimators.readback import MODEL_IS_MISSING
from smp_advisor.estimators.report import EstimatorReport
from smp_advisor.libraries.library import get_library, plan_fields, require_library
from smp_advisor.libraries.plan import Plan
from smp_advisor.libraries.version import require_supported_instance
from smp_advisor.review.reading.module import shared_trees
from smp_advisor.review.scripts import check_script
from smp_advisor.review.scripts.command.output import rendered
from smp_advisor.review.scripts.command.project import Project as CheckedProject
from smp_advisor.review.scripts.command.project import checked as checked_project
from smp_advisor.runs.failures import read_failure
from smp_advisor.search.clusters import best_on
from smp_advisor.session import Advice
from smp_advisor.session.advise import advise as recommend
from smp_advisor.session.cells import KINDS, cells_of
from smp_advisor.session.files import load
from smp_advisor.session.options import named_texts
from smp_advisor.session.project import Project, project_of
from smp_advisor.session.written import write_text
from smp_advisor.tools import answers
from smp_advisor.tools.answers import NO, WRONG, YES, Answer
from smp_advisor.workload.calibration import Calibration

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Collection, Mapping

    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model


REQUEST = {entry.name for entry in options_of("request")}
"""Keywords of a request that are settings of no job, shape or plan."""
_FILES = {".json", ".yaml", ".yml", ".toml", ".py", ".ipynb"}
"""Suffixes of saved advice, recipes and cells."""
EXPORTS = tuple(kind for kind in KINDS if kind not in ("rehearsal", "probe"))
"""Kinds of code without those that notebooks alone run."""


@dataclass(frozen=True, kw_only=True)
class _Query:
    """A request with what the project of its folder adds."""

    settings: dict[str, Any]
    notes: tuple[str, ...]
    """How the request was read, and what of the project was used."""
    project: Project

    def noted(self, answer: Answer) -> Answer:
        """Return the answer with the notes."""
        if not self.notes:
            return answer
        *lines, last = answer.text.splitlines()
        notes = " ".join(self.notes)
        lines += [f"Project    {notes}"] if last.startswith("More ") else [f"{last} {notes}"]
        return replace(answer, text="\n".join(lines), data={**answer.data, "notes": list(self.notes)})


def _folder(options: Namespace) -> Path:
    return getattr(options, "folder", None) or Path.cwd()


def _query(options: Namespace) -> _Query:
    project = project_of(_folder(options))
    settings, read_as = _with_instance(options.settings, project)
    settings, used = project.applied(settings)
    if settings.get("cluster") is None:
        raise AdvisorError("The answer depends on the cluster: name an instance, for example ml.p4d.24xlarge, or any.")
    return _Query(settings=settings, notes=tuple(filter(None, (read_as, used))), project=project)


def _recommended(model: str, query: _Query, options: Namespace, *, on_any: bool = False) -> Advice | NoPlanFitsError:
    """Return the recommendation, or why there is none with the ways out that the policy allows; `on_any` waives it."""
    try:
        advice = recommend(_model(model), on_progress=getattr(options, "progress", None), **query.settings)
    except NoPlanFitsError as error:
        ways = error.ways_out
        allowed = () if ways is None else tuple(way for way in ways.ways if query.project.allows(way.size.cluster))
        if ways is None or allowed == ways.ways:
            return error
        return NoPlanFitsError(f"{str(error).partition('; changes that fit')[0]}.", replace(ways, ways=allowed))
    if on_any:
        return advice
    if advice.sizes is not None and not query.project.allows(advice.cluster):
        allowed = tuple(size for size in advice.sizes.sizes if query.project.allows(size.cluster))
        chosen = replace(advice.sizes, sizes=allowed, requested=None).chosen
        if chosen is not None:
            settings = {"cluster": chosen.cluster.instance, "instance_count": chosen.cluster.nodes}
            return recommend(_model(model), **{**query.settings, **settings})
    query.project.require(advice.cluster)
    return advice


def advise(options: Namespace) -> Answer:
    """Return a recommendation. The status is 1 if no plan fits."""
    query = _query(options)
    advice = _recommended(options.model, query, options)
    if isinstance(advice, NoPlanFitsError):
        return query.noted(answers.refused(str(advice), advice.ways_out))
    if options.output:
        advice.save(options.output)
    answer = answers.advised(advice)
    details = {
        **answer.details,
        "changes": lambda: _changes(advice),
        "largest": lambda: asdict(largest(advice.request, advice.cluster, advice.plan)),
    }
    answer = query.noted(replace(answer, details=details))
    return replace(answer, text="\n".join([str(advice), *query.notes])) if options.full else answer


def estimate(options: Namespace) -> Answer:
    """Return the estimate of one plan. The status is 1 if it does not fit."""
    query = _query(options)
    of_cluster = REQUEST - {"cluster", "instance_count", "library", "min_fit_probability"}
    _require_used("estimate", options, SETTINGS - of_cluster | {"cluster"}, "of one plan", model=True)
    model, cluster, job, value, unsure = _estimate(options.model, query.settings)
    query.project.require(cluster)
    query = replace(query, notes=(*query.notes, *filter(None, [unsure])))
    return query.noted(answers.estimated(model, cluster, job, value, query.settings.get("min_fit_probability") or 0.95))


def fits(options: Namespace) -> Answer:
    """Whether a model fits on a cluster with any plan, or a file with its own. The status is 1 if it does not."""
    source = Path(options.source)
    if source.suffix in _FILES and not (source.suffix == ".json" and options.settings.get("cluster")):
        return _file_fits(source, options)
    query = _query(options)
    advice = _recommended(options.source, query, options)
    if isinstance(advice, NoScriptError):  # the question is one of memory
        query = replace(query, notes=(*query.notes, str(advice)))
        advice = Advice(advice.recommendation)
    if isinstance(advice, NoPlanFitsError):
        return query.noted(answers.not_fitting(str(advice), advice.ways_out))
    return query.noted(answers.fitting(advice, _changes(advice)))


def compare(options: Namespace) -> Answer:
    """Plans, libraries or clusters next to each other. The status is 1 if none of them fits."""
    query = _query(options)
    if options.plans or options.libraries:
        numbers = [{"instance_count": count} for count in options.counts] or [{}]
        rows = [_row(options, query, {"library": name} | of) for name in options.libraries for of in numbers]
        rows += [_row(options, query, {**plan, **of}, single=True) for plan in options.plans for of in numbers]
        return query.noted(answers.compared(rows))
    numbers = [{"instance_count": count} for count in sorted(options.counts, reverse=True)] or [{}]
    for number in numbers:  # a larger number may not fit where a smaller one does
        base = replace(query, settings=query.settings | number)
        advice = _recommended(options.model, base, options, on_any=True)
        if not isinstance(advice, NoPlanFitsError):
            break
    if isinstance(advice, NoPlanFitsError):
        return query.noted(answers.refused(str(advice), advice.ways_out))
    sizes = advice.sizes
    if sizes is None or options.counts:
        limits = {name: query.settings.get(name) for name in LIMITS}
        sizes = advice.compare_clusters(
            query.settings["cluster"],
            options.counts or None,
            on_progress=getattr(options, "progress", None),
            **limits,
        )
    if options.counts:  # none of them was there before
        sizes = replace(sizes, requested=None)
    permitted = replace(sizes, sizes=tuple(size for size in sizes.sizes if query.project.allows(size.cluster)))
    if not permitted.sizes:
        query.project.require(advice.cluster)
    return query.noted(answers.compared(answers.sizes_data(permitted), " ".join(permitted.lines())))


def _row(options: Namespace, query: _Query, plan: Mapping[str, Any], *, single: bool = False) -> dict[str, Any]:
    settings = {**query.settings, **plan}
    name = ", ".join(f"{key}={value}" for key, value in plan.items())
    try:
        if single:
            model, _, _, value, _ = _estimate(options.model, settings)
        else:
            advice = _recommended(options.model, replace(query, settings=settings), options)
            if isinstance(advice, NoPlanFitsError):
                return {"plan": name, "fits": False, "reason": str(advice)}
            model, value = advice.model, advice.estimate
    except AdvisorError as error:
        return {"plan": name, "fits": False, "error": str(error)}
    words = {} if single else {"settings": answers.settings_of(value.plan)}
    return {
        "plan": name,
        "model": model.name,
        **answers.figures(model, value, settings.get("min_fit_probability") or 0.95),
        **words,
    }


def _with_instance(settings: Mapping[str, Any], project: Project) -> tuple[dict[str, Any], str]:
    """Return the settings with the names of instances as they were meant, and a note on what is not literally there."""
    clusters = settings.get("cluster")
    if project.hardware.keys() & ({*clusters} if isinstance(clusters, list | tuple) else {clusters}):
        return dict(settings), ""
    place, count, notes = meant_places(clusters)
    if count is not None and settings.get("instance_count") not in (None, count):
        raise AdvisorError(f"{place} has two numbers of nodes: write --count only.")
    complete = {**settings, "cluster": list(place) if isinstance(place, tuple) else place}
    complete |= {"instance_count": count} if count is not None else {}
    return complete, f"{'; '.join(notes)}." if notes else ""


def _changes(advice: Advice) -> str:
    """Return the changes that end the fit, or do not: fewer nodes, a longer sequence, a technique less."""
    question, sentences = question_of(advice.request, advice.cluster), []
    nodes, length = advice.cluster.nodes // 2, 2 * advice.job.sequence_length
    if nodes:
        less = best_on(question, Cluster(advice.cluster.instance, nodes)).fits
        sentences.append(f"{plural(nodes, 'node')} {'is' if nodes == 1 else 'are'} {'also' if less else 'not'} enough")
    positions = advice.model.shape.max_positions
    if not advice.model.fixed_sequence_length and (not positions or length <= positions):
        longer = best_on(question.training(sequence_length=length), advice.cluster).fits
        sentences.append(f"sequences of {length:,} tokens {'fit, too' if longer else 'do not fit'}")
    text = "; ".join(sentences)
    return " ".join(filter(None, (f"{text[:1].upper()}{text[1:]}." if text else "", answers.needed(advice))))


def check(options: Namespace) -> Answer:
    """Return the findings in scripts, cells and recipes. The status is 1 with an error among them."""
    with shared_trees():
        if options.texts:
            jobs_in = [(text, _job_report(text, options)) for text in options.texts]
            read = tuple(check_script(text) if job is None else job for text, job in jobs_in)
            project = CheckedProject(reports=read, repeated=(0,))
        else:
            project = checked_project(options, partial(_job_report, options=options))
    alone = len(options.paths) < 2 and not any(map(os.path.isdir, options.paths))
    if project.problems and not project.reports and alone and options.format in ("text", "json"):
        raise AdvisorError(project.problems[0])
    jobs = [report for report in project.reports if isinstance(report, EstimatorReport)]
    if not jobs:
        _require_used("check", options, (), "of a script")
    more = answers.remedied(jobs[-1]) if jobs and project.reports[-1] is jobs[-1] else {}
    answer = answers.checked((*project.reports, *project.modules), **more)
    text = rendered(project, options.format, single=alone)
    if options.format == "text" and "gain" in more:
        text = f"{text}\n\n{more['gain']}"
    if options.output is not None:
        write_text(text if text.endswith("\n") else f"{text}\n", options.output)
        text = ""
    if options.format in ("text", "json") or options.output is not None:
        for problem in project.problems:
            print(plain(problem), file=sys.stderr)  # noqa: T201 - a command line program
    warned = options.strict and any(report.of("warning") for report in project.reports)
    status = WRONG if project.problems else NO if warned else answer.status
    return replace(answer, text=text, status=status)


def why(options: Namespace) -> Answer:
    """Return why a job failed. The status is 1 if nothing in the log shows it."""
    text = options.text
    if options.log is not None:
        text = read_text(Path(options.log), LOG, AdvisorError, decoding="replace")
    advice = None if options.advice is None else _advice(Path(options.advice))
    failure = read_failure(text, plan=None if advice is None else advice.plan)
    if failure is None:
        return answers.unknown_failure()
    return answers.failed(failure, advice.after(failure) if advice is not None and failure.of_plan else None)


def profile(options: Namespace) -> Answer:
    """Return the profile of a configuration's model. The status is 1 with a verdict against it."""
    from smp_advisor.profiling import profile as measure

    result = measure(_read_config(options.config), on_progress=getattr(options, "progress", None), **options.settings)
    lines = str(result).splitlines()
    return Answer(
        text=str(result),
        data={"answer": " ".join(" ".join(lines[:2]).split()), "verdicts": [*result.verdicts], "summary": lines[2:]},
        full=result.as_dict,
        status=NO if result.verdicts else YES,
    )


def rehearse(options: Namespace) -> Answer:
    """Return the rehearsal of a training script. The status is 1 with a finding, or if it stopped."""
    from smp_advisor.rehearsal import rehearse as run

    job: Any = {"hyperparameters": named_texts(options.hyperparameter, "--hyperparameter")}
    if options.start:
        job["command"] = options.start
    if options.job is not None:
        source = Path(options.job)
        job = _advice(source) if source.suffix == ".json" else str(source)
    if job == {"hyperparameters": {}}:
        job = None
    done = run(
        Path(options.script), job, options.processes, named_texts(options.data, "--data") or None,
        None if options.compare is None else Path(options.compare), allow_unconfined=options.allow_unconfined,
        environment=getattr(options, "environment", None),
        on_progress=getattr(options, "progress", None),
    )  # fmt: skip
    return Answer(
        text=str(done),
        data={"answer": done.summary, "findings": [str(entry) for entry in done.findings], "outcome": done.outcome},
        full=done.as_dict,
        status=YES if done.ok else NO,
    )


def export(options: Namespace) -> Answer:
    """Return the code of a saved advice, or of the recommendation for a request. The status is 1 if no plan fits."""
    source = Path(options.advice)
    if source.suffix == ".json" and options.settings.get("cluster") is None:
        if options.settings:
            name = next(iter(options.settings)).replace("_", "-")
            raise AdvisorError(f"A saved advice has its own request, so export has no option --{name} for it.")
        project, advice, notes = project_of(_folder(options)), _advice(source), None
        project.require(advice.cluster)
    else:
        notes = _query(options)
        project, recommendation = notes.project, _recommended(options.advice, notes, options)
        if isinstance(recommendation, NoPlanFitsError):
            return notes.noted(answers.refused(str(recommendation), recommendation.ways_out))
        advice = recommendation
    with_image = options.image_uri is not None or options.what in ("job", "permissions", "kubernetes")
    code = _code(advice, options.what, options.sdk, project.job_options(options.image_uri) if with_image else {})
    files = advice.script_files() if options.what == "script" else {}
    if options.output:
        beside = {str(Path(options.output).with_name(name)): text for name, text in files.items()}
        for name, text in {options.output: code, **beside}.items():
            write_text(text if text.endswith("\n") else f"{text}\n", name)
        written = f"Wrote {', '.join((options.output, *beside))}."
    text = written if options.output else code
    answer = answers.exported(text, code, advice, options.what, options.output, files)
    return answer if notes is None or not options.output else notes.noted(answer)


def _code(advice: Advice, what: str, sdk: str, job: Mapping[str, Any]) -> str:
    if sdk != "auto" and what not in ("job", "permissions"):
        raise AdvisorError(f"--sdk changes the cells job and permissions, not {what}: leave it out.")
    if what not in ("job", "permissions", "kubernetes") and "image_uri" in job:
        raise AdvisorError(
            f"--image-uri changes the code of job, permissions and kubernetes, not of {what}: leave it out."
        )
    if what not in ("job", "permissions"):
        job = {name: value for name, value in job.items() if name == "image_uri"}
    sources = cells_of(advice, advice.plan, what, sdk, **job)
    text = sources[0 if what == "script" else -1] if sources else ""
    return text.partition("\n")[2] if text.startswith("%%writefile") else text


def watch(options: Namespace) -> Answer:
    """Return a run next to its prediction. The status is 1 with an alarm, or if the run failed."""
    advice = None if options.advice is None else _advice(Path(options.advice))
    run = attach(options.run, advice)
    if not options.once:
        run.wait(lambda watched: print(watched.headline, file=sys.stderr, flush=True))  # noqa: T201
    learned = []
    if options.learn:
        calibration = run.calibrated().job.calibration
        if calibration is not None:
            runs = Calibration(runs=calibration.runs[-1:]).share(options.learn)
            learned.append(f"{options.learn} has {plural(runs, 'run')}.")
    text = without_python("\n".join([str(run), *(f"  {line}" for line in learned)]))
    data = {
        "answer": run.headline,
        "status": run.last.status or "Log",
        "phases": list(run.transitions),
        "figures": {row.label: [row.measured, row.predicted] for row in run.figures()},
        "alarms": [without_python(line) for line in run.alarms],
        "explained": [without_python(line) for line in run.conclusions],
        "notes": [*run.notes, *filter(None, [run.problem]), *learned],
        "requests": run.requests,
    }
    return Answer(
        text=text,
        data=data,
        full=lambda: data,
        status=NO if run.alarms or run.failed else YES,
    )


VERBS: Mapping[str, Callable[[Namespace], Answer]] = {
    "advise": advise,
    "estimate": estimate,
    "fits": fits,
    "check": check,
    "why": why,
    "compare": compare,
    "profile": profile,
    "rehearse": rehearse,
    "export": export,
    "watch": watch,
}


def _model(text: str) -> Any:
    return _read_config(text) if Path(text).suffix == ".json" else text


def _read_config(path: str) -> Any:
    text = read_text(Path(path), MODEL, AdvisorError)
    try:
        config = json_values(text)
    except ValueError:
        config = None
    if not isinstance(config, dict):
        raise AdvisorError(f"{path!r:.200} is no JSON of a configuration.")
    return config


def _estimate(model: str, settings: Mapping[str, Any]) -> tuple[Model, Cluster, Job, Estimate, str]:
    """Return the workload, the cluster, the job and its estimate, and what to check of library and instance."""
    values = dict(settings)
    instance, library, count = (values.pop(name, None) for name in ("cluster", "library", "instance_count"))
    values = {name: value for name, value in values.items() if name not in REQUEST}
    if isinstance(instance, list) or instance == "any" or not library or library == "auto":
        raise AdvisorError("A plan requires one instance and a library, fsdp for example; the rest has defaults.")
    require_library(library)
    if isinstance(count, str):
        raise AdvisorError("A plan requires a number of instances: --count 2.")
    job_settings, shape, fields = sort_settings(values)
    plan = Plan(library=library, **fields)
    cluster = Cluster(instance, count or 1)
    unsure = require_supported_instance(library, cluster.instance)
    precision = "fp16" if plan.precision == "bf16" and not cluster.instance.bf16 else plan.precision
    if "precision" in plan_fields(library):
        plan = replace(plan, precision=job_settings.get("precision", precision))
    own = {"precision": precision, "attention": get_library(library).default_attention}
    job = job_of(None, own | job_settings)
    described = _model(model)
    workload = read_model(described, sequence_length=job.sequence_length, shape=shape, job=job, library=plan.library)
    job = suited(job, described, workload, has_length="sequence_length" in job_settings)
    return workload, cluster, job, evaluate(workload, cluster, job, plan), unsure


def _file_fits(source: Path, options: Namespace) -> Answer:
    values, least = _of_file(source, options), options.settings.get("min_fit_probability") or 0.95
    lines = []
    for name, (_, value) in values.items():
        unfit = "does not fit" if value.fit_probability < 0.5 else "may not fit"
        words = "fits" if is_fitting(value, least) else unfit
        lines.append(f"{name}: {words}: {answers.memory_words(value, least)}.")
    data = {
        "fits": all(is_fitting(value, least) for _, value in values.values()),
        "jobs": [{"name": name, **answers.figures(model, value, least)} for name, (model, value) in values.items()],
    }
    return Answer(
        text="\n".join(lines),
        data={"answer": " ".join(lines), **data},
        full=lambda: data,
        status=YES if data["fits"] else NO,
    )


def _require_used(verb: str, options: Namespace, used: Collection[str], what: str, *, model: bool = False) -> None:
    """Refuse options that would not change an answer."""
    unused = [name for name, value in options.settings.items() if name not in used and value is not None]
    unused += ["model"] if getattr(options, "model", None) and not model else []
    if unused:
        raise AdvisorError(f"{verb} {what} has no use for --{unused[0].replace('_', '-')}: leave it out.")


def _of_file(path: Path, options: Namespace) -> dict[str, tuple[Model, Estimate]]:
    """Return the models and estimates of a saved advice, or of the jobs of a recipe or cell."""
    if '"format": "smp-advisor"' in read_text(path, NOTEBOOK, AdvisorError, decoding="replace")[:200]:
        advice, changes = _advice(path), dict(options.settings)
        _require_used("fits", options, JOB_FIELDS | {"min_fit_probability"}, "of a saved advice")
        changes.pop("min_fit_probability", None)
        job = replace(advice.job, **changes) if changes else advice.job
        return {str(path): (advice.model, evaluate(advice.model, advice.cluster, job, advice.plan))}
    _require_used("fits", options, {"min_fit_probability", "cluster"}, "of a file with its own job", model=True)
    length, least = job_of(None, {}).sequence_length, options.settings.get("min_fit_probability", 0.95)
    model = None if options.model is None else read_model(_model(options.model), sequence_length=length, shape={})
    report = check_estimator(path, model=model, cluster=options.settings.get("cluster"), min_fit_probability=least)
    missing = []
    for reading in report.readings:
        if reading.estimate is None:
            parts = [reading.model or "its model is not in the text: pass --model", reading.plan or "it has no plan"]
            open_ = [sentence for sentence in reading.open if not sentence.endswith(MODEL_IS_MISSING)]
            reasons = " ".join(part for part in (*parts, *open_) if isinstance(part, str))
            reasons = reasons or "its cluster is unknown: pass --instance."
            missing.append(f"{reading.title} in line {reading.line}: {reasons}")
    if missing or not report.readings:
        raise AdvisorError(f"{path} has a job that cannot be estimated: {'; '.join(missing) or 'no job was found'}")
    return {
        f"{path}:{reading.line} {reading.title}": (reading.model, reading.estimate)
        for reading in report.readings
        if reading.model is not None and reading.estimate is not None
    }


def _advice(path: Path) -> Advice:
    value = load(path)
    if not isinstance(value, Advice):
        raise AdvisorError(f"{path} holds a {type(value).__name__}, and an advice is required.")
    return value


_STARTS_A_JOB = re.compile(r"sagemaker|smdistributed|TrainingJobName", re.IGNORECASE)


def _job_report(source: Path | str, options: Namespace) -> EstimatorReport | None:
    """Return the report on a job; None for a training script."""
    is_python = isinstance(source, str) or source.suffix in {".py", ".pyw", ".ipynb"}
    if is_python and (options.plan or options.library):
        return None
    # Of the files of a folder, only those with a word of a job are read as one.
    if not isinstance(source, str) and options.paths and str(source) not in options.paths:
        text = read_text(source, NOTEBOOK, AdvisorError, decoding="replace")
        if is_python and _STARTS_A_JOB.search(text) is None:
            return None
    if is_python and not looks_like_estimator(source):
        return None
    length = options.settings.get("sequence_length") or 2048
    model = None if not options.model else read_model(_model(options.model), sequence_length=length, shape={})
    settings, _ = _with_instance(options.settings, Project())
    return check_estimator(source, model=model, cluster=settings.get("cluster"))
