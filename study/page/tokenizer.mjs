// SentencePiece's BPE and character models without its library: the same ids for the same text. `kinds` has a letter for
// each piece: n normal, u unknown, c control, b byte.

const U2581 = "\u2581"; // how SentencePiece writes a space inside a piece

export class SentencePiece {
  // addsSpace: add a space before the text. collapses: replace each run of spaces by one, and strip both ends.
  // encodesU2581AsBytes: encode a typed U+2581 as bytes, because its piece would be decoded as a space. Not possible
  // with addsSpace.
  constructor({ pieces, kinds, scores, bosId, eosIds, addsSpace, collapses, encodesU2581AsBytes }) {
    Object.assign(this, { pieces, kinds, scores, bosId, eosIds, addsSpace, collapses, encodesU2581AsBytes });
    this.ids = new Map();
    this.bytes = new Map();
    pieces.forEach((piece, id) => {
      if (kinds[id] === "n") this.ids.set(piece, id);
      if (kinds[id] === "b") this.bytes.set(parseInt(piece.slice(3, 5), 16), id); // <0xE2>
    });
    this.unknown = kinds.indexOf("u");
  }

  // BOS first.
  encode(text) {
    const ids = [this.bosId];
    const parts = this.encodesU2581AsBytes ? text.split(U2581) : [text];
    parts.forEach((part, i) => {
      if (i > 0) ids.push(...this.byteIds(U2581));
      for (const id of this.encodePart(part)) ids.push(id); // a spread of a pasted text could overflow the stack
    });
    return ids;
  }

  encodePart(text) {
    const symbols = merge([...this.normalize(text)], (a, b) => {
      const id = this.ids.get(a + b);
      return id === undefined ? null : [-this.scores[id], a + b];
    });
    const ids = [];
    for (const symbol of symbols) {
      const id = this.ids.get(symbol);
      if (id !== undefined) ids.push(id);
      else if (this.bytes.size) ids.push(...this.byteIds(symbol));
      else if (ids.at(-1) !== this.unknown) ids.push(this.unknown); // a run of unknown characters is one token
    }
    return ids;
  }

  normalize(text) {
    const spaced = this.collapses ? text.replace(/^ +/, "").replace(/ +/g, " ") : text;
    if (!spaced) return "";
    const marked = (this.addsSpace ? " " + spaced : spaced).replaceAll(" ", U2581);
    return this.collapses ? marked.replace(/\u2581+$/, "") : marked; // also strips a typed U+2581
  }

  byteIds(text) {
    return this.bytes.size ? [...new TextEncoder().encode(text)].map((byte) => this.bytes.get(byte)) : [];
  }

  // Control pieces have no text.
  decode(ids) {
    let text = "";
    let bytes = [];
    // Whether the next piece loses its leading space, as at the start of the text
    let stripsSpace = this.addsSpace || this.collapses;
    const flush = () => {
      text += readBytes(bytes);
      bytes = [];
    };
    for (const id of ids) {
      const kind = this.kinds[id];
      const piece = this.pieces[id];
      if (kind === "b") {
        bytes.push(parseInt(piece.slice(3, 5), 16));
        stripsSpace = false;
        continue;
      }
      flush();
      if (kind === "c") continue;
      if (kind === "u") text += " \u2047 ";
      else text += (stripsSpace && piece.startsWith(U2581) ? piece.slice(1) : piece).replaceAll(U2581, " ");
      stripsSpace = stripsSpace && this.collapses && !text; // collapsing strips all spaces at the start
    }
    flush();
    return text;
  }

  // The text of one token, independent of its neighbours.
  name(id) {
    return this.kinds[id] === "n" ? this.pieces[id].replaceAll(U2581, " ") : this.pieces[id];
  }
}

// Decodes UTF-8. Each byte that is not part of a valid character becomes a replacement character.
function readBytes(bytes) {
  const decoder = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
  let text = "";
  for (let at = 0; at < bytes.length;) {
    const lead = bytes[at];
    const length = lead < 0x80 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
    try {
      text += decoder.decode(Uint8Array.from(bytes.slice(at, at + length)));
      at += length;
    } catch {
      text += "\ufffd";
      at += 1;
    }
  }
  return text;
}

// Byte-pair merging: merges the neighbours of lowest rank, the leftmost if ranks are equal, until no pair is left.
// `join(a, b)` is [rank, merged symbol], or null if a and b have no merge. Uses a heap, because a pasted text may have
// thousands of characters.
function merge(symbols, join) {
  const current = [...symbols]; // null once merged into the symbol to its left
  const left = current.map((_, i) => i - 1);
  const right = current.map((_, i) => i + 1);
  const heap = new Heap((a, b) => a.rank - b.rank || a.at - b.at);
  const addPair = (at, next) => {
    if (at < 0 || next >= current.length) return;
    const joined = join(current[at], current[next]);
    if (joined) heap.push({ rank: joined[0], at, next, a: current[at], b: current[next], merged: joined[1] });
  };
  for (let i = 0; i + 1 < current.length; i++) addPair(i, i + 1);
  for (let best = heap.pop(); best; best = heap.pop()) {
    const { at, next, a, b, merged } = best;
    if (current[at] !== a || current[next] !== b || right[at] !== next) continue; // an earlier merge took one of them
    current[at] = merged;
    current[next] = null;
    right[at] = right[next];
    if (right[at] < current.length) left[right[at]] = at;
    addPair(left[at], at);
    addPair(at, right[at]);
  }
  return current.filter((symbol) => symbol !== null);
}

// A binary heap. `pop` returns the smallest item by `compare`, or undefined if the heap is empty.
class Heap {
  constructor(compare) {
    this.compare = compare;
    this.items = [];
  }

  push(item) {
    const { items, compare } = this;
    let at = items.push(item) - 1;
    while (at > 0) {
      const parent = (at - 1) >> 1;
      if (compare(items[parent], item) <= 0) break;
      items[at] = items[parent];
      at = parent;
    }
    items[at] = item;
  }

  pop() {
    const { items, compare } = this;
    const smallest = items[0];
    const last = items.pop();
    if (!items.length) return smallest;
    let at = 0;
    for (let child = 1; child < items.length; child = 2 * at + 1) {
      if (child + 1 < items.length && compare(items[child + 1], items[child]) < 0) child++;
      if (compare(last, items[child]) <= 0) break;
      items[at] = items[child];
      at = child;
    }
    items[at] = last;
    return smallest;
  }
}

// The text of a tokenizer that runs in Python only: the ids of one prompt, and the text of each token.
export class FixedText {
  constructor({ pieces, ids, bosId, eosIds }) {
    Object.assign(this, { pieces, ids, bosId, eosIds });
  }

  encode() {
    return this.ids;
  }

  decode(ids) {
    return ids.map((id) => this.name(id)).join("");
  }

  name(id) {
    return this.pieces[id] ?? `[${id}]`; // the embedding may have more rows than the tokenizer has tokens
  }
}
