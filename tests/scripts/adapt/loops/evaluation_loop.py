"""Model and loss in one call, as language models of the small repositories do it."""
import math

import torch
import torch.nn as nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.attend = nn.Linear(width, width)
        self.feed = nn.Linear(width, width)

    def forward(self, x):
        return x + self.feed(F.gelu(self.attend(x)))


class GPT(nn.Module):
    def __init__(self, vocabulary, width, depth):
        super().__init__()
        self.wte = nn.Embedding(vocabulary, width)
        self.h = nn.ModuleList([Block(width) for _ in range(depth)])
        self.lm_head = nn.Linear(width, vocabulary, bias=False)
        self.wte.weight = self.lm_head.weight

    def forward(self, idx, targets=None):
        x = self.wte(idx)
        for block in self.h:
            x = block(x)
        logits = self.lm_head(x)
        loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1)) if targets is not None else None
        return logits, loss


@torch.no_grad()
def estimate_loss(model, loader):
    model.eval()
    losses = []
    for x, y in loader:
        logits, loss = model(x, y)
        losses.append(loss.item())
    model.train()
    return sum(losses) / len(losses)


def main():
    tokens = torch.randint(0, 40, (24, 9))
    train_data = TensorDataset(tokens[:16, :-1], tokens[:16, 1:])
    val_data = TensorDataset(tokens[16:, :-1], tokens[16:, 1:])
    train_loader = DataLoader(train_data, batch_size=4, shuffle=True)
    val_loader = DataLoader(val_data, batch_size=4)

    model = GPT(40, 16, 2)
    model = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95))
    best = math.inf
    for epoch in range(2):
        for x, y in train_loader:
            logits, loss = model(x, targets=y)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
        held_out = estimate_loss(model, val_loader)
        print(epoch, loss.item(), held_out)
        if held_out < best:
            best = held_out
            checkpoint = {
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "epoch": epoch,
                "best": best,
            }
            torch.save(checkpoint, "ckpt.pt")


if __name__ == "__main__":
    main()
