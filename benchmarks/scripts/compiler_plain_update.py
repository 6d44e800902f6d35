"""Training Compiler on several GPUs, in fp32."""

import torch
import torch_xla.core.xla_model as xm
import torch_xla.distributed.parallel_loader as pl
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def main():
    device = xm.xla_device()
    dataset = TensorDataset(torch.zeros(2048, 32), torch.zeros(2048, 1))
    sampler = DistributedSampler(dataset, num_replicas=xm.xrt_world_size(), rank=xm.get_ordinal())
    plain = DataLoader(dataset, batch_size=32, sampler=sampler, drop_last=True)
    loader = pl.MpDeviceLoader(plain, device)
    model = torch.nn.Linear(32, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        xm.optimizer_step(optimizer)
    xm.save(model.state_dict(), "model.pt")


def _mp_fn(index):
    main()


if __name__ == "__main__":
    main()
