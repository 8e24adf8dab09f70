// The text of the page, key: [English, Chinese]. Text that is the same in both languages may be written in page.html or
// in the code of a view instead. `translate` fills in each {name}.

export const STRINGS = {
  skip: ["Skip to the views", "跳到视图"],
  theme: ["Theme", "外观"],
  themeSystem: ["system", "跟随系统"],
  themeLight: ["light", "浅色"],
  themeDark: ["dark", "深色"],
  otherLanguage: ["中文", "English"],
  sizes: [
    "{parameters} parameters ({dtype}), {layers} layers, {heads} query heads and {kvHeads} key/value heads with {dim} channels each, context {context}, rope_theta {theta}, {tied}, RoPE scaling: {scaling}",
    "{parameters} 个参数（{dtype}），{layers} 层，{heads} 个查询头、{kvHeads} 个键/值头，每头 {dim} 维，上下文长度 {context}，rope_theta {theta}，{tied}，RoPE 缩放：{scaling}",
  ],
  tied: ["tied embeddings", "词嵌入与输出层共享权重"],
  untied: ["untied embeddings", "词嵌入与输出层不共享权重"],
  scalingNone: ["none", "无"],
  overview: ["Diagram of the network, with links to the views", "网络结构图，可跳转到各个视图"],
  views: ["Views", "视图"],
  netTokens: ["1. tokens", "1. 词元"],
  netEmbedding: ["embedding", "词嵌入"],
  netLayers: ["transformer layer × {L}", "Transformer 层 × {L}"],
  netAttention: ["attention", "注意力"],
  netFeedForward: ["feed-forward", "前馈网络"],
  netNorm: ["RMSNorm", "RMSNorm"],
  netRotate: ["2. q, k, v; rotate q, k", "2. q、k、v；旋转 q、k"],
  netCache: ["5. cache k, v", "5. 缓存 k、v"],
  netScore: ["3. scores q · k", "3. 得分 q · k"],
  netMaps: ["4. softmax, sum of v", "4. softmax，对 v 加权求和"],
  netSwiglu: ["SwiGLU", "SwiGLU"],
  netPlus: ["added to the residual stream", "加回残差流"],
  netLogits: ["logits", "logits"],
  netNext: ["1. next token", "1. 下一个词元"],
  netNote: [
    "The numbers are those of the views below. Thick line: the residual stream, which each branch reads and adds to. Positions enter only through the rotation and the causal mask.",
    "图中的编号对应下面的各个视图。粗线是残差流：每个分支从中读取，再把输出加回去。位置信息只通过旋转和因果掩码进入网络。",
  ],
  guideStart: ["Guide", "导览"],
  guideNext: ["Next", "下一步"],
  guideSkip: ["Skip", "跳过"],
  guideEnd: ["Done", "完成"],
  guide1: [
    "Type a prompt and press Step: the model samples one token from these probabilities.",
    "输入提示词，点击“单步”：模型按这些概率采样一个词元。",
  ],
  guide2: [
    "Each query and key is rotated by an angle proportional to its position. Move the start_pos slider: no score changes.",
    "每个查询和键旋转的角度与其位置成正比。拖动 start_pos 滑块：得分都不变。",
  ],
  guide3: [
    "A score is a sum over pairs of channels. For the same two vectors it depends only on the distance between query and key.",
    "得分是各对分量的贡献之和。对同样两个向量，它只取决于查询与键的距离。",
  ],
  guide4: [
    "Softmax turns the scores of a query into weights, one row of the map. Choose another head.",
    "softmax 把一个查询的得分变成权重，即图中的一行。试着换一个头。",
  ],
  guide5: [
    "Keys and values are cached, so each step computes one new token instead of the whole text.",
    "键和值都存入缓存，所以每一步只需计算一个新词元，而不是整段文本。",
  ],
  guide6: [
    "The rotation is “off” here at first: see how much the loss grows. Then choose “unchanged” and stretch the distances.",
    "这里的“旋转”起初为“关闭”：看看损失增大多少。再选“不变”，然后拉伸距离。",
  ],
  player: ["Generation and selection", "生成与选择"],
  back: ["Back", "后退"],
  step: ["Step", "单步"],
  play: ["Play", "播放"],
  pause: ["Pause", "暂停"],
  speed: ["Speed", "速度"],
  speedMax: ["max", "最快"],
  where: ["Layer {layer}, head {head}", "第 {layer} 层，第 {head} 个头"],
  layer: ["Layer", "层"],
  head: ["Head", "头"],
  query: ["Query q at", "查询 q 位于"],
  key: ["Key k at", "键 k 位于"],
  document: ["the walk, step {step}: {title}", "逐步讲解第 {step} 节：{title}"],
  documentOnly: ["the walk, step {step}", "逐步讲解第 {step} 节"],
  dataTable: ["Data table", "数据表"],
  loading: ["Loading the weights …", "正在加载权重……"],

  tokensTitle: ["1. Tokens", "1. 词元"],
  tokensLead: [
    "The prompt as the model reads it, one box per token, and the probabilities of the next token. Step samples a token; click a bar to choose one yourself.",
    "模型实际读到的提示词（每个方框是一个词元），以及下一个词元的概率。“单步”按概率采样一个词元，也可以点击某个词元的概率条，自行选定。",
  ],
  prompt: ["Prompt", "提示词"],
  chips: ["Tokens of the text; the arrow keys move the query", "文本的词元；用方向键移动查询"],
  chipsLegend: [
    "· is a space, ⏎ a newline. Dashed outline: sampled or chosen. Thick outline: the selected query.",
    "· 表示空格，⏎ 表示换行。虚线框：采样或选定的词元。粗线框：所选的查询。",
  ],
  counts: ["{count} tokens (at most {limit})", "{count} 个词元（最多 {limit} 个）"],
  capped: [
    "; the network allows {context}, but the page holds at most {limit}, because it stores and draws every attention weight",
    "；网络允许 {context} 个，但本页要保存并绘制全部注意力权重，所以最多容纳 {limit} 个",
  ],
  tooLong: [
    "The prompt has {count} tokens, but the page holds at most {limit}. Only the first {limit} are used; shorten the prompt.",
    "提示词有 {count} 个词元，而本页最多容纳 {limit} 个。目前只使用前 {limit} 个，请缩短提示词。",
  ],
  ended: ["The model ended the text here.", "模型在此处结束了文本。"],
  startText: [
    "The prompt is empty, so the text begins with the start_text of the model's training run, as in generate.py.",
    "提示词为空，所以与 generate.py 一样，文本以模型训练配置中的 start_text 开头。",
  ],
  full: [
    "The page holds at most {limit} tokens. Go back, shorten the prompt, or select “endless” in view 5.",
    "本页最多容纳 {limit} 个词元。请后退、缩短提示词，或在视图 5 中勾选“不限长度”。",
  ],
  distribution: ["Next token, temperature {temperature}", "下一个词元（temperature = {temperature}）"],
  barsHead: ["probability before → after top_k and top_p", "top_k 与 top_p 截断前 → 截断后的概率"],
  barsGreedy: [
    "probabilities at temperature 1; temperature 0 always chooses the most likely token",
    "temperature 为 1 时的概率；temperature 为 0 时总是选择概率最大的词元",
  ],
  wholeTitle: ["Text", "文本"],
  copy: ["Copy", "复制"],
  refusedInteger: [
    "must be an integer of {least} or more; {current} is still in use",
    "必须是不小于 {least} 的整数；仍在使用 {current}",
  ],
  refused: ["must be {least} or more; {current} is still in use", "不能小于 {least}；仍在使用 {current}"],
  bars: ["The most likely next tokens; choose one", "概率最大的几个候选词元，可选择其一"],
  cutTopK: ["cut by top_k", "被 top_k 截断"],
  cutTopP: ["cut by top_p", "被 top_p 截断"],
  cutGreedy: ["not the most likely", "概率不是最大"],
  rest: [
    "The other {others} tokens have a total probability of {probability}. {kept} of {all} tokens can be sampled; striped bars are cut. generate.py draws other samples with the same seed, because its random numbers differ.",
    "其余 {others} 个词元的概率合计 {probability}。{all} 个词元中有 {kept} 个可能被采样；条纹表示已被截断。generate.py 的随机数不同，同一个随机种子的采样结果也就不同。",
  ],

  rotationTitle: ["2. Rotation", "2. 旋转"],
  rotationLead: [
    "One pair of channels of the selected head, drawn as arrows: the query and every key that it sees, each rotated by its position times the frequency of the pair. If all positions are shifted, all arrows rotate together: neither the angles between them nor the scores change.",
    "所选注意力头的一对分量，画成箭头：查询，以及它能看到的每个键，旋转角都是位置乘以这一对的频率。平移所有位置时，箭头一起旋转，彼此的夹角和得分都不变。",
  ],
  planeCaption: [
    "Thick: query q. Dashed: selected key k. Thin: the other keys, older ones fainter. Dotted: q and k before rotation. Axes: the two numbers of the pair (no unit).",
    "粗线：查询 q。虚线：所选的键 k。细线：其余的键，越早越淡。点线：旋转之前的 q 与 k。坐标轴：这一对的两个分量（无单位）。",
  ],
  planeLabel: [
    "Layer {layer}, head {head}, pair {pair}: q at position {q} points to {qa}°, k at position {k} to {ka}°",
    "第 {layer} 层，第 {head} 个头，第 {pair} 对：位置 {q} 的 q 指向 {qa}°，位置 {k} 的 k 指向 {ka}°",
  ],
  zoom: ["Zoom in on k", "以 k 为中心放大"],
  shift: ["start_pos: shift all positions by", "start_pos：所有位置平移"],
  advance: ["Animate start_pos", "让 start_pos 自动递增"],
  stop: ["Stop", "停止"],
  shiftScores: [
    "q · k / √D of the selected q and k: {plain} at start_pos 0, {shifted} at start_pos {shift}. Over all {count} keys, the shift changes a score by at most {difference}.",
    "所选 q 与 k 的 q · k / √D：start_pos 为 0 时是 {plain}，为 {shift} 时是 {shifted}。对全部 {count} 个键，平移前后的得分最多相差 {difference}。",
  ],
  clocksTitle: ["All pairs of the head, at the query's position plus start_pos", "该头的每一对分量（查询位置加上 start_pos 时的角度）"],
  clocksLegend: [
    "Hand: the angle at this position. Arc: the angles of the positions within the context. Below: pair, and tokens per turn. Select a clock to see its pair.",
    "指针：此位置的角度。弧线：上下文长度以内各位置的角度。下方：第几对，以及转一圈所需的词元数。点击一只钟，查看这一对。",
  ],
  clockLabel: [
    "Pair {pair}: {period} tokens per turn, {speed} radians per token, now at {angle}°",
    "第 {pair} 对：{period} 个词元转一圈，每词元 {speed} 弧度，现在位于 {angle}°",
  ],

  scoreTitle: ["3. Score", "3. 得分"],
  scoreLead: [
    "The score of a query and a key is a sum over pairs of channels. The first chart: the contribution of each pair. The second: the score of the same two vectors at other distances. Below: the lines of attention.py, with their results for this query.",
    "一个查询与一个键的得分是各对分量的贡献之和。第一张图：每一对的贡献。第二张图：同样两个向量在其他距离上的得分。下方：attention.py 的代码，以及对这个查询算出的数值。",
  ],
  scoreText: [
    "q at {q}, k at {k}, distance {distance}: q · k / √D = {score}. After softmax, this key has {weight} of the attention. The contribution with the largest absolute value is {contribution}, from pair {pair}.",
    "q 位于 {q}，k 位于 {k}，距离 {distance}：q · k / √D = {score}。softmax 之后，这个键占注意力的 {weight}。贡献绝对值最大的是第 {pair} 对：{contribution}。",
  ],
  pairsCaption: [
    "Contribution of each pair to q · k / √D (no unit). Pair 0 is the fastest.",
    "每一对分量对 q · k / √D 的贡献（无单位）。第 0 对转得最快。",
  ],
  distanceCaption: [
    "q · k / √D of this q and k at every distance. Circle: their actual distance. Dashed: the context.",
    "这两个向量 q、k 在各个距离上的 q · k / √D。圆圈：实际距离。虚线：上下文长度。",
  ],
  pairAxis: ["pair", "第几对"],
  distanceAxis: ["distance q − k, tokens", "距离 q − k（词元）"],
  context: ["context {length}", "上下文长度 {length}"],
  scoreAxis: ["q · k / √D", "q · k / √D"],
  speedColumn: ["radians per token", "弧度/词元"],
  contributionColumn: ["contribution", "贡献"],
  linesTitle: ["attention.py, with its values for this query", "attention.py 的代码，以及对这个查询算出的数值"],
  scoresTable: ["Scores of this query with all keys", "这个查询与所有键的得分"],
  maskColumn: ["mask", "掩码"],
  maskSeen: ["visible", "可见"],
  maskHidden: ["masked (later)", "遮住（位置在后）"],
  maskSome: [
    "Query {q} sees {seen} keys. The other {hidden} come later in the text: the mask replaces their scores by −∞, so their weights are 0.",
    "查询 {q} 能看到 {seen} 个键。其余 {hidden} 个在它之后：掩码把它们的得分换成 −∞，所以权重为 0。",
  ],
  maskNone: [
    "Query {q} is the newest token, so no key is masked. Choose an earlier query to see the mask.",
    "查询 {q} 是最新的词元，没有键被掩码遮住。选择更早的查询，就能看到掩码的作用。",
  ],
  weightColumn: ["softmax", "softmax"],
  valueColumn: ["weight × |v|", "权重 × |v|"],
  arrowColumn: ["arrow", "箭头"],
  passColumn: ["forward pass", "前向计算"],
  chartColumn: ["solid: before, striped: after", "实心：改变前；条纹：改变后"],
  shiftedColumn: ["p (with start_pos)", "p（含 start_pos）"],
  positionColumn: ["position", "位置"],
  tokenColumn: ["token", "词元"],
  lineProject: [
    "q, k, v of token {q}: {H} query heads and {K} key/value heads with {D} channels each; head {head} uses key/value head {kv}",
    "词元 {q} 的 q、k、v：{H} 个查询头、{K} 个键/值头，每头 {D} 维；第 {head} 个头使用第 {kv} 个键/值头",
  ],
  lineRotate: [
    "pair {pair} of q: ({a}, {b}) rotated by {q} × {speed} rad gives ({c}, {d})",
    "q 的第 {pair} 对：({a}, {b}) 旋转 {q} × {speed} 弧度得到 ({c}, {d})",
  ],
  lineCache: [
    "keys and values of the positions 0 to {q}; later ones, if any, are masked",
    "位置 0 到 {q} 的键和值；之后若还有，会被掩码遮住",
  ],
  lineAttend: [
    "same result as attention() below; the table after the code lists every key of head {head}",
    "结果与下方的 attention() 相同；代码之后的表列出第 {head} 个头的所有键",
  ],
  lineScores: [
    "scores of token {q} with keys 0, 1, 2 …: {scores}",
    "词元 {q} 与键 0、1、2……的得分：{scores}",
  ],
  lineSoftmax: [
    "weights of keys 0, 1, 2 …: {weights}; masked keys get 0",
    "键 0、1、2……的权重：{weights}；被遮住的键为 0",
  ],
  lineWeighted: [
    "the weighted sum of the value vectors; its first numbers: {out}",
    "值向量的加权和，前三个分量：{out}",
  ],
  lineOut: [
    "the outputs of all {H} heads, concatenated and projected to {dim} channels by wo",
    "{H} 个头的输出拼接起来，由 wo 投影到 {dim} 维",
  ],

  mapsTitle: ["4. Attention maps", "4. 注意力图"],
  mapsLead: [
    "Each row is a query, each column a key. The stronger the colour, the larger the attention weight. Choose a head under “All heads”. Point at a cell, or move with the arrow keys, to read its weight.",
    "每行是一个查询，每列是一个键，颜色越浓，注意力权重越大。可在“所有的头”中选择一个头；把鼠标移到格子上，或用方向键移动，即可读出权重。",
  ],
  mapKeys: [
    "Colour: the square root of the weight, from 0 (empty) to 1 (full colour). Arrow keys: up and down change the query, left and right the key.",
    "颜色：权重的平方根，从 0（空白）到 1（最浓）。方向键：上下改变查询，左右改变键。",
  ],
  mapLabel: ["Attention of layer {layer}, head {head}", "第 {layer} 层，第 {head} 个头的注意力"],
  mapText: [
    "Query {q} {qt} gives key {k} {kt} the weight {weight} (layer {layer}, head {head}).",
    "查询 {q} {qt} 给键 {k} {kt} 的权重为 {weight}（第 {layer} 层，第 {head} 个头）。",
  ],
  thumbsTitle: ["All heads, one row per layer", "所有的头，每层一行"],
  thumbLabel: ["layer {layer}, head {head}", "第 {layer} 层，第 {head} 个头"],
  queryAxis: ["query position", "查询位置"],
  keyAxis: ["key position", "键位置"],

  cacheTitle: ["5. KV cache", "5. KV 缓存"],
  cacheLead: [
    "The rotated keys and the values of earlier tokens are cached, so a forward pass computes only the new token instead of the whole text. The strips are the slots of each layer; the charts show the cost of each pass.",
    "先前词元的键（已旋转）和值存在缓存里，所以每次前向计算只需处理新词元，而不是整段文本。横条是每层的槽位，图表是每次前向计算的开销。",
  ],
  useCache: ["use the cache", "使用缓存"],
  endless: [
    "endless: when full, evict the oldest quarter, keeping the first few tokens, and rotate the later keys back",
    "不限长度：装满时丢弃最早的四分之一（保留开头几个词元），并把后面的键反向旋转",
  ],
  compareCache: ["Compare the logits with and without the cache", "比较用缓存与不用缓存的 logits"],
  slice: [
    "Last pass: start_pos = {start}, T = {T}. Written: slots {start} : {end} of every layer. Read: slots 0 : {end}. {perLayer} bytes per layer, {bytes} of {total} bytes in use (per token: {L} layers × 2 for k and v × {K} heads × {D} channels × 4 bytes).",
    "最近一次前向计算：start_pos = {start}，T = {T}。写入：每层的槽位 {start} : {end}。读取：槽位 0 : {end}。每层 {perLayer} 字节，已用 {bytes} 字节，共 {total} 字节（每词元 {L} 层 × 2（k 和 v）× {K} 头 × {D} 维 × 4 字节）。",
  ],
  sliceOff: [
    "Last pass, without the cache: all {T} tokens were computed again. No slot was written or read.",
    "最近一次前向计算没有用缓存：全部 {T} 个词元都重新计算，没有写入或读取任何槽位。",
  ],
  slotsCaption: [
    "One row per layer, one column per slot. Striped: written by the last pass. Filled: written earlier. Empty: not in use.",
    "每层一行，每个槽位一列。条纹：最近一次前向计算写入。实心：先前写入。空白：未使用。",
  ],
  slotsLabel: ["{filled} of {limit} slots are in use in each of {L} layers", "{L} 层中，每层 {limit} 个槽位已用 {filled} 个"],
  slotAxis: ["slot", "槽位"],
  workCaption: [
    "Multiplications in the matrix products and the attention of each pass, in millions. Dots: with cache. Squares: without.",
    "每次前向计算中矩阵乘法与注意力的乘法次数（百万）。圆点：用缓存。方块：不用。",
  ],
  timeCaption: [
    "Time of each pass, in milliseconds. Dots: with cache. Squares: without.",
    "每次前向计算的耗时（毫秒）。圆点：用缓存。方块：不用。",
  ],
  lengthAxis: ["text length, tokens", "文本长度（词元）"],
  workAxis: ["millions of multiplications", "乘法次数（百万）"],
  timeAxis: ["milliseconds", "毫秒"],
  withCache: ["with cache", "用缓存"],
  without: ["without cache", "不用缓存"],
  agreement: [
    "With and without the cache, the {count} logits agree to {digits} decimals. Largest difference: {difference}; largest absolute logit: {largest}.",
    "用缓存与不用缓存得到的 {count} 个 logits 在小数点后 {digits} 位内一致。最大相差 {difference}，logits 的最大绝对值为 {largest}。",
  ],
  timeNote: [
    "Triangles: passes that took more than the scale shows; the browser was probably busy.",
    "三角形：耗时超出刻度的前向计算，多半是浏览器当时在忙别的任务。",
  ],
  rateNone: ["Press Step or Play to measure the speed.", "点击“单步”或“播放”，测量速度。"],
  rate: [
    "Last run: {rate} tokens/s ({count} tokens in {ms} ms, including sampling).",
    "最近一次生成：每秒 {rate} 个词元（{count} 个词元用时 {ms} 毫秒，含采样）。",
  ],
  evicted: ["{count} tokens have been evicted so far.", "至今已丢弃 {count} 个词元。"],

  whatIfTitle: ["6. What if the rotation were different?", "6. 如果换一种旋转？"],
  whatIfLead: [
    "The same weights with a different rotation table, without fine-tuning: see how the next token and the loss change. Shifting all positions has no effect, even beyond the context. Changing the distances changes the result.",
    "同样的权重，换一张旋转表，不做微调，看下一个词元和损失如何变化。平移所有位置不改变结果，即使超出上下文长度；改变距离则会改变结果。",
  ],
  change: ["Rotation", "旋转"],
  changeUnchanged: ["unchanged", "不变"],
  changeOff: ["off", "关闭"],
  changeTheta: ["different theta", "更换 theta"],
  changeLinear: ["interpolation", "位置插值"],
  changeNtk: ["NTK-aware", "NTK-aware"],
  changeYarn: ["YaRN", "YaRN"],
  factor: ["factor", "缩放因子"],
  offset: ["shift positions by", "位置平移"],
  stretch: ["stretch distances by", "距离拉伸"],
  stretchHelp: [
    "Shift moves the token at position p to p + shift: distances stay the same. Stretch moves it to stretch × p: distances grow, as in a longer text.",
    "平移把位置 p 的词元移到 p + 平移量，距离不变。“距离拉伸”为 s 时把它移到 s × p，距离变大，如同在更长的文本中。",
  ],
  long: [
    "repeat the text until it has {length} tokens ({times} × the context)",
    "把文本重复到 {length} 个词元（上下文长度的 {times} 倍）",
  ],
  whatIfText: [
    "Loss, in nats per token: {before} as trained, {after} with the change ({difference}). Largest distance: {distance}; context: {context}.",
    "每词元损失（nat）：训练时的设置 {before}，改变后 {after}（{difference}）。最大距离：{distance}；上下文长度：{context}。",
  ],
  computing: ["Computing …", "正在计算……"],
  whatIfShort: ["Type at least two tokens.", "请至少输入两个词元。"],
  whatIfBars: ["Next token at temperature 1, before and after", "下一个词元（temperature = 1），改变前与改变后"],
  beforeColumn: ["before", "改变前"],
  afterColumn: ["after", "改变后"],
  lossCaption: [
    "Loss of each token. Solid: as trained. Dashed, with squares: with the change. In long texts each point is the mean of neighbouring tokens.",
    "每个词元的损失。实线：训练时的设置。带方点的虚线：改变后。文本较长时，每个点是相邻几个词元的平均。",
  ],
  lossAxis: ["loss, nats", "损失（nat）"],

  footer: [
    "Everything runs in this page: no data is sent, and your settings and your prompt are stored only in its address.",
    "所有计算都在本页中完成：不发送任何数据，设置和提示词只保存在网址中。",
  ],
  encodingExact: [
    "The page runs the model's own tokenizer ({kind}) and gets the same token ids as generate.py.",
    "本页运行模型自带的分词器（{kind}），得到的词元编号与 generate.py 相同。",
  ],
  characterModel: ["character-level", "字符级"],
};

const LANGUAGES = ["en", "zh"];

export function translate(language, key, values = {}) {
  const text = STRINGS[key][LANGUAGES.indexOf(language)];
  return text.replace(/\{(\w+)\}/g, (_, name) => values[name]);
}
