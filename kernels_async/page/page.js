"use strict";
// Sorting, filtering and moving about. All that is shown is there without it.
(() => {
  const $ = (selector, root = document) => root.querySelector(selector);
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const make = (name, attributes, ...children) => {
    const element = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.append(...children);
    return element;
  };

  const table = $("#kernels");
  const bodies = all("tbody", table);
  const heads = all("thead th", table);

  // Sorting: what has no value is last in both directions.
  const value = (body, column) => body.rows[0].cells[column].dataset.v;
  const compare = (a, b) => {
    const x = Number(a), y = Number(b);
    return Number.isNaN(x) || Number.isNaN(y) ? a.localeCompare(b, "en", { numeric: true }) : x - y;
  };
  const sort = (column, descending) => {
    const sign = descending ? -1 : 1;
    const sorted = bodies.map((body) => [value(body, column), body]);
    sorted.sort(([a], [b]) => {
      if (a === undefined || b === undefined) return (a === undefined) - (b === undefined);
      return sign * compare(a, b);
    });
    table.append(...sorted.map(([, body]) => body));
    heads.forEach((head, n) => {
      if (n === column) head.setAttribute("aria-sort", descending ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
  };
  heads.forEach((head, column) => {
    const button = make("button", { type: "button" }, ...head.childNodes);
    head.append(button);
    const numbers = head.classList.contains("number");
    button.addEventListener("click", () => {
      const now = head.getAttribute("aria-sort");
      sort(column, now ? now === "ascending" : numbers);
    });
  });

  // Filtering: any of the pressed troubles, any of the pressed origins, all of the words.
  const texts = new Map();
  const text = (body) => {
    if (!texts.has(body)) texts.set(body, body.textContent.toLowerCase());
    return texts.get(body);
  };
  const search = make("input", { type: "search", placeholder: "Filter by text", "aria-label": "Filter by text", autocomplete: "off", spellcheck: "false" });
  const status = make("output", { role: "status" });
  const nothing = make("p", { class: "nothing", hidden: "" }, "No kernel is like that.");
  const groups = [["failed", "warnings", "spills"], ["compiled", "disk", "remote", "memory"]];
  const has = (body, token) => body.dataset.s.split(" ").includes(token);
  const buttons = groups.map((group) => group.flatMap((token) => {
    const count = bodies.filter((body) => has(body, token)).length;
    if (!count) return [];
    const button = make("button", { type: "button", "aria-pressed": "false", "data-token": token }, `${token} ${count.toLocaleString("en")}`);
    button.addEventListener("click", () => {
      button.setAttribute("aria-pressed", String(button.getAttribute("aria-pressed") !== "true"));
      filter();
    });
    return [button];
  }));
  const filter = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const pressed = buttons.map((group) => group.filter((b) => b.getAttribute("aria-pressed") === "true").map((b) => b.dataset.token));
    let shown = 0;
    for (const body of bodies) {
      const fits = pressed.every((tokens) => !tokens.length || tokens.some((token) => has(body, token)))
        && words.every((word) => text(body).includes(word));
      body.hidden = !fits;
      shown += fits;
    }
    status.value = shown === bodies.length ? `${shown} kernels` : `${shown} of ${bodies.length} kernels`;
    nothing.hidden = shown > 0;
  };
  const reset = () => {
    search.value = "";
    buttons.flat().forEach((button) => button.setAttribute("aria-pressed", "false"));
    filter();
  };
  search.addEventListener("input", filter);
  search.addEventListener("keydown", (event) => { if (event.key === "Escape") reset(); });
  const tools = $("#filter");
  tools.append(search, ...buttons.flat(), status);
  tools.hidden = false;
  table.after(nothing);
  filter();

  // A link to a kernel opens it, also when it is filtered away.
  const show = (number) => {
    const body = document.getElementById(`k${number}`);
    if (!body) return;
    if (body.hidden) reset();
    const details = $("details", body);
    details.open = true;
    body.scrollIntoView({ block: "center" });
    $("summary", body).focus({ preventScroll: true });
  };
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[data-k]");
    if (!link) return;
    event.preventDefault();
    show(link.dataset.k);
  });
  addEventListener("beforeprint", reset);

  // The timeline: one stop of the Tab key; arrows go from bar to bar.
  const chart = $(".chart"), scroller = $(".scroller"), tip = $("#tip");
  const lanes = all(".lane", chart).map((lane) => all(".bar", lane).sort((a, b) => parseFloat(a.getAttribute("x")) - parseFloat(b.getAttribute("x"))));
  const bars = lanes.flat();
  for (const bar of bars) {
    const title = $("title", bar);
    bar.setAttribute("aria-label", title.textContent);
    bar.setAttribute("tabindex", "-1");
    title.remove();
  }
  let current = bars[0];
  if (current) current.setAttribute("tabindex", "0");
  let same = [];
  const leave = () => {
    tip.hidden = true;
    same.forEach((bar) => bar.classList.remove("same"));
    same = [];
  };
  const enter = (bar) => {
    leave();
    same = bars.filter((other) => other.dataset.k === bar.dataset.k);
    same.forEach((other) => other.classList.add("same"));
    const body = document.getElementById(`k${bar.dataset.k}`);
    const symbol = $("summary code", body).textContent;
    const rest = bar.getAttribute("aria-label").slice(symbol.length + 2);
    const defines = $("summary small", body);
    const story = $(".life title", body);
    tip.replaceChildren(make("b", {}, symbol), ...(defines ? [defines.textContent, make("br", {})] : []), rest, make("br", {}), story.textContent);
    tip.hidden = false;
    const place = bar.getBoundingClientRect(), box = tip.getBoundingClientRect();
    const view = scroller.getBoundingClientRect();
    const middle = Math.min(Math.max(place.left + Math.min(place.width, view.width) / 2, view.left), view.right);
    const left = Math.min(Math.max(8, middle - box.width / 2), innerWidth - box.width - 8);
    const below = place.bottom + 8;
    tip.style.left = `${left}px`;
    tip.style.top = `${below + box.height < innerHeight ? below : Math.max(8, place.top - box.height - 8)}px`;
  };
  const focus = (bar) => {
    if (!bar) return;
    current.setAttribute("tabindex", "-1");
    current = bar;
    bar.setAttribute("tabindex", "0");
    bar.focus({ preventScroll: true });
    const place = bar.getBoundingClientRect(), view = scroller.getBoundingClientRect();
    if (place.left < view.left || place.right > view.right) {
      scroller.scrollLeft += place.left - view.left - view.width / 3;
    }
    enter(bar);
  };
  chart.addEventListener("pointerover", (event) => {
    const bar = event.target.closest(".bar");
    if (bar) enter(bar); else leave();
  });
  chart.addEventListener("pointerleave", leave);
  chart.addEventListener("focusin", (event) => { const bar = event.target.closest(".bar"); if (bar) enter(bar); });
  chart.addEventListener("focusout", leave);
  chart.addEventListener("click", (event) => { const bar = event.target.closest(".bar"); if (bar) { leave(); show(bar.dataset.k); } });
  const middle = (bar) => { const box = bar.getBoundingClientRect(); return box.left + box.width / 2; };
  chart.addEventListener("keydown", (event) => {
    const bar = event.target.closest(".bar");
    if (!bar) return;
    const lane = lanes.findIndex((some) => some.includes(bar));
    const place = lanes[lane].indexOf(bar);
    const nearest = (some) => some && some.reduce((best, other) => Math.abs(middle(other) - middle(bar)) < Math.abs(middle(best) - middle(bar)) ? other : best);
    const moves = {
      ArrowLeft: () => focus(lanes[lane][place - 1]),
      ArrowRight: () => focus(lanes[lane][place + 1]),
      ArrowUp: () => focus(nearest(lanes[lane - 1])),
      ArrowDown: () => focus(nearest(lanes[lane + 1])),
      Home: () => focus(lanes[lane][0]),
      End: () => focus(lanes[lane].at(-1)),
      Enter: () => { leave(); show(bar.dataset.k); },
      Escape: leave,
    };
    if (!moves[event.key]) return;
    event.preventDefault();
    moves[event.key]();
  });

  // Zooming: the chart is made wider, and its texts are not.
  let zoom = 1;
  const names = new Map(bars.map((bar) => [bar, $("text", bar)?.textContent ?? ""]));
  const shorten = (name, room) => (name.length > room ? `${name.slice(0, room - 1)}…` : name);
  const label = () => {
    const width = chart.getBoundingClientRect().width;
    for (const bar of bars) {
      const room = Math.floor((parseFloat(bar.getAttribute("width")) / 100 * width - 8) / 7);
      const name = $("text", bar);
      bar.classList.toggle("wide", room >= 4);
      if (name && room >= 4) name.textContent = shorten(names.get(bar), room);
    }
  };
  const zoomTo = (next) => {
    const before = scroller.scrollLeft + scroller.clientWidth / 2;
    const ratio = Math.min(64, Math.max(1, next)) / zoom;
    zoom *= ratio;
    chart.style.width = `${zoom * 100}%`;
    scroller.scrollLeft = before * ratio - scroller.clientWidth / 2;
    out.disabled = fit.disabled = zoom <= 1;
    leave();
    label();
  };
  const tool = (text, name, action) => {
    const button = make("button", { type: "button", "aria-label": name, title: name }, text);
    button.addEventListener("click", action);
    return button;
  };
  const out = tool("−", "Zoom out", () => zoomTo(zoom / 2));
  const closer = tool("+", "Zoom in", () => zoomTo(zoom * 2));
  const fit = tool("Fit", "Fit the whole timeline", () => zoomTo(1));
  const zooming = $("#zoom");
  if (bars.length) {
    zooming.append(out, closer, fit);
    zooming.hidden = false;
    zoomTo(1);
    addEventListener("resize", label);
  }
})();
