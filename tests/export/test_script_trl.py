"""The scripts on TRL's trainers: jobs of two processes, and the settings that they give FSDP."""

import ast
import importlib
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from smp_advisor.cluster import Cluster
from smp_advisor.costs.evaluate import estimate
from smp_advisor.errors import ExportError
from smp_advisor.export import estimator_cell, local_cell, script, small_script
from smp_advisor.export.script import companions, requirements, writable, written
from smp_advisor.export.template import text_block
from smp_advisor.libraries import Plan
from smp_advisor.runs.readers import read_text
from smp_advisor.workload.adapter import Adapter
from smp_advisor.workload.job import Job
from smp_advisor.workload.model import Model
from tests.export.examples import P4D, POSITIONS, TASKS, TINY, WORDS, training_script
from tests.export.rehearsed import loaded_of, losses_of, printed, run_stages, save_weights, summary_of, types_of
from tests.export.test_script_data_jobs import make_data
from tests.forked import run_forked
from tests.rows import rows

TWO_NODES = Cluster(P4D, 2)
LENGTH, BATCH = 16, 4
FULL: dict[str, object] = {"training": "fine-tuning"}
LORA: dict[str, object] = {"adapter": Adapter(dropout=False)}
QLORA: dict[str, object] = {"adapter": Adapter(base_bits=4)}
FSDP: dict[str, object] = {"library": "fsdp", "precision": "bf16"}
KINDS = {"layer_types": ["sliding_attention", "full_attention"]}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
HEADS = {"head_dim": 8, "num_key_value_heads": 2}
FAMILIES = {
    family: Model.from_config({"model_type": family} | HEADS | TINY | POSITIONS | WORDS | sizes)
    for family, sizes in (
        ("qwen3", {"tie_word_embeddings": True}),
        ("qwen3_moe", EXPERTS | {"moe_intermediate_size": 16, "tie_word_embeddings": True}),
        ("gpt_oss", EXPERTS | KINDS),
    )
}
"""Trained by FSDP: tied and untied, dense and mixtures."""
TEMPLATE = (
    "{% for message in messages %}<{{ message['role'] }}> {% if message['role'] == 'assistant' %}{% generation %}"
    "{{ message['content'] }} </s> {% endgeneration %}{% else %}{{ message['content'] }} </s> {% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<assistant> {% endif %}"
)
PROBES, LOADED = (Path(__file__).with_name(name).read_text("utf-8") for name in ("sharded_models.py", "loaded.py"))
KILLED = """
import os
from transformers import TrainerState

save = TrainerState.save_to_json

def killed(self, path):
    if self.global_step == 4 and "KILLED" in os.environ:
        os._exit(9)
    save(self, path)

TrainerState.save_to_json = killed
"""


def parts_of(job, model=TASKS["llama"], **fields):
    plan = Plan(**{"library": "ddp", "batch_size": BATCH, "precision": "fp32"} | fields)
    return model, TWO_NODES, Job(sequence_length=LENGTH, precision=plan.precision, **job), plan


def of_family(family):
    return replace(TASKS["llama"], family=family)


def script_of(job, model=TASKS["llama"], objective=None, trainer=None, **fields):
    return training_script(*parts_of(job, model, **fields), objective=objective, trainer=trainer)


def files_of(job, model=TASKS["llama"], objective=None, **fields):
    """The script and the files next to it, as the cell writes them."""
    training = writable(*parts_of(job, model, **fields), objective=objective)
    return {"train_smp.py": written(training), **companions(training)}


SHARDED_LORA = parts_of(LORA, **FSDP)
PREFERENCES = {"train": "answers", "max_steps": 4}
TRAINED = {
    # Name: kind of job, fields of the plan, options of the job.
    "whole": (FULL, {"library": "fsdp"}, {"train": "chats", "evaluate_every": 0}),
    "whole, killed": (FULL, {"library": "fsdp"}, {"train": "chats", "evaluate_every": 0}),
    "adapter in fp16": (LORA, {"precision": "fp16"}, {"train": "pairs"}),
    "sharded adapter": (LORA, FSDP, {"train": "pairs"}),
    "quantized adapter": (QLORA, {"precision": "bf16"}, {"train": "pairs"}),
    "sharded quantized adapter": (QLORA, FSDP, {"train": "pairs", "merge_adapter": 1}),
    "sharded preferences": (LORA, FSDP | {"objective": "dpo"}, PREFERENCES),
    "sharded preferences of all weights": (FULL, FSDP | {"objective": "dpo"}, PREFERENCES),
}
RESUMED = ("whole, killed", "sharded quantized adapter", "sharded preferences")
"""Jobs that run again with a fault while they save step 4, after which they resume."""
# All weights, preferences, and a quantized adapter that resumes stay in the suite: the others are the same script with
# one setting less, or killed as that adapter is.
IN_SUITE = rows(TRAINED, *TRAINED.keys() - {"whole", "sharded quantized adapter", "sharded preferences of all weights"})


def make_channels(folder):
    """Data and tokenizers, as folders."""
    make_data(folder)
    tokenizer = json.loads((folder / "tokenizer" / "tokenizer_config.json").read_text())
    (folder / "marked").mkdir()
    (folder / "marked" / "tokenizer.json").write_bytes((folder / "tokenizer" / "tokenizer.json").read_bytes())
    (folder / "marked" / "tokenizer_config.json").write_text(json.dumps(tokenizer | {"chat_template": TEMPLATE}))
    (folder / "answers").mkdir()
    answers = [{"prompt": f"w{row % 8}", "chosen": f" w{(row + 1) % 8}", "rejected": " w20 w21"} for row in range(60)]
    (folder / "answers" / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in answers))


def stage(processes=2, *, keeps=False, environment=None, **options):
    options = {"checkpoint_every": 2} | options
    words = [text for key, value in options.items() for text in (f"--{key}", str(value))]
    return {"world": processes, "keeps": keeps, "arguments": words, "environment": environment or {}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trl")
    for module in ("trl.trainer.sft_trainer", "trl.trainer.dpo_trainer", "peft"):
        importlib.import_module(module)  # the processes of the jobs are forks
    make_channels(folder)
    save_weights(json.loads(TASKS["llama"].config_json), folder / "weights", folder / "marked")
    return folder


def run(folder, job, fields, stages, train=None, **channels):
    """Stages of a job, which reads the channels by the names of their folders."""
    channels = ({"train": train, "model": "weights", "tokenizer": "marked"} | channels) if train else {}
    files = files_of(job, **fields)
    files["train_smp.py"] = PROBES + KILLED + files["train_smp.py"] + LOADED
    places = {name: folder / place for name, place in channels.items()}
    return run_stages(files, stages, channels=places, keep_half=fields.get("precision") != "fp16")


def errors_of(job):
    return "\n".join(line for rank in job["ranks"] for line in rank["log"])


@pytest.mark.torch
@pytest.mark.slow
class TestJobs:
    def test_random_data_measure_the_speed_that_calibration_reads(self, folder):
        job = run(folder, FULL, {}, {"trial": stage(max_steps=3)})["trial"]
        log = read_text(printed(job))
        assert list(losses_of(job)) == [1, 2, 3]
        assert (log.title, log.unit) == ("exported script", "seconds")
        assert [sample.step for sample in log.samples] == [2, 3]
        assert {"tokens_per_second", "mfu", "loss", "steps"} <= summary_of(job).keys()

    @pytest.mark.parametrize("name", IN_SUITE)
    def test_a_job_trains_resumes_and_leaves_a_model_that_loads(self, folder, name):
        """Some are killed while they save step 4, and resume from the newest complete checkpoint."""
        job, fields, options = TRAINED[name]
        options, channels = dict(options), {"validation": "few chats"} if "whole" in name else {}
        train = options.pop("train")
        answer = {"input_ids": [[5, 4, 6, 6, 6, 1]], "labels": [[-100, -100, 6, 6, 6, 1]]}  # a row of the data
        stages = {"job": stage(environment={"LOADED": json.dumps(answer)}, **options)}
        if name in RESUMED:
            stages["killed"] = stage(environment={"KILLED": "1"}, **options)
            stages["resumed"] = stage(keeps=True, **options)
        if name == "whole":
            stages["again"] = stage(keeps=True, **options)
        jobs = run(folder, job, fields, stages, train, **channels)
        done = jobs["job"]
        losses, files = losses_of(done), dict(done["model"])
        assert losses[max(losses)] < losses[1]
        if name in RESUMED:
            assert jobs["killed"]["failed"]
            later = losses_of(jobs["resumed"])
            assert later == {step: losses[step] for step in list(losses)[2:]}
        assert [entry for entry in done["loaded"] if entry["error"] or entry.get("missing")] == []
        assert next(entry["path"] for entry in done["loaded"] if entry.get("pretrained")) == "/opt/ml/model"
        loaded = loaded_of(done)
        assert loaded["generated"]
        if job is not FULL:  # an adapter of preferences learns what to prefer: its loss on the answer can rise
            before, after = loaded["losses"]
            assert after < before if "adapter" in name else after != before
        else:
            assert loaded["losses"][2] < loaded["losses"][0]
        if "adapter" in name:
            assert files["adapter_model.safetensors"] < 100_000
            assert ("merged/model.safetensors" in files) is ("merge_adapter" in options)
        assert types_of(done) == ({"float32"} if fields.get("library") == "fsdp" else set())
        if "preferences" in name:
            assert losses[1] == pytest.approx(0.6931, abs=1e-3)
            # FSDP shards the reference model by layers, in 16 bits, and it is gone before the first step.
            assert "sharded into 6 units as torch.bfloat16" in printed(done)
            assert "models in memory: 1\n" in printed(done)
        if name == "whole":
            assert "generation_config.json" in files
            assert "validation_loss" in summary_of(done)
            assert "seconds_per_step" not in printed(done)  # of padded steps
            assert read_text(printed(done)).unit == "tokens_per_second"
            assert summary_of(jobs["again"]) == {"steps": 6}

    @pytest.mark.release  # a dense model is sharded above, a mixture by the plain script
    @pytest.mark.parametrize("family", FAMILIES)
    def test_tied_untied_dense_and_mixed_models_are_sharded_and_load(self, folder, family):
        done = run(folder, FULL, FSDP | {"model": FAMILIES[family]}, {"job": stage(max_steps=3)})["job"]
        assert list(losses_of(done)) == [1, 2, 3]
        assert [(entry["error"], entry["missing"]) for entry in done["loaded"] if "missing" in entry] == [("", 0)]

    def test_a_loss_that_is_no_number_stops_the_job_before_it_saves(self, folder):
        options = {"learning_rate": 1e30, "checkpoint_every": 1, "max_steps": 20}
        done = run(folder, FULL, {}, {"job": stage(1, **options)}, "text")["job"]
        assert "is no number" in errors_of(done)
        assert summary_of(done) is None
        folders = {path.partition("/")[0] for path, _ in done["checkpoints"]}
        assert len([name for name in folders if name.startswith("checkpoint-")]) <= 2

    def test_a_small_copy_reads_the_data_of_the_job(self, folder):
        """The cell that runs it on this machine; the channel `model` has the tokenizer, and weights of other sizes."""
        files = {"train_smp.py": small_script(*SHARDED_LORA, trainer="trl")} | companions(writable(*SHARDED_LORA))
        channels = {"train": folder / "chats", "model": folder / "weights", "tokenizer": folder / "marked"}
        assert list(losses_of(run_stages(files, {"job": stage(max_steps=2)}, channels=channels)["job"])) == [1, 2]

    @pytest.mark.release  # the turns are those of `test_script_data`
    def test_a_template_without_marks_trains_the_same_turns(self, folder):
        """A turn of the assistant is what the template adds for it."""
        jobs = [
            run(folder, FULL, {}, {"job": stage(1)}, "chats", tokenizer=place)["job"]
            for place in ("marked", "tokenizer")
        ]
        assert losses_of(jobs[0]) == losses_of(jobs[1])
        assert "/chats.parquet" in errors_of(jobs[1])

    @pytest.mark.parametrize(
        ("job", "fields", "train", "sentence"),
        [
            (FULL, {}, "answers", "The data has columns ['prompt', 'chosen', 'rejected']"),
            (FULL, {"model": TASKS["mistral"]}, "chats", "The model is not the plan's: {'model_type': 'llama',"),
            (LORA, {"objective": "dpo"}, None, "The columns are not chosen and rejected, but []"),
        ],
    )
    def test_what_a_job_lacks_is_reported_in_a_sentence(self, folder, job, fields, train, sentence):
        assert sentence in errors_of(run(folder, job, fields, {"job": stage(1)}, train)["job"])


SETTINGS = """
import json, os, runpy, sys
from accelerate import FullyShardedDataParallelPlugin
from accelerate.utils.fsdp_utils import fsdp2_prepare_auto_wrap_policy
from transformers import AutoConfig, AutoModelForCausalLM
from peft import get_peft_model
from trl import get_peft_config
import torch

found = {}
sys.path.insert(0, os.path.dirname(sys.argv[1]))
for path in sys.argv[1:]:
    names = runpy.run_path(path)
    sys.argv = [path]
    settings, model_settings, _ = names["read_settings"]()
    plugin = FullyShardedDataParallelPlugin(**settings.fsdp_plugin_args)
    with torch.device("meta"):
        config = AutoConfig.for_model(**names["PLAN"]["sizes"], **names["PLAN"]["model"])
        model = AutoModelForCausalLM.from_config(config)
        if adapter := get_peft_config(model_settings):
            model = get_peft_model(model, adapter)
    plugin.set_auto_wrap_policy(model)
    wraps = fsdp2_prepare_auto_wrap_policy(plugin, model)
    found[path] = {
        "wrapped": sorted({type(module).__name__ for module in model.modules() if wraps(module)}),
        "trained": sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad),
        "version": plugin.fsdp_version,
        "reshards": plugin.reshard_after_forward,
        "checkpoints": [plugin.activation_checkpointing, settings.activation_checkpointing],
        "loads_once": plugin.cpu_ram_efficient_loading,
        "state": plugin.state_dict_type.name,
        "reduces_each": settings.accelerator_config.gradient_accumulation_kwargs["sync_each_batch"],
        "batch": [settings.per_device_train_batch_size, settings.gradient_accumulation_steps, settings.max_length],
        "bf16": settings.bf16,
        "groups": settings.parallelism_config
        and [settings.parallelism_config.dp_replicate_size, settings.parallelism_config.dp_shard_size],
        "optimizer": settings.optim,
        "schedule": [settings.lr_scheduler_type, settings.warmup_steps, settings.num_train_epochs],
        "dtype": model_settings.dtype,
    }
print(json.dumps(found))
"""
PLANS = {
    "default": ({}, {}),
    "all": (
        {"sharding_strategy": "shard_grad_op", "activation_checkpointing": "each", "gradient_accumulation_steps": 4},
        {"unsharded_accumulation": True, "loss": "chunked"},
    ),
    "fp32": ({"precision": "fp32", "batch_size": 2}, {}),
    "hybrid": ({"sharding_strategy": "hybrid_shard"}, {}),
    "16-bit": ({}, {"state_precision": "16-bit"}),
}


@pytest.mark.torch
@pytest.mark.slow
def test_the_settings_of_fsdp_are_those_of_the_plan(tmp_path):
    """accelerate cannot shard without a GPU: its plugin is made from the settings and compared field by field."""
    expected = {}
    for kind, base in (("full", FULL), ("adapter", LORA)):
        for name, (plan, job) in PLANS.items():
            if (kind, name) == ("adapter", "16-bit"):
                continue
            path = tmp_path / f"{kind} {name}" / "train_smp.py"
            path.parent.mkdir()
            for file, text in files_of(base | job, **FSDP | plan).items():
                (path.parent / file).write_text(text)
            half, chosen = plan.get("precision") != "fp32", Plan(library="fsdp", **plan)
            trained = TASKS["llama"].parameter_count if kind == "full" else Adapter().parameter_count(TASKS["llama"])
            expected[str(path)] = {
                "wrapped": ["LlamaDecoderLayer"],
                "trained": trained,
                "version": 2,
                "reshards": chosen.sharding_strategy != "shard_grad_op",
                "checkpoints": [bool(chosen.activation_checkpointing), False],
                "loads_once": True,
                "state": "SHARDED_STATE_DICT",
                "reduces_each": "unsharded_accumulation" not in job,
                "batch": [plan.get("batch_size", BATCH), chosen.gradient_accumulation_steps, LENGTH],
                "bf16": half and name != "16-bit",
                "groups": [2, 8] if name == "hybrid" else None,
                "optimizer": "adamw_torch_fused",
                "schedule": ["cosine", 0.1, 1.0 if kind == "full" else 5.0],
                "dtype": "bfloat16" if half and (kind == "adapter" or name == "16-bit") else "float32",
            }
    (tmp_path / "settings.py").write_text(SETTINGS)
    printed = run_forked(tmp_path / "settings.py", *expected, cwd=tmp_path)
    assert json.loads(printed.splitlines()[-1]) == expected


@pytest.mark.parametrize(
    ("job", "plan", "options"),
    [
        ({}, {}, {}),
        (FULL, {}, {"trainer": "plain"}),
        (FULL, {"version": "2.8.0", "library": "fsdp"}, {}),
        (FULL, {"activation_checkpointing": "every_2"}, {}),
        (FULL | {"optimizer": "sgd"}, {}, {}),
        (FULL, FSDP | {"precision": "fp16"}, {}),
        (FULL, {"library": "smp-v2", "hybrid_shard_degree": 8}, {}),
    ],
)
def test_the_plain_script_trains_what_trl_does_not(job, plan, options):
    """The cell states the trainer of fine-tuning, and why it is not TRL's."""
    assert "trl" not in script_of(job, **plan, **options)
    parts = parts_of(job, **plan)
    cell = estimator_cell(*parts, sdk="v2", **options)
    reason = "as requested." if options else "TRL is not used: it"
    assert (f"# Trainer: the PyTorch loop of the script{', ' if options else '. '}{reason}" in cell) is (
        parts[2].training == "fine-tuning"
    )


@pytest.mark.parametrize(
    ("job", "plan", "options", "sentence"),
    [
        (LORA, FSDP | {"precision": "fp16"}, {}, "it trains in fp16 with DDP only"),
        (QLORA, {"precision": "fp16"}, {}, "it trains in fp16 with DDP only"),
        (FULL | {"optimizer": "sgd"}, {}, {"trainer": "trl"}, "it trains with Adam, without sgd"),
        (FULL, {}, {"objective": "ppo"}, "objective must be 'sft' or 'dpo', not 'ppo'"),
        (FULL, {}, {"objective": "dpo", "trainer": "plain"}, "trains no preferences: leave out trainer="),
        (LORA, {}, {"trainer": "plain"}, "trains no adapters: leave out trainer="),
        (LORA, {"library": "smp-v2", "hybrid_shard_degree": 8}, {}, "with DDP or FSDP, as AWS's examples"),
        (LORA, {"activation_checkpointing": "operators"}, {}, "it checkpoints all layers or none"),
        ({"adapter": Adapter(base_bits=8)}, {"library": "fsdp"}, {}, "does not shard a base of 8 bits"),
        (LORA | {"state_precision": "16-bit"}, {}, {}, "trains adapters with 32-bit states"),
        (QLORA, {"library": "fsdp", "version": "2.8.0"}, {}, "require PyTorch 2.11 or later"),
        (FULL, {"library": "smp-v2", "hybrid_shard_degree": 8}, {"trainer": "trl"}, "it uses FSDP or DDP, not SMP v2"),
        (LORA, {"model": of_family("phimoe")}, {}, "set targets='attention' in the adapter, or pass script="),
        (LORA, {"model": of_family("llama4_text")}, {}, "of the family 'llama4_text': train all weights"),
        (
            FULL,
            {"model": of_family("llama4_text")},
            {"trainer": "trl"},
            "does not find the base model of 'llama4_text'",
        ),
    ],
)
def test_what_no_script_trains_is_refused(job, plan, options, sentence):
    with pytest.raises(ExportError, match=re.escape(sentence)):
        script_of(job, **{"precision": "bf16"} | plan, **options)


def test_a_quantized_base_is_stored_in_values_that_fsdp_shards_and_refused_if_it_does_not_fit_on_one_gpu():
    """Each GPU holds all of it while it is loaded (accelerate 1.15, `fsdp2_prepare_model`)."""
    *_, job, plan = parts_of(QLORA, **FSDP)
    double = parts_of({"adapter": Adapter(base_bits=4, double_quantization=True)}, **FSDP)
    chosen = yaml.safe_load(companions(writable(*double))["train.yaml"])["settings"]
    assert (chosen["bnb_4bit_quant_storage"], chosen["use_bnb_nested_quant"]) == ("bfloat16", True)
    with pytest.raises(ExportError, match=r"on each GPU before it shards it, 40 of 39\.4 GiB"):
        training_script(Model.from_name("llama-3-70b"), Cluster(P4D, 1), job, plan)
    training_script(Model.from_name("llama-3-70b"), Cluster("ml.p5.48xlarge", 1), job, plan)


@pytest.mark.parametrize(
    ("machine", "library", "bits", "needed_gib"),
    [
        ("ml.g6.xlarge", "ddp", 4, 0),  # 16 GiB
        ("ml.g6.xlarge", "ddp", 8, 0),
        ("ml.g6.xlarge", "ddp", 16, 14.96),
        ("ml.g6.2xlarge", "ddp", 16, 14.96),  # 32 GiB
        ("ml.g5.12xlarge", "ddp", 16, 4 * 14.96),
        ("ml.g6.xlarge", "fsdp", 4, 0),
        ("ml.g6.xlarge", "fsdp", 16, 14.96),
        ("ml.g6.2xlarge", "fsdp", 16, 14.96),
    ],
)
def test_the_script_is_refused_exactly_where_the_estimate_has_too_little_host_memory(
    machine, library, bits, needed_gib
):
    cluster, model = Cluster(machine, 2), Model.from_name("llama-3-8b")
    job = Job(sequence_length=2048, precision="bf16", adapter=Adapter(base_bits=bits))
    plan = Plan(library=library, batch_size=1, precision="bf16", activation_checkpointing="each")
    found = estimate(model, cluster, job, plan)
    assert found.phases[0].host_gib_per_node == pytest.approx(needed_gib, abs=0.3)
    assert found.host_memory_fits == (needed_gib < 0.8 * cluster.instance.host_memory_gib)
    if found.host_memory_fits:
        training_script(model, cluster, job, plan)
    else:
        with pytest.raises(ExportError, match="the host memory is too small to load the model"):
            training_script(model, cluster, job, plan)


def test_the_estimate_counts_the_loss_of_fine_tuning_in_parts():
    """As both scripts compute it; T5's script has all logits, and so have other codes and pre-training."""
    plan, llama = Plan(library="fsdp", batch_size=4), Model.from_name("llama-3-8b")
    logits = lambda model, **job: max(  # noqa: E731
        stage.logits_gib
        for stage in estimate(model, TWO_NODES, Job(sequence_length=4096, precision="bf16", **job), plan).memory.stages
    )
    assert logits(llama, **LORA) <= logits(llama, **FULL) < logits(llama) / 4
    assert logits(llama, **FULL, stack="hf-sdpa") == pytest.approx(logits(llama))
    assert logits(TASKS["t5"], **FULL) == logits(TASKS["t5"])
    assert "compute_loss_in_parts(model)" in script_of(FULL, trainer="plain")
    assert "compute_loss_in_parts(model)" not in script_of({}, trainer="plain")


def test_the_local_cell_trains_with_trl_where_it_is_installed(monkeypatch):
    monkeypatch.setattr(script, "find_spec", lambda name: name)
    assert "DPOTrainer(" in local_cell(*SHARDED_LORA, objective="dpo")
    assert "SFTTrainer" not in local_cell(*SHARDED_LORA, trainer="plain")
    monkeypatch.setattr(script, "find_spec", lambda _: None)
    assert (
        local_cell(*SHARDED_LORA).splitlines()[1].startswith("# The job trains with TRL, which is not installed here")
    )


@pytest.mark.parametrize(
    ("job", "objective"), [(FULL, "sft"), (LORA, "sft"), (QLORA, "sft"), (FULL, "dpo"), (LORA, "dpo")]
)
def test_scripts_are_short(job, objective):
    """Of models that are given and inferred, on one node and with a replica per node."""
    for model in (TASKS["llama"], Model.from_parameters(8e9, family="gpt2")):
        for strategy in ("full_shard", "hybrid_shard"):
            assert script_of(job, model, objective, **FSDP, sharding_strategy=strategy).count("\n") <= 193
            plain = script_of({}, model, trainer="plain", **FSDP, sharding_strategy=strategy)
            assert plain.count("\n") <= 600


def test_the_cell_brings_the_packages_and_says_what_follows():
    parts = SHARDED_LORA
    packages = [line.partition("==")[0] for line in requirements(writable(*parts)).splitlines()]
    assert packages == ["transformers", "trl", "accelerate", "datasets", "peft"]
    cell = estimator_cell(*parts, sdk="v2", data={"train": "s3://data/chats", "model": "s3://data/llama"})
    assert "5 epochs of the channel `train`" in cell
    assert all(text_block(text) in cell for text in companions(writable(*parts)).values())
    assert ast.literal_eval(text_block(nasty := 'a: """\\n" \\\n')) == nasty
    assert "then down to 0 at the last step" in cell
    places = {"train": "s3://data/answers", "model": "s3://data/llama"}
    preferences = estimator_cell(*parts, sdk="v2", objective="dpo", data=places)
    assert "1 epoch of the channel `train`" in preferences
    alone = estimator_cell(*parts_of(LORA, **FSDP, batch_size=1), sdk="v2", objective="dpo", data=places)
    assert '"batch_size": 2,' in alone
    assert "A pair has two sequences: 1 pair per GPU and microbatch." in " ".join(alone.split("\n# "))
    assert '"learning_rate": 5e-06,' in preferences
    with pytest.raises(ExportError, match="Preferences are read from a channel"):
        estimator_cell(*parts, sdk="v2", objective="dpo")
    with pytest.raises(ExportError, match="pass data= with the channels train and model"):
        estimator_cell(*parts, sdk="v2", data="s3://data/chats")
    older = Cluster("ml.p3.16xlarge"), *parts_of(LORA)[2:]
    with pytest.raises(ExportError, match="GPUs of the Ampere generation or later"):
        training_script(TASKS["llama"], *older)
    default = older[0], Job(sequence_length=LENGTH), older[2]
    assert "2.8.0" in estimator_cell(TASKS["llama"], *default, sdk="v2"), "an image that drives the GPUs"
    assert "PyTorch 2.8.0" in training_script(TASKS["llama"], *default)
