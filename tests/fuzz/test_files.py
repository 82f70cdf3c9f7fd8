"""Five hundred hostile tables and run folders, seeded: a sentence or the right thing, and never anything else.

Nothing that is in them is executed, the command line shows no traceback, a page shows nothing raw, and a table that is
taken has the rows and labels that a plain reading of it has.
"""

import csv
import gzip
import io
import json
import os
import pickle
import random
import shutil
import sys
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from fcco.lab.cli import main
from fcco.lab.config import TrainConfig
from fcco.lab.errors import DataError, LabError
from fcco.lab.loaded import load
from tests.helpers.same import difference

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]

TABLES = int(os.environ.get("FCCO_FUZZ_FILES", "250"))
FOLDERS = TABLES
QUICK = ["--method", "sox", "--hidden", "4", "--samples", "4", "--blocks", "1", "--steps", "2", "--no-tensorboard"]
QUICK += ["--threads", "1"]
ROWS = 24
RAW = "<script>alert(1)</script><img src=x onerror=alert(2)>"
HOSTILE_WORDS = [
    RAW,
    "=cmd|' /C calc'!A0",
    "'; DROP TABLE runs; --",
    "${jndi:ldap://x}",
    "../../etc/passwd",
    "\u202eabc",
    "a\u0000b",
    "1e999",
    "-1e999",
    "nan",
    "inf",
    "9" * 400,
    "0x10",
    "1_000",
    "",
    " ",
    "None",
    "true",
    "2020-01-01",
    "é" * 50,
    "x" * 5000,
    "[/red]",
    "{0.__class__}",
    "%s%s%n",
]


class Gadget:
    """What a pickle would run."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (os.mkdir, (str(self.path),))


# ------------------------------------------------------------------ tables


def good_rows(draw):
    rows = [["a", "b", "kind", "y"]]
    for k in range(ROWS):
        y = k % 3 == 0
        rows.append([f"{draw.gauss(0, 1):.4f}", str(draw.randrange(9)), draw.choice("uvw"), str(int(y))])
    return rows


def cell(rows, draw):
    row = draw.choice(rows[1:] or rows)
    row[draw.randrange(len(row))] = draw.choice(HOSTILE_WORDS)


def column(rows, draw):
    place = draw.randrange(3)
    word = draw.choice(HOSTILE_WORDS)
    for row in rows[1:]:
        if len(row) > place:
            row[place] = word


def header(rows, draw):
    rows[0][draw.randrange(len(rows[0]))] = draw.choice([*HOSTILE_WORDS, "a", "y", "b"])


def shorter(rows, draw):
    row = rows[draw.randrange(len(rows))]
    if len(row) > 1:
        row.pop(draw.randrange(len(row)))


def longer(rows, draw):
    rows[draw.randrange(len(rows))].append(draw.choice(HOSTILE_WORDS))


def same_label(rows, draw):
    word = draw.choice(["0", "1", "", RAW])
    for row in rows[1:]:
        if len(row) > 3:
            row[3] = word


def words_as_labels(rows, draw):
    pair = draw.sample(HOSTILE_WORDS, 2)
    for row in rows[1:]:
        if len(row) > 3:
            row[3] = pair[row[3] == "1"]


def few(rows, draw):
    del rows[draw.randrange(4) :]


def leak(rows, draw):
    """The label again, under a name of its own: the user's own affair."""
    for row in rows:
        row.append(row[3] if len(row) > 3 else "")
    rows[0][-1] = draw.choice(["z", "y "])


ROW_CHANGES = (cell, cell, cell, column, header, shorter, longer, same_label, words_as_labels, few, leak)


def as_bytes(rows, draw):
    text = io.StringIO()
    csv.writer(text, lineterminator=draw.choice(["\n", "\n", "\r\n", "\r"])).writerows(rows)
    return text.getvalue().encode("utf-8", "surrogatepass")


def flipped(content, draw, gadget):
    content = bytearray(content or b"?")
    for _ in range(draw.randrange(1, 6)):
        content[draw.randrange(len(content))] = draw.randrange(256)
    return bytes(content)


BYTE_CHANGES = {
    "as it is": lambda content, draw, gadget: content,
    "flipped": flipped,
    "cut": lambda content, draw, gadget: content[: draw.randrange(len(content) + 1)],
    "byte order mark": lambda content, draw, gadget: b"\xef\xbb\xbf" + content,
    "sixteen bits": lambda content, draw, gadget: content.decode("utf-8", "ignore").encode("utf-16"),
    "an open quote": lambda content, draw, gadget: content + b'"open,1,u,0',
    "semicolons": lambda content, draw, gadget: content.replace(b",", b";"),
    "nothing": lambda content, draw, gadget: b"",
    "noise": lambda content, draw, gadget: draw.randbytes(draw.randrange(1, 3000)),
    "a pickle": lambda content, draw, gadget: pickle.dumps(Gadget(gadget)),
    "zeros": lambda content, draw, gadget: bytes(2000),
}


def write_table(path, draw, gadget):
    """A hostile table; the path it was given in the end."""
    rows = good_rows(draw)
    for _ in range(draw.randrange(3)):
        if rows:  # few() may have left none
            draw.choice(ROW_CHANGES)(rows, draw)
    change = draw.choice(["as it is"] * 8 + list(BYTE_CHANGES))
    content = BYTE_CHANGES[change](as_bytes(rows, draw), draw, gadget)
    form = draw.choice([".csv"] * 8 + [".csv.gz", ".parquet", ".npz"])
    if form == ".csv.gz" and draw.random() < 0.7:
        content = gzip.compress(content)
    if form == ".npz" and draw.random() < 0.7:
        stream = io.BytesIO()
        objects = np.array([Gadget(gadget), 1], dtype=object)
        np.savez(stream, x=np.ones((ROWS, 2)), y=draw.choice([objects, np.ones(3), np.arange(ROWS) % 2]))
        content = stream.getvalue()
    path = path.with_name(path.name + form)
    path.write_bytes(content)
    return path


def plainly_read(path):
    """The labels of a CSV, read by Python's own reader."""
    content = path.read_bytes()
    if path.suffix == ".gz":
        content = gzip.decompress(content)
    rows = list(csv.reader(io.StringIO(content.decode("utf-8-sig"), newline="")))
    rows = [row for row in rows if row]  # blank lines count for nothing
    place = rows[0].index("y")
    return [row[place] if place < len(row) else "" for row in rows[1:]]


def check_taken(path, config):
    """Every row is in one part or the other, its label what stands in the file."""
    data = load(config)
    found = torch.cat([data.train.y, data.test.y]).flatten().tolist()
    if path.suffix == ".npz":
        return
    labels = plainly_read(path)
    assert len(found) == len(labels)
    if data.negative is not None and all(label in ("0", "1") for label in labels):
        assert sum(value == 1 for value in found) == labels.count(data.outputs[0].split(" = ")[-1]), data.outputs


def quietly(argv, capsys):
    """The exit code of a command, which shows no traceback, and what it said."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        code = main([str(part) for part in argv])
    told = capsys.readouterr()
    assert code in (0, 2, 3), told.err
    assert "Traceback" not in told.err
    if code:
        assert told.err.strip(), argv
    return code


def tell(capsys, what, counts):
    with capsys.disabled():
        sys.stdout.write(f"\n{what}: {', '.join(f'{count} {name}' for name, count in sorted(counts.items()))}\n")


def test_hostile_tables(tmp_path, capsys):
    gadget = tmp_path / "executed"
    counts = Counter()
    for trial in range(TABLES):
        draw = random.Random(trial)
        path = write_table(tmp_path / f"t{trial}", draw, gadget)
        target = ["--target", "y"]
        out = tmp_path / f"run{trial}"
        code = quietly(["train", "--dataset", path, *target, *QUICK, "--out", out], capsys)
        assert not gadget.exists(), path
        if code == 0:
            config = TrainConfig(dataset=str(path), target=("y",))
            try:
                check_taken(path, config)
            except (LabError, DataError) as error:
                raise AssertionError(f"{path}: trained on, and then refused: {error}") from error
        else:
            assert not (out / "weights.pt").exists()
        counts[("accepted", "", "refused", "diverged")[code]] += 1
        shutil.rmtree(out, ignore_errors=True)
    tell(capsys, "tables", counts)
    assert counts["accepted"] > TABLES // 5
    assert counts["refused"] > TABLES // 5


# ------------------------------------------------------------------ run folders


def values_in(content, where=()):
    """The places of a JSON value."""
    yield where
    if isinstance(content, dict):
        for key, value in content.items():
            yield from values_in(value, (*where, key))
    elif isinstance(content, list):
        for place, value in enumerate(content):
            yield from values_in(value, (*where, place))


HOSTILE_VALUES = [
    None,
    RAW,
    -1,
    0,
    1e308,
    10**400,
    True,
    [],
    {},
    [[[]]],
    {"a": RAW},
    "nan",
    "../..",
    {RAW: RAW},
    [RAW],
    0.5,
]


def changed_json(text, draw):
    """The same with a value or a key replaced; of lines, one of them."""
    lines = text.splitlines() if "\n{" in text.strip() and text.startswith('{"') else [text]
    number = draw.randrange(len(lines))
    content = json.loads(lines[number])
    *way, last = draw.choice([where for where in values_in(content) if where] or [(next(iter(content), "x"),)])
    inside = content
    for key in way:
        inside = inside[key]
    if draw.random() < 0.2 and isinstance(inside, dict):
        inside[RAW] = inside.pop(last)
    else:
        inside[last] = draw.choice(HOSTILE_VALUES)
    sys.set_int_max_str_digits(0)
    lines[number] = json.dumps(content)
    return "\n".join(lines) + "\n"


def spoil(folder, draw, gadget):
    """Change one or two files of a run's folder."""
    done = []
    for _ in range(draw.randrange(1, 3)):
        files = sorted(path for path in folder.iterdir() if path.is_file() and path.name != ".lock")
        if not files:
            break
        path = draw.choice(files)
        kind = draw.choice(["flip", "cut", "drop", "folder", "link", "noise", "pickle", *["json"] * 6])
        done.append(f"{path.name}: {kind}")
        if kind == "json" and path.suffix in (".json", ".jsonl"):
            try:
                path.write_text(changed_json(path.read_text(), draw))
            except (ValueError, UnicodeDecodeError):
                path.write_text(RAW)
        elif kind == "flip" and path.stat().st_size:
            path.write_bytes(flipped(path.read_bytes(), draw, gadget))
        elif kind == "cut":
            path.write_bytes(path.read_bytes()[: draw.randrange(path.stat().st_size + 1)])
        elif kind == "noise":
            path.write_bytes(draw.randbytes(300))
        elif kind == "pickle":
            path.write_bytes(pickle.dumps(Gadget(gadget)))
        elif kind in ("drop", "folder", "link"):
            path.unlink()
            if kind == "folder":
                path.mkdir()
            elif kind == "link":
                path.symlink_to(path.name)  # to itself
    return done


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A table, new data, and the folder of a run on it that was stopped half-way by its length."""
    base = tmp_path_factory.mktemp("whole")
    rows = good_rows(random.Random(0))
    (base / "table.csv").write_bytes(as_bytes(rows, random.Random(1)))
    argv = ["train", "--dataset", str(base / "table.csv"), "--target", "y", *QUICK, "--out", str(base / "run")]
    assert main(argv) == 0
    return base


def test_hostile_run_folders(whole, tmp_path, capsys):
    gadget = tmp_path / "executed"
    wanted = torch.load(whole / "run" / "weights.pt", weights_only=True)
    config = json.loads((whole / "run" / "config.json").read_text())
    counts = Counter()
    for trial in range(FOLDERS):
        draw = random.Random(trial)
        folder = tmp_path / f"f{trial}" / draw.choice(["run", "a&b", "<b>bold", "x'y\"z"])
        shutil.copytree(whole / "run", folder)
        done = spoil(folder, draw, gadget)
        page = folder.parent / "page.html"
        code = quietly(["report", folder, "--out", page], capsys)
        if page.exists():
            text = page.read_text(encoding="utf-8")
            assert RAW not in text, done
            assert "<b>bold" not in text, done
            assert "onerror=alert(2)>" not in text, done
        counts[f"report {code}"] += 1
        table = folder.parent / "scores.csv"
        code = quietly(["predict", folder, whole / "table.csv", "--out", table], capsys)
        counts[f"predict {code}"] += 1
        if code == 0:
            assert len(table.read_text().splitlines()) == ROWS + 1
        code = quietly(["train", "--resume", folder], capsys)
        counts[f"resume {code}"] += 1
        if code == 0 and _settings(folder) == config:
            found = torch.load(folder / "weights.pt", weights_only=True)
            assert difference(wanted, found) is None, done
        assert not gadget.exists(), done
        shutil.rmtree(folder.parent)
    tell(capsys, "run folders", counts)
    assert counts["resume 2"] > FOLDERS // 10


def _settings(folder: Path):
    try:
        return json.loads((folder / "config.json").read_text())
    except (OSError, ValueError):
        return None
