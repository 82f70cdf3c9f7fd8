"""In Lightning a loss is a line of training_step, and its u is in the checkpoint."""

import logging

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from tests.losses.frameworks import EPOCHS, data, make_loader, make_loss, network, plain_run

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory"),
]
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Ranker(pl.LightningModule):
    def __init__(self, memory=False):
        super().__init__()
        self.x, self.y = data()
        self.model = network()
        self.loss = make_loss(self.y, memory)

    def training_step(self, batch, batch_idx):
        x, y, id = batch
        return self.loss(self.model(x), y, id)

    def configure_optimizers(self):
        return torch.optim.SGD(self.model.parameters(), lr=0.1)

    def train_dataloader(self):
        return make_loader(self.x, self.y, self.loss)


def trained(folder, memory=False, epochs=EPOCHS, **options):
    saves = ModelCheckpoint(folder, filename="{epoch}", save_top_k=-1)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    module = Ranker(memory)
    pl.Trainer(max_epochs=epochs, callbacks=[saves], **quiet).fit(module, **options)
    return module


@pytest.mark.parametrize("memory", [False, True])
def test_the_steps_are_those_of_the_plain_loop(memory, tmp_path):
    weights, loss = plain_run(memory)
    module = trained(tmp_path, memory)
    for p, wanted in zip(module.model.parameters(), weights, strict=True):
        assert torch.equal(p.detach(), wanted)
    assert module.loss.steps == loss.steps


def test_a_checkpoint_holds_u(tmp_path):
    module = trained(tmp_path)
    saved = torch.load(tmp_path / "epoch=1.ckpt", weights_only=False)["state_dict"]
    assert torch.equal(saved["loss.u"], module.loss.u)
    again = Ranker()
    again.load_state_dict(saved)
    assert torch.equal(again.loss.u, module.loss.u)
    assert again.loss._steps == module.loss._steps
