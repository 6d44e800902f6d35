"""Advice with a plan on screen: one state for Python, the views of a notebook and the magics."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from threading import RLock
from typing import TYPE_CHECKING, Any

from smp_advisor.advice import Advice
from smp_advisor.advice.live import control_state
from smp_advisor.advice.live.comparison import Comparison, compare
from smp_advisor.advice.live.control_state import ControlState, Entry, History, SearchAgain, pins_of
from smp_advisor.advice.live.settings import require_name, with_labels
from smp_advisor.arguments import require_types
from smp_advisor.arguments.signatures import checked_methods
from smp_advisor.errors import AdvisorError, PlanError
from smp_advisor.guidance.report import explained, plan_of

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Mapping

    from smp_advisor.guidance.ladder import Ladder
    from smp_advisor.libraries.library import Setting, Settings
    from smp_advisor.libraries.plan import Plan
    from smp_advisor.search.sizes import Progress
    from smp_advisor.workload.job import Job

    Observer = Callable[["Change"], None]

SNAPSHOTS = 50
"""Largest number of named snapshots."""
RECOMMENDED, ON_SCREEN = "Recommended", "On screen"


@dataclass(frozen=True)
class Change:
    """A change of the plan on screen."""

    advice: LiveAdvice
    summary: str
    """The change with its effect on memory and throughput."""
    problem: str
    """Reason why the settings on screen cannot be combined; `advice.plan` is then the last valid plan."""


@checked_methods
class LiveAdvice(Advice):
    """A recommendation and the plan on screen, which are the same for Python, all views and the magics.

    `plan`, `estimate`, `job`, `steps`, `pitfalls`, `reference`, `because` and `warnings` are those of the plan on
    screen, at first the recommended one. The other attributes are those of the recommendation.

    Examples
    --------
    >>> import smp_advisor as smpa
    >>> advice = smpa.advise("1.3B", "ml.p4d.24xlarge", library="fsdp")
    >>> chosen = advice.plan
    >>> summary = advice.move(activation_checkpointing="each_block")  # a control of the page  # doctest: +SKIP
    >>> advice.plan = chosen  # or any plan of the library, or the row of an alternative
    >>> advice.keep("chosen")  # a named snapshot; advice.load("chosen") shows it again
    >>> print(advice.compare("chosen").summary)
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

    def __init__(
        self, recommended: Advice, state: ControlState | None = None, snapshots: Mapping[str, Entry] | None = None
    ) -> None:
        require_types({"advice": (recommended, Advice)}, "Advisor")
        self.turn = RLock()
        value = recommended.recommended
        start = control_state.recommended(value)
        self._history = History(entries=(Entry(recommended=value, state=start, summary=RECOMMENDED),))
        if state is not None:
            self._history = self._history.entered(Entry(recommended=value, state=state, summary=state.summary))
        self._controls = state or start
        self._snapshots: dict[str, Entry] = dict(snapshots or {})
        self._pins = pins_of(value)
        self._observers: list[Observer] = []
        self._explained: tuple[tuple[Advice, ControlState], Advice] = ((value, start), value)
        self._version = 0

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _FIELDS:
            raise AdvisorError(f"advice.{name} follows from the plan and the workload: set advice.plan or a setting.")
        object.__setattr__(self, name, value)

    __hash__ = None  # type: ignore[assignment]  # equal by a value that changes

    def __eq__(self, value: object) -> bool:
        """Whether both have the same recommendation, plan on screen and snapshots; history and pins may differ."""
        if not isinstance(value, LiveAdvice):
            return NotImplemented
        return self is value or self._value() == value._value()

    def _value(self) -> tuple[object, ...]:
        with self.turn:
            jobs = {name: entry.state.advice.job for name, entry in self._snapshots.items()}
            return self.recommended, self._controls.settings, self.plan, self.job, self.snapshots, jobs

    def __getstate__(self) -> dict[str, Any]:
        # A copy has the same history and snapshots, and its own lock and observers.
        return {name: value for name, value in vars(self).items() if name not in {"turn", "_observers"}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, turn=RLock(), _observers=[])

    @property
    def recommended(self) -> Advice:
        """The recommendation as a value, whatever is on screen."""
        return self._history.current.recommended

    @property
    def plan(self) -> Plan:
        """The plan on screen; the last valid one while its settings cannot be combined. Set it to show another."""
        return self._controls.plan

    @plan.setter
    def plan(self, plan: Plan | int) -> None:
        self.adopt(plan)

    @property
    def is_recommended(self) -> bool:
        """Whether the plan on screen is the recommended one."""
        return self._controls.is_at(control_state.recommended(self.recommended))

    @property
    def controls(self) -> ControlState:
        """Values of the controls, with the reason if they cannot be combined."""
        return self._controls

    @property
    def version(self) -> int:
        """Another number after every change."""
        return self._version

    @property
    def explained(self) -> Advice:
        """The plan on screen as a value, with reasons of its own."""
        return self.at(self._controls)

    def at(self, state: ControlState) -> Advice:
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

    def ladder(self, plan: Plan | int | None = None) -> Ladder:
        """As `Advice.ladder`, of the plan on screen if None."""
        return self.explained.ladder() if plan is None else super().ladder(plan)

    def move(self, **settings: Setting) -> str:
        """Move controls by name, one after the other, and return a summary of the change.

        Raises
        ------
        PlanError
            There is no such control, or the settings exclude each other. The controls then keep their values.
        """
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
            return state.summary

    def adopt(self, plan: Plan | int) -> str:
        """Show a plan, or the row of one in `alternatives`, and return a summary of the change.

        Raises
        ------
        PlanError
            The plan does not suit the model, the cluster or the job, or there is no such row.
        """
        with self.turn:
            state = control_state.adopt(self._controls, plan_of(self.recommended, plan))
            self.settle(state)
            return state.summary

    def reset(self) -> str:
        """Show the recommended plan, and return a summary of the change."""
        with self.turn:
            state = control_state.summarized(self._controls, control_state.recommended(self.recommended))
            self.settle(state)
            return state.summary

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
        self, recommended: Advice, summary: str, *, state: ControlState | None = None, pins: Iterable[str] = ()
    ) -> None:
        """Show another recommendation in place, its controls at `state`, with further `pins`; `undo` leads back."""
        value = recommended.recommended
        with self.turn:
            self._pins = tuple(dict.fromkeys((*self._pins, *pins)))
            new = replace(state or control_state.recommended(value), summary=summary)
            self._history = self._history.entered(Entry(recommended=value, state=new, summary=summary))
            self._show(new)

    def _show(self, state: ControlState) -> None:
        self._controls = state
        self._version += 1
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
        """Pin settings for the next search: names at their values on screen, keywords at values to which they move.

        Raises
        ------
        PlanError
            There is no such setting, or a value cannot be combined with the others.
        """
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

    def search(self, changes: Mapping[str, Any], pins: Settings | None = None) -> SearchAgain:
        """A search of the changed request with the present pins and further ones, which does not change this advice."""
        with self.turn:
            return SearchAgain(advice=self.recommended, changes=changes, pins={**self.pins, **(pins or {})})

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

        Raises
        ------
        AdvisorError
            A change is wrong, or no plan fits. The advice then stays as it is.
        """
        search = self.search(changes)
        after = search.run(on_progress=on_progress)
        summary = search.summary(after)
        self.renew(after, summary)
        return summary

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
        with self.turn:
            require_types({"steps": (steps, int)}, "undo")
            if self._controls.problem:
                steps -= 1  # settings that cannot be combined are no entry
            return self._go(-steps)

    def redo(self, steps: int = 1) -> str:
        """Show an undone plan again, and return a summary of the change."""
        with self.turn:
            return self._go(steps)

    def _go(self, steps: int) -> str:
        require_types({"steps": (steps, int)}, "undo")
        left = self._history.current
        self._history = self._history.moved(steps)
        entry = self._history.current
        state = entry.state
        if left.recommended is entry.recommended:
            state = control_state.summarized(self._controls, state)
        self._show(state)
        return state.summary

    @property
    def snapshots(self) -> Mapping[str, Plan]:
        """Plans of the named snapshots, in the order in which they were kept."""
        return {name: entry.state.plan for name, entry in self._snapshots.items()}

    @property
    def snapshot_entries(self) -> Mapping[str, Entry]:
        """The named snapshots with their estimates."""
        return dict(self._snapshots)

    def keep(self, name: str) -> None:
        """Keep the plan on screen as a named snapshot; a snapshot of that name is replaced.

        Raises
        ------
        AdvisorError
            The name is empty, too long or reserved, or there are too many snapshots.
        """
        longest = 60
        if type(name) is not str or not 0 < len(name.strip()) <= longest:
            raise AdvisorError(f"The name of a snapshot must be a text of 1 to {longest} characters, not {name!r}.")
        if name.strip() in {RECOMMENDED, ON_SCREEN}:
            raise AdvisorError(f"{name.strip()!r} is the name of a plan that is always there: choose another name.")
        label = name.strip()
        with self.turn:
            control_state.require(self._controls)
            if label not in self._snapshots and len(self._snapshots) >= SNAPSHOTS:
                raise AdvisorError(f"There are {SNAPSHOTS} snapshots, the most that are kept: forget one first.")
            self._snapshots[label] = self._history.current
            self._show(self._controls)

    def load(self, name: str) -> str:
        """Show a named snapshot, and return a summary of the change. `undo` leads back."""
        with self.turn:
            entry = self._snapshot(name)
            if entry.recommended is not self.recommended:
                self.renew(entry.recommended, f"Snapshot {name}", state=entry.state)
            else:
                self.settle(control_state.summarized(self._controls, entry.state))
            return self._controls.summary

    def forget(self, name: str) -> None:
        """Delete a named snapshot."""
        with self.turn:
            self._snapshot(name)
            del self._snapshots[name]
            self._show(self._controls)

    def _snapshot(self, name: str) -> Entry:
        require_types({"name": (name, str)}, "load")
        if name not in self._snapshots:
            names = ", ".join(map(repr, self._snapshots)) or "none"
            raise AdvisorError(f"There is no snapshot {name!r}. Snapshots: {names}.")
        return self._snapshots[name]

    def compare(self, *plans: Plan | int | str) -> Comparison:
        """Settings and figures of two plans, and the price of the difference.

        Parameters
        ----------
        plans
            Names of snapshots, plans, or rows of `alternatives`. Without any, the recommended plan and that on screen;
            with one, it and the plan on screen.

        Raises
        ------
        AdvisorError
            There is no such snapshot or row, a plan does not suit the cluster, or there are more than two plans.
        """
        with self.turn:
            if len(plans) > 2:
                raise AdvisorError(f"Two plans can be compared, not {len(plans)}.")
            if None in plans:
                raise AdvisorError(
                    "compare() requires a plan, the name of a snapshot or the row of an alternative, not None."
                )
            first, second = [*(plans or (RECOMMENDED,)), ON_SCREEN][:2]
            return self.compare_at(self._controls, first, second)

    def compare_at(
        self, state: ControlState, first: Plan | int | str = RECOMMENDED, second: Plan | int | str = ON_SCREEN
    ) -> Comparison:
        """As `compare`, with the plan of a state of the controls on screen."""
        with self.turn:
            (left, left_name), (right, right_name) = (self._end(plan, state) for plan in (first, second))
            return compare(left, right, (left_name, right_name))

    def _end(self, plan: Plan | int | str, on_screen: ControlState) -> tuple[Entry, str]:
        """A plan of a comparison with its name."""
        if plan == ON_SCREEN:
            return replace(self._history.current, state=on_screen), ON_SCREEN
        if plan == RECOMMENDED:
            state = control_state.recommended(self.recommended)
            return Entry(recommended=self.recommended, state=state, summary=""), RECOMMENDED
        if isinstance(plan, str):
            return self._snapshot(plan), plan
        state = control_state.adopt(self._controls, plan_of(self.recommended, plan))
        name = f"Alternative {plan}" if isinstance(plan, int) else "Your plan"
        return Entry(recommended=self.recommended, state=state, summary=""), name

    def observe(self, callback: Observer) -> None:
        """Call a function with the `Change` after every change of the plan on screen or of the snapshots."""
        if not callable(callback):
            raise AdvisorError(f"observe() requires a function with one parameter, the change, not {callback!r}.")
        if callback not in self._observers:
            self._observers.append(callback)

    def unobserve(self, callback: Observer) -> None:
        """Stop to call a function. An unknown one is ignored."""
        if callback in self._observers:
            self._observers.remove(callback)

    def again(self, job: Job | None = None, **changes: Any) -> LiveAdvice:
        """The advice for the same request, with the present `job` or another one, as another live object."""
        return LiveAdvice(self.recommended.again(self.job if job is None else job, **changes))

    def diff(self, advice: Advice) -> Comparison:
        """Settings and figures of another advice's plan next to those of this one, and the price of the difference.

        Raises
        ------
        AdvisorError
            The argument is no advice.
        """
        return compare(_entry(advice), _entry(self), ("Other advice", "This advice"))

    def save(self, path: str | os.PathLike[str]) -> None:
        with self.turn:
            is_page = str(path).lower().endswith((".html", ".md"))
            Advice.save(self.explained if is_page else self, path)

    def as_json(self) -> str:
        from smp_advisor.advice.written import live_text

        with self.turn:
            return live_text(self.recommended, self._controls, self._snapshots)

    def report(self, *, details: bool = False) -> str:
        """The recommendation as text, after the comparison with it if another plan is on screen."""
        text = self.recommended.report(details=details)
        if self.is_recommended:
            return text
        title = "Plan on screen, next to the recommended plan"
        return "\n".join([title, "-" * len(title), str(self.compare()), "", text])


def _entry(advice: Advice) -> Entry:
    state = advice.controls if isinstance(advice, LiveAdvice) else control_state.recommended(advice)
    return Entry(recommended=advice.recommended, state=state, summary="")


_EXPLAINED = {"steps", "pitfalls", "reference", "because", "warnings"}
_FIELDS = {field.name for field in fields(Advice)} - {"plan"}


def _reader(name: str) -> Callable[[LiveAdvice], Any]:
    if name == "estimate":
        return lambda advice: advice.controls.estimate
    if name == "job":
        return lambda advice: advice.controls.advice.job
    if name in _EXPLAINED:
        return lambda advice: getattr(advice.explained, name)
    return lambda advice: getattr(advice.recommended, name)


for _name in _FIELDS:
    # The fields of the value, read from the state: so every method of `Advice` is about the plan on screen.
    setattr(LiveAdvice, _name, property(_reader(_name)))
