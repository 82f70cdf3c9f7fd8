// Numbers as a reader wants them.
const MINUS = "−", THIN = " ";
const superscript = (power) => String(power).replace(/./g, (c) => (c === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[c]));
const signed = (text) => text.replace("-", MINUS);
const power = (value) => (value ? Math.floor(Math.log10(Math.abs(value)) + 1e-12) : 0);
const grouped = (text) => text.replace(/\B(?=(\d{3})+(?!\d))/g, THIN);

// 0.1234, 1.235×10⁻⁵, 12 345
const number = (value, digits = 4) => {
  if (value === null || value === undefined) return "–";
  const e = power(value);
  if (Number.isInteger(value) && e < 9) return decimal(value, 0);
  if (e < -3 || e > 8) return `${signed((value / 10 ** e).toFixed(digits - 1))}×10${superscript(e)}`;
  if (e >= digits - 1) return decimal(value, 0);
  return signed(value.toFixed(Math.max(0, digits - 1 - Math.min(e, digits - 1))));
};

// Decimals at which a spread keeps two digits (one from 0.35 on), and values are told apart.
const places = (spread) => {
  const e = power(spread);
  return Math.min(8, Math.max(0, (spread / 10 ** e < 3.5 ? 1 : 0) - e));
};
const decimal = (value, digits) => {
  const [whole, rest] = value.toFixed(digits).split(".");
  return signed(whole.length > 4 ? grouped(whole) : whole) + (rest ? `.${rest}` : "");
};

// [mean, spread, unit]: 0.0123, 0.0011, ""; 14.08, 0.55, "M" where units are asked for; small ones by powers of ten
const parts = (mean, sd, units) => {
  const e = power(mean);
  const unit = units && e >= 6 ? 6 : units && e >= 4 ? 3 : e < -3 || e > 8 ? e : 0;
  const [a, b] = [mean / 10 ** unit, (sd ?? 0) / 10 ** unit];
  const digits = b ? places(b) : Math.max(0, 3 - power(a));
  const mark = unit === 0 ? "" : units && unit === 6 ? "M" : units && unit === 3 ? "k" : `×10${superscript(unit)}`;
  if (sd === null || sd === undefined) return [units ? signed(String(+a.toPrecision(4))) : decimal(a, digits), null, mark];
  return [decimal(a, digits), decimal(b, digits), mark];
};
const within = (mean, sd, units = false) => {
  if (mean === null || mean === undefined) return "–";
  const [a, b, unit] = parts(mean, sd, units);
  if (b === null) return a + unit;
  return unit.length > 1 ? `(${a} ± ${b})${unit}` : unit ? `${a} ± ${b} ${unit}` : `${a} ± ${b}`;
};

// ticks: 0, 250, 10k, 1.5M; small ones with as many digits as the step asks for
const tick = (value, step) => {
  if (value === 0) return "0";
  const size = Math.abs(value);
  for (const [unit, letter] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]])
    if (size >= unit && size >= 1e4) return signed(String(+(value / unit).toPrecision(4))) + letter;
  const e = power(value);
  if (size < 1e-3) return signed(`${+(value / 10 ** e).toPrecision(3)}×10${superscript(e)}`).replace(/^(−?)1×/, "$1");
  return signed(step ? value.toFixed(Math.max(0, -power(step))) : String(+value.toPrecision(3)));
};

const chance = (p) => (p === null || p === undefined ? "–" : p < 1e-4 ? "< 0.0001" : p.toFixed(p < 0.01 ? 4 : 3));
const sum = (values) => values.reduce((a, b) => a + b, 0);
const average = (values) => (values.length ? sum(values) / values.length : null);
const deviation = (values) => {
  if (values.length < 2) return null;
  const mean = average(values);
  return Math.sqrt(sum(values.map((v) => (v - mean) ** 2)) / (values.length - 1));
};
const plural = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;
