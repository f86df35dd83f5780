//! How the text of a script is made of its files, in a form for each kind of limit.
//!
//! Called by `script.rs`, once for each script.

/// What a text is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// One limit.
    One,
    /// One fixed limit, of which tokens are set aside for nodes that may lose the store.
    Entitled,
    /// The same for one sliding limit.
    Sliding,
    /// The same for one limit whose windows open with the first request.
    Opened,
    /// The same for one bucket.
    Bucket,
    /// One limit of which nothing is set aside, and several keys in one call.
    Many,
    Several,
}

/// The text in one form.
///
/// Lines between `--<one`, `--<several` and the like and `-->` are of that form alone (`lua/lib.lua` lists these heads). The files
/// handle limits as tables in a loop; in a form for one limit its fields become local variables, which the interpreter reaches
/// five times as quickly, the loop goes, and whether the limit is a bucket is asked once. Lines between `--<NAME PARAMETERS` and
/// `-->` are a block, which stands in the place of each line `--=NAME VALUES` behind it: a function would be made anew in every call,
/// with a cell for each variable that it uses. Its parameters are variables of its own; without any, it is put as it is.
pub(super) fn written(source: &str, form: Form) -> String {
    let (mut blocks, mut text, mut part) = (Blocks::new(), String::with_capacity(source.len()), Part::All);
    for line in source.lines() {
        match line.trim_start() {
            "--<one" => {
                let forms = &[Form::One, Form::Entitled, Form::Sliding, Form::Opened, Form::Bucket, Form::Many];
                part = Part::Of(forms);
            }
            "--<alone" => {
                part = Part::Of(&[Form::One, Form::Entitled, Form::Sliding, Form::Opened, Form::Bucket]);
            }
            "--<plain" => part = Part::Of(&[Form::One, Form::Many]),
            "--<single" => part = Part::Of(&[Form::One]),
            "--<many" => part = Part::Of(&[Form::Many]),
            "--<aside" => part = Part::Of(&[Form::Entitled, Form::Sliding, Form::Opened, Form::Bucket]),
            "--<entitled" => part = Part::Of(&[Form::Entitled, Form::Sliding, Form::Opened]),
            "--<fixed" => part = Part::Of(&[Form::Entitled]),
            "--<sliding" => part = Part::Of(&[Form::Sliding]),
            "--<opened" => part = Part::Of(&[Form::Opened]),
            "--<bucket" => part = Part::Of(&[Form::Bucket]),
            "--<several" => part = Part::Of(&[Form::Several]),
            "-->" => part = Part::All,
            head if head.starts_with("--<") => {
                let (name, parameters) = head[3..].split_once(' ').unwrap_or((&head[3..], ""));
                blocks.push(Block { name, parameters, lines: Vec::new() });
                part = Part::Block;
            }
            _ if part == Part::Block => blocks.last_mut().expect("a block was begun").lines.push(line),
            _ if part.is_of(form) => write_line(line, &blocks, &mut text),
            _ => {}
        }
    }
    if form != Form::Several {
        text = OF_ONE.iter().fold(text, |text, (of_each, of_one)| text.replace(of_each, of_one));
    }
    in_fewer_steps(&named(&text))
}

/// The text with the numbers of a call, `a1`, `a2` and so on, under the names that its script gives them in a line such as
/// `local need, want = a1, a2`. That line would cost a step for each.
fn named(text: &str) -> String {
    let names: Vec<_> = text.lines().filter_map(names_in).flatten().collect();
    let lines = text.lines().filter(|line| names_in(line).is_none());
    lines.flat_map(|line| [with_values(line, &names), "\n".to_owned()]).collect()
}

/// Numbers of a call, each with the name that a line gives it, where the line does nothing else.
fn names_in(line: &str) -> Option<Vec<Constant>> {
    let (names, numbers) = line.strip_prefix("local ")?.split_once(" = ")?;
    let (names, numbers) = (parts(names), parts(numbers));
    let is_number = |number: &&str| number.strip_prefix('a').is_some_and(|place| place.parse::<u8>().is_ok());
    let are_numbers = names.len() == numbers.len() && numbers.iter().all(is_number);
    are_numbers.then(|| numbers.into_iter().zip(names).map(|(number, name)| (number.into(), name.into())).collect())
}

/// What the files say of each limit, and what that is where there is one.
const OF_ONE: [(&str, &str); 5] = [
    ("for i = 1, #limits do local limit = limits[i]", "do"),
    ("limit.kind == 'g'", "has_gcra"),
    ("limit.kind ~= 'g'", "not has_gcra"),
    ("limit.", "limit_"),
    ("first.", "limit_"),
];

/// The same text for an interpreter that takes time for each step. A local variable that is a constant costs a step where it is
/// declared, and its value none where it is used; of several values that are assigned at once each but one costs a second step. So
/// constants, which have names in capitals, are written out, and values are assigned one by one where none is about a variable that
/// is assigned before it. Lines are looked at one by one: a value that goes on in the next line, behind an assignment of several, would
/// be cut off, which is no valid Lua, so that every test that runs the script fails.
fn in_fewer_steps(text: &str) -> String {
    let (mut constants, mut shorter) = (Vec::new(), String::with_capacity(text.len()));
    for line in text.lines() {
        match constants_in(line, &constants) {
            // What was said of a constant last stands first, and is found.
            Some(said) => drop(constants.splice(0..0, said)),
            None => one_by_one(&with_values(line, &constants), &mut shorter),
        }
    }
    shorter
}

/// The name of a constant, or of a number of a call, and what stands in its place.
type Constant = (String, String);

/// The constants that a line declares or changes, where it does nothing else.
fn constants_in(line: &str, constants: &[Constant]) -> Option<Vec<Constant>> {
    let (names, values) = line.strip_prefix("local ").unwrap_or(line).split_once(" = ")?;
    let values = with_values(values, constants);
    let (names, values) = (parts(names), parts(&values));
    let are_names = names.iter().all(|name| is_in_capitals(name));
    let are_known = values.iter().all(|value| !codes(value).any(|code| code.contains(char::is_alphabetic)));
    if names.len() != values.len() || !are_names || !are_known {
        return None;
    }
    let is_one_word = |value: &str| value.starts_with('\'') || !value.contains(' ');
    let value_of = |value: &str| if is_one_word(value) { value.to_owned() } else { ["(", value, ")"].concat() };
    Some(names.into_iter().zip(values).map(|(name, value)| (name.to_owned(), value_of(value))).collect())
}

/// The line with these values in place of their names.
fn with_values(line: &str, constants: &[Constant]) -> String {
    let mut written = String::with_capacity(line.len());
    for (place, piece) in line.split('\'').enumerate() {
        written.push_str(if place == 0 { "" } else { "'" });
        // Every other piece is a text.
        if place % 2 == 1 {
            written.push_str(piece);
            continue;
        }
        for word in piece.split_inclusive(|letter: char| !is_of_word(letter)) {
            let name = word.trim_end_matches(|letter: char| !is_of_word(letter));
            let known = constants.iter().find(|(of, _)| of == name);
            written.extend([known.map_or(name, |(_, value)| value), &word[name.len()..]]);
        }
    }
    written
}

/// Writes an assignment of several values as one of each, and any other line as it is.
fn one_by_one(line: &str, text: &mut String) {
    let (names, values) =
        line.split_once(" = ").map(|(names, values)| (parts(names), parts(values))).unwrap_or_default();
    let is_assignment = names.len() == values.len() && names.iter().all(|name| name.chars().all(is_of_variable));
    let says = |value: &str, name: &str| {
        codes(value).any(|code| code.split(|letter: char| !is_of_variable(letter)).any(|word| word == name))
    };
    let are_apart = || (1..values.len()).all(|place| !names[..place].iter().any(|name| says(values[place], name)));
    if names.len() < 2 || !is_assignment || !are_apart() {
        return text.extend([line, "\n"]);
    }
    names.iter().zip(values).for_each(|(name, value)| text.extend([name, " = ", value, "\n"]));
}

/// What stands between commas, except those in a text or within brackets.
fn parts(list: &str) -> Vec<&str> {
    let (mut depth, mut in_text) = (0_u32, false);
    let is_comma = |letter: char| {
        match letter {
            '\'' => in_text = !in_text,
            '(' | '{' | '[' if !in_text => depth += 1,
            ')' | '}' | ']' if !in_text => depth = depth.saturating_sub(1),
            _ => {}
        }
        letter == ',' && !in_text && depth == 0
    };
    list.split(is_comma).map(str::trim).collect()
}

/// The pieces of a line that are in no text.
fn codes(line: &str) -> impl Iterator<Item = &str> {
    line.split('\'').step_by(2)
}

fn is_in_capitals(word: &str) -> bool {
    word.starts_with(|first: char| first.is_ascii_uppercase())
}

fn is_of_word(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_'
}

fn is_of_variable(letter: char) -> bool {
    is_of_word(letter) || letter == '.'
}

/// Where the lines belong that are being read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    All,
    Of(&'static [Form]),
    Block,
}

impl Part {
    fn is_of(self, form: Form) -> bool {
        match self {
            Self::All => true,
            Self::Of(forms) => forms.contains(&form),
            Self::Block => false,
        }
    }
}

type Blocks<'a> = Vec<Block<'a>>;

struct Block<'a> {
    name: &'a str,
    parameters: &'a str,
    lines: Vec<&'a str>,
}

/// Writes a line, or the block that it names; comments are for those who read the files.
fn write_line(line: &str, blocks: &Blocks<'_>, text: &mut String) {
    let line = line.trim_start();
    let Some(used) = line.strip_prefix("--=") else {
        if !line.is_empty() && !line.starts_with("--") {
            text.extend([line, "\n"]);
        }
        return;
    };
    let (name, values) = used.split_once(' ').unwrap_or((used, ""));
    // A block that does not exist makes the text invalid Lua, so that every test which runs it fails.
    let Some(block) = blocks.iter().find(|block| block.name == name) else {
        return text.extend(["no block ", name, "\n"]);
    };
    let has_parameters = !block.parameters.is_empty();
    if has_parameters {
        text.extend(["do local ", block.parameters, " = ", values, "\n"]);
    }
    block.lines.iter().for_each(|line| write_line(line, blocks, text));
    text.push_str(if has_parameters { "end\n" } else { "" });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_alone_is_no_table_and_no_loop() {
        let source = "--<debit tokens\nlimit.used = limit.used - tokens\n-->\n--<one\nlocal limit_used = 0\n--<several\nlocal \
                      limits = {}\n-->\nfor i = 1, #limits do local limit = limits[i]\n  -- Said.\n  --=debit a + 1\nend\nreturn first.used";
        let one = "local limit_used = 0\ndo\ndo local tokens = a + 1\nlimit_used = limit_used - tokens\nend\nend\nreturn \
                   limit_used\n";
        assert_eq!(written(source, Form::One), one);
        let several = "local limits = {}\nfor i = 1, #limits do local limit = limits[i]\ndo local tokens = a + 1\nlimit.used = \
                       limit.used - tokens\nend\nend\nreturn first.used\n";
        assert_eq!(written(source, Form::Several), several);
    }

    #[test]
    fn a_block_without_parameters_stands_where_it_is_named() {
        let source = "local nodes\n--<count\nnodes = 1\n-->\nif a then\n  --=count\nend";
        assert_eq!(written(source, Form::One), "local nodes\nif a then\nnodes = 1\nend\n");
    }

    #[test]
    fn a_number_of_a_call_has_the_name_that_its_script_gives_it() {
        let source = "local now, a1, a2, a3 = f(A, head)\nlocal need, rest = a1, a2\nreturn need + a3, 'a1', a12";
        let text = "local now, need, rest, a3 = f(A, head)\nreturn need + a3, 'a1', a12\n";
        assert_eq!(written(source, Form::Several), text);
    }

    #[test]
    fn a_constant_is_written_out_and_no_variable() {
        let source = "local MANY, FORMAT = 2 * 3, '<I7 MANY'\nMANY = MANY + 1\nlocal all = MANY * unit\nlocal TWICE = 2 * all\n\
                      return pack(FORMAT, MANY), TWICE, MANYFOLD";
        let text = "local all = ((2 * 3) + 1) * unit\nlocal TWICE = 2 * all\nreturn pack('<I7 MANY', ((2 * 3) + 1)), TWICE, MANYFOLD\n";
        assert_eq!(written(source, Form::Several), text);
    }

    #[test]
    fn values_are_assigned_one_by_one_where_none_is_about_a_variable_before_it() {
        let source = "a, b = f(c, d), 'a, b'\na, b = b, a\nlimit.at, at = 0, at\nlocal a, b = 0, 0\na, b = f(c)";
        let text = "a = f(c, d)\nb = 'a, b'\na, b = b, a\nlimit.at = 0\nat = at\nlocal a, b = 0, 0\na, b = f(c)\n";
        assert_eq!(written(source, Form::Several), text);
        assert_eq!(
            written("limit.used, limit.prev = 0, limit.used", Form::One),
            "limit_used, limit_prev = 0, limit_used\n"
        );
    }
}
