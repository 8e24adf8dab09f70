// Drawing: at most once a frame, and only what is on the screen.

import { $ } from "./draw.mjs";
import { isFull, keyOf, query, shown, state, t } from "./state.mjs";
import { drawTokens } from "./tokens.mjs";
import { drawRotation } from "./rotation.mjs";
import { drawScore } from "./score.mjs";
import { drawMaps } from "./maps.mjs";
import { drawCache } from "./cache.mjs";
import { drawWhatIf } from "./whatif.mjs";

export const VIEWS = {
  tokens: drawTokens,
  rotation: drawRotation,
  score: drawScore,
  maps: drawMaps,
  cache: drawCache,
  whatIf: drawWhatIf,
};
export const visible = new Set();
const stale = new Set();
let scheduled = false;

export function changed(...views) {
  for (const view of views.length ? views : Object.keys(VIEWS)) stale.add(view);
  if (!scheduled) requestAnimationFrame(draw);
  scheduled = true;
}

function draw() {
  scheduled = false;
  if (!state.tokens.length) return;
  drawPlayer();
  for (const view of [...stale]) {
    if (view && !visible.has(view)) continue;
    stale.delete(view);
    VIEWS[view]?.();
  }
}

export function drawPlayer() {
  const q = query();
  const k = keyOf(q);
  const place = (p) => `${p} ${shown(state.tokens[p])}`;
  for (const [id, value, most] of [
    ["position", q, state.tokens.length - 1],
    ["key", k, q],
  ]) {
    $(id).max = most;
    $(id).value = value;
    $(id).setAttribute("aria-valuetext", place(value));
    $(`${id}Text`).textContent = place(value);
  }
  $("layer").value = state.layer;
  $("head").value = state.head;
  $("back").disabled = state.tokens.length <= 1;
  $("step").disabled = isFull() || state.ended;
  $("play").disabled = !state.playing && (isFull() || state.ended);
  $("play").textContent = t(state.playing ? "pause" : "play");
  $("play").setAttribute("aria-pressed", state.playing);
  $("advance").textContent = t(state.advancing ? "stop" : "advance");
  $("advance").setAttribute("aria-pressed", state.advancing);
  for (const [id, digits] of [
    ["temperature", 2],
    ["topP", 2],
    ["factor", 1],
    ["stretch", 1],
  ]) {
    $(`${id}Text`).textContent = state[id].toFixed(digits);
  }
  $("shiftText").textContent = state.shift.toFixed(state.advancing ? 1 : 0);
}
