// The text of the figures, key: [English, Chinese]. Each {name} is filled in.

export const STRINGS = {
  position: ["position", "位置"],

  problemQuestion: [
    "A word asks with its query q, an earlier one answers with its key k, and their score says how well they fit. Move both along the text: which of the three scores stays the same? Then move only one.",
    "一个词用 query q 提问，前面的词用 key k 作答，得分表示两者有多匹配。让两个词一起往后移：三个得分里哪一个不变？再只移动其中一个。",
  ],
  sentence: ["dog|of|the|old|man|bites", "狗|见|了|生人|就|咬"],
  moveBoth: ["both", "一起移动"],
  moveQuery: ["query q", "query q"],
  moveKey: ["key k", "key k"],
  ideaNumber: ["1. add the position", "1. 加上位置"],
  ideaSinusoids: ["2. add sines and cosines", "2. 加上正弦、余弦"],
  ideaRotation: ["3. rotate", "3. 旋转"],
  score: ["score", "得分"],
  atStart: ["at the start", "在开头"],
  here: ["here", "在这里"],
  planeText: [
    "q at {q} and k at {k}, rotated: {angle}° between them; distance {distance}",
    "q 在 {q}，k 在 {k}，旋转之后夹角 {angle}°；距离 {distance}",
  ],
  problemNote: [
    "“At the start”: the scores of the same q and k with the key at 0. You can also drag the marked words. The arrows are q and k, rotated by 1 radian per position, as in idea 3.",
    "“在开头”：同样的 q 和 k，key 在位置 0 时的得分。也可以直接拖动标出的词。箭头是按第 3 种做法旋转之后的 q 和 k，每个位置转 1 弧度。",
  ],

  clocksQuestion: [
    "Guess: with the fast hand alone, how many other positions look the same? With the slow hand alone? And with all eight?",
    "先猜：只看最快的一根指针，有多少个别的位置看上去一样？只看最慢的呢？八根一起呢？",
  ],
  base: ["base b", "底数 b"],
  hands: ["hands", "指针"],
  fastHand: ["the fastest hand", "最快的一根"],
  slowHand: ["the slowest hand", "最慢的一根"],
  allHands: ["all eight", "八根指针"],
  yourCount: ["how many positions look the same", "看上去一样的位置有几个"],
  noneAlike: ["none", "一个也没有"],
  hundredAlike: ["about 100", "一百来个"],
  hundredsAlike: ["hundreds", "几百个以上"],
  countFirst: [
    "Of the positions up to {last}, how many others look like position {position}? (All hands within 20°.)",
    "到 {last} 为止，有多少个别的位置跟位置 {position} 看上去一样？（所有指针相差不到 20°。）",
  ],
  alike: [
    "{verdict} Position {position} looks like {count} other positions up to {last}: {first} (all hands within 20°).",
    "{verdict}到 {last} 为止，有 {count} 个位置跟位置 {position} 看上去一样：{first}（所有指针相差不到 20°）。",
  ],
  alone: [
    "{verdict} No other position up to {last} looks like position {position} (all hands within 20°).",
    "{verdict}到 {last} 为止，没有别的位置跟位置 {position} 看上去一样（所有指针相差不到 20°）。",
  ],
  alikeAxis: ["how alike (mean cosine)", "相似程度（cos 的平均）"],
  clocksNote: [
    "Below each clock: tokens per turn. The fast hand tells neighbours apart and repeats, the slow one tells far from near only: it takes both. Change the base: which hands does it slow down?",
    "每只钟下面是转一圈所需的 token 数。快的指针分得清相邻的位置，但会重复；慢的只分得清远近；合起来才够。改一改底数：哪些指针变慢了？",
  ],

  layoutsQuestion: [
    "Try it: move q and k along the text, 5 apart. In which layout does the score depend on the place?",
    "试一试：让相隔 5 的 q 和 k 一起后移。哪种布局的得分会随位置变化？",
  ],
  layout: ["layout", "布局"],
  neighbours: ["neighbours", "相邻"],
  halves: ["halves", "前后两半"],
  mixed: ["mixed", "混用"],
  place: ["key at", "key 的位置"],
  layoutScore: [
    "q at {m}, k at {n}: score {here}. At the start of the text: {first}. {verdict}",
    "q 在 {m}，k 在 {n}：得分 {here}。在文本开头：{first}。{verdict}",
  ],
  layoutStart: [
    "q at {m}, k at {n}: score {here}. Now move both.",
    "q 在 {m}，k 在 {n}：得分 {here}。再让两者一起后移。",
  ],
  relative: ["The same at every place.", "处处相同。"],
  notRelative: [
    "Not the same: two channels of a pair turn by different angles, so it is no rotation.",
    "不相同：一组的两维转的角度不一样，已经不是旋转了。",
  ],
  layoutsNote: [
    "An arc joins the two channels of a pair. The colour is the frequency that turns a channel. In a correct layout both channels of a pair have one colour.",
    "弧线连接同一组的两维，颜色表示这一维按哪个频率转。布局正确时，同一组的两维颜色相同。",
  ],

  headQuestion: [
    "Try it: give the key five tokens back more than half of the weight. What do you have to change?",
    "试一试：让前面第 5 个 key 得到一半以上的权重。要改什么？",
  ],
  back: ["look back by", "关注前面第几个"],
  length: ["length of q and k", "q、k 的长度"],
  pairs: ["fastest pairs used", "用最快的几组"],
  headResult: [
    "The key {back} back has the score {score} and {weight} of the weight, among 64 keys.",
    "前面第 {back} 个 key 的得分是 {score}，在 64 个 key 中占权重的 {weight}。",
  ],
  scoreAxis: ["score, below the largest", "得分（与最大值之差）"],
  weightAxis: ["softmax weight", "softmax 权重"],
  distanceAxis: ["distance m − n", "距离 m − n"],
  none: ["none", "无"],
  trained: ["Over it, a head of the demo (layer.head), dashed:", "叠上 demo 的一个 head（层.head，虚线）："],
  flat: [
    "The mean query and the mean key hardly turn this head to a distance. Where the dashed curve of the weight is not flat, single queries and keys do it.",
    "单看平均的 query 和 key，这个 head 几乎不偏向任何距离。权重的虚线如果不平，那是各个 query 和 key 自己造成的。",
  ],
  headNote: [
    "In the head made by hand, every pair of q and k is equally long, and the angles between them point to the chosen key. Dashed, in the score: the demo's mean query with its mean key. Dashed, in the weight: what this head gives to each distance in a text, on average. Look for a head whose peak is not at 0.",
    "手工设计的 head 里，q、k 每一组的长度都相同，夹角指向选定的 key。得分图的虚线：demo 的平均 query 与平均 key 的得分。权重图的虚线：这个 head 在一段文本里平均给各个距离的权重。找一找峰不在 0 的 head。",
  ],

  guessQuestion: [
    "Guess first: click the changes in the order of the damage that they do to the trained demo, the worst first.",
    "先猜：按对训练好的 demo 的损害，从大到小依次点出这些改动。",
  ],
  change: ["change", "改动"],
  shifted: ["all positions + 1000", "所有位置 + 1000"],
  stretched: ["positions × 4", "位置 × 4"],
  largerBase: ["base × 100", "底数 × 100"],
  off: ["no rotation", "不旋转"],
  halvesRead: ["layout confused", "布局弄反"],
  again: ["Again", "重来"],
  guessFirst: [
    "Chosen: {count} of {all}. After the last one the model runs here, in your browser.",
    "已选 {count} 个，共 {all} 个。选完之后，模型就在你的浏览器里运行。",
  ],
  running: ["Running the model …", "模型正在运行……"],
  right: ["Right.", "猜对了。"],
  wrong: ["Not quite.", "不对。"],
  guessResult: [
    "{right} of {all} are at their place. Loss as trained: {before} nats per token.",
    "{all} 个里有 {right} 个排对了。原样的 loss：{before} nats/token。",
  ],
  guessRow: ["{name}: {after}, {change}; your place {place}. {why}", "{name}：{after}，{change}；你排第 {place}。{why}"],
  shiftedWhy: [
    "All distances are the same, and scores depend on distances only.",
    "距离都没变，而得分只看距离。",
  ],
  stretchedWhy: [
    "Neighbours seem four apart, and there are distances that training never had, as in a text longer than the context.",
    "相邻的 token 看起来隔着四个，还出现了训练中没有的距离，就像文本超出了上下文。",
  ],
  largerBaseWhy: ["Every pair but the first is slower than in training.", "除第 0 组外，每一组都比训练时慢。"],
  offWhy: ["The model sees which tokens come before, but not where.", "模型知道前面有哪些 token，但不知道在哪里。"],
  halvesReadWhy: [
    "Channels that belong together are turned by different frequencies. There is no error message.",
    "本该一组的两维按不同的频率转，而且没有任何报错。",
  ],
  guessNote: [
    "The loss on one text of {context} tokens that the demo was not trained on, from the most damage to the least. A bar is the change of the loss.",
    "一段 {context} 个 token 的文本上的 loss，demo 没有用它训练过；损害从大到小排列，横条是 loss 的变化。",
  ],
};
