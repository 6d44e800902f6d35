"""Training Compiler on several GPUs, with mixed precision."""

import torch
import torch_xla.amp
import torch_xla.core.xla_model as xm
import torch_xla.distributed.parallel_loader as pl
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler
from torch_xla.amp import GradScaler
from torch_xla.amp.syncfree import AdamW


def main():
    device = xm.xla_device()
    torch.manual_seed(0)
    dataset = TensorDataset(torch.randn(4096, 256), torch.randint(0, 10, (4096,)))
    sampler = DistributedSampler(dataset, num_replicas=xm.xrt_world_size(), rank=xm.get_ordinal(), shuffle=True)
    loader = pl.MpDeviceLoader(DataLoader(dataset, batch_size=64, sampler=sampler, drop_last=True), device)
    model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 10)).to(device)
    optimizer = AdamW(model.parameters(), lr=1e-3)
    scaler = GradScaler()
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for inputs, labels in loader:
            optimizer.zero_grad()
            with torch_xla.amp.autocast():
                loss = torch.nn.functional.cross_entropy(model(inputs), labels)
            scaler.scale(loss).backward()
            gradients = xm._fetch_gradients(optimizer)
            xm.all_reduce("sum", gradients, scale=1.0 / xm.xrt_world_size())
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
        xm.master_print(epoch)
    xm.save(model.state_dict(), "/opt/ml/model/model.pt")


def _mp_fn(index):
    main()


if __name__ == "__main__":
    main()
