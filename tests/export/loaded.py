"""Load what a job left, from the variable LOADED, a batch: run after the script, on its first rank.

A model generates and is trained further. An adapter is compared with its base.
"""

import json
import os
from pathlib import Path

if "LOADED" in os.environ and os.environ.get("RANK", "0") == "0":
    import torch
    import transformers

    folder = Path(os.environ["SM_MODEL_DIR"])
    adapts = (folder / "adapter_config.json").exists()
    channel = "SM_CHANNEL_" + "MODEL"  # in one piece, a rehearsal would take it for a channel that the script reads
    base = Path(os.environ[channel]) if adapts else folder
    (architecture,) = json.loads((base / "config.json").read_text("utf-8"))["architectures"]
    model = getattr(transformers, architecture).from_pretrained(base).float()
    batch = {name: torch.tensor(values) for name, values in json.loads(os.environ["LOADED"]).items()}
    losses, generated = [], None
    if adapts:
        from peft import PeftModel

        losses.append(model(**batch)["loss"].item())
        model = PeftModel.from_pretrained(model, folder)
    if model.can_generate():
        prompt = batch["input_ids"][:1]
        answer = model.generate(input_ids=prompt, max_new_tokens=2, return_dict_in_generate=True)
        assert answer.past_key_values is not None, "the model generates without its cache of keys and values"
        generated = answer.sequences.shape[1] - (1 if model.config.is_encoder_decoder else prompt.shape[1])
    for _ in range(1 if adapts else 3):
        loss = model(**batch)["loss"]
        losses.append(loss.item())
        gradients = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True) if not adapts else ()
        with torch.no_grad():
            for parameter, gradient in zip(model.parameters(), gradients, strict=False):
                if gradient is not None:
                    parameter.sub_(0.01 * gradient)
    print("loaded " + json.dumps({"losses": losses, "generated": generated}), flush=True)
