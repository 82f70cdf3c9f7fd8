// What it costs to reach a value of the metric: the first evaluation at which a run is there.
const members = (group) => data.runs.filter((run) => data.groups[run.group] === group);
const measured = (run, key) => run.y[key].filter((y) => y !== null);

// The hardest value that every run reached which was trained to the end: all rows of the table are whole then.
const automaticTarget = (groups, metric) => {
  const bests = groups.flatMap(members).filter((run) => run.full).map((run) => measured(run, metric.key))
    .filter((values) => values.length).map((values) => values.sort(better(metric))[0]);
  return bests.length ? bests.sort(better(metric)).at(-1) : null;
};

const targetScale = (groups, metric) => {
  const values = groups.flatMap(members).flatMap((run) => measured(run, metric.key));
  if (!values.length) return null;
  const log = metric.log && values.every((v) => v > 0);
  const [low, high] = range(values, log, 0);
  return metric.lower ? scale(high, low, 0, 400, log) : scale(low, high, 0, 400, log); // to the right is harder
};

const reached = (group, metric, target) => {
  const ok = (y) => y !== null && (metric.lower ? y <= target : y >= target);
  const first = members(group).map((run) => ({ run, i: run.y[metric.key].findIndex(ok) })).filter(({ i }) => i >= 0);
  const cost = (axis) => first.map(({ run, i }) => run.x[axis][i]).filter((v) => v !== null);
  return { group, count: first.length, cost: Object.fromEntries(data.axes.map((axis) => [axis.key, cost(axis.key)])) };
};

const targetTable = (groups, metric, target) => {
  const rows = groups.map((group) => reached(group, metric, target));
  const lead = data.axes[0].key;
  rows.sort((a, b) => (average(a.cost[lead]) ?? Infinity) - (average(b.cost[lead]) ?? Infinity) || 0);
  const greatest = Math.max(...rows.map((row) => average(row.cost[lead]) ?? 0)) || 1;
  const share = (row) => `${(100 * (average(row.cost[lead]) ?? 0)) / greatest}%`;
  const costs = (row) => data.axes.map((axis) => row.cost[axis.key]).map((cost) => right(within(average(cost), deviation(cost), true)));
  return table("Cost of reaching the target",
    ["Method", right("Reached by"), ...data.axes.map(headOf), { class: "bars", content: data.axes[0].short }],
    rows.map((row) => [named(row.group),
      { class: row.count < row.group.size ? "number odd" : "number", content: `${row.count} of ${row.group.size}` },
      ...costs(row),
      { class: "bars", content: make("span", { class: "bar", "--w": share(row), ...color(row.group) }) }]));
};
