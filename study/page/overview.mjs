// The diagram of the network, which marks the current view, and the guide through the views.

import { $, element } from "./draw.mjs";
import { args, state, t, writeHash } from "./state.mjs";
import { VIEWS } from "./frame.mjs";

// The parts of the network: [text, view that shows it]. ATTENTION and FEED_FORWARD are branches of the residual stream.
const BEFORE = [["netTokens", "tokens"], ["netEmbedding"]];
const ATTENTION = [["netNorm"], ["netRotate", "rotation"], ["netCache", "cache"], ["netScore", "score"], ["netMaps", "maps"]];
const FEED_FORWARD = [["netNorm"], ["netSwiglu"]];
const AFTER = [["netNorm"], ["netLogits"], ["netNext", "tokens"]];

export function buildOverview() {
  const net = $("net");
  net.replaceChildren(
    ...BEFORE.map(part),
    element(
      "li",
      { className: "layers" },
      element("span", { className: "times" }, t("netLayers", { L: args.nLayers })),
      element("ol", {}, branch("netAttention", ATTENTION), branch("netFeedForward", FEED_FORWARD)),
    ),
    ...AFTER.map(part),
  );
  $("netNote").replaceChildren(t("netNote"), " ", viewLink("whatIfTitle", "whatIf"));
  $("strip").replaceChildren(...VIEW_ORDER.map((view) => viewLink(`${view}Title`, view)));
  markView();
}

function part([key, view]) {
  return element("li", { className: "part" }, view ? viewLink(key, view) : t(key));
}

function viewLink(key, view) {
  return element("a", { href: `#${view}`, "data-view": view }, t(key));
}

// A branch reads the residual stream, and its output is added back to the stream.
function branch(key, parts) {
  const steps = element("ol", { className: "steps" }, ...parts.map(part));
  const plus = element("span", { className: "plus", title: t("netPlus") }, "+");
  return element("li", { className: "branch" }, element("span", { className: "times" }, t(key)), steps, plus);
}

const VIEW_ORDER = Object.keys(VIEWS);
const GUIDE = ["guide1", "guide2", "guide3", "guide4", "guide5", "guide6"]; // one text for each view

// Marks the current view: the lowest one whose top is above the middle of the screen. At the end of the page it is the
// last view.
export function markView() {
  const passed = VIEW_ORDER.filter((view) => $(view).getBoundingClientRect().top < innerHeight / 2);
  const isEnd = scrollY > 0 && innerHeight + scrollY >= document.documentElement.scrollHeight - 2;
  const current = isEnd ? VIEW_ORDER.at(-1) : (passed.at(-1) ?? VIEW_ORDER[0]);
  for (const link of document.querySelectorAll("[data-view]")) {
    if (link.dataset.view === current) link.setAttribute("aria-current", "true");
    else link.removeAttribute("aria-current");
  }
}

export function goTo(view) {
  const smooth = !matchMedia("(prefers-reduced-motion: reduce)").matches;
  $(view).scrollIntoView({ behavior: smooth ? "smooth" : "instant" });
  $(`${view}Title`).focus({ preventScroll: true });
}

// ---- the guide: open at first, unless the address has settings

export function drawGuide() {
  const { guide } = state;
  $("guide").hidden = guide === 0;
  $("guideText").textContent = guide ? t(GUIDE[guide - 1]) : "";
  $("guideCount").textContent = `${guide} / ${VIEW_ORDER.length}`;
  $("guideNext").textContent = t(guide === VIEW_ORDER.length ? "guideEnd" : "guideNext");
}

export function guideTo(step) {
  state.guide = step > VIEW_ORDER.length ? 0 : step;
  writeHash();
  drawGuide();
  if (state.guide) goTo(VIEW_ORDER[state.guide - 1]);
}
