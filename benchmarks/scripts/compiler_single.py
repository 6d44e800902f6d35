"""Training Compiler, one GPU, PyTorch/XLA directly."""

import torch
import torch_xla.core.xla_model as xm
from datasets import load_dataset
from torch.utils.data import DataLoader
from transformers import AutoModelForSequenceClassification, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("bert-base-uncased")
raw = load_dataset("imdb", split="train")
encoded = raw.map(
    lambda rows: tokenizer(rows["text"], padding="max_length", truncation=True, max_length=128),
    batched=True,
    num_proc=8,
)
encoded.set_format("torch", columns=["input_ids", "attention_mask", "label"])
loader = DataLoader(encoded, batch_size=64, shuffle=True, drop_last=True)

device = xm.xla_device()
model = AutoModelForSequenceClassification.from_pretrained("bert-base-uncased").to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5)

for epoch in range(2):
    for step, batch in enumerate(loader):
        optimizer.zero_grad()
        outputs = model(
            input_ids=batch["input_ids"].to(device),
            attention_mask=batch["attention_mask"].to(device),
            labels=batch["label"].to(device),
        )
        loss = outputs.loss
        loss.backward()
        optimizer.step()
        xm.mark_step()
        if step % 100 == 0:
            print(epoch, step, loss.item())

xm.save(model.state_dict(), "/opt/ml/model/model.pt")
