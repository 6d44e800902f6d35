"""The estimator's cell: formatted, exactly the plan, and no text of a user can change what it does."""

import importlib.metadata
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smp_advisor.cluster import Cluster
from smp_advisor.errors import AdvisorError, ExportError, InstanceError
from smp_advisor.export import estimator_cell, script_cell
from smp_advisor.libraries import Plan
from smp_advisor.workload.job import Job
from smp_advisor.workload.model import Model
from tests.export.examples import CASES, P4D, TASK_CASES, make_model, training_script
from tests.export.random_jobs import HOSTILE
from tests.export.reading import estimator_arguments, formatted, shape, unformatted
from tests.libraries.plans import valid_plans

NASTY = st.sampled_from(
    [
        *(*HOSTILE, "'", "'''\"\"\"", "\\'", "\n", "\r\nimport os; os.abort()", "\u2028\x0c\x85", "{0}{name!r}"),
        *("$HOME ${x} %s %(x)s", "\x00\udc80", "日本 é 😀 \u202e", "f'{1}'"),
    ]
)
TEXT = st.lists(st.text(max_size=8) | NASTY, max_size=4).map("".join)
SPOKEN = TEXT.filter(str.strip)
SCALARS = TEXT | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.booleans()


def test_cells_are_formatted_as_black_formats(tmp_path):
    for place, case in enumerate((CASES | TASK_CASES).values()):
        (tmp_path / f"cell_{place}.py").write_text(estimator_cell(*case.parts, data="s3://bucket/train"))
        (tmp_path / f"script_{place}.py").write_text(training_script(*case.parts))
    assert unformatted(tmp_path) == ""


OTHERS = [
    Plan(library="smp-v2", hybrid_shard_degree=8),
    Plan(library="training-compiler"),
    Plan(library="training-compiler", version="1.11.0"),
    Plan(library="smp-v1-tensorflow", partitions=2, microbatches=2, batch_size=2),
    Plan(library="fsdp"),
]


@pytest.mark.slow
@given(
    st.sampled_from(OTHERS) | valid_plans(),
    st.sampled_from(["v2", "v3"]),
    TEXT,
    SPOKEN,
    st.none() | SPOKEN,
    TEXT,
    st.dictionaries(SPOKEN.filter(lambda t: t[0] != "s"), SCALARS, max_size=4),
)
def test_no_text_changes_what_a_cell_of_any_library_and_sdk_does(plan, sdk, name, script, source_dir, path, extra):
    def cell(name, script, source_dir, path, extra):
        return estimator_cell(
            make_model(name=name),
            Cluster(P4D, 2),
            Job(sequence_length=64),
            plan,
            sdk=sdk,
            script=script,
            source_dir=source_dir,
            job_name="job",
            data={"train": f"s3://bucket/{path}", "more": "fsx://fs-0123456789/fsx"},
            checkpoints=f"s3://bucket/{path}",
            subnets=["subnet-1"],
            security_group_ids=["sg-1"],
            extra_hyperparameters=extra,
        )

    own = {"batch_size", "activation_checkpointing", "precision", "max_steps", "checkpoint_every", "mp_parameters"}
    extra = {key: value for key, value in extra.items() if key not in own}
    try:
        hostile = cell(name, script, source_dir, path, extra)
    except ExportError as refusal:  # the start script of version 3 writes names and values for a shell
        assert sdk == "v3"
        assert str(refusal).startswith("Version 3")  # noqa: PT017 - any other text is no error
        assert not all(re.fullmatch(r"\w+", key, re.ASCII) and "'" not in f"{value}" for key, value in extra.items())
        return
    plain = {f"k{place}": "x" if isinstance(value, str) else value for place, value in enumerate(extra.values())}
    assert shape(hostile) == shape(cell("model", "train.py", None if source_dir is None else "code", "data", plain))
    assert formatted(hostile) == hostile
    if sdk == "v2":
        arguments = estimator_arguments(hostile)
        assert (arguments["entry_point"], arguments.get("source_dir")) == (script, source_dir)
        assert arguments["checkpoint_s3_uri"] == f"s3://bucket/{path}"
        assert extra.items() <= arguments["hyperparameters"].items()
    hostile.encode()


def test_text_arrives_as_text_under_version_3():
    """Version 3 sends text as it is, and the container decodes JSON: 'true' must not become a flag."""
    extra = {"flag": "true", "number": "1", "word": "hello", "quoted": '"x"', "real": 0.5}
    cell = call(sdk="v3", script="train.py", extra_hyperparameters=extra)
    for line in ('"flag": \'"true"\'', '"number": \'"1"\'', '"word": "hello"', '"real": 0.5'):
        assert f"{line}," in cell


def test_cells_are_written_for_the_sdk_that_is_installed(monkeypatch):
    def installed(**versions):
        def version(name):
            if name in versions:
                return versions[name]
            raise importlib.metadata.PackageNotFoundError(name)

        monkeypatch.setattr(importlib.metadata, "version", lambda name: version(name.replace("-", "_")))
        return "ModelTrainer(" in call()

    assert not installed(sagemaker="2.257.7")
    assert installed(sagemaker="3.27.0", sagemaker_train="1.27.0")
    assert installed(sagemaker_train="1.0")
    assert installed(), "new users install version 3"


def test_version_3_says_that_it_stands_in_for_what_aws_documents_with_version_2():
    assert "AWS documents this library for version 2 only" in call(sdk="v3")
    smp_v2 = Plan(library="smp-v2", hybrid_shard_degree=8)
    assert "AWS documents this library" not in call(plan=smp_v2, cluster=Cluster(P4D), sdk="v3", script="train.py")
    compiler = call(plan=Plan(library="training-compiler"), cluster=Cluster(P4D), sdk="v2")
    assert "AWS announced that Training Compiler receives no new releases" in compiler


@pytest.mark.slow
@settings(max_examples=30)  # each writes and compiles a script
@given(TEXT, st.dictionaries(SPOKEN.filter(lambda t: t != "model_type"), SCALARS, max_size=4))
def test_no_text_changes_what_a_script_does(name, settings_):
    case = CASES["10 B"]

    def script(name, config):
        model = make_model(name=name, config={"model_type": "gpt2", **config})
        return training_script(model, case.cluster, case.job, case.plan)

    # Configurations are sorted by key.
    values = [settings_[key] for key in sorted(settings_)]
    plain = {f"k{place}": "x" if isinstance(value, str) else value for place, value in enumerate(values)}
    hostile = script(name, settings_)
    not_kept = {"torch_dtype", "dtype", "architectures", "id2label", "label2id", "num_labels", "use_cache"}
    if not_kept.isdisjoint(settings_) and "rope_parameters" not in settings_:
        assert shape(hostile) == shape(script("model", plain))
    assert formatted(hostile) == hostile


@pytest.mark.parametrize("installed", ["3.27.0", "2.242.1"])
def test_processes_with_another_release_of_the_sdk_get_one_sentence(installed, monkeypatch):
    monkeypatch.setattr(importlib.metadata, "version", lambda _: installed)
    with pytest.raises(RuntimeError) as raised:
        exec(estimator_cell(*CASES["10 B"].parts, sdk="v2"), {})
    assert str(raised.value) == (
        f"This cell requires version 2 of the SageMaker Python SDK, 2.243 or later (installed: {installed}). Export the"
        ' cell for your version, or run %pip install "sagemaker>=2.243,<3" and restart the kernel.'
    )


def test_a_script_that_was_not_written_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "2.257.7")
    monkeypatch.chdir(tmp_path)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION"):
        monkeypatch.setenv(name, "us-west-2")
    cell = estimator_cell(*CASES["10 B"].parts, sdk="v2")
    # Another advice of the notebook wrote its script.
    own, other = (script_cell(*CASES[name].parts).partition("\n") for name in ("10 B", "60 B"))
    (tmp_path / other[0].split()[1]).write_text(other[2])
    name = own[0].split()[1]
    with pytest.raises(RuntimeError, match=f"{name} is missing: first run the cell that writes it"):
        exec(cell, {})
    (tmp_path / name).write_text(other[2])
    with pytest.raises(RuntimeError, match=f"{name} is of another model or plan: first run the cell"):
        exec(cell, {})


def test_script_of_a_model_that_is_code_is_left_to_the_user():
    model = make_model(config={})
    case = CASES["g4dn"]
    assert script_cell(model, *case.parts[1:]) == ""
    assert estimator_arguments(estimator_cell(model, *case.parts[1:], sdk="v2"))["entry_point"] == "train.py"


def test_any_name_of_a_model_makes_a_valid_job_name():
    def name_of(model_name):
        return estimator_arguments(call(model=make_model(name=model_name), sdk="v2"))["base_job_name"]

    assert name_of("-_/é" + "x " * 40).startswith("smp-x-x-")
    assert len(name_of("-_/é" + "x " * 40)) <= 38
    assert name_of("日本") == "smp-training"


def test_disk_holds_three_checkpoints():
    case, model = CASES["pipeline"], make_model(layers=4, parameters_per_block=1_000_000_000)

    def disk(plan, nodes=2):
        cluster = Cluster("ml.p3.16xlarge", nodes)
        cell = estimator_cell(model, cluster, case.job, plan, checkpoints="s3://bucket/1", sdk="v2")
        return estimator_arguments(cell)["volume_size"]

    # Replicas are the same, and one node writes them.
    for library, copies in (("ddp", 4), ("fsdp", 2)):
        plan = Plan(library=library, version="2.8.0", precision="fp16", batch_size=1)
        assert disk(plan) == pytest.approx(100 + 3 * 20 * copies, abs=1)
    assert disk(case.plan, 4) == pytest.approx(100 + 3 * 20 * 4, abs=1)


BASE = CASES["10 B"]


def call(**options):
    return estimator_cell(
        **{"model": BASE.model, "cluster": BASE.cluster, "job": BASE.job, "plan": BASE.plan} | options
    )


CUSTOM = Cluster.custom(
    gpu="A100 40GB",
    usable_gpu_memory_gib=39.4,
    peak_tflops=312,
    gpus_per_node=8,
    nodes=2,
    intra_node_gb_per_s=600,
    inter_node_gbps=400,
)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"sdk": "2"}, 'sdk must be "auto", "v2" or "v3"'),
        ({"cluster": CUSTOM}, "is not a SageMaker instance type"),
        ({"cluster": Cluster("ml.p5.48xlarge", 16)}, "cannot use ml.p5.48xlarge"),
        ({"data": "bucket/x"}, "must be an S3 URI"),
        ({"data": {"a b": "s3://bucket"}}, "not 'a b'"),
        ({"checkpoints": "/tmp"}, "checkpoints must be an S3 URI"),
        ({"job_name": "a_b"}, "job_name must have"),
        ({"max_run_seconds": 0}, "max_run_seconds"),
        ({"no_such": 1}, "A job has no option 'no_such'"),
        ({"spot": True, "checkpoints": False}, "starts from the beginning without checkpoints"),
        ({"spot": True, "checkpoints": "s3://b/c", "keep_alive_seconds": 60}, "no warm pools of spot instances"),
        ({"max_wait_seconds": 60}, "pass spot=True as well"),
        ({"spot": True, "checkpoints": "s3://b/c", "max_wait_seconds": 60}, "must be at least 3600, the running time"),
        (
            {"spot": True, "checkpoints": "s3://b/c", "max_wait_seconds": 60, "max_run_seconds": 90},
            "shorter than max_run",
        ),
        ({"keep_alive_seconds": 30_000}, "360 minutes"),
        ({"data": "fsx://fs-0123456789abcdef0/fsx"}, "accessible only from its own network"),
        ({"data": {"code": "s3://b/c"}}, "choose another name"),
        ({"subnets": ["subnet-1"]}, "pass both or neither"),
        ({"subnets": "subnet-1", "security_group_ids": ["sg-1"]}, "must be a list of ids"),
        ({"plan_hyperparameters": False}, "pass script= with its path"),
        ({"volume_gb": 0}, "volume_gb must be a whole number"),
        ({"max_run_seconds": 29 * 86_400}, "28 days"),
        ({"script": " "}, "script must be a string"),
        ({"source_dir": "code"}, "pass script="),
        ({"extra_hyperparameters": {"sagemaker_x": 1}}, "reserved by SageMaker"),
        ({"extra_hyperparameters": {"batch_size": 1}}, "change the plan instead"),
        ({"extra_hyperparameters": {"x": object()}}, "must be a string, a finite number"),
        ({"extra_hyperparameters": {"x": float("nan")}}, "must be a string, a finite number"),
        ({"extra_hyperparameters": {"x": "y" * 2500}}, "more than 2500 characters"),
        ({"extra_hyperparameters": {"x" * 257: 1}}, "more than 256 characters"),
        ({"extra_hyperparameters": {f"x{i}": 1 for i in range(100)}}, "100 hyperparameters"),
        ({"plan": replace(BASE.plan, version="1.9.0", fp16=False)}, "requires library version 1.10.0 or later"),
        (
            {"model": make_model("whisper", {"model_type": "whisper"})},
            "No training script can be generated for the family",
        ),
        ({"model": make_model(head="none")}, "has no head"),
        (
            {
                "plan": Plan(
                    pipeline_parallel_degree=2, microbatches=2, batch_size=2, auto_partition=False, default_partition=0
                )
            },
            "set auto_partition=True",
        ),
        ({"role": "it's"}, "role must be text such as 'arn:aws:iam::"),
        ({"region": "us-west-2 "}, "region must be text such as 'us-west-2'"),
        ({"training_plan": "mine"}, "training_plan must be text such as 'arn:aws:sagemaker:"),
        ({"output_path": "bucket"}, "output_path must be an S3 URI"),
        ({"output_path": "fsx://fs-0123456789abcdef0/fsx/x"}, "output_path must be an S3 URI"),
        ({"volume_kms_key": "'"}, "volume_kms_key must be text"),
        ({"input_mode": "Pipe"}, "input_mode must be text such as 'FastFile'"),
        ({"image_uri": "a\nb"}, "image_uri must be text"),
        ({"tags": {"aws:x": "y"}}, "must not start with aws:"),
        ({"tags": {"x": "a#b"}}, "letters, digits, spaces"),
        ({"tags": [("x", "y")]}, "tags must be a dictionary of strings"),
        ({"tags": {str(i): "" for i in range(51)}}, "SageMaker accepts 50"),
        ({"tags": {"x" * 129: ""}}, "1 to 128 characters"),
        ({"environment": {"A-B": "1"}}, "letters, digits and underscores"),
        ({"environment": {"A": 1}}, "environment must be a dictionary of strings"),
        ({"environment": {"A": "x" * 513}}, "at most 512"),
        (
            {"training_plan": "arn:aws:sagemaker:eu-west-1:123456789012:training-plan/mine", "spot": True},
            "has no spot instances",
        ),
        *(({"packages": wrong}, "packages must be a list") for wrong in ("mlflow", ["a\nb"], [3], ["-r x"])),
        ({"script": "mine.py", "packages": ["mlflow"]}, "requirements.txt in your source_dir"),
        ({"volume_kms_key": "alias/x"}, "has local disks, which SageMaker encrypts"),
        (
            {"plan": Plan(library="training-compiler", batch_size=4), "job": Job(), "image_uri": "x:1"},
            "accepts no image_uri with",
        ),
    ],
)
def test_what_sagemaker_would_refuse_is_refused_here(options, sentence):
    with pytest.raises(AdvisorError) as raised:
        call(**options)
    assert isinstance(raised.value, ExportError | InstanceError)
    assert sentence in str(raised.value)
    assert str(raised.value).endswith(".")
    assert "\n" not in str(raised.value)


def test_inferred_positions_follow_the_job_and_given_ones_are_never_changed():
    model = Model.from_parameters(10e9, family="gpt2")
    long, short = (call_script(model, Job(sequence_length=length)) for length in (4096, 512))
    assert '"n_positions": 4096,' in long
    assert "The advisor inferred 2048 positions" in long
    assert '"n_positions": 2048,' in short
    with pytest.raises(ExportError, match="has 64 positions and cannot train on sequences of 65 tokens"):
        call_script(TASK_CASES["gpt2"].model, Job(sequence_length=65))


def call_script(model, job):
    return training_script(model, BASE.cluster, job, BASE.plan)


def test_packages_of_the_user_are_installed_next_to_those_of_the_script():
    assert "mlflow>=3\\nsagemaker-mlflow\\n" in call(packages=["mlflow>=3", "sagemaker-mlflow"])


@pytest.mark.parametrize("sdk", ["v2", "v3"])
def test_the_head_states_requirements_before_the_first_import_that_can_fail(sdk):
    cell = call(sdk=sdk)
    assert cell.index("PackageNotFoundError") < cell.index("import boto3")
    assert "# Patches: " in cell
    assert "16 x ml.p4d.24xlarge (128 GPUs, about $404.02 per hour)" in cell
    assert '%pip install "sagemaker>=' in cell.split("\nfrom importlib")[0]
    assert "TensorBoardOutputConfig(" in cell
