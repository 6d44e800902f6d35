# plan: {"library": "training-compiler"}
"""Training Compiler, native PyTorch on several GPUs: device loader, reduced gradients, rare logging."""
import argparse
import os

import torch
import torch.nn as nn
import torch_xla.core.xla_model as xm
import torch_xla.distributed.parallel_loader as pl
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from transformers import AutoModelForMaskedLM, AutoTokenizer, DataCollatorForLanguageModeling, get_linear_schedule_with_warmup
from datasets import load_from_disk


def log(step, loss):
    xm.master_print(f"step {step}: {loss.item():.3f}")


def encode(tokenizer, batch):
    return tokenizer(batch["text"], padding="max_length", truncation=True, max_length=512)


def train(args):
    device = xm.xla_device()
    torch.manual_seed(args.seed)
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    data = load_from_disk(args.data).map(lambda batch: encode(tokenizer, batch), batched=True, num_proc=os.cpu_count())
    sampler = DistributedSampler(data, num_replicas=xm.xrt_world_size(), rank=xm.get_ordinal(), shuffle=True)
    loader = DataLoader(
        data,
        batch_size=args.batch_size,
        sampler=sampler,
        collate_fn=DataCollatorForLanguageModeling(tokenizer),
        drop_last=True,
        num_workers=4,
    )
    device_loader = pl.MpDeviceLoader(loader, device)
    model = AutoModelForMaskedLM.from_pretrained(args.model).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate)
    scheduler = get_linear_schedule_with_warmup(optimizer, 100, len(device_loader) * args.epochs)
    done = 0
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        model.train()
        for batch in device_loader:
            optimizer.zero_grad()
            loss = model(**batch).loss
            loss.backward()
            xm.reduce_gradients(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            done += 1
            if done % 100 == 0:
                xm.add_step_closure(log, args=(done, loss))
        if epoch % 5 == 4:
            xm.save(model.state_dict(), os.path.join(args.output, f"epoch_{epoch}.pt"))
    if xm.is_master_ordinal():
        print("done")


def _mp_fn(index):
    train(arguments())


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="bert-large-uncased")
    parser.add_argument("--data", default=os.environ.get("SM_CHANNEL_TRAIN", "data"))
    parser.add_argument("--output", default=os.environ.get("SM_MODEL_DIR", "model"))
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--learning_rate", type=float, default=5e-5)
    return parser.parse_known_args()[0]


if __name__ == "__main__":
    train(arguments())
