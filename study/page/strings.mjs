// The text of the page, key: [English, Chinese]. Text that is the same in both languages may be written in page.html or
// in the code of a view instead. `translate` fills in each {name}.

export const STRINGS = {
  otherLanguage: ["中文", "English"],
  walk: ["RoPE, step by step", "逐步讲解 RoPE"],
  sizes: [
    "{parameters} parameters ({dtype}), {layers} layers, {heads} query heads and {kvHeads} key/value heads with {dim} channels each, context {context}, rope_theta {theta}, RoPE scaling: {scaling}",
    "{parameters} 个参数（{dtype}），{layers} 层，{heads} 个 query head、{kvHeads} 个 KV head，每个 head {dim} 维，上下文长度 {context}，rope_theta {theta}，RoPE 缩放：{scaling}",
  ],
  scalingNone: ["none", "无"],
  views: ["Views", "视图"],
  player: ["Generation and selection", "生成与选择"],
  back: ["Back", "后退"],
  step: ["Step", "单步"],
  steps: ["16 steps", "16 步"],
  where: ["Layer {layer}, head {head}", "layer {layer}，head {head}"],
  layer: ["Layer", "layer"],
  head: ["Head", "head"],
  query: ["Query q at", "query q 位于"],
  key: ["Key k at", "key k 位于"],
  document: ["the walk, step {heading}", "逐步讲解：{heading}"],

  tokensTitle: ["1. Tokens", "1. token"],
  tokensLead: [
    "The prompt as the model reads it, one box per token, and the probabilities of the next token. Step samples a token, but never the end of the text; click a bar to choose one yourself.",
    "模型实际读到的 prompt（每个方框是一个 token），以及下一个 token 的概率。“单步”按概率采样一个 token（不采样结束符），也可以点击某个 token 的概率条，自行选定。",
  ],
  prompt: ["Prompt", "prompt"],
  chipsLegend: [
    "· is a space, ⏎ a newline. Dashed outline: sampled or chosen. Thick outline: the selected query; click a token to select another.",
    "· 表示空格，⏎ 表示换行。虚线框：采样或选定的 token。粗线框：所选的 query；点击其他 token 即可改选。",
  ],
  counts: ["{count} tokens (at most {limit})", "{count} 个 token（最多 {limit} 个）"],
  fixed: [
    "This tokenizer does not run in the page. Its prompt was written into the page (--prompt) and cannot be edited here.",
    "本页不能运行这个 tokenizer。prompt 已经写进页面（--prompt），在这里不能修改。",
  ],
  full: [
    "The page holds at most {limit} tokens; a longer prompt is cut. Go back or shorten the prompt.",
    "本页最多容纳 {limit} 个 token，更长的 prompt 会被截断。请后退，或缩短 prompt。",
  ],
  wholeTitle: ["Text", "文本"],
  barsTitle: ["The most likely next tokens", "概率最大的候选 token"],
  barsHead: [
    "probability before → after top_k and top_p; temperature 0 keeps the most likely token only",
    "top_k 与 top_p 截断前 → 截断后的概率；temperature 为 0 时只保留概率最大的 token",
  ],
  cut: ["cut", "截断"],
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
    "start_pos {shift} turns all arrows by {turn}°. q · k / √D of the selected q and k is {shifted} there, and {plain} at start_pos 0.",
    "start_pos 为 {shift}，所有箭头都多转 {turn}°。所选 q 与 k 的 q · k / √D 在那里是 {shifted}，start_pos 为 0 时是 {plain}。",
  ],
  shiftNone: [
    "q · k / √D of the selected q and k: {plain} at start_pos 0. Move the slider: the arrows turn.",
    "所选 q 与 k 的 q · k / √D：start_pos 为 0 时是 {plain}。拖动滑块，箭头就转。",
  ],
  clocksTitle: ["All pairs of the head, at the query's position plus start_pos", "这个 head 的每一组（query 位置加上 start_pos 时的角度）"],
  clocksLegend: [
    "Hand: the angle at this position. Arc: the angles of the positions within the context. Below: pair, and tokens per turn. Select a clock to see its pair.",
    "指针：此位置的角度。弧线：上下文长度以内各位置的角度。下方：第几组，以及转一圈所需的 token 数。点击一只钟，查看这一组。",
  ],
  clockLabel: [
    "Pair {pair}: {period} tokens per turn, now at {angle}°",
    "第 {pair} 组：{period} 个 token 转一圈，现在位于 {angle}°",
  ],

  scoreTitle: ["3. Score", "3. 得分"],
  scoreLead: [
    "The score of a query and a key is a sum over pairs of channels. The first chart: the contribution of each pair. The second: the score of the same two vectors at other distances. Below: the lines of attention.py, with their results for this query.",
    "一个 query 与一个 key 的得分是各组的贡献之和。第一张图：每一组的贡献。第二张图：同样两个向量在其他距离上的得分。下方：attention.py 的代码，以及对这个 query 算出的数值。",
  ],
  scoreText: [
    "q at {q}, k at {k}, distance {distance}: q · k / √D = {score}. After softmax, this key has {weight} of the attention.",
    "q 位于 {q}，k 位于 {k}，距离 {distance}：q · k / √D = {score}。softmax 之后，这个 key 占 attention 的 {weight}。",
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
  linesTitle: ["attention.py, with its values for this query", "attention.py 的代码，以及对这个 query 算出的数值"],
  scoresTitle: ["Scores of this query with all keys", "这个 query 与所有 key 的得分"],
  scoresLegend: [
    "Keys after the query (in italics) are masked: their scores become −∞, so their weights are 0.",
    "query 之后的 key（斜体）被 mask 遮住：得分换成 −∞，所以权重为 0。",
  ],
  valueColumn: ["weight × |v|", "权重 × |v|"],
  positionColumn: ["position", "位置"],
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
    "same result as attention() below; the table lists every key of head {head}",
    "结果与下方的 attention() 相同；表中列出 head {head} 的所有 key",
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
    "Each row is a query, each column a key. The stronger the colour, the larger the attention weight. Choose a head under “All heads”. Click a cell, or move the sliders of q and k, to read its weight.",
    "每行是一个 query，每列是一个 key，颜色越浓，attention 权重越大。可在“所有的 head”中选择一个 head；点击一个格子，或拖动 q 和 k 的滑块，即可读出权重。",
  ],
  mapCaption: [
    "Colour: the square root of the weight, from 0 (empty) to 1 (full colour).",
    "颜色：权重的平方根，从 0（空白）到 1（最浓）。",
  ],
  mapText: [
    "Query {q} {qt} gives key {k} {kt} the weight {weight} (layer {layer}, head {head}).",
    "query {q} {qt} 给 key {k} {kt} 的权重为 {weight}（layer {layer}，head {head}）。",
  ],
  thumbsTitle: ["All heads, one row per layer", "所有的 head，每层一行"],
  queryAxis: ["query position", "query 位置"],
  keyAxis: ["key position", "key 位置"],

  cacheTitle: ["5. KV cache", "5. KV cache"],
  cacheLead: [
    "The rotated keys and the values of earlier tokens are cached, so a forward pass computes only the new tokens instead of the whole text. Without the cache, the result is the same. The strip shows the slots of every layer, the chart the cost of each pass.",
    "先前 token 的 key（已旋转）和 value 存在 cache 里，所以每次 forward 只需处理新 token，而不是整段文本。不用 cache，结果也相同。横条是每层的槽位，图表是每次 forward 的开销。",
  ],
  useCache: ["use the cache from the next pass on", "从下一次 forward 起使用 cache"],
  slice: [
    "Last pass: start_pos = {start}, T = {T}. Written: slots {start} : {end} of every layer. Read: slots 0 : {end}. {bytes} of {total} bytes are in use (per token: {L} layers × 2 for k and v × {K} heads × {D} channels × 4 bytes).",
    "最近一次 forward：start_pos = {start}，T = {T}。写入：每层的槽位 {start} : {end}。读取：槽位 0 : {end}。已用 {bytes} 字节，共 {total} 字节（每个 token：{L} 层 × 2（k 和 v）× {K} 个 head × {D} 维 × 4 字节）。",
  ],
  sliceOff: [
    "Last pass, without the cache: all {T} tokens were computed again. No slot was written or read.",
    "最近一次 forward 没有用 cache：全部 {T} 个 token 都重新计算，没有写入或读取任何槽位。",
  ],
  slotsCaption: [
    "The slots of a layer. Striped: written by the last pass. Filled: written earlier. Empty: not in use.",
    "一层的槽位。条纹：最近一次 forward 写入。实心：先前写入。空白：未使用。",
  ],
  workCaption: [
    "Multiplications of a pass that adds one token, in millions. Solid: with the cache. Dashed: without it. Dots and squares: the passes of this text, with the cache and without.",
    "每次 forward 增加一个 token 的乘法次数（百万）。实线：用 cache。虚线：不用。圆点和方块：这段文本实际的各次 forward，用 cache 与不用。",
  ],
  lengthAxis: ["text length, tokens", "文本长度（token）"],
  workAxis: ["millions of multiplications", "乘法次数（百万）"],

  footer: [
    "Everything runs in this page: no data is sent or stored.",
    "所有计算都在本页中完成：不发送也不保存任何数据。",
  ],
};
