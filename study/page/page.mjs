// The start of the page: sets texts and controls, sends the weights to the worker, and runs the model on the prompt.

import { $, element } from "./draw.mjs";
import { args, ask, facts, limit, state } from "./state.mjs";
import { VIEWS, drawAll, schedule, visible } from "./frame.mjs";
import { enqueue, firstWhatIf, forwardPrompt, isOutdated, refreshWhatIf } from "./generation.mjs";
import { setLanguage, setTheme } from "./appearance.mjs";
import { connectControls } from "./controls.mjs";

async function start() {
  $("name").textContent = facts.name;
  document.querySelectorAll("table.data").forEach(foldTable);
  addOptions("layer", args.nLayers);
  addOptions("head", args.nHeads);
  $("shift").max = 4 * args.maxSeqLen;
  const hasOneFrequency = args.headDim === 2 || args.ropeTheta === 1; // ntk and yarn need at least two
  for (const value of ["ntk", "yarn"]) $("change").querySelector(`[value=${value}]`).disabled = hasOneFrequency;
  setTheme();
  setLanguage(state.language);
  connectControls();
  const weights = $("weights");
  await enqueue(() => ask("load", { facts, weights: weights.textContent, limit }));
  weights.remove(); // frees their text; the worker has a copy
  if (!$("error").hidden) {
    $("loading").remove();
    return; // the weights could not be loaded
  }
  await forwardPrompt();
  $("loading").remove();
  await firstWhatIf();
  drawAll();
  document.documentElement.dataset.ready = "yes";
}

// Puts a table into closed details that the reader can open.
function foldTable(table) {
  const scroll = element("div", { className: "scroll", tabIndex: 0, role: "group", "data-label": "dataTable" });
  const summary = element("summary", { "data-t": "dataTable" });
  table.replaceWith(element("details", { className: "data" }, summary, scroll));
  scroll.append(table);
}

function addOptions(id, count) {
  $(id).append(...Array.from({ length: count }, (_, i) => element("option", { value: i }, String(i))));
}

const watcher = new IntersectionObserver(
  (entries) => {
    for (const { target, isIntersecting } of entries) {
      if (isIntersecting) visible.add(target.id);
      else visible.delete(target.id);
    }
    if (visible.has("whatIf") && isOutdated()) refreshWhatIf();
    schedule();
  },
  { rootMargin: "200px" }, // draws a view shortly before it is scrolled onto the screen
);
for (const view of Object.keys(VIEWS)) watcher.observe($(view));
start();
