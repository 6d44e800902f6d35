"""A run that is watched: what was read so far against the prediction, its alarms, and when to look again."""

from __future__ import annotations

import math
import threading
import time
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from smp_advisor.arguments.signatures import checked_class
from smp_advisor.core.files import sentence
from smp_advisor.core.tables import Shown
from smp_advisor.core.words import plural
from smp_advisor.costs.uncertainty import TWO_SIDED
from smp_advisor.costs.wording import seconds
from smp_advisor.errors import AdvisorError, RunError
from smp_advisor.runs.causes import Cause, causes_of
from smp_advisor.runs.failures import Failure, read_failure
from smp_advisor.runs.measure import PREFERRED, timed
from smp_advisor.runs.page import (
    IN_A_ROW,
    alarms_of,
    conclusions_of,
    elapsed,
    figures_of,
    page_of,
)
from smp_advisor.runs.readers import Log, Reader, Sample
from smp_advisor.runs.sources import ENDED, LogFile, Poll, Source, TrainingJob
from smp_advisor.runs.steps import STEADY_STEPS, Typical, typical

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from smp_advisor.cluster.cluster import Cluster
    from smp_advisor.costs.estimate import Estimate
    from smp_advisor.session import Advice

_TAIL = 200_000
"""Characters at the end of the log in which a failure is read."""
_DAY = 86_400
_FIRST_SECONDS, _MOST_SECONDS, _FACTOR = 15.0, 300.0, 1.5
"""Pause between polls: at first, at most, and its growth while nothing happens."""
_LOG_SECONDS = 1.0
_THROTTLED = 2.0
"""Factor of the pause after AWS refused a request for their number."""
_METRICS_SECONDS = 300.0
"""Least waited time between two requests of metrics, which are the only ones that cost money."""
_SILENT_POLLS = 60
"""Polls without a line after which watching a file ends, since a file does not state its end."""
_MOST_PAGES = 40
"""Pages of a log that one poll reads on."""
_STALLED = 1.05
"""Factor between the mean and the median of the steps from which both are shown."""
_FAILED_POLLS = 3
"""The same for a log that shows a failure."""
_DRIFT = 0.02
"""One standard deviation of the logarithm of the later steps around the measured ones, as that of a calibration's runs
(`MeasuredRun.step_noise`)."""


@checked_class
class Run(Shown):
    r"""A training job or log next to its prediction. `poll` reads what is new; `wait` polls until the end.

    Examples
    --------
    >>> import smp_advisor as smpa
    >>> from pathlib import Path
    >>> _ = Path("job.log").write_text("step 7 loss 9.1 tokens_per_second 9.0 seconds_per_step 2.5\n")
    >>> smpa.watch("job.log").headline  # or the name of a training job
    'job.log: Log; step 7; 2.50 s per step'
    """

    def __init__(
        self,
        source: Source,
        advice: Advice | None = None,
        *,
        notes: tuple[str, ...] = (),
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.source = source
        self._clock = clock
        self._turn = threading.RLock()
        """A notebook polls in a thread of its own."""
        # Live advice can show another plan later: a run keeps the one that it was started or attached with.
        self.advice: Advice | None = None if advice is None else advice.as_recommended()
        """The prediction, whose plan is that of the run; None if none was found."""
        self.notes = notes
        """Where the prediction is from, and what is inferred."""
        self.last = Poll()
        """Result of the last successful poll."""
        self.polls = self.requests = 0
        self.problem = ""
        """Why the last poll read nothing, in one sentence; empty if it succeeded."""
        self.steps = Reader()
        self.silent_polls = 0
        self.silent_seconds = self._since_metrics = 0.0
        self._tail = self._other_tail = ""
        self.other_hardware = ""
        """Sentence about a prediction for other instances, which is left out; empty if they agree."""
        self._learned: tuple[int, Advice | None, str] = (0, None, "")

    @property
    def name(self) -> str:
        """Name of the job, folder or log."""
        return self.source.name

    @cached_property
    def failure(self) -> Failure | None:
        """Cause of a failure, by the log and SageMaker's reason, for `Advice.after`; None if none is known.

        A log has no status: its run has failed if the log shows an end that no ten steps follow.
        """
        if self.last.status == "Completed":
            return None
        plan = None if self.advice is None else self.advice.plan
        cause = read_failure(f"{self._tail}{self._other_tail}{self.last.failure}", plan=plan)
        if cause is None or self.last.failure or self.last.status == "Failed":
            return cause
        return cause if cause.of_plan or (cause.ended and self.is_log) else None

    @property
    def is_log(self) -> bool:
        """Whether the run is known by a log alone, without a status."""
        return isinstance(self.source, LogFile)

    @property
    def failed(self) -> bool:
        """Whether the run has failed, by its status or by its log."""
        return self.last.status == "Failed" or (self.is_log and self.failure is not None)

    @property
    def log(self) -> Log:
        """Measured values so far, for `Advice.calibrate`."""
        return replace(self.steps.log, out_of_memory=self.failure is not None and self.failure.of_plan)

    @property
    def step(self) -> int | None:
        """Number of the last step in the log."""
        return self.steps.step

    @property
    def status(self) -> str:
        """Phase or end: ``Training for 2.1 h``, ``Completed``; ``Log`` for a file, which has none."""
        if not self.last.status:
            return "not read yet" if not self.polls else "Log, failed" if self.failed else "Log"
        if self.done or not self.last.transitions:
            return "Starting" if self.last.status == "InProgress" else self.last.status
        name, start, end = self.last.transitions[-1]
        ending = "Stopping, " if self.last.status == "Stopping" and name != "Stopping" else ""
        return f"{ending}{name} for {elapsed((end or self._clock()) - start)}"

    @property
    def transitions(self) -> tuple[str, ...]:
        """The phases so far with their elapsed time: ``Downloading 41 s``."""
        rows = self.last.transitions
        ends = [
            end or (rows[number + 1][1] if number + 1 < len(rows) else self._clock())
            for number, (*_, end) in enumerate(rows)
        ]
        return tuple(f"{name} {elapsed(end - start)}" for (name, start, _), end in zip(rows, ends, strict=True))

    @property
    def done(self) -> bool:
        """Whether the run has ended; a file has after many polls without a new line."""
        if not self.is_log:
            return self.last.status in ENDED
        return self.silent_polls >= (_FAILED_POLLS if self.failed else _SILENT_POLLS)

    def poll(self, *, waited_seconds: float = 0.0, metrics: bool = True) -> Run:
        """Read what is new, with at most four requests, and return the run itself.

        Parameters
        ----------
        waited_seconds
            Pause since the last poll, from which "no line" is counted.
        metrics
            Whether to request the metrics of the GPUs, too.

        Raises
        ------
        RunError
            There is no such job, or it must not be read. Throttling and expired credentials are a `problem` instead.
        """
        with self._turn:
            again = 0
            while self._read(waited_seconds, metrics=metrics and not again) and again < _MOST_PAGES:
                again += 1
            return self

    def _read(self, waited_seconds: float, *, metrics: bool) -> bool:
        """Read once; whether there is more."""
        name = self.name
        poll = self.source.poll(metrics=metrics)
        self.polls += 1
        self.requests += poll.requests
        self.problem = ""
        if poll.error:
            if not poll.kind:
                raise RunError(f"{self.name} cannot be read. {poll.error}")
            hint = " Renew the credentials: watching continues." if poll.kind == "expired" else ""
            self.problem = f"{poll.error}{'' if poll.error.endswith('.') else '.'}{hint}"
            self.silent_polls += poll.kind == "missing"
            self.last = replace(self.last, kind=poll.kind)
            return False
        self.last = replace(poll, hosts=poll.hosts or self.last.hosts, text="", other_text="")
        if self.name != name:
            self.notes = (*self.notes, f"{name} reached its time limit; {self.name} goes on with the run.")
        self._compare_hardware()
        if self.steps.add(poll.text):
            self.silent_polls, self.silent_seconds = 0, 0.0
        else:
            self.silent_polls += 1
            self.silent_seconds += waited_seconds
        self._tail = f"{self._tail}{poll.text}\n"[-_TAIL:] if poll.text else self._tail
        self._other_tail = f"{self._other_tail}{poll.other_text}"[-_TAIL:]
        for cached in ("typical", "failure"):
            self.__dict__.pop(cached, None)
        return poll.more

    def _compare_hardware(self) -> None:
        """Leave out a prediction for other hardware than that of the job."""
        if self.advice is None or not self.last.instances:
            return
        cluster = self.advice.cluster
        if (set(self.last.instances), self.last.count) != ({cluster.instance.name}, cluster.nodes):
            real = {"count": self.last.count, "instances": ", ".join(self.last.instances)}
            planned = {"nodes": cluster.nodes, "instance": cluster.instance.name}
            self.other_hardware = sentence("runs", "hardware", **real, **planned)
            self.advice = None

    def __iter__(self) -> Iterator[Run]:
        return self._polls(time.sleep)

    def wait(self, on_poll: Callable[[Run], Any] | None = None, *, sleep: Callable[[float], Any] = time.sleep) -> Run:
        """Poll until the run ends, with pauses that grow up to five minutes while nothing happens.

        Parameters
        ----------
        on_poll
            Called with the run after each poll.
        sleep
            Called with the seconds of a pause.
        """
        for run in self._polls(sleep):
            if on_poll is not None:
                on_poll(run)
        return self

    def _polls(self, sleep: Callable[[float], Any]) -> Iterator[Run]:
        pause, waited = self._first_pause, 0.0
        while True:
            before = (self.last.status, len(self.last.transitions), self.step)
            paid = not self.polls or self._since_metrics >= _METRICS_SECONDS
            self._since_metrics = 0.0 if paid else self._since_metrics
            yield self.poll(waited_seconds=waited, metrics=paid)
            if self.done:
                return
            if self.problem:
                pause = min(pause * (_THROTTLED if self.last.kind == "throttled" else 1.0), 2 * _MOST_SECONDS)
            elif before[:2] != (self.last.status, len(self.last.transitions)):
                pause = self._first_pause
            elif not isinstance(self.source, LogFile):
                pause = min(pause * _FACTOR, _MOST_SECONDS)
            sleep(pause)
            waited = pause
            self._since_metrics += pause

    @property
    def _first_pause(self) -> float:
        return _LOG_SECONDS if isinstance(self.source, LogFile) else _FIRST_SECONDS

    @property
    def estimate(self) -> Estimate | None:
        """The predicted figures of the plan of the run."""
        return None if self.advice is None else self.advice.estimate

    @property
    def samples(self) -> list[Sample]:
        """The measured values as seconds per step, with the numbers of their steps."""
        advice = self.advice
        if advice is None or self.estimate is None:
            return [s for s in self.log.samples if self.log.unit in ("seconds", "run_seconds")]
        return timed(self.log, advice.model, advice.cluster, advice.job, advice.plan)

    @cached_property
    def typical(self) -> Typical | None:
        """The median of the regular steps, without warm-up, restarts and stalls; None before the first step."""
        return typical(self.samples)

    @property
    def steady_steps(self) -> int:
        """Number of regular steps."""
        return 0 if self.typical is None else self.typical.steps

    @property
    def peak_gib(self) -> float | None:
        """Highest measured memory per GPU: total, reserved or allocated, or else CloudWatch's mean of a host."""
        for kind in PREFERRED:
            if kind in self.log.peak_gib:
                return self.log.peak_gib[kind]
        name = "GPUMemoryUtilization"
        shares = [entry[name] / 100 for entry in self.last.hosts.values() if name in entry]
        if self.advice is None or not shares:
            return None
        instance = self.advice.cluster.instance
        return max(shares) / instance.gpus * instance.gpu_memory_gib

    @property
    def total_steps(self) -> int | None:
        """Steps of the entire run: the hyperparameter of the job, else those of its tokens."""
        steps = self.last.settings.get("max_steps", "")
        if steps.isdigit():
            return int(steps)
        if self.advice is None or self.advice.job.tokens is None:
            return None
        return math.ceil(self.advice.job.tokens / self.advice.estimate.tokens_per_step)

    @property
    def step_range(self) -> tuple[float, float, float] | None:
        """Seconds per step by the clock, with stalls, and their 95 % interval: measured after five regular steps."""
        usual = self.typical
        if usual is not None and usual.steps >= IN_A_ROW:
            spread = math.exp(TWO_SIDED * math.hypot(usual.error, usual.wall_error, _DRIFT))
            return usual.wall_seconds, usual.wall_seconds / spread, usual.wall_seconds * spread
        if self.estimate is None:
            return None
        return self.estimate.step_seconds, *self.estimate.step_seconds_range

    @property
    def remaining_steps(self) -> int | None:
        """Steps to the end of the run; None if its length is unknown."""
        total = self.total_steps
        return None if total is None else max(total - (self.step or 0), 0)

    def remaining_days(self) -> tuple[float, float, float] | None:
        """Return days to the end with their interval, with the overheads of the prediction."""
        steps, ranged = self.remaining_steps, self.step_range
        if steps is None or ranged is None:
            return None
        share = 1.0 if self.estimate is None else self.estimate.effective.share
        if self.typical is not None and self.typical.wall_seconds > self.typical.seconds:
            share = 1.0  # the pauses for checkpoints are in the measured mean
        days, low, high = (steps * value / share / _DAY for value in ranged)
        return days, low, high

    @property
    def headline(self) -> str:
        """Step, step time against its prediction, and status in one line."""
        parts = [f"{self.name}: {self.status}"]
        if self.step is not None:
            total = self.total_steps
            parts.append(f"step {self.step:,}" + (f" of {total:,}" if total else ""))
        if self.typical is not None:
            expected = self.estimate
            predicted = f" (predicted {seconds(expected.step_seconds)})" if expected else ""
            parts.append(f"{seconds(self.typical.seconds)} per step{predicted}")
            if self.typical.wall_seconds > _STALLED * self.typical.seconds:
                parts.append(f"{seconds(self.typical.wall_seconds)} with its slow steps")
            if self.typical.changed is not None:
                step, before = self.typical.changed
                parts.append(f"{seconds(before)} before step {step:,}" if step else f"{seconds(before)} before")
        if self.alarms:
            parts.append(plural(len(self.alarms), "alarm"))
        return "; ".join(parts)

    figures = figures_of
    alarms = property(alarms_of)
    conclusions = property(conclusions_of)

    @property
    def memory_share(self) -> float | None:
        """Peak memory over that of the GPU; None if it is unknown, or the run ran out of it.

        Allocated memory counts, if the log has it: PyTorch frees its reserve before it runs out.
        """
        peak = self.log.peak_gib.get("allocated", self.peak_gib)
        if peak is None or self.advice is None or self.log.out_of_memory:
            return None
        return peak / self.advice.cluster.instance.gpu_memory_gib

    def causes(self) -> tuple[Cause, ...]:
        """Return causes of the deviation from the prediction, each with its evidence and the change to try.

        Raises
        ------
        RunError
            There is no prediction, or no measured step.
        """
        if self.estimate is None or self.advice is None:
            raise RunError(f"{self.name} has no prediction to compare with: pass watch(..., advice=).")
        if self.typical is None:
            raise RunError(f"{self.name} has no measured step yet: poll again later.")
        full = 100 * self.advice.cluster.instance.gpus  # CloudWatch adds up the GPUs of a host
        busy = {
            host: entry["GPUUtilization"] / full for host, entry in self.last.hosts.items() if "GPUUtilization" in entry
        }
        restarts = sum(name == "Restarting" for name, *_ in self.last.transitions)
        return causes_of(self.advice, self.typical, self.log, busy=busy, restarts=restarts)

    def calibrated(self) -> Advice:
        """Return the advice with what the run measured. `Advice.learned` shows its intervals before and after.

        Raises
        ------
        RunError
            There is no prediction, or there are fewer than 20 regular steps.
        CalibrationError
            As for `Advice.calibrate`.
        """
        if self.advice is None:
            raise RunError(f"{self.name} has no prediction to calibrate: pass watch(..., advice=).")
        if self.steady_steps < STEADY_STEPS:
            raise RunError(
                f"{self.name} has {plural(self.steady_steps, 'regular step')}, and {STEADY_STEPS} are required: poll"
                " again later, or use advice.calibrate(run.log)."
            )
        return self.advice.calibrate(self)

    def measured(self, cluster: Cluster) -> tuple[Advice | None, Log]:
        """Return the prediction whose plan the run measured, if any, and its log, for an advice on a cluster."""
        if self.other_hardware:
            raise RunError(self.other_hardware)
        ran = (self.last.instances, self.last.count)
        if self.advice is None and self.last.instances and ran != ([cluster.instance.name], cluster.nodes):
            raise RunError(
                f"The job {self.name} ran on {self.last.count} x {', '.join(self.last.instances)} and the plan is for "
                f"{cluster.nodes} x {cluster.instance.name}: pass watch(..., advice=), the prediction of the job."
            )
        log = replace(self.log, title=f"{self.log.title}: {self.name}")
        if not log.peak_gib and not log.out_of_memory and (peak := self.peak_gib):
            note = "The peak is CloudWatch's, the mean of a host's GPUs, one value per minute: inferred."
            log = replace(log, peak_gib={"total": peak}, notes=(*log.notes, note))
        return self.advice, log

    @property
    def learned(self) -> tuple[Advice | None, str]:
        """`calibrated`, renewed after 20, 40, 80 and so on regular steps, or why the run teaches nothing."""
        stage = (self.steady_steps // STEADY_STEPS).bit_length()
        if self.advice is not None and self._learned[0] != stage:
            try:
                self._learned = (stage, self.calibrated(), "")
            except AdvisorError as error:
                self._learned = (stage, None, str(error))
        return self._learned[1:]

    @property
    def can_stop(self) -> bool:
        """Whether `stop` can end it: a log alone cannot be ended."""
        return isinstance(self.source, TrainingJob)

    def stop(self) -> None:
        """End the job on AWS, which is billed until it has stopped.

        Raises
        ------
        RunError
            The run is a log, or AWS refuses.
        """
        if not isinstance(self.source, TrainingJob):
            raise RunError(f"{self.name} is a log: its run can be ended only where it was started.")
        self.source.stop()

    def __str__(self) -> str:
        return page_of(self)[0]

    def __repr__(self) -> str:
        return f"Run({self.headline})"

    def _repr_html_(self) -> str:
        return page_of(self)[1]
