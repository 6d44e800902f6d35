"""A rehearsal sees each kind of defect, and nothing in correct scripts of every dialect."""

import importlib
import re

import pytest

import smp_advisor as smpa
from smp_advisor.errors import AdvisorError
from smp_advisor.rehearsal import KINDS, rehearse, stages
from smp_advisor.rehearsal.stages import _Rehearsed
from tests.forked import import_libraries
from tests.rehearsal.scripts import (
    CORRECT,
    DATA,
    DDP,
    FSDP2,
    LOOP,
    PLANTED,
    SAVE,
    SAVE_SHARDS,
    START,
    TRAINER,
    WRAP,
    changed,
)
from tests.rows import rows

pytestmark = [pytest.mark.slow, pytest.mark.torch]
STAGES = {
    "scale": "one process", "learning rate": "one process", "accumulation": "accumulation folded",
    "node": "nodes of", "resume": "killed|resumed|started again", "bad batch": "a bad batch",
    "order, an early stop": "a loss that", "uneven, provoked": "an update less", "load": "$", "saved in part": "$",
    "failure, gradients": "numbers of 16",
}  # fmt: skip
"""Stages that are compared with the first one to see a kind of defect; saved models are loaded after it."""
FORMS = (
    *("ddp", "fsdp2, hybrid", "early stop, probabilities", "ddp, a search of the rate before, saved every 10 updates"),
    *("trainer, FSDP 1, a batch of all rows that are here", "tensor parallel", "fsdp1", "accelerate"),
)
"""Scripts of which another row has the dialect, or of which the tests below rehearse a change."""


@pytest.fixture(scope="module", autouse=True)
def libraries():
    """Import what the scripts import, once for all rehearsals: they are forks of this process."""
    import_libraries()
    for name in ("accelerate", "transformers.trainer", "transformers.models.qwen2.modeling_qwen2"):
        importlib.import_module(name)


@pytest.mark.parametrize("dialect", rows(CORRECT, *FORMS))
def test_nothing_is_found_in_a_correct_script(dialect):
    done = rehearse(CORRECT[dialect], {"checkpoints": "/opt/ml/checkpoints" in CORRECT[dialect]})
    assert done.outcome.startswith(("ran to the end", "stopped after")), done
    assert done.findings == (), done
    assert done.updates >= 2
    assert {"order", "not averaged", "same batches", "place", "load"} <= set(done.observed), done
    assert "scale" in done.observed or dialect.startswith(("accelerate", "trainer", "tensor parallel")), (
        done
    )  # other order
    assert done.reachable == ()


@pytest.mark.parametrize("kind", PLANTED)
def test_a_defect_is_seen_as_its_kind(kind, tmp_path, request, monkeypatch):
    shown, made = next((name for form, name in STAGES.items() if kind.startswith(form)), None), _Rehearsed._stage
    if shown is None:
        request.getfixturevalue("first_stage")
    else:  # correct scripts are rehearsed in all stages

        def stage(self, name, **options):
            is_made = re.match(f"several|{shown}", name)
            return made(self, name, **options) if is_made else {"ranks": (), "checkpoints": ()}

        monkeypatch.setattr(_Rehearsed, "_stage", stage)
    job = {"hyperparameters": {}, "input_mode": "FastFile"} if kind.endswith("mount") else None
    done = rehearse(PLANTED[kind], job, data=tmp_path if job else None)
    kind = kind.partition(",")[0]
    assert kind in {finding.kind for finding in done.findings}, done
    assert all(finding.text and finding.kind in KINDS for finding in done.findings)


@pytest.mark.usefixtures("first_stage")
def test_a_channel_in_file_mode_is_a_copy_of_the_job_s_own(tmp_path):
    rows = tmp_path / "rows.txt"
    rows.write_text("one\n")
    append = 'rank == 0 and open(os.environ["SM_CHANNEL_TRAIN"] + "/rows.txt", "a").write("two")\n'
    done = rehearse(CORRECT["ddp"].replace(START, START + append, 1), {"hyperparameters": {}}, data=tmp_path)
    assert done.findings == (), done
    assert done.updates >= 2, done
    assert rows.read_text() == "one\n"


def test_every_kind_is_planted():
    assert set(KINDS) == {kind.partition(",")[0] for kind in PLANTED}


@pytest.mark.usefixtures("first_stage")
def test_arguments_arrive_as_the_job_passes_them():
    hyperparameters = {"epochs": 2, "augment": False, "warm_up": 3}
    done = rehearse(DDP, {"hyperparameters": hyperparameters})
    texts = "\n".join(finding.text for finding in done.findings)
    assert "augment=False arrives as True" in texts
    assert "--warm_up is no option of the script; --warm-up is" in texts
    assert "epochs" not in texts
    command = rehearse(DDP, {"hyperparameters": hyperparameters, "command": "torchrun train.py --epochs 1"})
    assert any("epochs=2" in finding.text for finding in command.findings)


WORDS = {"vocab_size": 300, "n_embd": 64, "n_layer": 4, "n_head": 4, "n_positions": 128}


LIBRARIES = ("ddp", "fsdp", "smp-v1", "smp-v2", "training-compiler")


# `test_own_module_script` rehearses exported loops of FSDP, `test_script_jobs` and `test_scripts_of_libraries` have the
# jobs of DDP and of the compiler.
@pytest.mark.parametrize("library", rows(LIBRARIES, "ddp", "fsdp", "training-compiler"))
def test_the_exported_script_of_every_library_is_rehearsed_and_marks_its_plan(library):
    family = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4,
              "num_attention_heads": 4, "vocab_size": 300}  # fmt: skip
    model = family if library == "smp-v2" else {"model_type": "gpt2", **WORDS}
    advice = smpa.advise(model, "ml.p4d.24xlarge", library=library, sequence_length=64)
    assert advice.rehearsed == ""
    done = advice.rehearse()
    assert done.findings == (), done
    assert re.fullmatch(r"rehearsed: 2 processes, 6 updates, resumed, loads", advice.rehearsed), done
    assert f"The plan on screen is {advice.rehearsed}" in str(advice)
    advice.move(batch_size=advice.plan.batch_size * 2)
    assert advice.rehearsed == ""


READ = """path = f"/opt/ml/output/data/first-{rank}.pt"
torch.save(net.state_dict(), path)
net.load_state_dict(torch.load(path, map_location="cpu"))
"""
SHARDED_COPY = """
from torch.distributed.checkpoint import async_save
async_save({"model": model.state_dict()}, checkpoint_id="/opt/ml/checkpoints/last").result()
"""
OF_ALL, OF_FIRST = "rank0_only=False, offload_to_cpu=True", "rank0_only=True, offload_to_cpu=True"


@pytest.mark.parametrize(
    ("script", "copies"),
    [
        (CORRECT["ddp"], (("load", 1, 1), ("save", 0, 0))),
        (changed(DDP, (WRAP, READ + WRAP), (").cuda(local)\n", ")\n")), (("load", 2, 2), ("save", 0, 0))),
        (changed(DDP, ("torch.manual_seed(0)", "torch.set_default_device('cuda')")), (("load", 0, 0), ("save", 0, 0))),
        (changed(CORRECT["fsdp1"], ("rank0_only=True", OF_ALL)), (("load", 1, 1), ("save", 1, 1))),
        (changed(CORRECT["fsdp1"], ("rank0_only=True", OF_FIRST)), (("load", 1, 1), ("save", 1, 0))),
        (changed(FSDP2, (SAVE_SHARDS, SHARDED_COPY + SAVE_SHARDS)), (("load", 1, 1), ("save", 1, 0.45))),
        (TRAINER, (("load", 0.5, 0.5), ("save", 2, 0))),  # the moments of Adam
    ],
)  # fmt: skip
@pytest.mark.usefixtures("first_stage")
def test_copies_of_the_model_in_host_memory_are_counted(script, copies):
    assert rehearse(script).copies == copies


@pytest.mark.usefixtures("first_stage")
def test_copies_of_the_model_decide_whether_the_plan_of_an_advice_fits():
    advice = smpa.advise("70B", "ml.p4d.24xlarge", instance_count=16, library="fsdp")
    assert advice.estimate.host_memory_fits
    rehearse(changed(CORRECT["fsdp1"], ("rank0_only=True", OF_ALL)), advice)
    text = "does not fit: a node has less than the 2,102.7 GiB of host memory that"
    assert text in str(advice)
    advice.undo()
    assert advice.estimate.host_memory_fits


@pytest.mark.usefixtures("first_stage")
def test_two_versions_are_compared():
    before = START + WRAP + DATA + LOOP + SAVE
    same = rehearse(CORRECT["fsdp2"], compare=before)
    assert same.findings == (), same
    assert {"6 losses", "6 norms of gradients", "parameters after the last update", "1 saved files"} <= set(
        same.compared
    )
    other = rehearse(PLANTED["scale"], compare=DDP)
    assert any("in the other version" in finding.text for finding in other.findings), other


def test_what_is_not_installed_or_of_ours_is_no_error_of_the_script():
    absent = "import not_installed_anywhere_here as absent\n"
    for line in ("net = absent.wrap(net)", "if absent.is_first():\n    pass", "class Net(absent.Net): ..."):
        done = rehearse(f"{absent}{START}{line}\n{WRAP}{DATA}{LOOP}{SAVE}")
        assert done.outcome.startswith("not rehearsed after 0 updates"), done
        assert done.findings == ()
        assert "failure" in dict(done.not_observed)
    done = rehearse(changed(DDP, ('group("nccl")', 'group("nccl", world_size=16, rank=int(os.environ["RANK"]))')))
    assert (done.findings, "since 2 are started: it starts with WORLD_SIZE" in done.outcome) == ((), True)


ABSENT = """
import importlib.util, wandb_of_another_name as log
import sklearn.metrics
try:
    import apex_of_nobody as apex
except ImportError:
    apex = None
assert apex is None and importlib.util.find_spec("apex_of_nobody") is None
@log.watch
def measured(scores):
    accuracy, recall, *_ = sklearn.metrics.precision_recall_fscore_support(scores, scores)
    return f"{accuracy:.3f}"
log.init(project="x").log({"accuracy": measured([1, 0])})
import wandb
run = wandb.init(config={"batch": 4})
assert wandb.config.batch == run.config["batch"] == 4 and repr(wandb.config.rate) == "Nothing"
from sagemaker_training import environment
assert environment.Environment().model_dir == "/opt/ml/model" and os.path.isdir("results")
"""


@pytest.mark.usefixtures("first_stage")
def test_packages_that_only_report_are_named_and_left_out(tmp_path):
    (tmp_path / "src").mkdir()
    (tmp_path / "results").mkdir()
    (tmp_path / "src/train.py").write_text("import os\n" + ABSENT + CORRECT["ddp"])
    done = rehearse(tmp_path / "src/train.py", "torchrun --nproc_per_node=2 src/train.py")
    assert (done.findings, done.updates) == ((), 6), done
    assert any(text.startswith("wandb_of_another_name: not installed here") for text in done.stand_ins)


HEAVY = """
import argparse, os, torch, torch.distributed as dist
parser = argparse.ArgumentParser()
parser.add_argument("--n_layer", type=int, default=12)
args = parser.parse_args()
batch_size = 64
dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
torch.manual_seed(dist.get_rank())
net = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(args.n_layer))).cuda()
net = torch.nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.AdamW(net.parameters())
for step in range(1000):
    loss = net(torch.randn(batch_size, 256).cuda()).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.usefixtures("first_stage")
def test_a_script_that_is_too_heavy_gets_small_settings_which_are_named(monkeypatch):
    levels = [level | {"most_flops": flops} for level, flops in zip(stages._LEVELS, (1e8, 1e8, 1e9), strict=False)]
    monkeypatch.setattr(stages, "_LEVELS", (*levels, stages._LEVELS[3]))
    done = rehearse(HEAVY)
    assert [finding for finding in done.findings if finding.level != "note"] == [], done
    assert done.updates >= 3
    assert {"n_layer 12: 2", "batch_size 64: 2"} <= set(done.stand_ins)


@pytest.mark.usefixtures("first_stage")
def test_a_vocabulary_is_as_large_as_what_indexes_it():
    numbered = 'lambda row: {"input_ids": [30_000 + k for k in range(9)]}'
    mapped = 'lambda row: tokenizer(row["text"], truncation=True)'
    done = rehearse(changed(TRAINER, (mapped, numbered)))
    assert (done.outcome, done.updates) == ("ran to the end", 4), done


WEIGHTED = """
class Weighted(Trainer):
    def compute_loss(self, *arguments, **options):
        return super().compute_loss(*arguments, **options) * self.loss_weight
trainer = Weighted("""


@pytest.mark.usefixtures("first_stage")
def test_only_what_the_pinned_version_has_is_left_out(tmp_path):
    file = tmp_path / "train.py"
    (tmp_path / "requirements.txt").write_text("transformers==4.46.3\ntorch==1.9.0\n")
    file.write_text(changed(TRAINER, ("bf16=True,", "bf16=True, evaluation_strategy='no', overwrite_output_dir=True,")))
    done = rehearse(file)
    assert (done.findings, done.updates) == ((), 4), done
    assert any(note.text.startswith("left out: overwrite_output_dir of train.py") for note in done.notes), done
    assert "failure" in dict(done.not_observed)
    file.write_text(changed(TRAINER, ("bf16=True,", "bf16=True, lerning_rate=1e-4,")))
    assert rehearse(file).outcome.startswith("not rehearsed after 0 updates: transformers")
    for script, error in (
        (changed(TRAINER, ("trainer = Trainer(", WEIGHTED)), "no attribute 'loss_weight'"),
        (changed(DDP, (WRAP, f"{WRAP}model.save_pretrained('/opt/ml/model')\n")), "AttributeError"),
        (changed(DDP, (WRAP, f"{WRAP}torch.ones(2) @ torch.ones(3)\n")), "RuntimeError"),
        (changed(DDP, (WRAP, f"{WRAP}net(torch.ones(1, 8), 2)\n")), "TypeError"),
    ):
        file.write_text(script)
        (finding,) = rehearse(file).findings
        assert (finding.kind, error in finding.text) == ("failure", True), finding


@pytest.mark.usefixtures("first_stage")
def test_a_file_of_the_project_may_have_the_name_of_a_library(tmp_path):
    (tmp_path / "datasets.py").write_text("class Trainer: ...\n")
    (tmp_path / "train.py").write_text("from datasets import Trainer\n" + DDP)
    done = rehearse(tmp_path / "train.py")
    assert (done.findings, done.updates) == ((), 6), done


def test_wrong_uses_are_named():
    wrong = {"1 to 4 processes, not 9": {"processes": 9}, "do not exist": {"data": "/nowhere/at/all"}}
    for sentence, options in (wrong | {"neither a cell with an estimator": {"job": "make train"}}).items():
        with pytest.raises(AdvisorError, match=sentence):
            rehearse(DDP, **options)


@pytest.mark.usefixtures("first_stage")
def test_the_command_and_the_magic_rehearse(tmp_path, monkeypatch):
    import smp_advisor
    from smp_advisor.command.__main__ import main

    (tmp_path / "train.py").write_text(PLANTED["place"])
    monkeypatch.chdir(tmp_path)
    assert main(["rehearse", "train.py", "--hyperparameter", "epochs=2"]) == 1
    for name in ("prove", "adapt_script"):
        with pytest.raises(AttributeError, match="rehearse"):
            getattr(smp_advisor, name)


@pytest.mark.usefixtures("first_stage")
def test_an_assistant_rehearses_only_where_the_person_allowed_it(tmp_path, monkeypatch):
    from smp_advisor.tools import interface

    assert "rehearse" not in interface.TOOLS
    monkeypatch.setattr(interface, "TOOLS", dict(interface.TOOLS))
    interface.allow_rehearsals()
    (tmp_path / "train.py").write_text(PLANTED["place"])
    caller = interface.Caller(roots=(tmp_path,))
    answer = interface.call("rehearse", {"script": "train.py", "hyperparameters": {"epochs": 2}}, caller)
    assert "is lost when the job ends" in str(answer["findings"])
    for argument in ("script", "job", "compare"):
        with pytest.raises(AdvisorError, match="only files of this folder"):
            interface.call("rehearse", {"script": "train.py", argument: "/etc/hostname"}, caller)
