"""A job as a batch script of Slurm, which starts torchrun on each node."""

from __future__ import annotations

import math
import shlex
from typing import TYPE_CHECKING

from smp_advisor.errors import ExportError
from smp_advisor.export import header

if TYPE_CHECKING:
    from smp_advisor.export.cluster_job import ClusterJob

__all__ = ["sbatch"]

_END = "END_OF_FILE_OF_SMP_ADVISOR"


def sbatch(job: ClusterJob) -> str:
    """The batch script.

    Raises
    ------
    ExportError
        The library starts in SageMaker's containers only.
    """
    content = job.launch
    if content.library.of_sagemaker:
        raise ExportError(
            f"A Slurm job of {content.library.title} is not documented by AWS: export a HyperPod recipe, or use"
            " library='fsdp'."
        )
    seconds = content.run.seconds[2] if content.run.seconds else content.run.max_run_seconds
    hours = job.options.time_limit_hours or max(1, math.ceil(seconds / 3600))
    directives = {
        "job-name": job.name,
        "nodes": str(content.cluster.nodes),
        "ntasks-per-node": "1",
        "gpus-per-node": str(content.cluster.instance.gpus),
        "exclusive": "",
        "time": f"{hours}:00:00",
        "output": f"{job.name}-%j.log",
        "signal": "TERM@120",
        **({"partition": job.options.partition} if job.options.partition else {}),
    }
    lines = [
        "#!/usr/bin/env bash",
        *(f"#SBATCH --{name}={value}" if value else f"#SBATCH --{name}" for name, value in directives.items()),
        *header.summary_lines(content),
        "set -euo pipefail",
        "",
    ]
    if job.objection:
        lines += [
            "# The advisor does not expect this job to train. To start it anyway, set this variable to yes.",
            "START_ANYWAY=no",
            'if [ "$START_ANYWAY" != yes ]; then',
            f"    echo {shlex.quote(job.objection)} >&2",
            "    exit 1",
            "fi",
            "",
        ]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in job.environment.items()]
    lines += [f"mkdir -p {shlex.quote(job.directory)}/{{model,output,checkpoints}}", ""]
    script = job.options.script or f"{job.directory}/train_smp.py"
    if job.script:
        if _END in job.script:
            raise ExportError("The generated script contains the mark of its end: export its cell instead.")
        lines += [f"cat >{shlex.quote(script)} <<'{_END}'", job.script.rstrip("\n"), _END]
        lines += [f"cat >{shlex.quote(f'{job.directory}/requirements.txt')} <<'{_END}'"]
        lines += [job.launch.requirements.rstrip("\n"), _END, ""]
    container = ["--container-image", job.options.image_uri] if job.options.image_uri else []
    if container:
        container += ["--container-mounts", f"{job.options.shared_directory}:{job.options.shared_directory}"]
    torchrun = [
        "torchrun",
        f"--nnodes={content.cluster.nodes}",
        f"--nproc-per-node={content.cluster.instance.gpus}",
        "--rdzv-backend=c10d",
    ]
    lines += [
        "# Packages of requirements.txt have to be installed on the nodes or in the image.",
        'head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p)',
        " \\\n    ".join(
            [
                shlex.join(["srun", *container]),
                f'{shlex.join(torchrun)} --rdzv-id="$SLURM_JOB_ID" --rdzv-endpoint="$head:29500"',
                shlex.join([script, *job.arguments]),
            ]
        ),
    ]
    return "\n".join(lines) + "\n"
