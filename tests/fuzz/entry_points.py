"""Every public call with random arguments, among which are wrong ones of every kind."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields
from random import Random
from typing import Any

import smp_advisor as smpa
from smp_advisor.keywords import AdviseSettings, JobOptionSettings
from smp_advisor.libraries.registry import libraries

__all__ = ["EntryPoints"]

VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, -5, 1, 2, 3, 7, 16, 10**6, 10**9, 10**15, 10**30, -(10**30)),
    *(0.5, 1.5, 1e-300, 1e308, math.nan, math.inf, -math.inf),
    *("", " ", "a", "10B", "-5B", "0", "nan", "inf", "1e999", "9" * 5000, "a\0b", "x" * 100_000, "\ud800", "é"),
    *("/dev/zero", "/dev/null", "../..", "~", b"x", [], [1], ["a"], (), (1, 2), {}, {"a": 1}, {1: 2}, set(), object()),
    *(print, int, ValueError("x"), range(3), complex(1, 2), "auto", "smp-v1", "smp-v2", "ddp", "fsdp"),
    *("bf16", "fp16", "each", "none", "ml.p4d.24xlarge", "s3://b/k"),
)
P4D = "ml.p4d.24xlarge"
CUSTOM = {
    "gpu": "X1",
    "usable_gpu_memory_gib": 40,
    "peak_tflops": 300,
    "gpus_per_node": 8,
    "nodes": 1,
    "intra_node_gb_per_s": 600,
    "inter_node_gbps": 0,
}
SHAPE = {"layers": 2, "hidden": 64, "heads": 2}
CONFIG_KEYS = ("hidden_size", "n_embd", "num_attention_heads", "vocab_size", "num_hidden_layers", "n_layer", "n_head")
MODELS = ("gpt2", "llama", "bert", "t5", "mixtral")
ADVISE = ("framework", "objective", "min_fit_probability", "script", "data", "instance_count", "job")


class EntryPoints:
    """Calls of the public functions and methods with values of `VALUES`.

    Parameters
    ----------
    random
        Source of the values.
    """

    def __init__(self, random: Random) -> None:
        self._random = random
        self.model = smpa.Model.from_parameters("350M")
        self.cluster, self.job = smpa.Cluster(P4D), smpa.Job(sequence_length=512, precision="bf16")
        self.plan = smpa.Plan(library="ddp", batch_size=2)
        self.advice = smpa.advise("350M", P4D, library="ddp", sequence_length=512, tokens="1B")
        self.calls: dict[str, Callable[[], object]] = {**self._values(), **self._functions(), **self._methods()}
        """Each entry point by its name, for one call."""

    def _any(self, *valid: object) -> Any:
        """A value of any kind; as often one of the valid ones, if there are any."""
        return self._random.choice(valid) if valid and self._random.random() < 0.5 else self._random.choice(VALUES)

    def _some(self, names: tuple[str, ...] | list[str], most: int = 2) -> dict[str, Any]:
        """Keywords of some names."""
        count = self._random.randint(1, most)
        return {name: self._any() for name in self._random.sample(list(names), count)}

    def _values(self) -> dict[str, Callable[[], object]]:
        plans = {record.name: [f.name for f in fields(record.plan) if f.name != "library"] for record in libraries()}
        of_job = [field.name for field in fields(smpa.Job)]
        of_adapter = [field.name for field in fields(smpa.Adapter)]
        of_overheads = [field.name for field in fields(smpa.Overheads)]

        def plan() -> object:
            library = self._random.choice(list(plans))
            return smpa.Plan(library=library, **self._some(plans[library]))

        def config() -> object:
            values = {"model_type": self._random.choice(MODELS), self._random.choice(CONFIG_KEYS): self._any()}
            return smpa.Model.from_config(self._any(values))

        return {
            "Model.from_parameters": lambda: smpa.Model.from_parameters(
                self._any("1B"), **self._some(["family", "layers", "hidden", "heads", "vocab", "name"], 1)
            ),
            "Model.from_shape": lambda: smpa.Model.from_shape(
                **{**SHAPE, **self._some([*SHAPE, "vocab", "family", "kv_heads", "ffn", "experts", "tied", "name"])}
            ),
            "Model.from_name": lambda: smpa.Model.from_name(self._any()),
            "Model.from_config": config,
            "Model.from_profile": lambda: smpa.Model.from_profile(self._any()),
            "Model.from_module": lambda: smpa.Model.from_module(self._any()),
            "Job": lambda: smpa.Job(**self._some(of_job)),
            "Adapter": lambda: smpa.Adapter(**self._some(of_adapter)),
            "Overheads": lambda: smpa.Overheads(**self._some(of_overheads)),
            "Cluster": lambda: smpa.Cluster(self._any(P4D), self._any(1)),
            "Cluster.custom": lambda: smpa.Cluster.custom(
                **{**CUSTOM, **self._some([*CUSTOM, "vcpus", "efa", "name"])}
            ),
            "Plan": plan,
            "Plan of a library": lambda: smpa.Plan(library=self._any()),
            "Plan.from_parameters": lambda: smpa.Plan.from_parameters(
                self._any(self._some(["partitions", "microbatches", "ddp", "fp16", "placement_strategy"])),
                self._any(None),
                **self._some(["version", "library"], 1),
            ),
        }

    def _functions(self) -> dict[str, Callable[[], object]]:
        parts = (self.model, self.cluster, self.job)
        settings = [*ADVISE, *AdviseSettings.__annotations__]

        def advise() -> object:
            return smpa.advise("350M", P4D, **{"library": "ddp", "sequence_length": 512, **self._some(settings)})

        def cluster() -> object:
            value = self._any()
            return None if value == "any" else smpa.advise("350M", value, library="ddp", sequence_length=512)

        return {
            "estimate": lambda: smpa.estimate(*(self._any(part, part, part) for part in (*parts, self.plan))),
            "estimate_many": lambda: smpa.estimate_many(*(self._any(part, part) for part in (*parts, [self.plan]))),
            "advise a model": lambda: smpa.advise(self._any(), P4D, library="ddp"),
            "advise on a cluster": cluster,
            "advise": advise,
            "check_script": lambda: smpa.check_script(
                self._any("x = 1\n"), **self._some(["plan", "library", "hyperparameters"], 1)
            ),
            "check_estimator": lambda: smpa.check_estimator(
                self._any({"partitions": 2}),
                **self._some(["model", "job", "cluster", "library", "variables", "min_fit_probability"], 1),
            ),
            "apply_fixes": lambda: smpa.apply_fixes(self._any()),
            "read_stack": lambda: smpa.read_stack(self._any()),
            "adapt_script": lambda: smpa.adapt_script(self._any()),
            "load": lambda: smpa.load(self._any()),
            "save": lambda: smpa.save(self._any(self.plan), self._random.choice(["a\0b", "", ".", "/proc/x/y"])),
            "load_calibration": lambda: smpa.load_calibration(self._any()),
        }

    def _methods(self) -> dict[str, Callable[[], object]]:
        advice, options = self.advice, list(JobOptionSettings.__annotations__)

        def move() -> object:
            return advice.move(**self._some([*advice.controls.settings, "tensor_parallel_degree"], 1))

        return {
            "advice.move": move,
            "advice.plan": lambda: setattr(advice, "plan", self._any(self.plan)),
            "advice.adopt": lambda: advice.adopt(self._any(1)),
            "advice.undo": lambda: advice.undo(self._any(1)),
            "advice.redo": lambda: advice.redo(self._any(1)),
            "advice.keep": lambda: advice.keep(self._any("a")),
            "advice.load": lambda: advice.load(self._any("a")),
            "advice.forget": lambda: advice.forget(self._any("b")),
            "advice.compare": lambda: advice.compare(self._any("a")),
            "advice.diff": lambda: advice.diff(self._any(advice)),
            "advice.ladder": lambda: advice.ladder(self._any(1)),
            "advice.ranks": lambda: advice.ranks(self._any(1), self._any(None)),
            "advice.chart": lambda: advice.chart(self._any("memory"), self._any(1)),
            "advice.cell": lambda: advice.cell(self._any("v2"), self._any(None), **self._some(options, 1)),
            "advice.export": lambda: advice.export(
                self._any("slurm", "kubernetes"), self._any(None), **self._some(["script", "data", "job_name"], 1)
            ),
        }
