// A linear or logarithmic scale from values to pixels, with ticks at round values.
const scale = (low, high, from, to, log) => {
  const turn = log ? Math.log10 : (v) => v;
  const [a, b] = [turn(low), turn(high)];
  const width = b - a || 1;
  return {
    low, high, log,
    at: (value) => from + ((turn(value) - a) / width) * (to - from),
    back: (pixel) => {
      const v = a + ((pixel - from) / (to - from)) * width;
      return log ? 10 ** v : v;
    },
    ticks: (count) => (log ? logTicks(low, high, count) : linearTicks(low, high, count)),
  };
};

const roundStep = (rough) => {
  const base = 10 ** Math.floor(Math.log10(rough));
  return base * [1, 2, 2.5, 5, 10].find((k) => k * base >= rough * 0.999);
};
const linearTicks = (low, high, count) => {
  const step = roundStep((high - low) / Math.max(1, count));
  const ticks = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) ticks.push(+(k * step).toPrecision(12));
  const fine = step / 10 ** Math.floor(Math.log10(step) + 1e-9);
  const shown = Math.abs(fine - 2.5) < 1e-6 ? step / 10 : step; // 2.5 needs a digit more
  return ticks.map((value) => ({ value, text: tick(value, shown) }));
};
const logTicks = (low, high, count) => {
  const [first, last] = [Math.floor(Math.log10(low)), Math.ceil(Math.log10(high))];
  const decades = Math.log10(high / low);
  if (decades < 0.5) return linearTicks(low, high, count);
  const stride = Math.max(1, Math.ceil(decades / count));
  const parts = decades * 3 <= count ? [1, 2, 5] : decades * 2 <= count ? [1, 3] : [1];
  const ticks = [];
  for (let e = first; e <= last; e++)
    for (const part of [1, 2, 3, 4, 5, 6, 7, 8, 9]) {
      const value = part * 10 ** e;
      if (value < low * 0.9999 || value > high * 1.0001) continue;
      const labelled = parts.includes(part) && (part > 1 || e % stride === 0);
      if (labelled || stride === 1) ticks.push({ value, text: labelled ? tick(value) : "" });
    }
  return ticks;
};

const least = (values) => values.reduce((a, b) => Math.min(a, b), Infinity);

// The range of the values with some air; a logarithmic one from what is positive.
const range = (values, log, air = 0.04) => {
  const kept = values.filter((v) => v !== null && (!log || v > 0));
  if (!kept.length) return log ? [0.1, 1] : [0, 1];
  let [low, high] = [least(kept), -least(kept.map((v) => -v))];
  if (log) {
    if (low === high) [low, high] = [low / 2, high * 2];
    const factor = (high / low) ** air;
    return [low / factor, high * factor];
  }
  if (low === high) [low, high] = [low - (Math.abs(low) || 1) / 2, high + (Math.abs(high) || 1) / 2];
  return [low - (high - low) * air, high + (high - low) * air];
};
