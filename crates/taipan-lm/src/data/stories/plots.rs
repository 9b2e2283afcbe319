//! What happens in the stories.

use super::wish;
use super::words::*;

/// A kind of story: its titles, what it is about, and its beats, each told in one of several ways.
pub(super) struct Plot {
    pub titles: &'static [&'static str],
    /// What it is about is one of these rows. Who and what else is in it follows from the row.
    pub themes: &'static Table,
    /// Who has the first row.
    pub first: usize,
    /// What happens after the [`INTRODUCTION`].
    pub beats: &'static [&'static [&'static str]],
}

pub(super) const PLOTS: &[Plot] =
    &[wish::KEPT, wish::BROKEN, LOST, TRADE, CONTEST, TROUBLE, QUESTION, GUEST, RUMOUR];

/// How a character is introduced.
pub(super) const INTRODUCTION: &[&str] = &[
    "Once there was {a k} named {n}, who {job}.",
    "In the town by the sea lived {n}, {a mood} {k} who {job}.",
    "{n} was {a k}. {^she} {job} and [did it well|was not in a hurry|hummed while {she} did it].",
    "There was once {a mood} {k} who {job}, and {his} name was {n}.",
    "Everybody knew {n} the {k}, who {job} at {shop}.",
];

const LOST: Plot = Plot {
    titles: &["{n} looks for {a t}", "The {l} {t}", "Who has the {l} {t}?"],
    themes: &THINGS,
    first: 0,
    beats: &[
        &[
            "One morning {his} {l} {t} was gone.",
            "{n} had {a l} {t}, and {she} [loved it more than {his} supper|never lent it to \
             anybody]. One day it was not in its place.",
            "\"Where is my {t}?\" said {n} one morning, and looked under the bed, where there was \
             only dust.",
        ],
        &[
            "First {she} went to {p} and asked {n2} the {k2}. \"Have you seen my {t}?\" \"[I have \
             seen a great many things|Is it the loud one?|Not since Sunday],\" said {n2}, \"[but \
             no {t}|but it was not {l}].\"",
            "At {p} stood {n2} the {k2}. \"I am looking for {a l} {t},\" said {n}. \"[So is \
             everybody|Then do not look at me],\" said {n2} and [went on fishing|looked away].",
        ],
        &[
            "Then {she} went to {p2}. {n3} the {k3} was there, [peeling an apple|reading the \
             newspaper upside down|asleep in a wheelbarrow]. \"{^a t}?\" said {n3}. \"[Ask the \
             one who asks no questions|Follow the crumbs|Somebody carried one past, whistling].\"",
            "At {p2} {she} met {n3} the {k3}, who [had {a mood} look|smelled of soap|was counting \
             clouds]. \"I know nothing of {a t},\" said {n3}, \"[and I know it very well|and \
             neither does my aunt].\"",
        ],
        &[
            "In the evening {n} sat down on the steps of {shop} and was sad. Then {she} heard a \
             small noise.",
            "It began to rain. {n} walked home slowly, and there was a light in {his} window.",
            "When it got dark, {n} gave up. And that is always when things happen.",
        ],
        &[
            "It was {n2}, with the {t} in {his2} arms. \"I took it to have it mended,\" said {n2}. \
             \"It was to be a surprise.\"",
            "There was {n3}, and behind {her3} stood the {t}, polished like a star. \"I only \
             borrowed it,\" said {n3}, \"but then I could not remember the way back.\"",
            "In the doorway stood {n2} and {n3}, and between them the {l} {t}. \"We [both found \
             it|fought over it],\" they said, \"and then we thought of you.\"",
            "A {k2}'s child had been sleeping in the {t} all day. Nobody had the heart to wake it.",
        ],
        &[
            "So they all had soup, and the {t} had a chair of its own.",
            "\"A {t} is only a {t},\" said {n}, \"but [a friend with a {t} is a feast|it is good to \
             have been everywhere once].\"",
            "From then on, the {t} was kept at {p}, where anybody may use it who says please.",
            "{n} never locked the door again. It made it easier for surprises.",
        ],
    ],
};

const TRADE: Plot = Plot {
    titles: &["A {t} for {a t2}", "How {n} came by {a t4}", "The long way to {a t4}"],
    themes: &THINGS,
    first: 9,
    beats: &[
        &[
            "All that {she} owned was {a l} {t}. But what {n} needed was {a t4}.",
            "One day {n} needed {a t4}. {^she} had no money, only {a l} {t}.",
            "\"I would give my {t} for {a t4},\" said {n}, and since nobody answered, {she} set \
             out.",
        ],
        &[
            "At {p} {she} met {n2} the {k2}, who had {a t2}. \"What do you want for it?\" asked \
             {n}. \"Have you {a t}?\" asked {n2}. So {n} gave away the {t} and got the {t2}.",
            "{n2} the {k2} sat at {p} with {a t2} and looked at {his} {t}. \"[Shall we|A fair \
             trade]?\" said {n2}. And {n} went on with the {t2}.",
        ],
        &[
            "At {p2} {she} met {n3} the {k3}. \"{^a t2}!\" cried {n3}. \"[All my life I have \
             wanted one|My grandmother had one just like it]. I will give you my {t3}.\" Now {n} \
             had {a t3}.",
            "On the way to {p2} it began to snow, and {n3} the {k3} had nothing to keep warm but \
             {a t3}. {n} gave {her3} the {t2}, and would take nothing. But {n3} put the {t3} into \
             {his} hands.",
        ],
        &[
            "In the market a stranger was selling {a t4}. \"Not for money,\" said the stranger. \
             \"But for {a t3}, gladly.\"",
            "And there, on a wall, stood {a t4} with a note on it: Will exchange for {a t3}.",
            "At the end of the road lived somebody who had {a t4} and was [tired of it|afraid of \
             it]. \"Give me the {t3},\" they said, \"and it is yours.\"",
        ],
        &[
            "So {n} came home with {a t4}. \"[And what is it for?|Does it work?]\" asked the \
             neighbours. \"[I shall find out|It was the walk that I needed],\" said {n}.",
            "{n} carried the {t4} home. {^she} had given {a t} for {a t2}, {a t2} for {a t3}, and \
             {a t3} for {a t4}, and {she} had talked to everybody.",
            "At home {n} set the {t4} on the table. Next to the place where the {t} had been, it \
             looked [a little foolish|just right].",
        ],
        &[
            "And the {t}? {n2} plays with it every evening, and you can hear it as far as {p2}.",
            "A week later {n2} came by. \"I miss my {t2},\" said {n2}. \"{n3} has it,\" said {n}. \
             \"It begins with {a t}.\"",
            "Nobody in town has {a t} today that did not once belong to somebody else. They like \
             it that way.",
        ],
    ],
};

const CONTEST: Plot = Plot {
    titles: &["Who can {skill}?", "{n} against {n2}", "The contest at {p}"],
    themes: &CONTESTS,
    first: 4,
    beats: &[
        &[
            "\"Nobody can {skill} like me,\" said {n} one day. \"Except me,\" said {n2} the {k2}.",
            "One evening {n} and {n2} the {k2} could not agree which of them could {skill}.",
            "Every year there was a contest at {p}, and every year it was a different one. This \
             time it was to {skill}, and {n2} the {k2} had been practising.",
        ],
        &[
            "{n3} the {k3} was to be the judge, [because {she3} had the largest hat|as {she3} \
             was the only one who was awake]. The prize was {a l} {t}.",
            "They met at {p}, and the whole town came with folding chairs. \"The prize,\" said \
             {n3} the {k3}, \"is {a l} {t}.\"",
        ],
        &[
            "{first}. {second}. [Nobody breathed|The crowd ate sandwiches|A baby laughed].",
            "When the bell rang, they began. {first}, but {second}.",
            "{first}. \"[Not bad|Very good],\" whispered the crowd. Then {second}.",
        ],
        &[
            "\"[Remarkable|Hm],\" said {n3}, and looked from one to the other. \"I must think \
             about it.\" And {she3} thought until [Wednesday|the lamps were lit].",
            "Then a wind came up and carried the {t} away over the roofs.",
            "\"That is not allowed!\" cried {n}. \"It is not forbidden!\" cried {n2}.",
        ],
        &[
            "In the end {n3} gave the {t} to a child in the third row, who had clapped for both.",
            "\"{n2} has won,\" said {n3}. {n} was quiet for a moment and then carried the {t} home \
             for {her2}, since it was heavy.",
            "\"{n} has won,\" said {n3}, \"but it was {n2} who made it worth seeing.\" So they cut \
             the {t} in two.",
            "Nobody ever learned who had won. {n3} had [fallen asleep|gone home] long before.",
        ],
        &[
            "Since then {n} and {n2} have practised together, [every Thursday|when it rains].",
            "\"Next year,\" said {n}. \"Next year,\" said {n2}. And they shook hands.",
            "And that is why, at {p}, there are two chairs and one {t}.",
        ],
    ],
};

const TROUBLE: Plot = Plot {
    titles: &["Who took {missing}?", "{n} and {missing}", "The day without {missing}"],
    themes: &TROUBLES,
    first: 13,
    beats: &[
        &[
            "One morning {missing} was gone. {effect}",
            "Nobody noticed at first that {missing} was missing. Then they did. {effect}",
            "\"Something is wrong,\" said {n} at breakfast, and so it was: somebody had taken \
             {missing}. {effect}",
        ],
        &[
            "\"[Somebody must do something|This is a matter for the mayor],\" said {n2} the {k2}. \
             But [nobody did|the mayor was at the dentist], and so {n} took {his} {tool} and went.",
            "The whole town met at {p}. \"Who will go and look?\" asked the mayor. Everybody took \
             a step back, but {n} was [tying a shoe|thinking of something else].",
        ],
        &[
            "{n} looked in {p}, and under it, and asked {n2} the {k2}, who knew everything. \"Go \
             to {p2},\" said {n2}, \"and [be polite|take a sandwich].\"",
            "At {p} there were footprints. They led to {p2}, in no great hurry, and {n} followed \
             them.",
        ],
        &[
            "At {p2} sat {stranger}, looking guilty. \"{^excuse},\" said {thief}.",
            "And there, with {missing}, sat {stranger}. \"Oh,\" said {thief}. \"Is it yours? \
             {^excuse}.\"",
        ],
        &[
            "{n} was not angry. \"[These things happen|You might have asked],\" {she} said, and \
             called the others. {remedy}",
            "\"I understand,\" said {n}, who had once taken a cake for a similar reason. {remedy}",
        ],
        &[
            "For supper there was cake, and {thief} got the largest piece, for telling the truth.",
            "The mayor wanted to give {n} a medal, but {she} asked for {a mood} morning and a \
             new {tool}.",
            "\"It is a little worn,\" said {n2}, looking at it closely, \"but it will do.\" And it \
             has done ever since.",
            "Since that day {n} says good night to {missing}. One never knows.",
        ],
    ],
};

const QUESTION: Plot = Plot {
    titles: &["{^question}", "{n} has a question", "Three answers and one more"],
    themes: &QUESTIONS,
    first: 7,
    beats: &[
        &[
            "One day {n} began to wonder {question}, and could not stop.",
            "\"I should like to know {question},\" said {n} at breakfast. The egg did not answer.",
            "A child came to {shop} and asked {question}. {n} did not know. It was a bad feeling.",
        ],
        &[
            "So {she} went to {p} and asked {n2} the {k2}. \"That is easy,\" said {n2}. \
             \"{^answer1}.\"",
            "{n2} the {k2}, who {job2}, knew at once. \"{^answer1},\" said {n2}.",
        ],
        &[
            "{n} was not sure. At {p2} {she} asked {n3} the {k3}. \"[Nonsense|Who told you \
             that?],\" said {n3}. \"{^answer2}. Everybody knows that.\"",
            "\"That does not sound right,\" said {n3} the {k3}. \"I was always told: {answer2}.\"",
        ],
        &[
            "At the end of the pier stood {someone}. \"They are both wrong,\" said {helper}. \
             \"{^answer3}. [I was there|I have it in writing].\"",
            "Then came {someone}, who had heard it all. \"{^answer3},\" said {helper}, and would \
             say no more.",
        ],
        &[
            "{n} walked home with three answers, [and they did not get along|one in each pocket \
             and one in {his} hat].",
            "That night {n} could not sleep, for {she} had three answers and only one question.",
        ],
        &[
            "In the morning {she} told the child: \"{^reply}.\" The child nodded and asked why \
             bread is square.",
            "\"And what do you think?\" asked {n2}. {n} looked out over the water. \"{^reply},\" \
             {she} said. Nobody had a better one.",
            "It was {his} grandmother who said it in the end: \"{^reply}. And now eat your soup.\"",
        ],
    ],
};

const GUEST: Plot = Plot {
    titles: &["The guest at {shop}", "{n} and {visitor}", "What {visitor} left behind"],
    themes: &GUESTS,
    first: 16,
    beats: &[
        &[
            "One night there was a storm that [took the hats off the chimneys|moved {p} a little \
             to the left]. Then somebody knocked.",
            "It was the kind of night on which nobody should be out, [and the rain fell \
             sideways|and even the sea stayed in]. There was a knock at the door.",
        ],
        &[
            "It was {guest}. \"Is there a bed?\" asked {visitor}. \"There is {a t},\" said {n}, \
             \"and it is quite soft.\"",
            "Outside stood {guest}, [dripping|smiling politely]. \"Come in,\" said {n}. \"Mind the \
             {t}.\"",
        ],
        &[
            "{n} made soup, and {visitor} ate [nine bowls|with a very good appetite] and told of \
             [towns under the sea|a road that goes round the moon|a war that ended in a dance].",
            "They sat by the stove till midnight. {n2} the {k2} came over to see, and stayed, and \
             brought {a l} {t}.",
            "{^visitor} said little but looked at everything, [the cups, the cat and the \
             calendar|as if it were all a present].",
        ],
        &[
            "In the morning the storm was over, and the bed was empty. On the pillow lay {coin}.",
            "\"I have no money,\" said {visitor} at the door, \"but I have this.\" And {n} was \
             given {coin}.",
        ],
        &[
            "\"That is worth nothing,\" said {n2} the {k2}. \"[Wait|We shall see],\" said {n}. \
             {later}",
            "At first {n} did not know what to do with it. {later}",
            "{later}",
        ],
        &[
            "And when there is a storm, {n} [puts a lamp in the window|cooks for two].",
            "{^visitor} has not come back yet. But the bed is made.",
            "\"You never know who it is,\" {n} says, \"so it is best to open.\"",
        ],
    ],
};

const RUMOUR: Plot = Plot {
    titles: &["What {n} saw", "{^a k} with a story", "News from {p}"],
    themes: &RUMOURS,
    first: 2,
    beats: &[
        &[
            "One [grey|windy|quiet] morning, at {p}, {n} saw {seen}.",
            "On the way to {shop} {n} looked back once, and there, at {p}, was {seen}.",
        ],
        &[
            "{^she} told {n2} the {k2}. \"I have seen {seen},\" said {n}, \"[or something like \
             it|and I am not making it up].\"",
            "\"You will not believe it,\" {she} said to {n2} the {k2}, \"but at {p} there is \
             {seen}.\"",
        ],
        &[
            "{n2} ran straight to {n3} the {k3}. \"{n} has seen {larger}!\" cried {n2}.",
            "By noon {n2} was telling it at {p2}, and by then it was {larger}.",
        ],
        &[
            "{n3} the {k3} did not wait to hear the end. \"{^largest}!\" {she3} shouted from the roof. \
             \"[Hide the spoons|Save the children and the cheese]!\"",
            "In the evening {n3} the {k3} told the mayor that it was {largest}. The mayor [put on \
             two hats|locked the town and lost the key].",
        ],
        &[
            "At night the whole town went to {p} with [lanterns and ladles|brooms and a brave \
             song]. {n} went first, because it was {his} fault.",
            "Nobody slept. At last {n} took {his} {tool} and a candle and went to {p} alone.",
        ],
        &[
            "And what was it? It was {truth}.",
            "There, in the light, was {truth}. \"[Good evening|Oh],\" said {n}.",
        ],
        &[
            "They all laughed, {n3} the loudest, and since they were up they had breakfast.",
            "\"It looked larger from where I was,\" said {n}. \"It always does,\" said {n2}.",
            "The mayor made a law against it. But people still tell the story, and in theirs it is \
             {largest}.",
            "\"Tomorrow,\" said {n}, \"I shall look the other way.\" But {she} did not.",
        ],
    ],
};
