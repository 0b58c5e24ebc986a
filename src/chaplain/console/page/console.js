// Renders every snapshot that the server sends. Text is inserted as text, never as markup: users choose the names.
"use strict";

const $ = (id) => document.getElementById(id);
const MINUTE = 120; // snapshots in the small plots: one minute, two per second
const rates = new Map();

function make(name, props = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(props)) {
    if (key.startsWith("data-") || key === "class" || key === "scope") element.setAttribute(key, value);
    else element[key] = value;
  }
  element.append(...children);
  return element;
}

function draw(name, props) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(props)) element.setAttribute(key, value);
  return element;
}

const number = (value) => (value === null || value === undefined ? "–" : value.toLocaleString("en"));
const rate = (value) => (value >= 100 ? number(Math.round(value)) : value.toFixed(1));
const list = (value) => (value && value.length ? value.join(", ") : "–");
const mark = (text, mood) => make("span", { class: "mark", "data-mood": mood }, text);

function span(ns) {
  const s = Math.floor(ns / 1e9);
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min`;
  return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
}

function summary(snapshot) {
  document.title = `${snapshot.cluster} – chaplain`;
  $("cluster").textContent = snapshot.cluster;
  const up = snapshot.nodes.filter((node) => node.up).length;
  $("up").textContent = `${up} of ${snapshot.nodes.length}`;
  $("master").textContent = snapshot.master === null ? "none" : `node ${snapshot.master}`;
  $("regime").textContent = number(snapshot.regime);
  $("rate").textContent = rate(snapshot.streams.reduce((sum, stream) => sum + stream.rate, 0));
}

function facts(pairs) {
  const wanted = pairs.filter(([, value]) => value !== null && value !== undefined);
  return make("dl", {}, ...wanted.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, String(value))]));
}

function nodeCard(node, master) {
  const marks = [mark(node.up ? "up" : "down", node.up ? "good" : "bad")];
  if (node.id === master) marks.push(mark("master", "good"));
  if (node.up && node.standing && !["sound", "voter"].includes(node.standing)) marks.push(mark(node.standing, "warn"));
  return make("li", { id: `node-${node.id}`, "data-up": node.up },
    make("h3", {}, `Node ${node.id}`, ...marks),
    facts([["at", node.endpoint], ["roles", node.up ? list(node.roles) : null], ["agreed", node.up ? number(node.agreed) : null],
      ["regime", node.up ? number(node.regime) : null], ["members", node.members], ["up for", node.up && node.uptime_ns ? span(node.uptime_ns) : null],
      ["checkpoint", node.checkpoint ? `${number(node.checkpoint)} entries, ${span(node.checkpoint_age_seconds * 1e9)} old` : null],
      ["version", node.version]]));
}

function consumers(snapshot) {
  $("consumers-section").hidden = snapshot.consumers.length === 0;
  $("consumer-list").replaceChildren(...snapshot.consumers.map((one) =>
    make("tr", {}, make("th", { scope: "row" }, one.name), make("td", {}, one.stream), make("td", {}, one.mode),
      make("td", { class: "number" }, number(one.workers)), make("td", { class: "number" }, number(one.position)),
      make("td", { class: "number" }, number(one.lag)))));
}

function spark(values) {
  const most = Math.max(1, ...values);
  const points = values.map((value, at) => `${(at * 120 / MINUTE).toFixed(1)},${(22 - 20 * value / most).toFixed(1)}`);
  const plot = draw("svg", { class: "spark", viewBox: "0 0 120 24", role: "img", "aria-label": `up to ${rate(most)} a second` });
  plot.append(draw("path", { d: `M${points.join("L")}` }));
  return plot;
}

function streams(snapshot) {
  $("stream-list").replaceChildren(...snapshot.streams.map((stream) => {
    const seen = rates.get(stream.name) || [];
    seen.push(stream.rate);
    rates.set(stream.name, seen.slice(-MINUTE));
    return make("tr", {}, make("th", { scope: "row" }, stream.name), make("td", { class: "number" }, number(stream.head)),
      make("td", { class: "number" }, rate(stream.rate)), make("td", {}, spark(seen.slice(-MINUTE))));
  }));
  const hidden = snapshot.streams_count - snapshot.streams.length;
  $("streams-note").textContent = snapshot.streams_count === 0 ? "No stream has been written to yet."
    : hidden > 0 ? `${number(hidden)} shorter streams are not shown.` : "";
}

function views(snapshot) {
  const ids = snapshot.nodes.map((node) => String(node.id));
  const head = make("tr", {}, make("th", { scope: "col" }, "node"), ...ids.map((id) => make("th", { scope: "col" }, `sees ${id}`)));
  const rows = snapshot.nodes.map((node) => make("tr", {}, make("th", { scope: "row" }, String(node.id)),
    ...ids.map((id) => make("td", {}, node.up ? memberMark(node.sees[id]) : "–"))));
  $("view-table").replaceChildren(make("thead", {}, head), make("tbody", {}, ...rows));
}

function memberMark(state) {
  if (state === undefined) return "–";
  return mark(state, { alive: "good", suspect: "warn", left: "bad" }[state] || "warn");
}

function clients(snapshot) {
  $("client-list").replaceChildren(...snapshot.clients.map((client) => make("tr", {},
    make("th", { scope: "row" }, client.name + (client.admin ? " (admin)" : "")),
    make("td", {}, mark(client.status, { active: "good", compromised: "bad" }[client.status] || "warn")),
    make("td", {}, list(client.writes)), make("td", {}, list(client.reads)), make("td", { class: "number" }, number(client.lanes)))));
}

function stages(snapshot) {
  $("stages-section").hidden = snapshot.stages.length === 0;
  $("stage-list").replaceChildren(...snapshot.stages.map((stage) => make("li", {}, Object.values(stage).map(String).join(" "))));
}

function cell(value) {
  return Array.isArray(value) ? list(value) : value !== null && typeof value === "object" ? JSON.stringify(value) : value === null ? "–" : String(value);
}

function sequence(snapshot) {
  const known = snapshot.layers.sequence.filter((one) => one.status);
  $("sequence-section").hidden = known.length === 0;
  if (!known.length) return;
  const names = [...new Set(known.flatMap((one) => Object.keys(one.status)))];
  const table = $("sequence-list").parentElement;
  table.tHead.replaceChildren(make("tr", {}, make("th", { scope: "col" }, "node"), ...names.map((name) => make("th", { scope: "col" }, name.replaceAll("_", " ")))));
  $("sequence-list").replaceChildren(...known.map((one) => make("tr", {}, make("th", { scope: "row" }, String(one.node)),
    ...names.map((name) => make("td", {}, cell(one.status[name] ?? null))))));
}

// The newest events of a graph, oldest on the left; concurrent events are below each other.
function graph(snapshot) {
  const known = snapshot.layers.graph.find((one) => one.status && one.status.recent && one.status.recent.length);
  $("graph-section").hidden = !known;
  if (!known) return;
  const events = known.status.recent;
  const depth = new Map(), rows = new Map(), places = new Map();
  for (const event of events) {
    const column = 1 + Math.max(-1, ...event.parents.map((parent) => depth.get(parent) ?? -1));
    depth.set(event.id, column);
    const row = rows.get(column) || 0;
    rows.set(column, row + 1);
    places.set(event.id, [20 + column * 36, 20 + row * 28]);
  }
  const width = 40 + 36 * Math.max(...depth.values()), height = 12 + 28 * Math.max(...rows.values());
  const tree = draw("svg", { class: "tree", width, height, role: "img", "aria-label": `the newest ${events.length} events` });
  for (const event of events) {
    for (const parent of event.parents.filter((one) => places.has(one))) {
      const [[x1, y1], [x2, y2]] = [places.get(parent), places.get(event.id)];
      tree.append(draw("line", { x1, y1, x2, y2 }));
    }
  }
  for (const event of events) {
    const [cx, cy] = places.get(event.id);
    const circle = draw("circle", { cx, cy, r: 7, "data-read": Boolean(event.read) });
    const title = draw("title", {});
    title.textContent = `${event.stream || ""} ${event.id.slice(0, 12)} ${event.read ? "read" : "unread"}`;
    circle.append(title);
    tree.append(circle);
  }
  $("graph-drawing").replaceChildren(tree);
}

let newest = "";
function happenings(snapshot) {
  const text = JSON.stringify(snapshot.happenings);
  if (text === newest) return; // unchanged: a screen reader would read the list again
  newest = text;
  $("happening-list").replaceChildren(...snapshot.happenings.map((one) => {
    const when = new Date(one.time * 1000);
    return make("li", {}, make("time", { dateTime: when.toISOString() }, when.toLocaleTimeString()), one.text);
  }));
}

function nodes(snapshot) {
  $("node-list").replaceChildren(...snapshot.nodes.map((node) => nodeCard(node, snapshot.master)));
}

function show(snapshot) {
  for (const part of [summary, nodes, streams, consumers, views, sequence, graph, clients, stages, happenings]) part(snapshot);
}

function say(state, text) {
  $("link").dataset.state = state;
  $("link").textContent = text;
}

const source = new EventSource("/api/live");
source.onmessage = (event) => { say("live", "live"); show(JSON.parse(event.data)); };
source.onerror = () => say("lost", "the console does not answer; trying again");
