"""What a page says was measured is what the log in results/ says: a table cannot drift from its runs.

Every table with decimals in it is named here, with the log that it is checked against; numbers in the text beside the
tables are checked against the same logs, or computed here from numbers that stand there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator

import pytest

from tests.helpers.page_numbers import Table, cells, decimals, numbers, prose, read, rounds, tables, value
from tests.helpers.pages import DOCS, pages

ROOT = DOCS.parent
RESULTS = ROOT / "results"
Check = Callable[[Table], list[str]]

pytestmark = pytest.mark.skipif(not RESULTS.is_dir(), reason="an sdist has no results")


def log(name: str) -> str:
    return read(RESULTS / name)


def lines_of(*names: str) -> list[str]:
    return [line for name in names for line in log(name).splitlines()]


def absent(shown: list[str], lines: list[str]) -> list[str]:
    """The numbers that no number of the lines rounds to."""
    known = {number for line in lines for number in numbers(line)}
    return [number for number in shown if not any(rounds(exact, number) for exact in known)]


# ---------------------------------------------------------------- ways to check a table


def same_rows(name: str) -> Check:
    """Every row stands in the log, cell by cell."""

    def check(table: Table) -> list[str]:
        known = [cells(line) for line in lines_of(name) if line.startswith("|")]
        return [" | ".join(row) for row in [table.header, *table.rows] if row not in known]

    return check


def found_in(*names: str, where: Callable[[list[str]], str] = lambda row: "", columns: slice = slice(1, None)) -> Check:
    """Every decimal of a row stands in a line of the logs, one of those that match `where(row)`."""

    def check(table: Table) -> list[str]:
        wrong = []
        for row in table.rows:
            lines = [line for line in lines_of(*names) if re.search(where(row), line)]
            shown = decimals(" ; ".join(row[columns]))
            wrong += [f"{row[0]}: {number}" for number in absent(shown, lines)]
        return wrong

    return check


def block(text: str, title: str) -> list[str]:
    """The lines from the one with the title on, to the next title."""
    lines = text.splitlines()
    begin = next(number for number, line in enumerate(lines) if title in line)
    rest = lines[begin + 1 :]
    end = next((number for number, line in enumerate(rest) if line.startswith("ms per step")), len(rest))
    return rest[:end]


def printed_by_the_row(table: Table) -> list[str]:
    """Times and results of which no log is kept; each row has the command that prints them."""
    return [row[0] for row in table.rows if decimals(row[1]) and "`fcco" not in row[0]]


def no_measurement(table: Table) -> list[str]:
    """Its decimals are settings, constants or versions."""
    return []


# ---------------------------------------------------------------- tables that are written otherwise than their log


def noise(table: Table) -> list[str]:
    """The log has a row per setting and gradient, the page a row per gradient."""
    log_rows = {tuple(cells(line)[:2]): cells(line)[2:] for line in lines_of("memory/noise.md") if line.startswith("|")}
    wrong = []
    for row in table.rows:
        for place, setting in enumerate(["pauc-1.0", "pauc-0.1", "ap"]):
            if log_rows[setting, row[0]] != row[1 + 2 * place : 3 + 2 * place]:
                wrong.append(f"{row[0]}, {setting}")
    return wrong


CLASSES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


def rare_class(table: Table) -> list[str]:
    known = {}
    for row in [cells(line) for line in lines_of("cifar_rare/table.md") if line.startswith("|")]:
        if len(row) == 6:
            known[row[0], row[1]] = row[-1].split(" ± ")
    wrong = []
    for row in table.rows:
        number = "mean"
        if row[0] in CLASSES:
            number = str(CLASSES.index(row[0]))
        best = []
        for method, shown in zip(["SOX", "memory", "cross-entropy"], row[1:], strict=True):
            exact = known[number, method]
            best.append(float(exact[0]))
            parts = shown.strip("*").split(" ± ")
            if not all(rounds(one, other) for one, other in zip(exact, parts, strict=False)):
                wrong.append(f"{row[0]}, {method}")
        if "*" not in row[1 + best.index(max(best))] or sum("*" in cell for cell in row) != 1:
            wrong.append(f"{row[0]}: what is in bold")
    return wrong


def costs(table: Table) -> list[str]:
    """A row has the CPU's two times, the H200's two, and the state: MB, or GB."""
    known = {}
    for name in ("cpu", "h200"):
        for line in lines_of(f"memory/cost-{name}.txt"):
            if line.startswith("| 1e"):
                n, kind, *rest = cells(line)
                known[name, n.replace("e+0", "0^"), kind] = rest
    wrong = []
    for row in table.rows:
        cpu = known.get(("cpu", row[0], row[1]), ["", "", ""])
        device = known[("h200", row[0], row[1])]
        state = cpu[2]
        if "on the device" in row[6]:
            state = device[2]
        if "GB" in row[6]:
            state = str(float(state) / 1000)
        exact = [*cpu[:2], *device[:2], state]
        shown = [*row[2:6], row[6].split()[0]]
        for one, other in zip(exact, shown, strict=True):
            fits = one == other
            if numbers(one) and numbers(other):
                fits = rounds(one, other)
            if not fits:
                wrong.append(f"{row[0]}, {row[1]}: {other}, not {one}")
    return wrong


def sparse(table: Table) -> list[str]:
    names = {
        "exclusive-ors, first": "exclusive-0",
        "exclusive-ors, second": "exclusive-1",
        "products, first": "products-0",
        "products, second": "products-1",
        "a9a, whole": "a9a",
    }
    runs = {run["table"]: run for run in map(json.loads, lines_of("tables/sparse.jsonl"))}
    wrong = []
    for row in table.rows:
        run = runs[names[row[0]]]
        exact = [run["mlp_ap"], run["fit_ap"], run["mlp_cpu_seconds"], run["fit_cpu_seconds"]]
        shown = [row[1].strip("*"), row[2].strip("*"), *row[3].split(", ")]
        wrong += [f"{row[0]}: {b}, not {a}" for a, b in zip(exact, shown, strict=True) if not rounds(str(a), b)]
    return wrong


SECTIONS = ("small-image stem, bf16", "small-image stem, TF32", "torchvision's stem, bf16", "torchvision's stem, TF32")


def batch_norm(table: Table) -> list[str]:
    """The first row is what its test measures, the second is in the log."""
    found = json.loads(log("bench/batchnorm.json"))
    kinds = ("plain pass less the mean over draws", "composed pass less the mean over draws")
    exact = [found[kind] / found["size of g"] for kind in (*kinds, "standard error of the mean over draws")]
    return absent(decimals(" ; ".join(table.rows[1][1:])), [f"{100 * share:.6f}" for share in exact])


def settings_of_the_memory(table: Table) -> list[str]:
    """The last column quotes the ablation, but for a setting that images were best with."""
    text = " ; ".join(row[2] for row in table.rows).replace("0.75 was best", "").replace("Lambda 0.1", "")
    return absent(decimals(text), lines_of("memory/ablation.md"))


def captured_steps(table: Table) -> list[str]:
    """A row without a name goes on with the network of the one before; a name that says "the same" with its stem."""
    wrong = []
    section = ""
    for row in table.rows:
        if "small-image" in row[0]:
            section = SECTIONS[0]
        elif "torchvision" in row[0]:
            section = SECTIONS[2]
        elif "the same, TF32" in row[0]:
            section = section.replace("bf16", "TF32")
        elif "MLP" in row[0]:
            section = "MLP"
        known = block(log("bench/h200.txt"), section)
        wrong += [f"{section}, {row[3]}: {number}" for number in absent(decimals(" ; ".join(row[1:])), known)]
    return wrong


def captured_memory(table: Table) -> list[str]:
    wrong = []
    logs = {"ResNet18": "bench/h200_memory.txt", "average precision, MLP": "bench/h200_mlp.txt"}
    for row, section in zip(table.rows, logs, strict=True):
        known = block(log(logs[section]), section)
        wrong += [f"{row[0]}: {number}" for number in absent(decimals(" ; ".join(row[1:])), known)]
    return wrong


def aims(table: Table) -> list[str]:
    """The verdicts of the logs; two ratios of means are computed here."""
    means = {"1.182": 12.206 / 10.326, "1.772": 18.299 / 10.326}
    known = [*lines_of("bench/h200.txt", "bench/h200_memory.txt", "bench/h200_mlp.txt")]
    known += [f"{ratio:.6f}" for ratio in means.values()]
    return absent(decimals(" ; ".join(row[1] for row in table.rows)), known)


def cpu_steps(table: Table) -> list[str]:
    """Per problem a row of ratios, and one with each side's own draw."""
    rows = [line.split() for line in lines_of("bench/cpu_steps.txt")]
    known = {(" ".join(row[:3]), row[3]): row[4:] for row in rows if len(row) > 6 and row[1] == "x"}
    wrong = []
    problem = "64 x 20"
    for row in table.rows:
        if "640 x 784" in row[0]:
            problem = "640 x 784"
        steps = ["plain", "sox", "msvr-v1", "msvr-v2"]
        for step, cell in zip(steps, row[1:], strict=True):
            lines = [" ".join(known[problem, step])]
            if "operations" in row[0]:
                lines = [known["64 x 20", step][-1], known["64 x 20", step][-2]]
            shown = numbers(cell.split(" (")[0])
            wrong += [f"{row[0]}, {step}: {number}" for number in absent(shown, lines)]
    return wrong


def peers_named(row: list[str]) -> str:
    return "^ *" + re.escape(row[0]) + "  "


def peers_double(row: list[str]) -> str:
    return peers_named(row) + r".*float64"


#: A slope or a ratio with its interval, as the logs and the pages write it.
INTERVAL = re.compile(r"(-?\d+\.\d+) ?(?:\||;)? ?(?:\[(-?\d+\.\d+), (-?\d+\.\d+)\]|\((-?\d+\.\d+) to (-?\d+\.\d+)\))")


def intervals(text: str) -> Iterator[tuple[str, ...]]:
    for found in INTERVAL.finditer(text):
        yield tuple(part for part in found.groups() if part is not None)


def unknown_intervals(text: str, *names: str) -> list[str]:
    """The values with an interval that no line of the logs has, all three together."""
    known = [three for line in lines_of(*names) for three in intervals(line)]
    wrong = []
    for shown in intervals(text):
        if not any(all(map(rounds, exact, shown)) for exact in known):
            wrong.append(" ".join(shown))
    return wrong


def with_intervals(*names: str) -> Check:
    """Every value with an interval is in the logs."""

    def check(table: Table) -> list[str]:
        wrong = []
        for row in table.rows:
            for cell in row:
                wrong += [f"{row[0]}: {three}" for three in unknown_intervals(cell, *names)]
        return wrong

    return check


def word_counts(table: Table) -> list[str]:
    """Mean, lowest and highest over the seeds of each method."""
    found: dict[str, list[float]] = {}
    for line in lines_of("tables/words.jsonl"):
        row = json.loads(line)
        found.setdefault(row["method"], []).append(row["ap"])
    methods = ["RankingClassifier", "LogisticRegression", "MLPClassifier", "fcco.fit"]
    wrong = []
    for row, method in zip(table.rows, methods, strict=True):
        aps = found[method]
        known = [f"{mean(aps):.8f} ; {min(aps)} ; {max(aps)}"]
        wrong += [f"{method}: {number}" for number in absent(decimals(" ; ".join(row[1:])), known)]
    return wrong


#: Columns of the small twins' tables -> the place that claims.md names.
TWINS = {
    **{name: f"{name}, small" for name in ("cifar100", "cifar10", "fashion-mnist", "svhn", "stl10", "mnist")},
    **{name: f"{name} on svhn, small" for name in ("MLP 512", "MLP 128-128-128")},
    **{name: f"{name} on fashion-mnist, small" for name in ("msvr-v1", "msvr-v2", "msvr-v3")},
}
#: The paper says "close" of five sets and "better" of CIFAR-100.
V1_AGAINST_SOX = ("v1 is close to SOX", "v1 is better than SOX")


def twins(table: Table) -> list[str]:
    """A row per claim, a column per place; each cell is the verdict and the ratio of claims.md, word for word."""
    known = {tuple(cells(line)[:2]): cells(line) for line in lines_of("figures/claims.md") if line.startswith("|")}
    wrong = []
    for row in table.rows:
        texts: tuple[str, ...] = (row[0],)
        if row[0] == "v1 against SOX":
            texts = V1_AGAINST_SOX
        for title, cell in zip(table.header[1:], row[1:], strict=True):
            exact = next(known[text, TWINS[title]] for text in texts if (text, TWINS[title]) in known)
            if not cell.startswith(f"{exact[2]}: {exact[3]}"):
                wrong.append(f"{row[0]}, {title}: {cell}, not {exact[2]}: {exact[3]}")
    return wrong


RATES = ("rates/table.md", "rates/remarks/table.md")

#: Page, heading and place under that heading: how the table is checked.
CHECKS: dict[tuple[str, str, int], Check] = {
    ("captured.md", "Measured", 0): captured_steps,
    ("captured.md", "Measured", 1): captured_memory,
    ("captured.md", "Measured", 2): aims,
    ("captured.md", "On the CPU", 0): cpu_steps,
    ("choosing_an_objective.md", "Choosing an objective", 0): no_measurement,
    ("choosing_an_objective.md", "Measured by average precision? Minimise partial AUC", 0): found_in("memory/real.md"),
    ("errata.md", "Mended", 0): no_measurement,
    ("lab.md", "BatchNorm", 0): batch_norm,
    ("lab.md", "Measured", 0): printed_by_the_row,
    ("learning.md", "Tables, small images, features", 0): same_rows("learns/table.md"),
    ("memory.md", "When to use it", 0): no_measurement,  # it quotes docs/memory_log.md: tests/docs/test_pages.py
    ("memory.md", "Settings", 0): settings_of_the_memory,
    ("memory_log.md", "Noise of the gradient", 0): noise,
    ("memory_log.md", "Training objectives at equal samples", 0): same_rows("memory/table.md"),
    ("memory_log.md", "One thing changed at a time", 0): same_rows("memory/ablation.md"),
    ("memory_log.md", "Images: CIFAR-10 with a rare class", 0): no_measurement,
    ("memory_log.md", "Images: CIFAR-10 with a rare class", 1): rare_class,
    ("memory_log.md", "Tables, molecules, rankings, survival", 0): same_rows("memory/real.md"),
    ("memory_log.md", "What it costs", 0): costs,
    ("peers.md", "The same thing, where both define it", 0): found_in("peers/log.txt", where=peers_double),
    ("peers.md", "Time of a step", 0): found_in("peers/log.txt", where=peers_named),
    ("peers.md", "Hard inputs", 0): found_in("peers/log.txt", where=peers_named),
    ("reliability.md", "Side by side", 0): no_measurement,
    ("reliability.md", "Long runs", 0): same_rows("reliability/long_runs.txt"),
    ("results.md", "Protocol", 0): found_in("figures/README.md", columns=slice(3, None)),
    ("results.md", "Claim by claim, CIFAR-10", 0): with_intervals("figures/claims.md"),
    ("results.md", "Figure 1, small", 0): twins,
    ("results.md", "Figure 1, small", 1): twins,
    ("results.md", "Figure 2, small", 0): twins,
    ("results.md", "Figure 3, small", 0): twins,
    ("results.md", "Figures 4 and 5, small", 0): twins,
    ("results.md", "Where does variance reduction pay?", 0): with_intervals("figures/claims.md"),
    ("results.md", "Small problems on a CPU", 0): with_intervals("figures/claims.md"),
    ("results.md", "Small problems on a CPU", 1): with_intervals("figures/claims.md"),
    ("results.md", "Freely tuned, on a CPU", 0): with_intervals("figures/claims.md"),
    ("tables.md", "What happens to a column", 0): no_measurement,
    ("tables.md", "Why this one", 0): same_rows("tables/table.md"),
    ("tables.md", "Hundreds of rare 0/1 columns", 0): sparse,
    ("tables.md", "Sparse counts: a known weakness", 0): word_counts,
    ("theory.md", "Table 1, and what was found", 0): with_intervals(*RATES),
    ("theory.md", "What the paper says besides", 0): with_intervals(*RATES),
    ("theory.md", "v3's sizes", 0): with_intervals(*RATES),
    ("theory.md", "Tracking", 0): with_intervals(*RATES),
}


def measured_tables() -> Iterator[tuple[str, str, int, Table]]:
    """Every table with decimals in it, by page, heading and place; the arena's own tables are compared as a whole."""
    for page in pages():
        name = page.relative_to(DOCS).as_posix()
        places: dict[str, int] = {}
        for table in tables(page):
            place = places.get(table.heading, 0)
            places[table.heading] = place + 1
            if name != "arena.md" and any(decimals(cell) for row in table.rows for cell in row):
                yield name, table.heading, place, table


# Pages of numbers; settings and versions stand in tables elsewhere, too.
MEASURED = {page for page, _, _ in CHECKS}


def test_every_measured_table_is_checked() -> None:
    found = {(page, heading, place) for page, heading, place, _ in measured_tables() if page in MEASURED}
    assert found == set(CHECKS)


@pytest.mark.parametrize("where", CHECKS, ids=[f"{page}-{heading}-{place}" for page, heading, place in CHECKS])
def test_the_table_is_its_log(where: tuple[str, str, int]) -> None:
    table = next(table for *found, table in measured_tables() if tuple(found) == where)
    assert CHECKS[where](table) == []


def with_one_changed(table: Table) -> Iterator[Table]:
    """Copies of a table, each with another number in one place."""
    for row, row_cells in enumerate(table.rows):
        for column, cell in enumerate(row_cells):
            if decimals(cell):
                number = decimals(cell)[0]
                rows = [list(each) for each in table.rows]
                rows[row][column] = cell.replace(number, f"{value(number) * 1.37 + 7:.4f}")
                yield Table(table.heading, table.header, rows)


@pytest.mark.parametrize("where", CHECKS, ids=[f"{page}-{heading}-{place}" for page, heading, place in CHECKS])
def test_a_changed_number_is_found(where: tuple[str, str, int]) -> None:
    check = CHECKS[where]
    table = next(table for *found, table in measured_tables() if tuple(found) == where)
    if check not in (no_measurement, printed_by_the_row):
        assert any(check(changed) for changed in with_one_changed(table))


# ---------------------------------------------------------------- the arena, and who quotes it


def test_the_arena_s_page_has_the_table_of_its_runs() -> None:
    page = (DOCS / "arena.md").read_text()
    shown = re.search(r"<!-- tables begin -->\n(.*?)<!-- tables end -->", page, re.DOTALL)
    assert shown is not None
    assert shown.group(1).strip() == log("arena/table.md").strip()


def test_the_readme_quotes_the_arena() -> None:
    known = log("arena/table.md")
    table = next(table for table in tables(ROOT / "README.md") if "tuned plain" in table.header)
    plain, fitted = table.header.index("tuned plain"), table.header.index("`fcco.fit`")
    assert len(table.rows) > 3
    for row in table.rows:
        section = known.partition(f"### {row[0]}\n")[2].partition("###")[0]
        assert re.search(rf"\| plain \| \d+ \| {row[plain]} ", section), row[0]
        assert re.search(rf"\| fcco.fit \| \d+ \| {row[fitted]} ", section), row[0]


def test_what_the_front_pages_claim_is_in_the_logs() -> None:
    lines = lines_of("cifar_rare/table.md", "learns/table.md", "arena/image-table.md")
    for page in (ROOT / "README.md", DOCS / "index.md"):
        claimed = [number for number in decimals(prose(page)) if re.fullmatch(r"0\.\d{3}", number)]
        assert len(claimed) >= 4
        assert absent(claimed, lines) == []


# ---------------------------------------------------------------- the text beside the tables

LOGS: dict[str, tuple[str, ...]] = {
    "captured.md": ("bench/*.txt",),
    "choosing_a_method.md": ("memory/*.md", "memory/*.txt", "cifar_rare/*.md", "figures/*.md", "rates/**/table.md"),
    "choosing_an_objective.md": ("memory/*.md", "cifar_rare/*.md", "learns/table.md"),
    "learning.md": ("learns/table.md", "cifar_rare/*.md"),
    "memory.md": ("memory/*.md", "cifar_rare/*.md"),
    "memory_log.md": ("memory/*.md", "memory/*.txt", "cifar_rare/*.md", "bench/memory_labels.txt"),
    "peers.md": ("peers/log.txt",),
    "results.md": ("figures/*.md", "figures/*.txt"),
    "tables.md": ("tables/table.md", "tables/sparse.jsonl", "tables/gains.jsonl"),
    "theory.md": ("rates/**/table.md", "rates/why.txt"),
}

#: Decimals that are no measurement: settings, versions, tolerances, addresses.
NO_MEASUREMENT: dict[str, set[str]] = {
    "captured.md": {"2.11"},
    "choosing_a_method.md": {"1e-12"},
    "memory.md": {"1e-10", "1e10", "1511.06481", "2311.14468", "1708.07336", "2302.11062"},
    "memory_log.md": {"1.25e-4"},
    "peers.md": {"0.2"},
    "results.md": {"0.999"},
    "tables.md": {"0.25"},
    "theory.md": {"1e-12"},
}

#: What a command beside it prints, of which no log is kept: the paragraph has to name the command.
PRINTED: dict[str, tuple[set[str], str]] = {
    "theory.md": ({"0.0711", "0.0695", "0.0710", "0.117"}, "`fcco train --dataset fashion-mnist --method msvr-v2`"),
}


def runs_of(name: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in log(name).splitlines()]


def mean(numbers: list[float]) -> float:
    return sum(numbers) / len(numbers)


def chosen_half(method: str, seeds: list[int], classes: list[int], **setting: float) -> float:
    """AP on the half of the test images that chooses: mean over runs, the better of the two batch-norm statistics."""
    runs = [
        run
        for run in runs_of("cifar_rare/runs.jsonl")
        if run["run"] == method and run["seed"] in seeds and run["class"] in classes
        if all(run[name] == value for name, value in setting.items())
    ]
    assert len(runs) == len(seeds) * len(classes)
    return max(mean([run[kind] for run in runs]) for kind in ("valid_ap", "uniform_valid_ap"))  # type: ignore[misc]


def of_choosing_halves() -> list[float]:
    every, cats, four = list(range(10)), [3], [100, 101, 102, 103]
    memory = {"hardness": 9.0, "knob": 0.5, "cutout": 0.0, "margin": 20.0}
    sox = {"hardness": 9.0, "knob": 0.5, "cutout": 0.0, "margin": 8.0}
    gentle = {"lr": 0.00025, "decay": 20.0}
    cut = {**memory, **gentle, "margin": 8.0, "cutout": 8.0}
    too_far = {"lr": 0.00025, "decay": 40.0}
    return [
        chosen_half("memory", [100], every, **memory, **gentle),
        chosen_half("memory", [100], every, **cut),
        chosen_half("memory", [100], every, **{**cut, "knob": 0.75}),
        chosen_half("SOX", [100], every, **sox, **gentle),
        chosen_half("SOX", [100], cats, **{**sox, **gentle, "cutout": 8.0}),
        chosen_half("SOX", [100], cats, **sox, **gentle),
        chosen_half("memory", four, cats, **memory, lr=0.001, decay=3.0),
        chosen_half("memory", four, cats, **memory, lr=0.0005, decay=10.0),
        chosen_half("memory", four, cats, **memory, **gentle),
        chosen_half("SOX", four, cats, **sox, lr=0.0005, decay=10.0),
        chosen_half("SOX", four, cats, **sox, **gentle),
        chosen_half("memory", four[:2], cats, **memory, **too_far),
        chosen_half("SOX", four[:2], cats, **sox, **too_far),
    ]


def of_layouts() -> list[float]:
    rows = json.loads(log("bench/layouts.json"))["rows"]
    return [row["ms"] for row in rows]


def of_whole_runs() -> list[float]:
    """F and AUROC at the end of ResNet18's finished runs: the reported seeds, and the baseline's tuning."""
    ends: list[float] = []
    for name in ("figures/runs-cifar10.jsonl.xz", "figures/runs-cifar10-2.jsonl.xz"):
        for run in runs_of(name):
            config = run["run"]["config"]  # type: ignore[index]
            if config["model"] != "resnet18" or run["status"] != "finished":
                continue
            if config["seed"] != 1000 or run["run"]["trainer"] != "fcco":  # type: ignore[index]
                ends += [float(run[kind]) for kind in ("f", "auroc") if run[kind] is not None]  # type: ignore[arg-type]
                ends.append(1 - float(run["f"]))  # type: ignore[arg-type]  # a baseline's F is 1 - AUROC in training
    return ends


def of_small_runs() -> list[float]:
    """F and u's error where the runs of MLPs and of linear scores begin and end."""
    ends: list[float] = []
    for name in ("figures/runs-cifar10-2.jsonl.xz", "figures/runs-cpu.jsonl.xz"):
        for run in runs_of(name):
            curve = run["curve"]
            if run["run"]["config"]["model"] == "resnet18" or run["status"] != "finished":  # type: ignore[index]
                continue
            ends.append(float(run["f"]))  # type: ignore[arg-type]
            for column in ("f", "u_error"):
                values = [value for value in curve[column] if value is not None]  # type: ignore[index]
                ends += [values[0], values[-1]]
    return ends


def of_table_networks() -> list[float]:
    """Mean validation AP over emotions and yeast, by network."""
    rows = [cells(line) for line in lines_of("tables/table.md") if line.startswith("|")]
    known = {(row[0], row[1]): row[2] for row in rows}
    names = [network for data, network in known if data == "yeast"]
    return [mean([float(known["emotions", name]), float(known["yeast", name])]) for name in names]


COMPUTED: dict[str, Callable[[], list[float]]] = {
    "captured.md": lambda: [*of_layouts(), 30.161 / 3],
    "memory_log.md": of_choosing_halves,
    "results.md": lambda: [*of_whole_runs(), *of_small_runs()],
    "tables.md": of_table_networks,
}


@pytest.mark.parametrize("name", LOGS)
def test_the_text_is_of_the_logs(name: str) -> None:
    page = DOCS / name
    lines = [" ; ".join(row) for table in tables(page) for row in table.rows]
    for pattern in LOGS[name]:
        found = sorted(RESULTS.glob(pattern))
        assert found, pattern
        for path in found:
            lines += read(path).splitlines()
    if name in COMPUTED:
        lines += [f"{number:.8f}" for number in COMPUTED[name]()]
    shown = [number for number in decimals(prose(page)) if number not in NO_MEASUREMENT.get(name, set())]
    printed, command = PRINTED.get(name, (set(), ""))
    for number in printed:
        paragraph = next(part for part in page.read_text().split("\n\n") if number in part)
        assert command in paragraph
    assert absent([number for number in shown if number not in printed], lines) == []


@pytest.mark.parametrize("name", ["theory.md", "results.md"])
def test_values_with_intervals_stand_together_in_the_logs(name: str) -> None:
    logs = [path.relative_to(RESULTS).as_posix() for pattern in LOGS[name] for path in sorted(RESULTS.glob(pattern))]
    assert unknown_intervals(prose(DOCS / name), *logs) == []
