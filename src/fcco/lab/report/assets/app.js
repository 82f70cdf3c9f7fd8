// The state of the page, and what follows from it.
const state = {
  problem: 0, x: data.axes[0]?.key, y: data.metrics[0]?.key, band: "sd", logX: false,
  logY: Object.fromEntries(data.metrics.map((metric) => [metric.key, metric.log])),
  hidden: new Set(), // styles: a method keeps its colour, and its being hidden, from problem to problem
  target: {}, // by metric; none: automatic
  goal: null,
};
let frame = null;
const groupsNow = () => data.groups.filter((group) => group.problem === state.problem);
const axisNow = () => data.axes.find((axis) => axis.key === state.x);

const showChart = () => {
  const shown = groupsNow().filter((group) => !state.hidden.has(group.style));
  frame = drawChart(find("chart"), shown, state);
  const lost = frame ? sum(frame.series.map((series) => series.lost)) : 0;
  const sizes = [...new Set(groupsNow().map((group) => group.size))].sort((a, b) => a - b);
  const spread = { runs: "thin lines: the runs", none: "no spread shown" }[state.band] ?? `band: ${bands[state.band][0]}`;
  find("chart-caption").textContent = `${metricOf(state.y).label} against ${axisNow().label.toLowerCase()}. Line: mean over ` +
    `${sizes.length > 1 ? `${sizes[0]} to ${sizes.at(-1)}` : sizes[0]} runs; ${spread}; dashed grey: the target below.` +
    (lost ? ` ${plural(lost, "point")} at or below zero cannot stand on a logarithmic axis.` : "");
  renewHover();
};

const showLegend = () => find("legend").replaceChildren(...groupsNow().map((group) => make("button", {
  type: "button", class: "key", "aria-pressed": String(!state.hidden.has(group.style)), title: "Click: show or hide. Shift-click: this one alone.",
  onclick: (event) => toggle(group, event.shiftKey),
}, named(group))), make("button", { type: "button", class: "key plain", id: "all", onclick: () => { state.hidden.clear(); refreshMethods(); } }, "Show all"));

const toggle = (group, alone) => {
  const { hidden } = state;
  if (alone) groupsNow().forEach((other) => (other === group ? hidden.delete(other.style) : hidden.add(other.style)));
  else if (!hidden.delete(group.style)) hidden.add(group.style);
  refreshMethods();
};
const refreshMethods = () => {
  const buttons = [...find("legend").children];
  groupsNow().forEach((group, i) => buttons[i].setAttribute("aria-pressed", String(!state.hidden.has(group.style))));
  find("all").hidden = !groupsNow().some((group) => state.hidden.has(group.style));
  showChart();
};

const showTarget = () => {
  const metric = metricOf(state.y);
  const automatic = automaticTarget(groupsNow(), metric);
  const ruler = targetScale(groupsNow(), metric);
  state.goal = state.target[state.y] ?? automatic;
  find("target-metric").textContent = `${metric.short} ${metric.lower ? "≤" : "≥"} ${number(state.goal)}`;
  find("target-auto").setAttribute("aria-pressed", String(!(state.y in state.target)));
  if (state.goal === null || !ruler) return find("target").replaceChildren();
  find("target-slider").value = Math.round(ruler.at(state.goal));
  find("target-slider").setAttribute("aria-valuetext", number(state.goal));
  find("target-value").value = String(+state.goal.toPrecision(5));
  find("target").replaceChildren(targetTable(groupsNow(), metric, state.goal));
  find("target-caption").textContent = "Mean ± standard deviation over the runs that reached it, at the first evaluation that did; " +
    (state.y in state.target ? "the target was set by hand." : "the target is the hardest value that every run trained to the end has reached.");
};

const showTables = () => {
  const metric = metricOf(state.y);
  find("tiles").replaceChildren(...tiles(groupsNow(), chooseMetric));
  find("final").replaceChildren(finalTable(groupsNow(), state.y, chooseMetric));
  find("tests-metric").textContent = metric.short;
  find("tests").replaceChildren(testsTable(groupsNow(), metric));
  find("tests-caption").textContent = testsCaption(groupsNow(), metric);
};
const showAll = () => { showTarget(); showTables(); showChart(); };

const chooseMetric = (key) => {
  state.y = key;
  find(`y-${key}`).checked = true;
  find("scale-y-log").checked = state.logY[key];
  showAll();
};
const setTarget = (value) => {
  if (value === null) delete state.target[state.y];
  else if (Number.isFinite(value)) state.target[state.y] = value;
  showTarget();
  showChart();
};

const controls = () => {
  segment(find("y"), "radio", data.metrics.map((m) => [m.key, m.short]), (key) => key === state.y, chooseMetric);
  segment(find("x"), "radio", data.axes.map((a) => [a.key, a.short]), (key) => key === state.x, (key) => { state.x = key; showChart(); });
  segment(find("scale-y"), "checkbox", [["log", "log y"]], () => state.logY[state.y], (_, on) => { state.logY[state.y] = on; showChart(); });
  segment(find("scale-x"), "checkbox", [["log", "log x"]], () => state.logX, (_, on) => { state.logX = on; showChart(); });
  find("band").append(...Object.entries(bands).map(([key, [label]]) => make("option", { value: key }, label)));
  find("band").addEventListener("change", (event) => { state.band = event.target.value; showChart(); });
  find("problem").append(...data.problems.map((name, i) => make("option", { value: i }, name || "unnamed")));
  find("problem").addEventListener("change", (event) => { state.problem = +event.target.value; showLegend(); refreshMethods(); showAll(); });
  find("problem-field").hidden = data.problems.length < 2;
  find("target-slider").addEventListener("input", (event) =>
    setTarget(targetScale(groupsNow(), metricOf(state.y)).back(+event.target.value)));
  find("target-value").addEventListener("change", (event) => setTarget(parseFloat(event.target.value)));
  find("target-auto").addEventListener("click", () => setTarget(null));
};

const theme = () => {
  const root = document.documentElement;
  const dark = () => (root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches);
  const show = () => { find("theme").textContent = dark() ? "Light" : "Dark"; find("theme").setAttribute("aria-pressed", String(dark())); };
  find("theme").addEventListener("click", () => { root.dataset.theme = dark() ? "light" : "dark"; show(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
  show();
};

const facts = () => {
  const commits = [...new Set(data.environment.common.filter(([key]) => /commit/.test(key)).map(([, value]) => value.slice(0, 12)))];
  const labels = new Set(data.groups.map((group) => group.label));
  return [plural(labels.size, [...labels].some((label) => label.includes("=")) ? "configuration" : "method"), plural(data.runs.length, "run"),
    data.problems.length === 1 ? data.problems[0] : plural(data.problems.length, "problem"),
    commits.length ? `commit ${commits[0]}` : ""].filter((text) => text).join("  ·  ");
};
const warning = () => {
  const open = data.runs.filter((run) => run.notes.length || run.tone !== "good").length;
  find("warning").hidden = !open;
  find("warning").replaceChildren(`${open} of ${plural(data.runs.length, "run")} ${open === 1 ? "is" : "are"} incomplete, ` +
    "unfinished or broken: ", make("a", { href: "#runs-title" }, "see the runs"), ".");
};

find("facts").textContent = facts();
find("note").textContent = data.note;
find("note").hidden = !data.note;
find("config").append(...settings("Configuration differences", data.config, data.groups.map(named)));
find("environment").append(...settings("Environment differences", data.environment, data.runs.map((run) => run.name), true));
find("runs").append(runsTable());
find("main").hidden = false;
theme();
warning();
let renewHover = () => {};
if (data.groups.length && data.metrics.length) {
  controls();
  showLegend();
  renewHover = makeHover(find("plot"), find("tip"), () => ({ frame, axis: axisNow() }));
  refreshMethods();
  showAll();
  new ResizeObserver(showChart).observe(find("plot"));
} else find("comparison").replaceChildren(make("p", { class: "banner" }, "No run has an evaluation yet: there is nothing to compare."));
