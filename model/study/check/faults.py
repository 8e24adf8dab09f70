"""The known mistakes: what each one is, why it is wrong, and the step of docs/rope.md that shows it.

How each is computed stands beside the recipe that it spoils: in ``table.py``, ``rotation.py``, ``mask.py``,
``cache.py`` and ``attention.py``.
"""

from typing import NamedTuple


class Fault(NamedTuple):
    name: str
    why: str
    step: int

    def of(self, tensor: str) -> "Fault":
        """The same fault, in one of two tensors."""
        return self._replace(name=f"{self.name}, in {tensor} only")

    def of_kind(self, tensor: str) -> "Fault":
        """The same fault, and which of the two tensors is treated."""
        return self._replace(name=f"{self.name}: {tensor}")


# The table.

EXPONENT = Fault(
    "the exponent",
    "Pair i rotates by theta^(-2i/dim) a position: the exponents are 0, 2, 4 .. dim - 2, each divided by dim, with a "
    "minus. Write theta ** -(torch.arange(0, dim, 2) / dim).",
    4,
)
LINSPACE = Fault(
    "linspace instead of arange",
    "torch.linspace(a, b, n) includes its end b, so its steps are (b - a) / (n - 1). Positions are 0, 1, 2 .. and "
    "exponents 0, 2/dim, 4/dim ..: write torch.arange.",
    4,
)
END_FOR_DIM = Fault(
    "end instead of dim", "The frequencies depend on the width dim and on theta, and not on the number of positions.", 4
)
INVERTED = Fault(
    "theta is inverted",
    "Its power lacks the minus (or 1 / theta has one too many), so later pairs rotate faster instead of slower. The "
    "first pair has one radian a position, all others less.",
    4,
)
NOT_A_POWER = Fault(
    "not a power of theta",
    "The frequency is theta to the power -2i/dim: theta ** x, and not theta * x, exp(x) or a sum.",
    4,
)
REVERSED = Fault(
    "the pairs are in reverse order",
    "Pair 0 is the fastest, with one radian a position, and the last pair the slowest.",
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
ROWS = Fault(
    "the number of positions",
    "The table has one row for each of the positions 0 .. end - 1, which are end rows: torch.arange(end).",
    4,
)
COLUMNS = Fault(
    "the number of columns", "The table has one column for each of the dim/2 pairs: torch.arange(0, dim, 2).", 4
)
POSITIONS = Fault(
    "the positions",
    "They are the whole numbers 0, 1, 2 .. end - 1, in this order and not divided by anything: torch.arange(end).",
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
ONLY_SINES = Fault(
    "the cosines are missing", "A rotation needs both, cos a and sin a: sines alone rotate nothing, they shrink.", 1
)
UNUSED = Fault(
    "theta is not used",
    "The table is the same whatever theta is asked for. Models differ in theta (10000, 500000 ..): use the argument.",
    4,
)
DEFAULT_THETA = Fault(
    "the default of theta",
    "Without a third argument theta is 10000: def precompute_freqs_cis(dim, end, theta=10000.0).",
    4,
)
SWAPPED = Fault(
    "cosine and sine exchanged",
    "The real part is the cosine: exp(j a) = cos a + j sin a. Exchanged, position 0 is rotated by a quarter circle.",
    1,
)
TWO_OF_A_KIND = Fault(
    "cosine and sine are the same", "The real part is cos a and the imaginary part sin a; here one is used for both.", 1
)
POLAR = Fault("polar's arguments exchanged", "torch.polar takes the length first, which is 1, then the angle.", 4)
LENGTH = Fault(
    "the length is not 1",
    "A rotation has length 1: torch.polar(torch.ones_like(angles), angles). The frequency belongs into the angle only.",
    4,
)
DEGREES = Fault("degrees", "Angles are in radians: position 1 rotates pair 0 by 1 radian, which is 57.3 degrees.", 4)
CIRCLES = Fault(
    "a factor of pi",
    "The angle is p theta^(-2i/dim) radians as it is: it is not multiplied by 2 pi or divided by it.",
    4,
)
ADDED_ANGLES = Fault(
    "added instead of multiplied",
    "The angle is the product of position and frequency: torch.outer(positions, freqs), (end, dim/2).",
    4,
)
ANGLES = Fault(
    "the table holds angles",
    "The angle p theta^(-2i/dim) is not yet a rotation: take exp(j angle), with torch.polar, or its cosine and sine.",
    4,
)
NO_J = Fault("exp without j", "exp(angle) grows without bound; the rotation is exp(j angle): torch.polar(1, angle).", 4)
FREQUENCIES = Fault(
    "the table holds frequencies",
    "theta^(-2i/dim) is the angle of one position: multiply by all positions, torch.outer(torch.arange(end), freqs).",
    4,
)
CHANNELS = Fault(
    "one frequency for each channel",
    "Two channels form a pair and share a frequency, so there are dim/2 of them: torch.arange(0, dim, 2).",
    4,
)
TRANSPOSED_TABLE = Fault(
    "the table is transposed",
    "It has a row for each position and a column for each pair, (end, dim/2), so that table[start_pos : start_pos + T] "
    "are the rows of T tokens. torch.outer(positions, freqs), in this order.",
    4,
)
STACKED = Fault(
    "cosines and sines in one tensor",
    "The table is complex, or the tuple (cos, sin), each (end, dim/2). In one tensor they are joined along an axis "
    "where no rotation can be read: return the two apart.",
    5,
)
NUMPY = Fault(
    "not a torch tensor",
    "It returns what torch functions do not take. NumPy may compute it: return torch.from_numpy(...) in the end, or "
    "torch.tensor(...) of a list.",
    4,
)

# The rotation.

MIXED = Fault(
    "pairs mixed with halves",
    "There are two layouts: neighbours (2i, 2i + 1), and halves (i, i + D/2). Here one is used for the pairs and the "
    "other for their angles or for the result. Either is right, but all of it must be of one kind.",
    5,
)
OTHER_FORM = Fault(
    "not the form of your table",
    "It is right for another way to write the table than that of your precompute_freqs_cis. Any is fine, but both must "
    "use the same one.",
    5,
)
HEADS = Fault(
    "rotation along the head axis",
    "Each head was given a position, and all tokens the same one. x is (B, T, H, D): the table's rows belong to "
    "axis 1, so it is laid out as (1, T, 1, D/2). Where T equals H no shape complains.",
    7,
)
BATCH = Fault(
    "rotation along the batch axis",
    "Each text of the batch was given a position. x is (B, T, H, D): the table's rows belong to axis 1.",
    7,
)
ONE_ROW = Fault(
    "one row of the table for all tokens",
    "Token t has row t of freqs_cis: freqs_cis[None, :, None], (1, T, 1, D/2).",
    7,
)
X_RETURNED = Fault(
    "x is returned instead of the table",
    "The function lays the table out, and multiplies nothing: return freqs_cis[None, :, None, :].",
    7,
)
ONE_ANGLE = Fault(
    "one angle for all pairs", "Pair i has column i of freqs_cis: the table is (T, D/2), one column for each pair.", 5
)
ONE_TRIG = Fault(
    "a cosine where a sine belongs", "(x cos - y sin, x sin + y cos): each line has one cosine and one sine.", 1
)
CONJUGATED = Fault(
    "the second number of each pair is negated",
    "The pair (x, y) is the complex number x + jy, not its conjugate x - jy: that mirrors before it rotates.",
    1,
)
NUMBERS_EXCHANGED = Fault(
    "the two numbers of each pair exchanged", "First x cos - y sin, then x sin + y cos: in the order of the pair.", 1
)
OVERWRITTEN = Fault(
    "a number is overwritten while it is still needed",
    "x[..., ::2] is a view: writing to it changes what the second line reads. Compute both numbers of a pair first.",
    1,
)
ONE_SIGN = Fault(
    "one sign",
    "Of the four products one has a minus: (x cos - y sin, x sin + y cos). With another number of them lengths change.",
    1,
)
PARTNER = Fault(
    "a number is rotated with itself",
    "Each new number takes both of its pair: (x cos - y sin, x sin + y cos). rotate_half gives the partner, (-y, x).",
    1,
)
PRODUCT = Fault(
    "another operation than the product",
    "A rotation multiplies: the complex number x + jy by the table's. Neither a sum nor a quotient rotates.",
    1,
)
TWICE = Fault(
    "rotated twice",
    "The rotation is applied two times, so the token at position p is rotated to 2p. Distances double with it.",
    7,
)
UNROTATED = Fault("nothing is rotated", "Apply apply_rotary_emb to xq and xk before the scores.", 7)
ONE_NUMBER = Fault(
    "only one number of each pair is rotated", "Both change: x becomes x cos - y sin, and y becomes x sin + y cos.", 1
)
STILL = Fault(
    "nothing is rotated",
    "The result is what came in. Multiply by the table, and return what was computed.",
    1,
)
ONE_ROTATED = Fault(
    "only one of q and k is rotated",
    "A score sees the distance only when both are: (R_m q) . (R_n k). With one of them it sees m or n alone.",
    2,
)
OPPOSITE = Fault(
    "q and k are rotated in opposite directions",
    "Then a score depends on the sum of the positions, m + n, instead of their difference. Both get the same rotation.",
    2,
)
NOT_RETURNED = Fault("nothing is returned", "The function ends without return, so the caller gets None.", 7)
NOT_TWO = Fault("something else than two tensors is returned", "The caller unpacks a tuple of two tensors.", 7)
ONE_RETURNED = Fault(
    "only one of the two is returned", "The caller unpacks two tensors: return both, in this order.", 7
)
EXCHANGED_QK = Fault("q and k exchanged", "It returns (xq, xk), in the order of its arguments.", 7)
SAME_QK = Fault("the same tensor twice", "The second result is that of xk, and here it is that of xq.", 7)
UNFLATTENED = Fault(
    "flatten is left out",
    "The pairs are still an axis of their own, (B, T, H, D/2, 2): end with .flatten(-2), which gives (B, T, H, D).",
    5,
)
STILL_COMPLEX = Fault(
    "view_as_real is left out",
    "The result holds complex numbers, (B, T, H, D/2): write torch.view_as_real(...).flatten(-2).",
    5,
)
REAL_PART = Fault(
    "only one number of each pair is returned",
    "A rotated pair has two numbers, the real part and the imaginary part: torch.view_as_real(...).flatten(-2).",
    5,
)
AXES = Fault(
    "the axes are in another order",
    "The result has the axes that came in, (B, T, H, D): undo a transpose before it is returned.",
    7,
)
SOME_BATCH = Fault("only one row of the batch", "All B texts of the batch are meant: keep axis 0 whole.", 7)
SOME_TOKENS = Fault("only one token", "All T tokens are meant: keep axis 1 whole.", 7)
SOME_HEADS = Fault("only one head", "All heads are meant: keep their axis whole.", 7)
SOME_PAIRS = Fault("only some of the pairs", "All D/2 pairs are rotated, each by its own angle.", 5)

# The mask.

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
ALL_ROWS = Fault(
    "a row for each cached token",
    "Only the T new tokens ask, so the mask is (T, S): the last T rows of the square one.",
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
TRANSPOSED_MASK = Fault(
    "the mask is transposed",
    "Rows are the queries and columns the keys: row t says what token t sees. Transposed, tokens see later ones.",
    8,
)
MIRRORED = Fault(
    "the order of the keys is reversed", "Column s is the key at position s, so what token t sees is on the left.", 8
)
NOTHING_SEEN = Fault("no key is seen", "Each token sees itself and everything before it.", 8)
ITSELF = Fault("each token sees itself only", "It also sees everything before it: a triangle, and not the diagonal.", 8)
WINDOW = Fault("earlier keys are hidden", "Token t sees all keys up to its own, from key 0 on.", 8)
NOT_BOOLEAN = Fault(
    "the mask is not boolean",
    "It is a boolean tensor, True where a key may be seen. Numbers (1 and 0, or 0 and -inf) mean something else in "
    "code that negates or adds the mask: dtype=torch.bool.",
    8,
)
NO_MASK_RETURNED = Fault(
    "no mask is returned",
    "It returns None, also where every key may be seen a boolean (T, S) is expected: attention negates it.",
    8,
)

MASK_COLUMNS = Fault(
    "the number of keys", "The mask has a row for each of T tokens and a column for each of start_pos + T keys.", 8
)

# The cache.

T_CHECKED = Fault(
    "T is checked instead of start_pos + T",
    "The new tokens fill slots start_pos .. start_pos + T - 1. One token fits a full cache by T alone: what is written "
    "then is lost silently, or fails elsewhere. Compare start_pos + T with max_seq_len.",
    8,
)
UNCHECKED = Fault(
    "the end of the cache is not checked",
    "A text longer than max_seq_len must end in a ValueError that says so: a slice past the end is empty, or of other "
    "shape, and its error names neither start_pos nor max_seq_len.",
    8,
)
OTHER_ERROR = Fault("another exception than ValueError", "The docstring promises ValueError, which callers catch.", 8)
LAST_SLOT = Fault("the last slot is refused", "start_pos + T may be max_seq_len: only more is too much.", 8)
ATTACHED = Fault(
    "the cache is not detached",
    "It keeps the graph of every step that wrote to it: memory grows, and a backward pass runs into graphs that are "
    "freed. Store xk.detach() and xv.detach().",
    8,
)
KEPT = Fault(
    "the cache keeps the caller's tensors",
    "It stores xk and xv themselves, or views of them, so it changes when the caller writes to them later. Copy them "
    "into the cache's own memory: self.keys[layer, :, :, start_pos:end] = xk.detach().",
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
WRITTEN_AT_0 = Fault(
    "every chunk is written to slot 0",
    "A chunk goes to slots start_pos .. start_pos + T - 1: here it overwrites the beginning of the text.",
    8,
)
ONLY_NEW = Fault(
    "only the new tokens come back",
    "Attention needs all S = start_pos + T keys and values, the cached ones too: [:, :, : start_pos + T].",
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
VALUES_ARE_KEYS = Fault("values are keys", "Where the values belong there are the keys. Store and return xv too.", 8)
KEYS_ARE_VALUES = Fault("keys are values", "Where the keys belong there are the values. Store and return xk too.", 8)
ONE_TEXT = Fault(
    "only one row of the batch is cached",
    "Each text of the batch has its own keys: [layer, :, :, start_pos:end], with the whole batch axis.",
    8,
)
ONE_HEAD = Fault(
    "only one head is cached", "Each key/value head has its own slots: keep axis 1 of (B, K, T, D) whole.", 8
)
ONE_TOKEN = Fault(
    "only one token of the chunk is cached", "All T tokens are written, to slots start_pos .. start_pos + T - 1.", 8
)
SUMMED = Fault("added instead of written", "A slot takes the new number (=), whatever was there before (not +=).", 8)
NOT_WRITTEN = Fault("nothing is stored", "Slots that should hold the new tokens are as they were at the beginning.", 8)
VALUES_NOT_WRITTEN = Fault("the values are not stored", "Write xv to self.values as xk is written to self.keys.", 8)
KEYS_NOT_WRITTEN = Fault("the keys are not stored", "Write xk to self.keys as xv is written to self.values.", 8)
OLD_ONLY = Fault(
    "the new tokens do not come back", "All S = start_pos + T come back, the new ones too: [:, :, : start_pos + T].", 8
)
SCALED = Fault("what is stored is not what was passed", "A cache stores keys and values as they are.", 8)
MIRRORED_SLOTS = Fault("the tokens of a chunk in reverse order", "Token t of the chunk goes to slot start_pos + t.", 8)
CLEARED = Fault(
    "earlier tokens are lost",
    "The cache is emptied in each update: allocate it once, in __init__, and write only the new slots.",
    8,
)
CACHE_AXES = Fault("the axes are in another order", "Keys and values come back as they came: (B, K, S, D).", 8)
ALL_LAYERS = Fault("all layers come back", "update returns those of one layer: self.keys[layer].", 8)
WRONG_T = Fault(
    "T is read from another axis", "Keys are (B, K, T, D) here: the number of new tokens is xk.shape[2].", 8
)

# Attention.

TILED = Fault(
    "heads are tiled instead of repeated",
    "H / K neighbouring query heads share one key/value head: head h uses h // (H // K). repeat_interleave(H // K) "
    "does that; repeat gives h % K, and fits the shape just as well.",
    6,
)
HEADS_REVERSED = Fault("the heads in reverse order", "Head h uses key/value head h // (H // K): repeat_interleave.", 6)
TILED_KEYS = TILED._replace(name="keys are tiled, values repeated")
TILED_VALUES = TILED._replace(name="values are tiled, keys repeated")
ONE_GROUP = Fault(
    "one key/value head for all query heads", "Head h uses key/value head h // (H // K): repeat_interleave.", 6
)
VALUES = Fault(
    "values are rotated",
    "Only queries and keys are: RoPE affects the scores only. A rotated value would reach the "
    "output, and with it the position itself instead of a difference.",
    7,
)
OUTPUT = Fault("the output is rotated", "Only queries and keys are rotated, before the scores; nothing after them.", 7)
UNSCALED = Fault("the scores are not divided by sqrt(D)", "D is the width of one head, the last axis of xq.", 6)
SCALE = Fault(
    "the scale of the scores",
    "The scores are divided by sqrt(D), once, where D is the width of one head: the last axis of xq, and neither D "
    "itself nor the width of all heads nor the number of tokens.",
    6,
)
MASK_UNUSED = Fault("the mask is not used", "Set scores to -inf where the mask is False, before the softmax.", 6)
MASK_AFTER = Fault(
    "the mask comes after the softmax",
    "The weights of hidden keys are removed, but the softmax has shared among all: what is left does not sum to 1. Set "
    "the scores to -inf before the softmax.",
    6,
)
MASK_ZERO = Fault(
    "hidden keys get a score of 0",
    "A score of 0 is not an absent one: exp(0) is 1, and the softmax gives it weight. Fill with -inf.",
    6,
)
MASK_SMALL = Fault(
    "hidden keys get a score that is not -inf",
    "Every finite score near those of the other keys has weight in the softmax. Fill with -inf.",
    6,
)
MASK_ADDED = Fault(
    "the boolean mask is added",
    "Adding True adds 1 to the score of a visible key and hides nothing: masked_fill(~mask, -inf).",
    6,
)
MASK_MULTIPLIED = Fault(
    "the scores are multiplied by the mask",
    "That makes hidden scores 0, which is not absent: the softmax gives exp(0) its weight. Fill with -inf.",
    6,
)
OWN_MASK = Fault(
    "the mask is not used but a triangle of its own",
    "The argument says what may be seen, and it need not be a triangle: a chunk behind cached keys, a padded batch or "
    "a window have other masks.",
    6,
)
SELF_HIDDEN = Fault(
    "a token does not see itself", "The mask says what may be seen, itself included where it is True.", 6
)
SOFTMAX = Fault("the softmax runs along the wrong axis", "The weights of one query over all keys sum to 1: dim=-1.", 6)
SOFTMAX_HEADS = Fault(
    "the softmax runs over the heads",
    "Scores are (B, H, T, S): the weights of one query over all keys sum to 1, so the axis is the last one, dim=-1.",
    6,
)
NO_SOFTMAX = Fault(
    "no softmax", "The weights are exp(score) divided by their sum over the visible keys: softmax(-1) of the scores.", 6
)
NOT_NORMALISED = Fault(
    "the weights do not sum to 1", "exp(score) is divided by the sum over the visible keys: softmax(-1) does both.", 6
)
LOGARITHM = Fault(
    "log_softmax instead of softmax", "The values are mixed by the weights, and not by their logarithms.", 6
)
SOFTMAX_TWICE = Fault("the softmax is taken twice", "The weights of one query are softmax(-1) of its scores, once.", 6)
SCORES_OF_ONE = Fault(
    "queries are compared with queries, or keys with keys", "A score is the product of a query and a key: q @ k.mT.", 6
)
COSINES = Fault(
    "the scores are cosines", "A score is the product q . k as it is, divided by sqrt(D) and not by the lengths.", 6
)
WEIGHTS_TRANSPOSED = Fault(
    "the weights are transposed", "Row t of the weights belongs to query t: weights @ v, (B, H, T, D).", 6
)
MEAN = Fault("the mean instead of the sum", "The weights sum to 1 already: weights @ v, divided by nothing.", 6)
ONE_HEAD_RETURNED = Fault("the heads are averaged", "Each head keeps its own output: (B, T, H, D).", 6)
SCORES_TRANSPOSED = Fault(
    "queries and keys exchanged in the scores",
    "Row t of the scores belongs to query t: q @ k.transpose(-2, -1), (B, H, T, S).",
    6,
)
KEYS_MIXED = Fault(
    "keys are mixed instead of values", "The weights say how much of each value is taken: weights @ v.", 6
)
QUERIES_MIXED = Fault("queries are mixed instead of values", "The weights say how much of each value is taken.", 6)
RESIDUAL = Fault(
    "something is added to the output", "Attention returns the mixed values; the residual sum is the block's.", 6
)
NOT_BACK = Fault(
    "no transpose back",
    "The heads were moved in front of the tokens, (B, H, T, D): end with .transpose(1, 2), which gives (B, T, H, D).",
    6,
)
VIEWED = Fault(
    "a view instead of a transpose",
    "reshape and view keep the order of the numbers in memory: from (B, H, T, D) to (B, T, H, D) that mixes tokens "
    "with heads. Write .transpose(1, 2).",
    6,
)
OVER_HEADS = Fault(
    "heads attend to heads",
    "The product must compare tokens: bring the tokens next to the width, (B, H, T, D), with .transpose(1, 2), before "
    "q @ k.transpose(-2, -1).",
    6,
)
REGROUPED = Fault(
    "the heads of the output are in another order",
    "Head h of the output is query head h: undo the grouping as it was.",
    6,
)
WEIGHTS = Fault("the weights are returned", "Mix the values with them: weights @ v, (B, H, T, D).", 6)
SDPA = Fault(
    "scaled_dot_product_attention",
    "The exercise is to write the softmax out: scores, mask, softmax, weighted sum.",
    6,
)
RANDOM = Fault(
    "other numbers on each call", "The same arguments must give the same result: no dropout, no random start.", 6
)

# What every docstring demands.

ORDER = Fault("the arguments are in another order", "The callers pass them by position, so the order is part of it.", 7)
CHANGED = Fault(
    "an argument is overwritten",
    "The caller may still need what it passed. Write to a copy (x.clone()), or make new tensors.",
    7,
)
DTYPE = Fault(
    "the dtype changes", "Queries and keys keep their dtype: compute in float32, and end with .type_as(x).", 7
)
SHAPE_UNCHECKED = Fault(
    "no ValueError for a table of another shape",
    "A table of 1 row is broadcast over all T tokens, and none complains. Raise ValueError unless freqs_cis.shape is "
    "(x.shape[1], x.shape[3]).",
    7,
)
