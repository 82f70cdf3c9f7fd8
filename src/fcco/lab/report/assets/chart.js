// The curves: lines of the means, bands of the spread, axes.
const bands = {
  sd: ["± standard deviation", (c, i) => [c.mean[i] - (c.sd[i] ?? 0), c.mean[i] + (c.sd[i] ?? 0)]],
  error: ["± standard error", (c, i) => [-1, 1].map((s) => c.mean[i] + (s * (c.sd[i] ?? 0)) / Math.sqrt(c.n[i]))],
  extremes: ["least to greatest", (c, i) => [c.low[i], c.high[i]]],
  runs: ["every run", null],
  none: ["none", null],
};

const TOP = 30, BOTTOM = 52, RIGHT = 14; // room for ticks and titles

const path = (points) => points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");

// A group's points that the axes can show.
const seriesOf = (group, state) => {
  const curve = group.curves[state.y];
  if (!curve) return null;
  const around = bands[state.band][1];
  const points = curve.mean.map((y, i) => {
    const [low, high] = around ? around(curve, i) : [y, y];
    return { x: curve.x[state.x][i], y, low, high, n: curve.n[i], sd: curve.sd[i] };
  });
  const shown = points.filter((p) => p.x !== null && (!state.logX || p.x > 0) && (!state.logY[state.y] || p.y > 0));
  const lost = points.length - shown.length;
  return shown.length ? { group, points: shown, lost, runs: runLines(group, state) } : null;
};

const runLines = (group, state) => {
  if (state.band !== "runs") return [];
  return members(group).map((run) => run.y[state.y]
    .map((y, i) => [run.x[state.x][i], y])
    .filter(([x, y]) => x !== null && y !== null && (!state.logX || x > 0) && (!state.logY[state.y] || y > 0)));
};

const frameOf = (series, state, width, height) => {
  const log = state.logY[state.y];
  const points = series.flatMap((s) => s.points);
  const means = points.map((p) => p.y);
  const floor = log ? least(means) / 3 : -Infinity; // a band that touches zero must not stretch a logarithmic axis
  const extra = series.flatMap((s) => s.runs.flat());
  const yRange = range([...means, ...extra.map((p) => p[1]), ...points.flatMap((p) => [Math.max(p.low, floor), p.high])], log);
  const air = state.logX ? 0.01 : 0;
  const xRange = range([...points.map((p) => p.x), ...extra.map((p) => p[0])], state.logX, air);
  const y = scale(...yRange, height - BOTTOM, TOP, log);
  const yTicks = y.ticks(Math.max(3, Math.floor(height / 64)));
  const left = 14 + 7.2 * Math.max(3, ...yTicks.map((t) => t.text.length));
  const x = scale(...xRange, left, width - RIGHT, state.logX);
  return { x, y, xTicks: x.ticks(Math.max(2, Math.floor((width - left) / 84))), yTicks, left, width, height, series };
};

const level = (frame, value, kind) => {
  const y = frame.y.at(value);
  return draw("line", { class: kind, x1: frame.left, x2: frame.width - RIGHT, y1: y, y2: y });
};

const axes = (frame, state) => {
  const { x, y, left, width, height } = frame;
  const bottom = height - BOTTOM;
  return [
    ...frame.yTicks.map((t) => draw("g", {},
      level(frame, t.value, t.text ? "grid" : "grid faint"),
      draw("text", { class: "tick", x: left - 8, y: y.at(t.value) + 4, "text-anchor": "end" }, t.text))),
    ...frame.xTicks.filter((t) => x.at(t.value) <= width - RIGHT + 1).map((t) => draw("g", {},
      draw("line", { class: "mark", x1: x.at(t.value), x2: x.at(t.value), y1: bottom, y2: bottom + (t.text ? 5 : 3) }),
      draw("text", { class: "tick", x: x.at(t.value), y: bottom + 19, "text-anchor": "middle" }, t.text))),
    draw("text", { class: "title", x: 0, y: 13 }, metricOf(state.y).label),
    draw("text", { class: "title", x: (left + width) / 2, y: height - 6, "text-anchor": "middle" }, axisNow().label),
    draw("line", { class: "base", x1: left, x2: width - RIGHT, y1: bottom, y2: bottom }),
  ];
};

const drawn = (series, frame, state) => {
  const { x, y } = frame;
  const clip = (v) => Math.max(v, y.low); // where a logarithmic axis has no place for it
  const style = color(series.group);
  const area = [
    ...series.points.map((p) => [x.at(p.x), y.at(clip(p.high))]),
    ...series.points.toReversed().map((p) => [x.at(p.x), y.at(clip(p.low))]),
  ];
  const line = series.points.map((p) => [x.at(p.x), y.at(p.y)]);
  const [[cx, cy]] = line;
  return [
    bands[state.band][1] ? draw("path", { class: "band", d: `${path(area)}Z`, ...style }) : null,
    ...series.runs.map((run) =>
      draw("path", { class: "line run", d: path(run.map((p) => [x.at(p[0]), y.at(p[1])])), ...style })),
    draw("path", { class: "line", d: path(line), "data-group": series.group.label, ...stroke(series.group) }),
    line.length === 1 ? draw("circle", { class: "dot", cx, cy, r: 4, ...style }) : null,
  ];
};

// Draws into the svg element; returns the frame, which the crosshair needs.
const drawChart = (box, groups, state) => {
  const width = Math.max(280, box.parentElement.clientWidth);
  const height = width < 560 ? 330 : 450;
  const series = groups.map((group) => seriesOf(group, state)).filter((s) => s);
  fill(box, { viewBox: `0 0 ${width} ${height}`, width, height }, []);
  if (!series.length) {
    const middle = { class: "empty", x: width / 2, y: height / 2, "text-anchor": "middle" };
    box.replaceChildren(draw("text", middle, "Nothing to show"));
    return null;
  }
  const frame = frameOf(series, state, width, height);
  const layers = series.map((s) => drawn(s, frame, state));
  const inside = state.goal !== null && state.goal >= frame.y.low && state.goal <= frame.y.high;
  const goal = inside ? level(frame, state.goal, "goal") : null;
  box.replaceChildren(...[...axes(frame, state), goal, ...layers.flat(), draw("g", { id: "cross" })].filter((e) => e));
  return frame;
};
