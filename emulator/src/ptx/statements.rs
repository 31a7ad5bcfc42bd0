//! A function's body: declarations, labels, scopes and instructions.
//! (PTX ISA, "Statements", "Control Flow Directives".)

use super::ast::{Guard, Instruction, Statement};
use super::lexer::TokenKind;
use super::module::{Parser, space};
use super::variables::MAX_REGISTERS;
use crate::fault::{Result, shown};

/// Scopes inside scopes.
const MAX_DEPTH: u32 = 64;

impl<'t> Parser<'t> {
    /// `{ … }`
    pub fn body(&mut self) -> Result<Vec<Statement>> {
        self.scope(0)
    }

    fn scope(&mut self, depth: u32) -> Result<Vec<Statement>> {
        if depth == MAX_DEPTH {
            return self.cursor.fail(self.cursor.token, &format!("found scopes more than {MAX_DEPTH} deep"));
        }
        self.cursor.expect(b'{')?;
        let mut statements = Vec::new();
        while !self.cursor.at(b'}') {
            match self.cursor.token.kind {
                TokenKind::Mark(b'{') => statements.push(Statement::Scope(self.scope(depth + 1)?)),
                TokenKind::Directive => self.declaration(&mut statements)?,
                TokenKind::Word if self.cursor.ahead.kind == TokenKind::Mark(b':') => self.label(&mut statements)?,
                TokenKind::Word | TokenKind::Mark(b'@') => statements.push(Statement::Instruction(self.instruction()?)),
                _ => return self.cursor.expected("an instruction, a declaration, a label or \"}\""),
            }
        }
        self.cursor.take();
        Ok(statements)
    }

    fn declaration(&mut self, statements: &mut Vec<Statement>) -> Result<()> {
        let name = self.cursor.token.text;
        if let Some(space) = space(name) {
            self.cursor.take();
            statements.extend(self.variables(space, false)?.into_iter().map(Statement::Variable));
            return Ok(());
        }
        match name {
            "reg" => self.registers(statements),
            "loc" => self.location(),
            "pragma" => self.pragma(),
            "file" => self.file(),
            "extern" => self.external(statements),
            "branchtargets" | "calltargets" | "callprototype" => {
                self.cursor.fail(self.cursor.token, &format!("found .{name} without a label before it"))
            }
            _ => self.cursor.refuse(&format!("the directive .{name} in a function's body")),
        }
    }

    /// `.extern .shared .align 16 .b8 name[];` inside a body.
    fn external(&mut self, statements: &mut Vec<Statement>) -> Result<()> {
        self.cursor.take();
        let Some(space) = self.cursor.directive().and_then(space) else {
            return self.cursor.expected("a state space such as .shared");
        };
        self.cursor.take();
        statements.extend(self.variables(space, true)?.into_iter().map(Statement::Variable));
        Ok(())
    }

    /// `.reg .b32 %r<9>, x, y;`
    fn registers(&mut self, statements: &mut Vec<Statement>) -> Result<()> {
        self.cursor.take();
        if matches!(self.cursor.directive(), Some("v2" | "v4" | "v8")) {
            return self.cursor.refuse("a register that is a vector");
        }
        let ty = self.fundamental_type()?;
        loop {
            let name = self.cursor.name("a register's name")?.to_string();
            let mut count = None;
            if self.cursor.eat(b'<') {
                let place = self.cursor.token;
                let found = self.cursor.count("a number of registers")?;
                if found > MAX_REGISTERS {
                    let message = format!("found {found} registers, expected at most {MAX_REGISTERS}");
                    return self.cursor.fail(place, &message);
                }
                count = Some(found as u32);
                self.cursor.expect(b'>')?;
            }
            statements.push(Statement::Registers { ty, name, count });
            if !self.cursor.eat(b',') {
                break;
            }
        }
        self.cursor.expect(b';')
    }

    /// `NAME:`, and the table that it may name: `.branchtargets A, B;`.
    fn label(&mut self, statements: &mut Vec<Statement>) -> Result<()> {
        let name = self.cursor.name("a label")?.to_string();
        self.cursor.take();
        match self.cursor.directive() {
            Some("branchtargets") => {
                let targets = self.targets()?;
                statements.push(Statement::BranchTargets { name, targets });
            }
            // Only indirect calls need these; they are refused where they stand.
            Some("calltargets") => _ = self.targets()?,
            Some("callprototype") => self.call_prototype()?,
            _ => statements.push(Statement::Label(name)),
        }
        Ok(())
    }

    fn targets(&mut self) -> Result<Vec<String>> {
        self.cursor.take();
        let mut targets = Vec::new();
        loop {
            targets.push(self.cursor.name("a label")?.to_string());
            if !self.cursor.eat(b',') {
                break;
            }
        }
        self.cursor.expect(b';')?;
        Ok(targets)
    }

    /// `.callprototype (.param .b32 _) _ (.param .b32 _);`
    fn call_prototype(&mut self) -> Result<()> {
        self.cursor.take();
        if self.cursor.at(b'(') {
            self.parameters()?;
        }
        self.cursor.name("_")?;
        if self.cursor.at(b'(') {
            self.parameters()?;
        }
        self.cursor.eat_directive("noreturn");
        self.cursor.expect(b';')
    }

    /// `@!%p1 ld.global.f32 %f1, [%rd1+4];`
    fn instruction(&mut self) -> Result<Instruction> {
        let line = self.cursor.token.line;
        let mut guard = None;
        if self.cursor.eat(b'@') {
            let negated = self.cursor.eat(b'!');
            guard = Some(Guard { predicate: self.cursor.name("a predicate")?.to_string(), negated });
        }
        let place = self.cursor.token;
        let mut parts = place.text.split('.');
        let opcode = parts.next().unwrap_or("");
        let known = opcode.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_');
        if place.kind != TokenKind::Word || !known {
            return self.cursor.expected("an opcode");
        }
        self.cursor.take();
        let mut modifiers: Vec<String> = parts.map(str::to_string).collect();
        while let Some(modifier) = self.cursor.directive() {
            modifiers.push(modifier.to_string());
            self.cursor.take();
        }
        let operands = self.operands(opcode == "call")?;
        if !self.cursor.eat(b';') {
            return self.cursor.expected(&format!("\",\" or \";\" after an operand of {}", shown(opcode)));
        }
        let source = self.locations.current.clone();
        Ok(Instruction { guard, opcode: opcode.to_string(), modifiers, operands, line, source })
    }
}
