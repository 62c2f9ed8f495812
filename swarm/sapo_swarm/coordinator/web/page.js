"use strict";
// Keeps the figures live. Everything that came from a node is set as text, never as markup.
const byId = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";

function points(values) {
  const known = values.filter((value) => value !== null);
  const top = Math.max(0, ...known) || 1;
  const step = 600 / Math.max(1, values.length - 1);
  return values
    .map((value, i) => (value === null ? "" : `${(i * step).toFixed(1)},${(100 - (100 * value) / top).toFixed(1)}`))
    .filter(Boolean)
    .join(" ");
}

function cell(tag, text, kind) {
  const element = document.createElement(tag);
  if (kind) element.className = kind;
  element.textContent = text;
  return element;
}

function isolated(text, title) {
  const element = document.createElement("td");
  if (title) element.title = title;
  element.append(cell("bdi", text));
  return element;
}

// Names are chosen by their nodes and need not be unique: the id stands beside them.
function named(node) {
  const element = isolated(node.name || "anonymous", node.node);
  element.append(" ", cell("code", node.node.slice(0, 6)));
  return element;
}

function bar(width) {
  const picture = document.createElementNS(SVG, "svg");
  picture.setAttribute("viewBox", "0 0 100 10");
  picture.setAttribute("preserveAspectRatio", "none");
  const block = document.createElementNS(SVG, "rect");
  block.setAttribute("width", width.toFixed(1));
  block.setAttribute("height", "10");
  block.setAttribute("rx", "2");
  picture.append(block);
  const element = document.createElement("td");
  element.className = "bar";
  element.append(picture);
  return element;
}

function row(...cells) {
  const element = document.createElement("tr");
  element.append(...cells);
  return element;
}

function show(view) {
  byId("nodes").textContent = view.nodes;
  byId("rounds_per_s").textContent = view.rounds_per_s.toFixed(2);
  byId("groups_hour").textContent = view.groups_hour;
  byId("pool").textContent = view.pool;
  byId("rounds").setAttribute("points", points(view.rounds));
  byId("rewards").setAttribute("points", points(view.rewards));
  const known = view.rewards.filter((value) => value !== null);
  byId("reward").textContent = known.length ? known[known.length - 1].toFixed(3) : "–";
  byId("rounds_peak").textContent = Math.max(0, ...view.rounds);
  byId("rewards_peak").textContent = known.length ? Math.max(...known).toFixed(3) : "–";
  const top = Math.max(1, ...view.tasks.map(([, count]) => count));
  if (view.tasks.length) {
    byId("tasks").tBodies[0].replaceChildren(
      ...view.tasks.map(([name, count]) =>
        row(cell("th", name), bar((100 * count) / top), cell("td", count, "number"))),
    );
  }
  if (view.leaders.length) {
    byId("leaders").tBodies[0].replaceChildren(
      ...view.leaders.map((node) =>
        row(
          named(node),
          isolated(node.model),
          cell("td", node.groups, "number"),
          cell("td", `${(100 * node.share).toFixed(1)} %`, "number"),
          cell("td", node.uptake, "number"),
        )),
    );
  }
}

const live = byId("live");
const source = new EventSource("/events");
source.onmessage = (event) => {
  show(JSON.parse(event.data));
  live.textContent = "live";
  live.classList.add("on");
};
source.onerror = () => {
  live.textContent = "connection lost";
  live.classList.remove("on");
};
