import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Encoder(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        self.embed = nn.Embedding(50, width)
        self.blocks = nn.ModuleList([Block(width) for _ in range(depth)])
        self.head = nn.Linear(width, 50)

    def forward(self, tokens):
        hidden = self.embed(tokens)
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(hidden)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mlp = nn.Linear(width, width)

    def forward(self, hidden):
        return hidden + self.mlp(self.norm(hidden))


class Trainer:
    """Holds what a run needs."""

    def __init__(self, model, dataset, lr=1e-3, device="cpu"):
        self.device = device
        self.model = model.to(device)
        self.loader = DataLoader(dataset, batch_size=4, shuffle=True, num_workers=0)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=lr)
        self.loss_fn = nn.CrossEntropyLoss()
        self.step_count = 0

    def fit(self, epochs):
        for epoch in range(epochs):
            for tokens, targets in self.loader:
                tokens = tokens.to(self.device)
                targets = targets.to(self.device)
                self.optimizer.zero_grad(set_to_none=True)
                logits = self.model(tokens)
                loss = self.loss_fn(logits.flatten(0, 1), targets.flatten())
                loss.backward()
                self.optimizer.step()
                self.step_count += 1
                print(self.step_count, loss.item())

    def save(self, path):
        torch.save({"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(),
                    "steps": self.step_count}, path)


if __name__ == "__main__":
    torch.manual_seed(1)
    tokens = torch.randint(0, 50, (16, 6))
    trainer = Trainer(Encoder(16, 3), TensorDataset(tokens, tokens))
    trainer.fit(1)
    trainer.save("last.pt")
