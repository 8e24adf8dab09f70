// View 1: the tokens of the text, and the probabilities of the next token.

import { softmax } from "./model.mjs";
import { filterLogits } from "./sampling.mjs";
import { $, element, percent } from "./draw.mjs";
import { args, isFull, limit, selectedQuery, state, t, tokenText, tokenizer } from "./state.mjs";

const BARS = 12;

export function samplingSettings() {
  return { temperature: state.temperature, topK: state.topK, topP: state.topP, seed: state.seed };
}

export function drawTokens() {
  drawChips();
  const count = t("counts", { count: state.tokens.length, limit });
  $("counts").textContent = count + (limit < args.maxSeqLen ? t("capped", { context: args.maxSeqLen, limit }) : "");
  const notes = [];
  if (state.hasStartText) notes.push(t("startText"));
  if (state.tooLong) notes.push(t("tooLong", { count: state.tooLong, limit }));
  else if (isFull()) notes.push(t("full", { limit }));
  if (state.ended) notes.push(t("ended"));
  $("notes").textContent = notes.join(" ");
  drawText();
  if (state.logits) drawBars();
}

// The decoded text, with the generated part marked. A character may consist of tokens of both parts.
function drawText() {
  const whole = tokenizer.decode(state.tokens);
  const prompt = tokenizer.decode(state.tokens.slice(0, state.promptLength)).replace(/\ufffd+$/, "");
  const isPrefix = whole.startsWith(prompt);
  $("promptPart").textContent = isPrefix ? prompt : "";
  $("newPart").textContent = isPrefix ? whole.slice(prompt.length) : whole;
}

// Buttons are reused, because at full speed tokens come faster than the browser creates elements.
function drawChips() {
  const chips = $("chips");
  const chosen = selectedQuery();
  while (chips.childElementCount > state.tokens.length) chips.lastChild.remove();
  state.tokens.forEach((id, p) => {
    let chip = chips.children[p];
    if (!chip) chips.append((chip = element("button", { type: "button" })));
    if (chip.dataset.token !== String(id)) {
      chip.dataset.token = id;
      chip.textContent = tokenText(id);
      chip.title = `${p}: ${id}`;
    }
    chip.className = p >= state.promptLength ? "new" : "";
    chip.setAttribute("aria-pressed", p === chosen);
    chip.tabIndex = p === chosen ? 0 : -1; // one tab stop for all chips; the arrow keys move between them
  });
  if (state.position === null && state.playing) chips.scrollTop = chips.scrollHeight;
}

function drawBars() {
  const { scaled, afterTopK, afterTopP } = filterLogits(state.logits, samplingSettings());
  const isGreedy = !state.temperature;
  const best = scaled.indexOf(0); // the largest logit is shifted to 0
  const before = softmax(new Float64Array(scaled));
  const after = softmax(new Float64Array(afterTopP));
  const reasonOfCut = (id) => {
    if (isGreedy) return id === best ? "" : "cutGreedy";
    if (afterTopK[id] === -Infinity) return "cutTopK";
    return afterTopP[id] === -Infinity ? "cutTopP" : "";
  };
  const order = mostLikely(before, BARS);
  $("distribution").textContent = t("distribution", { temperature: state.temperature.toFixed(2) });
  $("barsHead").textContent = t(isGreedy ? "barsGreedy" : "barsHead");
  const rows = $("bars");
  while (rows.childElementCount > order.length) rows.lastChild.remove();
  order.forEach((id, i) => {
    const row = rows.children[i] ?? rows.appendChild(bar());
    const button = row.firstChild;
    const [token, track, amount] = button.children;
    const cut = reasonOfCut(id);
    row.className = cut ? "cut" : "";
    button.dataset.token = id;
    token.textContent = tokenText(id);
    track.firstChild.style.width = `${(100 * before[id]) / before[order[0]]}%`;
    if (cut) amount.textContent = `${percent(before[id])} ${t(cut)}`;
    else if (isGreedy) amount.textContent = percent(before[id]);
    else amount.textContent = `${percent(before[id])} → ${percent(after[id])}`;
  });
  const others = 1 - order.reduce((sum, id) => sum + before[id], 0);
  const kept = isGreedy ? 1 : afterTopP.filter((logit) => logit > -Infinity).length;
  $("rest").textContent = t("rest", {
    others: before.length - order.length,
    probability: percent(Math.max(0, others)),
    kept,
    all: before.length,
  });
}


function bar() {
  const track = element("div", { className: "track" }, element("div", { className: "fill" }));
  return element(
    "li",
    {},
    element("button", { type: "button" }, element("code"), track, element("span", { className: "amount" })),
  );
}

// The ids of the `count` largest probabilities, in descending order. The smallest of them comes from a sort of the
// numbers alone, which is faster than a sort of all ids by their probability.
export function mostLikely(probs, count) {
  const smallest = new Float64Array(probs).sort()[Math.max(0, probs.length - count)];
  const ids = [];
  probs.forEach((prob, id) => {
    if (prob >= smallest) ids.push(id);
  });
  return ids.sort((a, b) => probs[b] - probs[a]).slice(0, count);
}
