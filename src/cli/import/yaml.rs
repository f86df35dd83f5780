//! Parses YAML into a tree that knows the position of each part: one document, with aliases resolved and nothing else
//! interpreted.

use std::collections::BTreeMap;
use std::ops::Range;

use saphyr_parser::{Event, Parser, ScanError, Span};

use super::flaw::Flaw;

/// Deepest nesting.
const MAX_DEPTH: usize = 64;
/// Most nodes, including those that aliases repeat.
const MAX_NODES: usize = 500_000;

/// A node of a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Node {
    /// Its range in characters.
    pub(super) at: Range<usize>,
    pub(super) kind: Kind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A text, and whether it was written without quotes.
    Scalar(String, bool),
    List(Vec<Node>),
    Map(Vec<(Node, Node)>),
}

/// Parses a text with one document.
pub(super) fn parse(text: &str) -> Result<Node, Flaw> {
    let mut reader = Reader { parser: Parser::new_from_str(text), anchors: BTreeMap::new(), left: MAX_NODES };
    loop {
        match reader.next()? {
            (Event::StreamStart | Event::DocumentStart(_), _) => {}
            (Event::StreamEnd, span) => return Err(Flaw::new(&range(span), "there is nothing in this file")),
            first => {
                let node = reader.node(first, 0)?;
                return reader.finish(node);
            }
        }
    }
}

struct Reader<'t> {
    parser: Parser<'t, saphyr_parser::StrInput<'t>>,
    anchors: BTreeMap<usize, Node>,
    left: usize,
}

impl<'t> Reader<'t> {
    fn next(&mut self) -> Result<(Event<'t>, Span), Flaw> {
        let at_end = || Flaw::new(&(0..0), "it ends too early");
        self.parser.next().ok_or_else(at_end)?.map_err(|error| broken(&error))
    }

    fn finish(&mut self, node: Node) -> Result<Node, Flaw> {
        loop {
            match self.next()? {
                (Event::StreamEnd, _) => return Ok(node),
                (Event::DocumentStart(_), span) => {
                    return Err(Flaw::new(&range(span), "a second document: a file holds one domain"));
                }
                _ => {}
            }
        }
    }

    fn node(&mut self, (event, span): (Event<'t>, Span), depth: usize) -> Result<Node, Flaw> {
        let mut at = range(span);
        if depth > MAX_DEPTH {
            return Err(Flaw::new(&at, format!("nested more than {MAX_DEPTH} levels deep")));
        }
        self.spend(1, &at)?;
        let (kind, anchor) = match event {
            Event::Alias(anchor) => {
                let known = self.anchors.get(&anchor).cloned();
                let node = known.ok_or_else(|| Flaw::new(&at, "an alias of something that it is part of"))?;
                self.spend(node.size(), &at)?;
                return Ok(Node { at, kind: node.kind });
            }
            Event::Scalar(text, style, anchor, _) => {
                (Kind::Scalar(text.into_owned(), style == saphyr_parser::ScalarStyle::Plain), anchor)
            }
            Event::SequenceStart(anchor, _) => {
                let mut parts = Vec::new();
                loop {
                    match self.next()? {
                        (Event::SequenceEnd, _) => break (Kind::List(parts), anchor),
                        event => parts.push(self.node(event, depth + 1)?),
                    }
                }
            }
            Event::MappingStart(anchor, _) => {
                let mut pairs: Vec<(Node, Node)> = Vec::new();
                loop {
                    match self.next()? {
                        (Event::MappingEnd, _) => break,
                        event => {
                            let key = self.node(event, depth + 1)?;
                            let value = self.next()?;
                            pairs.push((key, self.node(value, depth + 1)?));
                        }
                    }
                }
                // The parser's mark of a mapping is one character wide or missing, so the position of its first key is
                // used.
                at = pairs.first().map_or(at, |(key, _)| key.at.clone());
                (Kind::Map(pairs), anchor)
            }
            _ => return Err(Flaw::new(&at, "nothing of this kind was expected here")),
        };
        let node = Node { at, kind };
        if anchor > 0 {
            self.anchors.insert(anchor, node.clone());
        }
        Ok(node)
    }

    fn spend(&mut self, count: usize, at: &Range<usize>) -> Result<(), Flaw> {
        let too_many = || Flaw::new(at, format!("more than {MAX_NODES} parts"));
        self.left = self.left.checked_sub(count).ok_or_else(too_many)?;
        Ok(())
    }
}

impl Node {
    fn size(&self) -> usize {
        match &self.kind {
            Kind::Scalar(..) => 1,
            Kind::List(parts) => 1 + parts.iter().map(Self::size).sum::<usize>(),
            Kind::Map(pairs) => 1 + pairs.iter().map(|(key, value)| key.size() + value.size()).sum::<usize>(),
        }
    }

    /// Whether it is null: an empty value, `~` or `null`.
    pub(super) fn is_null(&self) -> bool {
        matches!(&self.kind, Kind::Scalar(text, true) if ["", "~", "null", "Null", "NULL"].contains(&text.as_str()))
    }
}

fn range(span: Span) -> Range<usize> {
    span.start.index()..span.end.index().max(span.start.index())
}

fn broken(error: &ScanError) -> Flaw {
    let at = error.marker().index();
    Flaw::new(&(at..at + 1), format!("no YAML: {}", error.info()))
}
