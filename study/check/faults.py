"""The faults: for each, the name of the mistake, why it is wrong, and the step of docs/rope.md about it.

``table.py``, ``reshape.py``, ``rotation.py``, ``mask.py``, ``cache.py`` and ``attention.py`` have the formulas.
"""

from typing import NamedTuple


class Fault(NamedTuple):
    name: str
    why: str
    step: int

    def only_in(self, tensor: str) -> "Fault":
        """The same fault, made in one of two tensors."""
        return self._replace(name=f"{self.name}, in {tensor} only")


# The table.

EXPONENT = Fault(
    "the exponent", "Pair i rotates by theta^(-2i/dim) per position: theta ** -(torch.arange(0, dim, 2) / dim).", 4
)
LINSPACE = Fault(
    "linspace instead of arange",
    "torch.linspace(a, b, n) includes its end b, so its steps are (b - a) / (n - 1). Positions are 0, 1, 2 .. and "
    "exponents 0, 2/dim, 4/dim ..: write torch.arange.",
    4,
)
END_FOR_DIM = Fault("end instead of dim", "The frequencies depend on dim and theta, not on the number of positions.", 4)
INVERTED = Fault(
    "theta is inverted",
    "The exponent needs exactly one minus sign: theta ** -x, or (1 / theta) ** x. Pair 0 rotates by one radian per "
    "position, later pairs by less.",
    4,
)
NOT_A_POWER = Fault("not a power of theta", "The frequency is theta ** (-2i/dim), not theta * x, exp(x) or a sum.", 4)
REVERSED = Fault(
    "the pairs are in reverse order", "Pair 0 is the fastest, with one radian per position, the last the slowest.", 4
)
SIGN = Fault(
    "the sign of the angle",
    "Everything rotates backwards: (x, y) becomes (x cos + y sin, y cos - x sin). Scores still depend on distances "
    "only, but weights trained with one sign do not work with the other.",
    1,
)
SHIFTED = Fault(
    "off by one position",
    "Positions count from 0, and position 0 is not rotated: torch.arange(end). Scores do not change, but row start_pos "
    "of the table must be the rotation of position start_pos.",
    4,
)
ROWS = Fault(
    "the number of positions", "The table has end rows, one for each position 0 .. end - 1: torch.arange(end).", 4
)
COLUMNS = Fault("the number of columns", "The table has dim/2 columns, one for each pair: torch.arange(0, dim, 2).", 4)
POSITIONS = Fault(
    "the positions", "They are 0, 1, 2 .. end - 1, in this order and not divided by anything: torch.arange(end).", 4
)
ROUNDED = Fault(
    "angles rounded in half precision",
    "Near 2000, float16 (11 bits) holds only whole radians, and bfloat16 (8 bits) only multiples of 8. Compute "
    "positions, frequencies and angles in float32 or float64, and round only the result.",
    12,
)
REAL = Fault(
    "the table is cast to real",
    "Casting complex numbers to a real dtype drops the imaginary part, with one warning at most. Multiplying by the "
    "cosines that remain rotates nothing. Cast x instead, or return cosine and sine separately.",
    4,
)
ONLY_SINES = Fault("the cosines are missing", "A rotation needs cos a and sin a; sines alone rotate nothing.", 1)
UNUSED = Fault(
    "theta is not used", "The table does not depend on theta, which differs between models: use the argument.", 4
)
DEFAULT_THETA = Fault(
    "the default of theta", "theta is 10000 by default: def precompute_freqs_cis(dim, end, theta=10000.0).", 4
)
SWAPPED = Fault(
    "cosine and sine exchanged",
    "The real part is the cosine: exp(j a) = cos a + j sin a. Position 0 is not rotated.",
    1,
)
TWO_OF_A_KIND = Fault(
    "cosine and sine are the same", "The real part is cos a, the imaginary part sin a; here one is used for both.", 1
)
POLAR = Fault("polar's arguments exchanged", "torch.polar takes the length first, which is 1, then the angle.", 4)
LENGTH = Fault("the length is not 1", "A rotation has length 1: torch.polar(torch.ones_like(angles), angles).", 4)
DEGREES = Fault("degrees", "Angles are in radians: position 1 rotates pair 0 by 1 radian, which is 57.3 degrees.", 4)
CIRCLES = Fault("a factor of pi", "The angle is p theta^(-2i/dim) radians, not multiplied or divided by 2 pi.", 4)
FACTOR = Fault(
    "a factor of the angles", "The angle is p theta^(-2i/dim) radians, without another factor: position 1 has 1.", 4
)
ADDED_ANGLES = Fault(
    "added instead of multiplied", "The angle is position times frequency: torch.outer(positions, freqs).", 4
)
ANGLES = Fault(
    "the table holds angles",
    "Return the rotation exp(j angle), with torch.polar, or the cosine and sine of the angle.",
    4,
)
NO_J = Fault("exp without j", "exp(angle) grows without bound; the rotation is exp(j angle): torch.polar(1, angle).", 4)
FREQUENCIES = Fault(
    "the table holds frequencies", "Multiply them by all positions: torch.outer(torch.arange(end), freqs).", 4
)
CHANNELS = Fault(
    "one frequency for each channel", "The two channels of a pair share a frequency: torch.arange(0, dim, 2).", 4
)
TRANSPOSED_TABLE = Fault(
    "the table is transposed",
    "It has a row for each position and a column for each pair, (end, dim/2), because table[start_pos : start_pos + T] "
    "selects the rows of T tokens: torch.outer(positions, freqs).",
    4,
)
STACKED = Fault(
    "cosines and sines in one tensor",
    "The table is complex, or the tuple (cos, sin), each (end, dim/2). Return two tensors instead of one that joins "
    "both.",
    5,
)
NUMPY = Fault(
    "not a torch tensor", "The callers need a tensor: torch.from_numpy(...), or torch.tensor(...) for a list.", 4
)

# The rotation.

MIXED = Fault(
    "pairs mixed with halves",
    "There are two layouts: neighbours (2i, 2i + 1), and halves (i, i + D/2). Here the pairs have one layout, but "
    "their angles, or the result, have the other. Use the same one everywhere.",
    5,
)
OTHER_FORM = Fault(
    "not the form of your table", "It reads a table in another form than your precompute_freqs_cis writes.", 5
)
HEADS = Fault(
    "rotation along the head axis",
    "Head h was rotated by position h, whatever its token. x is (B, T, H, D): reshape the table to (1, T, 1, D/2), "
    "along axis 1. If T equals H, PyTorch raises no error.",
    6,
)
BATCH = Fault(
    "rotation along the batch axis", "x is (B, T, H, D): the rows of the table belong to the tokens, axis 1.", 6
)
ONE_ROW = Fault(
    "one row of the table for all tokens",
    "Token t has row t of the table: freqs_cis[None, :, None], (1, T, 1, D/2).",
    6,
)
BROADCAST_AXES = Fault(
    "the table is along the wrong axes",
    "The result is (1, T, 1, D/2), with positions on axis 1 and pairs on the last: freqs_cis[None, :, None, :].",
    6,
)
ROW_SHIFTED = Fault("off by one row of the table", "Token t is rotated by row t of freqs_cis.", 6)
ROW_ORDER = Fault("the rows of the table in another order", "Token t is rotated by row t of freqs_cis.", 6)
COLUMN_ORDER = Fault("the columns of the table in reverse order", "Pair i is rotated by column i of freqs_cis.", 5)
SCALED_X = Fault(
    "the vectors are scaled", "A rotation keeps the length of every pair: do not scale or normalize x or the result.", 1
)
X_RETURNED = Fault(
    "x is returned instead of the table", "The function only reshapes the table: return freqs_cis[None, :, None, :].", 6
)
ONE_ANGLE = Fault(
    "one angle for all pairs", "Pair i has column i of freqs_cis: the table is (T, D/2), a column for each pair.", 5
)
ONE_TRIG = Fault(
    "a cosine in place of a sine", "(x cos - y sin, x sin + y cos): each line has one cosine and one sine.", 1
)
CONJUGATED = Fault(
    "the second number of each pair is negated",
    "The pair (x, y) is the complex number x + jy, not its conjugate x - jy, which is its mirror image.",
    1,
)
NUMBERS_EXCHANGED = Fault(
    "the two numbers of each pair exchanged",
    "The pair is (x, y) in this order, and so is the result: first x cos - y sin, then x sin + y cos.",
    1,
)
OVERWRITTEN = Fault(
    "a number is overwritten while it is still needed",
    "x[..., ::2] is a view: writing to it changes x, which the second line reads. Compute both numbers first.",
    1,
)
ONE_SIGN = Fault(
    "the number of minus signs", "One of the four products has a minus: (x cos - y sin, x sin + y cos).", 1
)
PARTNER = Fault(
    "a number is rotated with itself",
    "Each new number takes both of its pair: (x cos - y sin, x sin + y cos). rotate_half returns the other, (-y, x).",
    1,
)
PRODUCT = Fault(
    "another operation than the product",
    "A rotation multiplies the complex number x + jy by the table's. A sum or a quotient does not rotate.",
    1,
)
FORMULA = Fault(
    "the formula of the rotation", "A pair (x, y) becomes (x cos a - y sin a, x sin a + y cos a): compare the terms.", 1
)
TWICE = Fault(
    "rotated twice",
    "A token at position p is rotated to 2p. If both q and k are, distances double; if only one is, a score depends on "
    "2m - n or m - 2n, not on the distance.",
    6,
)
UNROTATED = Fault("q and k are not rotated", "Apply apply_rotary_emb to xq and xk before the scores.", 6)
ONE_NUMBER = Fault(
    "only one number of each pair is rotated", "Both change: x becomes x cos - y sin, and y becomes x sin + y cos.", 1
)
INPUT_RETURNED = Fault(
    "x is returned unrotated", "The result equals the input. Multiply by the table, and return the product.", 1
)
ONLY_Q_ROTATED = Fault(
    "only q is rotated",
    "A score depends on the distance only if both are rotated: (R_m q) . (R_n k). Otherwise it depends on m or on n.",
    2,
)
ONLY_K_ROTATED = ONLY_Q_ROTATED._replace(name="only k is rotated")
OPPOSITE = Fault(
    "q and k are rotated in opposite directions",
    "Then a score depends on the sum of the positions, m + n, instead of their difference. Rotate both the same way.",
    2,
)
NOT_RETURNED = Fault("nothing is returned", "The function ends without return, so the caller gets None.", 6)
NOT_TWO = Fault("the result is not two tensors", "The caller unpacks a tuple of two tensors.", 6)
ONE_RETURNED = Fault("only one of the two is returned", "The caller unpacks two tensors: return both.", 6)
EXCHANGED_QK = Fault(
    "q and k exchanged",
    "apply_rotary_emb returns q, then k: return them in this order, and unpack them in this order.",
    6,
)
SAME_QK = Fault("the same tensor twice", "The second result belongs to xk, and here it is that of xq.", 6)
UNFLATTENED = Fault(
    "flatten is missing", "The pairs are still an axis of size 2, (B, T, H, D/2, 2): end with .flatten(-2).", 5
)
VIEW_AS_REAL = Fault(
    "view_as_real is missing", "The result is complex, (B, T, H, D/2): write torch.view_as_real(...).flatten(-2).", 5
)
REAL_PART = Fault(
    "only one number of each pair is returned",
    "A rotated pair has two numbers, the real and the imaginary part: torch.view_as_real(...).flatten(-2).",
    5,
)
AXES = Fault("the axes are in another order", "The result has the axes of the input, (B, T, H, D): transpose back.", 6)
SOME_BATCH = Fault("not all rows of the batch", "Process all B texts of the batch, axis 0.", 6)
SOME_TOKENS = Fault("not all tokens", "Process all T tokens, axis 1.", 6)
SOME_HEADS = Fault("not all heads", "Process all heads, axis 2.", 6)
SOME_PAIRS = Fault("only some of the pairs", "All D/2 pairs are rotated, each by its own angle.", 5)

# The mask.

CORNER = Fault(
    "the mask is aligned to the wrong corner",
    "The triangle is at the right end of (T, S), because token t is at position start_pos + t. Write "
    "torch.ones(T, start_pos + T, dtype=torch.bool).tril(diagonal=start_pos).",
    8,
)
SQUARE = Fault(
    "the mask is square", "T new tokens attend to S = start_pos + T keys, so the mask is (T, S), not (T, T).", 8
)
ALL_ROWS = Fault(
    "a row for each cached token", "Only the T new tokens are queries, so the mask is (T, S): the last T rows.", 8
)
DIAGONAL = Fault(
    "off by one position", "Token t sees itself and everything before it: keys 0 .. start_pos + t, both included.", 8
)
INVERTED_MASK = Fault(
    "True and False exchanged",
    "True means that the token may see the key, as in scaled_dot_product_attention. Negate the mask (~) where it is "
    "made, or in masked_fill(~mask, -inf).",
    8,
)
NO_MASK = Fault(
    "the future is not hidden", "Every token sees later ones. Hide the keys after start_pos + t from token t.", 8
)
CACHED_HIDDEN = Fault(
    "the cached keys are hidden", "The triangle covers the new tokens, and each also sees all start_pos cached ones.", 8
)
TRANSPOSED_MASK = Fault(
    "the mask is transposed", "Rows are queries and columns keys: row t has the keys that token t sees.", 8
)
MIRRORED = Fault(
    "the order of the keys is reversed",
    "Column s is the key at position s, so the keys that token t sees are on the left.",
    8,
)
NOTHING_SEEN = Fault("no key is visible", "Each token sees itself and everything before it.", 8)
ITSELF = Fault("each token sees itself only", "It also sees everything before it: a triangle, not the diagonal.", 8)
WINDOW = Fault("earlier keys are hidden", "Token t sees all keys from key 0 up to itself.", 8)
NOT_BOOLEAN = Fault(
    "the mask is not boolean",
    "It is a boolean tensor, True where a token may see a key. Numbers (1 and 0, or 0 and -inf) give other results if "
    "the caller negates or adds the mask: dtype=torch.bool.",
    8,
)
NO_MASK_RETURNED = Fault(
    "no mask is returned", "Return a boolean (T, S) even if all keys are visible: attention negates the mask.", 8
)
MASK_COLUMNS = Fault(
    "the number of keys", "The mask has a row for each of T tokens and a column for each of start_pos + T keys.", 8
)

# The cache.

T_CHECKED = Fault(
    "T is checked instead of start_pos + T",
    "The new tokens fill slots start_pos .. start_pos + T - 1, so T alone does not say whether they fit. Compare "
    "start_pos + T with max_seq_len.",
    8,
)
UNCHECKED = Fault(
    "the end of the cache is not checked",
    "Raise a ValueError if start_pos + T exceeds max_seq_len. Otherwise the slice is too short: a chunk of one "
    "token is lost without an error, and a longer one raises an error that names neither start_pos nor max_seq_len.",
    8,
)
OTHER_ERROR = Fault("another exception than ValueError", "The docstring promises ValueError, which callers catch.", 8)
LAST_SLOT = Fault("the last slot is refused", "start_pos + T may equal max_seq_len; only more is too much.", 8)
ATTACHED = Fault(
    "the cache is not detached",
    "It keeps the graph of every step that wrote to it: memory grows, and a backward pass reaches graphs that are "
    "freed. Store xk.detach() and xv.detach().",
    8,
)
KEPT = Fault(
    "the cache keeps the caller's tensors",
    "It stores xk and xv or views of them, so it changes when the caller overwrites them. Copy them: "
    "self.keys[layer, :, :, start_pos:end] = xk.detach().",
    8,
)
STALE = Fault(
    "stale slots are read",
    "Slots from start_pos + T on hold zeros or an earlier text. A zero key has the score 0, to which the softmax gives "
    "weight. Return only [:, :, : start_pos + T].",
    8,
)
SLOT_SHIFTED = Fault(
    "off by one position",
    "Token t goes to slot start_pos + t: write start_pos : start_pos + T, read : start_pos + T.",
    8,
)
WRITTEN_AT_0 = Fault(
    "every chunk is written to slot 0",
    "A chunk goes to slots start_pos .. start_pos + T - 1, after the earlier tokens.",
    8,
)
ONLY_NEW = Fault(
    "only the new tokens come back",
    "Return all S = start_pos + T keys and values, with the cached ones: [:, :, : start_pos + T].",
    8,
)
APPENDED = Fault(
    "start_pos is not used",
    "The new tokens are appended to the earlier ones. The cache keeps no count: the caller passes start_pos, so that a "
    "new text can start at 0.",
    8,
)
LAYER = Fault("all layers share their slots", "Each layer has its own keys and values: index by layer first.", 8)
EXCHANGED = Fault("keys and values exchanged", "Return (keys, values), in this order.", 8)
VALUES_ARE_KEYS = Fault("values are keys", "The keys are in place of the values. Store and return xv too.", 8)
KEYS_ARE_VALUES = Fault("keys are values", "The values are in place of the keys. Store and return xk too.", 8)
ONE_TEXT = Fault(
    "only one row of the batch is cached", "Each text has its own keys: index [layer, :, :, start_pos:end].", 8
)
ONE_HEAD = Fault("only one head is cached", "Each key/value head has its own slots: keep axis 1 of (B, K, T, D).", 8)
ONE_TOKEN = Fault(
    "only one token of the chunk is cached", "All T tokens are written, to slots start_pos .. start_pos + T - 1.", 8
)
SUMMED = Fault("added instead of written", "A slot is overwritten (=), not added to (+=).", 8)
NOT_WRITTEN = Fault("nothing is stored", "The slots of the new tokens still have their initial content.", 8)
VALUES_NOT_WRITTEN = Fault("the values are not stored", "Write xv to self.values as xk is written to self.keys.", 8)
KEYS_NOT_WRITTEN = Fault("the keys are not stored", "Write xk to self.keys as xv is written to self.values.", 8)
OLD_ONLY = Fault(
    "the new tokens do not come back", "All S = start_pos + T come back, the new ones too: [:, :, : start_pos + T].", 8
)
SCALED = Fault("the stored numbers differ from xk and xv", "A cache stores keys and values as they are.", 8)
MIRRORED_SLOTS = Fault("the tokens of a chunk in reverse order", "Token t of the chunk goes to slot start_pos + t.", 8)
CLEARED = Fault("earlier tokens are lost", "Each update empties the cache: allocate it once, in __init__.", 8)
CACHE_AXES = Fault("the axes are in another order", "Keys and values are returned as (B, K, S, D).", 8)
CACHE_DTYPE = Fault("the dtype changes", "Keys and values are returned in the dtype of xk and xv: .type_as(xk).", 8)
ALL_LAYERS = Fault("all layers come back", "update returns one layer: self.keys[layer].", 8)
WRONG_T = Fault("T is read from another axis", "Keys are (B, K, T, D): the number of new tokens is xk.shape[2].", 8)

# Attention.

TILED = Fault(
    "heads are tiled instead of repeated",
    "H / K neighbouring query heads share a key/value head: head h uses h // (H // K). repeat_interleave(H // K) does "
    "that; repeat gives h % K, which has the same shape.",
    7,
)
TILED_KEYS = TILED._replace(name="keys are tiled, values repeated")
TILED_VALUES = TILED._replace(name="values are tiled, keys repeated")
HEADS_REVERSED = Fault("the heads in reverse order", "Head h uses key/value head h // (H // K): repeat_interleave.", 7)
ONE_GROUP = Fault(
    "one key/value head for all query heads", "Head h uses key/value head h // (H // K): repeat_interleave.", 7
)
VALUES = Fault(
    "values are rotated",
    "Rotate only queries and keys, because RoPE affects the scores only. Rotated values put the position itself into "
    "the output, instead of a difference of positions.",
    6,
)
OUTPUT = Fault("the output is rotated", "Rotate only queries and keys, before the scores.", 6)
UNSCALED = Fault("the scores are not divided by sqrt(D)", "D is the width of one head, the last axis of xq.", 7)
SCALE = Fault(
    "the scale of the scores",
    "Divide the scores by sqrt(D) once. D is the width of one head, the last axis of xq: not the width of all heads, "
    "and not the number of tokens.",
    7,
)
MASK_UNUSED = Fault("the mask is not used", "Set scores to -inf where the mask is False, before the softmax.", 7)
MASK_AFTER = Fault(
    "the mask comes after the softmax",
    "The softmax gave weight to hidden keys too, so the remaining weights do not sum to 1. Set the scores to -inf "
    "before the softmax.",
    7,
)
MASK_ZERO = Fault(
    "hidden keys get a score of 0",
    "The softmax gives a score of 0, or a score times False, the weight exp(0) = 1. Fill with -inf.",
    7,
)
MASK_SMALL = Fault(
    "hidden keys get a score that is not -inf", "A finite score has weight in the softmax. Fill with -inf.", 7
)
MASK_ADDED = Fault(
    "the boolean mask is added", "Adding True adds 1 to a visible score and hides nothing: masked_fill(~mask, -inf).", 7
)
OWN_MASK = Fault(
    "another mask than the argument",
    "The mask argument says which keys are visible, and it is not always a triangle: cached keys, a padded batch or a "
    "window have other masks.",
    7,
)
SELF_HIDDEN = Fault("a token does not see itself", "It sees itself where the mask is True.", 7)
SOFTMAX = Fault("the softmax runs along the wrong axis", "The weights of a query over all keys sum to 1: dim=-1.", 7)
SOFTMAX_HEADS = Fault(
    "the softmax runs over the heads",
    "Scores are (B, H, T, S): the weights of a query over all keys sum to 1, so the axis is the last, dim=-1.",
    7,
)
NO_SOFTMAX = Fault("no softmax", "The weights are softmax(-1) of the scores: exp(score) divided by their sum.", 7)
NOT_NORMALISED = Fault(
    "the weights do not sum to 1", "exp(score) is divided by the sum over the visible keys: softmax(-1) does both.", 7
)
NEGATED = Fault(
    "the scores are negated", "The largest score has the largest weight: softmax(scores), not softmax(-scores).", 7
)
LOGARITHM = Fault("log_softmax instead of softmax", "The values are multiplied by weights, not by their logarithms.", 7)
SOFTMAX_TWICE = Fault("the softmax is taken twice", "The weights are softmax(-1) of the scores, once.", 7)
SCORES_OF_ONE = Fault(
    "queries are compared with queries, or keys with keys", "A score is the product of a query and a key: q @ k.mT.", 7
)
COSINES = Fault("the scores are cosines", "A score is q . k / sqrt(D), not divided by the lengths of q and k.", 7)
WEIGHTS_TRANSPOSED = Fault(
    "the weights are transposed", "Row t of the weights belongs to query t: weights @ v, (B, H, T, D).", 7
)
MEAN = Fault("the mean instead of the sum", "The weights sum to 1 already: weights @ v, divided by nothing.", 7)
ONE_HEAD_RETURNED = Fault("the heads are merged into one", "Each head keeps its own output: (B, T, H, D).", 7)
SCORES_TRANSPOSED = Fault(
    "queries and keys exchanged in the scores", "Row t of the scores belongs to query t: q @ k.transpose(-2, -1).", 7
)
KEYS_MIXED = Fault("keys are summed instead of values", "The weights multiply the values: weights @ v.", 7)
QUERIES_MIXED = Fault("queries are summed instead of values", "The weights multiply the values: weights @ v.", 7)
RESIDUAL = Fault("something is added to the output", "Return weights @ v; the block adds the residual.", 7)
NOT_BACK = Fault(
    "no transpose back", "The output is still (B, H, T, D): end with .transpose(1, 2), which gives (B, T, H, D).", 7
)
VIEWED = Fault(
    "a view instead of a transpose",
    "reshape and view keep the order of the numbers in memory: from (B, H, T, D) to (B, T, H, D) that mixes tokens "
    "with heads. Write .transpose(1, 2).",
    7,
)
OVER_HEADS = Fault(
    "heads attend to heads",
    "The product must compare tokens: bring the heads before the tokens, (B, H, T, D), with .transpose(1, 2), before "
    "q @ k.transpose(-2, -1).",
    7,
)
REGROUPED = Fault(
    "the heads of the output are in another order", "Head h of the output is query head h: undo the grouping.", 7
)
WEIGHTS = Fault("the weights are returned", "Multiply the values by them: weights @ v, (B, H, T, D).", 7)
SDPA = Fault("a fused attention function", "Write out the scores, the mask, the softmax and the weighted sum.", 7)
RANDOM = Fault("different numbers on each call", "Equal arguments must give equal results: no dropout, no noise.", 7)

# All functions.

ORDER = Fault("the arguments are in another order", "The callers pass them by position, in this order.", 6)
CHANGED = Fault(
    "an argument is overwritten", "The caller may still need it. Write to a copy (x.clone()), or make new tensors.", 6
)
DTYPE = Fault("the dtype changes", "Queries and keys keep their dtype: compute in float32, end with .type_as(x).", 6)
SHAPE_UNCHECKED = Fault(
    "no ValueError for a table of another shape",
    "A table of 1 row would be broadcast over all T tokens without an error. Raise ValueError unless freqs_cis.shape "
    "is (x.shape[1], x.shape[3]).",
    6,
)
