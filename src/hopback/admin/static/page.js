// What makes the page live. Everything works without it; nothing here makes HTML from text.
"use strict";

const lines = new Map();

// An element with data-live asks its server to say when it is out of date, and then fetches itself. Its
// address may say when it was made (?at=…): what changed before the connection stood is told, too.
const live = (path) => [...document.querySelectorAll("[data-live]")].find((each) => each.dataset.live.split("?")[0] === path);

function follow(root) {
  for (const [path, source] of lines) {
    if (!live(path)) {
      source.close();
      lines.delete(path);
    }
  }
  for (const element of root.querySelectorAll("[data-live]")) {
    const path = element.dataset.live.split("?")[0];
    if (lines.has(path)) continue;
    const source = new EventSource(element.dataset.live);
    lines.set(path, source);
    const refresh = () => {
      const now = live(path);
      // Somebody who types or selects text is not interrupted.
      if (now && !now.contains(document.activeElement?.closest("input, select, textarea"))) htmx.trigger(now, "live");
    };
    source.addEventListener("change", refresh);
    // A refresh that is under way may swallow this one and bring what is old by now: then the line is
    // opened anew for it, and ends at once.
    source.addEventListener("end", () => { source.close(); lines.delete(path); refresh(); });
  }
}

function span(seconds) {
  const s = Math.max(0, seconds);
  if (s < 10) return `${s.toFixed(1)} s`;
  if (s < 120) return `${Math.round(s)} s`;
  if (s < 7200) return `${Math.round(s / 60)} min`;
  if (s < 172800) return `${Math.round(s / 3600)} h`;
  return `${Math.round(s / 86400)} d`;
}

function tick() {
  const now = Date.now() / 1000;
  for (const element of document.querySelectorAll("time[data-at]")) {
    element.textContent = `${span(now - Number(element.dataset.at))} ago`;
  }
  for (const element of document.querySelectorAll("time[data-until]")) {
    const left = Number(element.dataset.until) - now;
    const whole = Math.max(0, Math.floor(left));
    element.textContent = left > 0 ? `${Math.floor(whole / 60)}:${String(whole % 60).padStart(2, "0")}` : "now";
    element.closest(".countdown")?.classList.toggle("soon", left < 30);
  }
}

// Buttons that say how many they act on.
function count() {
  for (const button of document.querySelectorAll("button[data-count-of]")) {
    const name = CSS.escape(button.dataset.countOf);
    const chosen = document.querySelectorAll(`input[name="${name}"]:checked`).length;
    button.disabled = chosen === 0;
    if (chosen) button.textContent = button.dataset.words.replace("{n}", String(chosen));
  }
}

document.addEventListener("change", (event) => {
  const all = event.target.dataset?.all;
  if (all) {
    for (const box of document.querySelectorAll(`input[name="${CSS.escape(all)}"]`)) box.checked = event.target.checked;
  }
  count();
});

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.closest("input, select, textarea")) return;
  if (event.key === "/") {
    const field = document.querySelector("#filter, input[name=filter], input[type=search]");
    if (field) { event.preventDefault(); field.focus(); field.select?.(); }
  } else if (event.key === "j" || event.key === "k") {
    const links = [...document.querySelectorAll("table.rows tbody th a")];
    const here = links.indexOf(document.activeElement);
    const next = links[event.key === "j" ? here + 1 : Math.max(here - 1, 0)];
    if (next) { next.focus(); next.scrollIntoView({ block: "nearest" }); }
  }
});

// A form is sent once: a second click while it is on its way does nothing.
document.addEventListener("submit", (event) => {
  if (event.target.method !== "post") return;
  if (event.target.dataset.sent) { event.preventDefault(); return; }
  event.target.dataset.sent = "1";
});
window.addEventListener("pageshow", () => {
  for (const form of document.querySelectorAll("form[data-sent]")) delete form.dataset.sent;
});

document.addEventListener("htmx:afterSettle", () => { follow(document); count(); tick(); });
follow(document);
count();
tick();
setInterval(tick, 1000);
