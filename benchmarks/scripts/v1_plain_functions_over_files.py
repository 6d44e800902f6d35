# plan: {"pipeline_parallel_degree": 2, "tensor_parallel_degree": 1, "microbatches": 4, "ddp": true, "shard_optimizer_state": false}
"""Everything on the module's level, as a user's first port looks: no functions but the steps."""
import os
import random

import numpy
import smdistributed.modelparallel.torch as smp
import torch
from torch.nn import CrossEntropyLoss
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler
from transformers import BertConfig, BertForSequenceClassification

smp.init()
torch.cuda.set_device(smp.local_rank())
for seeding in (random.seed, numpy.random.seed, torch.manual_seed, torch.cuda.manual_seed_all):
    seeding(42 + smp.dp_rank())

rank = smp.rank()
is_main = rank == 0
if is_main:
    os.makedirs("/opt/ml/checkpoints", exist_ok=True)
smp.barrier()

tokens = torch.load("/opt/ml/input/data/train/tokens.pt")
labels = torch.load("/opt/ml/input/data/train/labels.pt")
dataset = TensorDataset(tokens, labels)
batch_size = 16 * 4
sampler = DistributedSampler(dataset, num_replicas=smp.dp_size(), rank=smp.dp_rank(), shuffle=True)
loader = DataLoader(dataset, batch_size=batch_size, sampler=sampler, drop_last=True)

model = smp.DistributedModel(BertForSequenceClassification(BertConfig(num_labels=3)))
optimizer = smp.DistributedOptimizer(torch.optim.AdamW(model.parameters(), lr=2e-5))
criterion = CrossEntropyLoss()


@smp.step
def step(model, criterion, ids, answer):
    logits = model(ids, attention_mask=(ids != 0).long()).logits
    loss = criterion(logits, answer)
    model.backward(loss)
    return loss, logits


best = float("inf")
for epoch in range(3):
    sampler.set_epoch(epoch)
    seen, right, losses = 0, 0, []
    for ids, answer in loader:
        ids, answer = ids.cuda(), answer.cuda()
        optimizer.zero_grad()
        loss, logits = step(model, criterion, ids, answer)
        optimizer.step()
        loss = loss.reduce_mean()
        logits = logits.concat()
        losses.append(loss.item())
        right += int((logits.argmax(-1) == answer.to(logits.device)).sum())
        seen += len(answer)
    mean = sum(losses) / len(losses)
    if is_main:
        print(f"epoch {epoch}: loss {mean:.3f}, accuracy {right / seen:.2%}")
    if mean < best:
        best = mean
        smp.save_checkpoint("/opt/ml/checkpoints", tag="best", partial=True, model=model, optimizer=optimizer)
