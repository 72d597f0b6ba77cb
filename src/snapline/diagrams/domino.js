"use strict";

// Return the rounds of the domino effect, as {moved: [[agent, checkpoint], ...], orphans: [message, ...]}. Round 0 rolls the
// failed agents back. Agents and messages are ordinals. Each send is visited once, when it is undone, since only then can its
// message become an orphan.
function domino(trace, failed) {
  const sends = trace.agents.map(() => []);
  trace.sender.forEach((agent, message) => sends[agent].push(message));
  const at = trace.agents.map(() => trace.events);
  let moved = [...failed].sort((a, b) => a - b).map((agent) => [agent, trace.checkpoints[agent].length - 1]);
  let orphans = [];
  const rounds = [];
  do {
    rounds.push({ moved, orphans });
    const undone = [];
    for (const [agent, number] of moved) {
      at[agent] = trace.checkpoints[agent][number];
      while (sends[agent].length > 0 && trace.sent[sends[agent].at(-1)] > at[agent]) undone.push(sends[agent].pop());
    }
    orphans = undone.filter((message) => trace.received[message] >= 0
      && trace.received[message] < at[trace.receiver[message]]).sort((a, b) => a - b);
    const lowest = new Map();
    for (const message of orphans) {
      const agent = trace.receiver[message];
      const number = lastBefore(trace.checkpoints[agent], trace.received[message]);
      lowest.set(agent, Math.min(number, lowest.get(agent) ?? number));
    }
    moved = [...lowest].sort((a, b) => a[0] - b[0]);
  } while (moved.length > 0);
  return rounds;
}

// Return the index of the last of the ascending `positions` that is before `position`.
function lastBefore(positions, position) {
  let low = 0;
  let high = positions.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (positions[middle] < position) low = middle; else high = middle - 1;
  }
  return low;
}

// Return the state to show after round `count`. By agent, `line` is its checkpoint or null, `at` is its position, and `before`
// is its position before this round. `orphans` maps messages to "now" or "past". `moved` contains the agents that this round rolls back.
function after(trace, rounds, count) {
  const line = trace.agents.map(() => null);
  const at = trace.agents.map(() => trace.events);
  const before = [...at];
  const orphans = new Map();
  rounds.slice(0, count + 1).forEach((round, index) => {
    for (const [agent, number] of round.moved) {
      if (index === count) before[agent] = at[agent];
      line[agent] = number;
      at[agent] = trace.checkpoints[agent][number];
    }
    for (const message of round.orphans) orphans.set(message, "past");
  });
  for (const message of rounds[count + 1]?.orphans ?? []) orphans.set(message, "now");
  const moved = rounds[count].moved.map(([agent]) => agent);
  return { line, at, before, orphans, moved };
}

function stateOf(trace, view, message) {
  const isSentInside = trace.sent[message] < view.at[trace.sender[message]];
  const isReceivedInside = trace.received[message] >= 0
    && trace.received[message] < view.at[trace.receiver[message]];
  if (view.orphans.has(message)) return "orphan";
  if (!isSentInside) return "undone";
  return isReceivedInside ? "ordinary" : "in-transit";
}

// Return the number of undone sends and receives, by agent.
function lost(trace, view) {
  const counts = trace.agents.map(() => 0);
  trace.sent.forEach((position, message) => {
    if (position > view.at[trace.sender[message]]) counts[trace.sender[message]] += 1;
    if (trace.received[message] > view.at[trace.receiver[message]]) counts[trace.receiver[message]] += 1;
  });
  return counts;
}

function plural(count, word) { return `${count.toLocaleString("en")} ${word}${count === 1 ? "" : "s"}`; }

// Return the first few `items` as text.
function few(items, limit) {
  const more = items.length - limit;
  return items.slice(0, limit).join(", ") + (more > 0 ? ` and ${more.toLocaleString("en")} more` : "");
}

function failureWords(trace, failed) {
  if (failed.length === 0) return "nobody fails";
  if (failed.length === trace.agents.length) return "all agents fail";
  if (failed.length > 4) return `${failed.length} of ${plural(trace.agents.length, "agent")} fail`;
  return `${failed.map((agent) => trace.agents[agent]).join(", ")} ${failed.length === 1 ? "fails" : "fail"}`;
}

function statusWords(trace, rounds, count) {
  const { moved, orphans } = rounds[count];
  if (moved.length === 0) return "Nobody fails: every agent keeps its live state.";
  const who = few(moved.map(([agent, number], index) =>
    `${trace.agents[agent]}${index ? "" : " goes back"} to checkpoint ${number}`), 6);
  const names = (messages) => few(messages.map((message) => trace.messages[message]), 6);
  const because = orphans.length === 0 ? "set back by the failure" : orphans.length === 1
    ? `because ${names(orphans)} was received and its send is undone`
    : `because ${names(orphans)} were received and their sends are undone`;
  const next = rounds[count + 1]?.orphans ?? [];
  const then = next.length === 0 ? "No orphan is left: this is the recovery line."
    : `Now ${names(next)} ${next.length === 1 ? "is an orphan and forces" : "are orphans and force"} the next round.`;
  return `Round ${count}: ${who}, ${because}. ${then}`;
}

function page({ trace, plot, arrows, marks }) {
  const svg = document.querySelector("svg");
  const box = document.querySelector(".picture");
  const group = (name) => svg.querySelector(`g.${name}`);
  const all = trace.agents.map((_, agent) => agent);
  let failed = all;
  let rounds = domino(trace, failed);
  let count = rounds.length - 1;

  const px = (value) => String(Math.round(value * 10) / 10);
  const column = (position) => plot.left + plot.step * (position - plot.first);
  const x = (position) => Math.min(Math.max(column(position), plot.left), plot.right);
  const y = (agent) => plot.top + plot.spacing * (agent + 0.5);
  const make = (name, values, words) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(values)) element.setAttribute(key, value);
    if (words) element.append(make("title", {})), element.firstChild.textContent = words;
    return element;
  };

  const drawBands = (view) => group("bands").replaceChildren(...all.flatMap((agent) => {
    const edges = [[view.at[agent], view.moved.includes(agent) ? view.before[agent] : view.at[agent], "undone now"]];
    edges.push([edges[0][1], trace.events, "undone"]);
    return view.line[agent] === null ? [] : edges.filter(([from, to]) => x(from) < x(to)).map(([from, to, name]) =>
      make("rect", { class: `band ${name}`, x: px(x(from)), y: px(y(agent) - plot.spacing / 2),
        width: px(x(to) - x(from)), height: plot.spacing, "data-agent": trace.agents[agent] }));
  }));

  const drawLanes = (view) => group("lanes").replaceChildren(...all.flatMap((agent) => [
    [plot.left, x(view.at[agent]), "line"], [x(view.at[agent]), plot.right, "past"],
  ].filter(([from, to]) => from < to).map(([from, to, name]) =>
    make("path", { class: name, d: `M${px(from)} ${px(y(agent))}H${px(to)}` }))));

  const drawLine = (view) => {
    if (all.length === 0) return;
    const [top, bottom] = [plot.top, plot.top + plot.spacing * all.length];
    const points = all.map((agent) => `${px(x(view.at[agent]))} ${px(y(agent))}`);
    const d = `M${[`${px(x(view.at[0]))} ${top}`, ...points, `${px(x(view.at.at(-1)))} ${bottom}`].join("L")}`;
    group("fronts").replaceChildren(
      make("path", { class: "recoveryline", d, "data-kind": "line" }, "the line after this round"));
  };

  const drawArrows = (view) => [...group("arrows").children].forEach((element, index) => {
    const message = arrows[index];
    const state = stateOf(trace, view, message);
    const now = view.orphans.get(message) === "now" ? " now" : "";
    element.setAttribute("class", `message ${state}${now}`);
    element.dataset.state = state;
    if (element.hasAttribute("marker-end")) element.setAttribute("marker-end", `url(#snapline-head-${state})`);
    const received = trace.received[message];
    const [sender, receiver] = [trace.sender, trace.receiver].map((agents) => trace.agents[agents[message]]);
    const end = received < 0 ? "never received" : `received at event ${received}`;
    element.querySelector("title").textContent =
      `${trace.messages[message]}: ${sender} → ${receiver}, ${state}, sent at event ${trace.sent[message]}, ${end}`;
  });

  const drawMarks = (view) => svg.querySelectorAll("g.marks .checkpoint").forEach((element, index) => {
    const [agent, number] = marks[index];
    const isUndone = view.line[agent] !== null && number > view.line[agent];
    element.setAttribute("class", `checkpoint ${element.dataset.kind}${isUndone ? " undone" : ""}`);
    if (isUndone) element.dataset.undone = "true"; else delete element.dataset.undone;
    if (number === view.line[agent]) element.dataset.line = "true"; else delete element.dataset.line;
    const useless = element.dataset.useless ? ", useless: on a Z-cycle" : "";
    const fate = isUndone ? ", undone" : number === view.line[agent] ? ", on the line" : "";
    element.querySelector("title").textContent =
      `${trace.agents[agent]} ${number}: ${element.dataset.kind} checkpoint${fate}${useless}`;
  });

  const drawEnds = (view) => group("signs").replaceChildren(...all.flatMap((agent) => {
    const parts = [];
    const isFailed = failed.includes(agent);
    if (isFailed) parts.push(make("path", { class: "kill", d: `M${px(plot.right - 5)} ${px(y(agent) - 5)}l10 10M${
      px(plot.right - 5)} ${px(y(agent) + 5)}l10 -10` }));
    else if (view.line[agent] === null) parts.push(make("path", { class: "alive",
      d: `M${px(plot.right)} ${px(y(agent) - 5)}l8 5l-8 5z` }));
    const words = `${trace.agents[agent]}${isFailed ? " fails" : ": click to fail"}`;
    parts.push(make("rect", { class: "hit", x: px(plot.right - 12), y: px(y(agent) - plot.spacing / 2), width: 40,
      height: plot.spacing, "data-ordinal": agent }, words));
    return parts;
  }));

  const drawTable = (view) => {
    const counts = lost(trace, view);
    all.forEach((agent) => {
      const row = document.getElementById("agents").rows[agent];
      const line = view.line[agent];
      row.className = view.moved.includes(agent) ? "moved" : "";
      row.querySelector("input").checked = failed.includes(agent);
      const place = line === 0 ? "initial state" : `checkpoint ${line}`;
      row.cells[2].textContent = line === null ? "keeps its live state" : place;
      row.cells[3].textContent = line === null ? "" : trace.checkpoints[agent].length - 1 - line;
      row.cells[4].textContent = line === null ? "" : counts[agent];
    });
  };

  const drawWords = (view) => {
    const back = view.line.filter((number) => number !== null).length;
    const progress = `round ${count} of ${rounds.length - 1}`;
    svg.querySelector(".heading").textContent = `When ${failureWords(trace, failed)}: ${progress}`;
    svg.querySelector(".words").textContent = `${back} of ${plural(all.length, "agent")} back so far`;
    document.getElementById("round").textContent = progress;
    document.getElementById("status").textContent = statusWords(trace, rounds, count);
    for (const id of ["first", "back"]) document.getElementById(id).disabled = count === 0;
    for (const id of ["next", "last"]) document.getElementById(id).disabled = count === rounds.length - 1;
    [...group("names").querySelectorAll(".agent")].forEach((element, agent) =>
      element.classList.toggle("failed", failed.includes(agent)));
  };

  const show = () => {
    const view = after(trace, rounds, count);
    for (const draw of [drawBands, drawLanes, drawArrows, drawMarks, drawLine, drawEnds]) draw(view);
    drawTable(view);
    drawWords(view);
    follow(view);
    const hash = `#failed=${failed.length === all.length ? "all" : failed.join(",")}&round=${count}`;
    if (location.hash !== hash) history.replaceState(null, "", hash);
  };
  // Scroll to the places to which agents are rolled back, if these are not visible.
  const follow = (view) => {
    const left = Math.min(...view.moved.map((agent) => x(view.at[agent])));
    const isSeen = left >= box.scrollLeft + plot.left && left <= box.scrollLeft + box.clientWidth;
    if (view.moved.length > 0 && !isSeen) box.scrollLeft = left - box.clientWidth / 2;
  };
  const fail = (agents) => { failed = agents; rounds = domino(trace, failed); count = 0; show(); };
  const toggle = (agent) => fail(all.filter((other) => failed.includes(other) !== (other === agent)));
  const go = (round) => { count = Math.min(Math.max(round, 0), rounds.length - 1); show(); };
  const readHash = () => {
    const wanted = new URLSearchParams(location.hash.slice(1));
    const names = wanted.get("failed");
    if (names === null) return show();
    const chosen = names.split(",").filter(Boolean).map(Number);
    failed = names === "all" ? all : all.filter((agent) => chosen.includes(agent));
    rounds = domino(trace, failed);
    go(wanted.get("round") === "last" ? rounds.length - 1 : Number(wanted.get("round")) || 0);
  };

  all.forEach((agent) => {
    const row = document.getElementById("agents").insertRow();
    const box = Object.assign(document.createElement("input"), { type: "checkbox" });
    box.setAttribute("aria-label", `${trace.agents[agent]} fails`);
    box.addEventListener("change", () => toggle(agent));
    row.insertCell().append(box);
    row.insertCell().textContent = trace.agents[agent];
    for (let cell = 0; cell < 3; cell += 1) row.insertCell().className = cell ? "number" : "";
  });
  [...group("names").querySelectorAll(".agent")].forEach((element, agent) => { element.dataset.ordinal = agent; });
  svg.addEventListener("click", (event) => {
    const target = event.target.closest("[data-ordinal]");
    if (target) toggle(Number(target.dataset.ordinal));
  });
  const buttons = { all: () => fail(all), none: () => fail([]), first: () => go(0), back: () => go(count - 1),
    next: () => go(count + 1), last: () => go(rounds.length - 1),
    earlier: () => box.scrollBy(-0.7 * box.clientWidth, 0), later: () => box.scrollBy(0.7 * box.clientWidth, 0) };
  for (const [id, act] of Object.entries(buttons)) document.getElementById(id).addEventListener("click", act);
  const keys = { ArrowLeft: "back", ArrowRight: "next", Home: "first", End: "last" };
  document.addEventListener("keydown", (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey || event.shiftKey || !(event.key in keys)) return;
    event.preventDefault();
    buttons[keys[event.key]]();
  });
  addEventListener("hashchange", readHash);

  // A wide picture scrolls under its names, heading and legend, and first shows its end.
  const still = svg.querySelectorAll(".heading, .words, .names, .legend");
  box.addEventListener("scroll", () => still.forEach((part) =>
    part.setAttribute("transform", `translate(${box.scrollLeft} 0)`)));
  box.scrollLeft = box.scrollWidth;
  document.getElementById("sides").hidden = box.scrollWidth <= box.clientWidth;
  readHash();
}

if (typeof document !== "undefined") page(JSON.parse(document.getElementById("data").textContent));
if (typeof module !== "undefined") module.exports = { domino, after, stateOf, lost, statusWords };
