/* The page "Find a recipe": filters, a table, and a dialog with the evidence and the commands of one recipe.
   Recipes and evidence are written by others, so everything that comes from them is set as text, never as HTML. */
(() => {
  "use strict";

  const SVG = "http://www.w3.org/2000/svg";
  const ASSETS = new URL(".", document.currentScript.src);
  const STROKED = { fill: "none", stroke: "currentColor", "stroke-width": 1.6 };
  const RING = ["circle", { cx: 8, cy: 8, r: 6.2, ...STROKED }];
  // A shape for each standing, since colour alone would not reach everyone.
  const ICONS = {
    "proven": [["path", { "fill-rule": "evenodd",
      d: "M8 1a7 7 0 1 0 0 14A7 7 0 0 0 8 1Zm3.9 5.3-4.5 5a.8.8 0 0 1-1.2 0L4.1 9.2l1.2-1.1 1.5 1.6 3.9-4.5Z" }]],
    "failing": [["path", { "fill-rule": "evenodd",
      d: "M5.2 1h5.6L15 5.2v5.6L10.8 15H5.2L1 10.8V5.2Zm.1 5.4L6.9 8 5.3 9.6l1.1 1.1L8 9.1l1.6 1.6 1.1-1.1L9.1 8" +
        "l1.6-1.6-1.1-1.1L8 6.9 6.4 5.3Z" }]],
    "stale": [RING, ["path", { d: "M8 4.2V8l2.5 1.7", ...STROKED }]],
    "unsupported": [RING, ["path", { d: "m3.7 12.3 8.6-8.6", ...STROKED }]],
    "claimed": [["path", { d: "M1.8 2.8h12.4v8H7.5l-3.2 2.9v-2.9H1.8Z", ...STROKED }]],
    "not run": [["circle", { cx: 8, cy: 8, r: 6.2, ...STROKED, "stroke-dasharray": "2.4 2.47" }]],
    "warning": [["path", { "fill-rule": "evenodd", d: "M8 1 15.5 14.5H.5Zm-.8 4.8v4.4h1.6V5.8Zm0 5.5v1.6h1.6v-1.6Z" }]],
  };
  const MARKS = { pass: "proven", fail: "failing", error: "warning", unsupported: "unsupported" };
  const COLUMNS = ["Standing", "Recipe", "Model", "Feature", "Engine and connector", "Hardware", "Measured"];

  const root = document.getElementById("kvproof-matrix");
  const known = window.kvproofMatrix ?? {};
  const data = known.cells;
  const cells = new Map((data?.cells ?? []).map((cell) => [cell.recipe, cell]));
  const loading = new Map();
  const rows = new Map();
  const counters = [];
  const state = { selected: {}, recipe: null, tab: "evidence", form: null, gpus: null };
  const parts = {};

  // --- making elements -------------------------------------------------------------------------------------------

  function el(tag, attributes = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
      else if (value === true) made.setAttribute(name, "");
      else if (value !== null && value !== undefined && value !== false) made.setAttribute(name, value);
    }
    made.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
    return made;
  }

  function svg(tag, attributes = {}, ...children) {
    const made = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...children);
    return made;
  }

  function icon(name) {
    const shapes = (ICONS[name] ?? ICONS["not run"]).map(([tag, attributes]) => svg(tag, attributes));
    return svg("svg", { class: "kvm-icon", viewBox: "0 0 16 16", "aria-hidden": "true", fill: "currentColor" },
      ...shapes);
  }

  function badge(word, kind = word) {
    return el("span", { class: "kvm-badge", "data-kind": kind }, icon(kind), word);
  }

  /* A link for an address of the web; whatever else a source is, such as a thread's title, stays text. */
  function link(text, address) {
    return /^https?:\/\//i.test(address ?? "") ? el("a", { href: address }, text) : el("span", {}, text);
  }

  /* A model's name, which may be broken before each of its parts. */
  function modelName(name) {
    return el("span", {}, name.split(/(?<=\/)/).map((part) => [el("span", { class: "kvm-part" }, part), el("wbr")]));
  }

  /* A name of the evidence, which may be broken after each of its words. */
  function code(name) {
    return el("code", {}, name.split(/(?<=_)/).flatMap((word) => [word, el("wbr")]).slice(0, -1));
  }

  // --- words for what was measured -------------------------------------------------------------------------------

  function number(value, unit = "") {
    if (value === null || value === undefined) return "not measured";
    if (typeof value !== "number") return String(value);
    if (unit === "yes") return value ? "yes" : "no";
    const digits = Number.isInteger(value) || Math.abs(value) >= 10000 ? { maximumFractionDigits: 0 }
      : { maximumSignificantDigits: 4 };
    return value.toLocaleString("en", digits);
  }

  function quantity(value, unit) {
    const bare = typeof value !== "number" || ["", "yes", "count"].includes(unit);
    return bare ? number(value, unit) : `${number(value, unit)} ${unit}`;
  }

  function times(ratio) {
    return `${number(Number(ratio.toPrecision(3)))}×`;
  }

  /* The same with the unit set apart, since the numbers are what the eye looks for. */
  function measured(value, unit) {
    const [head, ...rest] = quantity(value, unit).split(" ");
    return typeof value === "number" && rest.length ? [head, el("span", { class: "kvm-unit" }, ` ${unit}`)]
      : quantity(value, unit);
  }

  function plural(count, word) {
    return `${count} ${word}${count === 1 ? "" : "s"}`;
  }

  function gib(bytes) {
    return `${Math.round(bytes / 2 ** 30)} GiB`;
  }

  function hardware(cell) {
    if (!cell.hardware) return needs(cell.needs);
    const { cpu, cores, memory_bytes: memory, gpus, gpu_driver: driver } = cell.hardware;
    const counts = new Map();
    for (const name of gpus) counts.set(name, (counts.get(name) ?? 0) + 1);
    const words = [...counts].map(([name, count]) => `${count} × ${name}`);
    if (words.length && driver) words.push(`driver ${driver}`);
    return [...words, cpu, plural(cores, "core"), gib(memory)].join(", ");
  }

  function needs({ gpus, gpu_memory_gib: each, memory_gib: memory }) {
    const what = gpus ? plural(gpus, "GPU") + (each ? ` with ${each} GiB${gpus > 1 ? " each" : ""}` : "") : "no GPU";
    return `needs ${what}, ${memory} GiB of memory`;
  }

  /* As it was reported; what the recipe pins where nothing ran. */
  function version(cell, part) {
    const [name, pin, reported] = [cell[part], cell[`${part}_pin`], cell[`${part}_version`]];
    if (!cell.evidence) return pin ? `${name} ${pin} (pinned)` : name;
    return reported ? `${name} ${reported}` : pin ? `${name}, version not reported` : name;
  }

  function speedup(cell) {
    const point = cell.ttft.at(-1);
    return point && typeof point.speedup_ratio === "number"
      ? `TTFT ${times(point.speedup_ratio)} faster at ${number(point.tokens)} tokens` : null;
  }

  function said(cell) {
    return [...new Set(cell.claims.map((claim) => claim.says))].join(", ");
  }

  // --- what is chosen, and the address that keeps it -------------------------------------------------------------

  function chosen(key) {
    return (state.selected[key] ??= new Set());
  }

  function matches(cell, except = null) {
    return data.facets.every(({ key }) => key === except || !chosen(key).size || chosen(key).has(cell[key]));
  }

  function count(test) {
    return data.cells.filter(test).length;
  }

  function readAddress() {
    const given = new URLSearchParams(location.hash.slice(1));
    for (const { key } of data.facets) state.selected[key] = new Set(given.getAll(key));
    state.recipe = cells.has(given.get("recipe")) ? given.get("recipe") : null;
    state.tab = given.get("tab") === "run" ? "run" : "evidence";
    if (given.has("form")) state.form = given.get("form");
    if (given.has("gpus")) state.gpus = given.get("gpus");
  }

  function writeAddress() {
    const kept = new URLSearchParams();
    for (const { key } of data.facets) for (const name of chosen(key)) kept.append(key, name);
    if (state.recipe) kept.set("recipe", state.recipe);
    if (state.recipe && state.tab === "run") {
      kept.set("tab", "run");
      if (state.form) kept.set("form", state.form);
      if (state.gpus) kept.set("gpus", state.gpus);
    }
    const text = kept.toString();
    history.replaceState(history.state, "", text ? `#${text}` : location.pathname + location.search);
  }

  function select(change) {
    change();
    writeAddress();
    update();
  }

  function clear() {
    select(() => { state.selected = {}; });
    parts.status.focus();
  }

  // --- filters ---------------------------------------------------------------------------------------------------

  function option(facet, { name, means }) {
    const box = el("input", { type: "checkbox", value: name, "data-facet": facet.key, onchange: () => select(() => {
      if (box.checked) chosen(facet.key).add(name);
      else chosen(facet.key).delete(name);
    }) });
    const total = el("span", { class: "kvm-count" });
    const label = el("label", { class: "kvm-option", title: means }, box,
      facet.key === "standing" ? badge(name) : el("span", {}, name), total);
    counters.push(() => {
      const here = count((cell) => cell[facet.key] === name && matches(cell, facet.key));
      box.checked = chosen(facet.key).has(name);
      total.textContent = here;
      label.classList.toggle("is-empty", !here);
    });
    return label;
  }

  function standings(facet) {
    return el("fieldset", { class: "kvm-standings" }, el("legend", {}, facet.label),
      facet.values.map((value) => option(facet, value)));
  }

  function menu(facet) {
    const summary = el("summary", {});
    const made = el("details", { class: "kvm-menu", "data-facet": facet.key }, summary,
      el("fieldset", {}, el("legend", { class: "kvm-hidden" }, facet.label),
        facet.values.map((value) => option(facet, value))));
    made.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || !made.open) return;
      made.open = false;
      summary.focus();
    });
    made.addEventListener("focusout", (event) => {
      if (event.relatedTarget && !made.contains(event.relatedTarget)) made.open = false;
    });
    document.addEventListener("click", (event) => { if (!made.contains(event.target)) made.open = false; });
    counters.push(() => {
      const names = [...chosen(facet.key)];
      summary.replaceChildren(el("span", { class: "kvm-menu-name" }, facet.label),
        el("span", { class: "kvm-menu-value" }, names.length ? names.join(", ") : "any"));
      made.classList.toggle("is-set", names.length > 0);
    });
    return made;
  }

  function filters() {
    const [first, ...others] = data.facets;
    return el("div", { class: "kvm-filters", role: "group", "aria-label": "Filters" },
      standings(first), el("div", { class: "kvm-menus" }, others.map(menu)));
  }

  function loosen(facet) {
    const here = count((cell) => matches(cell, facet.key));
    const names = [...chosen(facet.key)].join(", ");
    const drop = () => {
      select(() => chosen(facet.key).clear());
      parts.status.focus();
    };
    return here && el("li", {}, el("button", { type: "button", class: "kvm-button", "data-facet": facet.key,
      onclick: drop }, `Drop ${facet.label.toLowerCase()} ${names}`), ` leaves ${plural(here, "recipe")}`);
  }

  function nothing() {
    const ways = data.facets.filter(({ key }) => chosen(key).size).map(loosen).filter(Boolean);
    return [el("p", {}, ways.length ? "No recipe matches all of these filters. To see some:"
      : "No recipe matches, whichever one of these filters is dropped; clear them all."), el("ul", {}, ways)];
  }

  // --- the table -------------------------------------------------------------------------------------------------

  function entry(label, ...children) {
    return el("td", { role: "cell", "data-label": label }, ...children);
  }

  function small(...children) {
    return el("div", { class: "kvm-small" }, ...children);
  }

  function standing(cell) {
    const flags = cell.contradictions.length
      ? el("div", { class: "kvm-flag" }, icon("warning"), plural(cell.contradictions.length, "contradiction")) : null;
    const under = cell.stand_ins.map((other) => small(`in small: ${other.standing}`));
    return [badge(cell.standing), flags, cell.standing === "claimed" ? small(`upstream: ${said(cell)}`) : null, under];
  }

  function row(cell) {
    const button = el("button", { type: "button", class: "kvm-open", "aria-haspopup": "dialog",
      "aria-expanded": "false", onclick: () => show(cell.recipe) }, cell.recipe);
    const made = el("tr", { role: "row", "data-recipe": cell.recipe, onclick: (event) => {
      // The whole row opens, for those with a pointer; selecting its text does not.
      if (!event.target.closest("a, button") && getSelection().isCollapsed) show(cell.recipe);
    } },
    entry("Standing", standing(cell)),
    entry("Recipe", button, small(cell.title)),
    entry("Model", modelName(cell.model), small(`${cell.weights} weights`)),
    entry("Feature", cell.feature),
    entry("Engine and connector", version(cell, "engine"), small(version(cell, "connector"))),
    entry("Hardware", el("span", {}, hardware(cell))),
    entry("Measured", speedup(cell) ?? "–", cell.date ? small(cell.date) : null));
    rows.set(cell.recipe, { made, button });
    return made;
  }

  function table() {
    return el("div", { class: "kvm-table-box" }, el("table", { class: "kvm-table", role: "table" },
      el("caption", { class: "kvm-hidden" }, "Recipes that match the filters"),
      el("thead", { role: "rowgroup" }, el("tr", { role: "row" },
        COLUMNS.map((name) => el("th", { role: "columnheader", scope: "col" }, name)))),
      el("tbody", { role: "rowgroup" }, data.cells.map(row))));
  }

  // --- evidence of one recipe ------------------------------------------------------------------------------------

  function section(title, ...children) {
    return el("section", {}, el("h3", {}, title), ...children);
  }

  function notices(cell) {
    const lines = cell.contradictions.map((text) => el("li", { class: "is-warning" }, icon("warning"),
      " Contradiction: ", text));
    if (cell.reason && cell.standing !== "claimed") lines.push(el("li", {}, `Why ${cell.standing}: ${cell.reason}`));
    lines.push(...cell.notes.map((text) => el("li", {}, text)));
    lines.push(...cell.stand_ins.map((other) => el("li", {}, "In small: ", jump(other.recipe),
      ` is ${other.standing} with ${other.weights} weights.`)));
    if (cell.stands_for) lines.push(el("li", {}, "It stands in for ", jump(cell.stands_for),
      ", whose path it takes with a small model."));
    return lines.length ? el("ul", { class: "kvm-notices" }, lines) : null;
  }

  /* A way to another recipe's evidence; its name alone where it is not in the table. */
  function jump(name) {
    return cells.has(name)
      ? el("button", { type: "button", class: "kvm-link", onclick: () => show(name) }, name) : name;
  }

  function facts(cell) {
    const ran = cell.evidence !== null;
    const list = [
      ["Model", `${cell.model} at ${cell.revision.slice(0, 12)}`], ["Weights", cell.weights], ["Feature", cell.feature],
      ["Engine", version(cell, "engine")], ["Connector", version(cell, "connector")],
      ran && ["Ran on", hardware(cell)], ["Needs", needs(cell.needs).replace(/^needs /, "")],
      ran && ["Run", `${cell.run_id}, ${cell.date}, ${cell.runtime}`],
    ].filter(Boolean);
    return el("dl", { class: "kvm-facts" }, list.map(([name, text]) => el("div", {}, el("dt", {}, name),
      el("dd", {}, text))));
  }

  function links(cell) {
    return el("p", { class: "kvm-links" }, el("a", { href: cell.page }, "Recipe page"),
      cell.evidence ? el("a", { href: cell.evidence }, "Evidence file (JSON)")
        : el("span", {}, "No run is on record."));
  }

  function grid(head, lines, kind) {
    return el("div", { class: "kvm-table-box", tabindex: 0, role: "region", "aria-label": head[0] },
      el("table", { class: `kvm-grid ${kind}` },
        el("thead", {}, el("tr", {}, head.map((name) => el("th", { scope: "col" }, name)))),
        el("tbody", {}, lines.map((line) => el("tr", {}, line.map((child) => el("td", {}, child)))))));
  }

  function numbers(cell) {
    if (!cell.numbers.length) return null;
    return section("Numbers", el("dl", { class: "kvm-numbers" }, cell.numbers.map(({ name, value, unit }) =>
      el("div", {}, el("dt", {}, code(name)), el("dd", { "data-number": name }, measured(value, unit))))));
  }

  function bar(point, name, y, longest) {
    const share = (point[`${name}_s`] / longest) * 60;
    const label = `${name} ${quantity(point[`${name}_s`], "s")}`;
    return [svg("rect", { class: `kvm-${name}`, x: 1, y, width: `${Math.max(share, 0.5)}%`, height: 14, rx: 2 }),
      svg("text", { x: `${share}%`, dx: 8, y: y + 11 }, label)];
  }

  /* Bars whose lengths are in percent: the plot grows with its box, and its text does not. */
  function plot(cell) {
    if (!cell.ttft.length) return null;
    const longest = Math.max(...cell.ttft.flatMap((point) => [point.cold_s, point.warm_s])) || 1;
    const step = 64;
    const shapes = cell.ttft.flatMap((point, place) => {
      const y = place * step;
      const faster = typeof point.speedup_ratio === "number" ? `, ${times(point.speedup_ratio)} faster warm` : "";
      const title = svg("text", { x: 0, y: y + 12, class: "kvm-plot-title" },
        `${number(point.tokens)} tokens${faster}`);
      return [title, ...bar(point, "cold", y + 18, longest), ...bar(point, "warm", y + 36, longest)];
    });
    const words = cell.ttft.map((point) => `${point.tokens} tokens: cold ${quantity(point.cold_s, "s")}, warm ` +
      quantity(point.warm_s, "s")).join("; ");
    return section("Time to first token", el("figure", { class: "kvm-plot" },
      svg("svg", { role: "img", "aria-label": words, width: "100%", height: cell.ttft.length * step }, ...shapes),
      el("figcaption", {}, "Cold: the first pass. Warm: after the engine's own cache was emptied, so only the " +
        "connector can serve it.")));
  }

  function limit({ limit: bound, relation, unit, holds }) {
    if (bound === null || relation === null) return "";
    const words = { ">=": "at least", "<=": "at most", "==": "exactly" };
    return `${words[relation]} ${number(bound, unit)}${holds === false ? " (not kept)" : ""}`;
  }

  function check(result) {
    const mark = badge(result.verdict.replace("_", " "), MARKS[result.verdict] ?? "not run");
    const lines = result.measurements.map((m) => [code(m.name), measured(m.value, m.unit), limit(m), m.source]);
    return el("details", { class: "kvm-check", open: result.verdict !== "pass" },
      el("summary", {}, mark, el("span", { class: "kvm-name" }, result.name),
        result.required ? null : el("span", { class: "kvm-small" }, "reported only"),
        result.reason ? el("span", { class: "kvm-reason" }, result.reason) : null),
      result.link ? el("p", {}, "Upstream: ", link(result.link, result.link)) : null,
      lines.length ? grid(["Measurement", "Value", "Limit", "Source"], lines, "kvm-measurements")
        : el("p", {}, "It measured nothing."));
  }

  /* What was measured of a figure that somebody claims. */
  function beside(cell, name) {
    const found = cell.numbers.find((number) => number.name === name);
    return found ? measured(found.value, found.unit) : cell.evidence ? "not measured" : "not run";
  }

  function claim(cell, { says, text, source, date, numbers: figures }) {
    const stand_ins = cell.stand_ins.map((other) => cells.get(other.recipe)).filter(Boolean);
    const lines = Object.entries(figures).map(([name, value]) => [code(name), number(value), beside(cell, name),
      ...stand_ins.map((other) => beside(other, name))]);
    const head = ["Figure", "Claimed", "Measured here", ...stand_ins.map((other) => other.recipe)];
    return el("div", { class: "kvm-claim" },
      el("p", {}, "Upstream says ", el("strong", {}, says), ": ", text, " ",
        el("span", { class: "kvm-small" }, link(source, source), `, read on ${date}`)),
      lines.length ? grid(head, lines, "kvm-claims") : null);
  }

  function caveats(cell) {
    return el("ul", { class: "kvm-caveats" }, cell.caveats.map((caveat) => el("li", {}, caveat.text, " ",
      el("span", { class: "kvm-reason" }, caveat.reason), caveat.link ? [" ", link("Upstream", caveat.link)] : null)));
  }

  function evidence(cell) {
    return [
      notices(cell), facts(cell), links(cell),
      el("div", { class: "kvm-columns" }, numbers(cell), plot(cell)),
      cell.checks.length ? section("Checks", cell.checks.map(check)) : null,
      cell.claims.length ? section("Claims", el("p", { class: "kvm-small" }, "Nothing of it is evidence."),
        cell.claims.map((said) => claim(cell, said))) : null,
      cell.caveats.length ? section("Caveats", caveats(cell)) : null,
    ];
  }

  // --- commands of one recipe ------------------------------------------------------------------------------------

  /* What is heavy is loaded once it is wanted, by a script, since a page on a disk may not fetch. */
  function load(name) {
    const key = `recipe-${name}`;
    if (!loading.has(key)) {
      loading.set(key, new Promise((resolve, reject) => {
        const failed = () => { loading.delete(key); reject(new Error(`${key} could not be loaded`)); };
        const script = el("script", { src: new URL(`matrix-data/${encodeURIComponent(key)}.js`, ASSETS),
          onload: () => (known[key] ? resolve(known[key]) : failed()), onerror: failed });
        document.head.append(script);
      }));
    }
    return loading.get(key);
  }

  function choice(title, key, options, change) {
    const radio = (value) => el("input", { type: "radio", name: `kvm-${key}`, value, checked: state[key] === value,
      onchange: () => { state[key] = value; change(); } });
    return el("fieldset", { class: "kvm-choice" }, el("legend", {}, title),
      options.map(([value, label]) => el("label", {}, radio(value), el("span", {}, label))));
  }

  function selectText(node) {
    const range = document.createRange();
    range.selectNodeContents(node);
    getSelection().removeAllRanges();
    getSelection().addRange(range);
  }

  async function copy(node, status) {
    try {
      await navigator.clipboard.writeText(node.textContent);
      status.textContent = "Copied.";
    } catch { // without permission, or on a page that is not served securely
      selectText(node);
      status.textContent = "Selected; press Ctrl+C or ⌘C to copy.";
    }
  }

  function block(text, title, kind) {
    const inside = el("code", {}, text);
    const status = el("span", { class: "kvm-small", role: "status" });
    const button = el("button", { type: "button", class: "kvm-button", "aria-label": `Copy: ${title}`,
      onclick: () => copy(inside, status) }, "Copy");
    return el("section", { class: `kvm-code ${kind}` },
      el("div", { class: "kvm-copy" }, el("h3", {}, title), status, button),
      el("pre", { tabindex: 0, role: "region", "aria-label": title }, inside));
  }

  function output(made) {
    if (made.error === undefined) return block(made.text, "What it prints", "kvm-text");
    return el("p", { class: "kvm-notices is-warning" }, icon("warning"), ` Not to be had in this form: ${made.error}`,
      made.tip ? ` Next: ${made.tip}` : "");
  }

  function builder(panel, cell, made) {
    const shown = el("div", { class: "kvm-panel" });
    const own = String(made.gpus[0]);
    const fresh = () => {
      const picked = made.forms[state.form][state.gpus];
      shown.replaceChildren(block(picked.command, "Command", "kvm-command"), output(picked));
    };
    const change = () => { fresh(); writeAddress(); };
    if (!Object.hasOwn(made.forms, state.form ?? "")) state.form = data.forms[0];
    if (!made.gpus.map(String).includes(state.gpus)) state.gpus = own;
    const counts = made.gpus.map((gpus) => [String(gpus), gpus === 0 ? "CPU" : plural(gpus, "GPU") +
      (String(gpus) === own && made.gpus.length > 1 ? " (the recipe's)" : "")]);
    panel.replaceChildren(
      el("div", { class: "kvm-choices" }, choice("Form", "form", data.forms.map((form) => [form, form]), change),
        choice("Hardware", "gpus", counts, change)),
      cell.standing === "proven" ? el("p", { class: "kvm-small" }, "What was proven is the run of ",
        el("code", {}, `./inv recipe ${cell.recipe}`), "; these forms start the same servers elsewhere.") : "", shown);
    fresh();
  }

  function run(cell) {
    const panel = el("div", { class: "kvm-panel" }, el("p", { role: "status" }, "Loading…"));
    load(cell.recipe).then((made) => builder(panel, cell, made), () => panel.replaceChildren(el("p", { role: "alert" },
      "The texts of this recipe could not be loaded. This prints them: ",
      el("code", {}, `./inv export ${cell.recipe} --to ${data.forms[0]}`))));
    return panel;
  }

  // --- the dialog ------------------------------------------------------------------------------------------------

  const TABS = [["evidence", "Evidence", evidence], ["run", "Run it", run]];

  function pick(tab, cell) {
    state.tab = tab;
    for (const [name, , make] of TABS) {
      const [button, panel] = [parts.tabs[name], parts.panels[name]];
      button.setAttribute("aria-selected", String(name === tab));
      button.tabIndex = name === tab ? 0 : -1;
      panel.hidden = name !== tab;
      if (name === tab && !panel.hasChildNodes()) panel.append(...[make(cell)].flat().filter(Boolean));
    }
  }

  function tablist(cell) {
    const list = el("div", { class: "kvm-tabs", role: "tablist", "aria-label": "What to see" });
    for (const [name, label] of TABS) {
      const button = el("button", { type: "button", role: "tab", id: `kvm-tab-${name}`,
        "aria-controls": `kvm-panel-${name}`, onclick: () => { pick(name, cell); writeAddress(); } }, label);
      parts.tabs[name] = button;
      parts.panels[name] = el("div", { class: "kvm-panel", role: "tabpanel", id: `kvm-panel-${name}`,
        "aria-labelledby": `kvm-tab-${name}` });
      list.append(button);
    }
    list.addEventListener("keydown", (event) => {
      if (!["ArrowLeft", "ArrowRight"].includes(event.key)) return;
      const other = TABS.find(([name]) => name !== state.tab)[0];
      pick(other, cell);
      writeAddress();
      parts.tabs[other].focus();
    });
    return list;
  }

  function fill(cell) {
    parts.tabs = {};
    parts.panels = {};
    const close = el("button", { type: "button", class: "kvm-close", "aria-label": "Close",
      onclick: () => parts.dialog.close() }, "✕");
    const head = el("header", {}, el("div", { class: "kvm-title" }, badge(cell.standing),
      el("h2", { id: "kvm-dialog-title", tabindex: -1 }, cell.recipe), close), el("p", {}, cell.title), tablist(cell));
    parts.dialog.replaceChildren(head, el("div", { class: "kvm-body" }, Object.values(parts.panels)));
    pick(state.tab, cell);
  }

  function show(name) {
    if (state.recipe !== name) state.tab = "evidence";
    state.recipe = name;
    writeAddress();
    update();
  }

  function hide() {
    const name = state.recipe;
    parts.shown = null;
    state.recipe = null;
    writeAddress();
    update();
    if (!name) return;
    const { made, button } = rows.get(name);
    (made.hidden ? parts.status : button).focus();
  }

  function updateDialog() {
    for (const [name, { button }] of rows) button.setAttribute("aria-expanded", String(name === state.recipe));
    if (!state.recipe) {
      if (parts.dialog.open) parts.dialog.close();
      return;
    }
    if (parts.shown === state.recipe) return;
    parts.shown = state.recipe;
    fill(cells.get(state.recipe));
    if (!parts.dialog.open) parts.dialog.showModal();
    parts.dialog.querySelector("h2").focus();
    parts.dialog.querySelector(".kvm-body").scrollTop = 0;
  }

  function dialog() {
    const made = el("dialog", { class: "kvm-dialog", "aria-labelledby": "kvm-dialog-title", onclose: hide });
    // Outside the dialog's content is its backdrop.
    made.addEventListener("click", (event) => { if (event.target === made) made.close(); });
    // The theme's own keys, such as those for the next page, are not for here.
    made.addEventListener("keydown", (event) => event.stopPropagation());
    return made;
  }

  // --- the page --------------------------------------------------------------------------------------------------

  function update() {
    for (const refresh of counters) refresh();
    const fits = count((cell) => matches(cell));
    for (const [name, { made }] of rows) made.hidden = !matches(cells.get(name));
    const active = data.facets.some(({ key }) => chosen(key).size);
    parts.status.textContent = active ? `${fits} of ${plural(data.cells.length, "recipe")}`
      : plural(data.cells.length, "recipe");
    parts.clear.disabled = !active;
    parts.table.hidden = !fits;
    parts.nothing.hidden = fits > 0;
    parts.nothing.replaceChildren(...(fits ? [] : nothing()));
    updateDialog();
  }

  function leftOut() {
    if (!data.left_out) return "";
    return el("p", { class: "kvm-small" }, "Left out, since it cannot be used or belongs to no recipe: ",
      `${plural(data.left_out, "file")}; see `, el("a", { href: "support-matrix.html" }, "the support matrix"), ".");
  }

  /* Somebody put another view's address in; a heading's, such as that of the link that skips the menu, is no view. */
  function follow() {
    if (location.hash && !location.hash.includes("=")) return;
    readAddress();
    parts.shown = null;
    update();
  }

  function start() {
    parts.status = el("p", { role: "status", tabindex: -1, class: "kvm-status" });
    parts.clear = el("button", { type: "button", class: "kvm-button kvm-clear", onclick: clear }, "Clear filters");
    parts.table = table();
    parts.nothing = el("div", { class: "kvm-nothing" });
    parts.dialog = dialog();
    root.replaceChildren(filters(), el("div", { class: "kvm-bar" }, parts.status, parts.clear), parts.table,
      parts.nothing, leftOut(), parts.dialog);
    readAddress();
    update();
    addEventListener("hashchange", follow);
  }

  if (data) start();
  else root.replaceChildren(el("p", { role: "alert" }, "The data of this page could not be loaded. ",
    el("a", { href: "support-matrix.html" }, "The support matrix"), " says the same."));
})();
