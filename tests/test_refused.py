"""What is refused, in one sentence that helps: `refused.toml` has a row for each wrong input of each call."""

import tomllib
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

import smp_advisor as smpa
from smp_advisor.arguments import amount_of
from smp_advisor.cluster import gpu
from smp_advisor.errors import AdvisorError, ClusterError, InstanceError, JobError, ModelError, PlanError
from smp_advisor.libraries import check_against, require_supported_instance
from smp_advisor.workload import Overheads, parse_count

HARDWARE = {
    "gpu": "A100 80GB", "usable_gpu_memory_gib": 79.0, "peak_tflops": 312.0, "gpus_per_node": 4, "nodes": 2,
    "intra_node_gb_per_s": 600.0, "inter_node_gbps": 200.0,
}  # fmt: skip


def configuration(text: str) -> smpa.Model:
    with TemporaryDirectory() as folder:
        file = Path(folder) / "config.json"
        file.write_text(text)
        return smpa.Model.from_config(file)


def suited(*, cluster: dict[str, Any] | None = None, model: Any = None, job: Any = None, **fields: Any) -> None:
    """Whether a plan suits a cluster, a model and a job."""
    check_against(smpa.Plan(**fields), cluster or smpa.Cluster("ml.p4d.24xlarge", 2), model, job)


CALLS = {
    "Adapter": (smpa.Adapter, JobError),
    "Cluster": (smpa.Cluster, (ClusterError, InstanceError)),
    "Cluster.custom": (lambda **changes: smpa.Cluster.custom(**HARDWARE | changes), ClusterError),
    "Job": (smpa.Job, JobError),
    "Model.from_config": (smpa.Model.from_config, ModelError),
    "Model.from_config of a file": (configuration, ModelError),
    "Model.from_name": (smpa.Model.from_name, ModelError),
    "Model.from_parameters": (smpa.Model.from_parameters, ModelError),
    "Model.from_shape": (smpa.Model.from_shape, ModelError),
    "Overheads": (Overheads, JobError),
    "Plan": (smpa.Plan, PlanError),
    "Plan.from_parameters": (smpa.Plan.from_parameters, PlanError),
    "advise": (smpa.advise, AdvisorError),
    "amount_of max_days": (lambda written: amount_of("max_days", written, "30"), AdvisorError),
    "check_against": (suited, PlanError),
    "gpu": (gpu, ClusterError),
    "parse_count": (parse_count, ModelError),
    "tuples": (lambda rows: tuple(tuple(row) if isinstance(row, list) else row for row in rows), JobError),
    "require_supported_instance": (require_supported_instance, InstanceError),
}
VALUES = {"None": None, "bytes": b"bytes", "object": object(), "many digits": 10**2600, "open brackets": "[" * 100_000}
"""Values that TOML does not have."""


def built(value: Any) -> Any:
    """A value of the table, in which ``{call = ...}`` stands for the result of a call."""
    if not isinstance(value, dict):
        return value
    arguments = {name: built(entry) for name, entry in value.items()}
    name = arguments.pop("call", "")
    if name in VALUES:
        return VALUES[name]
    return CALLS[name][0](**arguments) if name else arguments


ROWS = tomllib.loads(Path(__file__).with_name("refused.toml").read_text("utf-8"))


@pytest.mark.parametrize("call", ROWS)
def test_refused_in_one_sentence_and_accepted_once_it_is_heeded(call: str, subtests: pytest.Subtests) -> None:
    function, error = CALLS[call]
    for number, row in enumerate(ROWS[call]):
        with subtests.test(f"row {number}"):
            with pytest.raises(error) as refusal:
                function(**built(row["with"]))
            sentence = str(refusal.value)
            assert row["words"] in sentence
            assert sentence.endswith((".", "?"))
            assert "\n" not in sentence
            assert len(sentence) < 600
            if "instead" in row:
                function(**built(row["with"] | row["instead"]))
