// The crosshair: it stands at an evaluation, and lists every method that is shown there.

// Where a series passes x: at one of its evaluations, or on the line between two.
const valueAt = (series, x, frame) => {
  const { points } = series;
  if (x < points[0].x || x > points.at(-1).x) return null;
  const after = points.findIndex((p) => p.x >= x);
  const right = points[after];
  if (right.x === x || after === 0) return { ...right, exact: true };
  const left = points[after - 1];
  const share = (frame.x.at(x) - frame.x.at(left.x)) / (frame.x.at(right.x) - frame.x.at(left.x));
  const pixel = frame.y.at(left.y) + share * (frame.y.at(right.y) - frame.y.at(left.y));
  return { x, y: frame.y.back(pixel), n: Math.min(left.n, right.n), sd: null, exact: false };
};

const stopsOf = (frame) => [...new Set(frame.series.flatMap((s) => s.points.map((p) => p.x)))].sort((a, b) => a - b);

const tipRows = (x, frame) => frame.series
  .map((series) => ({ series, value: valueAt(series, x, frame) }))
  .sort((a, b) => (b.value?.y ?? -Infinity) - (a.value?.y ?? -Infinity) || 0);

const place = (axis, x) => `${axis.label} ${number(x, Number.isInteger(x) ? 6 : 4)}`;
const outside = (series, x) => (x < series.points[0].x
  ? `starts at ${tick(series.points[0].x)}` : `ends at ${tick(series.points.at(-1).x)}`);
const tipText = ({ series, value }, x) => (!value ? outside(series, x) : value.exact ? within(value.y, value.sd) : `≈ ${number(value.y)}`);

const fewer = ({ series, value }) => (value && value.n < series.group.size ? make("small", {}, ` n=${value.n}`) : null);

const makeHover = (plot, tip, current) => {
  let stop = null; // a number of the stops
  let stops = [];

  const show = (index) => {
    const { frame, axis } = current();
    if (!frame) return clear();
    stop = Math.max(0, Math.min(stops.length - 1, index));
    const x = stops[stop];
    const rows = tipRows(x, frame);
    const pixel = frame.x.at(x);
    find("cross")?.replaceChildren(
      draw("line", { class: "crosshair", x1: pixel, x2: pixel, y1: TOP, y2: frame.height - BOTTOM }),
      ...rows.filter((row) => row.value).map(({ series, value }) =>
        draw("circle", { class: "dot", cx: pixel, cy: frame.y.at(value.y), r: 4.5, ...color(series.group) })));
    tip.replaceChildren(
      make("strong", {}, place(axis, x)),
      ...rows.map((row) => make("div", { class: "row" }, named(row.series.group),
        make("span", { class: row.value ? "value" : "value outside" }, tipText(row, x), fewer(row)))));
    tip.hidden = false;
    const room = plot.clientWidth - tip.offsetWidth;
    const wanted = pixel < frame.width / 2 ? pixel + 16 : pixel - 16 - tip.offsetWidth;
    tip.style.transform = `translate(${Math.max(0, Math.min(room, wanted))}px, ${TOP + 4}px)`;
    fill(plot, { "aria-valuenow": stop, "aria-valuetext": [place(axis, x),
      ...rows.map((row) => `${row.series.group.label} ${tipText(row, x)}`)].join("; ") }, []);
  };
  const clear = () => {
    stop = null;
    tip.hidden = true;
    find("cross")?.replaceChildren();
  };
  const renew = () => {
    clear();
    const { frame } = current();
    stops = frame ? stopsOf(frame) : [];
    const text = frame ? place(current().axis, stops[0]) : "nothing to show";
    const last = Math.max(0, stops.length - 1);
    fill(plot, { "aria-valuemin": 0, "aria-valuemax": last, "aria-valuenow": 0, "aria-valuetext": text }, []);
  };
  const nearest = (pixel, frame) => {
    let best = 0;
    stops.forEach((x, i) => {
      if (Math.abs(frame.x.at(x) - pixel) < Math.abs(frame.x.at(stops[best]) - pixel)) best = i;
    });
    return best;
  };
  const follow = (event) => {
    const { frame } = current();
    if (frame) show(nearest(event.clientX - plot.getBoundingClientRect().left, frame));
  };
  plot.addEventListener("pointermove", follow);
  plot.addEventListener("pointerdown", follow);
  plot.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && clear());
  plot.addEventListener("blur", clear);
  plot.addEventListener("keydown", (event) => {
    const at = stop ?? -1;
    const leap = Math.max(1, Math.round(stops.length / 10));
    const moves = {
      ArrowRight: at + 1, ArrowUp: at + 1, ArrowLeft: stop === null ? stops.length - 1 : at - 1, ArrowDown: at - 1,
      PageUp: at + leap, PageDown: at - leap, Home: 0, End: stops.length - 1,
    };
    if (event.key === "Escape") clear();
    else if (event.key in moves) show(moves[event.key]);
    else return;
    event.preventDefault();
  });
  return renew;
};
