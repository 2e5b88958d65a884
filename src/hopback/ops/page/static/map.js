// The map of the topology. The tables of the page contain the same information.
"use strict";

// Lay out each connected part from left to right, and arrange the parts in columns.
function arrange(map, ratio) {
  const gap = 70;
  const parts = map.elements().components().map((part) => {
    part.layout({ name: "dagre", rankDir: "LR", nodeSep: 18, rankSep: 90, edgeSep: 8, animate: false, fit: false }).run();
    return { part, box: part.boundingBox({ includeLabels: false }) };
  });
  const width = Math.max(...parts.map(({ box }) => box.w), 1) + gap;
  const height = parts.reduce((sum, { box }) => sum + box.h + gap, 0);
  const columns = new Array(Math.max(1, Math.round(Math.sqrt((height * ratio) / width)))).fill(0);
  for (const { part, box } of parts.sort((one, other) => other.box.h - one.box.h)) {
    const column = columns.indexOf(Math.min(...columns));
    part.nodes().shift({ x: column * width - box.x1, y: columns[column] - box.y1 });
    columns[column] += box.h + gap;
  }
}

(async function draw() {
  const place = document.getElementById("map");
  if (!place || typeof cytoscape === "undefined") return;
  const answer = await fetch(place.dataset.graph, { headers: { Accept: "application/json" } });
  if (!answer.ok) return;
  const graph = await answer.json();
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const ink = dark ? "#e9e7de" : "#22231f";
  const soft = dark ? "#8d8b80" : "#8b897d";
  const fill = dark ? "#1f211d" : "#ffffff";
  // Errors found by the checks are red. The label contains the number of warnings.
  const bad = dark ? "#f08d74" : "#b4412a";
  place.classList.add("ready");
  const node = (kind, colour, more) => ({ selector: `node[kind = "${kind}"]`, style: { "border-color": colour, ...more } });
  const map = cytoscape({
    container: place,
    elements: graph.elements,
    minZoom: 0.15,
    maxZoom: 2.5,
    layout: { name: "preset" },
    style: [
      { selector: "node", style: {
        label: "data(label)", "text-wrap": "wrap", "text-overflow-wrap": "anywhere", "text-max-width": 190, "font-size": 12, color: ink,
        "text-valign": "center", "text-halign": "center", shape: "round-rectangle", width: 200, height: "data(height)",
        "background-color": fill, "border-width": 1.6, "border-color": soft } },
      node("exchange", dark ? "#ab93dd" : "#7a5fb0", { shape: "cut-rectangle" }),
      node("main", dark ? "#7fb2e6" : "#2d6fb3", {}),
      node("plain", soft, {}),
      node("retry", soft, { shape: "round-rectangle", "border-style": "dotted", "border-width": 2.4 }),
      node("dead-letter", ink, { "background-color": dark ? "#34352f" : "#ecebe4", "border-width": 2.2 }),
      { selector: "node[errors > 0]", style: { "border-style": "double", "border-width": 6, "border-color": bad } },
      { selector: "edge", style: {
        width: 1.4, "line-color": soft, "target-arrow-color": soft, "target-arrow-shape": "triangle", "arrow-scale": 0.8,
        "curve-style": "bezier", label: "data(label)", "text-wrap": "ellipsis", "text-max-width": 84, "font-size": 10, color: dark ? "#c9c6ba" : "#5c5d55",
        "text-background-color": dark ? "#1f211d" : "#ffffff", "text-background-opacity": 0.9, "text-background-padding": 2 } },
      { selector: 'edge[kind = "dead-letter"]', style: { "line-style": "dashed" } },
      { selector: 'edge[kind = "publish"]', style: { "line-style": "dotted", width: 2.2 } },
      { selector: ".reached", style: { "border-color": dark ? "#7fc9b8" : "#23685b", "border-width": 4, "border-style": "solid", "background-color": dark ? "#21352f" : "#e3efeb" } },
      { selector: ".faded", style: { opacity: 0.25 } },
    ],
  });
  arrange(map, place.clientWidth / Math.max(place.clientHeight, 1));
  const reached = document.getElementById("reached");
  if (reached) {
    const names = new Set(JSON.parse(reached.dataset.reached));
    map.nodes().forEach((each) => { if (names.has(each.data("name")) && each.data("kind") !== "exchange") each.addClass("reached"); });
  }
  map.on("tap", "node", (event) => {
    const near = event.target.closedNeighborhood();
    map.elements().addClass("faded");
    near.removeClass("faded");
  });
  map.on("tap", (event) => { if (event.target === map) map.elements().removeClass("faded"); });
  const fit = (target) => {
    map.fit(target, 30);
    if (map.zoom() > 1.2) { map.zoom(1.2); map.center(target); }
  };
  const named = (name) => map.nodes().filter((each) => each.data("name") === name && each.data("kind") !== "exchange");
  const focus = place.dataset.focus ? named(place.dataset.focus) : map.nodes(".reached");
  const family = (start) => start.union(start.predecessors()).union(start.successors());
  // Show the largest part whose labels are legible when it fits on the screen, or otherwise the smallest part.
  const dead = map.nodes('[kind = "dead-letter"][messages > 0]').sort((one, other) => other.data("messages") - one.data("messages"));
  const parts = (focus.length ? [family(focus), focus.closedNeighborhood()] : [map.elements(), family(dead), family(dead.slice(0, 1)), dead.slice(0, 1).closedNeighborhood()]).filter((part) => part.length);
  for (const part of parts) {
    fit(part);
    if (map.zoom() >= 0.6) break;
  }
  const tools = document.querySelector(".map-tools");
  tools.hidden = false;
  tools.addEventListener("click", (event) => {
    const verb = event.target.dataset.map;
    const middle = { x: place.clientWidth / 2, y: place.clientHeight / 2 };
    if (verb === "fit") map.fit(undefined, 24);
    if (verb === "in") map.zoom({ level: map.zoom() * 1.3, renderedPosition: middle });
    if (verb === "out") map.zoom({ level: map.zoom() / 1.3, renderedPosition: middle });
  });
  const shown = map.nodes().length;
  if (graph.total > shown) {
    const note = document.getElementById("map-part");
    note.querySelector("[data-shown]").textContent = shown.toLocaleString("en");
    note.querySelector("[data-total]").textContent = graph.total.toLocaleString("en");
    note.hidden = false;
  }
  place.dataset.nodes = String(map.nodes().length);
})();
