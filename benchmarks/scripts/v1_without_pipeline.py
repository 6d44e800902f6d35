# plan: {"sharded_data_parallel_degree": 8, "pipeline_parallel_degree": 1, "microbatches": 1, "ddp": true, "bf16": true}
"""Sharded data parallelism alone: with one stage no step function is needed."""
import logging
import sys

import smdistributed.modelparallel.torch as smp
import torch
from datasets import load_from_disk
from smdistributed.modelparallel.torch.nn import FusedLayerNorm  # noqa: F401
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from transformers import AutoConfig, AutoModelForCausalLM, default_data_collator, get_scheduler, set_seed

log = logging.getLogger(__name__)


@smp.step
def train_step(model, batch):
    loss = model(**batch)["loss"]
    model.backward(loss)
    return loss


@smp.step
def evaluate_step(model, batch):
    return model(**batch)["loss"]


def evaluate(model, loader):
    model.eval()
    losses = []
    with torch.no_grad():
        for batch in loader:
            batch = {key: value.cuda() for key, value in batch.items()}
            losses.append(evaluate_step(model, batch).reduce_mean())
    mean = torch.stack(losses).mean()
    torch.distributed.all_reduce(mean, group=smp.get_dp_process_group())
    return mean.item() / smp.dp_size()


def main():
    smp.init()
    torch.cuda.set_device(smp.local_rank())
    logging.basicConfig(stream=sys.stdout, level=logging.INFO if smp.rank() == 0 else logging.ERROR)
    set_seed(11)
    train, held_out = load_from_disk("/opt/ml/input/data/train"), load_from_disk("/opt/ml/input/data/test")
    sampler = DistributedSampler(train, shuffle=True, seed=11, rank=smp.dp_rank(), num_replicas=smp.dp_size(), drop_last=True)
    loader = DataLoader(train, sampler=sampler, batch_size=4, collate_fn=default_data_collator, drop_last=True)
    test_loader = DataLoader(held_out, batch_size=4, collate_fn=default_data_collator, drop_last=True)

    config = AutoConfig.from_pretrained("/opt/ml/input/data/config")
    with smp.model_creation(dtype=torch.bfloat16):
        model = AutoModelForCausalLM.from_config(config)
    model = smp.DistributedModel(model, trace_device="gpu", backward_passes_per_step=2)
    layers = model.get_module().gpt_neox.layers
    for layer in layers:
        smp.set_activation_checkpointing(layer, strategy="each") if isinstance(layer, torch.nn.Sequential) else None
        smp.set_activation_checkpointing(layer)
    optimizer = smp.DistributedOptimizer(torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95)))
    scheduler = get_scheduler("cosine", optimizer, num_warmup_steps=10, num_training_steps=1000)

    for epoch in range(2):
        sampler.set_epoch(epoch)
        model.train()
        for number, batch in enumerate(loader):
            if number % 2 == 0:
                optimizer.zero_grad(set_to_none=True)
            loss = train_step(model, {key: value.cuda() for key, value in batch.items()})
            if (number + 1) % 2 == 0:
                optimizer.step()
                scheduler.step()
            if number % 100 == 0:
                log.info("loss %.3f", loss.reduce_mean().item())
        log.info("held out %.3f", evaluate(model, test_loader))
    smp.save_checkpoint("/opt/ml/checkpoints", tag="end", partial=True, model=model, optimizer=optimizer)


if __name__ == "__main__":
    main()
