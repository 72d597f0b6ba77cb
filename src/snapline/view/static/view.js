// Live updates of the view's pages. Without scripts the pages have the same content, but do not update.
"use strict";

const body = document.body;
const live = document.getElementById("live");
let heard = 0;
let ahead = 0; // offset of the server's clock, in milliseconds, as shown by the times in the page

// ---- live updates ---------------------------------------------------------------------------------------------------

function replace(id, html) {
  const old = document.getElementById(id);
  if (!old) return;
  const made = document.createElement("template");
  made.innerHTML = html;
  const fresh = made.content.firstElementChild;
  const focused = old.contains(document.activeElement) ? document.activeElement : null;
  if (!fresh || (focused && focused.matches("input, select"))) return; // the viewer is typing: the server sends the element again
  const href = focused && focused.getAttribute("href");
  change(old, fresh);
  if (!focused || (focused.isConnected && focused.getAttribute("href") === href)) return;
  const now = document.getElementById(id);
  const same = href && now && now.querySelector('[href="' + CSS.escape(href) + '"]');
  (same || document.getElementById("main")).focus({ preventScroll: true });
}

// Change only the differences, so that scrolling and selections survive, and the browser has little to lay out.
function change(old, fresh) {
  if (old.isEqualNode(fresh)) return;
  if (old.nodeName !== fresh.nodeName || old.id !== fresh.id) return old.replaceWith(fresh);
  if (!old.attributes) return void (old.nodeValue = fresh.nodeValue);
  if (old.matches("time[data-age]") && old.dateTime === fresh.dateTime) return; // `tick` updates it
  const opens = old.matches("details[id]") ? "open" : ""; // keep it open
  for (const { name } of [...old.attributes]) {
    if (name !== opens && !fresh.hasAttribute(name)) old.removeAttribute(name);
  }
  for (const { name, value } of [...fresh.attributes]) {
    if (name !== opens && old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  const [were, are] = [[...old.childNodes], [...fresh.childNodes]];
  were.forEach((child, place) => (place < are.length ? change(child, are[place]) : child.remove()));
  old.append(...are.slice(were.length));
}

let stream = null;

function listen() {
  if (stream) stream.close();
  stream = new EventSource(body.dataset.events + location.search);
  stream.onmessage = (event) => {
    heard = Date.now();
    for (const [id, html] of JSON.parse(event.data)) replace(id, html);
    tick();
    body.dispatchEvent(new CustomEvent("snapline:changed"));
  };
  stream.addEventListener("refused", (event) => {
    stream.close();
    say(JSON.parse(event.data), "lost");
  });
  stream.onopen = () => say("live", "on");
  stream.onerror = () => say("connection lost, trying again", "lost");
}

function say(words, state) {
  if (!live) return;
  if (live.textContent !== words) live.textContent = words;
  live.className = "live " + state;
}

if (body.dataset.events) {
  listen();
  addEventListener("pagehide", () => stream.close());
  addEventListener("pageshow", (event) => event.persisted && listen());
}

// ---- ages -----------------------------------------------------------------------------------------------------------

function ago(seconds) {
  if (seconds < 60) return Math.floor(seconds) + " s ago";
  if (seconds < 3600) return Math.floor(seconds / 60) + " min ago";
  if (seconds < 172800) return Math.floor(seconds / 3600) + " h ago";
  return Math.floor(seconds / 86400) + " days ago";
}

function tick() {
  for (const time of document.querySelectorAll("time[data-age]")) {
    const words = ago(Math.max(0, (Date.now() - Date.parse(time.dateTime)) / 1000));
    if (time.textContent !== words) time.textContent = words;
  }
}

tick();
setInterval(tick, 1000);

// ---- searches -------------------------------------------------------------------------------------------------------

let asked = 0;

async function search(form) {
  const query = new URLSearchParams(new FormData(form));
  for (const [name, value] of [...query]) if (!value) query.delete(name);
  const address = form.getAttribute("action") + (query.size ? "?" + query : "");
  const number = ++asked;
  query.set("part", form.dataset.live);
  const found = await fetch(form.getAttribute("action") + "?" + query);
  if (number !== asked || !found.ok) return;
  replace(form.dataset.live, await found.text());
  history.replaceState(null, "", address);
  here = location.pathname + location.search;
  if (body.dataset.events) listen();
}

for (const kind of ["input", "change", "submit"]) {
  document.addEventListener(kind, (event) => {
    const form = event.target.closest("form[data-live]");
    if (!form) return;
    if (kind === "submit") event.preventDefault();
    clearTimeout(form.waiting);
    form.waiting = setTimeout(() => search(form), kind === "input" ? 150 : 0);
  });
}

// ---- links that change a part of the page -----------------------------------------------------------------------------

// Scroll a wide picture to the chosen event, or to the last events.
function sight() {
  for (const box of document.querySelectorAll(".picture")) {
    const ring = box.querySelector(".ring");
    const middle = ring && ring.getBoundingClientRect().left - box.getBoundingClientRect().left;
    if (ring && (middle < 120 || middle > box.clientWidth - 24)) box.scrollLeft += middle - box.clientWidth / 2;
    else if (!ring && body.dataset.events) box.scrollLeft = box.scrollWidth;
  }
  names();
}

// Keep the names of rows visible.
function names() {
  for (const box of document.querySelectorAll(".picture")) {
    const named = box.querySelector("g.names");
    if (named) named.setAttribute("transform", "translate(" + box.scrollLeft + " 0)");
  }
}

document.addEventListener("scroll", names, true);
body.addEventListener("snapline:changed", names);

sight();

let here = location.pathname + location.search;

async function follow(address, part) {
  const number = ++asked;
  const url = new URL(address, location.href);
  const query = new URLSearchParams(url.search);
  query.set("part", part);
  const found = await fetch(url.pathname + "?" + query);
  if (number !== asked) return;
  if (!found.ok) return location.assign(url);
  const left = [...document.querySelectorAll(".picture")].map((box) => box.scrollLeft);
  replace(part, await found.text());
  document.querySelectorAll(".picture").forEach((box, index) => { box.scrollLeft = left[index] || 0; });
  sight();
  history.pushState(null, "", url);
  here = url.pathname + url.search;
}

document.addEventListener("click", (event) => {
  const link = event.target.closest("a[href]");
  const part = link && link.closest("[data-links]");
  const address = link && link.getAttribute("href");
  if (!part || event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
  if (link.hasAttribute("download") || !address.startsWith(location.pathname)) return;
  event.preventDefault();
  follow(address, part.dataset.links);
});

addEventListener("popstate", () => location.pathname + location.search !== here && location.reload());

// Keyboard shortcuts of links, unless the viewer is typing.
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea")) return;
  const link = [...document.querySelectorAll("a[data-key]")].find((each) => each.dataset.key === event.key);
  if (!link || (event.key.startsWith("Arrow") && !event.target.closest(".picture"))) return;
  event.preventDefault();
  link.click();
});
