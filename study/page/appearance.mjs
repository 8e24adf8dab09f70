// Sets the language and the theme of the page.

import { $, readColors } from "./draw.mjs";
import { args, facts, state, t, writeHash } from "./state.mjs";
import { changed } from "./frame.mjs";

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
  const isFixed = facts.tokenizer.type === "FixedText";
  $("encoding").textContent = t(isFixed ? "encodingFixed" : "encodingExact", { kind: facts.tokenizer.kind });
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

// Sets the theme that the user chose, or that of the system.
export function setTheme() {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = state.theme || (dark ? "dark" : "light");
  readColors();
  changed();
}
