// Tasks are taken on, given back and ended by dragging a card, or by a letter on it: both press the
// button that the card has for that.
"use strict";

(() => {
  const taken = (card, name, value) => [...card.querySelectorAll("form")].find((one) => one.dataset[name] === value);
  let carried = null;

  document.addEventListener("dragstart", (event) => {
    carried = event.target.closest?.(".task");
    if (carried) event.dataTransfer.setData("text/plain", carried.id);
  });
  document.addEventListener("dragend", () => { carried = null; });
  document.addEventListener("dragover", (event) => {
    const lane = event.target.closest?.(".lane");
    if (carried && lane && taken(carried, "to", lane.dataset.status)) event.preventDefault();
  });
  document.addEventListener("drop", (event) => {
    const lane = event.target.closest?.(".lane");
    const form = carried && lane && taken(carried, "to", lane.dataset.status);
    if (!form) return;
    event.preventDefault();
    form.requestSubmit();
  });
  document.addEventListener("keydown", (event) => {
    if (!event.target.matches?.(".task") || event.ctrlKey || event.metaKey || event.altKey) return;
    const form = taken(event.target, "turn", event.key);
    if (!form) return;
    event.preventDefault();
    event.stopPropagation();
    form.requestSubmit();
  });
})();
