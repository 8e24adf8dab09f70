// Puts the live figures in place of the pictures, and shares one model between them.

import { ask } from "../page/ask.mjs";
import { element, readColors } from "../page/draw.mjs";
import { clocks } from "./clocks.mjs";
import { guess } from "./guess.mjs";
import { head } from "./head.mjs";
import { layouts } from "./layouts.mjs";
import { problem } from "./problem.mjs";
import { facts, t } from "./widgets.mjs";

const FIGURES = { problem, clocks, layouts, head, guess };

const loaded = ask("load", { facts, weights: document.getElementById("weights").textContent, limit: facts.args.maxSeqLen });

let trace = null; // queries, keys and weights of the text in each layer, computed when they are first needed

async function getTrace() {
  await loaded;
  trace ??= (await ask("run", { earlier: [], tokens: facts.tokens.slice(0, facts.args.maxSeqLen), count: 0, useCache: false })).passes[0].trace;
  return trace;
}

const draws = [...document.querySelectorAll("figure[data-figure]")].map((figure) => {
  const name = figure.dataset.figure;
  const root = element("div", { className: "live" }, element("p", { className: "question" }, t(`${name}Question`)));
  figure.replaceChildren(root);
  return FIGURES[name](root, getTrace);
});

function drawAll() {
  readColors();
  for (const draw of draws) draw();
}

const button = document.getElementById("theme");
const isDark = () => document.documentElement.dataset.theme === "dark";

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  button.textContent = t(isDark() ? "light" : "dark");
  drawAll();
}

const system = matchMedia("(prefers-color-scheme: dark)");
button.hidden = false;
button.addEventListener("click", () => setTheme(isDark() ? "light" : "dark"));
system.addEventListener("change", () => setTheme(system.matches ? "dark" : "light"));
setTheme(system.matches ? "dark" : "light");
new ResizeObserver(drawAll).observe(document.body);
loaded.then(
  () => (document.documentElement.dataset.ready = "yes"),
  (error) => document.querySelector("main").prepend(element("p", { className: "note", role: "alert" }, error.message)),
);
