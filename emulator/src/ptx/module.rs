//! The file's frame: `.version`, `.target`, then variables, functions and debug directives in any order.
//! (PTX ISA, "PTX Module Directives", "Linking Directives".)

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::ast::{Function, Location, Module, Space, Variable};
use super::cursor::Cursor;
use super::lexer::{Token, TokenKind};
use crate::fault::{Code, Fault, Result, shown};

/// The newest `.version` whose meaning is known here.
const NEWEST: (u32, u32) = (9, 0);

/// The parser: its place in the text and what it has gathered.
pub struct Parser<'t> {
    pub cursor: Cursor<'t>,
    pub module: Module,
    pub locations: Locations,
    pub file_numbers: HashSet<u32>,
    /// Where the functions and variables of a name stand in the module.
    functions: HashMap<String, usize>,
    variables: HashMap<String, usize>,
}

/// What the `.loc` directives so far say.
#[derive(Default)]
pub struct Locations {
    /// The one in force.
    pub current: Option<Arc<Location>>,
    /// The last one of this function that has a line, with the length of its chain.
    pub last_line: Option<(Arc<Location>, u32)>,
    /// The last of each file, line and column, with the length of its chain.
    pub latest: HashMap<(u32, u32, u32), (Arc<Location>, u32)>,
}

pub fn parse(text: &str) -> Result<Module> {
    let cursor = Cursor::new(text);
    if cursor.directive() != Some("version") {
        let found = match cursor.token.kind {
            TokenKind::End => "nothing".to_string(),
            _ => format!("\"{}\"", shown(text[cursor.token.start..].lines().next().unwrap_or(""))),
        };
        return Err(Fault::new(Code::InvalidPtx, format!("not PTX: found {found}, expected .version")));
    }
    let mut parser = Parser {
        cursor,
        module: Module::default(),
        locations: Locations::default(),
        file_numbers: HashSet::new(),
        functions: HashMap::new(),
        variables: HashMap::new(),
    };
    parser.version()?;
    parser.target()?;
    while parser.cursor.token.kind != TokenKind::End {
        parser.item()?;
    }
    parser.module.files.sort_unstable();
    Ok(parser.module)
}

impl<'t> Parser<'t> {
    fn version(&mut self) -> Result<()> {
        self.cursor.take();
        let place = self.cursor.token;
        let parts = place.text.split_once('.').filter(|_| place.kind == TokenKind::Number);
        let Some((Ok(major), Ok(minor))) = parts.map(|(major, minor)| (major.parse(), minor.parse())) else {
            return self.cursor.expected("a version such as 9.0");
        };
        self.cursor.take();
        self.module.version = (major, minor);
        if (major, minor) > NEWEST {
            let message = format!("found .version {major}.{minor}, expected at most {}.{}", NEWEST.0, NEWEST.1);
            return self.cursor.fail_as(Code::UnsupportedPtxVersion, place, &message);
        }
        Ok(())
    }

    /// `.target sm_80, debug`
    fn target(&mut self) -> Result<()> {
        if !self.cursor.eat_directive("target") {
            return self.cursor.expected(".target");
        }
        let text = self.cursor.token.text;
        let digits = text.strip_prefix("sm_").unwrap_or("").trim_end_matches(['a', 'f']);
        if digits.is_empty() || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
            return self.cursor.expected("a target such as sm_80");
        }
        self.module.target = self.cursor.name("a target such as sm_80")?.to_string();
        while self.cursor.eat(b',') {
            match self.cursor.token.text {
                "debug" | "texmode_unified" | "texmode_independent" => self.cursor.take(),
                "map_f64_to_f32" => return self.cursor.refuse("map_f64_to_f32"),
                _ => return self.cursor.expected("a platform option such as debug"),
            };
        }
        if self.cursor.eat_directive("address_size") {
            if self.cursor.token.text != "64" {
                return self.cursor.expected("64");
            }
            self.cursor.take();
        }
        Ok(())
    }

    /// One directive outside functions.
    fn item(&mut self) -> Result<()> {
        let mut external = false;
        let begin = self.cursor.token;
        while let Some(linkage @ ("visible" | "extern" | "weak" | "common")) = self.cursor.directive() {
            external |= linkage == "extern";
            self.cursor.take();
        }
        let linked = begin.start != self.cursor.token.start;
        let Some(name) = self.cursor.directive() else { return self.cursor.expected("a directive such as .entry") };
        match name {
            "entry" | "func" => {
                self.cursor.take();
                let function = self.function(name == "entry", begin.line)?;
                self.add_function(begin, function)
            }
            "global" | "const" | "shared" => {
                let space = space(name).expect("named above");
                self.cursor.take();
                for variable in self.variables(space, external)? {
                    self.add_variable(begin, variable)?;
                }
                Ok(())
            }
            _ if linked => self.cursor.expected(".entry, .func, .global, .const or .shared"),
            "pragma" => self.pragma(),
            "file" => self.file(),
            "section" => self.section(),
            "alias" | "texref" | "samplerref" | "surfref" | "tex" | "local" | "reg" | "sreg" | "param" => {
                self.cursor.refuse(&format!(".{name} outside functions"))
            }
            _ => self.cursor.expected("a directive such as .entry"),
        }
    }

    /// `.pragma "nounroll", "…";`: advice to an optimiser.
    pub fn pragma(&mut self) -> Result<()> {
        self.cursor.take();
        self.cursor.quoted("a pragma's text")?;
        while self.cursor.eat(b',') {
            self.cursor.quoted("a pragma's text")?;
        }
        self.cursor.expect(b';')
    }

    /// Keeps one function of each name: the definition where there is one.
    fn add_function(&mut self, place: Token, function: Function) -> Result<()> {
        let functions = &mut self.module.functions;
        match self.functions.get(&function.name) {
            Some(&index) if functions[index].body.is_none() => functions[index] = function,
            Some(_) if function.body.is_none() => {}
            Some(&index) => {
                let (name, first) = (&function.name, functions[index].line);
                return self.cursor.fail(place, &format!("{name} is defined twice, first on line {first}"));
            }
            None => {
                self.functions.insert(function.name.clone(), functions.len());
                functions.push(function);
            }
        }
        Ok(())
    }

    /// Keeps one variable of each name: the definition where there is one.
    fn add_variable(&mut self, place: Token, variable: Variable) -> Result<()> {
        let variables = &mut self.module.variables;
        match self.variables.get(&variable.name) {
            Some(&index) if variables[index].external => variables[index] = variable,
            Some(_) if variable.external => {}
            Some(_) => return self.cursor.fail(place, &format!("{} is defined twice", variable.name)),
            None => {
                self.variables.insert(variable.name.clone(), variables.len());
                variables.push(variable);
            }
        }
        Ok(())
    }
}

/// The state space that a directive names.
pub fn space(directive: &str) -> Option<Space> {
    Some(match directive {
        "global" => Space::Global,
        "const" => Space::Const,
        "shared" => Space::Shared,
        "local" => Space::Local,
        "param" => Space::Param,
        _ => return None,
    })
}
