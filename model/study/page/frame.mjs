// Drawing: at most once a frame. What is on the screen is drawn at once, the other views when nothing moves, so that
// each has its full height before somebody scrolls to it.

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
const REST = 150; // milliseconds without a change, after which views off the screen are drawn
export const visible = new Set();
const stale = new Set();
let scheduled = false;
let resting = 0;

export function changed(...views) {
  for (const view of views.length ? views : Object.keys(VIEWS)) stale.add(view);
  schedule();
}

// Draws what is out of date in the next frame.
export function schedule() {
  if (!scheduled) requestAnimationFrame(draw);
  scheduled = true;
}

function draw() {
  scheduled = false;
  if (!state.tokens.length) return;
  drawPlayer();
  for (const view of [...stale]) {
    if (visible.has(view)) drawView(view);
  }
  clearTimeout(resting);
  if (stale.size) resting = setTimeout(drawHidden, REST);
}

function drawView(view) {
  stale.delete(view);
  VIEWS[view]();
}

// One view a frame, so that none of them is noticed.
function drawHidden() {
  if (state.playing || state.advancing || !stale.size) return; // the last change of either draws again
  const [view] = stale;
  drawView(view);
  if (stale.size) requestAnimationFrame(drawHidden);
}

// All views now: before the page is first shown, and before it is printed.
export function drawAll() {
  drawPlayer();
  for (const view of Object.keys(VIEWS)) drawView(view);
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
  $("fold").textContent = `${t("where", { layer: state.layer, head: state.head })} ${isOpen() ? "▴" : "▾"}`;
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
    ["zoom", 0],
    ["factor", 1],
    ["stretch", 1],
  ]) {
    $(`${id}Text`).textContent = state[id].toFixed(digits);
  }
  $("shiftText").textContent = state.shift.toFixed(state.advancing ? 1 : 0);
}

const isOpen = () => $("player").classList.contains("open");

// On a phone the choices of the player are folded away, so that it takes one line of the screen.
export function fold() {
  $("player").classList.toggle("open");
  $("fold").setAttribute("aria-expanded", isOpen());
  drawPlayer();
}
