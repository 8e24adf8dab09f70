// The start of the page: sets texts and controls, sends the weights to the worker, and runs the model on the prompt.

import { $, element } from "./draw.mjs";
import { ask } from "./ask.mjs";
import { args, facts, limit, state } from "./state.mjs";
import { VIEWS, drawAll, schedule, visible } from "./frame.mjs";
import { enqueue, forwardPrompt } from "./generation.mjs";
import { setLanguage, setTheme } from "./appearance.mjs";
import { connectControls } from "./controls.mjs";

async function start() {
  $("name").textContent = facts.name;
  addOptions("layer", args.nLayers);
  addOptions("head", args.nHeads);
  $("shift").max = 4 * args.maxSeqLen;
  if (facts.tokenizer.type === "FixedText") $("prompt").readOnly = true;
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
  drawAll();
  document.documentElement.dataset.ready = "yes";
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
    schedule();
  },
  { rootMargin: "200px" }, // draws a view shortly before it is scrolled onto the screen
);
for (const view of Object.keys(VIEWS)) watcher.observe($(view));
start();
