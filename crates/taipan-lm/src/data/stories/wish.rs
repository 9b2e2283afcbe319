//! Stories of a wish that comes true, of a gift and of its rule, which is kept or broken.

use super::plots::Plot;
use super::words::*;

pub(super) const KEPT: Plot = Plot { titles: TITLES, themes: &WISHES, first: 0, beats: KEPT_BEATS };

pub(super) const BROKEN: Plot =
    Plot { titles: TITLES, themes: &WISHES, first: 0, beats: BROKEN_BEATS };

const TITLES: &[&str] = &["The {k} who wanted {wish}", "{n} and the {gift}", "What {n} wished for"];

const WISH: &[&str] = &[
    "More than anything, {n} wanted {wish}. {reason}",
    "There was only one thing {she} wanted, and that was {wish}. {reason}",
    "But at night, when {shop} was quiet, {n} wanted {wish}. {reason}",
];

const ATTEMPT: &[&str] = &[
    "At first {she} tried it without help. {attempt}",
    "{attempt}",
    "{attempt} \"[Perhaps that is enough for today|You are {a k}|Try it again tomorrow],\" \
     said {n2} the {k2}.",
    "\"It cannot be so hard,\" {she} said. {attempt}",
];

const MEETING: &[&str] = &[
    "[One foggy evening|One windy night|On the first day of spring|On a Tuesday], at {p}, {she} \
     met {someone}.",
    "Then, [one evening|one morning|in the middle of the week], {someone} sat at {p} [and \
     waited|as if they had an appointment|and ate a sandwich].",
    "\"Go to {p},\" said {n2} the {k2}, \"and ask there.\" So {n} went, and there was {someone}.",
];

const GIVING: &[&str] = &[
    "\"So you want {wish},\" said {helper}. \"Take this {gift} and {use}. But {rule}!\"",
    "\"I have just the thing,\" said {helper}, and gave {her} {a gift}. \"You must {use}. But \
     {rule}, or it will all be over.\"",
    "{^helper} looked at {her} for a long time and brought out {a gift}. \"[It is easy|Listen \
     well],\" said {helper}. \"{^use}, and {rule}.\"",
];

const GRANTED: &[&str] = &[
    "{n} did as {she} was told. {granted}",
    "{n} went home with the {gift} under {his} arm and did not wait for supper. {granted}",
    "\"Thank you,\" said {n}, and ran. {granted}",
];

const PRICE: &[&str] = &[
    "It was [wonderful|just as {she} had imagined]. {price}",
    "For [three days|a whole week|an hour] {n} was happy. {price}",
    "{price}",
];

const KEPT_BEATS: &[&[&str]] = &[
    WISH,
    ATTEMPT,
    MEETING,
    GIVING,
    GRANTED,
    PRICE,
    &[
        "So {n} took the {gift} back to {p}. \"[Too large|Too loud|Not quite what I meant],\" \
         {she} said. {^helper} nodded. \"They all say so,\" said {helper}.",
        "{n} put the {gift} in the bottom drawer, under the winter socks, and went to see {n2} \
         the {k2}.",
        "\"You kept the rule,\" said {helper}, \"so you may choose again.\" {n} [thought for a \
         while|did not have to think] and asked for a cup of tea.",
    ],
    &[
        "Since then {n} has wanted nothing but [soup|a little rain|a longer Sunday], and gets it \
         most of the time.",
        "\"And was it worth it?\" asked {n2} the {k2}. \"[Every minute|Ask me in winter|It was \
         a good week],\" said {n}, and they went to {p} together.",
        "The {gift} is still there. On quiet nights you can hear it, if you hold your breath.",
    ],
];

const BROKEN_BEATS: &[&[&str]] = &[
    WISH,
    ATTEMPT,
    MEETING,
    GIVING,
    GRANTED,
    &[
        "{n} remembered the rule for [a week|nine days|almost a month]. {breach}",
        "But a rule is a small thing and easy to lose. {breach}",
        "And it would have lasted, but {n} was {a k}, and {a k} forgets. {breach}",
    ],
    &[
        "There was a sound like a cup set down in another room, and everything was as before.",
        "At once it was over. The {gift} crumbled, and a little dust lay on the floor.",
        "Somewhere {helper} sighed, and all of it went out like a candle.",
    ],
    &[
        "\"I did tell you,\" said {helper}. \"You did,\" said {n}, and was [sad until \
         supper|almost glad].",
        "{n2} the {k2} came with a cake. \"[It was nice while it lasted|Now you are one of us \
         again],\" said {n2}. {n} laughed and cut two pieces.",
        "{n} went back to {shop} and picked up {his} {tool}. It had never felt so [light|warm].",
        "And if you ask {n} today, {she} will say that it was a dream, and look at the sky.",
    ],
];
