"""Failures: the root cause of a log, its evidence, its change, and the next plan after full memory."""

# ruff: noqa: E501, ISC004 (messages of logs are long)
import csv
import re
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import smp_advisor as smpa
from smp_advisor.command.__main__ import main
from smp_advisor.core.files import data_file, rows
from smp_advisor.errors import AdvisorError
from smp_advisor.tools.interface import Caller, call
from tests.runs.logs import LOGS

FOLDER = Path(__file__).parent
MESSAGES = [
    (entry["text"], entry["kind"])
    for name in ("messages", "unseen_messages")
    for entry in tomllib.loads((FOLDER / f"{name}.toml").read_text("utf-8"))["message"]
]
FULL = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {tried} GiB. GPU 3 has a total capacity of {total} "
    "GiB of which 1.07 GiB is free. Including non-PyTorch memory, this process has 38.31 GiB memory in use. Of the "
    "allocated memory 36.21 GiB is allocated by PyTorch, and 0.09 GiB is reserved by PyTorch but unallocated."
)
TIMEOUT = (
    "[rank{rank}]:[E ProcessGroupNCCL.cpp:607] [Rank {rank}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=1580, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600060 milliseconds before timing out."
)
CHILD = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:"


def full(tried=2.0, total=39.39):
    return FULL.format(tried=tried, total=total)


def in_phase(frame):
    return f'Traceback (most recent call last):\n  File "train.py", line 9, in {frame}\n    call()\n{full()}'


def test_a_message_of_a_public_thread_is_read(subtests):
    for text, kind in MESSAGES:
        with subtests.test(text[:80]):
            failure = smpa.read_failure(text)
            assert failure.kind == kind
            words = " ".join(text.split())
            assert " ".join(failure.evidence.strip("… ").split())[:60] in words
            assert (
                failure.evidence.split()[0].strip("…") in text.split("\n")[failure.line - 1] or "… " in failure.evidence
            )
            assert failure.cause.endswith(".")
            assert failure.change.endswith(".")
            assert "{" not in failure.cause + failure.change


def test_every_fact_names_the_mechanism_of_its_message_in_a_usual_log():
    with (FOLDER / "mechanisms.csv").open(encoding="utf-8") as file:
        entries = list(csv.DictReader(line for line in file if not line.startswith("#")))
    for entry in entries:
        text = entry["text"].replace("\\n", "\n")
        log = "\n".join([IPV6, *(f"[rank0]: {step}" for step in STEPS[:3]), text, SUMMARY])
        failure = smpa.read_failure(log)
        said = f"{failure.cause} {failure.change}"
        assert re.search(entry["words"], said, re.IGNORECASE), text
        assert not entry["never"] or not re.search(entry["never"], said, re.IGNORECASE), text


def test_every_kind_has_a_source_and_is_told_apart():
    kinds = data_file("runs", "failures")["kind"]
    assert len({kind["name"] for kind in kinds}) == len(kinds)
    facts = rows("smp_advisor.runs", "data/mechanisms.csv")
    assert all(entry["source"].startswith("https://") and entry["title"] for entry in (*kinds, *facts))
    assert all(entry["cause"].endswith(".") and entry["change"].endswith(".") for entry in facts)


def test_the_full_memory_of_one_rank_is_the_cause_of_the_time_out_of_seven():
    waits = [TIMEOUT.format(rank=rank) for rank in range(8) if rank != 3]
    for log in ([f"[rank3]: {full()}", *waits, CHILD], [*waits, CHILD, f"[rank3]: {full()}"]):
        failure = smpa.read_failure("\n".join(["step 1 loss 3.2", *log]))
        assert (failure.kind, failure.rank) == ("gpu_memory", 3)
        assert failure.line == 2 + log.index(f"[rank3]: {full()}")
        assert "time-out of a collective operation (7 lines)" in failure.consequences
    alone = smpa.read_failure("\n".join([*waits, CHILD]))
    assert alone.kind == "collective_timeout"
    assert "ALLREDUCE" in alone.cause


NOISE = """\
sagemaker-training-toolkit INFO     No GPUs detected (normal if no gpus installed)
ERROR: pip's dependency resolver does not currently take into account all the packages that are installed.
fastai 2.7.12 requires torch<2.1,>=1.7, but you have torch 2.1.0 which is incompatible.
algo-1:80:80 [0] NCCL INFO NET/Plugin: Failed to find ncclNetPlugin_v6 symbol.
algo-1:80:80 [0] NCCL INFO NET/OFI Selected Provider is efa
algo-1:80:80 [0] configure_nvls_option:252 NCCL WARN NET/OFI Only EFA provider is supported
[W socket.cpp:697] [c10d] The client socket has failed to connect to [algo-1]:7777 (errno: 97 - Address family)
2024-01-01 00:00:00.1: W tensorflow/tsl: Could not load dynamic library libnvinfer.so.7: cannot open shared object file
UserWarning: cannot import name 'fused_rope'; falling back to the slow one
"""


STEPS = [f"step {step} loss 2.1 seconds_per_step 3.0" for step in range(40)]
NAN = [f"step {step} loss nan" for step in range(40, 60)]
HANDLED = [
    "UserWarning: no module named apex, falling back",
    "FileNotFoundError: [Errno 2] No such file or directory: 'a'",
    "botocore.exceptions.ClientError: An error occurred (AccessDenied) when calling x",
]


@pytest.mark.parametrize(
    ("lines", "kind", "line"),
    [
        ([full(), *STEPS], None, 0),  # the job survived it
        ([full(), *STEPS, "OSError: [Errno 28] No space left on device"], "disk_full", 42),
        ([full(), *(f"[rank{rank}]: step 7 loss 2.1" for rank in range(1, 64)), TIMEOUT], "gpu_memory", 1),
        ([*STEPS, *NAN], "loss", 41),
        ([*NAN, *STEPS], None, 0),
        (HANDLED, "access_denied", 3),
        ([*NOISE.splitlines(), "Traceback (most recent call last):", "mine.OddError: 7 & <b>8</b>"], "exception", 11),
    ],
)
def test_what_the_job_survived_or_handled_is_not_the_cause(lines, kind, line):
    failure = smpa.read_failure("\n".join(lines))
    assert (failure and failure.kind, failure.line if failure else 0) == (kind, line)
    if kind == "exception":
        assert failure.cause == "The script raised mine.OddError: 7 & <b>8</b>."
        assert "&lt;b&gt;" in failure._repr_html_()


LOADING = [f"Loading checkpoint shards: {3 * n}%|# | {n}/30 [00:{n:02}<00:30,  1.0s/it]" for n in range(1, 30)]
PEER = (
    "[rank0]: ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely."
)
IPV6 = "[W1129 10:00:00 socket.cpp:755] [c10d] The IPv6 network addresses of (algo-1, 7777) cannot be retrieved (gai error)."
SUMMARY = f"{CHILD}\nRoot Cause (first observed failure):\n  exitcode  : 1 (pid: 72)"
CALLS = '[rank0]:   File "train.py", line 301, in main\n[rank0]:     trainer.save_model(args.output_dir)\n'


@pytest.mark.parametrize(
    ("log", "words", "never"),
    [
        ("RuntimeError: shared [{'lm_head.weight', 'a'}] that", "shared [{'lm_head.weight', 'a'}] that", ""),
        ("ValueError: a[0] is {0} and [{rank}]", "a[0] is {0} and [{rank}].", ""),
        (f"[rank3]: ValueError: bad document 4711\n{PEER}", "bad document 4711", "network"),
        ("\n".join(["[rank3]: FileNotFoundError: No such file or directory: 'b.jsonl'", *LOADING]), "b.jsonl", ""),
        (IPV6, "does not have its own message", "internet"),
        ('AlgorithmError: ExecuteUserScriptError:\nExitCode 1\nErrorMessage "ValueError: num_heads (12) is odd', "is odd", ""),
        ("torch._dynamo.exc.Odd: a new one", "raised torch._dynamo.exc.Odd: a new one", ""),
        ("LookupError: \n****\n  Resource punkt_tab not found.\n  use the NLTK Downloader", "NLTK", ""),
        ('Traceback (most recent call last):\n  File "a.py", line 3, in f\nmine.Odd: 7', "line 3 of a.py", ""),
        (f"{CALLS}[rank0]: DistBackendError: NCCL error in: Process.cpp, remote process exited", "on all ranks", "replaced"),
        (f"Loading checkpoint shards: 9%|# | 2/30 [00:09<1:00]\n{FULL}", "weights were loaded", "batch_size"),
        ("KeyError: 'a'\n\nThe above exception was the direct cause of the following exception:\n\nmine.OddError: b", "'a'", ""),
        ("KeyError: 'a'\n\nDuring handling of the above exception, another exception occurred:\n\nmine.OddError: b", "b", "'a'"),
        ("KeyError: Caught KeyError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n"
         "  File \"d.py\", line 9, in __getitem__\nKeyError: 'prompt'", "line 9 of d.py", "Caught"),
    ],
)  # fmt: skip
def test_the_cause_is_the_first_failure_of_a_process_that_did_not_go_on(tmp_path, log, words, never):
    for text in (log, f"{IPV6}\n" + "\n".join(STEPS[:4]) + f"\n{log}\n{SUMMARY}"):
        failure = smpa.read_failure(text)
        if text == IPV6:
            assert failure is None
            continue
        said = f"{failure.cause} {failure.change}"
        assert words in said
        assert not never or never not in said
    path = tmp_path / "train.log"
    path.write_text(text + "\n", "utf-8")
    run = smpa.watch(path)
    assert run.failed
    assert run.failure.cause in run.alarms[0]
    with path.open("a") as file:
        file.write("\n".join(STEPS) + "\n")
    assert not run.poll().failed


@pytest.mark.parametrize(
    ("mark", "rank"),
    [
        ("[default0]:[rank1]: ", 1),
        ("[1,mpirank:3,algo-1]<stderr>:", 3),
        ("[1,2]<stderr>: ", 2),
        ("10:07:00 rank 7: ", 7),
    ],
)
def test_an_exception_of_no_kind_is_read_after_the_marks_of_its_process(mark, rank):
    failure = smpa.read_failure(f"{mark}mine.OddError: 7\nChildFailedError\nexitcode: 1")
    assert (failure.kind, failure.rank, failure.cause) == ("exception", rank, "The script raised mine.OddError: 7.")


@pytest.mark.parametrize("excerpt", LOGS, ids=lambda excerpt: excerpt.title)
def test_a_log_of_a_run_that_goes_well_shows_no_failure(excerpt):
    assert smpa.read_failure(excerpt.text) is None


def test_the_figures_of_full_memory_tell_its_reasons_apart():
    of_plan = smpa.read_failure(full())
    assert of_plan.of_plan
    assert of_plan.memory_gib["tried"] == 2.0
    assert of_plan.least_gib == pytest.approx(36.21 + 2.0 + (39.39 - 1.07 - 36.30))
    shared = smpa.read_failure(full().replace("36.21", "6.21"))
    assert (shared.kind, shared.of_plan) == ("gpu_taken", False)
    pieces = smpa.read_failure(full().replace("36.21", "20.21").replace("0.09", "16.09"))
    assert pieces.kind == "gpu_fragments"
    assert "expandable_segments" in pieces.change


@pytest.mark.parametrize(("library", "size"), [("fsdp", "7B"), ("smp-v2", "13B")])
def test_the_next_plan_needs_less_and_the_failed_one_no_longer_fits(library, size):
    advice, needed = smpa.advise(size, "ml.p4d.24xlarge", instance_count=2, library=library), []
    for tried in (0.25, 2.0, 12.0):
        after = advice.after(smpa.read_failure(full(tried), plan=advice.plan))
        failed = smpa.estimate(after.model, after.cluster, after.job, advice.plan)
        assert failed.fit_probability < 0.5
        assert after.estimate.fit_probability >= 0.95
        before = smpa.estimate(advice.model, advice.cluster, advice.job, after.plan)
        assert before.needed_gib <= 0.95 * advice.estimate.needed_gib
        needed.append(after.estimate.needed_gib)
    assert library != "fsdp" or needed == sorted(needed)


@pytest.mark.parametrize(
    "ended", ["Loading checkpoint shards: 100%|##| 4/4", "* Running Evaluation *", "load_checkpoint"]
)
@pytest.mark.parametrize("frame", ["main\n    loss.backward()", "step\n    self._init_group(", "forward\n    x @ y"])
def test_memory_that_runs_out_in_a_step_is_that_of_the_plan_whatever_ended_before(ended, frame):
    assert smpa.read_failure(f"{ended}\n{in_phase(frame)}").kind == "gpu_memory"


@pytest.mark.parametrize(
    ("failure", "message"),
    [
        ("all is well", "shows no failure"),
        ("ResourceLimitExceeded", "does not avoid this failure"),
        (full(total=79.1).replace("1.07", "40.78"), "use the advice for the instance of the run"),
        (in_phase("_maybe_log_save_evaluate\n    evaluation_loop"), "in the evaluation.*fewer samples"),
        (in_phase("evaluation_loop"), "does not avoid this failure .*in the evaluation.*fewer samples"),
        (in_phase("get_state_dict"), "does not avoid this failure .*while saving.*sharded state"),
        (in_phase("load_state_dict"), "does not avoid this failure .*while loading"),
        (7, "requires for failure"),
    ],
)
def test_what_no_plan_avoids_is_refused(failure, message):
    advice = smpa.advise("1.3B", "ml.p4d.24xlarge", library="fsdp")
    with pytest.raises(AdvisorError, match=message):
        advice.after(failure)
    for text in (b"bytes", None, ["line"]):
        with pytest.raises(AdvisorError, match="requires for text"):
            smpa.read_failure(text)


@given(st.text(max_size=400), st.integers(0, 5))
def test_any_text_is_read(text, repeat):
    log = text * repeat
    failure = smpa.read_failure(log)
    assert failure is None or 1 <= failure.line <= log.count("\n") + 1


def test_a_long_log_is_read_at_its_ends_and_its_lines_are_counted():
    middle = "x" * 799 + "\n"
    count = 3_000_000 // len(middle)
    failure = smpa.read_failure(middle * count + full())
    assert failure.line == count + 1
    assert smpa.read_failure(middle * 1_000 + full() + "\n" + middle * count) is None


def test_the_command_and_the_tool_give_the_cause_and_the_next_plan(tmp_path, capsys):
    (tmp_path / "job.log").write_text("step 1 loss 3\n" + full())
    advice = smpa.advise("7B", "ml.p4d.24xlarge", instance_count=2, library="fsdp")
    advice.save(tmp_path / "advice.json")
    assert main(["why", str(tmp_path / "job.log"), "--advice", str(tmp_path / "advice.json")]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("Cause")
    assert "Next plan" in shown
    data = call("why", {"path": "job.log", "advice": "advice.json"}, Caller(roots=(tmp_path,)))
    assert (data["kind"], data["line"]) == ("gpu_memory", 2)
    assert data["next_plan"]["fits"]
    assert not call("why", {"text": "all is well"}, Caller(roots=(tmp_path,)))["found"]
