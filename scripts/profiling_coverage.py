"""Profile modules of other libraries and every class of transformers' tables, and write the log of the results.

``python scripts/profiling_coverage.py`` profiles the classes, each with its default configuration, and ``--modules``
the modules of profiling_modules.toml, in the environment of modules_environment.sh; each writes its own section. With
``--results FILE`` it stores one result per line and continues from there in the next run; ``--limit N`` profiles at
most N classes or modules; ``--full N`` compares modules of up to N million parameters at full size with real steps.
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
    from smp_advisor.profiling.profiled_model import ProfiledModel

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "benchmarks" / "results" / "profiling_coverage.md"
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
MAX_LAYERS = 6
OUTCOMES = ("traced", "real steps", "guided trace", "invalid default", "failed")


def classes() -> list[tuple[str, str, str]]:
    """(Task, model type, class) of every entry of the tables."""
    from transformers.models.auto import modeling_auto

    entries = []
    for task, mapping in TASKS.items():
        for model_type, names in getattr(modeling_auto, mapping).items():
            entries += [(task, model_type, name) for name in ([names] if isinstance(names, str) else names)]
    return entries


def default_model(name: str, *, shallow: bool = False) -> ProfiledModel:
    """The class with its default configuration; with `shallow`, only a few of its layers, to limit the time."""
    import transformers

    from smp_advisor.profiling.profiled_model import ProfiledModel

    cls = getattr(transformers, name)
    config = cls.config_class()
    if shallow:
        limit_layers(config)
    return ProfiledModel(name=name, source="configuration", config=config, model_class=cls)


def limit_layers(config: Any) -> None:
    """Limit the layers of the configuration and its parts to `MAX_LAYERS`; kinds of layers keep their order."""
    for part in ("text_config", "vision_config", "encoder", "decoder"):
        if hasattr(getattr(config, part, None), "to_dict"):
            limit_layers(getattr(config, part))
    for name in LAYERS:
        value = vars(config).get(name)
        if isinstance(value, int) and value > MAX_LAYERS:
            setattr(config, name, MAX_LAYERS)
    for name in ("layer_types", "mlp_layer_types", "attention_types", "block_types", "layers_block_type"):
        value = vars(config).get(name)
        if isinstance(value, list) and len(value) > MAX_LAYERS:
            setattr(config, name, value[:MAX_LAYERS])


def built(name: str) -> dict:
    """Parameter count of the default model, which raises if the configuration is invalid."""
    import torch

    from smp_advisor.profiling.gpu_kernels import without_initialization

    with torch.device("meta"), without_initialization():
        model = default_model(name).build()
    return {"parameters": sum(p.numel() for p in model.parameters())}


def traced(name: str, guided: str = "") -> dict:
    """A full step, forward and backward, on fake tensors; `guided`: with assumed data-dependent conditions."""
    import dataclasses

    from smp_advisor.profiling.assumptions import Assumptions
    from smp_advisor.profiling.fallback import reason
    from smp_advisor.profiling.trace import traced_step
    from smp_advisor.profiling.traced_steps import Settings

    default = Settings(precision="bf16", attention="fused", sequence=SEQUENCE)
    attempts = [dataclasses.replace(default, build=build) for build in ("meta", "fake")]
    attempts += [dataclasses.replace(default, sequence=10**6), dataclasses.replace(default, precision="fp32")]
    if guided:
        attempts = [dataclasses.replace(default, assumptions=Assumptions(value=value)) for value in (True, False)]
    reasons = []
    for settings in attempts:
        for shallow in (True, False):
            try:
                step, inputs = traced_step(default_model(name, shallow=shallow), settings)
            except Exception as error:  # noqa: BLE001
                reasons.append(reason(error))
                continue
            how = "at its full length only" if settings.sequence > SEQUENCE else ""
            how = "in fp32 only" if settings.precision != default.precision else how
            return {"inputs": inputs, "operations": step.operations, "saved": step.saved_bytes, "how": how}
    return {"reason": reasons[0]}


def judged(name: str) -> dict:
    """Outcome of one class, by the best method that works."""
    from smp_advisor.errors import ProfileError
    from smp_advisor.profiling.sandbox import Limits, run_isolated

    limits = Limits(memory_bytes=4 << 30, seconds=SECONDS)
    reasons = []
    try:
        result = run_isolated(traced, name, limits=limits)
        if "reason" not in result:
            return {"outcome": "traced", **result}
        reasons.append(result["reason"])
    except ProfileError as error:
        reasons.append(error.sentence)
    try:
        counts = run_isolated(built, name, limits=limits)
        invalid = ""
    except ProfileError as error:
        counts, invalid = {}, error.sentence
    try:
        run = run_real_steps(name)
        return {"outcome": "real steps", "reason": reasons[0], **counts, **run}
    except ProfileError as error:
        reasons.append(error.sentence)
    except Exception as error:  # noqa: BLE001
        reasons.append(f"{type(error).__name__}: {error}")
    if "NoneType" in reasons[0]:  # a required value is not set
        return {"outcome": "invalid default", "reason": reasons[0]}
    if invalid:
        return {"outcome": "invalid default", "reason": invalid}
    try:
        result = run_isolated(traced, name, "guided", limits=limits)
        if "reason" not in result:
            return {"outcome": "guided trace", "reason": reasons[0], "second": reasons[-1], **result}
    except ProfileError:
        pass
    return {"outcome": "failed", "reason": reasons[0], "second": reasons[-1], **counts}


def run_real_steps(name: str) -> dict:
    from smp_advisor.profiling.scaled import run
    from smp_advisor.workload import Job

    job = Job(sequence_length=SEQUENCE, precision="fp32")
    result = run(default_model(name), job, steps=2, memory_bytes=4 << 30, seconds=SECONDS)
    return {"copy": result.parameter_count, "finite": result.finite}


def warm_up() -> None:
    """Import here everything that every child would import otherwise."""
    import transformers

    from smp_advisor.profiling.fallback import profile_with_fallbacks
    from smp_advisor.profiling.profiled_model import read_model
    from smp_advisor.profiling.traced_steps import Settings

    small = transformers.MixtralConfig(
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=64,
    )
    profile_with_fallbacks(read_model(small), Settings(precision="bf16", attention="fused", sequence=64))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path)
    parser.add_argument("--limit", type=int, default=10**6)
    parser.add_argument("--write", action="store_true", help="only write the document of the results")
    parser.add_argument("--modules", action="store_true", help="profile modules of other libraries")
    parser.add_argument("--full", type=float, default=0.0, help="run modules up to so many million parameters in full")
    parser.add_argument("--only", default="", help="a regular expression: profile these modules, again if necessary")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    if options.modules:
        return modules(options)
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    entries = classes()
    done: dict[tuple[str, str, str], dict] = {}
    if options.results and options.results.exists():
        for line in options.results.read_text().splitlines():
            entry = json.loads(line)
            done[tuple(entry["class"])] = entry
    if not options.write:
        warm_up()
        for entry in [entry for entry in entries if entry not in done][: options.limit]:
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
        write(classes=document([done[entry] for entry in classes()], transformers.__version__, torch.__version__))
    print(collections.Counter(result["outcome"] for result in done.values()))
    return 0


def modules(options: argparse.Namespace) -> int:
    """Profile the modules that the results do not have, and write their section."""
    import module_coverage

    done: dict[str, dict] = {}
    if options.results and options.results.exists():
        for line in options.results.read_text().splitlines():
            result = json.loads(line)
            done[result["title"]] = result

    def on_result(result: dict) -> None:
        done[result["title"]] = result
        print(f"{result['outcome']:16} {result['title']:50} {result.get('copy', '')}", flush=True)
        if options.results:
            with options.results.open("a") as file:
                file.write(json.dumps(result) + "\n")

    titles = [module_coverage.title(entry) for entry in module_coverage.entries()]
    selected = [
        index
        for index, title in enumerate(titles)
        if (re.search(options.only, title) if options.only else title not in done)
    ]
    if not options.write:
        module_coverage.results(selected[: options.limit], on_result, full=options.full * 1e6)
    write(modules=module_coverage.section([done[title] for title in titles if title in done]))
    return 0


def write(**sections: str) -> None:
    """Replace sections of the page."""
    parts = dict(zip(("modules", "classes"), re.split(r"(?m)^(?=## )", DOCUMENT.read_text())[1:], strict=False))
    parts |= sections
    text = "# Profiling of modules and of transformers classes\n\n" + "\n".join(
        part.strip() + "\n" for part in parts.values()
    )
    DOCUMENT.write_text(text)
    print(f"wrote {DOCUMENT}")


def document(results: list[dict], transformers_version: str, torch_version: str) -> str:
    """Text of the page: counts by task, then every class."""
    total = len(results)
    count = collections.Counter(result["outcome"] for result in results)
    profiled = count["traced"] + count["real steps"]
    valid = total - count["invalid default"]
    lines = [
        "## Classes of transformers",
        "",
        "This section covers every class in four of transformers' tables (`MODEL_FOR_CAUSAL_LM_MAPPING_NAMES`,",
        "`MODEL_FOR_MASKED_LM_MAPPING_NAMES`, `MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES` and",
        "`MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES`), each with its default configuration:",
        f"transformers {transformers_version}, torch {torch_version}.",
        f"Written by `scripts/profiling_coverage.py` with {SECONDS:.0f} s and 4 GiB per class, without a GPU.",
        "",
        "- **traced**: a full training step, forward and backward, at full width on fake tensors, in bf16 with fused",
        f"  attention and inferred inputs, with at most {MAX_LAYERS} layers if the configuration has a layer count.",
        "- **real steps**: no trace, but real steps of a scaled copy with a finite loss.",
        "- **guided trace**: neither of these. Both values of data-dependent conditions were traced, and the larger",
        "  result was used (confidence low).",
        "- **invalid default**: the default configuration is incomplete or contradictory, or the class requires a",
        "  package that is not installed, so no model can be built and called.",
        "- **failed**: not profiled, for the listed reason; `inputs=` or another configuration may help.",
        "",
        f"Traced or run in real steps: **{profiled} of {total}** ({100 * profiled / total:.1f} %). Of the {valid}",
        f"classes with a valid default configuration: {100 * profiled / valid:.1f} %.",
        "",
        "| task | classes | " + " | ".join(OUTCOMES) + " |",
        "| --- | --: | " + " | ".join("--:" for _ in OUTCOMES) + " |",
    ]
    for task in TASKS:
        outcomes = collections.Counter(result["outcome"] for result in results if result["class"][0] == task)
        lines.append(f"| {task} | {outcomes.total()} | " + " | ".join(str(outcomes[name]) for name in OUTCOMES) + " |")
    lines += ["", "| task | class | outcome | reason |", "| --- | --- | --- | --- |"]
    lines += [
        f"| {result['class'][0]} | {result['class'][2]} | {result['outcome']} | {why(result)} |" for result in results
    ]
    return "\n".join(lines) + "\n"


def why(result: dict) -> str:
    """Reason of an outcome, without details of this machine."""
    text = result.get("how") or result.get("reason", "")
    text = re.sub(r"The profile (failed|was stopped) at \S+ \(`[^`]*`\): ", "", text)
    text = re.sub(r"\(?(\S*/)?profiling_coverage\.py:\d+\)?", "", text).strip().rstrip(".")
    text = text.replace("|", "\\|")[:220]
    return f"`{text.replace('`', '')}`" if re.match(r"\w+Error: ", text) else text


if __name__ == "__main__":
    sys.exit(main())
