// What a page does beyond its links: sorting, filtering, choices, keys, and following a run that is at work.
// All of it is kept in the address, so that a link shows what its sender saw.
"use strict";

const address = () => new URLSearchParams(location.search);

function keep(name, value) {
  const query = address();
  if (value) query.set(name, value); else query.delete(name);
  const text = query.toString();
  try {
    history.replaceState(null, "", location.pathname + (text ? "?" + text : "") + location.hash);
  } catch { /* a browser may refuse it for files */ }
}

const all = (selector, within = document) => [...within.querySelectorAll(selector)];

// ---- a step: groups sorted and filtered, and the tries within them

function arrangeGroups() {
  const form = document.getElementById("view"), list = document.getElementById("groups");
  if (!form || !list) return;
  const { sort, show, outcome } = Object.fromEntries(new FormData(form));
  const words = form.elements.task.value.toLowerCase();
  const value = {
    order: g => +g.dataset.order, mean: g => +g.dataset.mean, best: g => +g.dataset.best,
    spread: g => -g.dataset.spread, tokens: g => -g.dataset.tokens, task: g => g.dataset.task,
  }[sort] || (g => +g.dataset.order);
  const groups = all(".group", list);
  groups.sort((a, b) => {
    const x = value(a), y = value(b);
    return (x < y ? -1 : x > y ? 1 : 0) || a.dataset.order - b.dataset.order;
  });
  let shown = 0, tries = 0;
  for (const group of groups) {
    let fitting = 0;
    for (const row of all("tbody tr", group)) {
      row.hidden = Boolean(outcome) && row.dataset.outcome !== outcome;
      fitting += !row.hidden;
    }
    group.hidden = !fitting || (show && !group.dataset.traits.split(" ").includes(show)) ||
      !group.dataset.task.toLowerCase().includes(words);
    if (!group.hidden) { shown += 1; tries += fitting; }
  }
  list.append(...groups);
  document.getElementById("shown").value = `${shown} of ${groups.length} groups, ${tries} tries`;
}

function setUpGroups() {
  const form = document.getElementById("view");
  if (!form) return;
  for (const name of ["sort", "show", "outcome", "task"]) {
    const value = address().get(name), field = form.elements[name];
    if (value === null) continue;
    field.value = value;
    if (name === "outcome" && field.value !== value) field.add(new Option(value, value, true, true));  // none here has it
  }
  form.addEventListener("input", event => {
    if (event.target.name === "text") return;  // the server looks for it
    keep(event.target.name, event.target.value === "order" ? "" : event.target.value);
    arrangeGroups();
  });
  arrangeGroups();
}

// ---- tables

function setUpTables() {
  for (const table of all("table.sortable")) {
    const heads = all("thead th", table);
    heads.forEach((head, column) => {
      const button = document.createElement("button");
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const up = head.getAttribute("aria-sort") !== "ascending";
        keep("by", `${column}${up ? "" : "-"}`);
        sortTable(table, column, up);
      });
    });
    const by = address().get("by");
    if (by && heads[parseInt(by)]) sortTable(table, parseInt(by), !by.endsWith("-"));
  }
}

function sortTable(table, column, up) {
  const key = row => {
    const text = row.cells[column].textContent.trim(), number = parseFloat(text.replace("−", "-"));
    return Number.isNaN(number) || row.cells[column].tagName === "TH" ? text : number;
  };
  const rows = all("tbody tr", table);
  rows.sort((a, b) => {
    const x = key(a), y = key(b);
    if (typeof x !== typeof y) return typeof x === "number" ? -1 : 1;  // what is no number goes last
    return (x < y ? -1 : x > y ? 1 : 0) * (up ? 1 : -1);
  });
  table.tBodies[0].append(...rows);
  all("thead th", table).forEach((head, at) => {
    if (at === column) head.setAttribute("aria-sort", up ? "ascending" : "descending");
    else head.removeAttribute("aria-sort");
  });
}

function setUpRowFilter() {
  const form = document.getElementById("filter-rows");
  if (!form) return;
  form.hidden = false;
  for (const name of ["split", "task"]) form.elements[name].value = address().get(name) || "";
  const filter = () => {
    const words = form.elements.task.value.toLowerCase(), split = form.elements.split.value;
    const rows = all("tr[data-task]");
    for (const row of rows) {
      row.hidden = !row.dataset.task.toLowerCase().includes(words) ||
        Boolean(split) && !row.dataset.splits.split("/").includes(split);
    }
    document.getElementById("shown").value = `${rows.filter(row => !row.hidden).length} of ${rows.length}`;
  };
  form.addEventListener("submit", event => event.preventDefault());
  form.addEventListener("input", event => { keep(event.target.name, event.target.value); filter(); });
  filter();
}

// ---- choices: what is chosen stands on <main>, and the style sheet shows it

function setUpChoices() {
  const main = document.querySelector("main");
  for (const field of all("fieldset[data-choice]")) {
    field.hidden = false;
    for (const input of all("input", field)) {
      const asked = address().get(input.name);
      if (asked !== null) input.checked = input.value === asked;
      const apply = () => {
        const value = input.type === "checkbox" && !input.checked ? "" : input.value;
        if (input.checked || input.type === "checkbox") main.dataset[input.name] = value;
        return value;
      };
      apply();
      input.addEventListener("change", () => keep(input.name, apply()));
    }
  }
  for (const field of all("fieldset[data-runs]")) {
    field.hidden = false;
    const away = new Set((address().get("without") || "").split(",").filter(Boolean));
    for (const input of all("input", field)) {
      const apply = () => {
        if (input.checked) away.delete(input.value); else away.add(input.value);
        for (const part of all(`[data-run="${input.value}"]`)) part.toggleAttribute("hidden", !input.checked);
      };
      input.checked = !away.has(input.value);
      apply();
      input.addEventListener("change", () => { apply(); keep("without", [...away].join(",")); });
    }
  }
}

function setUpFolds() {
  const button = document.querySelector("[data-fold]"), folds = all(".conversation details");
  if (!button || !folds.length) return;
  button.hidden = false;
  button.addEventListener("click", () => {
    const open = !folds.every(fold => fold.open);
    for (const fold of folds) fold.open = open;
  });
}

// ---- keys: every element that has one says so itself

function setUpKeys() {
  const help = document.querySelector(".help"), dialog = document.getElementById("keys");
  const withKeys = () => all("[data-keys]").filter(item => !item.hidden && item.getAttribute("href") !== "#");
  help.hidden = false;
  help.addEventListener("click", () => {
    const rows = withKeys().map(item => {
      const row = document.createElement("tr");
      const keys = row.insertCell();
      for (const key of item.dataset.keys.split(" ")) {
        const kbd = document.createElement("kbd");
        kbd.textContent = key.replace("Arrow", "");
        keys.append(kbd, " ");
      }
      row.insertCell().textContent = item.firstChild.textContent.trim() || item.textContent.trim();
      return row;
    });
    dialog.querySelector("tbody").replaceChildren(...rows);
    dialog.showModal();
  });
  document.addEventListener("keydown", event => {
    if (event.ctrlKey || event.metaKey || event.altKey || dialog.open) return;
    if (event.target.closest("input, select, textarea, .scroll[tabindex]")) return;
    const item = withKeys().find(item => item.dataset.keys.split(" ").includes(event.key));
    if (item) { event.preventDefault(); item.click(); }
  });
  // To a page of the same kind, sorting, filters and colours come along.
  for (const way of all(".ways a[data-keys]")) {
    if (/^[jkbwBW]( |$)/.test(way.dataset.keys)) {
      way.addEventListener("click", () => { if (way.getAttribute("href") !== "#") way.search = location.search; });
    }
  }
}

// ---- a run at work: the page is fetched again when it has changed

function follow() {
  const main = document.querySelector("main[data-live]");
  if (!main || location.protocol === "file:") return;
  let tag = main.dataset.live;
  setInterval(async () => {
    if (document.hidden || document.activeElement.closest("input, select")) return;
    let answer;
    try {
      answer = await fetch(location.href, { headers: { "If-None-Match": `"${tag}"` }, cache: "no-store" });
    } catch { return; }  // the server has gone; the page stays as it is
    if (answer.status !== 200) return;
    tag = (answer.headers.get("ETag") || "").replaceAll('"', "");
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("main");
    const open = all("details[open]", main).map(fold => fold.id), focus = document.activeElement.getAttribute("href");
    main.replaceChildren(...fresh.childNodes);
    for (const fold of all("details", main)) fold.open = open.includes(fold.id);
    setUpPage();
    if (focus) all("a", main).find(link => link.getAttribute("href") === focus)?.focus({ preventScroll: true });
  }, 2000);
}

function setUpPage() {
  setUpGroups();
  setUpTables();
  setUpRowFilter();
  setUpChoices();
  setUpFolds();
}

setUpPage();
setUpKeys();
follow();
