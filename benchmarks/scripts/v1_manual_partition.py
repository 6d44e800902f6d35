"""SMP v1, layers placed by hand; embedding and head share their weight and so their partition."""

import smdistributed.modelparallel.torch as smp
import torch
import torch.nn.functional as F
from smdistributed.modelparallel.torch.patches.checkpoint import checkpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

smp.init({"pipeline_parallel_degree": 2, "microbatches": 4, "auto_partition": False, "default_partition": 0, "ddp": True})
torch.cuda.set_device(smp.local_rank())
device = torch.device("cuda")
torch.manual_seed(smp.dp_rank())


class Residual(nn.Linear):
    def forward(self, hidden):
        return hidden + super()._orig_forward(hidden)


class LanguageModel(nn.Module):
    def __init__(self, vocabulary, width):
        super().__init__()
        with smp.partition(0):
            self.embed = nn.Embedding(vocabulary, width)
            self.lower = Residual(width, width)
            self.head = nn.Linear(width, vocabulary, bias=False)
            self.head.weight = self.embed.weight
        with smp.partition(1):
            self.upper = Residual(width, width)

    def forward(self, tokens):
        hidden = self.lower(self.embed(tokens))
        hidden = checkpoint(self.upper, hidden)
        return self.head(hidden)


@smp.step
def train_step(model, tokens, labels):
    logits = model(tokens)
    loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
    model.backward(loss)
    return loss


tokens = torch.randint(0, 1000, (4096, 65), generator=torch.Generator().manual_seed(0))
dataset = TensorDataset(tokens[:, :-1], tokens[:, 1:])
sampler = DistributedSampler(dataset, num_replicas=smp.dp_size(), rank=smp.dp_rank(), shuffle=True)
loader = DataLoader(dataset, batch_size=32, sampler=sampler, drop_last=True)

model = smp.DistributedModel(LanguageModel(1000, 256))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
optimizer = smp.DistributedOptimizer(optimizer)

for epoch in range(3):
    sampler.set_epoch(epoch)
    for inputs, labels in loader:
        inputs, labels = inputs.to(device), labels.to(device)
        optimizer.zero_grad()
        loss = train_step(model, inputs, labels).reduce_mean()
        optimizer.step()
    if smp.rank() == 0:
        print(epoch, loss.item())
