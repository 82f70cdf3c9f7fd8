// The head of the page: what was run, what is wrong with it, light or dark.
const commits = () => {
  const { common, keys, rows } = data.environment;
  const column = keys.findIndex((key) => /commit/.test(key));
  const found = column < 0 ? common.filter(([key]) => /commit/.test(key)).map(([, value]) => value)
    : rows.map((row) => row[column][0]);
  return [...new Set(found)].filter((value) => !["none", "–"].includes(value));
};
const facts = () => {
  const labels = [...new Set(data.groups.map((group) => group.label))];
  const methods = new Set(data.groups.map((group) => group.method).filter((method) => method));
  const [commit, ...others] = commits();
  return [
    labels.length && plural(labels.length, methods.size === labels.length ? "method" : "configuration"),
    plural(data.runs.length, "run"),
    data.problems.length === 1 ? data.problems[0] : data.problems.length && plural(data.problems.length, "problem"),
    others.length ? `${others.length + 1} commits` : commit?.replace(/^(.{12})[^+]*/, "commit $1"), // +: changed since
  ].filter((text) => text).join("  ·  ");
};

const showWarning = () => {
  const open = data.runs.filter((run) => run.notes.length || run.tone !== "good").length;
  const are = open === 1 ? "is" : "are";
  find("warning").hidden = !open;
  find("warning").replaceChildren(
    `${open} of ${plural(data.runs.length, "run")} ${are} incomplete, unfinished or broken: `,
    make("a", { href: "#runs-title" }, "see the runs"), ".");
};

const showHead = () => {
  find("facts").textContent = facts();
  find("note").textContent = data.note;
  find("note").hidden = !data.note;
  showWarning();
};

const startTheme = () => {
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)");
  const dark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const show = () => {
    find("theme").textContent = dark() ? "Light" : "Dark";
    find("theme").setAttribute("aria-label", `Switch to ${dark() ? "light" : "dark"} colours`);
  };
  find("theme").addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    show();
  });
  system.addEventListener("change", show);
  show();
};
