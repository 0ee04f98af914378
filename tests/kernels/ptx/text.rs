//! PTX text taken apart: entries and their statements, each with its line.

/// One kernel: its name, the bytes of its arguments, its statements.
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) parameter: String,
    pub(crate) argument_bytes: usize,
    pub(crate) statements: Vec<Statement>,
}

pub(crate) struct Statement {
    pub(crate) line: usize,
    pub(crate) part: Part,
}

pub(crate) enum Part {
    Open,
    Close,
    Label(String),
    /// `.reg .f32 %f<88>`
    Registers(String),
    /// A guard, `!` in front of it or not; the opcode; the operands.
    Instruction {
        guard: Option<(bool, String)>,
        opcode: String,
        operands: Vec<String>,
    },
}

/// A module: its kernels, and the names of its dynamic shared memory.
#[derive(Default)]
pub(crate) struct Module {
    pub(crate) entries: Vec<Entry>,
    pub(crate) shared: Vec<String>,
}

/// Splits at commas outside of braces and brackets.
fn split(text: &str) -> Vec<String> {
    let (mut parts, mut depth) = (vec![String::new()], 0);
    for c in text.chars() {
        match c {
            '{' | '[' => depth += 1,
            '}' | ']' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(String::new());
                continue;
            }
            _ => {}
        }
        parts.last_mut().unwrap().push(c);
    }
    let parts: Vec<String> = parts.iter().map(|p| p.trim().to_owned()).collect();
    if parts == [""] { Vec::new() } else { parts }
}

/// The operands between a vector's braces; other operands stand for themselves.
pub(crate) fn lanes(operand: &str) -> Vec<String> {
    operand.strip_prefix('{').and_then(|o| o.strip_suffix('}')).map_or_else(|| vec![operand.to_owned()], split)
}

fn instruction(text: &str) -> Option<Part> {
    let (guard, rest) = match text.strip_prefix('@') {
        Some(rest) => {
            let (register, rest) = rest.split_once(char::is_whitespace)?;
            let sense = register.strip_prefix('!');
            (Some((sense.is_none(), sense.unwrap_or(register).to_owned())), rest.trim())
        }
        None => (None, text),
    };
    let (opcode, operands) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
    Some(Part::Instruction { guard, opcode: opcode.to_owned(), operands: split(operands) })
}

/// Takes a module apart. What it does not know is an error that names the line.
pub(crate) fn parse(text: &str) -> Result<Module, String> {
    let mut module = Module::default();
    let (mut depth, mut rest, mut begun) = (0, String::new(), 0);
    for (number, line) in text.lines().enumerate().map(|(i, line)| (i + 1, line)) {
        let unknown = |what: &str| format!("line {number}: unknown PTX: {what}");
        let line = line.split("//").next().unwrap_or("").trim();
        if depth == 0 {
            let words: Vec<&str> = line.split_whitespace().collect();
            match words[..] {
                [] | [")"] | [".version" | ".target" | ".maxntid" | ".minnctapersm", ..] => {}
                [".address_size", "64"] | [".global", ..] => {}
                [".extern", ".shared", .., name] if name.ends_with("[];") => {
                    module.shared.push(name.trim_end_matches("[];").to_owned());
                }
                [".visible", ".entry", name] => module.entries.push(Entry {
                    name: name.trim_end_matches('(').to_owned(),
                    parameter: String::new(),
                    argument_bytes: 0,
                    statements: Vec::new(),
                }),
                [".param", ".align", _, ".b8", name] => {
                    let entry = module.entries.last_mut().ok_or_else(|| unknown(line))?;
                    let (name, bytes) = name.split_once('[').ok_or_else(|| unknown(line))?;
                    entry.parameter = name.to_owned();
                    entry.argument_bytes = bytes.trim_end_matches(']').parse().map_err(|_| unknown(line))?;
                }
                ["{"] if !module.entries.is_empty() => depth = 1,
                _ => return Err(unknown(line)),
            }
            continue;
        }
        let statements = &mut module.entries.last_mut().unwrap().statements;
        for c in line.chars().chain(['\n']) {
            let blank = rest.trim().is_empty();
            let mut push = |part| statements.push(Statement { line: if blank { number } else { begun }, part });
            match c {
                '{' if blank => {
                    depth += 1;
                    push(Part::Open);
                }
                '}' if blank => {
                    depth -= 1;
                    if depth > 0 {
                        push(Part::Close);
                    }
                }
                ':' if rest.trim().starts_with('$') => {
                    push(Part::Label(rest.trim()[1..].to_owned()));
                    rest.clear();
                }
                ';' => {
                    let whole = rest.trim();
                    if let Some(registers) = whole.strip_prefix(".reg") {
                        push(Part::Registers(registers.trim().to_owned()));
                    } else if [".pragma \"nounroll\"", ".pragma \"used_bytes_mask "]
                        .iter()
                        .any(|p| whole.starts_with(p))
                    {
                        // A hint: it changes nothing that is computed.
                    } else {
                        push(instruction(whole).ok_or_else(|| unknown(whole))?);
                    }
                    rest.clear();
                }
                _ => {
                    if blank {
                        begun = number;
                    }
                    rest.push(c);
                }
            }
        }
    }
    if depth > 0 || module.entries.is_empty() { Err("the PTX ends early".to_owned()) } else { Ok(module) }
}
