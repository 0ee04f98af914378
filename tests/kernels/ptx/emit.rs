//! C++ for one entry of a PTX module: a statement for a statement.

use std::collections::HashMap;

use super::faults::{Change, Fault};
use super::table::{TYPES, expression, holder, real, typed, unsigned, wide};
use super::text::{Entry, Module, Part, Statement, lanes};

type Result<T> = std::result::Result<T, String>;

struct Emitter<'a> {
    module: &'a Module,
    entry: &'a Entry,
    /// Register to its declared type, scope by scope.
    registers: Vec<HashMap<String, &'static str>>,
}

/// How memory is addressed: the state space, the lanes of a vector.
struct Access {
    space: &'static str,
    lanes: usize,
}

/// C++ of that entry; statements that `faults` apply to are followed by their alternatives. An unknown statement is an
/// error with its line.
pub(crate) fn translate(module: &Module, entry: &Entry, faults: &[Fault]) -> Result<String> {
    let mut emitter = Emitter { module, entry, registers: vec![HashMap::new()] };
    let mut body = String::new();
    for statement in &entry.statements {
        let line = emitter.statement(statement, faults).map_err(|e| format!("line {}: {e}", statement.line))?;
        body += &line;
        body.push('\n');
    }
    Ok(format!(
        "#include \"ptx.h\"\nextern \"C\" const u64 ptx_argument_bytes = {};\nextern \"C\" void ptx_entry(const char* arguments) {{\n\
         const u64 SHARED = ptx_shared(); (void)SHARED;\n{body}}}\n",
        entry.argument_bytes
    ))
}

fn name(register: &str) -> String {
    format!("r_{}", register.trim_start_matches('%'))
}

fn type_of(word: &str) -> Option<&'static str> {
    TYPES.split(' ').find(|t| *t == word)
}

impl Emitter<'_> {
    fn class(&self, register: &str) -> Option<&'static str> {
        self.registers.iter().rev().find_map(|scope| scope.get(register).copied())
    }

    fn statement(&mut self, statement: &Statement, faults: &[Fault]) -> Result<String> {
        match &statement.part {
            Part::Open => {
                self.registers.push(HashMap::new());
                Ok("{".to_owned())
            }
            Part::Close => {
                self.registers.pop();
                Ok("}".to_owned())
            }
            Part::Label(label) => Ok(format!("{label}: __attribute__((unused));")),
            Part::Registers(text) => self.declare(text),
            Part::Instruction { guard, opcode, operands } => {
                let written = |change| self.guarded(guard, opcode, operands, change);
                let sound = written(None)?;
                let mut text = String::new();
                for (number, fault) in faults.iter().enumerate() {
                    if fault.applies(opcode, guard.is_some()) {
                        text +=
                            &format!("if (ptx_fault == {}) {{{}}} else ", number + 1, written(Some(&fault.change))?);
                    }
                }
                Ok(format!("{text}{{{sound}}}"))
            }
        }
    }

    fn declare(&mut self, text: &str) -> Result<String> {
        let unknown = || format!("unknown PTX: .reg {text}");
        let (of, names) = text.strip_prefix('.').and_then(|t| t.split_once(char::is_whitespace)).ok_or_else(unknown)?;
        let of = type_of(of).ok_or_else(unknown)?;
        let mut declared = Vec::new();
        for register in names.split(',').map(str::trim) {
            let all = match register.split_once('<') {
                None => vec![register.to_owned()],
                Some((stem, count)) => {
                    let count: usize = count.trim_end_matches('>').parse().map_err(|_| unknown())?;
                    (0..count).map(|n| format!("{stem}{n}")).collect()
                }
            };
            declared.extend(all.iter().map(|r| name(r)));
            self.registers.last_mut().unwrap().extend(all.into_iter().map(|r| (r, of)));
        }
        let holder = if real(of) { of } else { unsigned(of) };
        Ok(format!("{holder} {};", declared.join(", ")))
    }

    /// An operand as C++ of the wanted type.
    fn value(&self, operand: &str, want: &str) -> Result<String> {
        let unknown = || format!("unknown operand {operand}");
        let special = |which: &str| match which {
            "%tid.x" => Some(0),
            "%tid.y" => Some(1),
            "%ntid.x" => Some(2),
            "%ntid.y" => Some(3),
            "%ctaid.x" => Some(4),
            "%nctaid.x" => Some(5),
            _ => None,
        };
        let (text, of) = if let Some(class) = self.class(operand) {
            (name(operand), class)
        } else if let Some(index) = special(operand) {
            (format!("ptx_index({index})"), "u32")
        } else if operand == self.entry.parameter {
            ("(u64)arguments".to_owned(), "u64")
        } else if self.module.shared.iter().any(|s| s == operand) {
            ("(u64)0".to_owned(), "u64")
        } else if let Some(bits) = operand.strip_prefix("0f") {
            (
                format!(
                    "0x{}u",
                    u32::from_str_radix(bits, 16).map_or_else(|_| Err(unknown()), |b| Ok(format!("{b:x}")))?
                ),
                "u32",
            )
        } else if let Some(bits) = operand.strip_prefix("0d") {
            (
                format!(
                    "0x{}ull",
                    u64::from_str_radix(bits, 16).map_or_else(|_| Err(unknown()), |b| Ok(format!("{b:x}")))?
                ),
                "u64",
            )
        } else {
            let number: i128 = operand.parse().map_err(|_| unknown())?;
            (
                format!("0x{:x}ull", number as u64),
                if want == "f32" || want == "f64" { return Err(unknown()) } else { "u64" },
            )
        };
        Ok(match (real(of), real(want)) {
            (true, true) if of == want => text,
            (true, true) => return Err(format!("{operand} is no {want}")),
            (false, true) if unsigned(of) == unsigned(want) => format!("real(({}){text})", unsigned(of)),
            (false, true) => return Err(format!("{operand} is no {want}")),
            (true, false) => format!("({})bits({text})", holder(want)),
            (false, false) => format!("({}){text}", holder(want)),
        })
    }

    /// Puts a value of that type into a register; `raw`: a NaN keeps its bits.
    fn put(&self, register: &str, of: &str, expression: &str, raw: bool) -> Result<String> {
        let class = self.class(register).ok_or_else(|| format!("{register} is no register"))?;
        let value = match (real(of), real(class)) {
            (true, _) if raw => expression.to_owned(),
            (true, _) => format!("made({of}({expression}))"),
            (false, true) => format!("real({}({expression}))", unsigned(of)),
            (false, false) => format!("({})({expression})", holder(of)),
        };
        Ok(match (real(of), real(class)) {
            (true, true) if of != class => return Err(format!("{register} is no {of}")),
            (true, false) => format!("{} = bits({value});", name(register)),
            _ => format!("{} = {value};", name(register)),
        })
    }

    fn guarded(
        &self,
        guard: &Option<(bool, String)>,
        opcode: &str,
        operands: &[String],
        change: Option<&Change>,
    ) -> Result<String> {
        let body = match change {
            Some(Change::Nothing) => String::new(),
            _ => self.instruction(opcode, operands, change)?,
        };
        let turned = matches!(change, Some(Change::Sense));
        Ok(match guard {
            None => body,
            Some((sense, register)) => {
                format!("if ({}{}) {{{body}}}", if *sense == turned { "!" } else { "" }, self.value(register, "pred")?)
            }
        })
    }

    fn instruction(&self, opcode: &str, operands: &[String], change: Option<&Change>) -> Result<String> {
        let unknown = || format!("unknown PTX: {opcode} {}", operands.join(", "));
        let words: Vec<&str> = opcode.split('.').collect();
        match (&words[..], operands) {
            (["bra"] | ["bra", "uni"], [label]) => return Ok(format!("goto {};", label.trim_start_matches('$'))),
            (["ret"], []) => return Ok("return;".to_owned()),
            (["bar", "sync"], [zero]) if zero == "0" => return Ok("ptx_barrier();".to_owned()),
            (["bar", "warp", "sync"], [mask]) => {
                return Ok(format!("ptx_collective(\"bar.warp.sync\", {}, 0);", self.value(mask, "u32")?));
            }
            (["membar", _] | ["fence", ..], []) => return Ok("__sync_synchronize();".to_owned()),
            (["ld", .., of], [to, from]) => {
                return self.load(&words, of, to, from, change).and_then(|s| s.ok_or_else(unknown));
            }
            (["st", .., of], [to, from]) => {
                return self.store(&words, of, to, from, change).and_then(|s| s.ok_or_else(unknown));
            }
            (["atom" | "red", ..], _) => return self.atomic(&words, operands, change)?.ok_or_else(unknown),
            (["mov", of], [to, from]) => return self.moved(of, to, from),
            (["shfl", "sync", mode @ ("up" | "down" | "bfly" | "idx"), "b32"], [to, rest @ ..]) if rest.len() == 4 => {
                let mut values: Vec<String> = rest.iter().map(|o| self.value(o, "u32")).collect::<Result<_>>()?;
                if let Some(Change::Operand(number, expression)) = change {
                    values[*number] = format!("({expression})");
                }
                let (to, valid) = to.split_once('|').map_or((to.as_str(), None), |(to, p)| (to, Some(p)));
                let call = format!(
                    "bool valid; {}",
                    self.put(to, "u32", &format!("shuffle('{}', {}, valid)", &mode[..1], values.join(", ")), true)?
                );
                return Ok(call + &valid.map_or(Ok(String::new()), |p| self.put(p, "pred", "valid", true))?);
            }
            _ => {}
        }
        let found = match change {
            Some(Change::Expression(text)) => Some((*text).to_owned()),
            _ => expression(opcode),
        };
        let (found, (_, types)) = (found.ok_or_else(unknown)?, typed(opcode));
        let (to, from) = operands.split_first().ok_or_else(unknown)?;
        let of = types[types.len() - 1];
        let (mut result, mut raw, mut text) = (types[0], false, found.as_str());
        if let Some((marked, rest)) = found.split_once("= ").filter(|(m, _)| ["pred", "u32", "W", "raw"].contains(m)) {
            text = rest;
            match marked {
                "raw" => raw = true,
                "W" => result = wide(of),
                other => result = type_of(other).ok_or_else(unknown)?,
            }
        }
        let mut pieces = text.split('$');
        let mut filled = pieces.next().unwrap_or("").to_owned();
        let mut used = 0;
        for piece in pieces {
            let number = usize::from(piece.as_bytes()[0] - b'a');
            let marked = piece[1..].strip_prefix(':');
            let end = marked.map_or(0, |m| m.find(|c: char| !c.is_alphanumeric()).unwrap_or(m.len()));
            let want = match marked.map(|m| &m[..end]) {
                None => of,
                Some("U") => unsigned(of),
                Some("W") => wide(of),
                Some(other) => other,
            };
            // The product's wide operands are the narrow ones, widened; its sum's is wide.
            let operand = from.get(number).ok_or_else(unknown)?;
            let value = match marked.map(|m| &m[..end]) {
                Some("W") if number < 2 => format!("({}){}", holder(want), self.value(operand, of)?),
                _ => self.value(operand, want)?,
            };
            used = used.max(number + 1);
            filled += &value;
            filled += marked.map_or(&piece[1..], |m| &m[end..]);
        }
        if used != from.len() && change.is_none() {
            return Err(unknown());
        }
        self.put(to, result, &filled, raw)
    }

    fn moved(&self, of: &str, to: &str, from: &str) -> Result<String> {
        let of = type_of(of).ok_or_else(|| format!("unknown PTX: mov.{of}"))?;
        let half = |of: &str| if unsigned(of) == "u64" { ("u32", 32) } else { ("u16", 16) };
        if let [low, high] = &lanes(to)[..] {
            let (part, shift) = half(of);
            let whole = self.value(from, unsigned(of))?;
            let (low, high) =
                (self.put(low, part, "whole", true)?, self.put(high, part, &format!("whole >> {shift}"), true)?);
            return Ok(format!("auto whole = {whole}; {low} {high}"));
        }
        if let [low, high] = &lanes(from)[..] {
            let (part, shift) = half(of);
            let (low, high, of) = (self.value(low, part)?, self.value(high, part)?, unsigned(of));
            return self.put(to, of, &format!("({of}){high} << {shift} | {low}"), true);
        }
        // Bits move: a type says only how many.
        let class = self.class(to).ok_or_else(|| format!("{to} is no register"))?;
        let of = if real(class) || of == "pred" { class } else { unsigned(of) };
        self.put(to, of, &self.value(from, of)?, true)
    }

    /// The space and lanes of a load or store, if all its words are known.
    fn access(words: &[&str]) -> Option<Access> {
        let mut access = Access { space: "GENERIC", lanes: 1 };
        for word in &words[1..words.len() - 1] {
            match *word {
                "global" => access.space = "GLOBAL",
                "shared" => access.space = "SHARED_MEMORY",
                "param" => access.space = "ARGUMENT",
                "nc" => access.space = "NOT_WRITTEN",
                "v2" => access.lanes = 2,
                "v4" => access.lanes = 4,
                "volatile" | "relaxed" | "acquire" | "release" | "sys" | "gpu" | "cta" | "cs" | "cg" | "ca" | "cv"
                | "wb" => {}
                _ => return None,
            }
        }
        Some(access)
    }

    /// `[base+offset]`
    fn address(&self, operand: &str) -> Result<String> {
        let unknown = || format!("unknown address {operand}");
        let inner = operand.strip_prefix('[').and_then(|o| o.strip_suffix(']')).ok_or_else(unknown)?;
        let (base, offset) = inner.split_once('+').unwrap_or((inner, "0"));
        let offset: i64 = offset.parse().map_err(|_| unknown())?;
        Ok(format!("{} + {offset}ll", self.value(base, "u64")?))
    }

    fn load(&self, words: &[&str], of: &str, to: &str, from: &str, change: Option<&Change>) -> Result<Option<String>> {
        let (Some(access), Some(of), address) = (Self::access(words), type_of(of), self.address(from)?) else {
            return Ok(None);
        };
        let mut registers = lanes(to);
        if registers.len() != access.lanes {
            return Ok(None);
        }
        if matches!(change, Some(Change::Lanes)) {
            registers.reverse();
        }
        // A float's bits, as they are; a small integer grows to its register's width by its sign.
        let held = if real(of) { unsigned(of) } else { holder(of) };
        let size = bytes(held);
        let one = |n: usize| match access.space {
            "ARGUMENT" => format!("argument<{held}>(arguments, ptx_argument_bytes, at + {})", n * size),
            _ => format!("taken<{held}>(at + {})", n * size),
        };
        let put = |(n, r): (usize, &String)| {
            let value =
                if matches!(change, Some(Change::Narrow)) { format!("({})(u8){}", held, one(n)) } else { one(n) };
            self.put(r, held, &value, true)
        };
        let loads = registers.iter().enumerate().map(put).collect::<Result<Vec<_>>>()?.join(" ");
        let at = match access.space {
            "ARGUMENT" => address,
            space => format!("ptx_at({address}, {}, {space})", size * access.lanes),
        };
        Ok(Some(format!("auto at = {at}; {loads}")))
    }

    fn store(&self, words: &[&str], of: &str, to: &str, from: &str, change: Option<&Change>) -> Result<Option<String>> {
        let (Some(access), Some(of), address) = (Self::access(words), type_of(of), self.address(to)?) else {
            return Ok(None);
        };
        let mut values = lanes(from);
        if values.len() != access.lanes || ["ARGUMENT", "NOT_WRITTEN"].contains(&access.space) {
            return Ok(None);
        }
        if matches!(change, Some(Change::Lanes)) {
            values.reverse();
        }
        let (held, size) = (unsigned(of), bytes(unsigned(of)));
        let give = |(n, v): (usize, &String)| {
            let narrow = if matches!(change, Some(Change::Narrow)) { "u8" } else { held };
            Ok(format!("given<{narrow}>(at + {}, ({narrow}){});", n * size, self.value(v, held)?))
        };
        let stores = values.iter().enumerate().map(give).collect::<Result<Vec<_>>>()?.join(" ");
        Ok(Some(format!("auto at = ptx_at({address}, {}, {}); {stores}", size * access.lanes, access.space)))
    }

    fn atomic(&self, words: &[&str], operands: &[String], change: Option<&Change>) -> Result<Option<String>> {
        let returns = words[0] == "atom";
        let (mut space, mut operation, of) = ("GENERIC", "", words[words.len() - 1]);
        for word in &words[1..words.len() - 1] {
            match *word {
                "global" => space = "GLOBAL",
                "shared" => space = "SHARED_MEMORY",
                "add" | "min" | "max" | "exch" | "cas" => operation = word,
                "relaxed" | "acquire" | "release" | "acq_rel" | "sys" | "gpu" | "cta" => {}
                _ => return Ok(None),
            }
        }
        let operands = if returns { operands } else { &[&[String::new()], operands].concat()[..] };
        let given = if operation == "cas" { 4 } else { 3 };
        if operation.is_empty() || real(of) || type_of(of).is_none() || operands.len() != given {
            return Ok(None);
        }
        if let Some(Change::Expression(other)) = change {
            operation = other;
        }
        let of = holder(of);
        let values: Vec<String> = operands[2..].iter().map(|o| self.value(o, of)).collect::<Result<_>>()?;
        let call =
            format!("atomic<{of}>(\"{operation}\", {}, {space}, {})", self.address(&operands[1])?, values.join(", "));
        Ok(Some(if returns { self.put(&operands[0], of, &call, true)? } else { call + ";" }))
    }
}

fn bytes(held: &str) -> usize {
    match held {
        "u8" | "s8" => 1,
        "u16" | "s16" => 2,
        "u64" | "s64" => 8,
        _ => 4,
    }
}
