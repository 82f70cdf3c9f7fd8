"""In Transformers a loss is a line of compute_loss; dict items tell their id."""

import pytest
import torch
from torch import nn
from transformers import Trainer, TrainingArguments

import fcco
from tests.losses.frameworks import EPOCHS, data, make_loss, network, plain_run

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def _full_precision(monkeypatch):
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")


class Items(torch.utils.data.Dataset):
    """Dicts, as Transformers has them."""

    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.y)

    def __getitem__(self, index):
        return {"x": self.x[index], "labels": self.y[index]}


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.network = network()

    def forward(self, x):
        return {"logits": self.network(x)}


class RankingTrainer(Trainer):
    """The loss in place of cross-entropy, and its own batches."""

    def __init__(self, loss, **options):
        super().__init__(**options)
        self.loss = loss

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        outputs = model(inputs["x"])
        value = self.loss(outputs["logits"], inputs["labels"], inputs["id"])
        return (value, outputs) if return_outputs else value

    def get_train_dataloader(self):
        sampler = self.loss.sampler(blocks=4, samples=8, seed=2)
        return torch.utils.data.DataLoader(self.train_dataset, batch_sampler=sampler, collate_fn=self.data_collator)


@pytest.mark.parametrize("memory", [False, True])
def test_the_steps_are_those_of_the_plain_loop(memory, tmp_path):
    weights, loss = plain_run(memory)
    x, y = data()
    model = Classifier()
    arguments = TrainingArguments(
        str(tmp_path),
        num_train_epochs=EPOCHS,
        max_grad_norm=0.0,
        lr_scheduler_type="constant",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        remove_unused_columns=False,
    )
    trainer = RankingTrainer(
        make_loss(y, memory),
        model=model,
        args=arguments,
        train_dataset=fcco.data.Indexed(Items(x, y)),
        optimizers=(torch.optim.SGD(model.parameters(), lr=0.1), None),
    )
    trainer.train()
    assert trainer.loss.steps == loss.steps
    for p, wanted in zip(model.parameters(), weights, strict=True):
        assert torch.equal(p.detach(), wanted)
