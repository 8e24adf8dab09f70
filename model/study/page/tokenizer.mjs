// SentencePiece's BPE and character models, without the library: the same ids for the same text.

const SPACE = "\u2581"; // how SentencePiece writes a space inside a piece

export class Tokenizer {
  // kinds: a letter for each piece, n normal, u unknown, c control, b byte, x unused; scores: of the merged ones.
  constructor({ pieces, kinds, scores, bosId, eosIds, addsSpace, spellsSign }) {
    Object.assign(this, { pieces, kinds, bosId, eosIds, addsSpace, spellsSign });
    this.scores = scores;
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
    if (!text) return [];
    const symbols = this.merge([...(this.addsSpace ? " " + text : text).replaceAll(" ", SPACE)]);
    const ids = [];
    for (const symbol of symbols) {
      const id = this.ids.get(symbol);
      if (id !== undefined) ids.push(id);
      else if (this.bytes.size) ids.push(...this.spell(symbol));
      else if (ids.at(-1) !== this.unknown) ids.push(this.unknown); // a run of unknown characters is one token
    }
    return ids;
  }

  // Joins the two neighbours whose piece has the best score, the leftmost of equals, until no two make a piece.
  merge(symbols) {
    const score = (i) => this.scores[this.ids.get(symbols[i] + symbols[i + 1])] ?? -Infinity;
    const scores = symbols.map((_, i) => (i + 1 < symbols.length ? score(i) : -Infinity));
    while (symbols.length > 1) {
      let best = 0;
      for (let i = 1; i < scores.length; i++) if (scores[i] > scores[best]) best = i;
      if (scores[best] === -Infinity) break;
      symbols.splice(best, 2, symbols[best] + symbols[best + 1]);
      scores.splice(best, 1);
      for (const i of [best - 1, best]) if (i >= 0) scores[i] = i + 1 < symbols.length ? score(i) : -Infinity;
    }
    return symbols;
  }

  spell(text) {
    return this.bytes.size ? [...new TextEncoder().encode(text)].map((byte) => this.bytes.get(byte)) : [];
  }

  // The text of these ids; control pieces have none.
  decode(ids) {
    let text = "";
    let bytes = [];
    let first = this.addsSpace;
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
      first = false;
    }
    flush();
    return text;
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
