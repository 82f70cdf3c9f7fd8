"""A small BERT on an imbalanced text-like problem, as a user of Transformers would have it: nothing overridden."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import (
    AutoModelForSequenceClassification,
    BertConfig,
    BertForSequenceClassification,
    EarlyStoppingCallback,
    TrainingArguments,
)

import fcco
from fcco.integrations.transformers import SolverTrainer
from tests.helpers.same import assert_same

pytestmark = pytest.mark.usefixtures("one_thread")

VOCABULARY, LENGTH, WORD = 30, 8, 7


@pytest.fixture(autouse=True)
def _full_precision(monkeypatch):
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")


def texts(count, seed):
    """Sentences of random words with padding; the rare positives have the word 7 in them."""
    draws = torch.Generator().manual_seed(seed)
    words = torch.randint(10, VOCABULARY, (count, LENGTH), generator=draws)
    y = (torch.rand(count, generator=draws) < 0.12).long()
    words[y == 1, 2] = WORD
    lengths = torch.randint(4, LENGTH + 1, (count,), generator=draws)
    mask = (torch.arange(LENGTH) < lengths.unsqueeze(1)).long()
    return {"input_ids": words * mask, "attention_mask": mask}, y


class Rows(torch.utils.data.Dataset):
    """As a tokenised data set of Transformers: rows are dicts, labels among them."""

    def __init__(self, x, y):
        self.x = x
        self.y = y

    def __len__(self):
        return len(self.y)

    def __getitem__(self, row):
        return {name: value[row] for name, value in self.x.items()} | {"labels": int(self.y[row])}


def average_precision(prediction):
    order = np.argsort(-prediction.predictions[:, 0], kind="stable")
    hits = prediction.label_ids[order].astype(float)
    precision = np.cumsum(hits) / np.arange(1, len(hits) + 1)
    return {"ap": float((precision * hits).sum() / hits.sum())}


def make_trainer(folder, method=None, epochs=8, patience=2, objective_kind=None, **options):
    torch.manual_seed(0)
    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    model = BertForSequenceClassification(
        BertConfig(vocab_size=VOCABULARY, max_position_embeddings=LENGTH, num_labels=1, **small)
    )
    quiet = {"report_to": "none", "disable_tqdm": True, "use_cpu": True, "logging_strategy": "no"}
    best = {"load_best_model_at_end": True, "metric_for_best_model": "ap", "greater_is_better": True}
    args = TrainingArguments(
        str(folder),
        num_train_epochs=epochs,
        eval_strategy="epoch",
        save_strategy="epoch",
        lr_scheduler_type="constant",
        **quiet | best | options,
    )
    objective = (objective_kind or fcco.objectives.PartialAUC)(model, fcco.data.Points(*texts(200, seed=1)))
    optimizer = torch.optim.AdamW(objective.parameters(), lr=5e-3)
    solver = fcco.Solver(objective, optimizer, method or fcco.sox())
    return SolverTrainer(
        solver,
        solver.loader(blocks=4, samples=12, seed=0),
        args,
        eval_dataset=Rows(*texts(150, seed=2)),
        compute_metrics=average_precision,
        callbacks=[EarlyStoppingCallback(early_stopping_patience=patience)],
    )


def scores_of(model, x):
    model.eval()
    with torch.no_grad():
        return model(**x).logits


@pytest.mark.parametrize("method", [fcco.sox, fcco.msvr_v2, fcco.output_memory])
def test_evaluation_early_stopping_and_the_best_model(method, tmp_path):
    trainer = make_trainer(tmp_path, method())
    trainer.train()
    found = [row["eval_ap"] for row in trainer.state.log_history if "eval_ap" in row]
    share = float(texts(150, seed=2)[1].float().mean())
    assert max(found) > 3 * share  # it has learnt the word; a constant score would have the share of positives
    assert trainer.state.best_metric == max(found)
    assert "eval_loss" not in trainer.state.log_history[0]
    best = found.index(max(found))
    if len(found) < 8:  # stopped early: two epochs without a better one
        assert len(found) == best + 3
    # The best model is the one in hand, and the one that anybody loads from its folder.
    assert trainer.evaluate()["eval_ap"] == max(found)
    x, _ = texts(150, seed=2)
    loaded = AutoModelForSequenceClassification.from_pretrained(trainer.state.best_model_checkpoint)
    assert_same(loaded.state_dict(), trainer.model.state_dict())
    torch.testing.assert_close(scores_of(trainer.model, x), scores_of(loaded, x))


def test_stopped_early(tmp_path):
    """A metric that only gets worse ends the run after the patience."""
    trainer = make_trainer(tmp_path, epochs=8, patience=2, greater_is_better=False)
    trainer.compute_metrics = lambda prediction: {"ap": float(trainer.state.global_step)}
    trainer.train()
    assert [row["epoch"] for row in trainer.state.log_history if "eval_ap" in row] == [1.0, 2.0, 3.0]
    steps = len(trainer.loader)
    assert trainer.state.best_model_checkpoint.endswith(f"checkpoint-{steps}")
    saved = load_file(f"{trainer.state.best_model_checkpoint}/model.safetensors")
    assert_same(saved, {name: trainer.model.state_dict()[name] for name in saved})


def test_resumed_equals_uninterrupted(tmp_path):
    """With dropout in the model, an evaluation after each epoch and its draws: bit for bit."""
    whole = make_trainer(tmp_path / "whole", fcco.msvr_v2(), epochs=3, patience=9)
    whole.train()
    first = tmp_path / "whole" / f"checkpoint-{len(whole.loader)}"
    resumed = make_trainer(tmp_path / "resumed", fcco.msvr_v2(), epochs=3, patience=9)
    resumed.train(resume_from_checkpoint=first)
    assert_same(whole.solver.state_dict(), resumed.solver.state_dict())


class WithBias(fcco.objectives.PartialAUC):
    """An objective with a trained number of its own."""

    def __init__(self, model, data):
        super().__init__(model, data)
        self.bias = torch.nn.Parameter(torch.zeros(()))

    def outer(self, index, u):
        return super().outer(index, u) + (self.bias - 1.0).square()

    def outer_and_slope(self, index, u):
        return None


def test_parameters_of_the_objective_belong_to_the_best_model(tmp_path):
    trainer = make_trainer(tmp_path, epochs=3, patience=9, greater_is_better=False, objective_kind=WithBias)
    trainer.compute_metrics = lambda prediction: {"ap": float(trainer.state.global_step)}
    biases = []
    trainer.add_callback(_Notes(lambda: biases.append(trainer.solver.objective.bias.item())))
    trainer.train()
    assert len(set(biases)) == 3
    assert trainer.solver.objective.bias.item() == biases[0]


class _Notes(EarlyStoppingCallback):
    """Calls a function at every save, and stops nothing."""

    def __init__(self, note):
        super().__init__(early_stopping_patience=99)
        self._note = note

    def on_save(self, *_, **__):
        self._note()
