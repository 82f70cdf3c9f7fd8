"""The paper's claims, one by one, with verdicts from the runs that are there; and a table of every curve's end."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.figures import twins
from benchmarks.figures.compare import Comparison, compare, verdict
from benchmarks.figures.plan import FIGURE1, FREE
from benchmarks.figures.runs import Row
from benchmarks.figures.shared import METHODS, V3_BY_N
from benchmarks.figures.small import FREE as FREE_SMALL
from benchmarks.figures.small import FREE_FAMILIES
from benchmarks.figures.small import PAYS as PAYS_SMALL
from benchmarks.figures.studies import Point, Progress, Study
from fcco.lab.figure import short

#: What stands behind a number in the table.
UNITS = {
    "alone": "seconds (steps timed alone)",
    "seconds": "seconds (side by side)",
    "process": "seconds of the process on a CPU",
    "oracle": "oracle calls",
    "step": "steps",
}


@dataclass(frozen=True)
class Claim:
    """F of ``first`` against F of ``second``.

    Args:
        text: the claim; ``where``: data set, network.
        first, second: names of studies.
        kind: ``better`` or ``close``.
        x: what is equal; ``first_x``: what the first counts it by, where that is another.
    """

    text: str
    where: str
    first: str
    second: str
    kind: str = "better"
    x: str = "samples"
    first_x: str | None = None


def all_claims(studies: Sequence[Study]) -> list[Claim]:
    """Those whose studies are in the plan."""
    names = {study.name for study in studies}
    found = [*_figure1(), *_figure2(), *_figure3(), *_sizes(), *_stems(), *_free(), *_pays(studies), *_twins()]
    return [claim for claim in found if claim.first in names and claim.second in names]


def _of_methods(prefix: str, where: str, seventh: bool) -> Iterator[Claim]:
    """What the paper says of its four methods on one problem."""
    sox, v1, v2, v3 = (f"{prefix}/{method}" for method in METHODS)
    if seventh:
        yield Claim("v1 is better than SOX", where, v1, sox)
    else:
        yield Claim("v1 is close to SOX", where, v1, sox, "close")
    yield Claim("v2 is faster than SOX", where, v2, sox)
    yield Claim("v2 is faster than v1", where, v2, v1)
    yield Claim("v3 is fastest (against v2; m n per pass)", where, v3, v2)
    yield Claim("v3 is faster than SOX (m n per pass)", where, v3, sox)


def _by_n(prefix: str, where: str) -> Iterator[Claim]:
    """What the paper says of v3, with n samples per full pass."""
    by_n = f"{prefix}/{V3_BY_N}"
    yield Claim("v3 is fastest (against v2; n per pass)", where, by_n, f"{prefix}/msvr-v2", first_x="charged_n")
    yield Claim("v3 is faster than SOX (n per pass)", where, by_n, f"{prefix}/sox", first_x="charged_n")


def _at_equal(x: str, text: str, prefix: str, where: str) -> Iterator[Claim]:
    for method in METHODS[1:]:
        claim = f"(ours) {method} is better than SOX at equal {text}"
        yield Claim(claim, where, f"{prefix}/{method}", f"{prefix}/sox", x=x)


def _figure1() -> Iterator[Claim]:
    for dataset in FIGURE1:
        prefix = f"figure1/{dataset}"
        yield from _of_methods(prefix, dataset, dataset == "cifar100")
        yield from _by_n(prefix, dataset)
        yield from _at_equal("oracle", "oracle calls", prefix, dataset)
        yield from _at_equal("seconds", "seconds", prefix, dataset)


def _against_variants(originals: str, variants: str, where: str) -> Iterator[Claim]:
    for number in ("v1", "v2", "v3"):
        text = f"MSVR-{number} is better than Variant-{number}"
        yield Claim(text, where, f"{originals}/msvr-{number}", f"{variants}/variant-{number}")


def _figure2() -> Iterator[Claim]:
    yield from _against_variants("figure1/cifar100", "figure2/cifar100", "cifar100")


def _figure3() -> Iterator[Claim]:
    for model in ("resnet34", "densenet121"):
        yield from _of_methods(f"figure3/{model}", f"{model} on svhn", False)


def _sizes() -> Iterator[Claim]:
    """Per iteration, larger batches are better."""
    for method in METHODS[1:]:
        usual = f"figure1/fashion-mnist/{method}"
        where = f"{method} on fashion-mnist"
        blocks = {f"B1 = {size}": f"figure4/{method}/B1 = {size}" for size in (2, 5, 9)} | {"B1 = 5": usual}
        samples = {f"B2 = {size}": f"figure5/{method}/B2 = {size}" for size in (32, 64, 128)} | {"B2 = 128": usual}
        for names in (blocks, samples):
            small, middle, large = names
            for more, less in ((middle, small), (large, middle)):
                yield Claim(f"{more} is better than {less} per iteration", where, names[more], names[less], x="step")


def _twins() -> Iterator[Claim]:
    """The same claims on the small twins of the figures."""
    for dataset in twins.DATASETS:
        prefix = f"{twins.FIGURE1}/{dataset}"
        where = f"{dataset}, small"
        yield from _of_methods(prefix, where, dataset == "cifar100")
        yield from _by_n(prefix, where)
        yield from _at_equal("oracle", "oracle calls", prefix, where)
        text = "(ours) msvr-v3 is better than SOX at equal oracle calls (n per pass)"
        yield Claim(text, where, f"{prefix}/{V3_BY_N}", f"{prefix}/sox", x="oracle", first_x="oracle_n")
    for dataset in twins.ABLATED:
        yield from _against_variants(f"{twins.FIGURE1}/{dataset}", f"{twins.FIGURE2}/{dataset}", f"{dataset}, small")
    for label in twins.NETWORKS:
        yield from _of_methods(f"{twins.FIGURE3}/{label}", f"{label} on svhn, small", False)
    for method in METHODS:
        yield from _small_sizes(method)
        yield from _tuned_sizes(method)


def _small_sizes(method: str) -> Iterator[Claim]:
    """Each size against each smaller one, per iteration as the paper says of MSVR, and per sample."""
    where = f"{method} on fashion-mnist, small"
    ours = ""
    if method == METHODS[0]:
        ours = "(ours) "
    for names in twins.sized(method):
        for less, more in itertools.combinations(names, 2):
            text = f"{ours}{more} is better than {less} per iteration"
            yield Claim(text, where, names[more], names[less], x="step")
            yield Claim(f"(ours) {more} is better than {less} per sample", where, names[more], names[less])


def _tuned_sizes(method: str) -> Iterator[Claim]:
    """Figure 4 with rates of their own for all three sizes."""
    where = f"{method} on fashion-mnist, small"
    names = {label: f"{name}, tuned" for label, name in twins.sized(method)[0].items()}
    names["B1 = 5"] = names["B1 = 5"].removesuffix(", tuned")
    for less, more in itertools.combinations(names, 2):
        text = f"(ours) {more} is better than {less} per iteration, each tuned"
        yield Claim(text, where, names[more], names[less], x="step")


def _stems() -> Iterator[Claim]:
    yield from _of_methods("stems/cifar10", "cifar10, small stem", False)


def _free() -> Iterator[Claim]:
    for prefix, labels in (("free/cifar10", FREE), (f"{FREE_SMALL}/cifar10-pca64", FREE_FAMILIES)):
        where = prefix.split("/")[1]
        for label in labels:
            if label == "sox":
                continue
            for x in ("samples", "oracle", "seconds"):
                text = f"(ours) {label} is better than SOX at equal {x}, all freely tuned"
                yield Claim(text, where, f"{prefix}/{label}", f"{prefix}/sox", x=x)


def _pays(studies: Sequence[Study]) -> Iterator[Claim]:
    panels = dict.fromkeys((s.figure, s.panel) for s in studies if s.figure in ("pays", PAYS_SMALL))
    for figure, panel in panels:
        prefix = f"{figure}/{panel}"
        for method in ("sox nesterov", *METHODS[1:]):
            names = (f"{prefix}/{method}", f"{prefix}/sox")
            yield Claim(f"(ours) {method} is better than SOX at equal samples", panel, *names)
            yield Claim(f"(ours) {method} is better than SOX at equal oracle calls", panel, *names, x="oracle")
        names = (f"{prefix}/{V3_BY_N}", f"{prefix}/sox")
        yield Claim("(ours) msvr-v3 is better than SOX (n per pass)", panel, *names, first_x="charged_n")
        yield Claim("(ours) msvr-v3 is better than SOX (m n per pass)", panel, *names)
        text = "(ours) msvr-v3 is better than SOX at equal oracle calls (n per pass)"
        yield Claim(text, panel, *names, x="oracle", first_x="oracle_n")


def claims_table(studies: Sequence[Study], progress: Progress) -> str:
    """Markdown: claim, verdict, numbers."""
    by_name = {study.name: study for study in studies}
    lines = [
        "| claim | where | verdict | F over F, 95 % interval | pairs of seeds | at | cost to the other's F |",
        "|---|---|---|---|---|---|---|",
    ]
    for claim in all_claims(studies):
        first = progress.reported(by_name[claim.first])
        second = progress.reported(by_name[claim.second])
        x = claim.x
        if x == "seconds" and all("alone" in row["curve"] for row in (*first, *second)):
            x = "alone"
        found = compare(first, second, claim.first_x or x, x)
        unit = x
        if x == "seconds" and all(_on_cpu(row) for row in (*first, *second)):
            unit = "process"
        cells = [claim.text, claim.where, verdict(found, claim.kind), *_numbers(found, UNITS.get(unit, unit))]
        if found is None:
            cells[2:5] = _without_pairs(first, second) or cells[2:5]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _without_pairs(first: Sequence[Row], second: Sequence[Row]) -> list[str]:
    """Verdict, numbers and pairs where there are runs, but no seed of which both ended; nothing where there are none."""
    if not first or not second:
        return []
    ended = [any(row["status"] == "finished" for row in rows) for rows in (first, second)]
    if all(ended):
        return ["not decidable", "no seed ended in both", "0"]
    if ended[0]:
        return ["holds", f"the second diverged, {len(second)} of {len(second)} seeds", "0"]
    if ended[1]:
        return ["does not hold", f"the first diverged, {len(first)} of {len(first)} seeds", "0"]
    return ["not decidable", "both diverged", "0"]


def _on_cpu(row: Row) -> bool:
    device: str = row.get("environment", {}).get("device", "")
    return device == "cpu"


def _numbers(found: Comparison | None, x: str) -> list[str]:
    if found is None:
        return ["no runs", "0", "", ""]
    text = _ratio(found.ratio)
    if found.low is not None and found.high is not None:
        text += f" ({_ratio(found.low)} to {_ratio(found.high)})"
    pairs = str(found.pairs)
    if found.diverged:
        pairs += f", {found.diverged} diverged"
    cost = "not reached"
    if found.cost is not None:
        cost = f"{found.cost:.2f}"
    return [text, pairs, f"{short(found.place, 4)} {x}", cost]


def _ratio(value: float) -> str:
    """Three decimals; two digits where those would be zeros."""
    if value < 0.01:
        return f"{value:.1e}"
    return f"{value:.3f}"


def ends_table(studies: Sequence[Study], progress: Progress) -> str:
    """Markdown: every curve's rates and where it ended."""
    lines = [
        "| study | point | seeds | F | F, all training data | F, evaluation mode | test macro AUROC | u's error | ms per step | steps |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for study in studies:
        rows = progress.reported(study)
        if not rows:
            continue
        finished = [row for row in rows if row["status"] == "finished"]
        seeds = f"{len(finished)} of {len(study.seeds)}"
        if len(finished) < len(rows):
            seeds += f", {len(rows) - len(finished)} diverged"
        cells = [study.name, point_text(progress, study), seeds]
        cells += [_spread(finished, name, 4) for name in ("f", "f_whole", "f_eval", "auroc")]
        cells += [_tracking(finished), _step_time(finished), str(study.base.steps)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def point_text(progress: Progress, study: Study) -> str:
    """The tuned point in short."""
    best = progress.best(study)
    if best is None:
        return ""
    return ", ".join(f"{name} {value}" for name, value in best if value is not None)


def _spread(rows: Sequence[Mapping[str, object]], name: str, digits: int) -> str:
    values = [float(row[name]) for row in rows if row.get(name) is not None]  # type: ignore[arg-type]
    if not values:
        return ""
    text = f"{statistics.fmean(values):.{digits}g}"
    if len(values) > 1:
        text += f" ± {statistics.stdev(values):.2g}"
    return text


def _tracking(rows: Sequence[Row]) -> str:
    """How far u is from g at the end, the root mean square; baselines have no u."""
    return _spread([{"u_error": row["curve"].get("u_error", [None])[-1]} for row in rows], "u_error", 3)


def _step_time(rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    times = [1000 * row["curve"]["seconds"][-1] / row["curve"]["step"][-1] for row in rows]
    return f"{statistics.median(times):.1f} ({rows[0]['workers']} side by side)"


def edges_list(studies: Sequence[Study], progress: Progress) -> str:
    """Tuned points at an end of the learning rates that were searched: a choice that the grid may have cut off.

    A study that borrows its points has the grid that they come from.
    """
    grids: dict[str, tuple[Point, ...]] = {}
    lines = []
    for study in studies:
        grids[study.name] = study.grid or grids.get(study.from_study or "", ())
        rates = sorted({float(str(dict(point)["lr"])) for point in grids[study.name] if "lr" in dict(point)})
        best = progress.best(study)
        if best is None or not study.rungs or len(rates) < 2:
            continue
        lr = dict(best).get("lr")
        for end, text in ((rates[0], "smallest"), (rates[-1], "largest")):
            if lr == end:
                lines.append(f"- {study.name}: lr {lr}, the {text} of {len(rates)}")
    if not lines:
        return "None."
    return "\n".join(lines)


def missing_list(studies: Sequence[Study], progress: Progress) -> str:
    """What is not there yet, study by study."""
    lines = []
    for study in studies:
        done, runs = progress.counts(study)
        if done == runs:
            continue
        seeds = len(progress.reported(study))
        text = "not begun"
        if done:
            text = f"{done} of {runs} runs"
        lines.append(f"- {study.name}: {text}; {seeds} of {len(study.seeds)} reported seeds")
    if not lines:
        return "Nothing."
    return "\n".join(lines)
