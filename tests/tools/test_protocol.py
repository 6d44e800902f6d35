"""The tools over the real protocol: a server process on standard input and output, and the SDK's own client."""

import asyncio
import json
import os
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace
from inspect import signature
from tempfile import TemporaryFile

import jsonschema
import pytest

import smp_advisor as smpa
from smp_advisor.arguments import options
from smp_advisor.errors import AdvisorError
from smp_advisor.tools.answers import MOST_BYTES, memory_words, shortened, size_of
from smp_advisor.tools.interface import TOOLS, Caller, call
from smp_advisor.tools.verbs import EXPORTS

REQUEST, FSDP = {"model": "llama-3-8b", "instance": "p4d", "count": 2}, {"library": "fsdp"}


@asynccontextmanager
async def client(root, folder):
    """A client of a server that may read one folder."""
    from mcp.client.client import Client
    from mcp.client.stdio import StdioServerParameters, stdio_client

    paths = os.pathsep.join([str(root), *filter(None, [os.environ.get("PYTHONPATH")])])
    server = StdioServerParameters(
        command=sys.executable, args=["-P", "-m", "smp_advisor.command", "mcp"], env={"PYTHONPATH": paths}, cwd=folder
    )
    with TemporaryFile("w") as errors:  # the library's default is the sys.stderr of its first import
        async with Client(stdio_client(server, errlog=errors)) as connected:
            yield connected


def in_its_own_loop(session):
    """Run a session in a thread: a browser that an earlier test opened leaves a running event loop in this one."""
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, session()).result()


@pytest.mark.slow
@pytest.mark.tools
def test_a_session_over_standard_input_and_output(root, tmp_path):
    (tmp_path / "train.py").write_text("import torch\nfrom torch.distributed.fsdp import FSDP\nmodel = FSDP(net)\n")

    async def session():
        async with client(root, tmp_path) as connected:
            tools = (await connected.list_tools()).tools
            assert [tool.name for tool in tools] == list(TOOLS)
            assert all(tool.annotations.read_only_hint for tool in tools)
            advice = await connected.call_tool("advise", REQUEST)
            (text,) = advice.content
            answer = json.loads(text.text)
            assert not advice.is_error
            assert len(text.text.encode()) <= MOST_BYTES
            again = {**REQUEST, "library": answer["plan"].pop("library"), "settings": answer["plan"]}
            estimate = json.loads((await connected.call_tool("estimate", again)).content[0].text)
            assert estimate["needed_gib_per_gpu"] == answer["needed_gib_per_gpu"]
            found = json.loads((await connected.call_tool("check", {"path": "train.py"})).content[0].text)
            assert found["answer"].startswith(str(tmp_path / "train.py"))
            heard = []

            async def hear(done, total, message):
                heard.append((done, total, message))

            small = {"model": "350M", "instance": "g5.xlarge,g4dn.xlarge", "sequence_length": 512}
            await connected.call_tool("advise", small, progress_callback=hear)
            assert heard == sorted(heard)
            assert {total for _, total, _ in heard} == {100.0}
            wrong = await connected.call_tool("advise", {**REQUEST, "seqlen": 512})
            assert (wrong.is_error, wrong.content[0].text) == (
                True, "advise takes no argument 'seqlen'; did you mean sequence_length (tokens)?",
            )  # fmt: skip

    in_its_own_loop(session)
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


@pytest.mark.tools
def test_40_cancelled_calls_end_their_work_and_the_server_answers_the_next(tmp_path, monkeypatch):
    import threading

    from mcp.client.client import Client

    from smp_advisor.tools.server import server

    ended, started = threading.Event(), threading.Event()

    def endless(options):
        started.set()
        try:
            while True:
                options.progress(0, 1, "a step")
        except KeyboardInterrupt:
            ended.set()
            raise

    async def session():
        from smp_advisor.tools import verbs

        async with Client(server((tmp_path,))) as connected:
            with monkeypatch.context() as patch:
                patch.setitem(verbs.VERBS, "compare", endless)
                works = [asyncio.ensure_future(connected.call_tool("compare", REQUEST)) for _ in range(40)]
                await asyncio.to_thread(started.wait)
                for work in works:
                    work.cancel()
                assert {type(result) for result in await asyncio.gather(*works, return_exceptions=True)} == {
                    asyncio.CancelledError
                }
                await asyncio.to_thread(ended.wait)
            assert not (await connected.call_tool("advise", REQUEST)).is_error

    in_its_own_loop(session)


def test_work_for_a_caller_who_has_gone_ends_at_the_next_estimate(monkeypatch):
    import threading

    from smp_advisor.core.stopping import Stopped, stop_if_nobody_waits, until
    from smp_advisor.costs import evaluate

    gone, estimates = threading.Event(), []

    def counted():
        stop_if_nobody_waits()
        estimates.append(True)
        if len(estimates) == 3:
            gone.set()

    monkeypatch.setattr(evaluate, "stop_if_nobody_waits", counted)
    with until(gone), pytest.raises(Stopped):
        smpa.advise("7B", "ml.p4d.24xlarge", instance_count=2, library="auto")
    assert len(estimates) == 3


@pytest.mark.parametrize("tool", TOOLS.values(), ids=lambda tool: tool.name)
def test_schemas_are_valid_and_agree_with_python(tool):
    assert set(TOOLS["export"].own["what"]["enum"]) == set(EXPORTS)
    jsonschema.Draft202012Validator.check_schema(tool.schema)
    for option in options().values():
        if option.default is not None and option.of in ("request", "job"):
            call_default = signature(smpa.advise).parameters[option.name].default
            expected = getattr(smpa.Job(), option.name, None) if option.of == "job" else call_default
            assert option.default == expected, option.name


@pytest.mark.parametrize(
    ("name", "arguments", "sentence"),
    [
        ("advise", {"instance": "p4d"}, "advise requires model"),
        ("advise", {"model": "8B"}, "name an instance"),
        ("advise", {"model": "llama-3-8", "instance": "p4d"}, "most similar are llama-3-8b"),
        ("advise", {**REQUEST, "precision": "int8"}, "precision must be one of fp16, bf16, fp32, not 'int8'"),
        ("advise", {**REQUEST, "count": 0}, "at least 1"),
        ("advise", {**REQUEST, "details": ["ladders"]}, "must be a list of ladder, "),
        ("advise", {**REQUEST, "settings": {"tensor_paralel_degree": 2}}, "did you mean tensor_parallel_degree"),
        ("advise", {**REQUEST, "settings": 2}, "settings must be an object"),
        ("advise", {**REQUEST, "calibration": "/etc/hosts"}, "only files of this folder are read"),
        ("advise", {"model": "../config.json", "instance": "p4d"}, "only files of this folder are read"),
        ("advise", {**REQUEST, "settings": {"calibration": "/etc/hosts"}}, "only files of this folder are read"),
        ("advise", {**REQUEST, "settings": {"cluster": "p5"}}, "takes no setting 'cluster'"),
        ("advise", {**REQUEST, "settings": {"on_progress": 1}}, "takes no setting 'on_progress'"),
        ("compare", {**REQUEST, "plans": [{"library": "fsdp", "script": "a.py"}]}, "takes no setting 'script'"),
        ("profile", {"config": "config.json", "script": "train.py"}, "takes no argument 'script'"),
        ("profile", {"config": "config.json", "stages": ["local"]}, "must be one of trace, copy"),
        ("advise", {**REQUEST, "sequence_length": True}, "'True' is not a number"),
        ("check", {"text": " "}, "either the path of a file or its text"),
        ("advise", {"model": "/etc", "instance": "p4d"}, "only files of this folder are read"),
        (
            "estimate",
            {"model": "/etc/hosts", "instance": "p4d", "library": "ddp"},
            "only files of this folder are read",
        ),
        ("check", {}, "either the path of a file or its text"),
        ("check", {"path": "a\0b"}, "is no path of a file"),
        ("export", {"what": "jobb"}, "what must be one of job, script"),
        ("start", {}, "the tools are advise, estimate, compare"),
    ],
)
def test_an_error_names_the_valid_value(name, arguments, sentence, tmp_path):
    with pytest.raises(AdvisorError) as error:
        call(name, arguments, Caller(roots=(tmp_path,)))
    assert sentence in str(error.value)
    assert "--" not in str(error.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("advise", {"model": "llama-3-70b", "instance": "any", "tokens": "15T", "max_days": 90, **FSDP}),
        pytest.param(  # its rows are shortened below
            "compare",
            {"model": "llama-3-8b", "instance": ["p4d", "p5", "p5en", "g6e"], "counts": [*range(1, 33)], **FSDP},
            marks=pytest.mark.release,
        ),
        ("export", {**REQUEST, "what": "script"}),
        ("check", {"text": "import smdistributed.modelparallel.torch as smp\n" + "smp.DistributedModel(n)\n" * 200}),
    ],
)
def test_compact_answers_keep_their_limit(name, arguments):
    data = call(name, arguments, Caller())
    assert size_of(data) <= MOST_BYTES
    assert data["schema"] == 1
    assert not data["answer"].endswith("…")


def test_answers_of_checks_and_comparisons():
    data = call("advise", {**REQUEST, "lora": True}, Caller())
    assert "LoRA of rank 16" in data["requested"]

    # 70.55 B x 16 bytes need more than the memory of three nodes with 8 x 39.4 GiB.
    data = call("compare", {"model": "llama-3-70b", "instance": "p4d", "counts": [1, 2, 8]}, Caller())
    assert {row["cluster"]: row["fits"] for row in data["rows"]} == {
        "1 x ml.p4d.24xlarge": False, "2 x ml.p4d.24xlarge": False, "8 x ml.p4d.24xlarge": True,
    }  # fmt: skip

    for library in ("ddp", "fsdp"):  # the advised plan of GPUs without bf16 is a plan of estimate
        request = {"model": "350M", "instance": "ml.p3.16xlarge", "library": library}
        advised = call("advise", request, Caller())
        settings = {name: value for name, value in advised["plan"].items() if name != "library"}
        data = call("estimate", {**request, "settings": settings}, Caller())
        assert data["step_seconds"] == advised["step_seconds"]

    data = call("why", {"text": "ResourceLimitExceeded: The account-level service limit 'ml.p5.48xlarge'"}, Caller())
    assert "(the export of quota)" in data["answer"]
    data = call("why", {"text": "The spot instance was interrupted"}, Caller())
    assert "(the export of the job without spot)" in data["answer"]
    value = replace(smpa.advise("350M", "ml.p4d.24xlarge").estimate, host_memory_fits=False)
    assert re.search(r"likely, 95 % required\), and .* of host memory per node: too much$", memory_words(value, 0.95))

    data = call("check", {"text": "print(1)"}, Caller())
    assert data["answer"].endswith("nothing that a check applies to")

    recipe = "trainer:\n  num_nodes: 1\n  devices: 8\nmodel:\n  train_batch_size: 16\n  shard_degree: 8\n"
    data = call("check", {"text": recipe, "instance": "p5"}, Caller())
    assert "On 1 x ml.p5.48xlarge" in " ".join(data["configuration"])


def test_compact_answers_count_what_they_leave_out():
    data = shortened({"answer": "yes", "rows": [{"n": n} for n in range(1000)], "text": "x" * 3000}, 2000)
    assert size_of(data) <= 2000
    assert data["answer"] == "yes"
    assert len(data["rows"]) + data["left_out"]["rows"] == 1000
    assert data["text"].endswith("…")

    data = call("advise", {**REQUEST, "details": ["ladder", "alternatives", "memory"]}, Caller())
    assert {"ladder", "alternatives", "memory"} <= data.keys()
    assert sum(data["memory"].values()) == pytest.approx(data["needed_gib_per_gpu"], abs=0.1)


def test_the_page_lists_the_tools(root):
    page = (root / "docs" / "how_to" / "assistants.md").read_text()
    assert f"server: {', '.join(TOOLS)}\n" in page
