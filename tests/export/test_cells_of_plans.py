"""Any plan that the search can return, on any instance: its cell is formatted, typed, and read back as the plan."""

import ast
import json
import re
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from types import SimpleNamespace

import boto3
import pytest
from botocore.stub import Stubber
from hypothesis import given
from hypothesis import strategies as st

from smp_advisor import advise, check_estimator
from smp_advisor.cluster import Cluster
from smp_advisor.errors import ExportError, InstanceError, PlanError
from smp_advisor.export import estimator_cell, quota_cell
from smp_advisor.export.template import render
from smp_advisor.libraries import Plan
from smp_advisor.libraries.library import LIBRARIES
from smp_advisor.libraries.schema import schema
from smp_advisor.libraries.space import enumerate_plans
from smp_advisor.libraries.version import supported_instances
from smp_advisor.workload.job import Job
from smp_advisor.workload.model import Model
from tests.export.examples import P4D, TASKS, make_model
from tests.export.reading import formatted, names_of

MODELS = {
    "smp-v1-tensorflow": Model.from_config({"model_type": "gpt2"}),
    "training-compiler": Model.from_config({"model_type": "bert"}),
}
LLAMA = Model.from_config(
    {"model_type": "llama", "num_hidden_layers": 8, "hidden_size": 1024, "num_attention_heads": 16}
)
TYPES = {"int": int, "float": float, "bool": bool, "str": str}


@cache
def space(library, instance, nodes, precision):
    """Every plan of a library on a cluster; None where it has none."""
    job = Job(sequence_length=512, precision=precision)
    try:
        return enumerate_plans(MODELS.get(library, LLAMA), Cluster(instance, nodes), job, library=library)
    except (PlanError, InstanceError):
        return None


@st.composite
def searched(draw):
    """A plan out of a search, with its cluster and job."""
    library = draw(st.sampled_from(LIBRARIES))
    # No container is built for the processors of the others.
    machines = [option for option in supported_instances(library) if option.cpu_architecture == "x86_64"]
    machine = draw(st.sampled_from(machines))
    instance, nodes = machine.name, draw(st.sampled_from([1, 2, 3, 16]))
    supported = [setting.choices for setting in schema(library).settings if setting.key == "precision"]
    names = supported[0] if supported else ("fp16", "bf16", "fp32")
    precision = draw(st.sampled_from([name for name in names if name != "bf16" or machine.bf16]))
    plans = space(library, instance, nodes, precision)
    if plans is None or not len(plans):
        plans, precision = space(library, "ml.p4d.24xlarge", 2, "fp32"), "fp32"
        instance, nodes = "ml.p4d.24xlarge", 2
    plan = plans.plan(draw(st.integers(0, len(plans) - 1)))
    return plan, Cluster(instance, nodes), Job(sequence_length=512, precision=precision)


def parameters_in(cell, plan, sdk):
    """The library's parameters as the cell writes them."""
    tree = ast.parse(cell)
    calls = {getattr(node.func, "id", ""): node for node in ast.walk(tree) if isinstance(node, ast.Call)}
    classes = {"training-compiler": "TrainingCompilerConfig"} if sdk == "v2" else {"smp-v2": "SMP"}
    if plan.library in classes:
        return {keyword.arg: ast.literal_eval(keyword.value) for keyword in calls[classes[plan.library]].keywords}
    key = "parameters" if sdk == "v2" else "mp_parameters"
    dictionaries = [
        ast.literal_eval(value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Dict)
        for name, value in zip(node.keys, node.values, strict=True)
        if isinstance(name, ast.Constant) and name.value == key
    ]
    return dictionaries[0] if dictionaries else {}


@pytest.mark.slow
@given(searched(), st.sampled_from(["v2", "v3"]))
def test_cells_of_any_plan_are_read_back_as_the_plan(example, sdk):
    plan, cluster, job = example
    model = MODELS.get(plan.library, LLAMA)
    cell = estimator_cell(model, cluster, job, plan, sdk=sdk, script="train.py", data="s3://bucket/train")
    assert formatted(cell) == cell
    if sdk == "v2" or plan.library != "training-compiler":
        # repr tells 1 from True and 1.0.
        assert repr(parameters_in(cell, plan, sdk)) == repr(plan.parameters)
    for key, value in plan.parameters.items():
        assert type(value) is TYPES[schema(plan.library).parameter(key).type]
    report = check_estimator(cell)
    assert report.plan == plan
    assert (report.cluster.instance.name, report.cluster.nodes) == (cluster.instance.name, cluster.nodes)


@pytest.mark.parametrize("instance", ["ml.p4d.24xlarge", "ml.p3.2xlarge"])
def test_the_price_tells_its_whole_source(instance):
    cluster = Cluster(instance, 1)
    lines = quota_cell(cluster).splitlines()
    first = lines.index(next(line for line in lines if line.startswith("QUOTA"))) + 1
    last = next(place for place in range(first, len(lines)) if not lines[place].startswith("# "))
    assert " ".join(line.removeprefix("# ") for line in lines[first:last]) == cluster.instance.price_note
    assert max(map(len, lines[first:last])) <= 90


def test_the_quota_cell_offers_training_plans():
    """Of instances that training plans reserve. The service's stub checks names and types of the request."""
    cell = quota_cell(Cluster("ml.p5.48xlarge", 2))
    client = boto3.client("sagemaker", region_name="us-west-2", aws_access_key_id="a", aws_secret_access_key="b")
    machines = {"InstanceType": "ml.p5.48xlarge", "InstanceCount": 2}
    offer = {
        "TrainingPlanOfferingId": "tpo-1",
        "TargetResources": ["training-job"],
        "DurationHours": 24,
        "UpfrontFee": "1500.00",
        "CurrencyCode": "USD",
        "ReservedCapacityOfferings": [machines | {"StartTime": datetime(2026, 12, 1, 11, 30, tzinfo=UTC)}],
    }
    names = {"INSTANCE": "ml.p5.48xlarge", "INSTANCES": 2, "RESERVED_HOURS": 24, "patience": None}
    names["aws"] = SimpleNamespace(client=lambda *_, **__: client)
    training_plans = names_of(cell, "training_plans", **names)["training_plans"]
    with Stubber(client) as stub:
        stub.add_response(
            "search_training_plan_offerings",
            {"TrainingPlanOfferings": [offer]},
            {**machines, "DurationHours": 24, "TargetResources": ["training-job"]},
        )
        assert training_plans() == ["24 h from 2026-12-01 11:30, price USD 1500.00 (tpo-1)"]
    assert "training_plan" not in quota_cell(Cluster("ml.g5.12xlarge", 2))


def test_advice_writes_every_cell_with_its_own_script_and_data():
    advice = advise(
        LLAMA, "ml.p4d.24xlarge", instance_count=2, library="smp-v1", sequence_length=512, data="s3://mine/train"
    )
    assert '"train": "s3://mine/train"' in advice.cell("v2")
    assert 'data_source="s3://mine/train"' in advice.cell("v3")
    assert 'data_source="s3://other"' in advice.cell("v3", data="s3://other")
    assert '"arn:aws:s3:::mine/train*",' in advice.permissions_cell()
    assert "INSTANCES, SECONDS = 2, 60" in advice.monitoring_cell()
    assert 'QUOTA = "ml.p4d.24xlarge for training job usage"' in advice.quota_cell()
    assert advice.local_cell().startswith("%%smp_local ")
    assert re.search(r"\([1-9][\d.]* M parameters\)", advice.cell())
    own = advise(LLAMA, "ml.p4d.24xlarge", instance_count=2, library="smp-v1", sequence_length=512, script="mine.py")
    assert own.script_cell() == ""
    assert own.local_cell().startswith("%smp_rehearse mine.py")


def _words(plan, **options):
    job = Job(sequence_length=64)
    cell = estimator_cell(make_model(family="llama"), Cluster("ml.p4d.24xlarge", 2), job, plan, sdk="v3", **options)
    return " ".join(cell.replace("\n#", "").split())


def test_a_cell_names_the_image_that_aws_patches():
    patched = "dkr.ecr.eu-south-1.amazonaws.com/pytorch:2.13.0-cu133-amzn2023-sagemaker"
    today = _words(Plan(library="fsdp"), region="eu-south-1")
    assert "Patches: AWS patches this image until 2027-07-20." in today
    assert f'image = "692866216735.{patched}"' in today
    assert "for the others" in _words(Plan(library="fsdp"))
    earlier = _words(Plan(library="fsdp", version="2.8.0"))
    assert "Patches: none since 2026-08-06." in earlier
    assert "until 2027-09-28: set version='2.14.0' in the plan." in earlier
    assert "Patches: AWS patches this image until 2027-07-20." in _words(Plan(library="fsdp"), image_uri=f"1.{patched}")
    own = "123456789012.dkr.ecr.us-west-2.amazonaws.com/mine:1"
    assert "Patches: yours." in _words(Plan(library="ddp"), image_uri=own)
    assert "SMP v2 has no newer image." in _words(Plan(library="smp-v2"))


DATA_CASE = (
    TASKS["llama"],
    Cluster("ml.p4d.24xlarge"),
    Job(sequence_length=32, precision="bf16"),
    Plan(library="fsdp", batch_size=2),
)
ANSWERS = '{"prompt": "a", "chosen": "b", "rejected": "c"}\n'


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ('{"text": "a"}\n\n{"prompt": "a", "completion": "b"}\n{"messages": [{"role": "assistant"}]}', ""),
        (ANSWERS, ""),
        (ANSWERS.replace("rejected", "worse"), "Line 1 of train/0.jsonl has no column rejected"),
        ('{"body": "a"}\n', "Line 1 of train/0.jsonl has only the columns body: see the top of train_smp.py"),
        ('{"text": "a"}\n{"prompt": "a"}\n', "Line 2 of train/0.jsonl has a prompt and no completion"),
        ('{"messages": [{"role": "user", "content": "a"}]}', "has no message of an assistant"),
        ('[\n{"text": "a"}]', "Line 1 of train/0.jsonl is no JSON object on one line"),
        (None, "s3://bucket/train has no files"),
        ("folder", "s3://bucket/train has no files"),
        ('[{"text": "a"}]', ""),
        ('{"messages": [{"role": "assistant"}]}', "the tokenizer of the job has no chat template"),
    ],
)
def test_the_first_rows_are_checked_before_the_job_starts(rows, words, capsys):
    places = {"train": "s3://bucket/train", "model": "s3://bucket/model"}
    tuned = replace(DATA_CASE[2], training="fine-tuning")
    objective = "dpo" if rows is not None and "chosen" in rows else None
    cell = estimator_cell(*DATA_CASE[:2], tuned, DATA_CASE[3], sdk="v2", data=places, objective=objective)
    part = cell[cell.index("def fault_of") : cell.index("import sagemaker")]
    body = SimpleNamespace(read=(rows or "").encode)
    # The console has an object for a folder, and save_to_disk a description; a list is a file of rows, too.
    name = "" if rows == "folder" else "0.json" if rows == '[{"text": "a"}]' else "0.jsonl"
    about = ["train/dataset_infos.json", *["train/a manifest.json"] * name.endswith("l")]
    keys = [*about * bool(name), f"train/{name}", "model/chat_template.jinja"]
    keys = keys[: -1 if "no chat template" in words else None] if name else keys[:1]
    contents = {} if rows is None else {"Contents": [{"Key": key} for key in keys]}
    s3 = SimpleNamespace(list_objects_v2=lambda **_: contents, get_object=lambda **_: {"Body": body})
    names = {"json": json, "aws": SimpleNamespace(client=lambda _: s3), "script": "train_smp.py"}
    if words:
        with pytest.raises(RuntimeError, match=re.escape(words)):
            exec(part, names)
    else:
        exec(part, names)
        exec(part, names | {"aws": SimpleNamespace(client=lambda _: 1 / 0)})
        assert "were not checked: division by zero" in capsys.readouterr().out


def test_data_without_rows_are_not_checked():
    """Pre-training reads text, not conversations."""
    assert 'if not {"text"} & set(row):' in estimator_cell(*DATA_CASE, sdk="v2", data="s3://bucket/train")
    vision = (TASKS["vit"], *DATA_CASE[1:])
    cell = estimator_cell(*vision, sdk="v3", data="s3://bucket/train")
    assert "fault_of" not in cell
    assert "has no files: correct data=" in cell, "of every channel"
    assert "fault_of" not in estimator_cell(*DATA_CASE, sdk="v3")


def defaults_of(**values):
    """What the cell for version 3 makes of an organization's defaults: the trainer after it."""
    record = SimpleNamespace
    trainer = record(tags=[record(key="team", value="own")], networking=None, output_data_config=None)
    trainer.compute = record(volume_kms_key_id=None)
    session = record(sagemaker_config={"SageMaker": {"TrainingJob": values}} if values else None)
    names = {"trainer": trainer, "session": session} | dict.fromkeys(("Networking", "OutputDataConfig", "Tag"), record)
    exec(render("job_defaults.py.in", v3=True, has_volumes=True), names)
    return trainer


def test_the_defaults_of_an_organization_are_passed_on_and_named(capsys):
    trainer = defaults_of(
        VpcConfig={"Subnets": ["subnet-1"], "SecurityGroupIds": ["sg-1"]},
        EnableNetworkIsolation=True,
        Tags=[{"Key": "team", "Value": "theirs"}, {"Key": "org", "Value": "research"}],
        OutputDataConfig={"KmsKeyId": "key-1"},
        ResourceConfig={"VolumeKmsKeyId": "key-2"},
    )
    assert (trainer.networking.subnets, trainer.networking.enable_network_isolation) == (["subnet-1"], True)
    assert [(tag.key, tag.value) for tag in trainer.tags] == [("team", "own"), ("org", "research")]
    assert (trainer.output_data_config.kms_key_id, trainer.compute.volume_kms_key_id) == ("key-1", "key-2")
    printed = capsys.readouterr().out
    assert "EnableNetworkIsolation, OutputDataConfig, ResourceConfig, Tags, VpcConfig." in printed
    assert "cannot install requirements.txt" in printed
    assert defaults_of().networking is None
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"data": {"my-data": "s3://bucket/data"}}, "the channel 'my-data', whose name may have letters"),
        ({"extra_hyperparameters": {"optimizer.lr": 0.1}}, "the hyperparameter 'optimizer.lr', whose name may have"),
        ({"extra_hyperparameters": {"note": "it's"}}, "writes the value of 'note' between apostrophes"),
    ],
)
def test_version_3_refuses_what_its_start_script_cannot_export(options, sentence):
    parts = (
        TASKS["llama"],
        Cluster(P4D, 2),
        Job(sequence_length=32, precision="bf16"),
        Plan(library="fsdp", batch_size=2),
    )
    with pytest.raises(ExportError, match=re.escape(sentence)):
        estimator_cell(*parts, sdk="v3", **options)
    estimator_cell(*parts, sdk="v2", **options)
