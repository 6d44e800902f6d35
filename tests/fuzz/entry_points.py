"""Every public call with random arguments, among which are wrong ones of every kind."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields
from random import Random

import smp_advisor as smpa
from smp_advisor.libraries.library import libraries
from smp_advisor.session import Advice
from smp_advisor.session.options import keyword_names
from smp_advisor.session.written import from_text

from .values import VALUES, Values

__all__ = ["EntryPoints"]

PLAIN = (type(None), bool, int, float, str, list, dict)
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


class EntryPoints(Values):
    """Calls of the public functions and methods with values of `values.VALUES`."""

    def __init__(self, random: Random) -> None:
        super().__init__(random)
        self.model = smpa.Model.from_parameters("350M")
        self.cluster, self.job = smpa.Cluster(P4D), smpa.Job(sequence_length=512, precision="bf16")
        self.plan = smpa.Plan(library="ddp", batch_size=2)
        self.advice = smpa.advise("350M", P4D, library="ddp", sequence_length=512, tokens="1B")
        self.saved = json.loads(self.advice.as_json())
        self.calls: dict[str, Callable[[], object]] = {**self._values(), **self._functions(), **self._methods()}
        """Each entry point by its name, for one call."""

    def changed(self, saved: object) -> object:
        """A saved advice with another value in one place, read and shown."""
        document = copy = json.loads(json.dumps(saved))
        while True:
            keys = list(copy) if isinstance(copy, dict) else range(len(copy))
            key = self.random.choice(list(keys))
            if not copy[key] or not isinstance(copy[key], dict | list) or self.random.random() < 0.2:
                break
            copy = copy[key]
        copy[key] = self.random.choice([value for value in VALUES if isinstance(value, PLAIN)])
        text = json.dumps(document, skipkeys=True)
        try:
            advice, _ = from_text(text)
        except RecursionError:
            return None
        return None if not isinstance(advice, Advice) else (str(advice), repr(advice), advice.cell(sdk="v2"))

    def _values(self) -> dict[str, Callable[[], object]]:
        plans = {record.name: [f.name for f in fields(record.plan) if f.name != "library"] for record in libraries()}
        of_job = [field.name for field in fields(smpa.Job)]
        of_adapter = [field.name for field in fields(smpa.Adapter)]
        of_overheads = [field.name for field in fields(smpa.Overheads)]

        def plan() -> object:
            library = self.random.choice(list(plans))
            return smpa.Plan(library=library, **self.some(plans[library]))

        def config() -> object:
            values = {"model_type": self.random.choice(MODELS), self.random.choice(CONFIG_KEYS): self.any()}
            return smpa.Model.from_config(self.any(values))

        return {
            "Model.from_parameters": lambda: smpa.Model.from_parameters(
                self.any("1B"), **self.some(["family", "layers", "hidden", "heads", "vocab", "name"], 1)
            ),
            "Model.from_shape": lambda: smpa.Model.from_shape(
                **{**SHAPE, **self.some([*SHAPE, "vocab", "family", "kv_heads", "ffn", "experts", "tied", "name"])}
            ),
            "Model.from_name": lambda: smpa.Model.from_name(self.any()),
            "Model.from_config": config,
            "Model.from_profile": lambda: smpa.Model.from_profile(self.any()),
            "Model.from_module": lambda: smpa.Model.from_module(self.any()),
            "Job": lambda: smpa.Job(**self.some(of_job)),
            "Adapter": lambda: smpa.Adapter(**self.some(of_adapter)),
            "Overheads": lambda: smpa.Overheads(**self.some(of_overheads)),
            "Cluster": lambda: smpa.Cluster(self.any(P4D), self.any(1)),
            "Cluster.custom": lambda: smpa.Cluster.custom(**{**CUSTOM, **self.some([*CUSTOM, "vcpus", "efa", "name"])}),
            "Plan": plan,
            "Plan of a library": lambda: smpa.Plan(library=self.any()),
            "Plan.from_parameters": lambda: smpa.Plan.from_parameters(
                self.any(self.some(["partitions", "microbatches", "ddp", "fp16", "placement_strategy"])),
                self.any(None),
                **self.some(["version", "library"], 1),
            ),
        }

    def _functions(self) -> dict[str, Callable[[], object]]:
        parts = (self.model, self.cluster, self.job)
        settings = [*ADVISE, *keyword_names("AdviseSettings"), *keyword_names("PlanSettings")]

        def advise() -> object:
            return smpa.advise("350M", P4D, **{"library": "ddp", "sequence_length": 512, **self.some(settings)})

        def choose() -> object:
            return smpa.advise("350M", P4D, **{"global_batch_size": 64, **self.some(settings)})

        def cluster() -> object:
            value = self.any()
            return None if value == "any" else smpa.advise("350M", value, library="ddp", sequence_length=512)

        return {
            "estimate": lambda: smpa.estimate(*(self.any(part, part, part) for part in (*parts, self.plan))),
            "estimate_many": lambda: smpa.estimate_many(*(self.any(part, part) for part in (*parts, [self.plan]))),
            "advise a model": lambda: smpa.advise(self.any(), P4D, library="ddp"),
            "advise on a cluster": cluster,
            "advise": advise,
            "advise with any library": choose,
            "load changed values": lambda: self.changed(self.saved),
            "check_script": lambda: smpa.check_script(
                self.any("x = 1\n"), **self.some(["plan", "library", "hyperparameters"], 1)
            ),
            "check_estimator": lambda: smpa.check_estimator(
                self.any({"partitions": 2}),
                **self.some(["model", "job", "cluster", "library", "variables", "min_fit_probability"], 1),
            ),
            "apply_fixes": lambda: smpa.apply_fixes(self.any()),
            "read_stack": lambda: smpa.read_stack(self.any()),
            "load": lambda: smpa.load(self.any()),
            "save": lambda: smpa.save(self.any(self.plan), self.random.choice(["a\0b", "", ".", "/proc/x/y"])),
            "load_calibration": lambda: smpa.load_calibration(self.any()),
        }

    def _methods(self) -> dict[str, Callable[[], object]]:
        advice, options = self.advice, keyword_names("JobOptionSettings")

        def move() -> object:
            return advice.move(**self.some([*advice.controls.settings, "tensor_parallel_degree"], 1))

        return {
            "advice.move": move,
            "advice.plan": lambda: setattr(advice, "plan", self.any(self.plan)),
            "advice.adopt": lambda: advice.adopt(self.any(1)),
            "advice.undo": lambda: advice.undo(self.any(1)),
            "advice.redo": lambda: advice.redo(self.any(1)),
            "advice.keep": lambda: advice.keep(self.any("a")),
            "advice.load": lambda: advice.load(self.any("a")),
            "advice.forget": lambda: advice.forget(self.any("b")),
            "advice.compare": lambda: advice.compare(self.any("a")),
            "advice.diff": lambda: advice.diff(self.any(advice)),
            "advice.ladder": lambda: advice.ladder(self.any(1)),
            "advice.ranks": lambda: advice.ranks(self.any(1), self.any(None)),
            "advice.chart": lambda: advice.chart(self.any("memory"), self.any(1)),
            "advice.cell": lambda: advice.cell(self.any("v2"), self.any(None), **self.some(options, 1)),
            "advice.export": lambda: advice.export(
                self.any("slurm", "kubernetes"), self.any(None), **self.some(["script", "data", "job_name"], 1)
            ),
        }
