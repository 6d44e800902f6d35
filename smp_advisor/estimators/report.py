"""Report of an estimator check: findings, the configuration that was read, its comparison with a recommended plan."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from smp_advisor.costs.wording import fit, gib
from smp_advisor.errors import AdvisorError, NoPlanFitsError
from smp_advisor.estimators.readback import ReadBack
from smp_advisor.libraries.schema import schema
from smp_advisor.review.findings.report import Report
from smp_advisor.session.written import call_of

if TYPE_CHECKING:
    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.core.sheet import State
    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.libraries.plan import Plan
    from smp_advisor.review.findings.page import Verdict
    from smp_advisor.session import Advice
    from smp_advisor.workload.job import Job
    from smp_advisor.workload.model import Model


REQUIRED = 0.95
"""Probability of the fit from which a job fits."""
MEMORY = "EST508"
"""The finding about the memory of a plan."""
_OUT_OF_MEMORY = "This job would run out of memory in its first steps."


def _verdict(estimate: Estimate) -> tuple[State, str]:
    if not estimate.fits:
        return "over", "Does not fit"
    return ("fits", "Fits") if estimate.fit_probability >= REQUIRED else ("risk", "At risk")


def _described(reading: Reading) -> str:
    if reading.plan is None:
        return f"{reading.title}: no plan can be read from its settings."
    settings = reading.plan.parameters | reading.plan.hyperparameters
    for name, value in settings.items():
        # Flags of scripts are 1 and 0.
        if isinstance(value, int) and value in (0, 1) and isinstance(getattr(reading.plan, name, None), bool):
            settings[name] = bool(value)
    words = ", ".join(f"{name}={value!r}" for name, value in settings.items())
    return f"{reading.title} is {schema(reading.plan.library).name} {reading.plan.version}: {words}."


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading(ReadBack):
    """One job in the text, and its configuration."""

    title: str
    """``PyTorch(...)``."""
    form: str
    """``estimator``, ``model trainer``, ``parameters``, ``recipe`` or ``request``."""
    line: int
    library: str | None
    estimate: Estimate | None
    """The estimate of the plan, if the model and the cluster are known."""
    checkpointed: Estimate | None = None
    """The estimate with activation checkpointing, if the text does not set it and the plan does not fit without it."""


@dataclass(frozen=True, slots=True, repr=False)
class EstimatorReport(Report):
    """Findings in the order of the text, the plan, and the corrected text."""

    readings: tuple[Reading, ...] = ()
    text: str = field(default="", repr=False)
    """The text as it was read."""
    corrected: str = field(default="", repr=False)
    """The text with every safe change; the original text if there is none."""
    mended: Reading | None = None
    """Configuration of the corrected text, if it has changes."""

    @property
    def main(self) -> Reading | None:
        """The job of the report: the first one with a plan, else the first."""
        return next((reading for reading in self.readings if reading.plan is not None), next(iter(self.readings), None))

    @property
    def plan(self) -> Plan | None:
        """The plan; None if it is not known, with the reason in `main.open`."""
        return self.main.plan if self.main is not None else None

    @property
    def cluster(self) -> Cluster | None:
        """Instances of the job."""
        return self.main.cluster if self.main is not None else None

    @property
    def job(self) -> Job | None:
        """Sequence length and precision."""
        return self.main.job if self.main is not None else None

    @property
    def model(self) -> Model | None:
        """The model, as passed or with the shape in the hyperparameters."""
        return self.main.model if self.main is not None else None

    def recommended(self, model: Any = None, *, hold_global_batch: bool = True, **settings: Any) -> Advice:
        """Return the advice for the model, cluster and job of this plan; `Advice.compare` shows the plan next to it.

        Parameters
        ----------
        model
            As for `advise`, if the text does not determine it; otherwise the model of the report.
        hold_global_batch
            Whether the recommendation keeps this plan's global batch, and so the learning rate. If not, or if no plan
            fits with it, the search chooses another batch.
        **settings
            For `advise`: `objective`, `min_fit_probability`, `library` (by default that of the plan), ...

        Raises
        ------
        AdvisorError
            If the plan, its cluster or the model is not known, or no plan fits.
        """
        from smp_advisor.libraries.groups import global_batch_size
        from smp_advisor.session.advise import advise

        main = self.main
        if (main is None or main.plan is None) and self.mended is not None:
            main = self.mended
        if main is None or main.plan is None or main.cluster is None or main.job is None:
            reasons = main.open if main is not None and main.plan is None else ()
            raise AdvisorError(reasons[0] if reasons else "The text has no plan on a known cluster to compare with.")
        if model is None and main.model is None:
            raise AdvisorError("The text does not describe the model: pass one, for example recommended('10B').")
        settings = {"library": main.plan.library, **settings}
        accumulation = getattr(main.plan, "gradient_accumulation_steps", None)
        if main.form == "recipe" and accumulation == 1 and settings["library"] == main.plan.library:
            # Recipes with such a plan have no setting for accumulation.
            settings = {"gradient_accumulation_steps": 1, **settings}
        batch = global_batch_size(main.plan, main.cluster) if hold_global_batch else None
        call = partial(advise, main.model if model is None else model, main.cluster, **settings)
        try:
            return call(job=replace(main.job, global_batch_size=batch))
        except NoPlanFitsError:
            if batch is None:
                raise
            return call(job=main.job)

    @property
    def diff(self) -> str:
        """Unified diff from the text to the corrected text; empty if nothing changes."""
        if self.corrected == self.text:
            return ""
        lines = difflib.unified_diff(
            self.text.splitlines(keepends=True),
            self.corrected.splitlines(keepends=True),
            f"a/{self.path}",
            f"b/{self.path}",
        )
        return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)

    @property
    def texts(self) -> tuple[str, str]:
        """The text and the corrected text."""
        return self.text, self.corrected

    @property
    def verdict(self) -> Verdict:
        """The verdict of the job's memory, if its plan, model and cluster are known, else that of the findings."""
        main, base = self.main, super(EstimatorReport, self).verdict
        if main is None:
            return base
        about = [main.title, "" if main.plan is None else f"{schema(main.plan.library).name} {main.plan.version}"]
        about += ["" if main.model is None else main.model.summary.partition("; ")[2] or main.model.summary]
        about += ["" if main.job is None else f"{main.job.sequence_length:,} tokens"]
        about += ["" if main.cluster is None else f"{main.cluster.nodes} × {main.cluster.instance.name}"]
        base = replace(base, about=tuple(filter(None, about)))
        if main.estimate is None:
            reason = f"Memory is not known: {main.open[0]}" if main.open else base.sentence
            state: State = "none" if base.state == "fits" else base.state
            return replace(base, sentence=reason, state=state, call=self._call(hold=False))
        # As the text states, then with the one change that would help, then with all fixes.
        now, needed = main.estimate, main.checkpointed
        state, words = _verdict(now)
        text = _OUT_OF_MEMORY if state == "over" else ""
        if state == "over" and main.assumes_length and main.job is not None and not self._lacks_memory:
            state, words = "risk", "May not fit"
            text = f"It does not fit with {main.job.sequence_length:,} tokens; the text sets no length."
        if needed is not None:
            fits = _verdict(needed)[0] == "fits"
            if fits and not self._lacks_memory:  # another script may set it
                state, words, text = "risk", "Depends on the script", ""
            size = f"{gib(needed.needed_gib)}: {'fits' if fits else 'still too big'}"
            text = f"{text} With activation checkpointing, which the text does not set: {size}."
        if self.mended is not None and self.mended.estimate is not None and state != "fits":
            after = self.mended.estimate
            text += f" With the fixes: {gib(after.needed_gib)}, {_verdict(after)[1].lower()}." * (after != now)
        reference = next((sentence for sentence in main.open if "reference model" in sentence), "")
        if reference and state == "fits":
            state, words, text = "risk", "Depends on the reference model", reference
        # A job that fails for another reason needs no memory.
        errors = [finding for finding in self.of("error") if finding.id != MEMORY]
        if errors and state != "over":
            joined = "but" if now.fits else "and"
            text = f"Its memory {fit(now, REQUIRED)}, {joined} it has an error: {errors[0].message}"
            state, words = "over", "Has an error"
        return replace(
            base,
            state=state,
            words=words,
            sentence=text.strip(),
            memory=(now.needed_gib, now.usable_gpu_memory_gib),
            call=self._call(hold=state != "over"),
        )

    @property
    def _lacks_memory(self) -> bool:
        """Whether the plan certainly does not fit, whatever the text leaves open."""
        return any(finding.id == MEMORY for finding in self.of("error"))

    def _call(self, *, hold: bool) -> str:
        """Python of the advice for this job, with its global batch if `hold`."""
        from smp_advisor.libraries.groups import global_batch_size

        main = self.main
        if main is None or main.model is None or main.cluster is None or main.job is None:
            return ""
        settings: dict[str, Any] = {} if main.library is None else {"library": main.library}
        if hold and main.plan is not None:
            settings["global_batch_size"] = global_batch_size(main.plan, main.cluster)
        return call_of(main.model, main.cluster, main.job, **settings)

    @property
    def introduction(self) -> list[str]:
        """The configuration of each job."""
        sentences = []
        for reading in self.readings:
            sentences.append(f"Line {reading.line}: {_described(reading)}")
            sentences += [f"  On {reading.cluster.summary}."] if reading.cluster is not None else []
            sentences += [f"  Inferred: {sentence}" for sentence in reading.inferred]
            if (now := reading.estimate) is not None:
                needed = f"it needs {gib(now.needed_gib)} per GPU: it {fit(now, REQUIRED)}."
                sentences.append(f"  By the memory model, {needed}")
            if (now := reading.checkpointed) is not None:
                needed = f"it needs {gib(now.needed_gib)}: it {fit(now, REQUIRED)}."
                sentences.append(f"  With activation checkpointing, which the text does not set, {needed}")
        return sentences

    @property
    def outcome(self) -> list[str]:
        """The configuration of the corrected text, and errors that only its author can correct."""
        if self.mended is None:
            return []
        left = [finding for finding in self.of("error") if finding.fix is None]
        sentences = [f"Not corrected automatically ({finding.id}): {finding.message}" for finding in left]
        return sentences if left and self.mended.plan is None else [f"Corrected: {_described(self.mended)}", *sentences]
