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
/// five times as quickly, and the loop goes. Lines between `--<NAME PARAMETERS` and `-->` are a block, which stands in the place of each line
/// `--=NAME VALUES` behind it: a function would be made anew in every call, with a cell for each variable that it uses.
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
    if form == Form::Several {
        return text;
    }
    let words = [("for i = 1, #limits do local limit = limits[i]", "do"), ("limit.", "limit_"), ("first.", "limit_")];
    words.iter().fold(text, |text, (of_each, of_one)| text.replace(of_each, of_one))
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
    text.extend(["do local ", block.parameters, " = ", values, "\n"]);
    block.lines.iter().for_each(|line| write_line(line, blocks, text));
    text.push_str("end\n");
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
}
