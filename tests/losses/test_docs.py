"""The examples of docs/losses.md run as they stand."""

import logging
import re
from pathlib import Path

import pytest
import torch

PAGE = Path(__file__).parents[2] / "docs" / "losses.md"


@pytest.mark.filterwarnings("ignore:.*does not have many workers")
def test_every_example_runs(tmp_path, monkeypatch):
    import lightning.pytorch as pl

    monkeypatch.chdir(tmp_path)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    assert len(blocks) == 4
    assert len(blocks[0].strip().splitlines()) <= 10
    names: dict[str, object] = {"__name__": "page"}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
    assert set(torch.load("run.pt", weights_only=True)) == {"loss", "sampler"}
    ranker = names["Ranker"]()
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    pl.Trainer(max_epochs=1, enable_checkpointing=False, **quiet).fit(ranker)
    assert ranker.loss.steps > 0
    trainer = names["trainer"]
    looks = [row for row in trainer.state.log_history if "eval_ap" in row]
    assert len(looks) >= 2
    assert all("eval_loss" not in row for row in looks)
    assert trainer.state.best_metric == max(row["eval_ap"] for row in looks)
    best, loaded = trainer.model.state_dict(), names["bert"].state_dict()
    assert all(torch.equal(best[name], value) for name, value in loaded.items())


def test_the_table_names_every_loss():
    import fcco

    page = PAGE.read_text()
    for name in set(fcco.losses.__all__) - {"Loss"}:
        assert f"`{name}(" in page
