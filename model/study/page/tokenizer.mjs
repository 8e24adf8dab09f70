// SentencePiece's BPE and character models and llama2.c's tokenizer.bin, without their libraries: the same ids for the
// same text. A kind is a letter for each piece: n normal, u unknown, c control, b byte.

const SPACE = "\u2581"; // how SentencePiece writes a space inside a piece

export class SentencePiece {
  // addsSpace: a space is put before the text; collapses: runs of spaces become one, and none is kept at either end.
  constructor({ pieces, kinds, scores, bosId, eosIds, addsSpace, collapses, spellsSign }) {
    Object.assign(this, { pieces, kinds, scores, bosId, eosIds, addsSpace, collapses, spellsSign });
    this.ids = new Map();
    this.bytes = new Map();
    pieces.forEach((piece, id) => {
      if (kinds[id] === "n") this.ids.set(piece, id);
      if (kinds[id] === "b") this.bytes.set(parseInt(piece.slice(3, 5), 16), id); // <0xE2>
    });
    this.unknown = kinds.indexOf("u");
  }

  // BOS first. A typed sign for a space would come back as a space, so it is spelt in bytes.
  encode(text) {
    const parts = this.spellsSign ? text.split(SPACE) : [text];
    const sign = this.spell(SPACE);
    return [this.bosId, ...parts.flatMap((part, i) => [...(i ? sign : []), ...this.encodePart(part)])];
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
      else if (this.bytes.size) for (const byte of this.spell(symbol)) ids.push(byte);
      else if (ids.at(-1) !== this.unknown) ids.push(this.unknown); // a run of unknown characters is one token
    }
    return ids;
  }

  normalize(text) {
    const spaced = this.collapses ? text.replace(/^ +/, "").replace(/ +/g, " ") : text;
    if (!spaced) return "";
    const whole = (this.addsSpace ? " " + spaced : spaced).replaceAll(" ", SPACE);
    return this.collapses ? whole.replace(/\u2581+$/, "") : whole; // a sign typed at the end goes, too
  }

  spell(text) {
    return this.bytes.size ? [...new TextEncoder().encode(text)].map((byte) => this.bytes.get(byte)) : [];
  }

  // The text of these ids; control pieces have none.
  decode(ids) {
    let text = "";
    let bytes = [];
    let first = this.addsSpace || this.collapses;
    const flush = () => {
      text += readBytes(bytes);
      bytes = [];
    };
    for (const id of ids) {
      const kind = this.kinds[id];
      const piece = this.pieces[id];
      if (kind === "b") {
        bytes.push(parseInt(piece.slice(3, 5), 16));
        first = false;
        continue;
      }
      flush();
      if (kind === "c") continue;
      text +=
        kind === "u" ? " \u2047 " : (first && piece.startsWith(SPACE) ? piece.slice(1) : piece).replaceAll(SPACE, " ");
      first = first && this.collapses && !text; // there, each space at the start is dropped
    }
    flush();
    return text;
  }

  // What a token stands for, whichever tokens are around it.
  name(id) {
    return this.kinds[id] === "n" ? this.pieces[id].replaceAll(SPACE, " ") : this.pieces[id];
  }
}

// UTF-8, in which each byte that belongs to no character becomes a replacement character.
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

// A string of bytes, one in each character, as text.
export function readUtf8(binary, fatal = false) {
  const bytes = Uint8Array.from(binary, (character) => character.charCodeAt(0));
  return new TextDecoder("utf-8", { fatal, ignoreBOM: true }).decode(bytes);
}

export function toUtf8(text) {
  return Array.from(new TextEncoder().encode(text), (byte) => String.fromCharCode(byte)).join("");
}

// Bytes as text where they are whole characters, else each as <0xE2>.
export function nameBytes(binary) {
  try {
    return readUtf8(binary, true);
  } catch {
    return [...binary].map((byte) => `<0x${byte.charCodeAt(0).toString(16).toUpperCase().padStart(2, "0")}>`).join("");
  }
}

const FIRST_BYTE = 3; // tokens 0 to 2 are unknown, BOS and EOS, the next 256 the bytes

export class Llama2c {
  // pieces: strings of bytes, one in each character.
  constructor({ pieces, kinds, scores, bosId, eosIds }) {
    Object.assign(this, { pieces, kinds, scores, bosId, eosIds });
    this.ids = new Map();
    pieces.forEach((piece, id) => {
      if (kinds[id] === "n" && !this.ids.has(piece)) this.ids.set(piece, id); // of equal pieces the first is used
    });
  }

  encode(text) {
    if (!text) return [this.bosId];
    const tokens = [" ", ...text].flatMap((character) => {
      const bytes = toUtf8(character);
      const id = this.ids.get(bytes);
      return id === undefined ? Array.from(bytes, (byte) => byte.charCodeAt(0) + FIRST_BYTE) : [id];
    });
    const merged = merge(tokens, (a, b) => {
      const id = this.ids.get(this.pieces[a] + this.pieces[b]);
      return id === undefined ? null : [-this.scores[id], id];
    });
    return [this.bosId, ...merged];
  }

  decode(ids) {
    const bytes = ids.filter((id) => this.kinds[id] !== "c").map((id) => this.pieces[id]);
    return readUtf8(bytes.join("").replace(/^ /, ""));
  }

  name(id) {
    return nameBytes(this.pieces[id]);
  }
}

// Joins neighbours as long as any two make a token: the pair of the lowest rank first, the leftmost of equals.
// `join(a, b)` is [rank, what they make], or null. A heap, because a pasted text has many thousand characters.
export function merge(symbols, join) {
  const made = [...symbols];
  const left = made.map((_, i) => i - 1);
  const right = made.map((_, i) => i + 1);
  const heap = new Heap((a, b) => a.rank - b.rank || a.at - b.at);
  const offer = (at, next) => {
    if (at < 0 || next >= made.length) return;
    const found = join(made[at], made[next]);
    if (found) heap.push({ rank: found[0], at, next, a: made[at], b: made[next], whole: found[1] });
  };
  for (let i = 0; i + 1 < made.length; i++) offer(i, i + 1);
  for (let best = heap.pop(); best; best = heap.pop()) {
    const { at, next, a, b, whole } = best;
    if (made[at] !== a || made[next] !== b || right[at] !== next) continue; // one of them was joined to another since
    made[at] = whole;
    made[next] = null;
    right[at] = right[next];
    if (right[at] < made.length) left[right[at]] = at;
    offer(left[at], at);
    offer(at, right[at]);
  }
  return made.filter((symbol) => symbol !== null);
}

// A binary heap: `pop` is the smallest item by `compare`, undefined when there is none.
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
