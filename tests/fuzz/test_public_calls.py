"""Every argument of every public call, constructors included, with wrong values: a result or one sentence."""

import inspect
import json
import math
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from random import Random
from typing import Any

import pytest

import smp_advisor as smpa
from smp_advisor.errors import AdvisorError
from smp_advisor.session.written import from_text

VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, -5, 1, 2, 3, 7, 16, 10**6, 10**9, 10**15, 10**30, -(10**30)),
    *(0.5, 1.5, 1e-300, 1e308, math.nan, math.inf, -math.inf),
    *("", " ", "a", "10B", "-5B", "0", "nan", "inf", "1e999", "9" * 5000, "a\0b", "x" * 100_000, "\ud800", "é", "²"),
    *("/dev/zero", "/dev/null", "../..", "~", b"x", [], [1], ["a"], (), (1, 2), {}, {"a": 1}, {1: 2}, set(), object()),
    *(print, int, ValueError("x"), range(3), complex(1, 2), "auto", "smp-v1", "smp-v2", "ddp", "fsdp"),
    *("bf16", "fp16", "each", "none", "ml.p4d.24xlarge", "s3://b/k"),
)
LONGEST_SENTENCE = 1000
P4D = "ml.p4d.24xlarge"
SMALL = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 2}
WRONG = (
    *(None, True, 5, -1, 10**400, math.nan, -math.inf, 2.5, "", "x", "a\0b", "\ud800", b"x", [1], {"a": 1}),
    *(object(), print, (1, "a")),
)
REFUSED = {"profile", "rehearse", "Advice.start", "Advice.rehearse", "Run.stop", "Model.from_module"}
"""Calls whose right arguments are refused here: they start child processes or end them, or require PyTorch."""
OF_ANYTHING = {("Model.from_module", "module"), ("Advice.unobserve", "callback")}
"""Arguments that may be anything."""
PLAIN = (type(None), bool, int, float, str, list, dict)


def _points(folder: Any) -> tuple[dict[str, object], dict[str, dict[str, Any]]]:
    """An instance of each public class, and arguments with which each call works that requires some."""
    script, log = folder / "train.py", folder / "train.log"
    script.write_text("x = 1\n")
    log.write_text("".join(f"step {n} loss 9.1 tokens_per_second 52428.8 seconds_per_step 2.5\n" for n in range(30)))
    advice = smpa.advise("350M", P4D, library="fsdp", sequence_length=512, tokens="1B")
    advice.save(folder / "advice.json")
    calibration = advice.calibrate(step_seconds=5.0, accept=True).job.calibration
    calibration.save(folder / "calibration.json")
    failure = smpa.read_failure("RuntimeError: CUDA out of memory. Tried to allocate 2 GiB")
    finding = dict.fromkeys(("path", "text", "message", "consequence", "remedy", "source_title", "source_url"), "x")
    made = {
        "Adapter": smpa.Adapter(), "Advice": advice, "Advisor": smpa.Advisor(advice), "Calibration": calibration,
        "Cluster": advice.cluster, "Estimate": advice.estimate, "Failure": failure,
        "Finding": smpa.Finding(id="A1", severity="error", line=1, column=1, **finding),
        "Instance": advice.cluster.instance, "Job": advice.job, "Model": advice.model, "Overheads": smpa.Overheads(),
        "Plan": advice.plan, "Profile": smpa.profile(SMALL, sequence_length=64, stages=["trace"]),
        "Run": smpa.watch(log),
        "Stack": next(iter(smpa.stacks().values())),
        "Rehearsal": smpa.Rehearsal(script="x", processes=2, outcome="ran", updates=1, findings=()),
    }  # fmt: skip
    state, path = {"state": advice.controls}, {"path": folder / "a.json"}
    parts = {"model": advice.model, "cluster": advice.cluster, "job": advice.job}
    works = {
        "Advice": {"value": advice.recommended}, "Advice.adopt": {"plan": 1}, "Advice.after": {"failure": failure},
        "Advice.at": state, "Advice.calibrate": {"step_seconds": 5.0, "accept": True}, "Advice.compare_at": state,
        "Advice.chart": {"name": "memory"}, "Advice.diff": {"advice": advice}, "Advice.export": {"format": "slurm"},
        **{f"Advice.{name}": {"callback": print} for name in ("observe", "unobserve")},
        "Advice.of": {"request": advice.request}, "Advice.save": path, "Advice.settle": state,
        "Advice.mark": {"done": made["Rehearsal"]},
        "Advice.renew": {"value": advice.recommended, "summary": "x"}, "Advice.search": {"changes": {}},
        **{f"Adapter.{name}": {"model": advice.model}
           for name in ("adapts_experts", "applied_to", "base_bytes", "instead", "parameter_count")},
        "Advisor": {"advice": advice}, "Advisor.compare_with": {"names": {}},
        "Advisor.set_state": {"sync_data": {}}, "Calibration.save": path,
        "Calibration.share": {"path": folder / "b.json"}, "Calibration.with_runs": {"runs": calibration.runs},
        "Cluster": {"instance": P4D},
        "Cluster.custom": {"gpu": "X1", "usable_gpu_memory_gib": 40, "peak_tflops": 300, "gpus_per_node": 8,
                           "nodes": 1, "intra_node_gb_per_s": 600, "inter_node_gbps": 0},
        "Model.from_config": {"config": {"model_type": "llama"}}, "Model.from_name": {"name": "gpt2"},
        "Model.from_module": {"module": object()}, "Model.from_parameters": {"count": "1B"},
        "Model.from_profile": {"profile": made["Profile"]}, "Model.sequence_length": {"job_sequence_length": 512},
        "Model.from_shape": {"layers": 2, "hidden": 64, "heads": 2}, "Overheads.of": {"value": "none"},
        "Plan": {"library": "fsdp"}, "Plan.from_parameters": {"parameters": {"partitions": 2}},
        "Plan.from_reading": {"settings": {}}, "Plan.shard_degree": {"cluster": advice.cluster},
        **{f"Plan.precision_{name}": {"precision": "bf16"} for name in ("fields", "remedy")},
        "Profile.activation_bytes": {"batch": 2}, "Profile.peak_memory": {"batch": 2},
        "Profile.from_dict": {"values": made["Profile"].as_dict()}, "Run": {"source": made["Run"].source},
        "Run.measured": {"cluster": advice.cluster}, "advise": {"model": "350M", "cluster": P4D, "library": "fsdp"},
        "check_estimator": {"source": {"instance_type": P4D, "distribution": {"torch_distributed": {"enabled": True}}}},
        "check_script": {"path_or_source": "x = 1\n"}, "estimate": {**parts, "plan": advice.plan},
        "load": {"path": folder / "advice.json"},
        "load_calibration": {"path": folder / "calibration.json"}, "read_failure": {"text": "x"},
        "read_stack": {"path_or_source": "x = 1\n"}, "save": {"value": advice.plan, **path},
        "script_changes": {"script": "x = 1\n", "plan": advice.plan}, "watch": {"run": log},
        "profile": {"model": object()}, "rehearse": {"script": folder / "missing.py"},
    }  # fmt: skip
    return made, works


def _calls(made: dict[str, object]) -> Iterator[tuple[str, Callable[..., object]]]:
    """Public functions, and constructors and methods of the public classes, by name."""
    for name in smpa.__all__:
        value = getattr(smpa, name)
        if callable(value):
            yield name, value
        if inspect.isclass(value):
            own = {key for kind in value.__mro__ if kind.__module__.startswith("smp_advisor") for key in vars(kind)}
            for key in sorted(own):
                if not key.startswith("_") and callable(getattr(value, key)):
                    yield f"{name}.{key}", getattr(made[name], key)


def _names(call: Callable[..., object]) -> list[str]:
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [entry.name for entry in inspect.signature(call).parameters.values() if entry.kind not in kinds]


def _refuses(name: str, call: Callable[[], object]) -> bool:
    """Return whether a call is refused, in one sentence."""
    try:
        str(call())
    except AdvisorError as error:
        sentence = str(error)
        assert "\n" not in sentence or "log:" in sentence, (name, sentence)
        assert len(sentence) < LONGEST_SENTENCE, (name, sentence)
        return True
    except Exception as error:
        raise AssertionError(f"{name}: {error!r:.300}") from error
    return False


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    """Every argument of every public call with every wrong value, as arguments of `_accepts`."""
    folder = tmp_path_factory.mktemp("sweep")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        made, works = _points(folder)
        rows = []
        for name, call in ((name, call) for name, call in _calls(made) if name != "Estimate"):  # a result
            instance, arguments = made.get(name), works.get(name, {})
            if not arguments and is_dataclass(instance):
                arguments = {entry.name: getattr(instance, entry.name) for entry in fields(instance) if entry.init}
            rows += [(name, call, arguments, argument, value) for argument in _names(call) for value in WRONG]
        yield rows
        assert {path.name for path in folder.glob("[!a-ct]*")} <= {
            "x",
            ".x.lock",
            ".b.json.lock",
            "smp_runs",
        }


def _accepts(name: str, call: Callable[..., object], arguments: dict[str, Any], argument: str, value: object) -> bool:
    accepts = not _refuses(f"{name}({argument}={value!r:.40})", lambda: call(**arguments | {argument: value}))
    wrong_everywhere = isinstance(value, bytes | float) or value == 10**400 or type(value) is object
    right = (name, argument) in OF_ANYTHING or value == 2.5
    assert right or not (accepts and wrong_everywhere), (name, argument, value)
    return accepts


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_wrong_arguments_are_refused_in_one_sentence(sweep, monkeypatch):
    monkeypatch.setattr(os, "fork", _no_child)
    monkeypatch.setattr(subprocess, "Popen", _no_child)
    for name, call, arguments in {row[0]: row[:3] for row in sweep}.values():
        assert name in REFUSED or not _refuses(name, lambda call=call, arguments=arguments: call(**arguments)), name
    assert sum(_accepts(*row) for row in sweep) < 0.15 * len(sweep)
    assert len(sweep) > 10_000


@pytest.mark.torch  # a profile is one of the points
@pytest.mark.filterwarnings("ignore")
def test_a_sample_of_wrong_arguments(sweep, monkeypatch, request):
    monkeypatch.setattr(os, "fork", _no_child)
    monkeypatch.setattr(subprocess, "Popen", _no_child)
    for row in Random(request.config.getoption("fuzz_seed")).sample(sweep, 200):
        _accepts(*row)
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def _no_child(*arguments: object, **options: object) -> None:
    raise AdvisorError("A wrong argument is refused before a child process starts.")


@pytest.mark.slow
def test_a_stored_advice_with_another_value_is_read_or_refused(request):
    random = Random(request.config.getoption("fuzz_seed"))
    advice = smpa.advise("350M", P4D, library="ddp", sequence_length=512, tokens="1B")
    saved = advice.as_json()
    others = [value for value in VALUES if isinstance(value, PLAIN)]
    for number in range(request.config.getoption("fuzz_inputs") // 10):
        document = place = json.loads(saved)
        while True:
            key = random.choice(list(place) if isinstance(place, dict) else range(len(place)))
            if not place[key] or not isinstance(place[key], dict | list) or random.random() < 0.2:
                break
            place = place[key]
        place[key] = random.choice(others)
        text = json.dumps(document, skipkeys=True)
        _refuses(f"document {number}", lambda text=text: (str(from_text(text)[0]), text)[1])
