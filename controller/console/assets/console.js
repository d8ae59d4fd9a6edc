// What is new on an open page: the server sends texts of cells and points of graphs
// (content.go), each second those that are other than before. Texts of others are only ever
// set as textContent.
"use strict";

(() => {
  const live = document.getElementById("live");
  const hour = 3600; // seconds
  const shortest = 300; // of a graph of a controller that has just started
  const retry = 10_000; // milliseconds; a browser that was refused does not try again by itself
  let ahead = 0; // of the machine's clock before this one's, in seconds

  // As words.go has it.
  function ago(since) {
    const seconds = Math.max(0, Math.floor(Date.now() / 1000 + ahead - since));
    if (seconds < 60) return `${seconds} s`;
    if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
    if (seconds < 48 * 3600) return `${Math.floor(seconds / 3600)} h`;
    return `${Math.floor(seconds / (24 * 3600))} d`;
  }

  function showTimes() {
    for (const time of document.querySelectorAll("time[data-since]")) {
      const text = ago(time.dataset.since);
      if (time.textContent !== text) time.textContent = text;
    }
  }

  function fill(element, [text, style = "", href = "", since = 0]) {
    element.className = style;
    if (since !== 0) {
      const time = document.createElement("time");
      time.dataset.since = since;
      time.textContent = ago(since);
      element.replaceChildren(time);
    } else if (href !== "") {
      const link = document.createElement("a");
      link.setAttribute("href", href);
      link.textContent = text;
      element.replaceChildren(link);
    } else {
      element.textContent = text;
    }
  }

  function newRow(table, key, length) {
    const row = document.createElement(table.dataset.row);
    const names = table.dataset.cells.split(" ");
    row.dataset.key = key;
    for (let i = 0; i < length; i++) row.append(document.createElement(names[Math.min(i, names.length - 1)]));
    return row;
  }

  function showTable(id, { note, order, rows = {} }) {
    const table = document.getElementById(id);
    if (table === null) return; // the page is older than the program
    const present = new Map([...table.children].map((row) => [row.dataset.key, row]));
    for (const [key, cells] of Object.entries(rows)) {
      let row = present.get(key);
      if (row === undefined) present.set(key, row = newRow(table, key, cells.length));
      cells.forEach((cell, i) => fill(row.children[i], cell));
    }
    if (order !== undefined) {
      table.replaceChildren(...order.map((key) => present.get(key)));
      const none = document.getElementById(`${id}-none`);
      if (none !== null) none.hidden = order.length > 0;
    }
    if (note !== undefined) document.getElementById(`${id}-note`).textContent = note;
  }

  function showNotes(notes) {
    document.getElementById("notes").replaceChildren(...notes.map((note) => {
      const item = document.createElement("li");
      fill(item, note);
      return item;
    }));
  }

  // Graphs: the points of the hour, and the second that is now.
  let plots = [], points = [], now = null, drawn = [];

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  // short form of a number on an axis.
  function short(value) {
    const units = ["", "k", "M", "G", "T"];
    let unit = 0;
    for (; Math.abs(value) >= 1000 && unit < units.length - 1; unit++) value /= 1000;
    return `${+value.toPrecision(3)}${units[unit]}`;
  }

  function columns(plot) {
    const all = now === null || points.length > 0 && now[0] <= points.at(-1)[0] ? points : [...points, now];
    return [all.map((point) => point[0] / 1000), ...plot.names.map((_, i) => all.map((point) => point[plot.from + i]))];
  }

  function options(plot, width) {
    const axis = { stroke: colour("--dim"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false } };
    const range = () => {
      const end = Date.now() / 1000 + ahead;
      const first = points.length > 0 ? points[0][0] / 1000 : end;
      return [Math.max(end - hour, Math.min(first, end - shortest)), end];
    };
    return {
      // uPlot takes title and labels as markup: they are constants of our program.
      title: plot.title, width, height: 190,
      scales: { x: { range }, y: { range: (_, min, max) => [0, Math.max(1, max * 1.05)] } },
      axes: [{ ...axis, incrs: [60, 300, 600, 900, 1800], values: (_, ticks) => ticks.map((at) => new Date(at * 1000).toTimeString().slice(0, 5)) }, { ...axis, size: 60, values: (_, ticks) => ticks.map(short) }],
      series: [{ value: "{HH}:{mm}:{ss}" }, ...plot.names.map((label, i) => ({
        label, stroke: colour(`--series-${i}`), width: 1.5, points: { show: false }, value: (_, value) => value === null ? "" : short(value),
      }))],
    };
  }

  function draw() {
    const place = document.getElementById("graphs");
    for (const one of drawn) one.destroy();
    const frames = plots.map(() => {
      const frame = document.createElement("div");
      frame.className = "graph";
      return frame;
    });
    place.replaceChildren(...frames); // all, before one is measured
    drawn = plots.map((plot, i) => new uPlot(options(plot, frames[i].clientWidth), columns(plot), frames[i]));
  }

  function showGraphs(update) {
    const whole = update.plots !== undefined;
    if (whole) [plots, points] = [update.plots, []];
    points.push(...update.points ?? []);
    now = update.now ?? now;
    const first = (Date.now() / 1000 + ahead - hour) * 1000;
    points = points.filter((point) => point[0] >= first);
    if (whole) draw();
    else drawn.forEach((one, i) => one.setData(columns(plots[i])));
  }

  function resize() {
    for (const one of drawn) one.setSize({ width: one.root.parentElement.clientWidth, height: 190 });
  }

  // The stream. A page that nobody sees has none: places are few.
  let source = null, waiting = null;

  function say(text, style) {
    if (live.textContent !== text) live.textContent = text;
    live.className = style;
  }

  function take(update) {
    ahead = update.now - Date.now() / 1000;
    if (update.notes) showNotes(update.notes);
    for (const [id, table] of Object.entries(update.tables ?? {})) showTable(id, table);
    if (update.graphs) showGraphs(update.graphs);
    showTimes();
    if (update.problem) say(`not live: ${update.problem}`, "bad");
    else say("live", "good");
  }

  function close() {
    source?.close();
    clearTimeout(waiting);
    source = waiting = null;
  }

  function open() {
    close();
    source = new EventSource(document.body.dataset.live);
    source.onmessage = (event) => take(JSON.parse(event.data));
    source.onerror = () => {
      say("not live: the connection is lost, trying again", "bad");
      if (source.readyState === EventSource.CLOSED) waiting = setTimeout(open, retry);
    };
  }

  document.addEventListener("visibilitychange", () => {
    if (document.hidden) close();
    else open();
  });
  addEventListener("resize", resize);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { if (drawn.length > 0) draw(); });
  setInterval(showTimes, 5000);
  if (!document.hidden) open();
})();
