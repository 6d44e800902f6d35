"""What people paste, read as it would run and never run."""

import json
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smp_advisor import check_estimator
from smp_advisor.cluster import Cluster
from smp_advisor.costs import estimate
from smp_advisor.errors import AdvisorError
from smp_advisor.estimators import looks_like_estimator
from smp_advisor.libraries import Plan
from smp_advisor.workload import Model
from smp_advisor.workload.adapter import Adapter
from tests.estimators import cells
from tests.estimators.cells import PARAMETERS, written

PLAN = Plan(pipeline_parallel_degree=2, microbatches=4, fp16=True, batch_size=4)


def test_what_is_copied_from_a_page_is_read_with_its_spaces_and_quotes():
    indented = "\n".join(f"\u00a0\u00a0  {line}" for line in cells.V1.splitlines()).replace(
        '"fp16"', "\u201cfp16\u201d"
    )
    report = check_estimator(indented.replace("True,", "1,", 2))
    assert check_estimator(indented).plan == check_estimator(cells.V1).plan
    assert "EST501" in {one.id for one in report}
    assert check_estimator(report.corrected).plan == check_estimator(cells.V1).plan


def test_a_piece_of_a_call_is_read():
    piece = cells.V2[cells.V2.index("    framework_version") : cells.V2.index("    hyperparameters")]
    report = check_estimator(piece)
    assert report.plan.hybrid_shard_degree == 8
    assert not report, str(report)
    broken = check_estimator(piece.replace('"hybrid_shard_degree": 8', '"hybrid_shard_degree": 8.0'))
    assert '"hybrid_shard_degree": 8,' in broken.corrected


def test_what_an_ellipsis_leaves_out_is_not_judged():
    elided = cells.V1.replace("    debugger_hook_config=False,\n", "    ...\n").replace(
        '        "fp16": True,\n', "        ...\n"
    )
    report = check_estimator(elided)
    assert not report, str(report)
    assert report.plan is None
    assert any("replaces a part" in note.what for note in report.unresolved)
    wrong = elided.replace('"microbatches": 4', '"microbatches": 4.0')
    assert check_estimator(wrong).corrected == elided


def test_another_dictionary_with_parameters_is_none_of_a_job():
    with pytest.raises(AdvisorError, match="does not configure a training job"):
        check_estimator("payload = {'inputs': 'x', 'parameters': {'do_sample': True, 'top_p': 0.9}}\n")


@pytest.mark.parametrize(
    "pasted",
    [
        PARAMETERS,
        {"enabled": True, "parameters": PARAMETERS},
        {"modelparallel": {"enabled": True, "parameters": PARAMETERS}},
        {
            "smdistributed": {"modelparallel": {"enabled": True, "parameters": PARAMETERS}},
            "mpi": {"enabled": True, "processes_per_host": 8},
        },
    ],
)
def test_a_dictionary_is_read_as_object_as_python_and_as_json(pasted):
    for form in (pasted, repr(pasted), f"smp_options = {pasted!r}\n", json.dumps(pasted), json.dumps(pasted, indent=2)):
        report = check_estimator(form)
        assert report.plan == PLAN, form
        assert not report, str(report)


def test_the_library_of_a_dictionary_can_be_said():
    shared = {"tensor_parallel_degree": 2}
    assert check_estimator({**shared, "ddp": True}).plan.library == "smp-v1"
    assert check_estimator(shared, library="smp-v2").plan == Plan(library="smp-v2", tensor_parallel_degree=2)
    with pytest.raises(AdvisorError, match="library must be one of"):
        check_estimator(shared, library="smp")
    delayed = check_estimator({**shared, "delayed_parameter_initialization": True}, library="smp-v2")
    assert delayed.plan.delayed_parameter_initialization
    assert not delayed


@pytest.mark.parametrize(
    "cell",
    [
        "from sagemaker.train import ModelTrainer\nt = ModelTrainer.from_recipe(training_recipe='training/llama/x')\n",
        "from sagemaker.pytorch import PyTorch\ne = PyTorch(training_recipe='training/llama/x', role='r')\n",
    ],
)
def test_a_job_that_takes_a_recipe_asks_for_it(cell):
    with pytest.raises(AdvisorError, match="paste the YAML of the recipe"):
        check_estimator(cell)
    report = check_estimator(f"{cell}{cells.V1}")
    assert report.plan == check_estimator(cells.V1).plan
    assert any("paste the YAML" in note.what for note in report.unresolved)


def test_parameters_among_the_hyperparameters_are_read():
    cell = written("parameters = {}").replace(
        "    debugger_hook", f"    hyperparameters={{'mp_parameters': {PARAMETERS}}},\n    debugger_hook"
    )
    assert check_estimator(cell).plan == PLAN


def test_the_description_of_a_job_is_read_with_its_dates():
    described = json.loads(cells.REQUEST) | {"CreationTime": datetime(2026, 11, 21, tzinfo=UTC), "Other": {1: object()}}
    assert check_estimator(described).plan == check_estimator(cells.REQUEST).plan
    endless = dict(described)
    endless["Tags"] = endless
    with pytest.raises(AdvisorError, match="cannot be shown"):
        check_estimator(endless)


def test_the_arguments_of_an_estimator_are_read_as_a_dictionary():
    sharded = {"smdistributed": {"modelparallel": {"enabled": True, "parameters": PARAMETERS}}}
    arguments = {"entry_point": "train.py", "role": "role", "framework_version": "1.13.1", "py_version": "py39"}
    arguments |= {"instance_type": "ml.p4d.24xlarge", "instance_count": 2}
    arguments |= {"distribution": {**sharded, "mpi": {"enabled": True, "processes_per_host": 8}}}
    arguments |= {"hyperparameters": {"batch_size": 8, "activation_checkpointing": "each"}}
    arguments |= {"debugger_hook_config": False, "disable_profiler": True}
    report = check_estimator(arguments)
    assert (report.plan.batch_size, report.plan.activation_checkpointing) == (8, "each")
    assert not report, str(report)
    report = check_estimator({key: value for key, value in arguments.items() if key != "debugger_hook_config"})
    assert [one.id for one in report] == ["EST507"]
    assert "'debugger_hook_config': False" in report.corrected
    del arguments["entry_point"], arguments["role"]
    assert check_estimator(arguments).plan.batch_size == 8


def test_json_is_corrected_as_json():
    report = check_estimator(json.dumps(PARAMETERS | {"microbatches": 0, "fp16": 1}, indent=1))
    assert json.loads(report.corrected) == PARAMETERS | {"microbatches": 1}


def test_a_recipe_tells_plan_cluster_model_and_job():
    report = check_estimator(cells.RECIPE)
    assert report.plan == Plan(
        library="smp-v2", version="2.8.0", hybrid_shard_degree=64, tensor_parallel_degree=2, batch_size=2, fp8=True
    )
    assert report.cluster == Cluster("ml.p5.48xlarge", 16)
    assert report.model.parameter_count == 8_030_261_248
    assert (report.job.sequence_length, report.job.fp8) == (8192, True)


def test_a_recipe_of_an_adapter_is_read_with_every_degree():
    report = check_estimator(cells.ADAPTER_RECIPE, cluster="p5.48xlarge")
    plan, adapter = report.plan, report.job.adapter
    assert (plan.library, plan.hybrid_shard_degree, plan.context_parallel_degree) == ("smp-v2", 64, 8)
    assert (plan.offload_activations, plan.activation_loading_horizon, plan.fp8) == (True, 1, False)
    assert adapter == Adapter(rank=16, targets="all-linear", base_bits=4, double_quantization=True)
    assert report.cluster == Cluster("ml.p5.48xlarge", 16)
    assert report.main.estimate.fits


@pytest.mark.parametrize(
    ("modules", "targets"),
    [
        ('["q_proj", "k_proj", "v_proj", "o_proj"]', "attention"),
        ('["language_model.layers.*self_attn.(q_proj|k_proj|v_proj|o_proj)"]', "attention"),
        ("[q_proj, v_proj]", "query-value"),
        ("[q_a_proj, o_proj]", "all-linear"),
        ("null", "all-linear"),
    ],
)
def test_the_adapted_modules_of_a_recipe_select_the_targets(modules, targets):
    report = check_estimator(f"{cells.ADAPTER_RECIPE}    target_modules: {modules}\n")
    assert report.job.adapter.targets == targets
    assumed = [sentence for sentence in report.main.inferred if "all linear products" in sentence]
    assert bool(assumed) == (targets == "all-linear")


def test_a_recipe_without_an_instance_reports_that_it_needs_one():
    report = check_estimator(cells.ADAPTER_RECIPE)
    assert report.cluster is None
    assert any("names no instance, so memory is not checked" in note.what for note in report.unresolved)
    smaller = check_estimator(cells.ADAPTER_RECIPE, cluster=Cluster("ml.p5.48xlarge", 8))
    assert smaller.cluster.nodes == 8
    assert any("8 nodes, those of your cluster instead of the 16" in sentence for sentence in smaller.main.inferred)
    with pytest.raises(AdvisorError, match="for cluster a Cluster, an Instance"):
        check_estimator(cells.ADAPTER_RECIPE, cluster=8)


def test_a_recipe_with_blocks_of_another_kind_has_no_memory_figure():
    report = check_estimator(cells.RECIPE.replace("llama_v3", "llama_v4"))
    assert report.model is None
    assert any("whose blocks no shape describes" in note.what for note in report.unresolved)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: &x [1]\nb: *x\ntrainer: 1\n", "not a recipe"),
        ("trainer: !!python/object/apply:os.system ['true']\nmodel: {}\n", "not valid YAML"),
        ("trainer: !!bool maybe\nmodel: {}\n", "not valid YAML"),
        ("trainer: !!timestamp today\nmodel: {}\n", "not valid YAML"),
        ("trainer:\n  devices: [\nmodel:", "not valid YAML, line 3"),
        ("just: a mapping\n", "not a recipe"),
    ],
)
def test_yaml_that_is_no_recipe_is_said(text, said):
    with pytest.raises(AdvisorError, match=said):
        check_estimator(text)


def test_recipes_of_other_trainers_are_refused_with_the_reason():
    report = check_estimator(cells.RECIPE.replace("use_smp_model: True\n", ""))
    assert report.plan is None
    assert "use_smp_model" in report.unresolved[0].what


def test_requests_of_correct_jobs_read_into_plans(root):
    found = {}
    for path in sorted((root / "tests/export/golden").glob("*.json")):
        report = check_estimator(path)
        assert report.plan is not None, path
        assert not [one for one in report if one.severity == "error"], report
        found[path.stem] = report.plan.library
    assert set(found.values()) == {"smp-v1", "smp-v2", "training-compiler"}


@pytest.mark.parametrize(
    "junk", ["", " \n", "x = 1", "def (", "print('hello')", "{}", "[1, 2]", "{'a': 1}", 7, None, []]
)
def test_junk_is_one_sentence(junk):
    with pytest.raises(AdvisorError) as raised:
        check_estimator(junk)
    assert str(raised.value).count(". ") == 0
    assert str(raised.value).endswith(".")


def test_files_that_cannot_be_read_are_said(tmp_path):
    binary = tmp_path / "recipe.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    for path in (binary, tmp_path / "missing.yaml", tmp_path / "missing.py", tmp_path):
        with pytest.raises(AdvisorError):
            check_estimator(path)


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused_in_a_sentence(text):
    with suppress(AdvisorError):
        check_estimator(text)


@given(st.data())
def test_any_piece_of_a_cell_is_read_or_refused_in_a_sentence(data):
    base = data.draw(st.sampled_from([cells.V1, cells.TRAINER, cells.RECIPE, cells.REQUEST]))
    start = data.draw(st.integers(0, len(base)))
    end = data.draw(st.integers(start, len(base)))
    text = base[:start] + data.draw(st.sampled_from(["", "None", "{", "'x'", "**y", "0", "[]"])) + base[end:]
    with suppress(AdvisorError):
        report = check_estimator(text)
        str(report)
        report._repr_html_()
        report.to_json()


def test_text_of_the_user_is_escaped():
    hostile = cells.V1.replace('"fp16": True', "\"<script>alert('1')</script>\": True")
    html = check_estimator(hostile)._repr_html_()
    assert "<script>alert" not in html
    assert "&lt;script&gt;" in html


def test_an_estimator_is_told_from_a_script(tmp_path):
    assert looks_like_estimator(cells.V1)
    notebook = tmp_path / "launch.ipynb"
    notebook.write_text(json.dumps({"cells": [{"cell_type": "code", "source": cells.V1}]}), "utf-8")
    assert looks_like_estimator(notebook)
    assert looks_like_estimator(cells.RECIPE)
    assert not looks_like_estimator("import torch\nmodel = torch.nn.Linear(1, 1)\n")
    assert not looks_like_estimator("def (")


@pytest.mark.parametrize(
    ("script", "is_exported"), [("train.py", False), ("src/train_smp.py", True), ("train_llama-3-8b_4ebaea32.py", True)]
)
def test_a_loss_in_parts_is_that_of_the_exported_script_only(script, is_exported):
    model = Model.from_name("llama-3-8b")
    hyperparameters = {"lora_r": 16, "lora_alpha": 32, "per_device_train_batch_size": 4, "max_seq_length": 2048}
    cell = (
        f"PyTorch(entry_point={script!r}, role=role, instance_type='ml.p4d.24xlarge', instance_count=1,"
        " framework_version='2.8.0', py_version='py312', distribution={'torch_distributed': {'enabled': True}},"
        f" hyperparameters={hyperparameters | {'fsdp': 'full_shard auto_wrap', 'bf16': True}!r})"
    )
    read = check_estimator(cell, model=model)
    logits = [
        estimate(model, read.cluster, job, read.plan).memory.peak.logits_gib
        for job in (read.job, replace(read.job, stack="hf-sdpa"))
    ]
    assert (logits[0] < 0.5 * logits[1]) == is_exported


def test_the_recommended_plan_keeps_the_batch_and_is_no_slower():
    report = check_estimator(cells.V1, model=Model.from_shape(layers=24, hidden=2048, heads=16, vocab=50_257))
    advice = report.recommended()
    assert advice.estimate.fits
    assert advice.estimate.global_batch_size == report.main.estimate.global_batch_size
    assert advice.estimate.samples_per_second >= 0.999 * report.main.estimate.samples_per_second
    compared = advice.compare(report.plan)
    assert {"Batch size", "Tensor parallel degree", "Activation checkpointing"} <= {
        row.label for row in compared.settings
    }
    assert "throughput" in compared.summary


def test_without_a_model_or_plan_nothing_is_recommended_and_recipes_refuse_accumulation():
    with pytest.raises(AdvisorError, match="describe the model"):
        check_estimator(cells.V1).recommended()
    with pytest.raises(AdvisorError, match="no plan"):
        check_estimator({"partitions": 2, "ddp": True}).recommended("10B")
    report = check_estimator(cells.RECIPE)
    assert report.recommended().plan.gradient_accumulation_steps == 1
    assert report.recommended(gradient_accumulation_steps=8).plan.gradient_accumulation_steps == 8
