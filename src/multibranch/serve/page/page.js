// The page: translate while one types, and show what every branch looked at.
// Whatever comes from the service or the reader is set as text, never as markup.
"use strict";
const byId = (id) => document.getElementById(id);
const NAMES = { cross: "Translation → source", encoder: "Within the source", decoder: "Within the translation" };
const PAUSE = 180; // milliseconds without a key before a request
const CANDIDATES = 5;
const state = {
  model: null, off: new Set(), kind: "cross", layer: 0, // layer 0: the mean of all
  token: "", seen: null, running: null, timer: 0,
};

function made(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "class") node.className = value;
    else if (key.startsWith("aria-") || key === "role" || key === "dir" || key === "type") node.setAttribute(key, value);
    else node[key] = value;
  }
  node.append(...children);
  return node;
}
function drawn(parent, name, attributes = {}, text = "") {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const key in attributes) node.setAttribute(key, attributes[key]);
  if (text) node.textContent = text;
  parent.append(node);
  return node;
}
function say(text, bad = false) {
  byId("said").textContent = text;
  byId("said").classList.toggle("bad", bad);
}

// -- Asking the service ---------------------------------------------------------------------

class Problem extends Error {
  constructor(status, message, retryAfter) {
    super(message);
    Object.assign(this, { status, retryAfter });
  }
}
async function ask(path, body, signal) {
  const headers = { "Content-Type": "application/json" };
  if (state.token) headers.Authorization = `Bearer ${state.token}`;
  const request = body === undefined ? { headers, signal }
    : { method: "POST", headers, body: JSON.stringify(body), signal };
  const answer = await fetch(path, request);
  const content = await answer.json().catch(() => ({}));
  signal?.throwIfAborted(); // while the answer was being read, too
  if (answer.ok) return content;
  throw new Problem(answer.status, content.error || `the service answered ${answer.status}`,
    Number(answer.headers.get("Retry-After")) || 2);
}

const numbers = () => Array.from({ length: state.model.branches }, (_, number) => number + 1);
const chosen = () => numbers().filter((number) => !state.off.has(number));
// Some layers may have more than those that can be chosen.
const drawable = () => [...new Set([...numbers(), ...state.seen.branches])].sort((one, other) => one - other);

function later(delay = PAUSE) {
  clearTimeout(state.timer);
  state.timer = setTimeout(translate, delay);
}

async function translate() {
  state.running?.abort(); // an answer to what stood there before is worth nothing
  // A lone half of a pair, as when a surrogate is being typed, is no character.
  const text = byId("source").value.toWellFormed?.() ?? byId("source").value;
  byId("clear").hidden = !text;
  if (!state.model) return;
  if (!text.trim()) return empty();
  const running = state.running = new AbortController();
  byId("target").classList.add("old");
  byId("maps").classList.add("old");
  const beam = Math.max(state.model.beam, Math.min(CANDIDATES, state.model.limits.beam));
  const asked = { text, n_best: Math.min(CANDIDATES, beam), beam };
  const some = state.off.size > 0;
  const branches = some ? { branches: chosen() } : {};
  const began = performance.now();
  try {
    const [answer, whole] = await Promise.all([
      ask("/translate", { ...asked, ...branches }, running.signal),
      some ? ask("/translate", { text, beam }, running.signal) : null,
    ]);
    show(answer.translations[0], whole?.translations[0].text ?? null);
    const took = `Translated in ${Math.round(performance.now() - began)} ms`;
    say(took);
    if (!state.model.can_inspect) return;
    try {
      state.seen = await ask("/inspect", { text, beam, kind: state.kind, ...branches }, running.signal);
    } catch (problem) {
      if (problem.status !== 422) throw problem;
      byId("attention").hidden = true; // a page of text has no readable heat map
      return say(`${took}. Too long to show what each branch looks at.`);
    }
    byId("maps").classList.remove("old");
    showAttention();
  } catch (problem) {
    failed(problem);
  }
}

function failed(problem) {
  if (problem.name === "AbortError") return;
  if (problem.status === 401) {
    byId("unlock").hidden = false;
    byId("token").focus();
    return say(state.token ? "That is not the token." : "", true);
  }
  if (problem.status === 503) {
    say(`The service is busy; trying again in ${problem.retryAfter} s.`, true);
    return later(1000 * problem.retryAfter);
  }
  if (problem.status === 422) empty(); // what is there is of another text
  say(problem.status ? problem.message : "The service cannot be reached.", true);
}

// -- The translation ------------------------------------------------------------------------

function empty() {
  say("");
  state.seen = null;
  for (const id of ["target", "list", "pointed"]) byId(id).textContent = "";
  for (const id of ["nbest", "attention", "copy", "before"]) byId(id).hidden = true;
  byId("target").classList.remove("old");
}

function show(translation, whole) {
  const target = byId("target");
  target.classList.remove("old");
  const changed = whole !== null && whole !== translation.text;
  target.replaceChildren(...(changed ? marked(translation.text, whole) : [translation.text]));
  byId("copy").hidden = !translation.text;
  byId("before").hidden = whole === null;
  if (whole !== null) {
    byId("before").textContent = changed ? `With all branches: ${whole}` : "The same as with all branches.";
  }
  const others = translation.hypotheses.slice(1);
  byId("nbest").hidden = !others.length;
  byId("list").replaceChildren(...others.map((one) => made("li", {},
    made("span", { class: "text", dir: "auto" }, ...marked(one.text, translation.text)),
    made("span", { class: "score" }, one.score.toFixed(2).replace("-", "−")))));
}

// The words of a text, those marked that another does not have in this order.
function marked(text, other) {
  const words = text.split(/(\s+)/), others = other.split(/(\s+)/);
  if (words.length * others.length > 250000) return [text];
  const common = Array.from({ length: words.length + 1 }, () => new Uint16Array(others.length + 1));
  for (let i = words.length - 1; i >= 0; i--) {
    for (let j = others.length - 1; j >= 0; j--) {
      common[i][j] = words[i] === others[j] ? common[i + 1][j + 1] + 1
        : Math.max(common[i + 1][j], common[i][j + 1]);
    }
  }
  const nodes = [];
  for (let i = 0, j = 0; i < words.length;) {
    if (words[i] === others[j] && j < others.length) { nodes.push(words[i++]); j++; }
    else if (j < others.length && common[i][j + 1] > common[i + 1][j]) j++;
    else if (words[i].trim()) nodes.push(made("mark", {}, words[i++]));
    else nodes.push(words[i++]);
  }
  return nodes;
}

// -- The branches ---------------------------------------------------------------------------

function showAttention() {
  const seen = state.seen;
  byId("attention").hidden = false;
  buttons("kinds", Object.keys(NAMES), state.kind, (kind) => NAMES[kind], (kind) => {
    state.kind = kind;
    later(0);
  });
  const layers = seen.layers.length > 1 ? [0, ...seen.layers.map((layer) => layer.layer)] : [];
  if (!layers.includes(state.layer)) state.layer = 0; // the other side may have more of them
  byId("layers").hidden = !layers.length;
  buttons("layers", layers, state.layer, (layer) => layer ? `Layer ${layer}` : "All layers", (layer) => {
    state.layer = layer;
    showAttention();
  });
  const focused = document.activeElement?.dataset?.map; // drawn anew, a map must not lose the focus
  byId("maps").replaceChildren(...drawable().map(figure));
  if (focused) byId("maps").querySelector(`[data-map="${Number(focused)}"]`)?.focus();
  point();
}

function makeSwitches() {
  const few = state.model.branches < 2;
  byId("switches").hidden = few;
  byId("switches").replaceChildren(...(few ? [] : numbers().map((number) => {
    const toggle = made("button", { class: `switch c${(number - 1) % 6}`, type: "button", role: "switch" },
      made("span", { class: "track", "aria-hidden": "true" }), made("span", { class: "name" }, `Branch ${number}`));
    toggle.addEventListener("click", () => {
      if (toggle.getAttribute("aria-disabled") === "true") return say("One branch must stay on.");
      if (state.off.has(number)) state.off.delete(number); else state.off.add(number);
      showSwitches();
      later(0);
    });
    return toggle;
  })));
  if (!few) showSwitches();
}

function showSwitches() {
  numbers().forEach((number) => {
    const toggle = byId("switches").children[number - 1], on = !state.off.has(number);
    toggle.setAttribute("aria-checked", String(on));
    toggle.setAttribute("aria-disabled", String(on && chosen().length === 1));
  });
}

function buttons(id, values, current, label, choose) {
  const place = byId(id);
  if (place.children.length !== values.length) {
    place.replaceChildren(...values.map((value) => {
      const button = made("button", { type: "button" }, label(value));
      button.addEventListener("click", () => choose(value));
      button.value = value;
      return button;
    }));
  }
  for (const button of place.children) button.setAttribute("aria-pressed", String(button.value === String(current)));
}

function figure(number) {
  const weights = weightsOf(number);
  const name = made("figcaption", {}, `Branch ${number}`);
  const content = weights ? made("div", { class: "scroll" }, heatMap(number, weights))
    : made("p", { class: "faint" }, state.off.has(number) ? "Switched off." : "This layer does not have it.");
  return made("figure", { class: `map card c${(number - 1) % 6}${weights ? "" : " off"}` }, name, content);
}

// A branch's weights [row][column]: of one layer, or the mean of all; null where there are none.
function weightsOf(number) {
  const place = state.seen.branches.indexOf(number);
  const layers = state.seen.layers.filter((layer) =>
    (!state.layer || layer.layer === state.layer) && layer.branches[place]);
  if (!layers.length) return null;
  return layers[0].branches[place].map((row, i) => row.map((_, j) =>
    layers.reduce((sum, layer) => sum + layer.branches[place][i][j], 0) / layers.length));
}

const cut = (token) => [...token].length > 14 ? [...token].slice(0, 13).join("") + "…" : token;
const pen = made("canvas").getContext("2d");

function room(tokens, size) {
  pen.font = `bold ${size}px ${getComputedStyle(document.body).fontFamily}`; // as where one points
  return 10 + Math.max(...tokens.map((token) => pen.measureText(cut(token)).width));
}
const fontSize = (cell) => Math.min(13, cell - 2);

// The largest cells with which a map fits. Where even small ones do not, it is scrolled, by more than a
// few pixels: a map whose last column is all but there looks cut.
function cellSize(wide) {
  const { rows, columns } = state.seen;
  for (let cell = 30; cell >= 11; cell--) {
    if (room(rows, fontSize(cell)) + columns.length * cell + 2 <= wide) return cell;
  }
  return 15;
}

function heatMap(number, weights) {
  const { rows, columns } = state.seen;
  const beside = innerWidth > 760 ? Math.min(drawable().length, 3) : 1; // as the style sheet has it
  const wide = (byId("maps").clientWidth - 16 * (beside - 1)) / beside - 36;
  const cell = cellSize(wide), size = fontSize(cell);
  const left = room(rows, size), top = room(columns, size);
  const width = left + columns.length * cell + 2, height = top + rows.length * cell + 2;
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  for (const [key, value] of Object.entries({ width, height, role: "img", tabindex: 0, "font-size": size })) {
    svg.setAttribute(key, value);
  }
  svg.setAttribute("aria-label", `Attention of branch ${number}; arrow keys read it out`);
  svg.dataset.map = number;
  columns.forEach((token, j) => drawn(svg, "text", {
    "data-column": j, transform: `translate(${left + (j + 0.5) * cell + size / 3},${top - 7}) rotate(-90)`,
  }, cut(token)));
  rows.forEach((token, i) => drawn(svg, "text", {
    "data-row": i, x: left - 8, y: top + (i + 0.5) * cell + size / 3, "text-anchor": "end",
  }, cut(token)));
  drawn(svg, "rect", { class: "frame", x: left, y: top, rx: 5, width: columns.length * cell + 1, height: rows.length * cell + 1 });
  weights.forEach((row, i) => row.forEach((weight, j) => {
    if (weight < 0.01) return;
    drawn(svg, "rect", {
      class: "cell", x: left + j * cell + 1.5, y: top + i * cell + 1.5, width: cell - 2, height: cell - 2, rx: 3,
      "fill-opacity": Math.min(1, weight ** 0.75).toFixed(3), // a tenth must already show
    });
  }));
  const cursor = drawn(svg, "rect", { class: "cursor", rx: 4, width: cell, height: cell, visibility: "hidden" });
  svg.point = (i, j) => {
    cursor.setAttribute("visibility", i < 0 ? "hidden" : "visible");
    cursor.setAttribute("x", left + j * cell + 0.5);
    cursor.setAttribute("y", top + i * cell + 0.5);
  };
  const hit = drawn(svg, "rect", { class: "hit", x: left, y: top, width: columns.length * cell, height: rows.length * cell });
  const within = (value, count) => Math.min(count - 1, Math.max(0, value));
  hit.addEventListener("pointermove", (event) => {
    const box = hit.getBoundingClientRect();
    point(number, weights, within(Math.floor((event.clientY - box.top) / cell), rows.length),
      within(Math.floor((event.clientX - box.left) / cell), columns.length));
  });
  hit.addEventListener("pointerleave", () => point());
  svg.addEventListener("blur", () => point());
  let at = [0, -1];
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (!step) return;
    event.preventDefault();
    at = [within(at[0] + step[0], rows.length), within(at[1] + step[1], columns.length)];
    point(number, weights, ...at);
  });
  return svg;
}

// The same cell is marked in every map, so that the branches can be compared.
function point(number, weights, i = -1, j = -1) {
  for (const svg of byId("maps").querySelectorAll("svg")) {
    svg.point(i, j);
    for (const text of svg.querySelectorAll("text")) {
      text.classList.toggle("on", i >= 0 && (text.dataset.row === String(i) || text.dataset.column === String(j)));
    }
  }
  const place = byId("pointed");
  if (i < 0) {
    return place.replaceChildren("Rows look at columns. Point at a cell, or move through a map with the arrow keys.");
  }
  const { rows, columns } = state.seen;
  place.replaceChildren(`Branch ${number}: `, made("b", {}, rows[i]), " looks at ", made("b", {}, columns[j]),
    ` with ${(100 * weights[i][j]).toFixed(0)} % of its attention.`);
}

// -- Beginning ------------------------------------------------------------------------------

function counted(model) {
  const most = Math.max(...model.layers), few = model.branches;
  return `${few < most ? `${few} to ${most}` : most} branch${most > 1 ? "es" : ""}`;
}

async function begin() {
  try {
    const model = state.model = await ask("/model");
    byId("unlock").hidden = true;
    byId("model").textContent = `${model.source_language} → ${model.target_language} · `
      + (model.branches ? counted(model) : "CTranslate2");
    makeSwitches();
    byId("source").lang = model.source_language;
    byId("target").lang = model.target_language;
    say("");
    translate();
  } catch (problem) {
    failed(problem);
    if (problem.status !== 401) setTimeout(begin, 2000);
  }
}

byId("source").addEventListener("input", () => later());
byId("clear").addEventListener("click", () => {
  byId("source").value = "";
  byId("source").focus();
  later(0);
});
byId("copy").addEventListener("click", async () => {
  try {
    await navigator.clipboard.writeText(byId("target").textContent);
    say("Copied.");
  } catch { say("The browser did not allow copying.", true); }
});
byId("unlock").addEventListener("submit", (event) => {
  event.preventDefault();
  const token = byId("token").value.trim();
  if (/[^ -~]/.test(token)) return say("That is not the token.", true); // no header could hold it
  state.token = token;
  begin();
});
let resizing = 0;
addEventListener("resize", () => {
  clearTimeout(resizing);
  resizing = setTimeout(() => { if (state.seen && !byId("attention").hidden) showAttention(); }, 120);
});
begin();
