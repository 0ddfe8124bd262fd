"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const element = (name, text, kind) => {
    const made = document.createElement(name);
    if (text) made.textContent = text;
    if (kind) made.className = kind;
    return made;
  };

  // What is live under the pointer, or under the cursor that the arrow keys move.
  const tip = element("div");
  tip.id = "tip";
  tip.hidden = true;
  document.body.append(tip);

  const called = (place) => place.split(/[\\/]/).pop();
  const describe = ({ instants, values }, [, which, steps]) => {
    const [op, type, place, live, residual, backward, largest] = instants[which];
    const first = element("p");
    first.append(element("b", live), " live");
    const second = element("p");
    second.append(element("code", op), ` ${type}`);
    const where = [called(place), steps, backward ? "backward" : ""].filter(Boolean).join(" · ");
    const rows = largest.map((each) => {
      const [label, type, bytes, kind, place] = values[each];
      const row = element("tr"), name = element("td");
      name.append(element("i", "", `swatch ${kind}`), element("code", label), ` ${type}`);
      row.append(name, element("td", bytes, "number"), element("td", called(place)));
      return row;
    });
    const table = element("table");
    table.append(...rows);
    tip.replaceChildren(first, second, element("p", where, "where"), table);
    return [place, `${live} live in ${op}, ${where}`];
  };

  const place = (x, y) => {
    tip.hidden = false;
    const { width, height } = tip.getBoundingClientRect();
    const left = x + 16 + width < innerWidth ? x + 16 : Math.max(8, x - width - 16);
    tip.style.left = `${Math.max(8, Math.min(left, innerWidth - width - 8))}px`;
    tip.style.top = `${Math.max(8, Math.min(y + 16, innerHeight - height - 8))}px`;
  };

  for (const plot of document.querySelectorAll(".plot")) {
    const chart = data[plot.dataset.chart], cursor = plot.querySelector(".cursor");
    const last = chart.columns.length - 1;
    const edge = (index) => (index < 0 ? 0 : chart.columns[index][0]);
    let at = Number(plot.getAttribute("aria-valuenow"));
    const show = (index, y) => {
      at = Math.max(0, Math.min(index, last));
      const box = plot.getBoundingClientRect(), middle = (edge(at - 1) + edge(at)) / 2;
      cursor.hidden = false;
      cursor.style.left = `${100 * middle}%`;
      const [line, words] = describe(chart, chart.columns[at]);
      plot.setAttribute("aria-valuenow", at);
      plot.setAttribute("aria-valuetext", words);
      mark(line);
      place(box.left + middle * box.width, y ?? box.top + box.height / 3);
    };
    const hide = () => {
      tip.hidden = cursor.hidden = true;
      mark("");
    };
    plot.addEventListener("pointermove", (event) => {
      const box = plot.getBoundingClientRect(), share = (event.clientX - box.left) / box.width;
      const found = chart.columns.findIndex(([right]) => right >= share);
      show(found < 0 ? last : found, event.clientY);
    });
    plot.addEventListener("pointerleave", hide);
    plot.addEventListener("blur", hide);
    plot.addEventListener("keydown", (event) => {
      const page = Math.ceil(chart.columns.length / 20);
      const moves = { ArrowRight: at + 1, ArrowLeft: at - 1, PageUp: at + page, PageDown: at - page,
        Home: 0, End: last };
      if (event.key === "Escape") hide();
      if (!(event.key in moves)) return;
      event.preventDefault();
      show(moves[event.key]);
    });
  }

  const own = document.getElementById("own-scale");
  own?.addEventListener("change", () =>
    document.querySelector(".panels").classList.toggle("own", own.checked));

  const more = document.getElementById("more-kept");
  more?.addEventListener("click", () => {
    document.querySelector(".kept-table").classList.add("all");
    more.remove();
  });

  // Everything that comes from the same line of the source lights up together.
  let marked = "";
  const mark = (key) => {
    if (key === marked) return;
    marked = key;
    for (const each of document.querySelectorAll(".hit")) each.classList.remove("hit");
    if (!key) return;
    for (const each of document.querySelectorAll(`[data-at="${CSS.escape(key)}"]`))
      if (each.localName !== "a") each.classList.add("hit");
  };
  for (const kind of ["pointerover", "focusin"])
    document.getElementById("source")?.parentElement.addEventListener(kind, (event) => {
      const near = event.target.closest("[data-at]");
      if (!event.target.closest(".plot")) mark(near?.dataset.at ?? "");
    });

  addEventListener("beforeprint", () => {
    for (const each of document.querySelectorAll("details")) each.open = true;
  });
})();
