// Tiles and tables: the best values, the final ones, the tests, what was run and where.
const LEVEL = 0.05;
const metricOf = (key) => data.metrics.find((metric) => metric.key === key);
const better = (metric) => (a, b) => (metric.lower ? a - b : b - a);

// Best first; groups without a value last.
const ranked = (groups, metric) => groups.toSorted((a, b) => {
  const [p, q] = [a.final[metric.key], b.final[metric.key]];
  return p && q ? better(metric)(p.mean, q.mean) : (q ? 1 : 0) - (p ? 1 : 0);
});

const tileValue = (value) => {
  const [mean, sd, unit] = parts(value.mean, value.sd, false);
  return make("span", { class: "tile-value" }, mean, " ", make("small", {}, sd === null ? unit : `± ${sd}${unit}`));
};
const tiles = (groups, choose) => data.metrics.slice(0, 4).flatMap((metric) => {
  const best = groups.find((group) => group.final[metric.key]?.best);
  if (!best) return [];
  const value = best.final[metric.key];
  return make("button", { type: "button", class: "tile", title: metric.help, onclick: () => choose(metric.key) },
    make("span", { class: "tile-title" }, `Best ${metric.short.replace(/^[A-Z](?=[a-z])/, (c) => c.toLowerCase())}`),
    tileValue(value), named(best));
});

const right = (content) => ({ class: "number", content });
const headOf = (axis) => ({ class: "number", content: axis.short, help: axis.help });
const alike = (value) => value.against && value.against.welch_holm !== null && value.against.welch_holm >= LEVEL;
const finalCell = (value, n) => {
  if (!value) return { class: "number", content: "–" };
  const [sign, word] = value.best ? ["●", "best"] : alike(value) ? ["≈", "not distinguishable from the best"] : ["", ""];
  const fewer = value.values.length < n ? make("small", {}, `n=${value.values.length} `) : null;
  return {
    class: value.best ? "number best" : "number",
    content: make("span", {}, fewer, within(value.mean, value.sd),
      make("span", { class: "mark-sign", title: word || null }, sign, word ? hide(word) : null)),
  };
};
const finalTable = (groups, chosen, choose) => {
  const listed = data.metrics.filter((metric) => metric.listed);
  const heads = listed.map((metric) => ({
    class: metric.key === chosen ? "number chosen" : "number",
    sort: metric.key === chosen ? (metric.lower ? "ascending" : "descending") : null,
    content: make("button", { type: "button", class: "head", title: metric.help, onclick: () => choose(metric.key) },
      metric.short, make("span", { "aria-hidden": "true" }, metric.lower ? " ↓" : " ↑")),
  }));
  const ends = data.axes.filter((axis) => ["samples", "seconds"].includes(axis.key));
  return table("Final values",
    ["Method", right("n"), ...heads, ...ends.map(headOf)],
    ranked(groups, metricOf(chosen)).map((group) => {
      const n = Math.max(0, ...Object.values(group.final).map((value) => value.values.length));
      const count = n === group.size ? String(n) : `${n} of ${group.size}`;
      return [named(group), { class: n === group.size ? "number" : "number odd", content: count },
        ...listed.map((metric) => finalCell(group.final[metric.key], n)),
        ...ends.map((axis) => right(within(group.end[axis.key], null, true)))];
    }));
};

const finalCaption = (groups) => {
  const short = groups.some((group) => Object.values(group.final).some((value) => value.values.length < group.size));
  return "Mean ± standard deviation over n runs, at the last evaluation; arrows say which way is better. ● best mean; " +
    "≈ not distinguishable from it (Welch's t-test, Holm-corrected, 5 %). The head of a column chooses the metric." +
    (short ? " Runs that stopped early or diverged do not count." : "");
};

// The difference and its confidence interval as a picture, all rows on one scale.
const whisker = (against, reach) => {
  if (against.low === null) return "";
  const at = (value) => reach.at(value);
  return draw("svg", { class: "whisker", viewBox: "0 0 120 14", "aria-hidden": "true" },
    draw("line", { class: "zero", x1: at(0), x2: at(0), y1: 0, y2: 14 }),
    draw("line", { class: "reach", x1: at(against.low), x2: at(against.high), y1: 7, y2: 7 }),
    draw("circle", { class: "middle", cx: at(against.difference), cy: 7, r: 3.5 }));
};
const verdict = (p) => (p === null ? "not tested" : p < LEVEL ? "differs" : "not distinguishable");
const interval = (a) => {
  if (a.low === null) return number(a.difference, 3);
  const width = (a.high - a.low) / 2;
  const unit = power(width) < -4 || power(width) > 5 ? power(width) : 0;
  const digits = Math.max(0, 1 - power(width / 10 ** unit)); // two of the interval's half width
  const [d, low, high] = [a.difference, a.low, a.high].map((v) => decimal(v / 10 ** unit, digits));
  return `${d} [${low}, ${high}]${unit ? `×10${superscript(unit)}` : ""}`;
};
const testsTable = (groups, metric) => {
  const rows = ranked(groups, metric).filter((group) => group.final[metric.key]);
  const others = rows.map((group) => group.final[metric.key].against).filter((against) => against);
  const reach = scale(...range([0, ...others.flatMap((a) => [a.low ?? 0, a.high ?? 0])], false), 2, 118, false);
  return table("Significance tests", ["Method", right("Mean ± sd"), right("Difference [95 % interval]"), "",
    right("Welch p"), right("Holm"), right("Permutation p"), right("Holm"), "Verdict"],
    rows.map((group) => {
      const value = group.final[metric.key];
      const start = [named(group), { class: value.best ? "number best" : "number", content: within(value.mean, value.sd) }];
      if (!value.against) return [...start, "", "", "", "", "", "", make("span", { class: "chip good" }, "best mean")];
      const a = value.against;
      return [...start, right(interval(a)), whisker(a, reach), right(chance(a.welch)), right(chance(a.welch_holm)),
        right(chance(a.permutation)), right(chance(a.permutation_holm)), { class: "verdict", content: verdict(a.welch_holm) }];
    }));
};
const chooseCount = (n, k) => { let c = 1; for (let i = 1; i <= k; i++) c = (c * (n - k + i)) / i; return c; };
const testsCaption = (groups, metric) => {
  const values = groups.map((group) => group.final[metric.key]).filter((value) => value);
  const best = values.find((value) => value.best);
  const tested = values.filter((value) => value.against && value.against.welch !== null);
  if (!tested.length) return "No test: it takes two groups, each with two runs and some spread.";
  const exact = tested.every((value) => value.against.exact);
  const floor = Math.min(1, tested.length * Math.min(...tested.map((value) => {
    const [n, k] = [value.values.length, best.values.length];
    return (n === k ? 2 : 1) / chooseCount(n + k, k);
  })));
  return `Two-sided tests of the final ${metric.short} against the best mean, which the same runs chose: Welch's t-test, and ` +
    `${exact ? "an exact" : "a random (9999 draws)"} permutation test of the difference in means; both ` +
    `Holm-corrected over ${plural(tested.length, "comparison")}; the verdict is Welch's at 5 %.` +
    (exact && floor > LEVEL ? ` With so few runs the corrected permutation test cannot go below ${floor.toFixed(2)}.` : "");
};

const pairs = (rows) => make("dl", { class: "pairs" }, rows.map(([name, value]) =>
  make("div", {}, make("dt", {}, name), make("dd", {}, value))));
// Rows that say the same are one row with all their names.
const merged = (heads, rows) => {
  const found = new Map();
  rows.forEach((cells, i) => {
    const key = JSON.stringify(cells);
    found.set(key, { cells, heads: [...(found.get(key)?.heads ?? []), heads[i]] });
  });
  return [...found.values()].map(({ heads: names, cells }) => [make("span", { title: names.join("\n") },
    names.length > 3 ? `${names.slice(0, 2).join(", ")} and ${names.length - 2} more` : names.join(", ")), cells]);
};
const differences = (label, part, rows) => table(label, ["", ...part.keys], rows.map(([head, cells]) =>
  [head, ...cells.map(([text, odd]) => ({ class: odd ? "odd" : null, content: text }))]), "compact");
const settings = (label, part, heads, merge = false) => {
  const rows = merge ? merged(heads, part.rows) : heads.map((head, i) => [head, part.rows[i]]);
  const differ = part.keys.length && rows.length;
  return [
    differ ? make("h3", {}, "Differences") : null, differ ? differences(label, part, rows) : null,
    part.common.length ? make("h3", {}, "The same in every run") : null,
    part.common.length ? pairs(part.common) : make("p", { class: "caption" }, "Nothing recorded that all runs share."),
  ].filter((element) => element);
};

// Runs by the metric: what came out on the test part, and the trials that it was chosen from.
const estimate = ([value, low, high]) =>
  (value === null ? "–" : `${number(value, 4)}${low === null ? "" : ` [${number(low, 3)}, ${number(high, 3)}]`}`);
const trialRows = (run) => run.trials.map((trial) => [
  trial.name, trial.setting, right(number(trial.examples, 7)),
  { class: trial.chosen ? "number best" : "number", content: number(trial.value, 4) },
  trial.chosen ? "chosen" : "",
]);
const fittedTables = () => (data.fitted.length ? [
  table("Trained by the metric", [
    "Run", "Metric",
    { class: "number", content: "Test", help: "The chosen model on the test part, which nothing was chosen on" },
    { class: "number", content: "Plain loss", help: "The best model of the plain loss, on the same test part" },
    { class: "number", content: "Examples", help: "Examples that went through the network in training, all trials together" },
    { content: "Chosen", help: "The trial that the validation part chose, or the average of several" },
  ], data.fitted.map((run) => [
    make("span", { class: "path" }, run.name), run.metric.replaceAll("_", " "),
    right(estimate(run.test)), right(estimate(run.plain)), right(number(run.examples, 7)),
    `${run.chosen}: ${run.setting}`,
  ])),
  ...data.fitted.map((run) => make("details", {}, make("summary", {}, `Trials of ${run.name}`),
    table(`Trials of ${run.name}`,
      ["Trial", "Setting", right("Examples"), right("Validation"), ""], trialRows(run)))),
] : []);

const runsTable = () => table("Runs",
  ["Run", "Status", "Method", right("Seed"), right("Evaluations"), right("Last step"), "Remarks"],
  data.runs.map((run) => [
    make("span", { class: "path" }, run.name),
    make("span", { class: `chip ${run.tone}` }, run.status),
    run.group === null ? "–" : named(data.groups[run.group]),
    right(run.seed ?? "–"),
    right(run.length || !data.fitted.some((fit) => fit.name === run.name) ? String(run.length) : "–"),
    right(number(run.x.step.at(-1), 6)),
    { class: "remarks", content: [run.message, ...run.notes].filter((text) => text).join("; ") },
  ]));
