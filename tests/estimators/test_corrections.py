"""Whatever is wrong with a dictionary, its correction is one that the library takes, and is final."""

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smp_advisor import check_estimator
from smp_advisor.libraries.schema import schema
from smp_advisor.libraries.version import default_version

BASES = {
    "smp-v1": {
        "pipeline_parallel_degree": 2,
        "tensor_parallel_degree": 2,
        "microbatches": 4,
        "fp16": True,
        "ddp": True,
    },
    "smp-v2": {"hybrid_shard_degree": 8, "tensor_parallel_degree": 2, "sm_activation_offloading": False},
    "smp-v1-tensorflow": {"partitions": 4, "microbatches": 4, "pipeline": "interleaved"},
}
VALUES = st.one_of(
    st.integers(-2, 64),
    st.floats(-1e10, 1e10),
    st.sampled_from([5e8, float("inf"), "2", "True", "", "speed", "MEMORY", "simple", "DPT", None, True, False]),
)


def keys(library):
    known = sorted(schema(library).defaults(default_version(library)))
    typos = st.sampled_from(known).map(lambda key: key[:3] + key[4:])
    return st.one_of(st.sampled_from(known), typos, st.sampled_from(["nothing_like_it", "x"]))


@pytest.mark.slow
@pytest.mark.parametrize("library", BASES)
@given(data=st.data())
def test_the_corrected_dictionary_is_one_that_the_library_takes(library, data):
    changed = data.draw(st.dictionaries(keys(library), VALUES, max_size=4), "changes")
    require_final_correction(library, dict(BASES[library]) | changed)


def test_a_text_for_a_number_beside_settings_that_exclude_each_other():
    require_final_correction("smp-v1", BASES["smp-v1"] | {"microbatches": "2", "sharded_data_parallel_degree": 2})


def require_final_correction(library, changed):
    lines = "".join(f"    {key!r}: {_written(value)},  # {key}\n" for key, value in changed.items())
    text = f"mp_parameters = {{\n{lines}}}\n"
    report = check_estimator(text, library=library)
    again = check_estimator(report.corrected, library=library)
    ast.parse(report.corrected)
    assert not [one for one in again if one.fix is not None], str(again)
    assert again.corrected == report.corrected
    assert not [one for one in again if one.id == "EST501"], str(again)
    for key, value in changed.items():
        if f"{key!r}: {_written(value)}," in report.corrected:
            assert f"# {key}" in report.corrected
    if not again:
        assert again.plan is not None or "is not part of a plan" in again.unresolved[0].what


def _written(value):
    return "float('inf')" if value == float("inf") else repr(value)


def test_what_nobody_else_can_correct_is_left_to_the_author():
    text = """from sagemaker.pytorch import PyTorch
estimator = PyTorch(
    entry_point="train.py", role="arn:aws:iam::111122223333:role/x", instance_type="ml.p4d.24xlarge", instance_count=2,
    framework_version="1.13.1", py_version="py38", hyperparameters={"batch_size": 30},
    distribution={
        "smdistributed": {"modelparallel": {"enabled": True, "parameters": {"microbatches": 4, "ddp": True}}},
        "mpi": {"enabled": True, "processes_per_host": 8},
    },
)
"""
    report = check_estimator(text)
    assert report.corrected != text
    left = "Not corrected automatically (EST505): Invalid combination: batch_size must be a multiple of microbatches"
    assert left in " ".join(str(report).split())
    assert left in report._repr_html_()
    whole = check_estimator(text.replace("30", "32"))
    assert "Not corrected automatically" not in str(whole)
    assert "Corrected: PyTorch(...) is SMP v1" in str(whole)
