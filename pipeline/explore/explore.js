// Dragging over bars of a distribution lists the documents in all of them.
// Without this script each bar is a link of its own.
"use strict";
document.querySelectorAll(".bars").forEach((chart) => {
  const bars = [...chart.querySelectorAll("a")];
  const column = chart.closest("[data-column]").dataset.column;
  let first = null;
  let last = null;
  const barAt = (event) => {
    const box = chart.getBoundingClientRect();
    const place = Math.floor(((event.clientX - box.left) / box.width) * bars.length);
    return Math.min(bars.length - 1, Math.max(0, place));
  };
  const mark = () => {
    const [low, high] = [Math.min(first, last), Math.max(first, last)];
    bars.forEach((bar, n) => bar.classList.toggle("dragged", first !== null && n >= low && n <= high));
  };
  chart.addEventListener("dragstart", (event) => event.preventDefault());
  chart.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    first = last = barAt(event);
    mark();
  });
  window.addEventListener("pointermove", (event) => {
    if (first === null) return;
    last = barAt(event);
    mark();
  });
  window.addEventListener("pointerup", () => {
    if (first === null) return;
    const [low, high] = [Math.min(first, last), Math.max(first, last)];
    first = null;
    if (low === high) return mark();  // a click: the link does it
    const address = new URL(window.location);
    const others = address.searchParams.getAll("range").filter((r) => !r.startsWith(column + ":"));
    ["range", "after", "before"].forEach((name) => address.searchParams.delete(name));
    others.forEach((range) => address.searchParams.append("range", range));
    address.searchParams.append("range", `${column}:${bars[low].dataset.low}:${bars[high].dataset.high}`);
    address.searchParams.set("chart", column);
    window.location.assign(address);
  });
});
