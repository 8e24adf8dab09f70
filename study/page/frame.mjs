// Draws changed views. Those on the screen are drawn in the next frame; the others after a pause without changes, so
// that each has its full height before it is scrolled onto the screen.

import { $ } from "./draw.mjs";
import { isFull, positionText, selectedKey, selectedQuery, state, t } from "./state.mjs";
import { drawTokens } from "./tokens.mjs";
import { drawRotation } from "./rotation_view.mjs";
import { drawScore } from "./score_view.mjs";
import { drawMaps } from "./maps.mjs";
import { drawCache } from "./cache.mjs";

export const VIEWS = {
  tokens: drawTokens,
  rotation: drawRotation,
  score: drawScore,
  maps: drawMaps,
  cache: drawCache,
};
const PAUSE = 150; // milliseconds without a change, after which views off the screen are drawn
export const visible = new Set(); // views on the screen
const stale = new Set(); // views to draw
let isScheduled = false;
let pauseTimer = 0;

// Marks views as out of date; all of them if none is named.
export function changed(...views) {
  for (const view of views.length ? views : Object.keys(VIEWS)) stale.add(view);
  schedule();
}

// Draws stale views in the next frame.
export function schedule() {
  if (!isScheduled) requestAnimationFrame(draw);
  isScheduled = true;
}

function draw() {
  isScheduled = false;
  drawPlayer();
  if (!state.tokens.length) return;
  for (const view of [...stale]) {
    if (visible.has(view)) drawView(view);
  }
  clearTimeout(pauseTimer);
  if (stale.size) pauseTimer = setTimeout(drawHidden, PAUSE);
}

function drawView(view) {
  stale.delete(view);
  VIEWS[view]();
}

// Draws one view per frame, so that the page stays responsive.
function drawHidden() {
  if (state.playing || !stale.size) return; // playing schedules a frame when it stops
  const [view] = stale;
  drawView(view);
  if (stale.size) requestAnimationFrame(drawHidden);
}

// Draws all views immediately, before the page is marked as ready. There are no tokens, and so no views to draw, if the
// model could not be loaded.
export function drawAll() {
  drawPlayer();
  if (!state.tokens.length) return;
  for (const view of Object.keys(VIEWS)) drawView(view);
}

// The settings are shown before there are tokens. page.html disables the buttons until then.
export function drawPlayer() {
  $("fold").textContent = `${t("where", { layer: state.layer, head: state.head })} ${isOpen() ? "▴" : "▾"}`;
  $("layer").value = state.layer;
  $("head").value = state.head;
  $("play").textContent = t(state.playing ? "pause" : "play");
  $("play").setAttribute("aria-pressed", state.playing);
  const digits = { temperature: 2, topP: 2, shift: 0 };
  for (const [id, count] of Object.entries(digits)) $(`${id}Text`).textContent = state[id].toFixed(count);
  if (state.tokens.length) drawSelection();
}

// The selected query and key, and the buttons that need tokens.
function drawSelection() {
  const q = selectedQuery();
  setPositionSlider("position", q, state.tokens.length - 1);
  setPositionSlider("key", selectedKey(q), q);
  $("back").disabled = state.tokens.length <= 1;
  $("step").disabled = isFull() || state.ended;
  $("play").disabled = !state.playing && (isFull() || state.ended);
  $("compareCache").disabled = false;
}

function setPositionSlider(id, position, max) {
  const text = positionText(position);
  $(id).max = max;
  $(id).value = position;
  $(id).setAttribute("aria-valuetext", text);
  $(`${id}Text`).textContent = text;
}

const isOpen = () => $("player").classList.contains("open");

// On a narrow screen the settings of the player are folded away, so that it takes one line.
export function toggleSettings() {
  $("player").classList.toggle("open");
  $("fold").setAttribute("aria-expanded", isOpen());
  drawPlayer();
}
