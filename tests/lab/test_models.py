"""Models: torchvision's names, shapes and counts; both stems; refusals."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from fcco.lab.models import MLP, NAMES, Linear, build, densenet121, resnet18, resnet34

PARAMETERS = {resnet18: 11_689_512, resnet34: 21_797_672, densenet121: 7_978_856}  # as torchvision publishes
ENTRIES = {resnet18: 122, resnet34: 218, densenet121: 727}  # of a state dictionary
Shapes = dict[str, tuple[int, ...]]


def _batch_norm(name: str, channels: int) -> Shapes:
    parts = ("weight", "bias", "running_mean", "running_var")
    return {**{f"{name}.{part}": (channels,) for part in parts}, f"{name}.num_batches_tracked": ()}


def resnet_shapes(depths: list[int]) -> Shapes:
    """torchvision's names and shapes, spelled out from its naming scheme."""
    shapes: Shapes = {"conv1.weight": (64, 3, 7, 7), **_batch_norm("bn1", 64)}
    before = 64
    for stage, (depth, width) in enumerate(zip(depths, (64, 128, 256, 512), strict=True), start=1):
        for k in range(depth):
            block = f"layer{stage}.{k}"
            shapes |= {f"{block}.conv1.weight": (width, before, 3, 3), **_batch_norm(f"{block}.bn1", width)}
            shapes |= {f"{block}.conv2.weight": (width, width, 3, 3), **_batch_norm(f"{block}.bn2", width)}
            if before != width:
                shapes |= {f"{block}.downsample.0.weight": (width, before, 1, 1)}
                shapes |= _batch_norm(f"{block}.downsample.1", width)
            before = width
    return shapes | {"fc.weight": (1000, 512), "fc.bias": (1000,)}


def densenet_shapes() -> Shapes:
    shapes: Shapes = {"features.conv0.weight": (64, 3, 7, 7), **_batch_norm("features.norm0", 64)}
    channels = 64
    for number, depth in enumerate((6, 12, 24, 16), start=1):
        for k in range(1, depth + 1):
            layer = f"features.denseblock{number}.denselayer{k}"
            shapes |= {
                **_batch_norm(f"{layer}.norm1", channels),
                f"{layer}.conv1.weight": (128, channels, 1, 1),
            }
            shapes |= {**_batch_norm(f"{layer}.norm2", 128), f"{layer}.conv2.weight": (32, 128, 3, 3)}
            channels += 32
        if number < 4:
            name = f"features.transition{number}"
            shapes |= {**_batch_norm(f"{name}.norm", channels)}
            shapes |= {f"{name}.conv.weight": (channels // 2, channels, 1, 1)}
            channels //= 2
    shapes |= _batch_norm("features.norm5", 1024)
    return shapes | {"classifier.weight": (1000, 1024), "classifier.bias": (1000,)}


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (resnet18, resnet_shapes([2, 2, 2, 2])),
        (resnet34, resnet_shapes([3, 4, 6, 3])),
        (densenet121, densenet_shapes()),
    ],
    ids=["resnet18", "resnet34", "densenet121"],
)
def test_names_and_shapes_are_torchvisions(make: Callable[[], nn.Module], expected: Shapes) -> None:
    model = make()
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    assert list(shapes.items()) == list(expected.items())  # the order counts too: optimizers number parameters
    assert len(shapes) == ENTRIES[make]
    assert sum(p.numel() for p in model.parameters()) == PARAMETERS[make]


@pytest.mark.parametrize("name", ["resnet18", "resnet34", "densenet121"])
@pytest.mark.parametrize(("shape", "stem"), [((1, 8, 8), "small"), ((3, 32, 32), "small"), ((3, 64, 64), "imagenet")])
def test_outputs(name: str, shape: tuple[int, ...], stem: str) -> None:
    model = build(name, shape, 7, stem=stem)
    out = model(torch.randn(2, *shape))
    assert out.shape == (2, 7)
    out.square().sum().backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in model.parameters())


@pytest.mark.parametrize("name", ["resnet18", "densenet121"])
@pytest.mark.parametrize(("stem", "factor"), [("small", 1), ("imagenet", 4)])
def test_stem_resolution(name: str, stem: str, factor: int) -> None:
    """What reaches the first stage: full resolution behind the small stem, a quarter behind ImageNet's."""
    model = build(name, (3, 64, 64), 2, stem=stem)
    first = model.layer1 if name == "resnet18" else model.features.denseblock1
    seen: list[torch.Size] = []
    first.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].shape))
    model.eval()(torch.zeros(1, 3, 64, 64))
    assert seen == [torch.Size([1, 64, 64 // factor, 64 // factor])]


def test_densenet_smallest_images() -> None:
    """The sizes that `build` lets through work, and it lets through all that work."""
    for stem, smallest in (("small", 8), ("imagenet", 29)):
        build("densenet121", (3, smallest, smallest), 2, stem=stem).eval()(torch.zeros(1, 3, smallest, smallest))
        with pytest.raises(ValueError, match=rf"at least {smallest}x{smallest} pixels"):
            build("densenet121", (3, smallest, smallest - 1), 2, stem=stem)
        with pytest.raises(RuntimeError):
            densenet121(stem=stem).eval()(torch.zeros(1, 3, smallest - 1, smallest - 1))


def test_densenet_accepts_old_names() -> None:
    """torchvision's published files say norm.1 where its code says norm1."""
    model, other = densenet121(), densenet121()
    state = model.state_dict()
    old = {}
    for key, value in state.items():
        for part in ("norm1", "norm2", "conv1", "conv2"):
            key = key.replace(f".{part}.", f".{part[:-1]}.{part[-1]}.") if "denselayer" in key else key
        old[key] = value
    assert any(".norm.1." in key for key in old)
    kept = dict(old)
    other.load_state_dict(old)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))
    assert old.keys() == kept.keys()


def test_evaluation_ignores_company() -> None:
    """In evaluation mode a row does not depend on the others; in training mode BatchNorm makes it."""
    model, x = build("resnet18", (1, 16, 16), 3), torch.randn(4, 1, 16, 16)
    assert not torch.allclose(model(x)[:2], model(x[:2]), atol=1e-3)
    model.eval()
    torch.testing.assert_close(model(x)[:2], model(x[:2]), atol=1e-4, rtol=1e-4)


def test_plain_models() -> None:
    assert Linear(12, 3)(torch.zeros(5, 3, 2, 2)).shape == (5, 3)
    model = MLP(12, 3, hidden=(8, 4))
    assert [tuple(p.shape) for p in model.parameters()] == [(8, 12), (8,), (4, 8), (4,), (3, 4), (3,)]
    x = torch.randn(5, 12)
    first, second, last = (m for m in model.layers if isinstance(m, nn.Linear))
    torch.testing.assert_close(model(x), last(second(first(x).relu()).relu()))
    assert build("mlp", (3, 2, 2), 4)(torch.zeros(5, 3, 2, 2)).shape == (5, 4)
    assert sum(p.numel() for p in build("linear", (12,), 3).parameters()) == 39


def test_same_seed_same_weights() -> None:
    for name in NAMES:
        states = []
        for _ in range(2):
            torch.manual_seed(3)
            states.append(build(name, (1, 8, 8), 2).state_dict())
        assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("resnet81", (3, 32, 32), 10),
            r"name must be one of .*got 'resnet81' \(did you mean 'resnet18'\?\)",
        ),
        (("resnet18", (32, 32), 10), r"in_shape must be \(C, H, W\) for resnet18, got \(32, 32\)"),
        (("mlp", (3, 0), 10), r"in_shape must be positive sizes, got \(3, 0\)"),
        (("mlp", (), 10), r"in_shape must be positive sizes, got \(\)"),
        (("mlp", (3,), 0), "num_outputs must be at least 1, got 0"),
    ],
)
def test_refusals(arguments: tuple[str, tuple[int, ...], int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(*arguments)


def test_options_that_do_not_apply_are_refused() -> None:
    with pytest.raises(ValueError, match="stem must be 'small' or 'imagenet', got 'big'"):
        build("resnet18", (3, 32, 32), 10, stem="big")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"stem is for resnet18, .*got 'small' for mlp"):
        build("mlp", (3,), 10, stem="small")
    with pytest.raises(ValueError, match=r"hidden is for mlp, got \[3\] for linear"):
        build("linear", (3,), 10, hidden=[3])
    with pytest.raises(ValueError, match=r"hidden must be one or more positive widths, got \[\]"):
        build("mlp", (3,), 10, hidden=[])
