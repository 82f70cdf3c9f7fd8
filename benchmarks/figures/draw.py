"""Figures like the paper's from the runs that are there, and a page of claims."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.figures import twins
from benchmarks.figures.claims import claims_table, edges_list, ends_table, missing_list, point_text
from benchmarks.figures.compare import path
from benchmarks.figures.plan import BUDGET, FIGURE1
from benchmarks.figures.runs import Row
from benchmarks.figures.sets import SETS
from benchmarks.figures.shared import METHODS, V3_BY_N
from benchmarks.figures.small import FREE as FREE_SMALL
from benchmarks.figures.small import PAYS as PAYS_SMALL
from benchmarks.figures.studies import TUNING_SEED, Progress, Study
from fcco.lab.figure import Panel, draw

LABELS = {
    "samples": "samples drawn",
    "oracle": "oracle calls: values of g and Jacobians, per sample",
    "seconds": "seconds in steps, with other runs side by side",
    "alone": "seconds in steps, by the time of a step with nothing beside it",
    "step": "iterations",
    "process": "seconds of the process in steps, one core of a CPU",
}
#: Labels of the small studies -> the method in whose colours they are drawn.
COLOURS = {
    V3_BY_N: "msvr-v3",
    "sox nesterov": "variant-v1",
    "sox adam": "variant-v2",
    "sox nadam": "variant-v3",
    "msvr-v2 scaled": "msvr-v2",
}


#: Sizes of the small twins -> likewise; a size keeps its colour where it is tuned.
SIZE_COLOURS = {
    "B1 = 2": "variant-v1",
    "B1 = 5": "sox",
    "B1 = 9": "msvr-v2",
    "B1 = 2, tuned": "msvr-v1",
    "B1 = 9, tuned": "variant-v3",
    "B2 = 32": "variant-v1",
    "B2 = 64": "sox",
    "B2 = 128": "msvr-v2",
}


@dataclass(frozen=True)
class Curve:
    """A study drawn in a panel under a label."""

    label: str
    study: str


@dataclass(frozen=True)
class Layout:
    """A figure: title, panels with their curves, and what they are drawn against."""

    name: str
    title: str
    panels: tuple[tuple[str, tuple[Curve, ...]], ...]
    axes: tuple[str, ...]


def layouts(studies: Sequence[Study]) -> list[Layout]:
    """Every figure."""
    datasets = dict.fromkeys((*FIGURE1, *(s.panel for s in studies if s.figure == "figure1")))
    costs = ("samples", "oracle", "seconds")
    return [
        Layout("figure1", "Figure 1: multi-task AUC", tuple(_methods(f"figure1/{d}", d) for d in datasets), costs),
        Layout(
            "figure2",
            "Figure 2: MSVR against its Variants",
            tuple(_variants("figure1", "figure2", "cifar100")),
            ("samples", "oracle"),
        ),
        Layout("figure3", "Figure 3: networks", tuple(_networks()), ("samples", "oracle")),
        Layout("figure4", "Figure 4: blocks per step", tuple(_sizes("figure4", "B1", (2, 5, 9))), ("step",)),
        Layout("figure5", "Figure 5: samples per block", tuple(_sizes("figure5", "B2", (32, 64, 128))), ("step",)),
        Layout("stems", "Two stems on CIFAR-10", tuple(_stems()), ("samples",)),
        Layout("free", "Freely tuned", tuple(_by_panel(studies, "free")), costs),
        Layout("pays", "Where does variance reduction pay?", tuple(_by_panel(studies, "pays")), ("samples", "oracle")),
        Layout(
            PAYS_SMALL,
            "Where does variance reduction pay? On a CPU",
            tuple(_by_panel(studies, PAYS_SMALL)),
            ("samples", "oracle"),
        ),
        Layout(FREE_SMALL, "Freely tuned, on a CPU", tuple(_by_panel(studies, FREE_SMALL)), costs),
        *_twin_layouts(),
    ]


def _twin_layouts() -> Iterator[Layout]:
    """The same figures, small."""
    first, second, third, fourth, fifth = twins.FIGURES
    small = ("samples", "oracle")
    panels = [_methods(f"{first}/{dataset}", dataset) for dataset in twins.DATASETS]
    yield Layout(first, "Figure 1, small: multi-task AUC", tuple(panels), small)
    panels = [panel for dataset in twins.ABLATED for panel in _variants(first, second, dataset)]
    yield Layout(second, "Figure 2, small: MSVR against its Variants", tuple(panels), small)
    panels = [_methods(f"{first}/svhn", "svhn: MLP 128")]
    panels += [_methods(f"{third}/{label}", f"svhn: {label}") for label in twins.NETWORKS]
    yield Layout(third, "Figure 3, small: networks", tuple(panels), small)
    sizes = [twins.sized(method) for method in METHODS[1:]]
    for place, (name, title) in enumerate(((fourth, "blocks per step"), (fifth, "samples per block"))):
        panels = [_curves(f"fashion-mnist: {m}", found[place]) for m, found in zip(METHODS[1:], sizes, strict=True)]
        if name == fourth:
            panels = [(title, (*curves, *_tuned(curves))) for title, curves in panels]
        number = name[-1]
        yield Layout(name, f"Figure {number}, small: {title}", tuple(panels), ("step", "samples"))


def _tuned(curves: Sequence[Curve]) -> list[Curve]:
    """The same sizes with rates of their own, as far as the plan has them."""
    return [Curve(f"{curve.label}, tuned", f"{curve.study}, tuned") for curve in curves]


def _curves(title: str, names: Mapping[str, str]) -> tuple[str, tuple[Curve, ...]]:
    """Label -> study."""
    return title, tuple(Curve(label, study) for label, study in names.items())


def _methods(prefix: str, title: str) -> tuple[str, tuple[Curve, ...]]:
    return title, tuple(Curve(method, f"{prefix}/{method}") for method in (*METHODS, V3_BY_N))


def _variants(originals: str, variants: str, dataset: str) -> Iterator[tuple[str, tuple[Curve, ...]]]:
    for number in ("v1", "v2", "v3"):
        original = Curve(f"msvr-{number}", f"{originals}/{dataset}/msvr-{number}")
        variant = Curve(f"variant-{number}", f"{variants}/{dataset}/variant-{number}")
        yield f"{dataset}: {number}", (original, variant)


def _networks() -> Iterator[tuple[str, tuple[Curve, ...]]]:
    yield _methods("figure1/svhn", "svhn: resnet18")
    for model in ("resnet34", "densenet121"):
        yield _methods(f"figure3/{model}", f"svhn: {model}")


def _sizes(figure: str, name: str, values: tuple[int, ...]) -> Iterator[tuple[str, tuple[Curve, ...]]]:
    for method in METHODS[1:]:
        curves = []
        for value in values:
            label = f"{name} = {value}"
            study = f"{figure}/{method}/{label}"
            if label in ("B1 = 5", "B2 = 128"):
                study = f"figure1/fashion-mnist/{method}"
            curves.append(Curve(label, study))
        yield f"fashion-mnist: {method}", tuple(curves)


def _stems() -> Iterator[tuple[str, tuple[Curve, ...]]]:
    yield _methods("figure1/cifar10", "cifar10: torchvision's stem")
    yield _methods("stems/cifar10", "cifar10: stem for small images")


def _by_panel(studies: Sequence[Study], figure: str) -> Iterator[tuple[str, tuple[Curve, ...]]]:
    own = [study for study in studies if study.figure == figure]
    for panel in dict.fromkeys(study.panel for study in own):
        yield panel, tuple(Curve(study.label, study.name) for study in own if study.panel == panel)


def draw_all(studies: Sequence[Study], everything: Sequence[Study], rows: Mapping[str, Row], out: Path) -> list[Path]:
    """Write every figure that has a curve, and claims.md."""
    progress = Progress(everything, rows)
    by_name = {study.name: study for study in everything}
    figures = {study.figure for study in studies}
    written = []
    for layout in layouts(everything):
        if layout.name not in figures:
            continue
        for axis in layout.axes:
            target = out / f"{layout.name}-{axis}.png"
            x = axis
            if x == "seconds" and _all_timed(layout, by_name, progress):
                x = "alone"
            if _draw_one(layout, x, by_name, progress, target):
                written.append(target)
    page = out / "claims.md"
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(claims_page(studies, progress), encoding="utf-8")
    return [*written, page]


def _all_timed(layout: Layout, studies: Mapping[str, Study], progress: Progress) -> bool:
    """Whether every curve of a figure has the times of steps with nothing beside them."""
    for _, curves in layout.panels:
        for curve in curves:
            if curve.study not in studies:
                continue
            if any("alone" not in row["curve"] for row in progress.reported(studies[curve.study])):
                return False
    return True


def _draw_one(layout: Layout, x: str, studies: Mapping[str, Study], progress: Progress, target: Path) -> bool:
    panels = []
    wanted = 0
    drawn = 0
    if not _has_own_runs(layout, studies, progress):
        return False
    for title, curves in layout.panels:
        known = [curve for curve in curves if curve.study in studies]
        wanted += len(known)
        panel = _panel(title, known, x, studies, progress)
        drawn += sum(bool(progress.reported(studies[curve.study])) for curve in known)
        if panel is not None:
            panels.append(panel)
    if not panels:
        return False
    note = _note(layout, studies, drawn, wanted)
    label = LABELS[x]
    if x == "seconds" and layout.name == FREE_SMALL:
        label = LABELS["process"]
    draw(target, panels, x="x", x_label=label, title=layout.title, note=note)
    return True


def _has_own_runs(layout: Layout, studies: Mapping[str, Study], progress: Progress) -> bool:
    """Whether there is more to show than the curves that a figure borrows from another."""
    return any(study.figure == layout.name and progress.reported(study) for study in studies.values())


def _panel(
    title: str, curves: Sequence[Curve], x: str, studies: Mapping[str, Study], progress: Progress
) -> Panel | None:
    runs = {}
    drawn_as = {}
    label_of_y = "F(w)"
    dataset = ""
    for curve in curves:
        study = studies[curve.study]
        dataset = study.base.config.dataset
        reported = progress.reported(study)
        rows = [row for row in reported if row["status"] == "finished"]
        if not rows:
            continue
        label = f"{curve.label} ({_short_point(progress, study)}{_seeds(study, len(rows), len(reported))})"
        runs[label] = [_points(row, _column(x, curve)) for row in rows]
        if curve.label in METHODS or curve.label.startswith("variant"):
            drawn_as[label] = curve.label
        elif study.figure in (PAYS_SMALL, FREE_SMALL):
            drawn_as[label] = COLOURS[curve.label]
        elif study.figure in (twins.FIGURE4, twins.FIGURE5):
            drawn_as[label] = SIZE_COLOURS[curve.label]
        if rows[0].get("optimum") is not None:
            label_of_y = "F(w) - min F"
    if not runs:
        return None
    note = SETS[dataset].note
    if note:
        title = f"{title}\n({note})"
    gone = [curve.label for curve in curves if _all_diverged(progress.reported(studies[curve.study]))]
    if gone:
        title = f"{title}\n{', '.join(gone)}: every seed diverged"
    return Panel(title, runs, drawn_as, y_label=label_of_y)


def _column(x: str, curve: Curve) -> str:
    """MSVR-v3 charged n per pass counts by another column."""
    if curve.label == V3_BY_N:
        return {"samples": "charged_n", "oracle": "oracle_n"}.get(x, x)
    return x


def _points(row: Row, x: str) -> list[dict[str, float | None]]:
    return [{"x": place, "objective": f} for place, f in path(row, x)]


def _short_point(progress: Progress, study: Study) -> str:
    short = {"alpha": "a", "beta": "b", "weight_decay": "wd", "optimizer": "", "schedule": "", "nesterov": "n"}
    parts = []
    for name, value in progress.best(study) or ():
        if value is None or value == "constant":
            continue
        parts.append(f"{short.get(name, name)} {value}".strip())
    return " ".join(parts)


def _all_diverged(rows: Sequence[Row]) -> bool:
    return bool(rows) and all(row["status"] == "diverged" for row in rows)


def _seeds(study: Study, count: int, reported: int) -> str:
    if count == len(study.seeds):
        return ""
    if reported == len(study.seeds):
        return f"; {reported - count} of {reported} seeds diverged"
    return f"; {count} of {len(study.seeds)} seeds"


PROTOCOL = (
    "SHORTENED: {budget}, the same for all methods. Tuned per method {tuned}, by successive halving at seed {tuning_seed}, by F at the "
    "end; mean ± one standard deviation over {seeds} other seeds."
)
DRAWN = (
    "The curves show F on a fixed choice of 5,000 training images (all of STL-10), in training mode over batches composed as in "
    "training; c = 1, half of a task's samples are positives, SGD with constant step size unless it says otherwise, TF32, no "
    "augmentation. I = m n/(B1 B2); a full pass of v3 is charged m n samples as the paper counts, or n; composed as in training "
    "it costs about 2.2 n m/B1 evaluations here."
)
BUDGETS = f"{BUDGET / 1e6:g} million samples per run (CIFAR-100: 5 million)"
PAPERS_GRID = "on the paper's grid"
SIZES = (
    "With BatchNorm F is a function of how batches are composed: each curve's F is that of its own batches; claims.md has all in "
    f"evaluation mode, too. {DRAWN}"
)
TWIN_BUDGET = "120,000 samples per run (CIFAR-100: 1.2 million)"
TWIN_STEPS = f"{twins.SIZED_STEPS} steps per run"
TWIN_GRID = "over 36 points (SVHN, STL-10, MNIST: over CIFAR-10's eight best)"
TWIN_MIDDLE = "at (B1, B2) = (5, 64) over six points (the best of 36 at (5, 32))"
TWIN_COMMON = (
    "On a CPU, on whitened principal components of the first 2,000 images; F on all of them. MLP 128 (one hidden layer) where no other is "
    "named, no BatchNorm, SGD with constant step size, float32, c = 1, half of a task's samples are positives. I = m n/(B1 B2)."
)
TWIN = (
    f"{TWIN_COMMON} (B1, B2) = (5, 32), CIFAR-100: (50, 16). A full pass of v3 is charged m n samples as the paper counts, or n: level "
    "while it is charged."
)
TWIN_SIZES = f"{TWIN_COMMON} Every size with the rates of the middle one, where it is not said to be tuned (over 36 points). A full pass of v3 is charged m n samples."
#: Figure -> budget, what was searched, and what besides.
NOTES = {
    "figure1": (BUDGETS, PAPERS_GRID, DRAWN),
    "figure2": (BUDGETS, PAPERS_GRID, DRAWN),
    "figure3": (BUDGETS, "over the eight best points of ResNet18 (that one on the paper's grid)", DRAWN),
    "figure4": ("equal steps", "at (B1, B2) = (5, 128) on the paper's grid", SIZES),
    "figure5": ("equal steps", "at (B1, B2) = (5, 128) on the paper's grid", SIZES),
    "stems": (BUDGETS, "over the eight best points of torchvision's stem (that one on the paper's grid)", DRAWN),
    "free": (
        BUDGETS,
        "over 36 random points of a wide space (optimizer, schedule, rates, lag, clipping, gamma, zeta)",
        DRAWN,
    ),
    "pays": (
        "2,000 steps per run",
        "over 45 points",
        "An MLP (256, 256) without BatchNorm, F on 5,000 training images; 'late': after 2,000 steps of SOX at lr 0.1.",
    ),
    PAYS_SMALL: (
        "1,000 steps per run of the MLPs, 300,000 samples per run of linear scores",
        "over 12 points (36 for linear scores)",
        "On a CPU, on whitened principal components of the images. MLP (256, 256) without BatchNorm, B2 = 32, float32, F on 5,000 "
        "training examples; 'late': after 2,000 steps of SOX at lr 0.1. Linear scores: (B1, B2) = (2, 32), "
        "double precision, F on all training data less its known minimum; v3 takes 2,400 steps and a pass every 100, the others "
        "4,700; drawn with n per pass.",
    ),
    FREE_SMALL: (
        "1,000 steps per run",
        "over 12 random points of its own space (rates, lag, schedule; v2 also gamma and zeta)",
        "On a CPU, on whitened principal components of the images. MLP (256, 256) without BatchNorm, (B1, B2) = (5, 32), float32, "
        "F on 5,000 training examples. Seconds are those of the process on one core, whatever ran beside it.",
    ),
    twins.FIGURE1: (TWIN_BUDGET, TWIN_GRID, TWIN),
    twins.FIGURE2: (TWIN_BUDGET, "over 36 points", TWIN),
    twins.FIGURE3: (
        TWIN_BUDGET,
        "over the eight best points of the MLP 128 (that one over CIFAR-10's; MLP 512 over 36 points)",
        TWIN,
    ),
    twins.FIGURE4: (TWIN_STEPS, TWIN_MIDDLE, f"B2 = 64. {TWIN_SIZES}"),
    twins.FIGURE5: (TWIN_STEPS, TWIN_MIDDLE, f"B1 = 5. {TWIN_SIZES}"),
}


def _note(layout: Layout, studies: Mapping[str, Study], drawn: int, wanted: int) -> str:
    own = [study for study in studies.values() if study.figure == layout.name]
    budget, tuned, more = NOTES[layout.name]
    if any(study.base.config.hidden == (32,) for study in own):
        budget = "QUICK RUN, not the paper's protocol: a small MLP, a tiny grid, few steps"
    seeds = " or ".join(str(count) for count in sorted({len(study.seeds) for study in own}))
    text = PROTOCOL.format(budget=budget, tuned=tuned, tuning_seed=TUNING_SEED, seeds=seeds)
    text = f"{text} {more}"
    if drawn < wanted:
        text += f"\nNOT COMPLETE: {drawn} of {wanted} curves have runs."
    return text


def claims_page(studies: Sequence[Study], progress: Progress) -> str:
    """Markdown: claims, ends of curves, what is missing."""
    return "\n\n".join(
        [
            "# Claims, by the runs that are there",
            "F of the first over F of the second at equal cost (the largest that all runs reach), geometric mean over paired "
            "seeds with the 95 % interval by Student's t. *Holds* (does not hold): the interval lies below (above) 1; close: within a "
            "tenth. The last column is the share of that cost at which the first has reached the second's F. Claims marked (ours) "
            "are not the paper's.",
            claims_table(studies, progress),
            "## Where every curve ended",
            ends_table(studies, progress),
            "## Choices at an edge of the learning rates",
            edges_list(studies, progress),
            "## Not there yet",
            missing_list(studies, progress),
            "",
        ]
    )


__all__ = ["claims_page", "draw_all", "layouts", "point_text"]
