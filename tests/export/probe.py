"""Code that each process of a job runs first: prints what the model is at its first update."""

import gc
import json
from collections import Counter

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

seen = []


def note(optimizer, arguments, keywords):
    """Print the names, types and adapters of the model whose parameters the optimizer updates."""
    if seen:
        return
    seen.append(True)
    updated = {id(value) for group in optimizer.param_groups for value in group["params"]}
    modules = [part for part in gc.get_objects() if issubclass(type(part), torch.nn.Module)]
    models = [part for part in modules if any(id(value) in updated for value in part.parameters())]
    model = max(models, key=lambda part: sum(1 for _ in part.modules()))
    bytes_of = Counter()
    for value in model.parameters():
        bytes_of[f"{str(value.dtype).removeprefix('torch.')}{'' if value.requires_grad else ' frozen'}"] += (
            value.numel() * value.element_size()
        )
    for part in model.modules():
        # bitsandbytes: the scales, and those of the scales. FSDP does not shard them.
        quantized = getattr(part, "quant_state", None)
        while quantized is not None:
            bytes_of["scales frozen"] += quantized.absmax.numel() * quantized.absmax.element_size()
            quantized = quantized.state2
    adapters = [name for name, part in model.named_modules() if getattr(part, "lora_A", None)]
    content = {
        "names": sorted(name for name, _ in model.named_parameters()),
        "trained": sum(value.numel() for value in model.parameters() if value.requires_grad),
        "bytes": dict(sorted(bytes_of.items())),
        "adapters": len(adapters),
    }
    print("probe", json.dumps(content), flush=True)


register_optimizer_step_pre_hook(note)
