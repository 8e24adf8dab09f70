// SentencePiece's BPE and character models without its library: the same ids for the same text. `kinds` has a letter for
// each piece: n normal, u unknown, c control, b byte.

const U2581 = "\u2581"; // how SentencePiece writes a space inside a piece

export class SentencePiece {
  // addsSpace: add a space before the text. collapses: replace each run of spaces by one, and strip both ends.
  constructor({ pieces, kinds, scores, bosId, eosIds, addsSpace, collapses }) {
    Object.assign(this, { pieces, kinds, scores, bosId, eosIds, addsSpace, collapses });
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
    for (const symbol of this.merge([...this.normalize(text)])) {
      const id = this.ids.get(symbol);
      if (id !== undefined) ids.push(id);
      else if (this.bytes.size) ids.push(...this.byteIds(symbol));
      else if (ids.at(-1) !== this.unknown) ids.push(this.unknown); // a run of unknown characters is one token
    }
    return ids;
  }

  // Byte-pair merging: joins the two neighbours of the highest score, the first ones if scores are equal, until no two of
  // them make a piece.
  merge(symbols) {
    const scoreAt = (i) => {
      const merged = i + 1 < symbols.length ? this.ids.get(symbols[i] + symbols[i + 1]) : undefined;
      return this.scores[merged] ?? -Infinity;
    };
    const scores = symbols.map((_, i) => scoreAt(i));
    for (;;) {
      const best = scores.reduce((a, b) => Math.max(a, b), -Infinity);
      if (best === -Infinity) return symbols;
      const i = scores.indexOf(best);
      symbols.splice(i, 2, symbols[i] + symbols[i + 1]);
      scores.splice(i, 2, scoreAt(i));
      if (i > 0) scores[i - 1] = scoreAt(i - 1);
    }
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
