//! YAML nodes as fields with a path. Errors are lines that name file, line, field and cure.
//! Does not know what the fields mean.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use saphyr::{MarkedYaml, Scalar, YamlData};

/// A value in the file.
#[derive(Debug, Clone)]
pub struct Node<'t> {
    yaml: &'t MarkedYaml<'t>,
    /// As `agents.web-1[0]`; empty for the whole document.
    path: String,
}

impl<'t> Node<'t> {
    pub fn root(yaml: &'t MarkedYaml<'t>) -> Node<'t> {
        Node { yaml, path: String::new() }
    }

    pub fn is_list(&self) -> bool {
        matches!(self.yaml.data, YamlData::Sequence(_))
    }

    fn field(&self, name: &str, yaml: &'t MarkedYaml<'t>) -> Node<'t> {
        let dot = if self.path.is_empty() { "" } else { "." };
        Node { yaml, path: format!("{}{dot}{name}", self.path) }
    }

    fn element(&self, index: usize, yaml: &'t MarkedYaml<'t>) -> Node<'t> {
        Node { yaml, path: format!("{}[{index}]", self.path) }
    }
}

/// Reads nodes; collects what is wrong with them.
pub struct Reader<'f> {
    file: &'f str,
    problems: Vec<(usize, String)>,
}

/// The fields of a mapping, while they are taken out by name.
pub struct Fields<'r, 'f, 't> {
    reader: &'r mut Reader<'f>,
    mapping: Node<'t>,
    left: BTreeMap<String, Node<'t>>,
    known: Vec<&'static str>,
}

impl<'f> Reader<'f> {
    pub fn new(file: &'f str) -> Reader<'f> {
        Reader { file, problems: Vec::new() }
    }

    /// A path that the file names: one that is relative is beside the file.
    pub fn beside(&self, path: &str) -> PathBuf {
        Path::new(self.file).parent().unwrap_or(Path::new("")).join(path)
    }

    /// Enters a problem with a node.
    pub fn refuse(&mut self, node: &Node, problem: &str) {
        let (line, file, path) = (node.yaml.span.start.line(), self.file, &node.path);
        let space = if path.is_empty() { "" } else { ": " };
        self.problems.push((line, format!("{file}:{line}{space}{path}: {problem}")));
    }

    /// All problems, in the order of lines.
    pub fn into_problems(mut self) -> Vec<String> {
        self.problems.sort_by_key(|(line, _)| *line);
        self.problems.into_iter().map(|(_, problem)| problem).collect()
    }

    /// The fields of a mapping; None for another node, which is refused.
    pub fn fields<'r, 't>(&'r mut self, node: &Node<'t>) -> Option<Fields<'r, 'f, 't>> {
        if !matches!(node.yaml.data, YamlData::Mapping(_)) {
            self.refuse(node, "is no mapping: write `field: value` lines");
            return None;
        }
        let left = self.entries(node).into_iter().collect();
        Some(Fields { reader: self, mapping: node.clone(), left, known: Vec::new() })
    }

    /// Names and values of a mapping.
    pub fn entries<'t>(&mut self, node: &Node<'t>) -> Vec<(String, Node<'t>)> {
        let YamlData::Mapping(mapping) = &node.yaml.data else {
            self.refuse(node, "is no mapping: write `name: value` lines");
            return Vec::new();
        };
        let mut entries = Vec::new();
        for (key, value) in mapping {
            match &key.data {
                YamlData::Value(Scalar::String(name)) => {
                    entries.push((name.to_string(), node.field(name, value)));
                }
                _ => self.refuse(
                    &Node { yaml: key, ..node.clone() },
                    "has a name that is no text: put it into quotes",
                ),
            }
        }
        entries
    }

    /// The elements of a list.
    pub fn list<'t>(&mut self, node: &Node<'t>) -> Vec<Node<'t>> {
        let YamlData::Sequence(elements) = &node.yaml.data else {
            self.refuse(node, "is no list: write [a, b], or lines that begin with `- `");
            return Vec::new();
        };
        let elements = elements.iter().enumerate();
        elements.map(|(index, yaml)| node.element(index, yaml)).collect()
    }

    /// A text that is not empty.
    pub fn text(&mut self, node: &Node) -> Option<String> {
        match &node.yaml.data {
            YamlData::Value(Scalar::String(text)) if !text.is_empty() => Some(text.to_string()),
            _ => {
                self.refuse(node, "is no text: write one, in quotes if it looks like a number");
                None
            }
        }
    }

    /// A port: a number.
    pub fn port(&mut self, node: &Node) -> Option<u16> {
        let port = match node.yaml.data {
            YamlData::Value(Scalar::Integer(number)) => u16::try_from(number).ok(),
            _ => None,
        };
        let port = port.filter(|port| *port != 0);
        if port.is_none() {
            self.refuse(node, "is no port: write a number from 1 to 65535, without quotes");
        }
        port
    }

    /// A text that means something: `what`, for example `example`.
    pub fn parsed<T: FromStr<Err: fmt::Display>>(
        &mut self,
        node: &Node,
        what: &str,
        example: &str,
    ) -> Option<T> {
        let text = self.text(node)?;
        let parsed = text.parse();
        if let Err(error) = &parsed {
            let problem = format!("{text:?} is not {what} ({error}): write {example}");
            self.refuse(node, &problem);
        }
        parsed.ok()
    }
}

impl<'t> Fields<'_, '_, 't> {
    /// A field that may be missing.
    pub fn optional(&mut self, name: &'static str) -> Option<Node<'t>> {
        self.known.push(name);
        self.left.remove(name)
    }

    /// A field that must be there; what it is, for the message.
    pub fn required(&mut self, name: &'static str, what: &str) -> Option<Node<'t>> {
        let node = self.optional(name);
        if node.is_none() {
            self.reader.refuse(&self.mapping, &format!("`{name}` is missing: {what}"));
        }
        node
    }

    /// Refuses what was not taken out.
    pub fn finish(mut self) {
        self.known.sort_unstable();
        let known = self.known.join(", ");
        for node in self.left.values() {
            self.reader.refuse(node, &format!("there is no such field; there are: {known}"));
        }
    }
}
