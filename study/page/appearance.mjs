// Sets the language and the theme of the page.

import { $, colors, tickText } from "./draw.mjs";
import { args, facts, state, t, writeHash } from "./state.mjs";
import { changed } from "./frame.mjs";
import { buildOverview, drawGuide } from "./overview.mjs";
import { longLength } from "./whatif.mjs";

export function setLanguage(language) {
  state.language = language;
  document.documentElement.lang = language === "zh" ? "zh-Hans" : "en";
  for (const place of document.querySelectorAll("[data-t]")) place.textContent = t(place.dataset.t);
  for (const place of document.querySelectorAll("[data-label]"))
    place.setAttribute("aria-label", t(place.dataset.label));
  $("language").textContent = t("otherLanguage");
  $("language").lang = language === "zh" ? "en" : "zh-Hans";
  for (const place of document.querySelectorAll(".doc")) linkToDocs(place);
  const parameters = facts.shapes.reduce((sum, [, rows, columns]) => sum + rows * columns, 0).toLocaleString("en");
  $("sizes").textContent = t("sizes", {
    parameters,
    dtype: facts.dtype,
    layers: args.nLayers,
    heads: args.nHeads,
    kvHeads: args.nKvHeads,
    dim: args.headDim,
    context: args.maxSeqLen,
    theta: args.ropeTheta,
    tied: t(args.tieEmbeddings ? "tied" : "untied"),
    scaling: args.ropeScaling ? args.ropeScaling.type : t("scalingNone"),
  });
  $("longText").textContent = t("long", { length: longLength, times: tickText(Number((longLength / args.maxSeqLen).toFixed(2))) });
  const kind = facts.tokenizer.kind === "BPE" ? "BPE" : t("characterModel");
  $("encoding").textContent = t("encodingExact", { kind });
  buildOverview();
  drawGuide();
  writeHash();
  changed();
}

// Links to a step of the docs in the language of the page. If the docs were not found, only names it.
function linkToDocs(place) {
  const step = Number(place.dataset.step);
  const found = facts.steps[state.language].find(([heading]) => heading.startsWith(`${step}.`));
  place.textContent = found
    ? t("document", { step, title: found[0].replace(/^\d+\. /, "") })
    : t("documentOnly", { step });
  if (found) place.href = found[1];
}

// Sets the theme: the one that the user chose, or the argument, which is "light" while the page is printed.
export function setTheme(theme = state.theme) {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = theme || (dark ? "dark" : "light");
  state.colors = colors();
  changed();
}
