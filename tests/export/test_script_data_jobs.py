"""Generated scripts as jobs on text: JSON lines and Parquet, packed and cached, conversations and pairs."""

import json
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
from tests.export.rehearsed import losses_of, printed, run_stages, save_weights, summary_of
from tests.rows import rows

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


def files_of(plan, *, model=MODEL, **job):
    training = writable(
        model, TWO_NODES, Job(sequence_length=LENGTH, precision=plan.precision, **job), plan, trainer="plain"
    )
    return {"train.py": written(training), **companions(training)}


def stage(processes=2, *, keeps=False, **options):
    """A stage with the same global batch on any number of processes."""
    options = {"gradient_accumulation_steps": max(1, 2 // processes)} | options
    words = [text for key, value in options.items() for text in (f"--{key}", str(value))]
    return {"world": processes, "keeps": keeps, "arguments": words}


PLAIN = Plan(library="ddp", batch_size=BATCH, precision="fp32")
SHARDED = Plan(library="fsdp", batch_size=BATCH, precision="fp32")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    make_data(folder)
    save_weights(json.loads(MODEL.config_json), folder / "weights", folder / "tokenizer")
    return folder


def run(folder, files, stages, **channels):
    return run_stages(files, stages, channels={name: folder / place for name, place in channels.items()})


@pytest.fixture(scope="module")
def texts_jobs(folder):
    saved = {"checkpoint_every": 3, "max_steps": 9}
    stages = {
        "text": stage(evaluate_every=4, **saved),
        "resumed": stage(1, keeps=True, **saved),
        "again": stage(1, keeps=True, **saved),
        "diverged": stage(learning_rate=1e30, checkpoint_every=1, max_steps=20),
    }
    files = files_of(SHARDED)
    fault = "import os, pathlib\nif os.environ['WORLD_SIZE'] == '1':\n    "
    fault += "pathlib.Path('/opt/ml/checkpoints/step-9/__1_0.distcp').unlink(missing_ok=True)\n"
    files["train.py"] = fault + files["train.py"]
    return run(folder, files, stages, train="text", tokenizer="tokenizer", validation="text")


@pytest.mark.torch
@pytest.mark.slow
class TestJobs:
    def test_text_trains_and_is_evaluated_every_few_steps(self, texts_jobs):
        job = texts_jobs["text"]
        losses = losses_of(job)
        assert losses[9] < losses[1] - 0.5
        evaluations = re.findall(r"^step (\d+)/\d+ validation_loss (\S+)", printed(job), re.MULTILINE)
        assert [int(step) for step, _ in evaluations] == [4, 8, 9]
        assert summary_of(job)["validation_loss"] == pytest.approx(float(evaluations[-1][1]), abs=1e-3)
        assert {"config.json", "generation_config.json", "tokenizer.json"} <= {path for path, _ in job["model"]}

    def test_another_number_of_processes_sees_the_same_tokens_and_a_finished_job_trains_nothing(self, texts_jobs):
        losses = losses_of(texts_jobs["text"])
        later = losses_of(texts_jobs["resumed"])
        assert later == pytest.approx({step: losses[step] for step in (7, 8, 9)}, abs=2e-3)
        again = texts_jobs["again"]
        assert losses_of(again) == {}
        assert summary_of(again).keys() == {"steps", "validation_loss"}

    def test_a_job_whose_loss_is_no_number_fails_and_keeps_the_checkpoint_before_it(self, texts_jobs):
        job = texts_jobs["diverged"]
        assert any("was not a number" in line for rank in job["ranks"] for line in rank["log"])
        steps = {path.partition("/")[0] for path, _ in job["checkpoints"]}
        assert steps <= {"step-1", "step-2"}, "the first step is that of a rate of 0"
        assert (job["failed"], summary_of(job)) == (True, None)

    def test_data_without_a_number_of_steps_are_trained_on_once(self, folder):
        tokens = sum(len(text.split()) + 1 for text in texts())
        epoch = {"one epoch": stage(max_steps=-1, warmup_steps=0.1)}
        files = files_of(PLAIN, training="fine-tuning")
        job = run(folder, files, epoch, train="text", tokenizer="tokenizer")["one epoch"]
        assert len(losses_of(job)) == summary_of(job)["steps"] == -(-(tokens // LENGTH) // (2 * BATCH))

    @pytest.mark.parametrize("kind", rows(["chats", "pairs"], "pairs"))  # counted by the same lines
    def test_answers_count_the_same_on_any_number_of_processes(self, folder, kind):
        """Batches have different numbers of targets, the last one of the evaluation is partial.

        Conversations start from weights; prompts are for the encoder and completions for the decoder.
        """
        if kind == "chats":
            files = files_of(PLAIN, training="fine-tuning")
            channels = {"train": "chats", "model": "weights", "validation": "few chats"}
        else:  # dropout differs with the number of processes
            t5 = Model.from_config({**json.loads(TASKS["t5"].config_json), "dropout_rate": 0.0})
            files = files_of(PLAIN, model=t5)
            channels = {"train": "pairs", "tokenizer": "tokenizer", "validation": "pairs"}
        options = {"evaluation_batches": 0, "max_steps": 12}
        stages = {f"by {count}": stage(count, **options) for count in (2, 1)}
        if kind == "chats":  # 13, in batches of 4 and of 12: with three processes, two have nothing left at the end
            stages |= {f"evaluated by {count}": stage(count, **options | {"max_steps": 0}) for count in (1, 3)}
        jobs = run(folder, files, stages, **channels)
        alone, together = losses_of(jobs["by 1"]), losses_of(jobs["by 2"])
        assert alone == pytest.approx(together, abs=2e-3)
        assert alone[12] < alone[1] - 0.5
        figures = {name: summary_of(job)["validation_loss"] for name, job in jobs.items()}
        assert figures["by 1"] == pytest.approx(figures["by 2"], abs=2e-3)
        if kind == "chats":
            assert figures["evaluated by 1"] == pytest.approx(figures["evaluated by 3"], abs=1e-5)

    @pytest.mark.parametrize("task", rows(["bert", "t5"], "t5"))
    def test_masked_models_and_encoders_read_text(self, folder, task):
        channels = {"train": "text", "tokenizer": "tokenizer", "validation": "text"}
        job = run(folder, files_of(PLAIN, model=TASKS[task]), {"job": stage(max_steps=6)}, **channels)["job"]
        losses = losses_of(job)
        assert losses[6] < losses[1]
        assert "validation_loss" in summary_of(job)

    def test_what_a_job_lacks_is_reported_in_a_sentence(self, folder):
        job = run(folder, files_of(SHARDED), {"job": stage(1)}, train="text")["job"]
        assert "requires a tokenizer" in printed(job)

    def test_calibration_reads_the_lines_of_the_script(self, texts_jobs):
        """The line of a step has speed, TFLOPS, utilization and memory; its seconds are those that are learned."""
        text = printed(texts_jobs["text"])
        log = read_text(text)
        assert log.title == "exported script"
        assert log.unit == "seconds"
        lines = [line for line in text.splitlines() if " loss " in line]
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
