"""Advice with a plan on screen: one state for Python, the views of a notebook and the magics."""

from __future__ import annotations

from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any

from smp_advisor.advice import clusters
from smp_advisor.advice.clusters import Largest, largest
from smp_advisor.advice.rank_map import RankTable, rank_map
from smp_advisor.advice.recommendation import Recommendation, recommend
from smp_advisor.advice.report import explained, ladder_of, plan_of, report
from smp_advisor.advice.request import repeated
from smp_advisor.arguments import brief, require_whole
from smp_advisor.arguments.signatures import checked_class
from smp_advisor.core.files import sentence
from smp_advisor.core.words import Sentence
from smp_advisor.costs import estimate as estimate_plan
from smp_advisor.costs.wording import fit, listed
from smp_advisor.errors import AdvisorError, PlanError, StorageError
from smp_advisor.libraries.plan import Plan
from smp_advisor.session import cells, control_state, jobs
from smp_advisor.session.comparison import Comparison, compare
from smp_advisor.session.control_state import ControlState, Entry, History, changed, pins_of
from smp_advisor.session.settings import label_of, require_name, value_text, with_labels

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping

    import pandas as pd

    from smp_advisor.advice.ladder import Ladder
    from smp_advisor.advice.learned import Summary
    from smp_advisor.advice.practices import Pitfall, Reference, Step
    from smp_advisor.advice.request import Request
    from smp_advisor.charts.chart import Chart
    from smp_advisor.cluster import Cluster
    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.libraries.library import Setting, Settings
    from smp_advisor.rehearsal import Rehearsal
    from smp_advisor.search.decision import Decision
    from smp_advisor.search.rank import Objective
    from smp_advisor.search.search import SearchResult
    from smp_advisor.search.sizes import ClusterSizes, Progress
    from smp_advisor.workload import Job, Model

    Observer = Callable[["Change"], None]

RECOMMENDED, ON_SCREEN = "Recommended", "On screen"

_NOT_WRITTEN = (".md", ".txt", ".htm", ".pdf")
"""Names of files for readers that are neither the stored form nor the page."""


@dataclass(frozen=True)
class Change:
    """A change of the plan on screen."""

    advice: Advice
    summary: str
    """The change with its effect on memory and throughput."""
    problem: str
    """Reason why the settings on screen cannot be combined; `advice.plan` is then the last valid plan."""


def _of(path: str) -> Any:
    """Return the property of a part of the advice: of its recommendation, or of the plan on screen."""
    return property(attrgetter(path))


@checked_class
class Advice:
    """A recommendation and the plan on screen, which are the same for Python, all views and the magics.

    `plan`, `estimate`, `job`, `steps`, `pitfalls`, `reference`, `because` and `warnings` are those of the plan on
    screen, at first the recommended one. The other attributes are those of the recommendation. A method that refuses
    raises a subclass of `AdvisorError`, whose sentence is the reason, and the advice stays as it is.

    Examples
    --------
    >>> import smp_advisor as smpa
    >>> advice = smpa.advise("1.3B", "ml.p4d.24xlarge", library="fsdp")
    >>> chosen = advice.plan
    >>> summary = advice.move(activation_checkpointing="each_block")  # a control of the page  # doctest: +SKIP
    >>> advice.plan = chosen  # or any plan of the library, or the row of an alternative
    >>> print(advice.compare(chosen).summary)
    The same settings.
    >>> _ = advice.undo(), advice.redo(), advice.reset()
    >>> advice.observe(lambda change: print(change.summary))  # called after every change, from wherever it comes
    >>> advice.recommended.plan == advice.plan
    True

    Notes
    -----
    For views and searches: `controls` is the state of the controls, `settle` shows another state, `renew` another
    recommendation. `turn` is the lock of all of them: messages of views may arrive in another thread.
    """

    def __init__(self, value: Recommendation, state: ControlState | None = None) -> None:
        self.turn = RLock()
        start = control_state.recommended(value)
        self._history = History(entries=(Entry(recommended=value, state=start, summary=RECOMMENDED),))
        if state is not None:
            self._history = self._history.entered(Entry(recommended=value, state=state, summary=state.summary))
        self._controls = state or start
        self._pins = pins_of(value)
        self._rehearsed: dict[Plan, str] = {}
        self._observers: list[Observer] = []
        self._explained: tuple[tuple[Recommendation, ControlState], Recommendation] = ((value, start), value)

    def __setattr__(self, name: str, value: Any) -> None:
        own = getattr(type(self), name, None)
        if isinstance(own, property) and own.fset is None:
            raise AdvisorError(f"advice.{name} follows from the plan and the workload: set advice.plan or a setting.")
        object.__setattr__(self, name, value)

    __hash__ = None  # type: ignore[assignment]  # equal by a value that changes

    def __eq__(self, value: object) -> bool:
        """Whether both have the same recommendation and plan on screen; history and pins may differ."""
        if not isinstance(value, Advice):
            return NotImplemented
        return self is value or self._value() == value._value()

    def _value(self) -> tuple[object, ...]:
        with self.turn:
            return self.recommended, self._controls.settings, self.plan, self.job

    def __getstate__(self) -> dict[str, Any]:
        # A copy has the same history, and its own lock and observers.
        return {name: value for name, value in vars(self).items() if name not in {"turn", "_observers"}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, turn=RLock(), _observers=[])

    @property
    def recommended(self) -> Recommendation:
        """The recommendation as a value, whatever is on screen."""
        return self._history.current.recommended

    @property
    def plan(self) -> Plan:
        """The plan on screen; the last valid one while its settings cannot be combined. Set it to show another."""
        return self._controls.plan

    @plan.setter
    def plan(self, plan: Plan | int) -> None:
        self.adopt(plan)

    # Of the recommendation, whatever is on screen.

    model: Model = _of("recommended.model")
    """Model of the request."""
    cluster: Cluster = _of("recommended.cluster")
    """Cluster of the plan. The objective ``cost`` may choose another cluster than the requested one."""
    request: Request = _of("recommended.request")
    """The request, which `change` and `again` search again."""
    decision: Decision = _of("recommended.decision")
    """How certain the choice is, and the reasons for its global batch."""
    library_because: str = _of("recommended.library_because")
    """The library with its status, and the reason for it, if the advisor chose it."""
    library_comparisons: tuple[str, ...] = _of("recommended.library_comparisons")
    """One sentence for each other library, if the advisor chose the library."""
    requested: tuple[str, ...] = _of("recommended.requested")
    """Settings of the user: "sequence length 512", "tensor parallel degree 4", ..."""
    defaults: tuple[str, ...] = _of("recommended.defaults")
    """Settings that the user left at their default: "sequence length 2,048 tokens", ..."""
    objective: Objective = _of("recommended.objective")
    """Order of the plans: throughput, cost, headroom or simplicity."""
    min_fit_probability: float = _of("recommended.min_fit_probability")
    """Required probability of fitting."""
    script: str | None = _of("recommended.script")
    """Path of the user's own training script; None for the generated one."""
    data: str | None = _of("recommended.data")
    """S3 URI of the training channel; None for synthetic tokens."""
    sizes: ClusterSizes | None = _of("recommended.sizes")
    """The compared clusters, if the request left the cluster open or its objective is the cost."""
    result: SearchResult = _of("recommended.result")
    """The plans that the search compared."""
    alternatives: pd.DataFrame = _of("recommended.alternatives")
    """The best plan of each combination of techniques, best first, with the reason why it is not recommended."""
    plans_enumerated: int = _of("recommended.plans_enumerated")
    """Number of plans that the library can express on the searched clusters."""
    plans_scored: int = _of("recommended.plans_scored")
    """Number of plans whose memory and fit were computed."""
    plans_fit: int = _of("recommended.plans_fit")
    """Number of plans that fit with the required probability. Their time was computed, too."""

    # Of the plan on screen.

    estimate: Estimate = _of("controls.estimate")
    """The estimate of the plan."""
    job: Job = _of("controls.advice.job")
    """Training run. `estimate.global_batch_size` is the batch that the search chose."""
    steps: tuple[Step, ...] = _of("explained.steps")
    """The ordered practices, each with its decision, figures, trade-off and source."""
    pitfalls: tuple[Pitfall, ...] = _of("explained.pitfalls")
    """Requirements of the plan for the training script, the data pipeline and the job."""
    reference: Reference | None = _of("explained.reference")
    """AWS's nearest reference configuration, with the differences; None if AWS publishes none for the library."""
    because: str = _of("explained.because")
    """Reasons for the plan and for its batch."""
    warnings: tuple[str, ...] = _of("explained.warnings")
    """Warnings about the plan, and what was read of the user's script."""
    learned: Summary | None = _of("explained.learned")
    """The effect of your measured runs on the plan, before and after; None without a calibration."""

    @property
    def is_recommended(self) -> bool:
        """Whether the plan on screen is the recommended one."""
        return self._controls.is_at(control_state.recommended(self.recommended))

    @property
    def controls(self) -> ControlState:
        """Values of the controls, with the reason if they cannot be combined."""
        return self._controls

    @property
    def explained(self) -> Recommendation:
        """The plan on screen as a value, with reasons of its own."""
        return self.at(self._controls)

    def at(self, state: ControlState) -> Recommendation:
        """The plan of a state of the controls as a value, with reasons of its own; the recommendation at its plan."""
        with self.turn:
            recommended = self.recommended
            if state.is_at(control_state.recommended(recommended)):
                return recommended
            key, value = self._explained
            if key[0] is not recommended or not key[1].is_at(state):
                because = f"A plan of yours. From the recommended plan to it: {self.compare_at(state).summary}"
                value = explained(recommended, state.advice.job, state.plan, state.estimate, because)
                self._explained = ((recommended, state), value)
            return value

    def move(self, **settings: Setting) -> str:
        """Move controls by name, one after the other, and return a summary of the change."""
        with self.turn:
            start = state = self._controls
            for name, value in settings.items():
                state = control_state.move(state, name, value)
            for name, value in settings.items():
                if state.settings[name] != value:
                    raise PlanError(f"{name}={value!r} and the other settings exclude each other: leave one out.")
            state = control_state.require(state)
            if len(settings) > 1:
                state = control_state.summarized(start, state, state.moved)
            self.settle(state)
            return Sentence(state.summary)

    def adopt(self, plan: Plan | int) -> str:
        """Show a plan, or the row of one in `alternatives`, and return a summary of the change."""
        with self.turn:
            state = control_state.adopt(self._controls, plan_of(self.recommended, plan))
            self.settle(state)
            return Sentence(state.summary)

    def reset(self) -> str:
        """Show the recommended plan, and return a summary of the change."""
        with self.turn:
            state = control_state.summarized(self._controls, control_state.recommended(self.recommended))
            self.settle(state)
            return Sentence(state.summary)

    def settle(self, state: ControlState, *, gesture: str = "") -> None:
        """Show a state of the controls; moves of one `gesture` are one entry of the history, invalid settings none."""
        with self.turn:
            if not state.problem:
                history = self._history
                if gesture and gesture == history.current.gesture and history.position > 0:
                    start = history.moved(-1).current
                    if start.recommended is self.recommended:  # the summary of a drag compares with its start
                        state = control_state.summarized(start.state, state, state.moved)
                entry = Entry(recommended=self.recommended, state=state, summary=state.summary, gesture=gesture)
                self._history = history.entered(entry)
            self._show(state)

    def renew(
        self,
        value: Recommendation,
        summary: str = "",
        *,
        state: ControlState | None = None,
        pins: Settings | None = None,
        requested: Mapping[str, Any] | None = None,
    ) -> str:
        """Show another recommendation in place, its controls at `state`, with `pins` kept; `undo` leads back.

        Returns the summary: by default the `requested` changes, and the comparison with the recommendation before it.
        """
        with self.turn:
            new, library, pins = state or control_state.recommended(value), value.plan.library, pins or {}
            texts = {name: value_text(name, pin) for name, pin in pins.items() if name in new.settings}
            fixed = [f"{label_of(library, name).lower()} {text}" for name, text in texts.items()]
            if not summary:
                before = control_state.recommended(self.recommended)
                summary = compare(before, new, (RECOMMENDED, ON_SCREEN)).summary
                summary = f"{summary.removesuffix('.')}; {listed(fixed)} pinned." if fixed else summary
                lost = [label_of(self.plan.library, name).lower() for name in pins if name not in new.settings]
                summary += f" No longer pinned: {listed(lost)}." if lost else ""
                changes = ", ".join(f"{name}={value!r:.60}" for name, value in (requested or {}).items())
                summary = f"Requested: {changes}. {summary}" if changes else summary
            self._pins = tuple(dict.fromkeys((*self._pins, *pins)))
            new = replace(new, summary=summary)
            self._history = self._history.entered(Entry(recommended=value, state=new, summary=summary))
            self._show(new)
            return Sentence(summary)

    def _show(self, state: ControlState) -> None:
        self._controls = state
        change = Change(self, state.summary, with_labels(self.plan.library, state.problem))
        failures: list[Exception] = []
        for observer in tuple(self._observers):
            try:
                observer(change)
            except Exception as error:  # noqa: BLE001 - the others are called, then it is raised
                failures.append(error)
        if failures:
            raise failures[0]

    @property
    def pins(self) -> Settings:
        """The pinned settings with their values on screen, which `change` keeps."""
        settings = self._controls.settings
        return {name: settings[name] for name in self._pins if name in settings}

    def pin(self, *names: str, **settings: Setting) -> None:
        """Pin settings for the next search: names at their values on screen, keywords at values to which they move."""
        with self.turn:
            for name in (*names, *settings):
                require_name(name, self.plan.library)
            if settings:
                self.move(**settings)
            self._pins = tuple(dict.fromkeys((*self._pins, *names, *settings)))
            self._show(self._controls)

    def unpin(self, *names: str) -> None:
        """Free pinned settings; all of them without a name."""
        with self.turn:
            self._pins = tuple(name for name in self._pins if names and name not in names)
            self._show(self._controls)

    def change(self, *, on_progress: Progress | None = None, **changes: Any) -> str:
        """Search again in place for a changed request, and return a summary of the change. `undo` leads back.

        Everything else of the request stays, and so do the pinned settings; the others are searched.

        Parameters
        ----------
        on_progress
            As for `advise`.
        **changes
            Keywords of `advise` with new values: ``instance_count=8``, ``sequence_length=4096``, ``library="fsdp"``.
            None removes a setting. Without any, the settings that are not pinned are searched again.
        """
        with self.turn:
            before, pins = self.recommended, self.pins
        value = changed(before, changes, pins, on_progress=on_progress)
        return self.renew(value, pins=pins, requested=changes)

    @property
    def history(self) -> tuple[Entry, ...]:
        """The plans that were on screen, oldest first. `undone` is the number of them after the present one."""
        return self._history.entries

    @property
    def undone(self) -> int:
        """Number of entries at the end of `history` that `redo` leads to."""
        return len(self._history.entries) - 1 - self._history.position

    def undo(self, steps: int = 1) -> str:
        """Show the plan before the last change, or an earlier one, and return a summary of the change."""
        require_whole("steps", steps, AdvisorError)
        with self.turn:
            if self._controls.problem:
                steps -= 1  # settings that cannot be combined are no entry
            return self._go(-steps)

    def redo(self, steps: int = 1) -> str:
        """Show an undone plan again, and return a summary of the change."""
        require_whole("steps", steps, AdvisorError)
        with self.turn:
            return self._go(steps)

    def _go(self, steps: int) -> str:
        left = self._history.current
        self._history = self._history.moved(steps)
        entry = self._history.current
        state = entry.state
        if left.recommended is entry.recommended:
            state = control_state.summarized(self._controls, state)
        self._show(state)
        return Sentence(state.summary)

    def compare(self, *plans: Plan | int) -> Comparison:
        """Return settings and figures of two plans, and the price of the difference.

        Parameters
        ----------
        plans
            Plans, or rows of `alternatives`. Without any, the recommended plan and that on screen; with one, it and
            the plan on screen.
        """
        with self.turn:
            if not plans:
                return self.compare_at(self._controls)
            if len(plans) > 2:
                raise AdvisorError(f"Two plans can be compared, not {len(plans)}.")
            ends = []
            for plan in plans:
                if not isinstance(plan, Plan | int):
                    raise AdvisorError(f"compare() requires a plan or the row of an alternative, not {plan!r:.60}.")
                state = control_state.adopt(self._controls, plan_of(self.recommended, plan))
                ends.append((state, f"Alternative {plan}" if isinstance(plan, int) else "Your plan"))
            (left, left_name), (right, right_name) = [*ends, (self._controls, ON_SCREEN)][:2]
            return compare(left, right, (left_name, right_name))

    def compare_at(self, state: ControlState) -> Comparison:
        """Compare the recommended plan with that of a state of the controls."""
        return compare(control_state.recommended(self.recommended), state, (RECOMMENDED, ON_SCREEN))

    def observe(self, callback: Observer) -> None:
        """Call a function with the `Change` after every change of the plan on screen."""
        if not callable(callback):
            raise AdvisorError(f"observe() requires a function with one parameter, the change, not {callback!r}.")
        if callback not in self._observers:
            self._observers.append(callback)

    def unobserve(self, callback: Observer) -> None:
        """Stop to call a function. An unknown one is ignored."""
        if callback in self._observers:
            self._observers.remove(callback)

    def diff(self, advice: Advice) -> Comparison:
        """Settings and figures of another advice's plan next to those of this one, and the price of the difference."""
        return compare(advice.controls, self.controls, ("Other advice", "This advice"))

    @property
    def rehearsed(self) -> str:
        """Mark of the plan on screen: ``rehearsed: 2 processes, 6 updates, resumed, loads``; empty if it was not."""
        return self._rehearsed.get(self.plan, "")

    def mark(self, done: Rehearsal) -> None:
        """Mark the plan on screen with a rehearsal of its script; loading and saving then count, `undo` leads back.

        The request has the copies of the model as part of `overheads`, and so have all later searches.
        """
        with self.turn:
            overheads = replace(self.job.overheads, host_copies=done.copies)
            if overheads != self.job.overheads:
                job = replace(self.job, overheads=overheads)
                value = estimate_plan(self.model, self.cluster, job, self.plan)
                recommended = explained(self.recommended, job, self.plan, value, self.because)
                request = self.request.changed(overheads=overheads)
                text = f"The rehearsed script {fit(value, self.min_fit_probability)}."
                self.renew(replace(recommended, request=request), text)
            self._rehearsed[self.plan] = done.mark
            self._show(self._controls)

    def report(self, *, details: bool = False) -> str:
        """Return the recommendation as text, after the comparison with it if another plan is on screen."""
        text = report(self.recommended, details=details)
        if self.rehearsed:
            text = f"The plan on screen is {self.rehearsed}.\n\n{text}"
        if self.is_recommended:
            return text
        title = "Plan on screen, next to the recommended plan"
        return "\n".join([title, "-" * len(title), str(self.compare()), "", text])

    def ladder(self, plan: Plan | int | None = None) -> Ladder:
        """AWS's techniques in order, each added to those before it, up to the plan: memory, fit, time, decision.

        Parameters
        ----------
        plan
            Another plan for the same model, cluster and job, or the row of one in `alternatives`; the plan on screen
            if None.
        """
        return ladder_of(self.explained, plan)

    def largest(self) -> Largest:
        """Return the largest model, sequence and batch that the cluster trains, each with the rest of the request."""
        return largest(self.request, self.cluster, self.plan)

    def ranks(self, plan: Plan | int | None = None, placement_strategy: str | None = None) -> RankTable:
        """Return which GPU of which node holds which stage, slice, shard and replica, as text or a table in a notebook.

        Parameters
        ----------
        plan
            As for `ladder`.
        placement_strategy
            Another placement of SMP v1, for example ``PTD``; the plan's own if None.
        """
        return rank_map(
            self.plan if plan is None else plan_of(self.recommended, plan), self.cluster, placement_strategy
        )

    def rank_map(self, plan: Plan | int | None = None, placement_strategy: str | None = None) -> pd.DataFrame:
        """`ranks` as a DataFrame with one row per GPU, and the numbers of its PP, TP, RDP and DP groups."""
        return self.ranks(plan, placement_strategy).frame()

    def chart(self, name: str, plan: Plan | int | None = None) -> Chart:
        """Return a chart as a table; in notebooks, ``clusters`` is also a picture.

        Parameters
        ----------
        name
            ``memory``, ``time``, ``alternatives`` or ``clusters``.
        plan
            As for `ladder`.

        Examples
        --------
        >>> import smp_advisor as smpa
        >>> advice = smpa.advise("1.3B", "ml.p4d.24xlarge", library="fsdp")
        >>> advice.chart("memory").rows[-1][0]
        'Peak'
        """
        from smp_advisor.charts import chart_of

        return chart_of(self.controls.advice, name, self.plan if plan is None else plan)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the advice to a JSON file for `smp_advisor.load`, or its report to an HTML file.

        Parameters
        ----------
        path
            The file. A name that ends in ``.html`` is that of a report of the plan on screen, with its figures, reasons
            and the cell that starts the job.

        Examples
        --------
        >>> advice.save("advice.json"), advice.save("advice.html")  # doctest: +SKIP
        """
        from smp_advisor.session.written import html_page, write_text

        form = Path(path).suffix.lower()
        if form in _NOT_WRITTEN:
            raise StorageError(sentence("session", "report_form", name=str(path), form=form))
        is_page = form == ".html"
        with self.turn:
            write_text(html_page(self.as_recommended()) if is_page else self.as_json(), path)

    def as_json(self) -> str:
        """Return the advice as JSON text, the content of the file of `save`."""
        from smp_advisor.session.written import live_text

        with self.turn:
            return live_text(self.recommended, self._controls)

    def again(self, job: Job | None = None, **changes: Any) -> Advice:
        """Search again for the same model, cluster and library, with the job on screen or another one.

        `changes` are keywords of `advise`. The result is another advice, in whose words the user's settings stay.
        """
        before = self.recommended
        request = repeated(before.request, before, job or self.job)
        after = recommend(request.changed(**changes))
        words = ("requested", "defaults", "library_because", "library_comparisons")
        return Advice(replace(after, **{name: getattr(before, name) for name in words}))

    @classmethod
    def of(cls, request: Request) -> Advice:
        """Return the advice for a request."""
        return cls(recommend(request))

    def as_recommended(self, state: ControlState | None = None) -> Advice:
        """Return an advice that recommends the plan on screen, or of a state of the controls, and has no history."""
        return Advice(self.at(state or self._controls))

    # Code and runs of the plan on screen.

    cell = cells.cell
    script_cell = cells.script_cell
    script_files = cells.script_files
    local_cell = cells.local_cell
    probe_cell = cells.probe_cell
    probe_script_cell = cells.probe_script_cell
    monitoring_cell = cells.monitoring_cell
    permissions_cell = cells.permissions_cell
    quota_cell = cells.quota_cell
    export = cells.export
    start = jobs.start
    rehearse = jobs.rehearse
    terms = jobs.terms
    calibrate = jobs.calibrate
    after = jobs.after
    probe = jobs.probe
    compare_clusters = clusters.compare_clusters

    def _mime_(self) -> tuple[str, str]:
        """Return the plan on screen for marimo, which has no formatters of IPython."""
        from smp_advisor.core.words import escape
        from smp_advisor.session.written import html_report

        return "text/html", f"<pre>{escape(str(self))}</pre>{html_report(self)}"

    def __str__(self) -> str:
        return self.report()

    def __repr__(self) -> str:
        place = f"{self.cluster.nodes} x {self.cluster.instance.name}"
        return brief("Advice", [repr(self.model.name), place, repr(self.plan)])
