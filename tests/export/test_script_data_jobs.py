"""Generated scripts as jobs over gloo on text: JSON lines and Parquet, packed and cached, conversations, adapters.

Jobs build on each other: one leaves a model, on which conversations and an adapter are then trained. One child process
runs them all, see `run_jobs.py`.
"""

import json
import os
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from smp_advisor.cluster import Cluster
from smp_advisor.costs.compute import model_flops_per_sample
from smp_advisor.export.script import companions, writable, written
from smp_advisor.libraries import Plan
from smp_advisor.runs.readers import read_text
from smp_advisor.workload.job import Job
from smp_advisor.workload.model import Model
from tests.export.examples import P4D, TASKS
from tests.export.gloo_jobs import QUICK, run_jobs, spec
from tests.export.gloo_jobs import losses_of as losses_by_step

TWO_NODES = Cluster(P4D, 2)
LENGTH, BATCH, ROWS = 16, 4, 90
MODEL = TASKS["llama"]
WORDS = ["<s>", "</s>", "<user>", "<assistant>", *(f"w{number}" for number in range(60))]
TEMPLATE = (
    "{% for message in messages %}<{{ message['role'] }}> {{ message['content'] }} </s> {% endfor %}"
    "{% if add_generation_prompt %}<assistant> {% endif %}"
)


def texts():
    """Each word is followed by the next one."""
    return [" ".join(f"w{(row + place) % 8}" for place in range(3 + row % 20)) for row in range(ROWS)]


def make_data(folder):
    """Text and conversations, as files."""
    for name in ("text", "temporary"):
        (folder / name).mkdir()
    lines = [json.dumps({"text": text}) for text in texts()]
    (folder / "text" / "a.jsonl").write_text("\n".join(lines[:50]))
    (folder / "text" / "b.jsonl").write_text("\n".join(lines[50:]) + "\n")
    chats = [
        [
            {"role": "user", "content": f"w{row % 8}"},
            {"role": "assistant", "content": f"w{(row + 1) % 8} w{(row + 2) % 8}"},
        ]
        for row in range(ROWS)
    ]
    (folder / "chats").mkdir()
    pq.write_table(pa.table({"messages": chats}), folder / "chats" / "chats.parquet", row_group_size=16)
    (folder / "few chats").mkdir()
    pq.write_table(pa.table({"messages": chats[:13]}), folder / "few chats" / "chats.parquet")
    pairs = [{"prompt": f"w{row % 8} w0", "completion": f"w{(row + 1) % 8} " * (1 + row % 20)} for row in range(ROWS)]
    (folder / "pairs").mkdir()
    (folder / "pairs" / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({word: place for place, word in enumerate(WORDS)}, unk_token="<s>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    (folder / "tokenizer").mkdir()
    tokenizer.save(str(folder / "tokenizer" / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>", "bos_token": "<s>"}
    (folder / "tokenizer" / "tokenizer_config.json").write_text(json.dumps(settings | {"chat_template": TEMPLATE}))


def script(folder, name, plan, *, model=MODEL, **job):
    path = folder / name / "train.py"
    job = Job(sequence_length=LENGTH, precision=plan.precision, **job)
    training = writable(model, TWO_NODES, job, plan, trainer="plain")
    path.parent.mkdir()
    for file, text in {"train.py": written(training), **companions(training)}.items():
        (path.parent / file).write_text(text)
    return path


def make_specs(folder):
    make_data(folder)
    fsdp = script(folder, "fsdp", Plan(library="fsdp", batch_size=BATCH, precision="fp32"))
    ddp = script(folder, "ddp", Plan(library="ddp", batch_size=BATCH, precision="fp32"), training="fine-tuning")
    plain = Plan(library="ddp", batch_size=BATCH, precision="fp32")
    masked = script(folder, "masked", plain, model=TASKS["bert"])
    # Dropout differs with the number of processes.
    t5 = Model.from_config({**json.loads(TASKS["t5"].config_json), "dropout_rate": 0.0})
    translating = script(folder, "translating", plain, model=t5)
    specs = {}

    def add(name, path, channels, place=None, *, processes=2, **options):
        place = folder / "jobs" / (place or name)
        own = {"gradient_accumulation_steps": 2 // processes, "checkpoint_every": 3}
        specs[name] = spec(
            path,
            place,
            QUICK | own | {"checkpoint_directory": place / "checkpoints"} | options,
            processes=processes,
            channels={channel: folder / data for channel, data in channels.items()},
            environment={"HF_HOME": str(folder / "cache"), "TMPDIR": str(folder / "temporary")},
        )

    text = {"train": "text", "tokenizer": "tokenizer"}
    add("text", fsdp, text | {"validation": "text"}, evaluate_every=4, max_steps=9)
    add("text, resumed", fsdp, text, "text", processes=1, max_steps=9)
    specs["text, resumed"]["removed"] = ["checkpoints/step-9/__0_0.distcp"]
    add("text, again", fsdp, text | {"validation": "text"}, "text", processes=1, max_steps=9)
    add("diverged", fsdp, text, learning_rate=1e30, checkpoint_every=1, max_steps=20)
    add("one epoch", ddp, text, max_steps=None, warmup_steps=0.1)
    chats = {"train": "chats", "model": "jobs/text", "validation": "few chats"}
    add("chats", ddp, chats, evaluation_batches=0, max_steps=12)
    add("chats, alone", ddp, chats, processes=1, evaluation_batches=0, max_steps=12)
    for processes in (1, 3):
        options = {"processes": processes, "gradient_accumulation_steps": 1, "max_steps": 0, "evaluation_batches": 0}
        add(f"evaluated by {processes}", ddp, chats, **options)
    add("masked", masked, text | {"validation": "text"})
    add("encoder and decoder", translating, text | {"validation": "text"}, max_steps=3)
    pairs = {"train": "pairs", "tokenizer": "tokenizer", "validation": "pairs"}
    add("pairs", translating, pairs, evaluation_batches=0, max_steps=12)
    add("pairs, alone", translating, pairs, processes=1, evaluation_batches=0, max_steps=12)
    add("no tokenizer", fsdp, {"train": "text"}, processes=1)
    return specs


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("data jobs")


@pytest.fixture(scope="module")
def jobs(folder):
    return run_jobs(folder, make_specs(folder))


def losses_of(job):
    return list(losses_by_step(job).values())


@pytest.mark.torch
@pytest.mark.slow
class TestJobs:
    def test_text_trains_and_is_evaluated_every_few_steps(self, jobs):
        losses = losses_of(jobs["text"])
        assert losses[-1] < losses[0] - 0.5
        evaluations = re.findall(r"^step (\d+)/\d+ validation_loss (\S+)", jobs["text"]["printed"], re.MULTILINE)
        assert [int(step) for step, _ in evaluations] == [4, 8, 9]
        assert jobs["text"]["summary"]["validation_loss"] == pytest.approx(float(evaluations[-1][1]), abs=1e-3)

    def test_data_without_a_number_of_steps_are_trained_on_once(self, jobs, folder):
        tokens = sum(len(text.split()) + 1 for text in texts())
        samples = tokens // LENGTH
        assert {path.name for path in (folder / "temporary").iterdir()} == {f"training-{os.getuid()}"}  # of one user
        assert len(losses_of(jobs["one epoch"])) == jobs["one epoch"]["summary"]["steps"] == -(-samples // (2 * BATCH))

    def test_a_finished_job_trains_nothing_and_reports_no_loss(self, jobs):
        again = jobs["text, again"]
        assert again["error"] is None
        assert again["summary"].keys() == {"steps", "validation_loss"}
        assert again["printed"].count("validation_loss") == 2  # its line, and the summary

    def test_a_job_whose_loss_is_no_number_fails_and_keeps_the_checkpoint_before_it(self, jobs):
        job = jobs["diverged"]
        assert "was not a number" in job["error"]
        assert set(job["checkpoints"]) <= {"step-1", "step-2"}, "the first step is that of a rate of 0"
        assert job["summary"] is None

    @pytest.mark.usefixtures("jobs")
    def test_models_keep_the_tokenizer_and_the_generation_settings_of_their_base(self, folder):
        base, trained = (
            json.loads((folder / "jobs" / name / "generation_config.json").read_text()) for name in ("text", "chats")
        )
        assert base == trained
        assert base.get("use_cache", True)
        assert {"config.json", "tokenizer.json"} <= {path.name for path in (folder / "jobs" / "chats").iterdir()}

    def test_another_number_of_processes_sees_the_same_tokens(self, jobs):
        assert losses_of(jobs["text, resumed"]) == pytest.approx(losses_of(jobs["text"])[6:], abs=2e-3)

    @pytest.mark.parametrize("rows", ["chats", "pairs"])
    def test_answers_are_learned_and_each_target_counts_the_same_on_any_number_of_processes(self, jobs, rows):
        """Batches have different numbers of targets, the last one of the evaluation is partial.

        Conversations start from weights; prompts are for the encoder and completions for the decoder.
        """
        alone, together = jobs[f"{rows}, alone"], jobs[rows]
        assert losses_of(alone) == pytest.approx(losses_of(together), abs=2e-3)
        assert losses_of(alone)[-1] < losses_of(alone)[0] - 0.5
        assert alone["summary"]["validation_loss"] == pytest.approx(together["summary"]["validation_loss"], abs=2e-3)

    def test_an_evaluation_is_the_same_on_any_number_of_processes(self, jobs):
        """13 conversations, in batches of 4 and of 12: with three processes, two have nothing left at the end."""
        alone, three = (jobs[f"evaluated by {processes}"] for processes in (1, 3))
        assert (alone["error"], three["error"]) == (None, None)
        expected = alone["summary"]["validation_loss"]
        assert three["summary"]["validation_loss"] == pytest.approx(expected, abs=1e-5)

    @pytest.mark.parametrize("job", ["masked", "encoder and decoder"])
    def test_masked_models_and_encoders_read_text(self, jobs, job):
        losses = losses_of(jobs[job])
        assert losses[-1] < losses[0]
        assert "validation_loss" in jobs[job]["summary"]

    def test_what_a_job_lacks_is_reported_in_a_sentence(self, jobs):
        assert "requires a tokenizer" in jobs["no tokenizer"]["error"]

    def test_calibration_reads_the_lines_of_the_script(self, jobs):
        """The line of a step has speed, TFLOPS, utilization and memory; its seconds are those that are learned."""
        log = read_text(jobs["text"]["printed"])
        assert log.title == "exported script"
        assert log.unit == "seconds"
        lines = [line for line in jobs["text"]["printed"].splitlines() if " loss " in line]
        figures = [dict(zip(line.split()[0::2], line.split()[1::2], strict=True)) for line in lines]
        # The first step is not timed.
        assert [sample.step for sample in log.samples] == [int(row["step"].partition("/")[0]) for row in figures[1:]]
        assert [sample.value for sample in log.samples] == [float(row["seconds_per_step"]) for row in figures[1:]]
        last = figures[-1]
        samples = 2 * BATCH / float(last["seconds_per_step"])
        assert float(last["tokens_per_second"]) == pytest.approx(samples * LENGTH, rel=0.01)
        per_gpu = samples * model_flops_per_sample(MODEL, LENGTH) / 2 / 1e12
        assert float(last["tflops_per_gpu"]) == pytest.approx(per_gpu, abs=0.006)
        assert {"mfu", "learning_rate", "peak_allocated_gib", "peak_reserved_gib"} <= last.keys()
