// The text of the page, key: [English, Chinese]. Text that is the same in both languages may be written in page.html or
// in the code of a view instead. `translate` fills in each {name}.

export const STRINGS = {
  theme: ["Theme", "外观"],
  themeSystem: ["system", "跟随系统"],
  themeLight: ["light", "浅色"],
  themeDark: ["dark", "深色"],
  otherLanguage: ["中文", "English"],
  sizes: [
    "{parameters} parameters ({dtype}), {layers} layers, {heads} query heads and {kvHeads} key/value heads with {dim} channels each, context {context}, rope_theta {theta}, {tied}, RoPE scaling: {scaling}",
    "{parameters} 个参数（{dtype}），{layers} 层，{heads} 个 query head、{kvHeads} 个 KV head，每个 head {dim} 维，上下文长度 {context}，rope_theta {theta}，{tied}，RoPE 缩放：{scaling}",
  ],
  tied: ["tied embeddings", "embedding 与输出层共享权重"],
  untied: ["untied embeddings", "embedding 与输出层不共享权重"],
  scalingNone: ["none", "无"],
  views: ["Views", "视图"],
  player: ["Generation and selection", "生成与选择"],
  back: ["Back", "后退"],
  step: ["Step", "单步"],
  play: ["Play", "播放"],
  pause: ["Pause", "暂停"],
  speed: ["Speed", "速度"],
  speedMax: ["max", "最快"],
  where: ["Layer {layer}, head {head}", "layer {layer}，head {head}"],
  layer: ["Layer", "layer"],
  head: ["Head", "head"],
  query: ["Query q at", "query q 位于"],
  key: ["Key k at", "key k 位于"],
  document: ["the walk, step {step}: {title}", "逐步讲解第 {step} 节：{title}"],
  documentOnly: ["the walk, step {step}", "逐步讲解第 {step} 节"],
  loading: ["Loading the weights …", "正在加载权重……"],

  tokensTitle: ["1. Tokens", "1. token"],
  tokensLead: [
    "The prompt as the model reads it, one box per token, and the probabilities of the next token. Step samples a token; click a bar to choose one yourself.",
    "模型实际读到的 prompt（每个方框是一个 token），以及下一个 token 的概率。“单步”按概率采样一个 token，也可以点击某个 token 的概率条，自行选定。",
  ],
  prompt: ["Prompt", "prompt"],
  chips: ["Tokens of the text; the arrow keys move the query", "文本的 token；用方向键 移动 query"],
  chipsLegend: [
    "· is a space, ⏎ a newline. Dashed outline: sampled or chosen. Thick outline: the selected query.",
    "· 表示空格，⏎ 表示换行。虚线框：采样或选定的 token。粗线框：所选的 query。",
  ],
  counts: ["{count} tokens (at most {limit})", "{count} 个 token（最多 {limit} 个）"],
  capped: [
    "; the network allows {context}, but the page holds at most {limit}, because it stores and draws every attention weight",
    "；网络允许 {context} 个，但本页要保存并绘制全部 attention 权重，所以最多容纳 {limit} 个",
  ],
  tooLong: [
    "The prompt has {count} tokens, but the page holds at most {limit}. Only the first {limit} are used; shorten the prompt.",
    "prompt 有 {count} 个 token，而本页最多容纳 {limit} 个。目前只使用前 {limit} 个，请缩短 prompt。",
  ],
  ended: ["The model ended the text here.", "模型在此处结束了文本。"],
  startText: [
    "The prompt is empty, so the text begins with the start_text of the model's training run, as in generate.py.",
    "prompt 为空，所以与 generate.py 一样，文本以模型训练配置中的 start_text 开头。",
  ],
  full: [
    "The page holds at most {limit} tokens. Go back or shorten the prompt.",
    "本页最多容纳 {limit} 个 token。请后退，或缩短 prompt。",
  ],
  distribution: ["Next token, temperature {temperature}", "下一个 token（temperature = {temperature}）"],
  barsHead: ["probability before → after top_k and top_p", "top_k 与 top_p 截断前 → 截断后的概率"],
  barsGreedy: [
    "probabilities at temperature 1; temperature 0 always chooses the most likely token",
    "temperature 为 1 时的概率；temperature 为 0 时总是选择概率最大的 token",
  ],
  wholeTitle: ["Text", "文本"],
  bars: ["The most likely next tokens; choose one", "概率最大的几个候选 token，可选择其一"],
  cutTopK: ["cut by top_k", "被 top_k 截断"],
  cutTopP: ["cut by top_p", "被 top_p 截断"],
  cutGreedy: ["not the most likely", "概率不是最大"],
  rest: [
    "The other {others} tokens have a total probability of {probability}. {kept} of {all} tokens can be sampled; striped bars are cut. generate.py draws other samples with the same seed, because its random numbers differ.",
    "其余 {others} 个 token 的概率合计 {probability}。{all} 个 token 中有 {kept} 个可能被采样；条纹表示已被截断。generate.py 的随机数不同，同一个 seed 的采样结果也就不同。",
  ],

  rotationTitle: ["2. Rotation", "2. 旋转"],
  rotationLead: [
    "One pair of channels of the selected head, drawn as arrows: the query and every key that it sees, each rotated by its position times the frequency of the pair. If all positions are shifted, all arrows rotate together: neither the angles between them nor the scores change.",
    "所选 head 的一组，画成箭头：query，以及它能看到的每个 key，旋转角都是位置乘以这一组的频率。平移所有位置时，箭头一起旋转，彼此的夹角和得分都不变。",
  ],
  planeCaption: [
    "Thick: query q. Dashed: selected key k. Thin: the other keys, older ones fainter. Dotted: q and k before rotation. Axes: the two numbers of the pair (no unit).",
    "粗线：query q。虚线：所选的 key k。细线：其余的 key，越早越淡。点线：旋转之前的 q 与 k。坐标轴：这一组的两个分量（无单位）。",
  ],
  planeLabel: [
    "Layer {layer}, head {head}, pair {pair}: q at position {q} points to {qa}°, k at position {k} to {ka}°",
    "layer {layer}，head {head}，第 {pair} 组：位置 {q} 的 q 指向 {qa}°，位置 {k} 的 k 指向 {ka}°",
  ],
  shift: ["start_pos: shift all positions by", "start_pos：所有位置平移"],
  shiftScores: [
    "q · k / √D of the selected q and k: {plain} at start_pos 0, {shifted} at start_pos {shift}. Over all {count} keys, the shift changes a score by at most {difference}.",
    "所选 q 与 k 的 q · k / √D：start_pos 为 0 时是 {plain}，为 {shift} 时是 {shifted}。对全部 {count} 个 key，平移前后的得分最多相差 {difference}。",
  ],
  clocksTitle: ["All pairs of the head, at the query's position plus start_pos", "这个 head 的每一组（query 位置加上 start_pos 时的角度）"],
  clocksLegend: [
    "Hand: the angle at this position. Arc: the angles of the positions within the context. Below: pair, and tokens per turn. Select a clock to see its pair.",
    "指针：此位置的角度。弧线：上下文长度以内各位置的角度。下方：第几组，以及转一圈所需的 token 数。点击一只钟，查看这一组。",
  ],
  clockLabel: [
    "Pair {pair}: {period} tokens per turn, {speed} radians per token, now at {angle}°",
    "第 {pair} 组：{period} 个 token 转一圈，每个 token {speed} 弧度，现在位于 {angle}°",
  ],

  scoreTitle: ["3. Score", "3. 得分"],
  scoreLead: [
    "The score of a query and a key is a sum over pairs of channels. The first chart: the contribution of each pair. The second: the score of the same two vectors at other distances. Below: the lines of attention.py, with their results for this query.",
    "一个 query 与一个 key 的得分是各组的贡献之和。第一张图：每一组的贡献。第二张图：同样两个向量在其他距离上的得分。下方：attention.py 的代码，以及对这个 query 算出的数值。",
  ],
  scoreText: [
    "q at {q}, k at {k}, distance {distance}: q · k / √D = {score}. After softmax, this key has {weight} of the attention. The contribution with the largest absolute value is {contribution}, from pair {pair}.",
    "q 位于 {q}，k 位于 {k}，距离 {distance}：q · k / √D = {score}。softmax 之后，这个 key 占 attention 的 {weight}。贡献绝对值最大的是第 {pair} 组：{contribution}。",
  ],
  pairsCaption: [
    "Contribution of each pair to q · k / √D (no unit). Pair 0 is the fastest.",
    "每一组对 q · k / √D 的贡献（无单位）。第 0 组转得最快。",
  ],
  distanceCaption: [
    "q · k / √D of this q and k at every distance. Circle: their actual distance. Dashed: the context.",
    "这两个向量 q、k 在各个距离上的 q · k / √D。圆圈：实际距离。虚线：上下文长度。",
  ],
  pairAxis: ["pair", "第几组"],
  distanceAxis: ["distance q − k, tokens", "距离 q − k（token）"],
  context: ["context {length}", "上下文长度 {length}"],
  scoreAxis: ["q · k / √D", "q · k / √D"],
  linesTitle: ["attention.py, with its values for this query", "attention.py 的代码，以及对这个 query 算出的数值"],
  scoresTable: ["Scores of this query with all keys", "这个 query 与所有 key 的得分"],
  maskColumn: ["mask", "mask"],
  maskSeen: ["visible", "可见"],
  maskHidden: ["masked (later)", "遮住（位置在后）"],
  maskSome: [
    "Query {q} sees {seen} keys. The other {hidden} come later in the text: the mask replaces their scores by −∞, so their weights are 0.",
    "query {q} 能看到 {seen} 个 key。其余 {hidden} 个在它之后：mask 把它们的得分换成 −∞，所以权重为 0。",
  ],
  maskNone: [
    "Query {q} is the newest token, so no key is masked. Choose an earlier query to see the mask.",
    "query {q} 是最新的 token，没有 key 被 mask 遮住。选择更早的 query，就能看到 mask 的作用。",
  ],
  weightColumn: ["softmax", "softmax"],
  valueColumn: ["weight × |v|", "权重 × |v|"],
  positionColumn: ["position", "位置"],
  tokenColumn: ["token", "token"],
  lineProject: [
    "q, k, v of token {q}: {H} query heads and {K} key/value heads with {D} channels each; head {head} uses key/value head {kv}",
    "token {q} 的 q、k、v：{H} 个 query head、{K} 个 KV head，每个 head {D} 维；head {head} 使用第 {kv} 个 KV head",
  ],
  lineRotate: [
    "pair {pair} of q: ({a}, {b}) rotated by {q} × {speed} rad gives ({c}, {d})",
    "q 的第 {pair} 组：({a}, {b}) 旋转 {q} × {speed} 弧度得到 ({c}, {d})",
  ],
  lineCache: [
    "keys and values of the positions 0 to {q}; later ones, if any, are masked",
    "位置 0 到 {q} 的 key 和 value；之后若还有，会被 mask 遮住",
  ],
  lineAttend: [
    "same result as attention() below; the table after the code lists every key of head {head}",
    "结果与下方的 attention() 相同；代码之后的表列出 head {head} 的所有 key",
  ],
  lineScores: [
    "scores of token {q} with keys 0, 1, 2 …: {scores}",
    "token {q} 与 key 0、1、2……的得分：{scores}",
  ],
  lineSoftmax: [
    "weights of keys 0, 1, 2 …: {weights}; masked keys get 0",
    "key 0、1、2……的权重：{weights}；被遮住的 key 为 0",
  ],
  lineWeighted: [
    "the weighted sum of the value vectors; its first numbers: {out}",
    "value 向量的加权和，前三个分量：{out}",
  ],
  lineOut: [
    "the outputs of all {H} heads, concatenated and projected to {dim} channels by wo",
    "{H} 个 head 的输出拼接起来，由 wo 投影到 {dim} 维",
  ],

  mapsTitle: ["4. Attention maps", "4. attention 图"],
  mapsLead: [
    "Each row is a query, each column a key. The stronger the colour, the larger the attention weight. Choose a head under “All heads”. Point at a cell, or move with the arrow keys, to read its weight.",
    "每行是一个 query，每列是一个 key，颜色越浓，attention 权重越大。可在“所有的 head”中选择一个 head；把鼠标移到格子上，或用方向键 移动，即可读出权重。",
  ],
  mapKeys: [
    "Colour: the square root of the weight, from 0 (empty) to 1 (full colour). Arrow keys: up and down change the query, left and right the key.",
    "颜色：权重的平方根，从 0（空白）到 1（最浓）。方向键：上下改变 query，左右改变 key。",
  ],
  mapLabel: ["Attention of layer {layer}, head {head}", "layer {layer}，head {head} 的 attention"],
  mapText: [
    "Query {q} {qt} gives key {k} {kt} the weight {weight} (layer {layer}, head {head}).",
    "query {q} {qt} 给 key {k} {kt} 的权重为 {weight}（layer {layer}，head {head}）。",
  ],
  thumbsTitle: ["All heads, one row per layer", "所有的 head，每层一行"],
  thumbLabel: ["layer {layer}, head {head}", "layer {layer}，head {head}"],
  queryAxis: ["query position", "query 位置"],
  keyAxis: ["key position", "key 位置"],

  cacheTitle: ["5. KV cache", "5. KV cache"],
  cacheLead: [
    "The rotated keys and the values of earlier tokens are cached, so a forward pass computes only the new token instead of the whole text. The strips are the slots of each layer; the charts show the cost of each pass.",
    "先前 token 的 key（已旋转）和 value存在 cache 里，所以每次 forward 只需处理新 token，而不是整段文本。横条是每层的槽位，图表是每次 forward 的开销。",
  ],
  useCache: ["use the cache", "使用 cache"],
  compareCache: ["Compare the logits with and without the cache", "比较用 cache 与不用 cache 的 logits"],
  slice: [
    "Last pass: start_pos = {start}, T = {T}. Written: slots {start} : {end} of every layer. Read: slots 0 : {end}. {perLayer} bytes per layer, {bytes} of {total} bytes in use (per token: {L} layers × 2 for k and v × {K} heads × {D} channels × 4 bytes).",
    "最近一次 forward：start_pos = {start}，T = {T}。写入：每层的槽位 {start} : {end}。读取：槽位 0 : {end}。每层 {perLayer} 字节，已用 {bytes} 字节，共 {total} 字节（每个 token：{L} 层 × 2（k 和 v）× {K} 个 head × {D} 维 × 4 字节）。",
  ],
  sliceOff: [
    "Last pass, without the cache: all {T} tokens were computed again. No slot was written or read.",
    "最近一次 forward 没有用 cache：全部 {T} 个 token 都重新计算，没有写入或读取任何槽位。",
  ],
  slotsCaption: [
    "One row per layer, one column per slot. Striped: written by the last pass. Filled: written earlier. Empty: not in use.",
    "每层一行，每个槽位一列。条纹：最近一次 forward 写入。实心：先前写入。空白：未使用。",
  ],
  slotsLabel: ["{filled} of {limit} slots are in use in each of {L} layers", "{L} 层中，每层 {limit} 个槽位已用 {filled} 个"],
  slotAxis: ["slot", "槽位"],
  workCaption: [
    "Multiplications in the matrix products and the attention of each pass, in millions. Dots: with cache. Squares: without.",
    "每次 forward 中矩阵乘法与 attention 的乘法次数（百万）。圆点：用 cache。方块：不用。",
  ],
  lengthAxis: ["text length, tokens", "文本长度（token）"],
  workAxis: ["millions of multiplications", "乘法次数（百万）"],
  agreement: [
    "With and without the cache, the {count} logits agree to {digits} decimals. Largest difference: {difference}; largest absolute logit: {largest}.",
    "用 cache 与不用 cache 得到的 {count} 个 logits 在小数点后 {digits} 位内一致。最大相差 {difference}，logits 的最大绝对值为 {largest}。",
  ],
  rateNone: ["Press Step or Play to measure the speed.", "点击“单步”或“播放”，测量速度。"],
  rate: [
    "Last run: {rate} tokens/s ({count} tokens in {ms} ms, including sampling).",
    "最近一次生成：每秒 {rate} 个 token（{count} 个 token 用时 {ms} 毫秒，含采样）。",
  ],


  footer: [
    "Everything runs in this page: no data is sent, and your settings and your prompt are stored only in its address.",
    "所有计算都在本页中完成：不发送任何数据，设置和 prompt 只保存在网址中。",
  ],
  encodingFixed: [
    "This tokenizer ({kind}) does not run in the page. Its prompt was written into the page (--prompt) and cannot be edited here.",
    "本页不能运行这个 tokenizer（{kind}）。prompt 已经写进页面（--prompt），在这里不能修改。",
  ],
  encodingExact: [
    "The page runs the model's own tokenizer ({kind}) and gets the same token ids as generate.py.",
    "本页运行模型自带的 tokenizer（{kind}），得到的 token 编号与 generate.py 相同。",
  ],
};

const LANGUAGES = ["en", "zh"];

export function translate(language, key, values = {}) {
  const text = STRINGS[key][LANGUAGES.indexOf(language)];
  return text.replace(/\{(\w+)\}/g, (_, name) => values[name]);
}
