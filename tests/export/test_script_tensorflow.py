"""Schedule and loop of the TensorFlow script, with stand-ins for TensorFlow, the library and the model."""

import functools
import json
import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from smp_advisor.export.template import render
from tests.export.test_script_data import namespace

TF = SimpleNamespace(
    float32=float,
    cast=lambda value, to: to(value),
    maximum=np.maximum,
    where=np.where,
    constant=np.asarray,
    keras=SimpleNamespace(optimizers=SimpleNamespace(schedules=SimpleNamespace(LearningRateSchedule=object))),
)
"""The names of TensorFlow that the parts use."""
HOROVOD = SimpleNamespace(allreduce=lambda value: value / 2)  # the other replica has a loss of 0


def part(name, names=None):
    """The names of a part of the script."""
    smp = SimpleNamespace(rank=lambda: 0)
    names = {"tf": TF, "hvd": HOROVOD, "smp": smp, "os": os, "Path": Path, "functools": functools} | (names or {})
    exec(
        render(f"tensorflow/{name}.py.in", horovod=True, chats=False, full_batches=True),
        names,
    )
    return names


def test_the_learning_rate_rises_and_falls():
    settings = SimpleNamespace(learning_rate=0.5, warmup_steps=4, max_steps=24)
    schedule = part("optimizer")["Schedule"](settings)
    rates = [float(schedule(step)) for step in range(24)]
    assert rates[:5] == [0.125, 0.25, 0.375, 0.5, 0.5]
    assert rates[14] == pytest.approx(0.25)
    assert min(rates[4:]) == pytest.approx(0.05)
    assert float(part("optimizer")["Schedule"](SimpleNamespace(**vars(settings) | {"warmup_steps": 0}))(0)) == 0.5


class Used:
    """The variable with the number of used samples."""

    def __init__(self, job):
        self.job = job

    def assign(self, samples):
        self.job.used = samples

    def __int__(self):
        return self.job.used


class Job:
    """One run of the loop; the weights are the samples that trained them."""

    def __init__(self, folder, max_steps, saved):
        self.folder, self.saved, self.trained = folder, saved, []
        self.optimizer, self.used = SimpleNamespace(iterations=0), 0
        options = {"batch_size": 4, "gradient_accumulation_steps": 1, "seed": 3, "log_every": 1}
        self.arguments = SimpleNamespace(
            **options, max_steps=max_steps, evaluate_every=0, checkpoint_every=2, checkpoint_directory=folder
        )
        data = namespace()
        data.Batches.__init__.__globals__["to_batch"] = lambda rows, _: np.array(rows)
        self.batches = data.Batches(range(40), self.arguments, 1, 0)
        self.events = []

    def train_step(self, tokens, first):
        self.events.append("first step" if first else "step")
        self.trained.append(tokens.tolist())
        self.optimizer.iterations += 1
        return 1.0

    def save(self):
        (self.folder / "checkpoint").write_text("")
        self.saved.update(steps=self.optimizer.iterations, used=int(self.used), trained=list(self.trained))

    def restore(self):
        self.events.append("restore")
        self.optimizer.iterations, self.used = self.saved["steps"], self.saved["used"]
        self.trained = list(self.saved["trained"])

    def run(self, monkeypatch):
        monkeypatch.setenv("SM_MODEL_DIR", str(self.folder))
        names = {
            "arguments": self.arguments,
            "batches": self.batches,
            "train_step": self.train_step,
            "checkpoints": SimpleNamespace(save=self.save, restore=self.restore),
            "optimizer": self.optimizer,
            "used": Used(self),
            "schedule": float,
            "model": SimpleNamespace(save_model=lambda _: self.events.append("save_model")),
            "Meter": lambda *_: SimpleNamespace(
                first=1,
                log=lambda *_: None,
                finish=lambda step: print(json.dumps({"steps": step})),
            ),
        }
        part("loop", names)["main"]()
        return self


def test_a_resumed_job_restores_after_its_first_step_and_continues(tmp_path, monkeypatch, capsys):
    (tmp_path / "one").mkdir()
    saved = {}
    through = Job(tmp_path / "one", 9, {}).run(monkeypatch)
    first = Job(tmp_path, 4, saved).run(monkeypatch)
    assert first.events == ["first step", "step", "step", "step", "save_model"]
    later = Job(tmp_path, 9, saved).run(monkeypatch)
    assert later.events[:3] == ["first step", "restore", "step"]
    assert later.trained == through.trained, "the same samples in the same steps"
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == {"steps": 9}
    assert saved["steps"] == 9, "the last step is saved"


def test_the_validation_loss_is_that_of_all_replicas():
    held_out = SimpleNamespace(once=lambda *_, **__: [(3.0, 1), (5.0, 1)])
    step = lambda tokens: SimpleNamespace(reduce_mean=lambda: float(tokens))  # noqa: E731
    names = part("loop", {"evaluation_step": step, "arguments": SimpleNamespace(evaluation_batches=2)})
    assert names["evaluate"](held_out) == 2.0


@pytest.mark.parametrize("measured", [True, False])
def test_memory_is_0_where_tensorflow_does_not_measure_it(measured):
    """TensorFlow 2.3 and 2.4 have no get_memory_info."""
    memory = {"get_memory_info": lambda _: {"peak": 2**30}} if measured else {}
    config = SimpleNamespace(list_physical_devices=lambda kind: [kind], experimental=SimpleNamespace(**memory))
    tf = SimpleNamespace(config=config)
    assert part("data", {"tf": tf})["peak_bytes"]() == (2**30 if measured else 0)
