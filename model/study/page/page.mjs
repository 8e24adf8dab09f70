// The start of the page: texts, controls, the weights to the worker, the prompt.

import { $, element } from "./draw.mjs";
import { args, ask, facts, limit, state, t } from "./state.mjs";
import { VIEWS, drawAll, schedule, visible } from "./frame.mjs";
import { enqueue, firstWhatIf, forwardPrompt, isOutdated, refreshWhatIf } from "./text.mjs";
import { setLanguage, setTheme } from "./words.mjs";
import { wire } from "./controls.mjs";

async function start() {
  $("name").textContent = facts.name;
  for (const [id, count] of [
    ["layer", args.nLayers],
    ["head", args.nHeads],
  ]) {
    $(id).append(...Array.from({ length: count }, (_, i) => element("option", { value: i }, String(i))));
  }
  $("shift").max = 4 * args.maxSeqLen;
  for (const value of ["ntk", "yarn"]) {
    $("change").querySelector(`[value=${value}]`).disabled = args.headDim === 2 || args.ropeTheta === 1; // one frequency
  }
  setTheme();
  setLanguage(state.language);
  $("counts").textContent = t("loading");
  wire();
  const weights = $("weights");
  await enqueue(() => ask("load", { facts, weights: weights.textContent, limit }));
  weights.remove(); // the worker has them now
  await forwardPrompt();
  await firstWhatIf();
  drawAll();
  document.documentElement.dataset.ready = "yes";
}

const watcher = new IntersectionObserver(
  (entries) => {
    for (const { target, isIntersecting } of entries) visible[isIntersecting ? "add" : "delete"](target.id);
    if (visible.has("whatIf") && isOutdated()) refreshWhatIf();
    schedule();
  },
  { rootMargin: "200px" },
);
for (const view of Object.keys(VIEWS)) watcher.observe($(view));
start();
