// View 1: the text as tokens, and what may come next.

import { softmax } from "./model.mjs";
import { stages } from "./sampling.mjs";
import { $, element, percent } from "./draw.mjs";
import { args, limit, query, shown, state, t, tokenizer } from "./state.mjs";

const BARS = 12;

export function sampling() {
  return { temperature: state.temperature, topK: state.topK, topP: state.topP, seed: state.seed };
}

export function drawTokens() {
  drawChips();
  const count = t("counts", { count: state.tokens.length, limit });
  $("counts").textContent = count + (limit < args.maxSeqLen ? t("capped", { context: args.maxSeqLen, limit }) : "");
  const full = state.tokens.length >= limit && !state.endless;
  $("ended").textContent = [
    state.tooLong ? t("tooLong", { count: state.tooLong, limit }) : "",
    full && !state.tooLong ? t("full") : "",
    state.ended ? t("ended") : "",
  ]
    .filter(Boolean)
    .join(" ");
  drawText();
  if (state.logits) drawBars();
}

// The text as people read it. What the prompt decodes to is where the rest begins: a character may lie across both.
function drawText() {
  const whole = tokenizer.decode(state.tokens);
  const prompt = tokenizer.decode(state.tokens.slice(0, state.promptLength)).replace(/\ufffd+$/, "");
  const isPrefix = whole.startsWith(prompt);
  $("promptPart").textContent = isPrefix ? prompt : "";
  $("newPart").textContent = isPrefix ? whole.slice(prompt.length) : whole;
}

// Buttons are kept and reused: at full speed tokens come faster than elements can be made.
function drawChips() {
  const chips = $("chips");
  const chosen = query();
  while (chips.childElementCount > state.tokens.length) chips.lastChild.remove();
  state.tokens.forEach((id, p) => {
    let chip = chips.children[p];
    if (!chip) chips.append((chip = element("button", { type: "button" })));
    if (chip.dataset.token !== String(id)) {
      chip.dataset.token = id;
      chip.textContent = shown(id);
      chip.title = `${p}: ${id}`;
    }
    chip.className = p >= state.promptLength ? "new" : "";
    chip.setAttribute("aria-pressed", p === chosen);
    chip.tabIndex = p === chosen ? 0 : -1; // one stop of the tab key for all; arrows move on
  });
  if (state.position === null && state.playing) chips.scrollTop = chips.scrollHeight;
}

function drawBars() {
  const [scaled, topped, left] = stages(state.logits, sampling());
  const greedy = !state.temperature;
  const best = scaled.indexOf(0);
  const before = softmax(new Float64Array(scaled));
  const after = softmax(new Float64Array(left));
  const reason = (id) => {
    if (greedy) return id === best ? "" : "cutGreedy";
    return topped[id] === -Infinity ? "cutTopK" : left[id] === -Infinity ? "cutTopP" : "";
  };
  const order = likeliest(before, BARS);
  $("distribution").textContent = t("distribution", { temperature: state.temperature.toFixed(2) });
  $("barsHead").textContent = t(greedy ? "barsGreedy" : "barsHead");
  const rows = $("bars");
  while (rows.childElementCount > order.length) rows.lastChild.remove();
  order.forEach((id, i) => {
    const row = rows.children[i] ?? rows.appendChild(bar());
    const button = row.firstChild;
    const [token, track, amount] = button.children;
    const cut = reason(id);
    row.className = cut ? "cut" : "";
    button.dataset.token = id;
    token.textContent = shown(id);
    track.firstChild.style.width = `${(100 * before[id]) / before[order[0]]}%`;
    amount.textContent = amountOf(before[id], after[id], cut ? t(cut) : "", greedy);
  });
  const others = 1 - order.reduce((sum, id) => sum + before[id], 0);
  const kept = greedy ? 1 : left.reduce((count, logit) => count + (logit > -Infinity), 0);
  $("rest").textContent = t("rest", {
    others: before.length - order.length,
    probability: percent(Math.max(0, others)),
    kept,
    all: before.length,
  });
}

function amountOf(before, after, cut, greedy) {
  if (cut) return `${percent(before)} ${cut}`;
  return greedy ? percent(before) : `${percent(before)} → ${percent(after)}`;
}

function bar() {
  const track = element("div", { className: "track" }, element("div", { className: "fill" }));
  return element(
    "li",
    {},
    element("button", { type: "button" }, element("code"), track, element("span", { className: "amount" })),
  );
}

// The `count` largest, largest first.
export function likeliest(probs, count) {
  const least = new Float64Array(probs).sort()[Math.max(0, probs.length - count)];
  const found = [];
  probs.forEach((prob, id) => prob >= least && found.push(id));
  return found.sort((a, b) => probs[b] - probs[a]).slice(0, count);
}
