"""Profile the model classes of transformers with their default configurations, and write docs/profiling_coverage.md.

Run it with ``python scripts/profiling_coverage.py``. With ``--results FILE`` it stores the result of each class in a
file and continues there in the next run; ``--limit N`` profiles at most N classes.
"""

from __future__ import annotations

import argparse
import collections
import json
import re
import sys
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from smp_advisor.profiling.subject import Subject

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs" / "profiling_coverage.md"
TASKS = {
    "causal": "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "masked": "MODEL_FOR_MASKED_LM_MAPPING_NAMES",
    "sequence-to-sequence": "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    "image classification": "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES",
}
SEQUENCE = 64
SECONDS = 120.0
LAYERS = (
    "num_hidden_layers",
    "n_layer",
    "num_layers",
    "n_layers",
    "num_decoder_layers",
    "encoder_layers",
    "decoder_layers",
)
MOST_LAYERS = 6
OUTCOMES = ("traced", "really run", "guided trace", "invalid default", "failed")


def classes() -> list[tuple[str, str, str]]:
    """(Task, model type, class) of every entry of the tables."""
    from transformers.models.auto import modeling_auto

    found = []
    for task, mapping in TASKS.items():
        for model_type, names in getattr(modeling_auto, mapping).items():
            found += [(task, model_type, name) for name in ([names] if isinstance(names, str) else names)]
    return found


def default_subject(name: str, *, shallow: bool = False) -> Subject:
    """The class with its default configuration; `shallow`, with a few of its layers, to limit the time."""
    import transformers

    from smp_advisor.profiling.subject import Subject

    cls = getattr(transformers, name)
    config = cls.config_class()
    if shallow:
        limit_layers(config)
    return Subject(name=name, source="configuration", config=config, model_class=cls)


def limit_layers(config: Any) -> None:
    """Limit the number of layers in the configuration and its parts. The order of layer kinds does not change."""
    for part in ("text_config", "vision_config", "encoder", "decoder"):
        if hasattr(getattr(config, part, None), "to_dict"):
            limit_layers(getattr(config, part))
    for name in LAYERS:
        value = vars(config).get(name)
        if isinstance(value, int) and value > MOST_LAYERS:
            setattr(config, name, MOST_LAYERS)
    for name in ("layer_types", "mlp_layer_types", "attention_types", "block_types", "layers_block_type"):
        value = vars(config).get(name)
        if isinstance(value, list) and len(value) > MOST_LAYERS:
            setattr(config, name, value[:MOST_LAYERS])


def built(name: str) -> dict:
    """Whether the default configuration builds a model at all."""
    import torch

    from smp_advisor.profiling.gpu_kernels import without_initialisation

    with torch.device("meta"), without_initialisation():
        model = default_subject(name).build()
    return {"parameters": sum(p.numel() for p in model.parameters())}


def traced(name: str, answers: str = "") -> dict:
    """A step, forward and backward, on fake tensors; `answers`: with assumed results of data-dependent tests."""
    import dataclasses

    from smp_advisor.profiling.ladder import reason
    from smp_advisor.profiling.trace import Settings, traced_step

    plain = Settings(precision="bf16", attention="fused", sequence=SEQUENCE)
    kinds = [dataclasses.replace(plain, build=build) for build in ("meta", "fake")]
    kinds += [dataclasses.replace(plain, sequence=10**6), dataclasses.replace(plain, precision="fp32")]
    if answers:
        kinds = [dataclasses.replace(plain, answer=answer) for answer in (True, False)]
    reasons = []
    for settings in kinds:
        for shallow in (True, False):
            try:
                step, inputs = traced_step(default_subject(name, shallow=shallow), settings)
            except Exception as error:  # noqa: BLE001
                reasons.append(reason(error))
                continue
            how = "at its full length only" if settings.sequence > SEQUENCE else ""
            how = "in fp32 only" if settings.precision != plain.precision else how
            return {"inputs": inputs, "operations": step.operations, "saved": step.saved_bytes, "how": how}
    return {"reason": reasons[0]}


def judged(name: str) -> dict:
    """One class: the best method that works."""
    from smp_advisor.errors import ProfileError
    from smp_advisor.profiling.sandbox import Limits, run_isolated

    limits = Limits(memory_bytes=4 << 30, seconds=SECONDS)
    reasons = []
    try:
        found = run_isolated(traced, name, limits=limits)
        if "reason" not in found:
            return {"outcome": "traced", **found}
        reasons.append(found["reason"])
    except ProfileError as error:
        reasons.append(error.sentence)
    try:
        known = run_isolated(built, name, limits=limits)
        valid = ""
    except ProfileError as error:
        known, valid = {}, error.sentence
    try:
        run = really_run(name)
        return {"outcome": "really run", "reason": reasons[0], **known, **run}
    except ProfileError as error:
        reasons.append(error.sentence)
    except Exception as error:  # noqa: BLE001
        reasons.append(f"{type(error).__name__}: {error}")
    if "NoneType" in reasons[0]:  # a required value of the configuration is not set
        return {"outcome": "invalid default", "reason": reasons[0]}
    if valid:
        return {"outcome": "invalid default", "reason": valid}
    try:
        found = run_isolated(traced, name, "both", limits=limits)
        if "reason" not in found:
            return {"outcome": "guided trace", "reason": reasons[0], "second": reasons[-1], **found}
    except ProfileError:
        pass
    return {"outcome": "failed", "reason": reasons[0], "second": reasons[-1], **known}


def really_run(name: str) -> dict:
    from smp_advisor.profiling.scaled import run
    from smp_advisor.workload import Job

    job = Job(sequence_length=SEQUENCE, precision="fp32")
    result = run(default_subject(name), job, steps=2, memory_bytes=4 << 30, seconds=SECONDS)
    return {"copy": result.parameter_count, "finite": result.finite}


def warm_up() -> None:
    """Import once what every child process would import again."""
    import transformers

    from smp_advisor.profiling.ladder import climb_down
    from smp_advisor.profiling.subject import read_subject
    from smp_advisor.profiling.trace import Settings

    small = transformers.MixtralConfig(
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=64,
    )
    climb_down(read_subject(small), Settings(precision="bf16", attention="fused", sequence=64))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path)
    parser.add_argument("--limit", type=int, default=10**6)
    parser.add_argument("--write", action="store_true", help="only write the document of the results")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    wanted = classes()
    done: dict[tuple[str, str, str], dict] = {}
    if options.results and options.results.exists():
        for line in options.results.read_text().splitlines():
            entry = json.loads(line)
            done[tuple(entry["class"])] = entry
    if not options.write:
        warm_up()
        for entry in [entry for entry in wanted if entry not in done][: options.limit]:
            began = time.perf_counter()
            result = {"class": entry, **judged(entry[2]), "seconds": round(time.perf_counter() - began, 1)}
            done[entry] = result
            print(
                f"{result['outcome']:16} {entry[2]:45} {result['seconds']:6.1f} s  {result.get('reason', '')[:120]}",
                flush=True,
            )
            if options.results:
                with options.results.open("a") as file:
                    file.write(json.dumps(result) + "\n")
    if all(entry in done for entry in classes()):
        DOCUMENT.write_text(document([done[entry] for entry in classes()], transformers.__version__, torch.__version__))
        print(f"wrote {DOCUMENT}")
    print(collections.Counter(result["outcome"] for result in done.values()))
    return 0


def document(results: list[dict], transformers_version: str, torch_version: str) -> str:
    """The page: counts by task, then every class."""
    total = len(results)
    count = collections.Counter(result["outcome"] for result in results)
    works = count["traced"] + count["really run"]
    valid = total - count["invalid default"]
    lines = [
        "# Profiling of transformers classes",
        "",
        "All classes of four tables of transformers (causal, masked, sequence-to-sequence and image classification,",
        "for example `MODEL_FOR_CAUSAL_LM_MAPPING_NAMES`), each with its default configuration:",
        f"transformers {transformers_version}, torch {torch_version}.",
        f"Generated by `scripts/profiling_coverage.py`, {SECONDS:.0f} s and 4 GiB per class, no GPU.",
        "",
        "- **traced**: a training step, forward and backward, in full width on fake tensors, in bf16 with fused",
        f"  attention and inferred inputs; with at most {MOST_LAYERS} layers if the configuration sets a number.",
        "- **really run**: not traced, but a scaled copy ran real steps with a finite loss.",
        "- **guided trace**: neither; traced with both results of tests on values, of which the larger one counts (low",
        "  confidence).",
        "- **invalid default**: the default configuration is incomplete or contradicts itself, or the class requires a",
        "  package that is not installed, so no model can be built and called.",
        "- **failed**: refused with the reason; `inputs=` or another configuration may help.",
        "",
        f"Traced or really run: **{works} of {total}** ({100 * works / total:.1f} %); of the {valid} whose default",
        f"configuration is valid, {100 * works / valid:.1f} %.",
        "",
        "| task | classes | " + " | ".join(OUTCOMES) + " |",
        "| --- | --: | " + " | ".join("--:" for _ in OUTCOMES) + " |",
    ]
    for task in TASKS:
        chosen = collections.Counter(result["outcome"] for result in results if result["class"][0] == task)
        lines.append(f"| {task} | {chosen.total()} | " + " | ".join(str(chosen[name]) for name in OUTCOMES) + " |")
    lines += ["", "| task | class | outcome | reason |", "| --- | --- | --- | --- |"]
    lines += [f"| {one['class'][0]} | {one['class'][2]} | {one['outcome']} | {why(one)} |" for one in results]
    return "\n".join(lines) + "\n"


def why(result: dict) -> str:
    """Reason of an outcome, without what only this machine knows."""
    text = result.get("how") or result.get("reason", "")
    text = re.sub(r"The profile (failed|was stopped) at \S+ \(`[^`]*`\): ", "", text)
    text = re.sub(r"\(?(\S*/)?profiling_coverage\.py:\d+\)?", "", text).strip().rstrip(".")
    return text.replace("|", "\\|")[:220]


if __name__ == "__main__":
    sys.exit(main())
