// Writes the texts of page.html in the language of the page.

import { $ } from "./draw.mjs";
import { args, facts, state, t } from "./state.mjs";

export function writeTexts() {
  const { language } = state;
  document.documentElement.lang = language === "zh" ? "zh-Hans" : "en";
  const all = (selector) => document.querySelectorAll(selector);
  for (const place of all("[data-t]")) place.textContent = t(place.dataset.t);
  for (const place of all("[data-label]")) place.setAttribute("aria-label", t(place.dataset.label));
  for (const place of all(".doc")) linkToDocs(place);
  $("walk").hidden = !facts.steps[language].length;
  if (facts.steps[language].length) $("walk").href = facts.steps[language][0][1].split("#")[0];
  $("language").lang = language === "zh" ? "en" : "zh-Hans";
  $("language").textContent = t("otherLanguage");
  $("sizes").textContent = t("sizes", {
    parameters: facts.shapes.reduce((sum, [, rows, columns]) => sum + rows * columns, 0).toLocaleString("en"),
    dtype: facts.dtype,
    layers: args.nLayers,
    heads: args.nHeads,
    kvHeads: args.nKvHeads,
    dim: args.headDim,
    context: args.maxSeqLen,
    theta: args.ropeTheta,
    scaling: args.ropeScaling?.type ?? t("scalingNone"),
  });
}

// Links to a step of the walk in the language of the page, if the page was written beside the article.
function linkToDocs(place) {
  const found = facts.steps[state.language].find(([heading]) => heading.startsWith(`${place.dataset.step}.`));
  if (!found) return;
  const [heading, address] = found;
  place.textContent = t("document", { heading });
  place.href = address;
}
