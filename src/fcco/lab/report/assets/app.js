// The state of the page, and what follows from it.
const state = {
  problem: 0,
  x: data.axes[0]?.key,
  y: data.metrics[0]?.key,
  band: "sd",
  logX: false,
  logY: Object.fromEntries(data.metrics.map((metric) => [metric.key, metric.log])),
  hidden: new Set(), // styles: a method keeps its colour, and its being hidden, from problem to problem
  target: {}, // by metric; none: automatic
  goal: null, // the target that is shown
};
let frame = null;
let renewHover = () => {};
const groupsNow = () => data.groups.filter((group) => group.problem === state.problem);
const axisNow = () => data.axes.find((axis) => axis.key === state.x);

const chartCaption = () => {
  const lost = frame ? sum(frame.series.map((series) => series.lost)) : 0;
  const sizes = groupsNow().map((group) => group.size);
  const [least, most] = [Math.min(...sizes), Math.max(...sizes)];
  const spread = { runs: "thin lines: the runs", none: "no spread shown" }[state.band] ?? `band: ${bands[state.band][0]}`;
  return `Line: mean over ${least < most ? `${least} to ${most} runs` : plural(most, "run")}; ${spread}; dashed grey: ` +
    `the target below.${lost ? ` ${plural(lost, "point")} at or below zero cannot stand on a logarithmic axis.` : ""}`;
};
const showChart = () => {
  const shown = groupsNow().filter((group) => !state.hidden.has(group.style));
  frame = drawChart(find("chart"), shown, state);
  find("chart-caption").textContent = chartCaption();
  renewHover();
};

const refreshMethods = () => {
  const buttons = [...find("legend").children];
  groupsNow().forEach((group, i) => buttons[i].setAttribute("aria-pressed", String(!state.hidden.has(group.style))));
  find("all").hidden = !groupsNow().some((group) => state.hidden.has(group.style));
  showChart();
};
const toggle = (group, alone) => {
  const { hidden } = state;
  if (alone) groupsNow().forEach((other) => (other === group ? hidden.delete(other.style) : hidden.add(other.style)));
  else if (!hidden.delete(group.style)) hidden.add(group.style);
  refreshMethods();
};
const showEveryMethod = () => {
  state.hidden.clear();
  refreshMethods();
};
const showLegend = () => {
  const title = "Click: show or hide. Shift-click: this one alone.";
  find("legend").replaceChildren(
    ...groupsNow().map((group) =>
      make("button", { type: "button", class: "key", title, onclick: (event) => toggle(group, event.shiftKey) }, named(group))),
    make("button", { type: "button", class: "key plain", id: "all", onclick: showEveryMethod }, "Show all"));
};

const showTarget = () => {
  const metric = metricOf(state.y);
  const ruler = targetScale(groupsNow(), metric);
  const byHand = state.y in state.target;
  state.goal = byHand ? state.target[state.y] : automaticTarget(groupsNow(), metric);
  find("target-metric").textContent = `${metric.short} ${metric.lower ? "≤" : "≥"} ${number(state.goal)}`;
  find("target-auto").setAttribute("aria-pressed", String(!byHand));
  find("target").replaceChildren();
  find("target-caption").textContent = "No run of this problem measured it.";
  if (state.goal === null || !ruler) return;
  find("target-slider").value = Math.round(ruler.at(state.goal));
  find("target-slider").setAttribute("aria-valuetext", number(state.goal));
  find("target-value").value = String(+state.goal.toPrecision(5));
  find("target").append(targetTable(groupsNow(), metric, state.goal));
  find("target-caption").textContent =
    "Mean ± standard deviation over the runs that reached it, at the first evaluation that did. The target " +
    (byHand ? "was set by hand." : "is the hardest value that every run trained to the end has reached.");
};

const showTables = () => {
  const metric = metricOf(state.y);
  find("tiles").replaceChildren(...tiles(groupsNow(), chooseMetric));
  find("final").replaceChildren(finalTable(groupsNow(), state.y, chooseMetric));
  find("final-caption").textContent = finalCaption(groupsNow());
  find("tests-metric").textContent = metric.short;
  find("tests").replaceChildren(testsTable(groupsNow(), metric));
  find("tests-caption").textContent = testsCaption(groupsNow(), metric);
};
const showAll = () => {
  showTarget(); // first: the chart draws the target too
  showTables();
  showChart();
};

const chooseMetric = (key) => {
  state.y = key;
  find(`y-${key}`).checked = true;
  find("scale-y-log").checked = state.logY[key];
  showAll();
};
const chooseProblem = (problem) => {
  state.problem = problem;
  showLegend();
  refreshMethods();
  showAll();
};
const setTarget = (value) => {
  if (value === null) delete state.target[state.y];
  else if (Number.isFinite(value)) state.target[state.y] = value;
  showTarget();
  showChart();
};
const redrawWith = (change) => (key, on) => {
  change(key, on);
  showChart();
};

const startControls = () => {
  const on = (id, event, act) => find(id).addEventListener(event, (happened) => act(happened.target.value));
  const axes = data.axes.map((axis) => [axis.key, axis.short, axis.help]);
  segment(find("y"), "radio", data.metrics.map((m) => [m.key, m.short, m.help]), (key) => key === state.y, chooseMetric);
  segment(find("x"), "radio", axes, (key) => key === state.x, redrawWith((key) => { state.x = key; }));
  segment(find("scale-y"), "checkbox", [["log", "log y"]], () => state.logY[state.y],
    redrawWith((_, checked) => { state.logY[state.y] = checked; }));
  segment(find("scale-x"), "checkbox", [["log", "log x"]], () => state.logX,
    redrawWith((_, checked) => { state.logX = checked; }));
  find("band").append(...Object.entries(bands).map(([key, [label]]) => make("option", { value: key }, label)));
  find("problem").append(...data.problems.map((name, i) => make("option", { value: i }, name || "unnamed")));
  find("problem-field").hidden = data.problems.length < 2;
  on("band", "change", redrawWith((key) => { state.band = key; }));
  on("problem", "change", (value) => chooseProblem(+value));
  on("target-slider", "input", (value) => setTarget(targetScale(groupsNow(), metricOf(state.y)).back(+value)));
  on("target-value", "change", (value) => setTarget(value.trim() === "" ? null : Number(value)));
  on("target-auto", "click", () => setTarget(null));
};

const start = () => {
  showHead();
  startTheme();
  find("config").append(...settings("Configuration differences", data.config, data.groups.map(named)));
  const names = data.runs.map((run) => run.name);
  find("environment").append(...settings("Environment differences", data.environment, names, true));
  find("runs").append(runsTable());
  find("main").hidden = false;
  find("fitted-card").hidden = !data.fitted.length;
  find("fitted").append(...fittedTables());
  if (data.fitted.length && !data.groups.length) {
    find("comparison").hidden = true;
    return;
  }
  if (!data.groups.length || !data.metrics.length) {
    const text = "No run has an evaluation yet: there is nothing to compare.";
    find("comparison").replaceChildren(make("p", { class: "banner" }, text));
    return;
  }
  startControls();
  renewHover = makeHover(find("plot"), find("tip"), () => ({ frame, axis: axisNow() }));
  chooseProblem(0);
  let width = find("plot").clientWidth;
  new ResizeObserver(() => {
    if (width === find("plot").clientWidth) return; // a redraw puts the crosshair away: only when there is a reason
    width = find("plot").clientWidth;
    showChart();
  }).observe(find("plot"));
};
start();
