"""The known mistakes: what each one is, why it is wrong, and the step of docs/rope.md that shows it."""

from typing import NamedTuple


class Fault(NamedTuple):
    name: str
    why: str
    step: int


EXPONENT = Fault(
    "the exponent",
    "Pair i rotates by theta^(-2i/dim) a position: the exponents are 0, 2, 4 .. dim - 2, each divided by dim, with a "
    "minus. Write theta ** -(torch.arange(0, dim, 2) / dim).",
    4,
)
INVERTED = Fault(
    "theta is inverted",
    "Its power lacks the minus (or 1 / theta has one too many), so later pairs rotate faster instead of slower. The "
    "first pair has one radian a position, all others less.",
    4,
)
SIGN = Fault(
    "the sign of the angle",
    "Everything rotates backwards: (x, y) becomes (x cos + y sin, y cos - x sin). Scores still depend on distances "
    "only, so only the numbers show it; but weights trained with one sign are useless with the other.",
    1,
)
SHIFTED = Fault(
    "off by one position",
    "Positions count from 0, and position 0 is not rotated: torch.arange(end). Scores do not notice, but the row "
    "start_pos of the table must be the rotation of position start_pos.",
    4,
)
ROUNDED = Fault(
    "angles rounded in half precision",
    "A 16-bit number has 8 or 11 significant bits: near 2000 it holds whole radians only, or "
    "every 8th. Take positions, frequencies and angles in float32 or float64, and round only the result.",
    12,
)
REAL = Fault(
    "the table is cast to real",
    "A cast of complex numbers to a real dtype drops the imaginary part, with one warning at most. What is left "
    "multiplies by cosines: that shrinks, and rotates nothing. Cast x instead, or keep cosine and sine apart.",
    4,
)
UNUSED = Fault("theta is not used", "The table is that of theta = 10000 whatever theta is asked for.", 4)
SWAPPED = Fault(
    "cosine and sine exchanged",
    "The real part is the cosine: exp(j a) = cos a + j sin a. Exchanged, position 0 is rotated by a quarter circle.",
    1,
)
POLAR = Fault("polar's arguments exchanged", "torch.polar takes the length first, which is 1, then the angle.", 4)
MIXED = Fault(
    "pairs mixed with halves",
    "There are two layouts: neighbours (2i, 2i + 1), and halves (i, i + D/2). Here one is used for the pairs and the "
    "other for their angles or for the result. Either is right, but all of it must be of one kind.",
    5,
)
ANGLES = Fault(
    "the table holds angles",
    "The angle p theta^(-2i/dim) is not yet a rotation: take exp(j angle), with torch.polar, or its cosine and sine.",
    4,
)
HEADS = Fault(
    "rotation along the head axis",
    "Each head was given a position, and all tokens the same one. x is (B, T, H, D): the table's rows belong to "
    "axis 1, so it is laid out as (1, T, 1, D/2). Where T equals H no shape complains.",
    7,
)
OVERWRITTEN = Fault(
    "a number is overwritten while it is still needed",
    "x[..., ::2] is a view: writing to it changes what the second line reads. Compute both numbers of a pair first.",
    1,
)

# The mask, the cache and attention.

CORNER = Fault(
    "the mask is aligned to the wrong corner",
    "The triangle belongs to the right end of (T, S): new token t is at position start_pos + t and sees keys up to "
    "there. Write torch.ones(T, start_pos + T, dtype=torch.bool).tril(diagonal=start_pos).",
    8,
)
SQUARE = Fault(
    "the mask is square",
    "T new tokens attend to S = start_pos + T keys, the cached ones too, so the mask of a chunk is (T, S), not (T, T).",
    8,
)
DIAGONAL = Fault(
    "off by one position",
    "Token t sees itself and everything before it, and nothing after: keys 0 .. start_pos + t, both included.",
    8,
)
INVERTED_MASK = Fault(
    "True and False exchanged",
    "Here True means that the key may be seen, as in scaled_dot_product_attention. Negate the mask (~): where it is "
    "made, or in masked_fill(~mask, -inf).",
    8,
)
NO_MASK = Fault(
    "the future is not hidden",
    "Every token sees the ones after it, in training also the one that it is to predict. Hide keys past start_pos + t.",
    8,
)
CACHED_HIDDEN = Fault(
    "the cached keys are hidden",
    "The triangle holds among the new tokens; the start_pos earlier ones are all visible to each of them.",
    8,
)
T_CHECKED = Fault(
    "T is checked instead of start_pos + T",
    "The new tokens fill slots start_pos .. start_pos + T - 1. One token fits a full cache by T alone: what is written "
    "then is lost silently, or fails elsewhere. Compare start_pos + T with max_seq_len.",
    8,
)
LAST_SLOT = Fault("the last slot is refused", "start_pos + T may be max_seq_len: only more is too much.", 8)
ATTACHED = Fault(
    "the cache is not detached",
    "It keeps the graph of every step that wrote to it: memory grows, and a backward pass runs into graphs that are "
    "freed. Store xk.detach() and xv.detach().",
    8,
)
STALE = Fault(
    "stale slots are read",
    "Slots from start_pos + T on hold zeros or an earlier, longer text. A zero key is not an absent one: its score "
    "is 0, and the softmax gives it weight. Return only [:, :, : start_pos + T].",
    8,
)
SLOT_SHIFTED = Fault(
    "off by one position",
    "Token t of the chunk goes to slot start_pos + t: write start_pos : start_pos + T, read : start_pos + T.",
    8,
)
APPENDED = Fault(
    "start_pos is not used",
    "The new tokens are appended to whatever is there. A cache keeps no count: the caller passes start_pos, so that "
    "a text can start anew at 0 or be overwritten.",
    8,
)
LAYER = Fault("all layers share their slots", "Each layer has keys and values of its own: index by layer first.", 8)
EXCHANGED = Fault("keys and values exchanged", "It returns (keys, values), in this order.", 8)
TILED = Fault(
    "heads are tiled instead of repeated",
    "H / K neighbouring query heads share one key/value head: head h uses h // (H // K). repeat_interleave(H // K) "
    "does that; repeat gives h % K, and fits the shape just as well.",
    6,
)
VALUES = Fault(
    "values are rotated",
    "Only queries and keys are: RoPE affects the scores only. A rotated value would reach the "
    "output, and with it the position itself instead of a difference.",
    7,
)
UNSCALED = Fault("the scores are not divided by sqrt(D)", "D is the width of one head, the last axis of xq.", 6)
UNROTATED = Fault("nothing is rotated", "Apply apply_rotary_emb to xq and xk before the scores.", 7)
ONE_ROTATED = Fault(
    "only one of q and k is rotated",
    "A score sees the distance only when both are: (R_m q) . (R_n k). With one of them it sees m or n alone.",
    2,
)
MASK_UNUSED = Fault("the mask is not used", "Set scores to -inf where the mask is False, before the softmax.", 6)
SOFTMAX = Fault("the softmax runs along the wrong axis", "The weights of one query over all keys sum to 1: dim=-1.", 6)
