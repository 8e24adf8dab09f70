// View 1: the tokens of the text, and the probabilities of the next token.

import { softmax } from "./model.mjs";
import { filterLogits } from "./sampling.mjs";
import { $, element, percent } from "./draw.mjs";
import { facts, isFull, limit, selectedQuery, state, t, tokenText, tokenizer } from "./state.mjs";

const BARS = 12;

export function drawTokens() {
  const query = selectedQuery();
  const chips = state.tokens.map((id, p) => {
    const className = p < state.promptLength ? "" : "new";
    const properties = { className, title: `${p}: ${id}`, "data-position": p, "aria-current": p === query };
    return element("span", properties, tokenText(id));
  });
  $("chips").replaceChildren(...chips);
  $("counts").textContent = t("counts", { count: state.tokens.length, limit });
  $("wholeText").textContent = tokenizer.decode(state.tokens);
  const isFixed = facts.tokenizer.type === "FixedText";
  const notes = [isFixed && t("fixed"), isFull() && t("full", { limit })];
  $("notes").textContent = notes.filter(Boolean).join(" ");
  drawBars();
}

function drawBars() {
  const { scaled, kept } = filterLogits(state.logits, state);
  const before = softmax(new Float64Array(scaled));
  const after = softmax(new Float64Array(kept));
  const order = [...before.keys()].sort((a, b) => before[b] - before[a]).slice(0, BARS);
  order.forEach((id, i) => {
    const bar = $("bars").children[i] ?? $("bars").appendChild(makeBar()); // reused, so that it keeps the focus
    const isCut = kept[id] === -Infinity;
    const [token, fill, amount] = bar.children;
    bar.className = isCut ? "cut" : "";
    bar.dataset.token = id;
    token.textContent = tokenText(id);
    fill.style.width = `${(100 * before[id]) / before[order[0]]}%`;
    amount.textContent = `${percent(before[id])} → ${isCut ? t("cut") : percent(after[id])}`;
  });
  $("rest").textContent = t("rest", {
    others: before.length - order.length,
    probability: percent(Math.max(0, order.reduce((rest, id) => rest - before[id], 1))),
    kept: kept.filter((logit) => logit > -Infinity).length,
    all: before.length,
  });
}

function makeBar() {
  const fill = element("span", { className: "fill" });
  return element("button", { type: "button" }, element("code"), fill, element("span", { className: "amount" }));
}
