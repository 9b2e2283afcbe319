//! Who and what the stories are about.

/// Rows of values that belong together, by the names of their slots.
pub(super) struct Table {
    pub slots: &'static [&'static str],
    pub rows: &'static [&'static [&'static str]],
}

/// Who lives in the town: what they are, what they do for a living, where, and with what.
#[rustfmt::skip]
pub(super) const CHARACTERS: Table = Table {
    slots: &["n", "she", "her", "his", "k", "job", "shop", "tool"],
    rows: &[
        &["Ada", "she", "her", "her", "fox", "mended clocks",
          "the clock tower", "smallest screwdriver"],
        &["Bram", "he", "him", "his", "badger", "mended umbrellas", "the arcade", "longest needle"],
        &["Cleo", "she", "her", "her", "heron", "baked bread", "the bakery", "rolling pin"],
        &["Dario", "he", "him", "his", "goose", "painted signs",
          "the paint shop", "second-best brush"],
        &["Greta", "she", "her", "her", "hedgehog", "carried letters",
          "the post office", "leather bag"],
        &["Emil", "he", "him", "his", "otter", "kept the lighthouse", "the lighthouse", "oil can"],
        &["Juno", "she", "her", "her", "mole", "tuned pianos", "the music shop", "tuning fork"],
        &["Finn", "he", "him", "his", "goat", "sold buttons", "the button shop", "button jar"],
        &["Lotte", "she", "her", "her", "hare", "rowed the ferry", "the ferry house", "left oar"],
        &["Gus", "he", "him", "his", "toad", "swept chimneys", "the chimney yard", "good brush"],
        &["Mara", "she", "her", "her", "crow", "grew pumpkins", "the garden", "watering can"],
        &["Hugo", "he", "him", "his", "mouse", "bound books", "the bindery", "pot of glue"],
        &["Oona", "she", "her", "her", "bear", "rang the bells", "the bell tower", "bell rope"],
        &["Leif", "he", "him", "his", "owl", "ironed sails", "the sail loft", "flat iron"],
        &["Pia", "she", "her", "her", "snail", "cooked soup", "the soup kitchen", "wooden ladle"],
        &["Milo", "he", "him", "his", "cat", "fixed bicycles",
          "the bicycle shed", "biggest spanner"],
        &["Tilda", "she", "her", "her", "seal", "cut hair", "the barber shop", "pair of scissors"],
        &["Otto", "he", "him", "his", "donkey", "sold tickets", "the ticket office", "hole punch"],
        &["Wilma", "she", "her", "her", "walrus", "taught arithmetic",
          "the school", "piece of chalk"],
        &["Rufus", "he", "him", "his", "lizard", "counted sheep", "the sheepfold", "wooden staff"],
    ],
};

#[rustfmt::skip]
pub(super) const PLACES: Table = Table {
    slots: &["p"],
    rows: &[
        &["the harbour"], &["the old bridge"], &["the windmill"], &["the market square"],
        &["the rope yard"], &["the orchard"], &["the railway station"], &["the library"],
        &["the ferry landing"], &["the well"], &["the north wood"], &["the tea house"],
        &["the salt marsh"], &["the school yard"], &["the fish market"], &["the town hall"],
        &["the bandstand"], &["the pond"], &["the hill"], &["the greenhouse"],
    ],
};

#[rustfmt::skip]
pub(super) const THINGS: Table = Table {
    slots: &["t"],
    rows: &[
        &["teapot"], &["compass"], &["ladder"], &["kettle"], &["map"], &["violin"], &["hat"],
        &["accordion"], &["wheelbarrow"], &["telescope"], &["cheese"], &["blanket"], &["drum"],
        &["trumpet"], &["egg"], &["candle"], &["cuckoo clock"], &["sledge"], &["bathtub"],
        &["bucket"], &["armchair"], &["pumpkin"], &["globe"], &["rocking horse"],
    ],
};

#[rustfmt::skip]
pub(super) const LOOKS: Table = Table {
    slots: &["l"],
    rows: &[
        &["small"], &["red"], &["dented"], &["silver"], &["crooked"], &["blue"], &["patched"],
        &["rusty"], &["round"], &["borrowed"], &["famous"], &["sleepy-looking"], &["yellow"],
        &["creaking"], &["enormous"], &["second-hand"],
    ],
};

#[rustfmt::skip]
pub(super) const MOODS: Table = Table {
    slots: &["mood"],
    rows: &[
        &["patient"], &["stubborn"], &["cheerful"], &["curious"], &["sleepy"], &["proud"],
        &["gentle"], &["nervous"], &["clever"], &["quiet"], &["polite"], &["absent-minded"],
    ],
};

/// Who gives advice, at first sight and from then on.
#[rustfmt::skip]
pub(super) const HELPERS: Table = Table {
    slots: &["someone", "helper"],
    rows: &[
        &["a toad in a yellow raincoat", "the toad"],
        &["a very small witch", "the witch"],
        &["a snail with a suitcase", "the snail"],
        &["the oldest crow in the county", "the crow"],
        &["a tinker with a squeaking cart", "the tinker"],
        &["a whale who had come in with the tide", "the whale"],
        &["a ghost who was looking for his hat", "the ghost"],
        &["a pedlar in seven coats", "the pedlar"],
        &["a lady who was mostly fog", "the lady"],
        &["a goat with reading glasses", "the goat"],
        &["a lighthouse keeper without a lighthouse", "the keeper"],
        &["a moth in a velvet jacket", "the moth"],
    ],
};

/// Gifts: what to do with them, what never to do, and how somebody does it after all.
#[rustfmt::skip]
pub(super) const GIFTS: Table = Table {
    slots: &["gift", "use", "rule", "breach"],
    rows: &[
        &["brass bell", "ring it once", "never ring it twice",
          "{n} rang the bell twice, just to hear it again."],
        &["green lantern", "light it at dusk", "never let it burn while you sleep",
          "One night {n} fell asleep beside the burning lantern."],
        &["iron key", "turn it in any lock", "never lend it to a cousin",
          "A cousin came to visit, and {n} lent him the key."],
        &["silver spoon", "stir your tea with it", "never stir to the left",
          "{n}, who was thinking of lunch, stirred to the left."],
        &["paper box", "hold it to your ear", "never open it",
          "{n} opened the box, only a little."],
        &["tin whistle", "blow it at high tide", "never blow it indoors",
          "It was raining, and {n} blew the whistle indoors."],
        &["grey coat", "button it up to the top", "never look into its left pocket",
          "{n} looked into the left pocket. There was a smaller coat in it."],
        &["black seed", "plant it under your window", "never water it on a Monday",
          "On Monday {n} watered the seed, because it looked thirsty."],
        &["hand mirror", "breathe on it", "never show it to a goose",
          "A goose looked over {his} shoulder into the mirror."],
        &["red thread", "tie it round your wrist", "never tie a second knot",
          "The thread was loose, and {n} tied a second knot."],
        &["glass marble", "hold it up to the light", "never drop it into water",
          "While {n} washed the dishes, the marble fell into the sink."],
        &["folded map", "follow it with one finger", "never fold it the other way",
          "{n} folded the map the other way, as everybody does in the end."],
    ],
};

/// Wishes: why, how it fails, how it comes true, and what it is like then.
#[rustfmt::skip]
pub(super) const WISHES: Table = Table {
    slots: &["wish", "reason", "attempt", "granted", "price"],
    rows: &[
        &["to fly",
          "From above, {she} thought, the whole town must fit into a pocket.",
          "{n} jumped off a roof with two umbrellas and landed in a plum cake.",
          "That night {n} rose over the chimneys, slowly, like a good idea.",
          "But it was cold up there, and there was nobody to say good evening to."],
        &["to be tall",
          "All the good jam stood on the top shelf.",
          "{n} slept in a very long bed for a week and woke up the same.",
          "By morning {n} could look over the church and into next Thursday.",
          "But there was not one chair left in town that would have {her}."],
        &["to be brave",
          "{^she} was afraid of the dark, of geese, and of the word suddenly.",
          "{n} stood in the cellar for a minute and counted to sixty very fast.",
          "That evening {n} walked through the north wood at midnight, whistling.",
          "But when nothing was frightening, nothing was cosy either."],
        &["to sing",
          "Every bird could do it before breakfast, and without a lesson.",
          "{n} sang at the market, and the milk turned.",
          "{n} opened {his} mouth, and the fishing boats came home to listen.",
          "But now everybody wanted a song, and nobody asked how {she} was."],
        &["to be invisible",
          "People kept asking {her} to carry things.",
          "{n} hid under a tablecloth and was laid for dinner.",
          "By noon {n} was as clear as water, and even the dog walked through {her}.",
          "But at the tea house nobody brought {her} a cup."],
        &["to talk to the moon",
          "It looked, {she} thought, as if it knew something.",
          "{n} shouted from the hill until the dogs complained.",
          "\"Good evening,\" said the moon, and came a little lower.",
          "But the moon talked about nothing but tides, and it talked all night."],
        &["to stop time",
          "Sundays were much too short.",
          "{n} hid every clock in town under {his} bed and could not sleep for the ticking.",
          "The gulls hung still in the air, and a dropped cup waited above the floor.",
          "But the soup would not get warm, and nobody laughed at the end of a joke."],
        &["to own the sea",
          "It was the largest thing {she} had ever seen, and nobody was using it.",
          "{n} carried the sea home in a bucket, where it was only water.",
          "In the morning the sea lay at {his} door, with all its ships.",
          "But it was damp, and captains knocked at every hour to ask the way."],
        &["to know everything",
          "{^she} was tired of saying perhaps.",
          "{n} read the dictionary as far as marmalade and then was hungry.",
          "All at once {n} knew the name of every fish and the end of every book.",
          "But no story could surprise {her} now, not even this one."],
        &["to be important",
          "Important people, {she} had noticed, never wait for the ferry.",
          "{n} wore a paper crown for a day, and it rained.",
          "On Friday the mayor bowed and gave {her} the keys of the town.",
          "But from then on {she} signed papers about drains, from morning till night."],
        &["to be young again",
          "{^his} knees had begun to creak like a stair.",
          "{n} rolled down the hill as children do and was found by the doctor.",
          "The next day {n} was six years old and had a pocket full of string.",
          "But {she} had to be in bed by seven, and nobody let {her} near the stove."],
        &["to be alone",
          "There was always somebody with a question.",
          "{n} moved into a barrel, and a family of mice moved in as well.",
          "When {she} woke up, the town was empty, and every door stood open.",
          "But there was no one to tell how nice the quiet was."],
        &["to win at cards",
          "{^she} had lost to everyone, and twice to the cat.",
          "{n} practised against a mirror, and the mirror cheated.",
          "From then on {n} was dealt four kings, even when there were only three in the pack.",
          "But soon nobody would play with {her}, not even the cat."],
        &["to see tomorrow",
          "{^she} did not like surprises before noon.",
          "{n} stayed up until midnight to catch it, and it was only today again.",
          "In the cup of tea {she} saw tomorrow, quite small, with all its weather.",
          "But then {she} had to live through everything twice."],
        &["to be rich",
          "There was a sledge in a window that {she} visited every day.",
          "{n} planted a coin and watered it until the neighbours talked.",
          "The next morning there was gold in the teapot, gold in the shoes and gold in the bread.",
          "But gold makes a poor sandwich, and all {his} friends had become cousins."],
    ],
};

/// What can go wrong for everybody: what is missing, what that does, and who has it.
#[rustfmt::skip]
pub(super) const TROUBLES: Table = Table {
    slots: &["missing", "effect", "stranger", "thief", "excuse", "remedy"],
    rows: &[
        &["the moon", "The tide did not know whether to come or go.",
          "a heron", "the heron", "It fell into my pond, and I thought it was a fish",
          "They fished it out with a net and dried it with a towel."],
        &["the wind", "The windmill stood still, and all the kites lay down.",
          "a baker", "the baker", "I only wanted to cool a pie",
          "They opened the oven, and it blew out with a smell of apples."],
        &["the colour blue", "The sea looked like soup, and so did the sky.",
          "a painter", "the painter", "I needed it for a very large picture of nothing",
          "They hung the picture over the harbour, and it dripped back where it belonged."],
        &["the church bell", "Nobody knew when it was noon, so nobody had lunch.",
          "a flock of sheep", "the sheep", "We lost our own, and this one is louder",
          "They gave the sheep a spoon and a saucepan, which was louder still."],
        &["the last page of every book", "People stood at the library and cried before the end.",
          "a very old mouse", "the mouse", "I cannot bear it when things are over",
          "They read her a story that had no end, and she gave the pages back."],
        &["the way to the station", "Travellers went round the square until they were dizzy.",
          "two children", "the children", "We rolled it up to play at being snails",
          "They unrolled it carefully and put a stone on each end."],
        &["the mayor's shadow", "The mayor felt thin and would not go out in the sun.",
          "a cat", "the cat", "It was lying about in the street, and it was warm",
          "They sewed it on again with black thread, a little crooked."],
        &["every letter O", "The baker sold buns and rlls, and the dg did not come when called.",
          "a goose", "the goose", "I thought they were eggs",
          "They waited until she stood up, and then they were very quick."],
        &["the smell of bread", "People woke up late and did not know why they were sad.",
          "an old sailor", "the sailor", "I only wanted to take a little of it to sea",
          "They opened his trunk, and the whole street had breakfast twice."],
        &["the number seven", "There was nothing between six and eight, and trains fell into it.",
          "a magician", "the magician", "I needed something nobody would miss",
          "They traded it for a nine that stood upside down."],
        &["Wednesday", "After Tuesday everybody fell straight into Thursday and bruised a knee.",
          "a tired clerk", "the clerk", "I had so much left to do that I put it in a drawer",
          "They helped him until evening, and then he let it out."],
    ],
};

/// Contests: what in, and how the two go about it.
#[rustfmt::skip]
pub(super) const CONTESTS: Table = Table {
    slots: &["skill", "first", "second"],
    rows: &[
        &["be silent the longest", "{n} thought of snow", "{n2} tied a scarf round {his2} mouth"],
        &["tell the biggest lie", "{n} said that the sea was a puddle",
          "{n2} said that {she2} had never told a lie"],
        &["bake the lightest cake", "{n} beat the eggs for an hour",
          "{n2} filled {his2} cake with wind"],
        &["catch the largest fish", "{n} rowed out beyond the lighthouse",
          "{n2} described one that had got away"],
        &["walk the slowest", "{n} stopped to read every stone",
          "{n2} fell asleep before the start"],
        &["build the tallest tower", "{n} piled up every chair in town",
          "{n2} stood on the hill and held up one brick"],
        &["sing the saddest song", "{n} sang about a lost glove",
          "{n2} sang the price list of the bakery"],
        &["grow the finest beard", "{n} waited in front of the mirror",
          "{n2} borrowed the tail of a squirrel"],
        &["wait the longest", "{n} brought a book and a blanket",
          "{n2} had not noticed that it had begun"],
        &["throw a hat the farthest", "{n} swung it three times round {his} head",
          "{n2} put a pigeon into {his2} own"],
        &["draw the best circle", "{n} walked once around the pond with a stick",
          "{n2} left the paper empty and called it the inside"],
    ],
};

/// Questions, three answers, and one that will do.
#[rustfmt::skip]
pub(super) const QUESTIONS: Table = Table {
    slots: &["question", "answer1", "answer2", "answer3", "reply"],
    rows: &[
        &["why the sea is salty", "because the fish cry when they are out of jokes",
          "because the river has no manners", "because a cook fell in, long ago, with his pot",
          "so that we can tell it from the sky"],
        &["where the wind goes to sleep", "in the trees, which is why they whisper",
          "in the keyholes of large houses", "under the bridge, with its boots on",
          "wherever it stops asking"],
        &["why cats look at nothing", "because nothing looks back at them",
          "because they are counting", "because they see the day after tomorrow",
          "because somebody has to"],
        &["what the moon is for", "for finding your slippers", "for the owls, who pay for it",
          "for showing the sea which way is up", "for walking home with somebody"],
        &["how long forever is", "as long as a sermon", "as long as it takes a snail to say no",
          "one day longer than you have time for", "it depends who is waiting with you"],
        &["where lost gloves go", "to the left hands of pirates", "into the walls, for the mice",
          "to an island, where they wave at ships", "to where the other one is not"],
        &["why the night is dark", "because the day has used everything up",
          "because the stars are shy", "because the lamplighter has a cold",
          "so that a small lamp is enough"],
        &["why old doors creak", "because they remember being trees",
          "because nobody asks how they are", "because they are telling you to wipe your feet",
          "because they want to be opened once more"],
        &["who winds up the birds", "the sexton, with a very small key",
          "the worms, out of pure kindness", "nobody, they run on gossip",
          "the morning does, and it is always early"],
        &["what is behind the horizon", "another one, and behind it a shop",
          "the people who ask the same about us", "a wall, with a door, which is locked",
          "whatever you bring along"],
        &["why soup is round", "because the corners are eaten in the kitchen",
          "because spoons are shy of edges", "because the first one was cooked in a hat",
          "so that everybody sits in the front row"],
    ],
};

/// Who comes with a storm, what they leave behind, and what becomes of it.
#[rustfmt::skip]
pub(super) const GUESTS: Table = Table {
    slots: &["guest", "visitor", "coin", "later"],
    rows: &[
        &["a captain without a ship", "the captain", "a bottle with a very small storm in it",
          "On dry days {n} opens it a little, for the garden."],
        &["a tall person made of snow", "the snow person", "a puddle that never dried",
          "Every winter it freezes, and the whole street goes skating on it."],
        &["three brothers under one hat", "the brothers", "a hat that was always a little warm",
          "Whoever wears it thinks of two good ideas and forgets the third."],
        &["a king who did not want to be one", "the king", "a crown with a hole for the rain",
          "It makes an excellent cake tin."],
        &["the north wind, who had a cold", "the north wind", "a sneeze in a jar",
          "When the washing will not dry, {n} takes off the lid."],
        &["a lady with a clock for a heart", "the lady", "one hour, wrapped in brown paper",
          "{n} is saving it for a Sunday."],
        &["an old dragon on his way south", "the dragon", "one warm scale, as large as a plate",
          "The kettle stands on it to this day and has never gone cold."],
        &["a girl who was following a star", "the girl", "a map on which the way was not yet drawn",
          "Every evening there is one more road on it."],
        &["a knight who had lost his war", "the knight", "a sword that only cuts cheese",
          "There has never been a better sword at breakfast."],
        &["a postman from another town", "the postman", "a letter that nobody had written yet",
          "Now and then {n} looks inside, and it has got a little longer."],
    ],
};

/// How something small grows from mouth to mouth.
#[rustfmt::skip]
pub(super) const RUMOURS: Table = Table {
    slots: &["seen", "larger", "largest", "truth"],
    rows: &[
        &["a mouse with a hat", "a rat with a helmet", "an army with drums", "a thimble"],
        &["a little smoke", "a house on fire", "a dragon at breakfast", "somebody's toast"],
        &["a wet footprint", "a creature from the sea", "the sea itself, on two legs",
          "a boy who had missed the bus"],
        &["a light where no light should be", "a ghost with a lamp", "a ball for a hundred ghosts",
          "a glow-worm reading"],
        &["a hole in the cheese", "a thief with a spoon", "a tunnel to the royal bank",
          "a cheese of the usual kind"],
        &["a humming in the well", "a choir under the ground", "giants, practising",
          "a bee who had come for a drink"],
        &["a shadow on the church", "a bird as large as a boat", "the end of the week, come early",
          "the weathercock, stretching"],
        &["a shoe in the river", "a drowned giant", "the navy of another country",
          "a duck with a new boat"],
        &["three green feathers", "a parrot who knows secrets", "a spy with a parrot on each arm",
          "an old hat in the wind"],
    ],
};
