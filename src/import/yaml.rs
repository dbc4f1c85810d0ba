//! Parses YAML, and so JSON, to a tree with line numbers. Depth and size are bounded. Aliases are refused, because a
//! few of them can expand to more than the memory holds.

use std::path::Path;
use std::rc::Rc;

use saphyr_parser::{Event, Parser, StrInput};

use crate::import::error::{ImportError, Result};
use crate::import::input::Input;
use crate::import::syntax::shorten;

const DEPTH_MAX: usize = 40;
const NODES_MAX: usize = 500_000;

/// A value of a YAML document. Scalars of all types are kept as text.
#[derive(Clone, Debug)]
pub enum YamlValue {
    Text(String),
    List(Vec<YamlNode>),
    Map(Vec<(String, YamlNode)>),
}

/// A value with the line where it starts.
#[derive(Clone, Debug)]
pub struct YamlNode {
    pub value: YamlValue,
    pub line: usize,
    pub file: Rc<str>,
}

impl YamlNode {
    /// Returns the value of a key if this node is a map with that key.
    pub fn get(&self, key: &str) -> Option<&YamlNode> {
        match &self.value {
            YamlValue::Map(entries) => entries.iter().find(|(name, _)| name == key).map(|(_, node)| node),
            _ => None,
        }
    }

    /// Follows a path of keys from this node.
    pub fn at(&self, path: &[&str]) -> Option<&YamlNode> {
        path.iter().try_fold(self, |node, key| node.get(key))
    }

    /// Returns the text of a scalar.
    pub fn text(&self) -> Option<&str> {
        match &self.value {
            YamlValue::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Returns the text at a path of keys.
    pub fn text_at(&self, path: &[&str]) -> Option<&str> {
        self.at(path)?.text()
    }

    /// Returns the items of a list, or none.
    pub fn list(&self) -> &[YamlNode] {
        match &self.value {
            YamlValue::List(items) => items,
            _ => &[],
        }
    }

    /// Returns the entries of a map, or none.
    pub fn entries(&self) -> &[(String, YamlNode)] {
        match &self.value {
            YamlValue::Map(entries) => entries,
            _ => &[],
        }
    }
}

/// Parses the documents of a file. The items of a `kind: List` become documents of their own.
pub fn parse_documents(input: &mut Input, path: &Path) -> Result<Vec<YamlNode>> {
    let text = input.read_file(path)?;
    parse_text(&text, path.display().to_string().into())
}

/// Parses the documents of a text. Errors name it `file`.
pub fn parse_text(text: &str, file: Rc<str>) -> Result<Vec<YamlNode>> {
    let mut tree = YamlTree { parser: Parser::new_from_str(text), file: file.clone(), nodes: 0 };
    let mut documents = Vec::new();
    loop {
        let (event, line) = tree.read_event()?;
        match event {
            Event::StreamEnd => break,
            Event::DocumentStart(_) => {
                let (event, line) = tree.read_event()?;
                let document = tree.read_node(event, line, 0)?;
                match document
                    .get("items")
                    .filter(|_| document.text_at(&["kind"]).is_some_and(|kind| kind.ends_with("List")))
                {
                    Some(items) => documents.extend(items.list().iter().cloned()),
                    None => documents.push(document),
                }
            }
            Event::StreamStart | Event::DocumentEnd | Event::Nothing => {}
            _ => return Err(ImportError::new(&file, line, "a document starts unexpectedly")),
        }
    }
    Ok(documents)
}

struct YamlTree<'t> {
    parser: Parser<'t, StrInput<'t>>,
    file: Rc<str>,
    nodes: usize,
}

impl<'t> YamlTree<'t> {
    fn read_event(&mut self) -> Result<(Event<'t>, usize)> {
        match self.parser.next_event() {
            Some(Ok((event, span))) => Ok((event, span.start.line())),
            Some(Err(error)) => {
                Err(ImportError::new(&self.file, error.marker().line(), format!("not valid YAML: {}", error.info())))
            }
            None => Ok((Event::StreamEnd, 0)),
        }
    }

    fn read_node(&mut self, event: Event<'t>, line: usize, depth: usize) -> Result<YamlNode> {
        let fault = |message: String| Err(ImportError::new(&self.file, line, message));
        self.nodes += 1;
        if depth > DEPTH_MAX {
            return fault(format!("values are nested more than {DEPTH_MAX} deep"));
        }
        if self.nodes > NODES_MAX {
            return fault(format!("there are more than {NODES_MAX} values; import fewer files at once"));
        }
        let value = match event {
            Event::Scalar(text, ..) => YamlValue::Text(text.into_owned()),
            Event::SequenceStart(..) => {
                let mut items = Vec::new();
                loop {
                    match self.read_event()? {
                        (Event::SequenceEnd, _) => break YamlValue::List(items),
                        (event, line) => items.push(self.read_node(event, line, depth + 1)?),
                    }
                }
            }
            Event::MappingStart(..) => {
                let mut entries = Vec::new();
                let mut names = std::collections::HashSet::new();
                loop {
                    let key = match self.read_event()? {
                        (Event::MappingEnd, _) => break YamlValue::Map(entries),
                        (Event::Scalar(key, ..), line) => {
                            if !names.insert(key.to_string()) {
                                return Err(ImportError::new(
                                    &self.file,
                                    line,
                                    format!("the key `{}` appears twice", shorten(&key)),
                                ));
                            }
                            key.into_owned()
                        }
                        (_, line) => return Err(ImportError::new(&self.file, line, "a key must be text")),
                    };
                    let (event, line) = self.read_event()?;
                    entries.push((key, self.read_node(event, line, depth + 1)?));
                }
            }
            Event::Alias(_) => return fault("aliases (`*name`) are not supported; write the value out".to_owned()),
            _ => return fault("the document ends unexpectedly".to_owned()),
        };
        Ok(YamlNode { value, line, file: self.file.clone() })
    }
}
