# plan: {"tensor_parallel_degree": 4, "pipeline_parallel_degree": 2, "microbatches": 2, "ddp": true, "fp16": true}
"""Streaming data, loops that never end, saving by early return, ranks handed around."""
import glob
import itertools
import json
import math
import os

import numpy as np
import smdistributed.modelparallel.torch as smp
import torch
from torch.utils.data import DataLoader, IterableDataset
from transformers import GPT2Config, GPT2LMHeadModel


class Shards(IterableDataset):
    def __init__(self, folder, rank, world, length=1024):
        files = sorted(glob.glob(os.path.join(folder, "*.npy")))
        self.files = files[rank::world]
        self.length = length

    def __iter__(self):
        worker = torch.utils.data.get_worker_info()
        step, start = (worker.num_workers, worker.id) if worker else (1, 0)
        for path in itertools.islice(self.files, start, None, step):
            tokens = np.load(path, mmap_mode="r")
            for begin in range(0, len(tokens) - self.length, self.length):
                yield torch.from_numpy(tokens[begin : begin + self.length].astype("int64"))


def endless(loader):
    while True:
        for batch in loader:
            yield batch


class Schedule:
    def __init__(self, optimizer, peak, warmup, total):
        self.optimizer, self.peak, self.warmup, self.total = optimizer, peak, warmup, total
        self.done = 0

    def step(self):
        self.done += 1
        share = min(1.0, self.done / self.warmup)
        rate = self.peak * share * 0.5 * (1 + math.cos(math.pi * self.done / self.total))
        for group in self.optimizer.param_groups:
            group["lr"] = rate


@smp.step
def forward_backward(model, ids):
    loss = model(input_ids=ids, labels=ids, return_dict=False)[0]
    model.backward(loss)
    return loss


def save(model, optimizer, folder, step):
    if smp.rdp_rank() != 0:
        return
    state = {
        "model": model.local_state_dict(),
        "optimizer": optimizer.local_state_dict(),
        "step": step,
    }
    smp.save(state, f"{folder}/step_{step}.pt", partial=True)


def report(path, **values):
    if smp.rank() == 0:
        with open(path, "a") as file:
            file.write(json.dumps(values) + "\n")


def main():
    smp.init()
    local_rank = smp.local_rank()
    torch.cuda.set_device(local_rank)
    seed = int(os.environ.get("SEED", 17))
    np.random.seed(seed + smp.dp_rank())
    torch.manual_seed(seed + smp.dp_rank())
    rank, world = smp.dp_rank(), smp.dp_size()
    loader = DataLoader(Shards("/opt/ml/input/data/train", rank, world), batch_size=8, drop_last=True)

    with smp.model_creation(tensor_parallelism=smp.tp_size() > 1, dtype=torch.float16):
        module = GPT2LMHeadModel(GPT2Config(n_embd=4096, n_layer=40, n_head=32))
    model = smp.DistributedModel(module, trace_device="gpu")
    for layer in model.get_module().transformer.seq_layers.children():
        smp.set_activation_checkpointing(layer)
    decayed = [p for n, p in model.named_parameters() if p.ndim > 1]
    others = [p for n, p in model.named_parameters() if p.ndim <= 1]
    optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}])
    optimizer = smp.DistributedOptimizer(optimizer, static_loss_scale=1024.0)
    schedule = Schedule(optimizer, 1e-4, 100, 10_000)

    batches = endless(loader)
    for step in range(1, 10_001):
        optimizer.zero_grad(set_to_none=True)
        loss_mb = forward_backward(model, next(batches).to(torch.device("cuda", local_rank)))
        optimizer.clip_master_grads(1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 0:
            loss = loss_mb.reduce_mean().item()
            report("/opt/ml/output/data/log.jsonl", step=step, loss=loss, perplexity=math.exp(min(loss, 20)))
        if step % 1000 == 0:
            save(model, optimizer, "/opt/ml/checkpoints", step)
            smp.barrier()


if __name__ == "__main__":
    main()
