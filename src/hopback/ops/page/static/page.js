// Live updates of the pages. Every page works without this script. It never creates HTML from text.
"use strict";

const lines = new Map();

// An element with data-live subscribes to an event stream and reloads itself when it is outdated. The URL can
// contain the time of its data (?at=…), so that changes before the subscription are also reported.
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
      // Do not replace an element in which the user types or selects text.
      if (now && !now.contains(document.activeElement?.closest("input, select, textarea"))) htmx.trigger(now, "live");
    };
    source.addEventListener("change", refresh);
    // If the element is already being reloaded, this event may be lost and the result may be older. The stream
    // is then opened again and ends immediately.
    source.addEventListener("error", () => ask());
    source.addEventListener("end", () => { source.close(); lines.delete(path); refresh(); });
  }
}

// A running job is reloaded several times per second. If a button is replaced while it is pressed, the click is
// lost. In this case, the response is dropped, and the element is reloaded after the button was released.
const late = new Set();

document.addEventListener("htmx:beforeSwap", (event) => {
  const { target } = event.detail;
  if (!target?.matches("[data-live]") || !target.querySelector(":active")) return;
  event.detail.shouldSwap = false;
  late.add(target);
});
for (const kind of ["pointerup", "pointercancel", "keyup"]) {
  // The click event comes after the release, so wait for it.
  document.addEventListener(kind, () => setTimeout(() => {
    for (const element of late) if (element.isConnected) htmx.trigger(element, "live");
    late.clear();
  }));
}

function span(seconds) {
  const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  const [unit, size] = units.find(([, size]) => seconds >= 2 * size) || units[3];
  const value = Math.max(seconds, 0) / size;
  return `${Number(value.toFixed(value < 9.95 ? 1 : 0))} ${unit}`;
}

// Format a time in local time with the zone. The date is omitted if it is today.
function moment(seconds) {
  const at = new Date(seconds * 1000), now = new Date();
  const time = { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23", timeZoneName: "short" };
  const day = { day: "numeric", month: "short", ...(at.getFullYear() === now.getFullYear() ? {} : { year: "numeric" }) };
  return new Intl.DateTimeFormat("en-GB", at.toDateString() === now.toDateString() ? time : { ...day, ...time }).format(at);
}

function tick() {
  const now = Date.now() / 1000;
  for (const element of document.querySelectorAll("time[data-at]")) {
    element.textContent = `${span(now - Number(element.dataset.at))} ago`;
    element.title = `${moment(Number(element.dataset.at))} · ${element.dateTime}`;
  }
  for (const element of document.querySelectorAll("time[data-clock]")) {
    element.textContent = moment(Number(element.dataset.clock));
    element.title = element.dateTime;
  }
  for (const element of document.querySelectorAll("time[data-until]")) {
    const left = Number(element.dataset.until) - now, countdown = element.closest(".countdown");
    const whole = Math.max(0, Math.floor(left));
    element.textContent = `${Math.floor(whole / 60)}:${String(whole % 60).padStart(2, "0")}`;
    countdown?.classList.toggle("soon", left < 30);
    // Ask the service whether the session has ended, because its clock may differ.
    if (left <= 0 && countdown && !countdown.dataset.asked) { countdown.dataset.asked = "1"; ask(); }
  }
}

// --- check the service, the sign-in, the broker and the browse session regularly

const ASK_EVERY_MS = 3000, ANSWER_WITHIN_MS = 4000;
const bar = document.getElementById("standing");
let standing = "", since = 0, asking = false;

// Show a problem in the bar. Buttons that would not work are disabled until it is solved.
function stand(state, text, link) {
  if (!bar || (state === standing && bar.dataset.text === text)) return;
  const before = standing;
  standing = state;
  bar.dataset.text = text;
  bar.replaceChildren(text);
  if (link) {
    const way = document.createElement("a");
    [way.href, way.textContent] = link;
    bar.append(" ", way);
  }
  bar.hidden = !state;
  document.body.dataset.standing = state;
  for (const button of document.querySelectorAll("main button:not([data-always])")) {
    if (state && !button.disabled) { button.disabled = true; button.dataset.waits = "1"; }
    else if (!state && button.dataset.waits) { button.disabled = false; delete button.dataset.waits; }
  }
  for (const way of document.querySelectorAll("main a.button:not([data-always])")) {
    if (state) way.setAttribute("aria-disabled", "true"); else way.removeAttribute("aria-disabled");
  }
  for (const over of document.querySelectorAll("[data-when]")) over.hidden = over.dataset.when !== state;
  if (before && !state) {
    for (const [path, source] of lines) if (source.readyState === EventSource.CLOSED) lines.delete(path);
    follow(document);
    for (const each of document.querySelectorAll("[data-live]")) htmx.trigger(each, "live");
    count();
  }
}

async function ask() {
  if (!bar || asking || document.visibilityState === "hidden") return;
  asking = true;
  const held = document.querySelector("[data-session]")?.dataset.session;
  try {
    const answer = await fetch(bar.dataset.ask + (held ? `?session=${encodeURIComponent(held)}` : ""), {
      cache: "no-store", signal: AbortSignal.timeout(ANSWER_WITHIN_MS),
    });
    if (answer.redirected) {
      const here = location.pathname + location.search;
      stand("signed-out", "Your sign-in has ended. This page is out of date.", [`/login?next=${encodeURIComponent(here)}`, "Sign in again"]);
    } else if (answer.ok) {
      const found = await answer.json();
      since = 0;
      if (held && !found.held) stand("over", "This session has ended and holds no messages. This page is out of date.");
      else if (found.trouble) stand("broker", `${found.trouble} Numbers are from ${moment(found.readAt)}. This page retries automatically.`);
      else stand("", "");
    }
    // Any other response, for example 429, shows that the service is available.
  } catch {
    since ||= Date.now() / 1000;
    stand("gone", `The service has not answered since ${moment(since)}. This page is out of date, and its buttons are disabled.`);
  } finally {
    asking = false;
  }
}

document.addEventListener("visibilitychange", ask);
setInterval(ask, ASK_EVERY_MS);
document.addEventListener("htmx:sendError", ask);
document.addEventListener("htmx:responseError", ask);
document.addEventListener("click", (event) => {
  if (event.target.closest?.("a[aria-disabled]")) event.preventDefault();
});

// --- show how long slow requests take

const working = document.getElementById("working");
let begun = 0;

function work(state) {
  begun = state ? begun || Date.now() : 0;
  if (!state && working) working.hidden = true;
}

setInterval(() => {
  const seconds = begun ? (Date.now() - begun) / 1000 : 0;
  if (!working || seconds < 0.7) return;
  working.hidden = false;
  working.querySelector("span").textContent = `Working, ${Math.floor(seconds)} s`;
}, 200);

// Messages can be selected on all pages and with all filters of a browse session. Those selected on other pages
// are stored in the tab and submitted together with those on this page.
function selection() {
  const form = document.querySelector("form[data-selection]");
  if (!form) return null;
  const key = `selected ${form.dataset.selection}`;
  let kept = [];
  try { kept = JSON.parse(sessionStorage.getItem(key) ?? "[]"); } catch { /* somebody else's: begin anew */ }
  return { form, key, kept: new Set(Array.isArray(kept) ? kept : []) };
}

function select(changed) {
  const found = selection();
  if (!found) return;
  const boxes = [...found.form.querySelectorAll('input[type="checkbox"][name="ids"]')];
  if (changed) {
    for (const box of boxes) if (box.checked) found.kept.add(box.value); else found.kept.delete(box.value);
    sessionStorage.setItem(found.key, JSON.stringify([...found.kept]));
  } else {
    for (const box of boxes) box.checked = found.kept.has(box.value);
  }
  for (const old of found.form.querySelectorAll("input[data-elsewhere]")) old.remove();
  const here = new Set(boxes.map((box) => box.value));
  for (const id of found.kept) {
    if (here.has(id)) continue;
    const field = document.createElement("input");
    Object.assign(field, { type: "hidden", name: "ids", value: id });
    field.dataset.elsewhere = "1";
    found.form.append(field);
  }
}

// Buttons that show the number of selected messages.
function count() {
  for (const button of document.querySelectorAll("button[data-count-of]")) {
    const name = CSS.escape(button.dataset.countOf);
    const chosen = document.querySelectorAll(`input[name="${name}"]:checked, input[name="${name}"][data-elsewhere]`).length;
    button.disabled = chosen === 0 || Boolean(standing);
    if (chosen) button.textContent = button.dataset.words.replace("{n}", chosen.toLocaleString("en"));
    for (const other of document.querySelectorAll("[data-unselect]")) other.hidden = chosen === 0;
  }
}

document.addEventListener("change", (event) => {
  const all = event.target.dataset?.all;
  if (all) {
    for (const box of document.querySelectorAll(`input[name="${CSS.escape(all)}"]`)) box.checked = event.target.checked;
  }
  if (all || event.target.name === "ids") select(true);
  count();
});

document.addEventListener("click", (event) => {
  if (!event.target.closest?.("[data-unselect]")) return;
  const found = selection();
  if (found) sessionStorage.removeItem(found.key);
  select(false);
  count();
});

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.closest("input, select, textarea")) return;
  if (event.key === "/") {
    const field = document.querySelector("#filter, input[name=filter]:not([type=hidden]), input[type=search]");
    if (field) { event.preventDefault(); field.focus(); field.select?.(); }
  } else if (event.key === "j" || event.key === "k") {
    const links = [...document.querySelectorAll("table.rows tbody th a")];
    const here = links.indexOf(document.activeElement);
    const next = links[event.key === "j" ? here + 1 : Math.max(here - 1, 0)];
    if (next) { next.focus(); next.scrollIntoView({ block: "nearest" }); }
  }
});

// Forms are only submitted once. Further clicks are ignored. A download does not leave the page.
document.addEventListener("submit", (event) => {
  if (event.submitter?.matches("[data-download]")) return;
  work(true);
  if (event.target.method !== "post") return;
  if (event.target.dataset.sent) { event.preventDefault(); return; }
  event.target.dataset.sent = "1";
});
document.addEventListener("htmx:afterRequest", () => work(false));
window.addEventListener("pageshow", () => {
  work(false);
  for (const form of document.querySelectorAll("form[data-sent]")) delete form.dataset.sent;
});

// --- a search, whose results are added while it runs. Leaving the page or pressing Cancel ends it.

function search() {
  const place = document.getElementById("search");
  if (!place) return;
  const bar = place.querySelector("progress"), status = place.querySelector("[data-status]");
  const rows = place.querySelector("tbody"), row = place.querySelector("template");
  const cancel = place.querySelector("[data-cancel]");
  const source = new EventSource(place.dataset.events);
  const end = (words) => { source.close(); cancel.hidden = true; status.textContent = words; };
  let last = null;
  const words = (found) => `${found.seen.toLocaleString("en")} of ${found.total.toLocaleString("en")} read, ${found.matching.toLocaleString("en")} found`;
  source.addEventListener("search", (event) => {
    last = JSON.parse(event.data);
    [bar.max, bar.value] = [Math.max(last.total, 1), last.seen];
    status.textContent = words(last) + (last.queue ? `, now in ${last.queue}` : "");
    for (const { letter, excerpt, session } of last.hits) {
      const one = row.content.cloneNode(true), cells = one.querySelectorAll("th, td"), form = one.querySelector("form");
      cells[0].textContent = letter.type || letter.messageId || `message ${letter.place}`;
      cells[1].textContent = letter.queue;
      cells[2].textContent = letter.error || letter.reason;
      cells[3].textContent = excerpt || letter.errorMessage;
      form.action = `${place.dataset.base}/queues/${encodeURIComponent(letter.queue)}/look`;
      form.elements.skip.value = letter.place - 1;
      if (session) {
        form.method = "get";
        form.action = `${place.dataset.base}/sessions/${encodeURIComponent(session)}/messages/${encodeURIComponent(letter.id)}`;
      }
      rows.append(one);
      rows.closest("table").hidden = false;
    }
    for (const { queue, reason } of last.skipped) {
      const item = document.createElement("li");
      item.textContent = `${queue} was skipped: ${reason.replace(/^refused: /, "")}`;
      place.querySelector("[data-skipped]").append(item);
    }
    for (const { queue, count, holders } of last.heldByOthers) {
      const item = document.createElement("li");
      const number = count === null ? "Messages" : `${count.toLocaleString("en")} message${count === 1 ? "" : "s"}`;
      const who = holders.join(", ").replace(/\d{4}-\d\d-\d\dT[\d:]+Z/g, (time) => moment(Date.parse(time) / 1000));
      item.textContent = `${number} in ${queue} not read: held by ${who || "another consumer"}`;
      place.querySelector("[data-skipped]").append(item);
    }
    const groups = place.querySelector("[data-groups]"), act = place.querySelector("[data-act]");
    for (const { sample, count } of last.groups.slice(0, 20)) {
      const item = document.createElement("li"), number = document.createElement("b");
      number.className = "num";
      number.textContent = count.toLocaleString("en");
      item.append(number, ` ${sample.error || sample.reason} ${sample.errorMessage}`);
      groups.append(item);
      groups.hidden = false;
    }
    if (act && last.isOver && last.matching) act.hidden = false;
    place.querySelector("[data-nothing]").hidden = !last.isOver || last.matching > 0;
    if (last.isOver) end(`${words(last)}.${last.matching > rows.children.length ? ` The first ${rows.children.length} are shown.` : ""}`);
  });
  source.addEventListener("end", () => source.close());
  // Show that the search was interrupted. The browser would otherwise start it again.
  source.addEventListener("error", () => { if (!last?.isOver) end(last ? `${words(last)}. The search was interrupted.` : "The search could not start. Reload the page to try again."); });
  cancel.addEventListener("click", () => end(`${last ? words(last) : "No messages were read"}. Cancelled, all messages were requeued.`));
}

search();

// --- show the progress of a slow request and then its result
function wait() {
  const place = document.getElementById("work");
  if (!place) return;
  const bar = place.querySelector("progress"), status = place.querySelector("[data-status]");
  const source = new EventSource(place.dataset.events);
  const onward = () => { source.close(); location.replace(place.dataset.onward); };
  source.addEventListener("progress", (event) => {
    const { queue, seen, total } = JSON.parse(event.data);
    [bar.max, bar.value] = [Math.max(total, 1), seen];
    status.textContent = `${seen.toLocaleString("en")} of ${total.toLocaleString("en")} messages read, now in ${queue}`;
  });
  source.addEventListener("end", onward);
  // There is no result if the request is cancelled.
  place.querySelector("form").addEventListener("submit", () => source.close());
  // The browser reopens a broken stream. If this is refused, the request has ended and the page shows why.
  source.addEventListener("error", () => { if (source.readyState === EventSource.CLOSED) onward(); });
}
wait();

document.addEventListener("htmx:afterSettle", () => { follow(document); select(false); count(); tick(); });
follow(document);
select(false);
count();
tick();
setInterval(tick, 1000);
