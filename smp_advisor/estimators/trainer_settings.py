"""Settings of the Trainer, of TRL and PEFT, and of a script's own options, as those of a plan and of a job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smp_advisor.arguments.amounts import digits_as_number
from smp_advisor.estimators.configuration import Setting, count, is_on
from smp_advisor.estimators.readback import BATCH, SEQUENCE
from smp_advisor.estimators.script import ADAPTS, BITS, MICRO_BATCH
from smp_advisor.estimators.terms import terms_of
from smp_advisor.libraries.library import get_library
from smp_advisor.review.scripts.following import trainer_optimizer

if TYPE_CHECKING:
    from smp_advisor.estimators.configuration import Configuration, Strategy
    from smp_advisor.estimators.script import Script

_TRAINER_BATCH = 8
"""Default batch size of TrainingArguments."""
_PEFT_RANK = 8
"""Default rank of an adapter in PEFT."""
_OF_FSDP = ("activation_checkpointing", "fsdp_activation_checkpointing")
TRAINER_ARGUMENTS = {"bf16", "fp16", "learning_rate", "num_train_epochs", "optim", "per_device_train_batch_size"}


def take_adapter(configuration: Configuration, script: Script | None) -> list[str]:
    """Set LoRA or QLoRA, in the hyperparameters (TRL's names) or in the script; its assumptions."""
    values = {name: entry.value for name, entry in configuration.hyperparameters.items()}
    ranks = [values[name] for name in ("lora_r", "lora_rank") if name in values]
    switches = [values[name] for name in ADAPTS if name in values]
    in_script = script is not None and script.lora
    lora = any(map(is_on, switches)) or in_script or (ranks and (script is None or script.lora is None))
    if not lora or (switches and not any(map(is_on, switches))):
        return []
    bits = next((name for name in BITS if is_on(values.get(name, script is not None and script.bits == name))), "")
    bits = bits or {"4": BITS[0], "8": BITS[1]}.get(str(values.get("quantization_bit")), "")  # of LLaMA-Factory
    rank = count(digits_as_number(ranks[0] if ranks else script.rank if script is not None else None))
    modules = str(values.get("lora_target_modules") or (script.targets if script is not None else ""))
    targets = modules if "_proj" in modules else "all-linear"
    configuration.set(adapter=f"lora{bits[-5:]}", adapter_rank=rank or _PEFT_RANK, adapter_targets=targets)
    if script is not None and script.upcast:
        configuration.set(adapter_upcast=True)
    return [
        "" if rank else f"The adapter's rank is {_PEFT_RANK}, PEFT's default.",
        "" if "_proj" in modules else "The adapter is on all linear products, because its target modules are not read.",
    ]


def take_job_fields(configuration: Configuration, script: Script | None) -> list[str]:
    """Set the optimizer and the loss, by the options of the job or by the script; a sentence on them."""
    values = {name: entry.value for name, entry in configuration.hyperparameters.items()}
    fields = {**(script.of_job if script is not None else {}), **trainer_optimizer(values.get("optim"))}
    fields |= {"loss": "fused"} if is_on(values.get("use_liger_kernel", values.get("use_liger"))) else {}
    fields.pop("optimizer_step", None)
    configuration.set(of_job=fields)
    text = ", ".join(f"{name}={value!r}" for name, value in fields.items())
    return [f"The job's optimizer and loss are read as {text}."] if fields else []


def take_micro_batch(configuration: Configuration) -> list[str]:
    """With a micro batch size, the batch size is that of an update (alpaca-lora): set both as a plan has them."""
    values, gpus = configuration.hyperparameters, terms_of(configuration).gpus
    micro, batch = (
        count(digits_as_number(values[name].value)) if name in values else 0 for name in (MICRO_BATCH, BATCH[0])
    )
    if not micro:
        return []
    values[BATCH[0]] = Setting(micro, values[MICRO_BATCH].span)
    if batch and gpus:
        values["gradient_accumulation_steps"] = Setting(max(batch // (micro * gpus), 1))
    return [f"The batch size is {MICRO_BATCH}, and {BATCH[0]} is that of an update."]


def take_defaults(configuration: Configuration, script: Script | None) -> list[str]:
    """Set what the script sets and the text does not; a sentence for the batch size and one for the others."""
    values = configuration.hyperparameters
    unused_names = (
        [name for name in BATCH if name in values and digits_as_number(values[name].value) != script.batch]
        if script is not None and script.batch is not None
        else []
    )
    configuration.leave_out(unused_names, f"{script.name if script is not None else ''} trains with a batch of its own")
    if script is not None:
        changed = [name for name, value in script.own.items() if name in values and values[name].value != value]
        configuration.leave_out(changed, f"{script.name} sets its own")
    present = {"batch_size"} if any(name in values for name in BATCH) else set()
    present |= set(SEQUENCE) if any(name in values for name in SEQUENCE) else set()
    settings = script.settings if script is not None and "unread_file" not in configuration.settings else {}
    taken = {name: value for name, value in settings.items() if name not in present and name not in values}
    for name, value in taken.items():
        values[name] = Setting(value)
    sentences = [f"{name} {value}" for name, value in taken.items() if name != "batch_size"]
    assumed = [f"The script sets {', '.join(sentences)}."] if sentences else []
    if "batch_size" in present:
        return assumed
    if "batch_size" in settings:
        return [f"The batch size is {settings['batch_size']}, which the script sets.", *assumed]
    example = script is None and "git_config" in configuration.settings and TRAINER_ARGUMENTS & values.keys()
    if example or (script is not None and script.unset):
        configuration.set_hyperparameters(batch_size=_TRAINER_BATCH)
        return [f"The batch size is {_TRAINER_BATCH}, the default of TrainingArguments.", *assumed]
    return assumed


def kept_in(strategy: Strategy, script: Script | None) -> str:
    """The 16 bits in which parameters stay as they are loaded; DeepSpeed, and FSDP by accelerate, train fp32 copies."""
    if script is None or strategy.library is None or strategy.name.startswith("DeepSpeed"):
        return ""
    return script.loads_in if script.wraps or not get_library(strategy.library).divides_model else ""


def take_precision(configuration: Configuration, strategy: Strategy, script: Script | None) -> str:
    """Set precision and checkpointing by the Trainer's arguments; the assumption about the precision, if any."""
    values = configuration.hyperparameters
    new = values.get("activation_checkpointing")
    setting = values.get("gradient_checkpointing") if new is None else new
    inner = values.get("fsdp_config")
    if new is None and inner is not None and isinstance(inner.value, dict):
        on = next((inner.value[name] for name in _OF_FSDP if name in inner.value), None)
        if is_on(on):
            values["activation_checkpointing"] = setting = new = Setting("true", inner.span)
    if setting is not None and (new is None or str(new.value).lower() in ("true", "false", "1", "0")):
        values["activation_checkpointing"] = Setting("each" if is_on(setting.value) else "none", setting.span)
    elif script is not None and (
        script.checkpoints or (script.checkpoints_quantized and "bit" in configuration.get("adapter", ""))
    ):
        values.setdefault("activation_checkpointing", Setting("each"))
    if any(is_on(values[name].value) for name in ("bf16", "fp16") if name in values) or "precision" in values:
        return ""
    if half := kept_in(strategy, script):
        values["precision"] = Setting(half)
        return ""
    example = script is None and "git_config" in configuration.settings
    if example or (script is not None and (script.parses_arguments or script.full)):
        values["precision"] = Setting("fp32")
        default = script is None or script.parses_arguments
        return f"The precision is fp32: {'the default of the Trainer' if default else 'the script names no other'}."
    machine = terms_of(configuration).instance
    precision = "bf16" if machine is None or machine.bf16 else "fp32"
    values["precision"] = Setting(precision)
    return f"The precision is {precision}, because the text has none."
