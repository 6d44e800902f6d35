"""The emitted cells start their job from a real kernel, configured by environment variables alone."""

from __future__ import annotations

import json
import os

import pytest

from smp_advisor.export import estimator_cell, script_cell
from tests.export.examples import CASES
from tests.moto_harness.proxy import mock_account

pytestmark = [pytest.mark.moto, pytest.mark.slow]


def test_notebook_starts_the_job_that_the_plan_says(tmp_path):
    import nbformat
    from nbclient import NotebookClient

    parts = CASES["10 B"].parts
    cells = [script_cell(*parts), estimator_cell(*parts, data="s3://bucket/train")]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    with mock_account() as account:
        client = NotebookClient(
            notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
        )
        client.execute(env=os.environ | account.environment)
        (job,) = account.jobs()
    assert job["ResourceConfig"]["InstanceType"] == "ml.p4d.24xlarge"
    assert job["ResourceConfig"]["InstanceCount"] == 16
    assert job["RoleArn"] == "arn:aws:iam::123456789012:role/SageMakerRole"
    assert job["AlgorithmSpecification"]["TrainingImage"].endswith("/pytorch-training:1.13.1-gpu-py39")
    sent = {key: json.loads(value) for key, value in job["HyperParameters"].items()}
    assert sent["mp_parameters"] == {
        "pipeline_parallel_degree": 1,
        "tensor_parallel_degree": 4,
        "microbatches": 1,
        "ddp": True,
        "optimize": "speed",
        "prescaled_batch": True,
        "shard_optimizer_state": True,
        "fp16": True,
    }
    assert (sent["batch_size"], sent["sagemaker_mpi_num_of_processes_per_host"]) == (40, 8)
    outputs = [output.get("text", "") for output in notebook.cells[1].outputs]
    assert any(job["TrainingJobName"] in text for text in outputs)
