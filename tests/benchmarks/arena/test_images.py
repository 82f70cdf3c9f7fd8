"""benchmarks/arena/cifar.py and images.py: LibAUC's problems in small; skipped in part where LibAUC is missing."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from benchmarks.arena import cifar, images
from benchmarks.arena.replayed import Passes, flatten

pytestmark = pytest.mark.usefixtures("one_thread")


def libauc_or_skip() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of LibAUC's own code
        pytest.importorskip("libauc.losses", reason="LibAUC is not importable", exc_type=ImportError)


@pytest.fixture
def arrays() -> dict[str, np.ndarray]:
    random = np.random.RandomState(0)
    y = random.randint(0, 10, 400)
    x = random.randint(0, 200, (400, 32, 32, 3))
    x[y > 4] += 55  # positives are brighter
    return {
        "x_train": x[:300].astype("uint8"),
        "y_train": y[:300],
        "x_test": x[300:].astype("uint8"),
        "y_test": y[300:],
    }


def tiny(problem: str) -> images.ImageProblem:
    return replace(images.PROBLEMS[problem], net="tiny", ratio=0.2)


def of(problem: images.ImageProblem, arrays: dict[str, np.ndarray]) -> cifar.Images:
    return cifar.make_images(arrays, problem.ratio, problem.data_seed, problem.test_ratio, 0.2, 0, "cpu")


def test_the_generator_keeps_the_published_numbers() -> None:
    y = np.repeat(np.arange(10), 5000)
    for ratio, positives in ((0.1, 2777), (0.02, 510), (0.2, 6250), (0.5, 25_000)):
        rows = cifar.imbalanced(y, ratio, 2023)
        assert len(set(rows.tolist())) == len(rows)
        assert np.count_nonzero(y[rows] > 4) == positives
        assert np.count_nonzero(y[rows] <= 4) == 25_000


def test_the_generator_is_libaucs() -> None:
    libauc_or_skip()
    from libauc.utils import ImbalancedDataGenerator

    y = np.random.RandomState(1).randint(0, 10, 500)
    x = np.arange(500)
    theirs, labels = ImbalancedDataGenerator(shuffle=True, verbose=False, random_seed=7).transform(x, y, imratio=0.1)
    ours = cifar.imbalanced(y, 0.1, 7)
    assert np.array_equal(np.ravel(theirs), ours)
    assert np.array_equal(np.ravel(labels), y[ours] > 4)


def test_validation_is_held_out_per_class(arrays: dict[str, np.ndarray]) -> None:
    data = of(tiny("cifar-auroc"), arrays)
    assert len(data.x_valid) == pytest.approx(0.25 * len(data.x_train), rel=0.1)
    assert float(data.y_valid.mean()) == pytest.approx(float(data.y_train.mean()), abs=0.03)
    train = {row.numpy().tobytes() for row in data.x_train}
    assert not train & {row.numpy().tobytes() for row in data.x_valid}


def test_draws_hold_a_fixed_number_of_positives_and_miss_nobody() -> None:
    y = np.zeros(250)
    y[:30] = 1
    draws = cifar.DualDraws(y, batch=20, rate=0.2, seed=0)
    assert draws.steps == 13
    seen: set[int] = set()
    for _ in range(2):
        for rows in draws.epoch():
            assert len(rows) == 20
            assert y[rows[:4]].all()
            assert not y[rows[4:]].any()
            seen |= set(rows.tolist())
    assert seen == set(range(250))


def test_few_positives_are_drawn_again_within_a_batch() -> None:
    y = np.zeros(50)
    y[:3] = 1
    for rows in cifar.DualDraws(y, batch=20, rate=0.5, seed=0).epoch():
        assert y[rows[:10]].all()
        assert set(rows[:10].tolist()) == {0, 1, 2}


def test_published_epochs_have_their_published_lengths() -> None:
    for positives, batch, rate, steps in ((2777, 128, 0.2, 242), (510, 64, 0.5, 781), (6250, 64, 0.5, 781)):
        y = np.zeros(25_000 + positives)
        y[:positives] = 1
        assert cifar.DualDraws(y, batch, rate, 0).steps == steps


def test_images_are_cropped_flipped_and_resized_in_training_alone() -> None:
    model = cifar.Augmented(torch.nn.Identity())
    x = torch.randint(0, 256, (64, 3, 32, 32), dtype=torch.uint8)
    assert torch.equal(model.eval()(x), x.float() / 255)
    first = model.train()(x)
    assert first.shape == (64, 3, 32, 32)
    assert not torch.equal(first, model(x))
    grey = torch.full((8, 3, 32, 32), 128, dtype=torch.uint8)
    torch.testing.assert_close(model(grey), grey.float() / 255)


def test_augmented_images_are_crops_or_their_mirrors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cifar.functional, "interpolate", lambda x, **_: x)
    x = torch.rand(20, 3, 32, 32)
    for image, cropped in zip(x, cifar.augment(x), strict=True):
        candidates = [image[:, i : i + 30, j : j + 30] for i in range(3) for j in range(3)]
        assert any(torch.equal(cropped, c) or torch.equal(cropped, c.flip(2)) for c in candidates)


def test_networks_have_the_published_sizes() -> None:
    def count(name: str) -> int:
        return sum(p.numel() for p in cifar.image_network(name, 0).parameters())

    assert count("resnet20") == 269_137  # 0.27 M, with one output
    assert count("resnet18") == 11_177_025
    for name in ("resnet20", "resnet18"):
        assert cifar.image_network(name, 0)(torch.zeros(2, 3, 32, 32, dtype=torch.uint8)).shape == (2, 1)


def test_two_way_partial_auc_is_that_of_the_hardest() -> None:
    y = np.array([1] * 10 + [0] * 20)
    scores = np.random.RandomState(0).randn(30) + y
    hard = np.concatenate([np.sort(scores[:10])[:3], np.sort(scores[10:])[-6:]])
    assert cifar.two_way(scores, y) == roc_auc_score([1] * 3 + [0] * 6, hard)


METHODS = [(problem, method) for problem, chosen in images.PROBLEMS.items() for method in chosen.methods]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("problem", "method"), METHODS, ids=str)
def test_a_run_cut_off_ends_as_if_it_had_not_been(
    problem: str, method: str, arrays: dict[str, np.ndarray], tmp_path: Path
) -> None:
    libauc_or_skip()
    chosen = tiny(problem)
    data = of(chosen, arrays)
    recipe = replace(images.RECIPES[method], epochs=3, decays=(1, 2), batch=32)
    whole = images.Trainer(chosen, recipe, data, 0, "cpu", None).run()
    row = None
    for stop_after in (2, 2, None):  # in the first stage, in the second, to the end
        torch.manual_seed(99)
        row = images.Trainer(chosen, recipe, data, 0, "cpu", tmp_path / "run.pt", every=1).run(stop_after)
    assert whole is not None
    assert row is not None
    for own in (whole, row):
        del own["seconds"]
    assert row == whole


@pytest.mark.filterwarnings("ignore")
def test_u_is_kept(arrays: dict[str, np.ndarray], tmp_path: Path) -> None:
    libauc_or_skip()
    chosen = tiny("cifar-ap")
    recipe = replace(images.RECIPES["SOAP"], epochs=3, warm=False, batch=16)
    trainer = images.Trainer(chosen, recipe, of(chosen, arrays), 0, "cpu", tmp_path / "run.pt", every=1)
    assert trainer.run(stop_after=2) is None
    running = trainer._start()
    assert float(running.loss.u_all.abs().sum()) > 0
    assert running.optimizer.steps == 2 * running.draws.steps
    flat = running.optimizer.param_groups[0]["params"][0]
    first = next(running.model.parameters())
    assert flat.data_ptr() == first.data_ptr()
    assert torch.equal(flat[: first.numel()], first.flatten())


def test_the_plain_loss_learns_and_sees_as_many_examples(
    arrays: dict[str, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = tiny("cifar-auroc")
    monkeypatch.setitem(images.RECIPES, "PESG", replace(images.RECIPES["PESG"], epochs=8, batch=16))
    data = of(chosen, arrays)
    row = images.run_plain(chosen, data, {"lr": 3e-3, "decay": 0.0}, 0, "cpu")
    assert row["test"] > 0.8
    assert row["examples"] <= images.budget(chosen, data) < row["examples"] + len(data.y_train)


def test_a_failed_run_says_so(arrays: dict[str, np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "images.npz"
    np.savez(path, **arrays)
    monkeypatch.setitem(images.PROBLEMS, "cifar-ap", tiny("cifar-ap"))
    row = images.one(str(path), "cpu", 0.2, str(tmp_path / "kept"), "cifar-ap", "plain", json.dumps({"lr": 1.0}), 0)
    assert row["error"].startswith("KeyError")


def test_jobs_are_the_published_methods_and_twelve_settings() -> None:
    found = list(images.jobs(list(images.PROBLEMS), list(images.RECIPES), [0, 1]))
    assert len(found) == 2 * 6
    assert len(list(images.jobs(["cifar-ap"], ["plain"], [0]))) == 12


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("method", [method for method in images.RECIPES if method != "PESG"])  # it begins with noise
def test_one_long_parameter_is_trained_as_many_short_ones(method: str, arrays: dict[str, np.ndarray]) -> None:
    libauc_or_skip()
    from libauc import losses, optimizers

    recipe = images.RECIPES[method]
    data = of(tiny("cifar-ap"), arrays)
    positives = int(data.y_train.sum())
    found = []
    for is_flat in (False, True):
        model = cifar.image_network("tiny", 0)
        parameters = [flatten(model)] if is_flat else list(model.parameters())
        loss = recipe.loss(losses, len(data.y_train), positives, "cpu")
        optimizer = recipe.optimizer(optimizers, parameters, loss, "cpu")
        passes = Passes(model, parameters[0], data.x_train, 32) if is_flat else None
        draws = cifar.DualDraws(data.y_train.numpy(), 32, 0.5, 0)
        torch.manual_seed(0)
        for rows in draws.epoch():
            index = torch.from_numpy(rows)
            y = data.y_train[index].unsqueeze(1)
            if passes is None:
                optimizer.zero_grad()
                loss(torch.sigmoid(model(data.x_train[index])), y, index=index).backward()
                optimizer.step()
            else:
                outputs = passes.outputs(index)
                loss(torch.sigmoid(outputs), y, index=index).backward()
                passes.backward(outputs)
                optimizer.step()
                passes.settle()
        found.append(torch.cat([parameter.detach().flatten() for parameter in model.parameters()]))
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], flatten(cifar.image_network("tiny", 0)))


def test_an_optimizer_that_takes_new_memory_moves_the_network() -> None:
    model = cifar.image_network("tiny", 0)
    flat = flatten(model)
    passes = Passes(model, flat, torch.zeros(4, 3, 32, 32, dtype=torch.uint8), 4)
    flat.data = flat.data + 1.0  # as PESG does
    passes.settle()
    for parameter, before in zip(model.parameters(), cifar.image_network("tiny", 0).parameters(), strict=True):
        assert torch.equal(parameter, before + 1.0)
    assert flat.data_ptr() == next(model.parameters()).data_ptr()
