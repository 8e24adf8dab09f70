// Draws the page after changes of the state. Views off the screen are drawn when they are scrolled to.

import { $, readColors } from "./draw.mjs";
import { isFull, positionText, selectedKey, selectedQuery, state, t } from "./state.mjs";
import { drawTokens } from "./tokens.mjs";
import { drawRotation } from "./rotation_view.mjs";
import { drawScore } from "./score_view.mjs";
import { drawMaps } from "./maps.mjs";
import { drawCache } from "./cache.mjs";

const VIEWS = { tokens: drawTokens, rotation: drawRotation, score: drawScore, maps: drawMaps, cache: drawCache };
const stale = new Set(Object.keys(VIEWS)); // views to draw

export function changed() {
  for (const view of Object.keys(VIEWS)) stale.add(view);
  requestAnimationFrame(() => draw());
}

// Draws the stale views that are less than `margin` pixels from the screen, so that they rarely move when scrolled to.
export function draw(margin = 200) {
  readColors();
  drawPlayer();
  for (const view of stale) {
    const { top, bottom } = $(view).getBoundingClientRect();
    if (top > innerHeight + margin || bottom < -margin) continue;
    stale.delete(view);
    VIEWS[view]();
  }
}

function drawPlayer() {
  const q = selectedQuery();
  $("where").textContent = t("where", { layer: state.layer, head: state.head });
  $("layer").value = state.layer;
  $("head").value = state.head;
  setPositionSlider("position", q, state.tokens.length - 1);
  setPositionSlider("key", selectedKey(q), q);
  for (const id of ["temperature", "topP", "shift"]) $(`${id}Text`).textContent = state[id];
  $("back").disabled = state.tokens.length <= state.promptLength;
  for (const id of ["step", "steps"]) $(id).disabled = isFull();
}

function setPositionSlider(id, position, max) {
  $(id).max = max;
  $(id).value = position;
  $(id).setAttribute("aria-valuetext", positionText(position));
  $(`${id}Text`).textContent = positionText(position);
}
