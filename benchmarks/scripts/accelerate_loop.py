"""A loop of Accelerate: every object prepared, the framework's backward pass and clipping."""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    accelerator = Accelerator(gradient_accumulation_steps=2)
    dataset = TensorDataset(torch.randn(512, 64))
    loader = DataLoader(dataset, batch_size=8, shuffle=True)
    model = nn.Linear(64, 64)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for epoch in range(2):
        for (batch,) in loader:
            with accelerator.accumulate(model):
                loss = model(batch).pow(2).mean()
                accelerator.backward(loss)
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        torch.save(accelerator.unwrap_model(model).state_dict(), "/opt/ml/model/model.pt")


if __name__ == "__main__":
    main()
