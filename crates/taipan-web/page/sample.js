// The sample text: short tales from a small grammar. They are few words in many orders, so that a
// tiny model learns spelling, then words, then sentences, within minutes. The same text everywhere.

const NAMES = [
  "Ada",
  "Bram",
  "Cleo",
  "Dario",
  "Edda",
  "Finn",
  "Greta",
  "Hanno",
  "Ines",
  "Jory",
  "Kaya",
  "Leif",
  "Mara",
  "Nils",
  "Oona",
  "Piet",
  "Runa",
  "Sven",
  "Tilda",
  "Yara",
];
const WORK = [
  "baker",
  "sailor",
  "fisher",
  "smith",
  "painter",
  "keeper",
  "teacher",
  "carpenter",
  "pilot",
  "weaver",
  "gardener",
  "piper",
];
const MOODS = [
  "old",
  "young",
  "quiet",
  "clever",
  "patient",
  "tired",
  "cheerful",
  "curious",
  "stubborn",
  "gentle",
];
const PLACES = [
  "the harbour",
  "the lighthouse",
  "the market",
  "the mill",
  "the bridge",
  "the island",
  "the north pier",
  "the workshop",
  "the rope yard",
  "the chapel",
];
const THINGS = [
  "lantern",
  "net",
  "kettle",
  "compass",
  "letter",
  "boat",
  "clock",
  "map",
  "key",
  "bell",
  "basket",
  "ladder",
];
const LOOKS = [
  "small",
  "red",
  "broken",
  "silver",
  "heavy",
  "blue",
  "wooden",
  "bright",
  "rusty",
  "round",
];
const BEASTS = ["gull", "seal", "cat", "heron", "dog", "crab", "goose", "raven"];
const WEATHER = ["rain", "fog", "wind", "snow", "storm", "sun"];
const TIMES = [
  "in the morning",
  "at noon",
  "in the evening",
  "at night",
  "in the winter",
  "in the spring",
  "on a Sunday",
  "after the storm",
];

const OPENINGS = [
  "There was once a {mood} {work} named {n}, who lived near {p}.",
  "{n} was a {mood} {work}. {T}, {n} walked to {p}.",
  "{T}, the {w} came over {p}, and {n} the {work} was still awake.",
  "Nobody at {p} had ever seen a {l} {t} before {n} brought one.",
];
const MIDDLES = [
  "{n} was looking for a {l} {t}.",
  '"Have you seen my {t}?" asked {n}. "It is {l}, and I need it before the {w} comes."',
  '"No," said {m}, "but I saw a {b} near {p}."',
  "{m} the {work2} had a {b}, and the {b} had found a {l} {t}.",
  "The {b} looked at the {t} and did not move.",
  "So {n} and {m} took the {t} and went to {p} together.",
  "They waited there until the {w} was gone.",
  '"You may keep the {t}," said {m}, "if you mend my {t2}."',
  "{n} mended the {t2} with a piece of rope and a little patience.",
  "It was {l2}, as all good things near {p} were.",
  '"A {t} is only a {t}," said {m}, "but a friend is a friend."',
  "The {w} had stopped, and {p} was quiet.",
];
const ENDINGS = [
  "And {n} never lost the {t} again.",
  "From that day on, {n} and {m} met at {p} {time}.",
  "{n} laughed, and the {b} laughed too, as far as a {b} can.",
  "That was the end of the {w}, and of this tale.",
];

const BYTES = 300_000;

/** About 300 kB of tales, separated by empty lines. */
export function sampleText() {
  // mulberry32: 32 bits of state are plenty for picking words.
  let state = 20;
  const random = () => {
    state = (state + 0x6d2b79f5) | 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
  const pick = (list) => list[Math.floor(random() * list.length)];
  const other = (list, than) => {
    const found = pick(list);
    return found === than ? other(list, than) : found;
  };
  const tale = () => {
    const n = pick(NAMES);
    const [t, l, time] = [pick(THINGS), pick(LOOKS), pick(TIMES)];
    const words = {
      n,
      m: other(NAMES, n),
      mood: pick(MOODS),
      work: pick(WORK),
      work2: pick(WORK),
      t,
      l,
      time,
      t2: other(THINGS, t),
      l2: other(LOOKS, l),
      b: pick(BEASTS),
      w: pick(WEATHER),
      T: time[0].toUpperCase() + time.slice(1),
    };
    const fill = (line) =>
      line.replace(/\{(\w+)\}/g, (_, key) => (key === "p" ? pick(PLACES) : words[key]));
    // Some of the middles, in their order: a question comes before its answer.
    const middles = MIDDLES.filter(() => random() < 0.4);
    const lines = [pick(OPENINGS), ...middles, pick(ENDINGS)].map(fill);
    return lines.map((line) => line[0].toUpperCase() + line.slice(1)).join(" ");
  };
  const tales = [];
  for (let length = 0; length < BYTES; length += tales.at(-1).length + 2) tales.push(tale());
  return `${tales.join("\n\n")}\n`;
}
