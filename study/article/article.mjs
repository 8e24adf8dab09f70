// Puts the live figures in place of the pictures.

import { element, readColors } from "../page/draw.mjs";
import { clocks } from "./clocks.mjs";
import { guess } from "./guess.mjs";
import { head } from "./head.mjs";
import { layouts } from "./layouts.mjs";
import { problem } from "./problem.mjs";
import { t } from "./widgets.mjs";

const FIGURES = { problem, clocks, layouts, head, guess };

const draws = [...document.querySelectorAll("figure[data-figure]")].map((figure) => {
  const name = figure.dataset.figure;
  const root = element("div", { className: "live" }, element("p", { className: "question" }, t(`${name}Question`)));
  figure.replaceChildren(root);
  return FIGURES[name](root);
});

function drawAll() {
  readColors();
  for (const draw of draws) draw();
}

drawAll();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
new ResizeObserver(drawAll).observe(document.body);
document.documentElement.dataset.ready = "yes";
