"""`advise`: from the user's keywords to an advice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smp_advisor.advice.recommendation import recommend
from smp_advisor.advice.request import Request
from smp_advisor.arguments.signatures import checked
from smp_advisor.session.advice import Advice
from smp_advisor.session.cells import scripted
from smp_advisor.session.options import completes

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Unpack

    from smp_advisor.cluster import Cluster, Instance
    from smp_advisor.keywords import AdviseSettings
    from smp_advisor.search.sizes import Progress
    from smp_advisor.workload.job import Job


@completes("AdviseSettings", "PlanSettings")
@checked
def advise(
    model: Any,
    cluster: Cluster | Instance | str | Sequence[Instance | str],
    job: Job | None = None,
    *,
    instance_count: int | str | None = None,
    max_days: float | str | None = None,
    max_usd: float | str | None = None,
    max_gpu_hours: float | str | None = None,
    library: str = "auto",
    framework: str | None = None,
    objective: str = "throughput",
    min_fit_probability: float = 0.95,
    script: str | None = None,
    data: str | None = None,
    on_progress: Progress | None = None,
    **settings: Unpack[AdviseSettings],
) -> Advice:
    """Recommend a model-parallel configuration and explain it. The result is live: its plan is what its views show.

    Parameters
    ----------
    model
        A parameter count (``10e9``, ``"10B"``), the name of a published model (``"llama-3-70b"``), a `Model`, a
        transformers config (object, dict, path of a ``config.json``; traced first if its family has no formulas), a
        ``torch.nn.Module`` (traced first) or a `Profile`.
    cluster
        A `Cluster`, or an instance name with `instance_count`. Several instances, or ``"any"``, leave the type open:
        `Advice.sizes` compares the clusters.
    job
        The training run; or its fields as keywords (``sequence_length=512``, ``tokens="300B"``). Without either, the
        sequence length is that of a `Profile`. With ``library="auto"``, the default precision and attention of a `Job`
        count as not set.
    instance_count
        Nodes, where `cluster` is an instance; 1 if not given. ``"smallest"`` is the smallest number that fits. Without
        a number, a deadline, a budget or several instances leave it open.
    max_days, max_usd, max_gpu_hours
        Deadline, budget and GPU-hours of the run, which needs `tokens`: 30, ``"250k"``, ``"20k"``. With a deadline,
        the cheapest cluster within it is recommended; with a budget or GPU-hours, the fastest.
    library
        ``auto`` chooses a library from instance, framework, fixed settings and model. `Advice.library_because` is the
        reason, and `Advice.library_comparisons` compares the others. Or the name of a library: ``smp-v1``,
        ``smp-v1-tensorflow``, ``smp-v2``, ``training-compiler``, ``ddp``, ``fsdp``.
    framework
        With ``library="auto"``, framework of the training script: ``"pytorch"``, ``"tensorflow"``, with a version if it
        is settled (``"pytorch 1.13"``). DDP, FSDP and SMP v2 then run in the container that has it or the nearest
        version.
    objective
        ``"throughput"``, ``"cost"`` (also tries fewer nodes and comparable instance types), ``"headroom"`` or
        ``"simplicity"``.
    min_fit_probability
        Only plans that fit with at least this probability are recommended.
    script, data
        Path of your own training script and S3 URI of its data, for the cell. If the script is on this machine, its
        kind of code is read (`read_stack`) and used where neither `job` nor the settings name one.
    on_progress
        Called while clusters are compared, with the number of those compared, that of all, and the next one's name.
        An interrupt (Ctrl-C, the notebook's stop button) ends the comparison with the clusters compared by then.
    **settings
        Fields of `Job`; of an inferred shape (`family`, `layers`, `hidden`, `heads`, `vocab`, `activation`); and fields
        of `Plan` to fix at a value (``tensor_parallel_degree=4``).

    Raises
    ------
    AdvisorError
        The input is wrong, or no plan fits. One sentence states the reason and a remedy.

    Examples
    --------
    >>> advice = advise("10B", "ml.p4d.24xlarge", instance_count=16, sequence_length=512)
    >>> advice.estimate.fits
    True
    """
    keywords: dict[str, Any] = {
        "instance_count": instance_count,
        "max_days": max_days,
        "max_usd": max_usd,
        "max_gpu_hours": max_gpu_hours,
        "library": library,
        "framework": framework,
        "objective": objective,
        "min_fit_probability": min_fit_probability,
        "script": script,
        "data": data,
    }
    return Advice(scripted(recommend(Request.of(model, cluster, job, **keywords, **settings), on_progress)))
