//! The default training text: little stories, written by a grammar.
//!
//! They are few words in many orders, so that a small model learns to spell, then to write
//! sentences, then to keep a name, a wish and a gift in mind until the end, within minutes.

mod plots;
mod wish;
mod words;

use super::Sources;
use crate::random::{Draws, Key};
use plots::{INTRODUCTION, PLOTS, Plot};
use words::{CHARACTERS, GIFTS, HELPERS, LOOKS, MOODS, PLACES, THINGS, Table};

/// Bytes of [`default_stories`], at least.
const BYTES: usize = 2_000_000;

/// The beats that end a paragraph, besides the last. More paragraphs would be harder to learn: a
/// name at the beginning of a line, without a space, is another token.
const BREAKS: [usize; 2] = [1, 4];

/// Of all stories: another seed would be another corpus.
const SEED: u64 = 1;

/// Little stories without end, each a title and some paragraphs. They are the same on every
/// machine, and a story never changes from one version to the next.
///
/// ```
/// let story = taipan_lm::data::stories().next().unwrap();
/// let (title, text) = story.split_once("\n\n").unwrap();
/// assert!(!title.ends_with('.') && text.ends_with('\n'));
/// ```
pub fn stories() -> impl Iterator<Item = String> {
    (0..).map(|number| Story::new(Key::new(SEED).split(number)).tell())
}

/// Two megabytes of [`stories`]: the default training text.
pub fn default_stories() -> impl Iterator<Item = String> {
    let mut bytes = 0;
    stories().take_while(move |story| {
        let is_wanted = bytes < BYTES;
        bytes += story.len();
        is_wanted
    })
}

impl Sources {
    /// The [`default_stories`], each a document.
    pub fn stories() -> Sources {
        let stories = default_stories().enumerate();
        Sources::texts(stories.map(|(i, story)| (format!("story {i}"), story)))
    }
}

/// A story while it is told. Its templates consist of text and
///
/// - `{n}`, the value of a slot, which is a template itself; `{a n}` with its article, `{^n}` with
///   a capital, `{^a n}` with both;
/// - `[one|another]`, one of several templates.
struct Story {
    draws: Draws,
    slots: Vec<(String, &'static str)>,
}

impl Story {
    fn new(key: Key) -> Story {
        Story { draws: Draws::new(key), slots: Vec::new() }
    }

    fn tell(mut self) -> String {
        let plot = &PLOTS[self.draws.below(PLOTS.len())];
        self.bind(plot);
        let mut text = String::new();
        self.add_one_of(plot.titles, &mut text);
        text.push_str("\n\n");
        for (i, beat) in [INTRODUCTION].iter().chain(plot.beats).enumerate() {
            self.add_one_of(beat, &mut text);
            let is_last = i == plot.beats.len();
            text.push(if is_last || BREAKS.contains(&i) { '\n' } else { ' ' });
        }
        text
    }

    /// Give every slot its value. The theme decides on all but the surroundings: a small model can
    /// keep a tale in mind that it knows, long before it learns to remember any word.
    fn bind(&mut self, plot: &Plot) {
        let theme = self.draws.below(plot.themes.rows.len());
        self.bind_row(plot.themes, theme, "");
        for (i, number) in ["", "2", "3"].into_iter().enumerate() {
            self.bind_row(&CHARACTERS, plot.first + theme + 7 * i, number);
        }
        for (i, number) in ["", "2", "3", "4"].into_iter().enumerate() {
            self.bind_row(&THINGS, theme + i, number);
        }
        self.bind_row(&HELPERS, theme, "");
        self.bind_row(&GIFTS, theme, "");
        let place = self.draws.below(PLACES.rows.len());
        self.bind_row(&PLACES, place, "");
        let further = 1 + self.draws.below(PLACES.rows.len() - 1);
        self.bind_row(&PLACES, place + further, "2");
        for table in [&LOOKS, &MOODS] {
            let row = self.draws.below(table.rows.len());
            self.bind_row(table, row, "");
        }
    }

    /// Give the slots of a table the values of a row, again from the first after the last; `number`
    /// is at the end of their names.
    fn bind_row(&mut self, table: &'static Table, row: usize, number: &str) {
        let row = table.rows[row % table.rows.len()];
        for (slot, value) in table.slots.iter().zip(row) {
            self.slots.push((format!("{slot}{number}"), value));
        }
    }

    fn add_one_of(&mut self, templates: &[&str], text: &mut String) {
        let template = templates[self.draws.below(templates.len())];
        self.add(template, text);
    }

    fn add(&mut self, template: &str, text: &mut String) {
        let mut rest = template;
        while let Some(at) = rest.find(['{', '[']) {
            text.push_str(&rest[..at]);
            let (inside, behind) = bracketed(&rest[at..]);
            match rest.as_bytes()[at] {
                b'{' => self.add_slot(inside, text),
                _ => self.add_one_of(&inside.split('|').collect::<Vec<_>>(), text),
            }
            rest = behind;
        }
        text.push_str(rest);
    }

    fn add_slot(&mut self, name: &str, text: &mut String) {
        let (name, is_capital) = name.strip_prefix('^').map_or((name, false), |name| (name, true));
        let (name, has_article) =
            name.strip_prefix("a ").map_or((name, false), |name| (name, true));
        let found = self.slots.iter().find(|(slot, _)| slot == name);
        let (_, template) = *found.unwrap_or_else(|| panic!("the slot {name} is bound"));
        let mut value = String::new();
        self.add(template, &mut value);
        if has_article {
            let article = if value.starts_with(['a', 'e', 'i', 'o', 'u']) { "an" } else { "a" };
            value = format!("{article} {value}");
        }
        let first = if is_capital { 1 } else { 0 };
        text.push_str(&value[..first].to_ascii_uppercase());
        text.push_str(&value[first..]);
    }
}

/// What is between the bracket that a template begins with and the next closing one, and what is
/// behind that. Choices contain slots but no choices.
fn bracketed(template: &str) -> (&str, &str) {
    let close = if template.starts_with('{') { '}' } else { ']' };
    template[1..].split_once(close).expect("brackets are closed")
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::checksum;

    /// Published numbers are of this text.
    #[test]
    fn the_text_never_changes() {
        let (mut text, mut count) = (String::new(), 0);
        let sources = Sources::stories();
        for document in sources.documents() {
            for chunk in sources.chunks(&document).unwrap() {
                text += &chunk.unwrap();
            }
            count += 1;
        }
        assert_eq!((count, text.len()), (2524, 2000347));
        assert_eq!(checksum(text.as_bytes()), "ca64e4f6eb652602a940964473970395");
    }

    #[test]
    fn every_slot_of_every_template_is_in_the_cast() {
        for plot in PLOTS {
            let mut story = Story::new(Key::new(0));
            story.bind(plot);
            let templates =
                plot.titles.iter().chain(INTRODUCTION).chain(plot.beats.iter().copied().flatten());
            let values = [plot.themes, &GIFTS].into_iter().flat_map(|table| table.rows);
            for template in templates.chain(values.copied().flatten()) {
                let opened = template.matches(['{', '[']).count();
                assert_eq!(opened, template.matches(['}', ']']).count(), "{template}");
                for slot in template.split('{').skip(1) {
                    let name = slot.split_once('}').unwrap().0;
                    let name = name.trim_start_matches('^').trim_start_matches("a ");
                    assert!(story.slots.iter().any(|(slot, _)| slot == name), "{template}: {name}");
                }
            }
        }
        for table in [&CHARACTERS, &THINGS, &HELPERS, &GIFTS, &PLACES, &LOOKS, &MOODS]
            .into_iter()
            .chain(PLOTS.iter().map(|plot| plot.themes))
        {
            assert!(table.rows.iter().all(|row| row.len() == table.slots.len()));
        }
    }

    #[test]
    fn stories_are_whole_sentences_and_no_two_are_the_same() {
        let stories: Vec<String> = stories().take(2000).collect();
        for story in &stories {
            let (title, text) = story.split_once("\n\n").unwrap();
            assert!(title.starts_with(char::is_uppercase), "{title}");
            for line in text.lines() {
                let line = line.trim_start_matches('"');
                assert!(line.starts_with(char::is_uppercase), "{line}");
                assert!(line.ends_with(['.', '!', '?', '"']), "{line}");
                assert!(
                    !line.contains("  ") && !line.contains(['{', '}', '[', ']', '|']),
                    "{line}"
                );
                assert!(story.matches('"').count() % 2 == 0, "{story}");
            }
        }
        assert_eq!(stories.iter().collect::<HashSet<_>>().len(), stories.len());
    }
}
