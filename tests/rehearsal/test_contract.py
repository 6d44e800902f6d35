"""What a script is started with: arguments and variables as the toolkit of version 2 and the driver of version 3."""

import importlib
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from smp_advisor.errors import AdvisorError
from smp_advisor.rehearsal import findings, request
from smp_advisor.rehearsal.contract import (
    Job,
    arguments,
    differing,
    make_folders,
    of_launcher,
    unexportable,
    variables,
)
from smp_advisor.rehearsal.jobs import job_of
from smp_advisor.rehearsal.request import interpreter_of, pins_of

VALUES = {
    "epochs": 1, "lr": 0.0005, "flag": True, "none": None, "l": 3, "dash-key": "x",
    "mp_parameters": {"pipeline_parallel_degree": 2, "ddp": True}, "sagemaker_region": "here",
}  # fmt: skip


def test_arguments_are_those_of_both_versions():
    second = ["--dash-key", "x", "--epochs", "1", "--flag", "True", "-l", "3", "--lr", "0.0005"]
    second += ["--mp_parameters", "ddp=True,pipeline_parallel_degree=2", "--none", ""]
    assert arguments(VALUES) == second
    third = arguments(VALUES, 3)
    assert third[:8] == ["--epochs", "1", "--lr", "0.0005", "--flag", "true", "--none", "null"]
    assert third[-1] == '{"pipeline_parallel_degree": 2, "ddp": true}'
    assert unexportable({"a.b": 1, "c-d": 2}, 3) == ["a.b"]
    assert unexportable({"a.b": 1}, 2) == []


def test_folders_and_variables_name_the_channels_and_their_mode(tmp_path):
    rows = tmp_path / "rows"
    rows.mkdir()
    cell = """
estimator = PyTorch(entry_point="train.py", hyperparameters={"lr": 0.1}, distribution={"torch_distributed": {}})
estimator.fit({"train": TrainingInput("s3://bucket/rows", input_mode="FastFile")})
"""
    job, _ = job_of(cell)
    assert (job.channels, job.launches) == ({"train": "FastFile"}, True)
    (rows / "inner").mkdir()
    (rows / "inner/a.csv").write_text("1\n")
    make_folders(tmp_path / "ml", job, {"train": rows, "own": rows, "none": None}, 2)
    data = tmp_path / "ml/input/data"
    assert (data / "train").is_symlink()  # the mount itself
    assert not (data / "own").is_symlink()
    (data / "own/inner/new.csv").write_text("of the job\n")
    assert (data / "own/inner/a.csv").read_text() == "1\n"
    assert [path.name for path in rows.rglob("*.csv")] == ["a.csv"]
    assert [*(data / "none").iterdir()] == []
    shown = variables(tmp_path / "ml", job, "train.py", ["train"], host=1, hosts=2, gpus=1)
    assert shown["SM_CHANNEL_TRAIN"] == str(tmp_path / "ml/input/data/train")
    assert json.loads(shown["SM_INPUT_DATA_CONFIG"]) == {"train": {"TrainingInputMode": "FastFile"}}
    assert json.loads(shown["SM_HOSTS"]) == ["algo-1", "algo-2"]
    assert (shown["SM_CURRENT_HOST"], shown["SM_HP_LR"], shown["SM_NUM_GPUS"]) == ("algo-2", "0.1", "1")
    config = tmp_path / "ml/input/config"
    assert json.loads((config / "hyperparameters.json").read_text()) == {"lr": "0.1"}
    assert json.loads((config / "resourceconfig.json").read_text())["current_host"] == "algo-1"
    second = of_launcher(job, 1, 2, 1, 29_500)
    ranks = [second[name] for name in ("RANK", "LOCAL_RANK", "GROUP_RANK", "LOCAL_WORLD_SIZE")]
    assert ranks == ["1", "0", "1", "1"]
    assert "OMPI_COMM_WORLD_RANK" not in second
    assert job_of({"hyperparameters": {}, "input_mode": "FastFile"})[0] == Job(is_given=True, input_mode="FastFile")


@pytest.mark.parametrize(
    ("start", "has"),
    [
        (
            'ModelTrainer(source_code=SourceCode(entry_script="a.py"), distributed=MPI(process_count_per_node=8))',
            "OMPI",
        ),
        ('PyTorch(entry_point="a.py", distribution={"mpi": {"enabled": True}})', "OMPI MASTER"),
        ('PyTorch(entry_point="a.py", distribution={"smdistributed": {"dataparallel": {}}})', "OMPI MASTER RANK"),
        ('PyTorch(entry_point="a.py", distribution=[1])', "OMPI MASTER RANK"),
        ("mpirun -np 8 python train.py", "OMPI MASTER"),
        ("torchrun --nproc_per_node 8 --log_dir compiled train.py", "MASTER RANK"),
        ('ModelTrainer(source_code=SourceCode(entry_script="a.py"), distributed=Torchrun())', "MASTER RANK"),
    ],
)
def test_a_process_has_the_variables_of_its_launcher(start, has):
    given = of_launcher(job_of(start)[0], 1, 4, 2, 29_500)
    names = {"OMPI": "OMPI_COMM_WORLD_LOCAL_RANK", "MASTER": "MASTER_ADDR", "RANK": "RANK"}
    assert [word for word, name in names.items() if name in given] == has.split()


def test_a_cell_states_channels_and_the_versions_of_its_image():
    cell = """
estimator = HuggingFace(
    entry_point="a.py", transformers_version="4.49.0", pytorch_version="2.5.1", input_mode="FastFile"
)
estimator.fit({"train": "s3://bucket/a", "test": TrainingInput("s3://bucket/b", input_mode="File")})
"""
    job, extra = job_of(cell)
    assert job.channels == {"train": "FastFile", "test": "File"}
    assert extra["versions"] == {"torch": "2.5.1", "transformers": "4.49.0"}
    job, extra = job_of("""
trainer = ModelTrainer(training_image=f"{account}.dkr.ecr/x", source_code=SourceCode(entry_script="a.py"))
trainer.train(input_data_config=[InputData(channel_name="train", data_source="s3://bucket/a")])
""")
    assert (job.channels, extra["versions"]) == ({"train": "File"}, {})
    job, extra = job_of("""
def settings(epochs):
    return {"epochs": epochs, "bucket": f"{bucket}/rows"} | {"lr": 2 * 0.1}
trainer = ModelTrainer(source_code=SourceCode(source_dir="src", command="torchrun src/a.py --lr 1"),
                       hyperparameters=settings(3), checkpoint_config=CheckpointConfig(s3_uri="s3://bucket"))
""")
    start = (dict(job.hyperparameters), job.command, job.launches, job.keeps_checkpoints, extra["source_dir"])
    assert start == ({"epochs": 3, "lr": 0.2}, ("--lr", "1"), True, True, "src")
    image = "763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-training:2.7.1-gpu-py312"
    assert job_of(f'PyTorch(entry_point="a.py", image_uri="{image}")')[1]["versions"] == {"torch": "2.7.1"}


@pytest.mark.torch
def test_samples_are_the_same_with_any_padding_and_others_are_not():
    torch, digest_of = pytest.importorskip("torch"), importlib.import_module("smp_advisor.rehearsal.observer").digest_of

    def samples(*columns):
        return digest_of([torch.tensor(column) for column in columns])[1]

    assert samples([[5, 8, 6]], [[1, 1, 1]]) == samples([[5, 8, 6, 50, 50]], [[1, 1, 1, 0, 0]])
    assert samples([[5, 8, 6], [5, 6, 0]]) == samples([[5, 6, 0, 0], [5, 8, 6, 0]])
    assert len({samples([[1, 2]]), samples([[3, 4]]), samples([[2, 1]])}) == 3  # users and items
    assert samples([[1j, 2j]]) != samples([[2j, 2j]])
    assert samples(3, [[1, 2]]) != samples(3, [[3, 4]])


@pytest.mark.torch
def test_stand_ins_of_images_are_as_large_as_the_real_ones():
    images = importlib.import_module("smp_advisor.rehearsal.libraries.images")
    assert images.Images("USPS").data[0].shape == (16, 16)
    digits = images.Images("EMNIST", split="digits")
    assert (len(digits), len(digits.data)) == (240_000, 240_000)


@pytest.mark.torch
def test_stand_ins_of_images_have_what_they_are_made_with():
    images = importlib.import_module("smp_advisor.rehearsal.libraries.images")

    class Real:
        def __init__(self, root, train=True, split="train", **kwargs): ...
        def __len__(self): ...
        def __repr__(self):
            return f"{self.train} {self._split} {self.root} {len(self)}"

    Real.__name__ = "CIFAR10"
    images._synthesize(SimpleNamespace(stand_in=str), Real)
    assert repr(Real("/data", split="test")) == "True test /data 10000"
    streets = images.Images("SVHN", split="extra", source="self.labels = self.data = ")
    assert (len(streets), streets.labels.dtype.kind, hasattr(streets, "targets")) == (531_131, "i", False)
    assert images.Images("STL10").data.shape == (5_000, 3, 96, 96)
    assert images.Images("ImageFolder", source="self.samples: list = ").samples[3] == ("1.jpg", 1)
    assert len(images.Images("QMNIST", what="nist")) == 402_953


@pytest.mark.torch
def test_gradients_of_sharded_units_alone_are_parts(monkeypatch):
    torch, got = pytest.importorskip("torch"), []
    utils, unit, plain = torch.nn.utils, torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    unit._handle = SimpleNamespace(uses_sharded_strategy=True)
    for owner in (utils, utils.clip_grad):
        monkeypatch.setattr(owner, "clip_grad_norm_", utils.clip_grad_norm_)
    fake = SimpleNamespace(fsdp_units=[unit], world=2, options={}, site=str, put=lambda _, part, **__: got.append(part))
    importlib.import_module("smp_advisor.rehearsal.observation")._clipping(fake)
    for module in (plain, unit):
        utils.clip_grad_norm_(module.parameters(), 1.0)
    assert got == [False, True]


def test_files_that_a_script_imports_are_read(tmp_path):
    script = "from parts import (\n    net,\n)\n"
    texts = {"train.py": script, "parts/__init__.py": "", "parts/net.py": "isnan", "b.py": "isinf"}
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    reached = request._reached(request.Code(tmp_path, "train.py", script, "train.py"))
    assert ("isnan" in reached, "isinf" in reached) == (True, False)
    assert "isinf" in request._reached(request.Code(tmp_path, "train.py", "import_module(name)", "train.py"))


@pytest.mark.torch
def test_versions_other_than_those_of_the_job_are_named(tmp_path):
    (tmp_path / "requirements.txt").write_text("transformers==4.44.2  # tested\npeft[extra] == 0.12\nnumpy>=1\n")
    pins = pins_of(tmp_path, {"torch": "2.5", "transformers": "4.49.0"})
    ran = {"python": "3.12.1", "torch": "2.5.1+cpu", "transformers": "5.1.0", "peft": "0.12.3"}
    ((name, text),) = differing(ran, pins).items()
    assert name == "transformers"
    assert text.startswith("transformers 5.1.0 ran here, and requirements.txt requires 4.44.2")
    assert interpreter_of(sys.prefix) == f"{sys.prefix}/bin/python"
    with pytest.raises(AdvisorError, match="No Python is at"):
        interpreter_of(tmp_path / "nowhere")
    for text, sentence in (
        ("#!/bin/sh\necho has no torch\n", "has no torch: a rehearsal runs"),
        ("#!/no\n", "that starts"),
    ):
        (tmp_path / "python").write_text(text)
        (tmp_path / "python").chmod(0o755)
        with pytest.raises(AdvisorError, match=sentence):
            interpreter_of(tmp_path / "python")


DUMP = """
import json, os, sys
kept = {k: v for k, v in os.environ.items() if k.startswith(("SM_", "TRAINING_JOB", "CURRENT_HOST"))}
with open(os.environ["SM_OUTPUT_DATA_DIR"] + "/dump.json", "w") as file:
    json.dump([sys.argv[1:], kept], file)
"""


@pytest.mark.release  # it installs the toolkit
def test_arguments_and_variables_are_those_of_the_real_toolkit(root, tmp_path):
    environment, rows, code = root / ".venv-toolkit", tmp_path / "rows", tmp_path / "ml/code"
    subprocess.run([root / "scripts" / "toolkit.sh", environment], check=True)
    own = {"sagemaker_program": "dump.py", "sagemaker_submit_directory": str(code), "sagemaker_instance_type": "local"}
    values = VALUES | {"quoted": 'a "b" $HOME', "list": [1, 2]} | own
    del values["sagemaker_region"]
    job, channels = Job(hyperparameters=values), {"train": rows, "validation": rows}
    rows.mkdir()
    make_folders(tmp_path / "ml", job, channels, 1)
    code.mkdir(exist_ok=True)
    (code / "dump.py").write_text(DUMP)
    shown = {"SAGEMAKER_BASE_DIR": str(tmp_path / "ml"), "TRAINING_JOB_NAME": "rehearsal",
             "SM_STUDIO_LOCAL_MODE": "True",  # or it looks for the host algo-1 for a quarter of an hour
             "AWS_DEFAULT_REGION": "us-west-2"}  # fmt: skip
    command = [environment / "bin" / "python", "-m", "sagemaker_training.cli.train"]
    done = subprocess.run(command, env=os.environ | shown, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    received, theirs = json.loads((tmp_path / "ml/output/data/dump.json").read_text())
    assert received == arguments(values)
    ours = variables(tmp_path / "ml", job, "dump.py", channels, host=0, hosts=1, gpus=0)
    ours = {name: value for name, value in ours.items() if name.startswith(("SM_", "TRAINING_JOB", "CURRENT_HOST"))}
    texts = [json.loads(values.pop("SM_TRAINING_ENV")) for values in (theirs, ours)]
    assert texts[0] == texts[1]
    machine = {"SM_STUDIO_LOCAL_MODE", "SM_NUM_CPUS"}
    assert {k: v for k, v in theirs.items() if k not in machine} == {k: v for k, v in ours.items() if k not in machine}


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="rehearsals run on Linux")
def test_threads_that_record_at_once_overwrite_nothing():
    """A save in the background records while the script goes on: a lost update looked like gradients of other ranks."""
    from smp_advisor.rehearsal.stages import record_file  # Windows does not have its modules

    file, interval = record_file("events"), sys.getswitchinterval()

    def write(thread: int) -> None:
        for number in range(20_000):
            os.write(file, json.dumps([thread, number, "x" * 200]).encode() + b"\n")

    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(2) as pool:
            [*pool.map(write, range(2))]
    finally:
        sys.setswitchinterval(interval)
    lines = [json.loads(line) for line in os.pread(file, 1 << 25, 0).splitlines()]
    os.close(file)
    assert len(lines) == 40_000


@pytest.mark.parametrize(
    ("command", "words", "launches", "is_module"),
    [
        ("python -m acme.train -m bert --config a.py", "-m bert --config a.py", False, True),
        ("python -m pip install x && python -m pipeline.train --lr 1", "--lr 1", False, True),
        ("python prepare.py --in s3 && torchrun --module acme.train --lr 1 && python test.py", "--lr 1", True, True),
        ("python -m torch.distributed.launch --nproc_per_node 8 train.py --lr 1", "--lr 1", True, False),
        ("python -m accelerate.commands.launch train.py --lr 1", "--lr 1", True, False),
        ("bash -c 'cd src && torchrun -m acme.train --lr 1'", "--lr 1", True, True),
        ("/opt/launcher/bin/python train.py --lr 1", "--lr 1", False, False),
        ("conda run -n lightning python train.py --lr 1", "--lr 1", False, False),
        ("/opt/bin/torchrun train.py --lr 1 > log 2>&1", "--lr 1", True, False),
        ("numactl -m 0 python train.py --strategy deepspeed", "--strategy deepspeed", False, False),
    ],
)
def test_a_command_starts_a_script_or_a_module(command, words, launches, is_module):
    for job in (job_of(command)[0], job_of({"command": command})[0]):
        assert (" ".join(job.command), job.launches, job.is_module) == (words, launches, is_module)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('-p "hello world"', ("-p", "hello world")),
        ('--t "a # b" --n 3 # c', ("--t", "a # b", "--n", "3")),
        ('--text "x -y z" && echo a', ("--text", "x -y z")),
        ("--q '\"x\"' ''", ("--q", '"x"', "")),
        ('--p ">hello" --n ${N:-3} | tee log', ("--p", ">hello", "--n", "3")),
    ],
)
def test_a_script_gets_the_words_that_the_shell_passes(text, words):
    for command in (f"torchrun train.py {text}", f"cd src; python -m acme.train {text}"):
        assert job_of(command)[0].command == words


def test_a_script_that_needs_more_processes_than_a_rehearsal_has_says_so():
    error = {"kind": "error", "name": "RuntimeError", "text": "needs 3 GPUs", "update": 0, "module": "", "cut": False}
    error |= dict.fromkeys(("of_library", "own", "imports", "of_data"), False) | {"owners": ["datasets"], "line": ""}
    ranks = [{"end": 1, "events": [error]}, {"end": -6, "events": []}]  # gloo ends a process that another left
    stage = {"name": "several processes", "ranks": ranks, "verdict": None}
    assert "pass processes=3" in findings.not_rehearsed(stage)
    error |= {"text": "cannot import name 'load_metric'", "update": 0}
    other = {"datasets": "datasets 5 ran here, and requirements.txt requires 2"}
    assert findings.of_other_version(stage, other) == f"{other['datasets']} (RuntimeError: {error['text']})"
    assert not findings.of_other_version(stage, {"torch": "torch 5 ran here"})
    error["text"] = "needs 16 GPUs"
    assert "16 processes: 4 are the most" in findings.not_rehearsed(stage)


@pytest.mark.torch
def test_an_adapter_of_a_module_and_numbers_that_a_configuration_has_by_part_are_read(tmp_path):
    saved = importlib.import_module("smp_advisor.rehearsal.saved")
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": null}')
    importlib.import_module("torch").save({}, tmp_path / "a.pt")
    assert [entry["error"] for entry in saved.look(tmp_path)] == [""]
    shrink = importlib.import_module("smp_advisor.rehearsal.libraries.huggingface").shrink
    layers = {"vision": 5, "language": 9}
    config = SimpleNamespace(hidden_size=768, num_hidden_layers=layers, vocab_size=30_522)
    assert (shrink(config).hidden_size < 768, config.num_hidden_layers) == (True, layers)


@pytest.mark.parametrize(
    ("script", "command", "copied", "is_module"),
    [
        ("acme/cli/train.py", None, "acme/cli/train.py", True),
        ("acme/run.py", None, "acme/run.py", False),
        ("acme/cli/train.py", "torchrun --nproc_per_node 8 -m acme.cli.train --lr 1", "acme/cli/train.py", True),
        ("acme/cli/train.py", "python -m torch.distributed.run train.py", "acme/cli/train.py", False),
        ("acme/cli/train.py", "python -m acme.cli.train -m bert", "acme/cli/train.py", True),
        ("train.py", None, "train.py", False),
    ],
)
@pytest.mark.parametrize("place", ["", "repository"])
def test_a_script_of_a_package_is_copied_with_the_package(
    tmp_path, monkeypatch, script, command, copied, is_module, place
):
    monkeypatch.syspath_prepend(tmp_path / place)  # the package is importable where its repository is
    texts = {
        "acme/cli/train.py": "from ..net import make\n",
        "acme/run.py": "import acme.net\n",
        "train.py": "import os\n",
    }
    for name, text in (texts | dict.fromkeys(("acme/__init__.py", "acme/cli/__init__.py", "acme/net.py"), "")).items():
        (tmp_path / "repository" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "repository" / name).write_text(text)
    job, extra = job_of(command)
    code = request.copied(tmp_path / "repository" / script, extra, tmp_path / "code", job)
    assert (code.script, code.is_module, (tmp_path / "code/acme/net.py").exists()) == (copied, is_module, True)
